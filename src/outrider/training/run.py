"""A head from nothing but a target: texts, states, training, and the checkpoint that promises most speed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from outrider.attaching import attach, showing
from outrider.core import Drafter, Model
from outrider.drafters.heads.stored import StoredHead
from outrider.drafters.none import NoDrafter
from outrider.engine import Engine
from outrider.errors import InvalidOption, UnsupportedModel
from outrider.models.opening import Matrices, Opened, full_matrices
from outrider.planning.pace import FixedPace
from outrider.rules import choose_rule
from outrider.training.batches import Batches
from outrider.training.eagle import EagleTask, Recipe, choose_vocabulary, default_layers, new_head
from outrider.training.states import Output, States, open_states, store_states
from outrider.training.texts import Sample, Wish, read_prompts
from outrider.training.trainer import LATEST, SCORE, Plan, Trainer
from outrider.training.walk import Walk, plain_seconds, predict, walk
from outrider.training.work import prepare, split, write_texts

Told = Callable[[str, int, int], None]
"""Called with (what is being done, done, in all)."""

SLOTS = 48
"""Texts that the target writes side by side."""

WALKED, WALKED_TOKENS, WALKED_DRAFT, WALKED_AT = 12, 64, 6, (0.0, 0.8)
"""Held-out prompts that rounds are walked on, tokens of each, drafted tokens per round, temperatures."""


@dataclass(frozen=True)
class Options:
    """What decides the head; another value is another training.

    Args:
        kind: "eagle1" or "eagle3".
        target: as users name it.
        num_tokens: that the target writes.
        steps: of the optimiser.
        seed: of everything that is drawn.
        draft_vocab_size: Vd, at most the target's; EAGLE-1 drafts the whole vocabulary.
        tokens_per_batch: of a step.
        learning_rate: see `trainer.Plan`.
        max_answer: tokens of an answer.
        every: steps between two looks at what was learnt.
        data: a JSONL file of prompts, or None.
    """

    kind: str
    target: str
    num_tokens: int = 400_000
    steps: int = 800
    seed: int = 0
    draft_vocab_size: int = 8192
    tokens_per_batch: int = 4096
    learning_rate: float = 6e-4
    max_answer: int = 192
    every: int = 100
    data: str | None = None


@dataclass(frozen=True)
class Trained:
    """What came of it.

    Args:
        head: as it is kept.
        records: the curve.
        num_tokens: that the target wrote.
        coverage: share of them in the draft vocabulary.
        seconds: by part.
    """

    head: StoredHead
    records: list[dict[str, Any]]
    num_tokens: int
    coverage: float
    seconds: dict[str, float]


def train_eagle(opened: Opened, options: Options, out: Path, *, resume: bool, told: Told) -> Trained:
    """Train an EAGLE head in OUT/work; the caller writes the head where it belongs.

    Args:
        opened: the target.
        options: what to train.
        out: its folder.
        resume: whether to go on with what is there.
        told: progress.

    Raises:
        InvalidOption: see `work.prepare`, `texts.read_prompts`.
        UnsupportedModel: a target whose states cannot be read.
    """
    work = prepare(out, _identity(options), resume=resume)
    clock = perf_counter()
    seconds = {}

    def lap(part: str) -> None:
        nonlocal clock
        now = perf_counter()
        seconds[part], clock = now - clock, now

    samples = _texts(opened, options, work, told)
    lap("texts")
    table = full_matrices(opened)
    training, held_out = split(samples)
    head = _fresh(opened, options, training)
    parts = {"training": training, "held-out": held_out}
    states = {name: _states(part, opened, table, head, work / "states" / name, told) for name, part in parts.items()}
    lap("states")
    task = _Task(head, table, Recipe(), states["training"], states["held-out"], options)
    judge = Judge(opened, [list(s.tokens[: s.answer]) for s in held_out][:WALKED])
    plan = Plan(options.steps, options.learning_rate, every=options.every, bfloat16=has_fast_bfloat16())
    trainer = Trainer(task, plan, work, {"seed": options.seed})
    if (work / LATEST).is_file():
        trainer.resume()
    trainer.run(
        lambda step: {**task.measure(), **judge(task.stored())},
        lambda step, loss: told(f"training, loss {loss:.3f}", step, plan.steps),
    )
    trainer.restore_best()
    lap("training")
    return Trained(task.stored(), trainer.progress.records, _written(samples), _coverage(samples, head), seconds)


class Judge:
    """Walks rounds on held-out prompts and says what decoding would gain on this machine.

    Args:
        opened: the target.
        prompts: held-out ones.
    """

    def __init__(self, opened: Opened, prompts: list[list[int]]) -> None:
        self._opened, self._prompts = opened, prompts
        self._length = min(opened.model.context_length, max(map(len, prompts)) + WALKED_TOKENS)
        self._plain = plain_seconds(self._walk(opened.model, NoDrafter(), 0, 0.0))

    def __call__(self, head: StoredHead) -> dict[str, float]:
        """Walked acceptance length and predicted speed-up at each temperature, and the speed-ups' geometric mean."""
        drafter, _ = attach(head, self._opened, slots=1, capacity=self._length, options={})
        model, found, product = showing(head, self._opened), dict[str, float](), 1.0
        for temperature in WALKED_AT:
            walked = self._walk(model, drafter, WALKED_DRAFT, temperature)
            best = predict(walked, self._plain)
            found[f"walked_{temperature}"] = walked.acceptance_length
            found |= {f"kept_{temperature}_{i}": c for i, c in enumerate(walked.conditional, start=1)}
            found |= {f"best_k_{temperature}": best.num_drafted, f"speedup_{temperature}": best.speedup}
            product *= best.speedup
        return {**found, SCORE: product ** (1 / len(WALKED_AT))}

    def _walk(self, model: Model, drafter: Drafter, num_drafted: int, temperature: float) -> Walk:
        return walk(
            model,
            drafter,
            self._prompts,
            num_drafted=num_drafted,
            temperature=temperature,
            max_new_tokens=WALKED_TOKENS,
            stop_ids=self._opened.tokenizer.stop_ids,
            context_length=self._length,
        )


