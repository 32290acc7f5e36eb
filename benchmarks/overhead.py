"""What a tree of 16 nodes costs outside the target's forward: building, masking, verifying and committing it.

A drafter whose estimates are ready grows a tree of 16 nodes in every round of the embedded model's engine; the parts of
the rounds come from `Round.seconds`. Kinds of tree take turns; shares are those of medians. The last line is one JSON
object, which is also written to benchmarks/results/overhead.json.

    python benchmarks/overhead.py [--rounds 40] [--precision auto]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import outrider
from outrider.benching.provenance import provenance
from outrider.core import Draft, Sequence
from outrider.drafters.growth import best_first
from outrider.generation import TextEngine
from outrider.rounds import Round
from prompts import CHAT

RESULTS = Path(__file__).parent / "results"

NODES = 16


class Ready:
    """Grows a tree of 16 nodes from estimates that are there already; drawn ones declare the law they were drawn from.

    Args:
        drawn: whether the tokens are drawn from a law of the whole vocabulary.
        vocab_size: V.
    """

    name = "ready"

    def __init__(self, drawn: bool, vocab_size: int) -> None:
        self.proposal = "sampled" if drawn else "point_mass"
        self.law = np.full(vocab_size, 1 / vocab_size, dtype=np.float32)

    def propose(self, sequences: list[Sequence], budgets: list[int]) -> list[Draft]:
        return [self._propose(s, k) for s, k in zip(sequences, budgets, strict=True)]

    def _propose(self, sequence: Sequence, budget: int) -> Draft:
        start = sequence.tokens[-1]
        tree = best_first(lambda path: [(start + 7 * len(path) + i, 0.4) for i in range(3)], budget)
        if self.proposal == "point_mass":
            return tree
        place = len(sequence.tokens)
        tokens = tuple(sequence.draft_coins.categorical(self.law, place) for _ in tree.tokens)
        return Draft(tokens, tree.parents, "sampled", (self.law,) * len(tokens))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40, help="rounds of each kind")
    parser.add_argument("--precision", default="auto")
    options = parser.parse_args()
    kinds = {"chosen, greedy": (False, 0.0), "chosen, T 0.8": (False, 0.8), "drawn, T 0.8": (True, 0.8)}
    engines = {name: engine_of(drawn, options.precision) for name, (drawn, _) in kinds.items()}
    rounds: dict[str, list[Round]] = {name: [] for name in kinds}
    while min(map(len, rounds.values())) < options.rounds:
        for name, engine in engines.items():
            rounds[name] += some_rounds(engine, kinds[name][1])
    report = {name: summary(found) for name, found in rounds.items()}
    for name, row in report.items():
        print(f"{name:16s} target {row['target_ms']:.1f} ms, outside {100 * row['share']:.1f} % ({row['rule']})")
    full = {"nodes": NODES, "kinds": report, "provenance": provenance()}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "overhead.json").write_text(json.dumps(full, indent=1) + "\n")
    print(json.dumps(full))


def engine_of(drawn: bool, precision: str) -> TextEngine:
    drafter = Ready(drawn, 49_152)
    options: dict[str, Any] = {"precision": precision, "slots": 1, "context_length": 512}
    return outrider.load("smollm2", drafter=drafter, num_draft_tokens=NODES, **options)


def some_rounds(engine: TextEngine, temperature: float) -> list[Round]:
    """A few whole trees, without the first round, which warms up."""
    sequence = engine.add(CHAT[0], temperature=temperature, seed=1, max_new_tokens=200, stop_ids=())
    found: list[Round] = []
    while len(found) < 9:
        found += engine.step()
    engine.cancel(sequence)
    assert all(r.num_drafted == NODES for r in found)
    return found[1:]


def summary(rounds: list[Round]) -> dict[str, Any]:
    parts = {part: 1000 * median(getattr(r.seconds, part) for r in rounds) for part in ("draft", "verify", "other")}
    target = 1000 * median(r.seconds.target for r in rounds)
    share = median((r.seconds.total - r.seconds.target) / r.seconds.target for r in rounds)
    return {"target_ms": target, "share": share, "parts_ms": parts, "rule": rounds[0].rule, "rounds": len(rounds)}


if __name__ == "__main__":
    main()
