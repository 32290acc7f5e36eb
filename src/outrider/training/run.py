"""A drafter from nothing but a target: texts, states, training, and the checkpoint that promises most speed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from outrider.drafters.none import NoDrafter
from outrider.engine import Engine
from outrider.errors import InvalidOption
from outrider.models.opening import num_layers_of
from outrider.planning.pace import FixedPace
from outrider.rules import choose_rule
from outrider.training.budget import NUM_LOOKS, Chosen, steps_within, tokens_within
from outrider.training.judge import Judge
from outrider.training.kind import Kind, Setting, Trainee
from outrider.training.lesson import Lesson
from outrider.training.memory import batch_within, slots_within
from outrider.training.states import States, bytes_needed, open_states, store_states
from outrider.training.texts import Sample, Wish, opening, read_prompts
from outrider.training.trainer import LATEST, Plan, Trainer
from outrider.training.work import split, write_texts

Told = Callable[[str, int, int], None]
"""Called with (what is being done, done, in all)."""

SLOTS = 48
"""Texts that the target writes side by side."""

NUM_TOKENS, NUM_STEPS = 400_000, 800
"""Sizes where neither they nor minutes are given."""


@dataclass(frozen=True)
class Options:
    """What decides the outcome, besides the kind's own options; another value is another training.

    Args:
        target: as users name it.
        num_tokens: that the target writes; None follows from the minutes.
        steps: of the optimiser; None follows from the minutes.
        minutes: for all of it, about.
        memory: most that is used, in GB; None for no bound.
        seed: of everything that is drawn.
        max_answer: tokens of an answer.
        max_prompt: longer prompts are left out.
        data: a JSONL file of prompts, or None.
        precision: of the target, whose text and states depend on it.
    """

    target: str
    num_tokens: int | None = None
    steps: int | None = None
    minutes: float | None = None
    memory: float | None = None
    seed: int = 0
    max_answer: int = 192
    max_prompt: int = 320
    data: str | None = None
    precision: str = "auto"


@dataclass(frozen=True)
class Trained:
    """What came of it.

    Args:
        trainee: with the weights that are kept.
        records: the curve.
        samples: the texts.
        sizes: tokens, steps and so on, as they were in the end.
        seconds: by part, of this run.
    """

    trainee: Trainee
    records: list[dict[str, Any]]
    samples: list[Sample]
    sizes: dict[str, int]
    seconds: dict[str, float]


class _Laps:
    def __init__(self) -> None:
        self.start = self._last = perf_counter()
        self.seconds = dict[str, float]()

    def end(self, part: str) -> None:
        now = perf_counter()
        self.seconds[part], self._last = now - self._last, now


def identity(kind: Kind, options: Options) -> dict[str, Any]:
    """All that decides the outcome, as JSON values."""
    return {"kind": kind.command, **asdict(kind), **asdict(options)}  # type: ignore[call-overload]


def prompts_of(setting: Setting, options: Options) -> list[list[int]] | None:
    """The user's prompts; None if the target is to write its own.

    Raises:
        InvalidOption: a file that is none, or a target that needs one.
    """
    if options.data is not None:
        return read_prompts(Path(options.data), setting.opened.tokenizer)
    opening(setting.opened.tokenizer)
    return None


def train(
    setting: Setting, kind: Kind, options: Options, prompts: list[list[int]] | None, work: Path, told: Told
) -> Trained:
    """Train in a working folder, from where it stands there.

    Args:
        setting: the target.
        kind: what to train.
        options: how.
        prompts: see `prompts_of`.
        work: from `work.prepare`.
        told: progress.

    Raises:
        InvalidOption: memory or disk that are too small, too few texts.
        OutriderError: the disk is full, or the loss is not finite.
        KeyboardInterrupt: after Ctrl-C; what was done is kept.
    """
    laps, chosen = _Laps(), Chosen(work / "options.json")
    tokens_per_batch = chosen.get("tokens_per_batch", lambda: _batch(setting, kind, options))
    samples = _texts(setting, options, prompts, work, chosen, told)
    laps.end("texts")
    training, held_out = split(samples)
    trainee = kind.begin(setting, training)
    layers = kind.feature_layers(setting)
    stored = {"training": training, "held-out": held_out}
    _check_disk(samples, len(layers), setting, work)
    states = {name: _states(part, setting, layers, work / "states" / name, told) for name, part in stored.items()}
    laps.end("states")
    lesson = Lesson(trainee, states["training"], states["held-out"], tokens_per_batch, options.seed)
    judge = Judge(setting.opened, [list(s.tokens[: s.answer]) for s in held_out], work / "costs.json")

    def look(_: int = 0) -> dict[str, float]:
        return {**lesson.measure(), **judge(trainee.at_work(judge.capacity))}

    fast = has_fast_bfloat16()
    left = 60 * (options.minutes or 0.0) - (perf_counter() - laps.start)
    steps = chosen.get("steps", lambda: _steps(options, lambda: steps_within(left, lesson, look, bfloat16=fast)))
    plan = Plan(steps, kind.learning_rate, every=-(-steps // NUM_LOOKS), bfloat16=fast)
    trainer = Trainer(lesson, plan, work, {"seed": options.seed})
    if (work / LATEST).is_file():
        trainer.resume()
    trainer.run(look, lambda step, loss: told(f"training, loss {loss:.3f}", step, steps))
    trainer.restore_best()
    laps.end("training")
    sizes = {"steps": steps, "tokens_per_batch": tokens_per_batch, "tokens_written": _written(samples)}
    return Trained(trainee, trainer.progress.records, samples, sizes, laps.seconds)


def _texts(
    setting: Setting, options: Options, prompts: list[list[int]] | None, work: Path, chosen: Chosen, told: Told
) -> list[Sample]:
    slots = chosen.get("slots", lambda: _slots(setting, options))
    begun = prompts if prompts is not None else [opening(setting.opened.tokenizer)]
    num_tokens = chosen.get("num_tokens", lambda: _num_tokens(setting, options, slots, begun))
    wish = Wish(num_tokens, options.max_answer, options.max_prompt, seed=options.seed)
    slots = max(1, min(slots, num_tokens // (2 * options.max_answer)))  # the last texts begun are beyond the wish
    engine, tokenizer = _plain_engine(setting, options, slots), setting.opened.tokenizer
    return write_texts(
        engine, tokenizer, prompts, wish, work / "texts", lambda done, total: told("writing texts", done, total)
    )


def _plain_engine(setting: Setting, options: Options, slots: int) -> Engine:
    rule, model = choose_rule("auto", "point_mass", allow_lossy=False), setting.opened.model
    return Engine(model, NoDrafter(), rule, FixedPace(0), slots=slots, context_length=_longest(setting, options))


def _longest(setting: Setting, options: Options) -> int:
    return min(setting.opened.model.context_length, options.max_prompt + options.max_answer)


def _num_tokens(setting: Setting, options: Options, slots: int, prompts: Ordered[list[int]]) -> int:
    if options.num_tokens is not None or options.minutes is None:
        return options.num_tokens or NUM_TOKENS
    return tokens_within(options.minutes, _plain_engine(setting, options, slots), prompts)


def _steps(options: Options, measured: Callable[[], int]) -> int:
    if options.steps is not None or options.minutes is None:
        return options.steps or NUM_STEPS
    return measured()


def _slots(setting: Setting, options: Options) -> int:
    if options.memory is None:
        return SLOTS
    return slots_within(options.memory, setting, _longest(setting, options), SLOTS)


def _batch(setting: Setting, kind: Kind, options: Options) -> int:
    if options.memory is None:
        return kind.tokens_per_batch
    features = len(kind.feature_layers(setting)) * setting.checkpoint.config.hidden_size
    longest, most = _longest(setting, options), kind.tokens_per_batch
    return batch_within(options.memory, setting, kind.begin(setting, ()), features, longest, max(longest, most))


def _check_disk(samples: list[Sample], num_layers: int, setting: Setting, work: Path) -> None:
    """A disk that fills up under a mapped file would end the process without a word."""
    if (work / "states" / "held-out" / "states.json").is_file():
        return
    hidden = setting.checkpoint.config.hidden_size
    needed, free = bytes_needed(samples, num_layers * hidden, hidden), shutil.disk_usage(work).free
    if needed > free:
        shown = f"{work} with {free / 1e9:.1f} GB free"
        raise InvalidOption("out", shown, f"a disk with {needed / 1e9:.1f} GB free", "Or write fewer tokens.")


def _states(samples: list[Sample], setting: Setting, layers: tuple[int, ...], folder: Path, told: Told) -> States:
    if (folder / "states.json").is_file():
        return open_states(folder)
    model = setting.opened.model
    return store_states(
        samples,
        model,
        setting.output,
        folder,
        feature_layers=layers,
        num_layers=num_layers_of(model),
        progress=lambda done, total: told("the target's states", done, total),
    )


def has_fast_bfloat16() -> bool:
    """Whether products in bfloat16 are faster than in float32 here."""
    return torch.cuda.is_available() or torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()


def _written(samples: list[Sample]) -> int:
    return sum(len(s.tokens) - s.answer for s in samples)