class _Task(EagleTask):
    def __init__(
        self, head: StoredHead, table: Matrices, recipe: Recipe, training: States, held_out: States, options: Options
    ) -> None:
        super().__init__(head, table.embedding, Output(table.output, table.bias), recipe)
        self._training = Batches(training, options.tokens_per_batch, recipe.steps + 1, options.seed)
        self._held_out = Batches(held_out, options.tokens_per_batch, recipe.steps + 1, options.seed)

    def loss_at(self, step: int, progress: float) -> torch.Tensor:
        """See `trainer.Task`."""
        return self.loss(self._training.at(step), progress)

    def measure(self) -> dict[str, float]:
        """Acceptance by step on held-out texts of the target's own, as they are."""
        sums: list[list[float]] = []
        for i in range(min(4, len(self._held_out))):
            for j, (total, count) in enumerate(self.accepted(self._held_out.at(i))):
                if j == len(sums):
                    sums.append([0.0, 0.0])
                sums[j][0] += total
                sums[j][1] += count
        return {f"accepted_{j + 1}": total / max(count, 1.0) for j, (total, count) in enumerate(sums)}


def _identity(options: Options) -> dict[str, Any]:
    return {name: getattr(options, name) for name in Options.__dataclass_fields__}


def _texts(opened: Opened, options: Options, work: Path, told: Told) -> list[Sample]:
    prompts = None if options.data is None else read_prompts(Path(options.data), opened.tokenizer)
    wish = Wish(options.num_tokens, max_answer=options.max_answer, seed=options.seed)
    engine = Engine(
        opened.model,
        NoDrafter(),
        choose_rule("auto", "point_mass", allow_lossy=False),
        FixedPace(0),
        slots=SLOTS,
        context_length=min(opened.model.context_length, wish.max_prompt + wish.max_answer),
    )
    return write_texts(
        engine, opened.tokenizer, prompts, wish, work / "texts", lambda done, total: told("writing texts", done, total)
    )


def _fresh(opened: Opened, options: Options, samples: list[Sample]) -> StoredHead:
    if opened.checkpoint is None:
        raise UnsupportedModel("Training heads needs a target that the native decoder reads.")
    config = opened.checkpoint.config
    version = 1 if options.kind == "eagle1" else 3
    size = config.vocab_size if version == 1 else options.draft_vocab_size
    ids = choose_vocabulary(samples, size, config.vocab_size, opened.tokenizer.stop_ids)
    layers = (config.num_layers,) if version == 1 else default_layers(config.num_layers)
    return new_head(version, config, opened.checkpoint, ids, feature_layers=layers, seed=options.seed)


def _states(
    samples: list[Sample], opened: Opened, table: Matrices, head: StoredHead, folder: Path, told: Told
) -> States:
    if (folder / "states.json").is_file():
        return open_states(folder)
    layers = head.config.feature_layers  # type: ignore[union-attr]
    return store_states(
        samples,
        opened.model,
        Output(table.output, table.bias),
        folder,
        feature_layers=layers,
        num_layers=opened.model.config.num_layers,  # type: ignore[attr-defined]
        progress=lambda done, total: told("the target's states", done, total),
    )


def has_fast_bfloat16() -> bool:
    """Whether products in bfloat16 are faster than in float32 here."""
    return torch.cuda.is_available() or torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()


def _written(samples: list[Sample]) -> int:
    return sum(len(s.tokens) - s.answer for s in samples)


def _coverage(samples: list[Sample], head: StoredHead) -> float:
    """Share of the written tokens that the head can draft."""
    if head.draft_ids is None:
        return 1.0
    kept = set(head.draft_ids.tolist())
    written = [token for s in samples for token in s.tokens[s.answer :]]
    return sum(token in kept for token in written) / max(1, len(written))


def describe(trained: Trained) -> str:
    """The curve's last record, for people."""
    return json.dumps(trained.records[-1]) if trained.records else "{}"


def with_steps(options: Options, steps: int) -> Options:
    """The options with another number of optimiser steps.

    Raises:
        InvalidOption: less than one.
    """
    if steps < 1:
        raise InvalidOption("steps", steps, "1 or more")
    return replace(options, steps=steps)
