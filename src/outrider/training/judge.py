"""What a drafter in training would gain on this machine: walked rounds, and one set of costs for a whole training."""

from __future__ import annotations

import json
from collections.abc import Mapping
from collections.abc import Sequence as Ordered
from dataclasses import replace
from pathlib import Path

from outrider.drafters.none import NoDrafter
from outrider.models.opening import Opened
from outrider.training.kind import AtWork
from outrider.training.trainer import SCORE, read_kept, write_whole
from outrider.training.walk import Walk, plain_seconds, predict, walk

PROMPTS, TOKENS, DRAFTED, TEMPERATURES = 12, 64, 6, (0.0, 0.8)
"""Held-out prompts that rounds are walked on, tokens of each, drafted tokens per round, temperatures."""


def in_words(step: int, record: Mapping[str, float]) -> str:
    """What a look found, for people.

    Args:
        step: steps done.
        record: from a judge.
    """
    first, *others = ((record[f"walked_{t}"], t) for t in TEMPERATURES)
    walked = f"{first[0]:.2f} tokens per round at temperature {first[1]:g}"
    walked += "".join(f", {length:.2f} at {temperature:g}" for length, temperature in others)
    return f"step {step:,}: {walked}; predicted speed-up {record[SCORE]:.2f}"


class Judge:
    """Walks rounds on held-out prompts and predicts the speed-up.

    Seconds are measured in the first walk and kept in a file: two checkpoints of a training differ in what they guess,
    not in what a guess costs, so which one is better must not depend on how busy the machine was.

    Args:
        opened: the target.
        prompts: held-out ones; the first few are taken.
        path: of the file with the seconds.
    """

    def __init__(self, opened: Opened, prompts: Ordered[list[int]], path: Path) -> None:
        self._opened, self._prompts, self._path = opened, list(prompts[:PROMPTS]), path
        self.capacity = min(opened.model.context_length, max(map(len, self._prompts)) + TOKENS)
        self._costs: dict[str, dict[str, float]] = read_kept(path) if path.is_file() else {}

    def __call__(self, found: AtWork) -> dict[str, float]:
        """Walked acceptance length and predicted speed-up at each temperature, and the speed-ups' geometric mean."""
        record, product, plain = dict[str, float](), 1.0, self._plain_seconds()
        for temperature in TEMPERATURES:
            walked = self._at_first_costs(self._walk(found, min(DRAFTED, found.longest), temperature), temperature)
            best = predict(walked, plain)
            record[f"walked_{temperature}"] = walked.acceptance_length
            record |= {f"kept_{temperature}_{i}": c for i, c in enumerate(walked.conditional, start=1)}
            record |= {f"best_k_{temperature}": best.num_drafted, f"speedup_{temperature}": best.speedup}
            product *= best.speedup
        return {**record, SCORE: product ** (1 / len(TEMPERATURES))}

    def _plain_seconds(self) -> float:
        if "plain" not in self._costs:
            plain = self._walk(AtWork(self._opened.model, NoDrafter()), 0, 0.0)
            self._keep("plain", {"seconds": plain_seconds(plain)})
        return self._costs["plain"]["seconds"]

    def _at_first_costs(self, walked: Walk, temperature: float) -> Walk:
        key = str(temperature)
        if key not in self._costs:
            now = {"draft": walked.draft_seconds, "target": walked.target_seconds, "other": walked.other_seconds}
            self._keep(key, now)
        kept = self._costs[key]
        return replace(walked, draft_seconds=kept["draft"], target_seconds=kept["target"], other_seconds=kept["other"])

    def _keep(self, key: str, seconds: dict[str, float]) -> None:
        self._costs[key] = seconds
        write_whole(self._path, lambda path: path.write_text(json.dumps(self._costs), encoding="utf-8"))

    def _walk(self, found: AtWork, num_drafted: int, temperature: float) -> Walk:
        return walk(
            found.model,
            found.drafter,
            self._prompts,
            num_drafted=num_drafted,
            temperature=temperature,
            max_new_tokens=TOKENS,
            stop_ids=self._opened.tokenizer.stop_ids,
            context_length=self.capacity,
        )
