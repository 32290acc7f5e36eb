"""A drafter from nothing but a target: texts, states, training, and the checkpoint that promises most speed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from outrider.drafters.none import NoDrafter
from outrider.engine import Engine
from outrider.errors import InvalidOption
from outrider.models.opening import num_layers_of
from outrider.planning.pace import FixedPace
from outrider.rules import choose_rule
from outrider.training.budget import Chosen, steps_within, tokens_within
from outrider.training.judge import Judge, in_words
from outrider.training.kind import Kind, Setting, Trainee
from outrider.training.lesson import Lesson
from outrider.training.memory import batch_within, slots_within
from outrider.training.spent import Spent
from outrider.training.states import MANIFEST, States, bytes_needed, open_states, store_states
from outrider.training.texts import Sample, Wish, opening, read_prompts
from outrider.training.trainer import LATEST, Plan, Trainer
from outrider.training.work import split, write_texts

Told = Callable[[str, int, int], None]
"""Called with (what is being done, done, in all)."""

Noted = Callable[[str], None]
"""Called with a line to keep: what a look found."""

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
        looks: how often what was learnt is measured, besides before it begins.
        precision: of the target, whose text and states depend on it.
        device: "cpu" or "cuda".
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
    looks: int = 8
    precision: str = "auto"
    device: str = "cpu"


@dataclass(frozen=True)
class Order:
    """A training that can be done.

    Args:
        setting: the target.
        kind: what to train.
        options: how.
        prompts: the user's, or None if the target is to write its own.
        longest: tokens of the longest text.
        max_prompt: of these, of its prompt.
        slots: most texts that the target writes side by side.
        tokens_per_batch: of a step.
    """

    setting: Setting
    kind: Kind
    options: Options
    prompts: list[list[int]] | None
    longest: int
    max_prompt: int
    slots: int
    tokens_per_batch: int


@dataclass(frozen=True)
class Trained:
    """What came of it.

    Args:
        trainee: with the weights that are kept.
        records: the curve.
        samples: the texts.
        sizes: tokens, steps and so on, as they were in the end.
    """

    trainee: Trainee
    records: list[dict[str, Any]]
    samples: list[Sample]
    sizes: dict[str, int]


def identity(kind: Kind, options: Options) -> dict[str, Any]:
    """All that decides the outcome, as JSON values."""
    return {"kind": kind.command, **asdict(kind), **asdict(options)}  # type: ignore[call-overload]


def order(setting: Setting, kind: Kind, options: Options) -> Order:
    """What is to be done, once all of it has been checked; nothing is written.

    Raises:
        InvalidOption: an option that does not fit the target, a file that is none, too little memory.
        UnsupportedModel, VocabularyMismatch, CheckpointError: from the target or a draft model.
    """
    kind.check(setting)
    longest = min(setting.opened.model.context_length, options.max_prompt + options.max_answer)
    max_prompt = max(1, longest - options.max_answer)
    prompts = _prompts(setting, options, max_prompt)
    slots, tokens = SLOTS, kind.tokens_per_batch
    if options.memory is not None:
        slots = slots_within(options.memory, setting, longest, SLOTS)
        features = len(kind.feature_layers(setting)) * setting.checkpoint.config.hidden_size
        trainee = kind.begin(setting, ())
        tokens = batch_within(options.memory, setting, trainee, features, longest, max(longest, tokens))
    return Order(setting, kind, options, prompts, longest, max_prompt, slots, tokens)


def _prompts(setting: Setting, options: Options, max_prompt: int) -> list[list[int]] | None:
    if options.data is None:
        opening(setting.opened.tokenizer)
        return None
    prompts = read_prompts(Path(options.data), setting.opened.tokenizer)
    fitting = [prompt for prompt in prompts if len(prompt) <= max_prompt]
    if not fitting:
        shortest = min(map(len, prompts))
        fix = f"The shortest of {len(prompts)} has {shortest}."
        raise InvalidOption("data", options.data, f"prompts of at most {max_prompt} tokens", fix)
    return fitting


def train(wanted: Order, work: Path, spent: Spent, told: Told, noted: Noted) -> Trained:
    """Train in a working folder, from where it stands there.

    Args:
        wanted: what is to be done.
        work: from `work.prepare`.
        spent: counts the seconds.
        told: progress.
        noted: what each look found.

    Raises:
        InvalidOption: a disk that is too small, too few texts.
        OutriderError: the disk is full, or the loss is not finite.
        KeyboardInterrupt: after Ctrl-C; what was done is kept.
    """
    chosen, setting = Chosen(work / "options.json"), wanted.setting
    spent.begin("texts")
    samples = _texts(wanted, work, chosen, spent, told)
    spent.begin("states")
    training, held_out = split(samples)
    trainee = wanted.kind.begin(setting, training)
    states = _states(wanted, {"training": training, "held-out": held_out}, work / "states", told)
    spent.begin("training")
    tokens_per_batch = chosen.get("tokens_per_batch", lambda: wanted.tokens_per_batch)
    lesson = Lesson(trainee, states["training"], states["held-out"], tokens_per_batch, wanted.options.seed)
    judge = Judge(setting.opened, [list(s.tokens[: s.answer]) for s in held_out], work / "costs.json")

    def look() -> dict[str, float]:
        return {**lesson.measure(), **judge(trainee.at_work(judge.capacity))}

    def look_and_tell(step: int) -> dict[str, float]:
        record = look()
        noted(in_words(step, record))
        spent.keep()
        return record

    steps = chosen.get("steps", lambda: _steps(wanted, spent, lesson, look))
    records = _trained(wanted, lesson, steps, look_and_tell, work, told)
    sizes = {"steps": steps, "tokens_per_batch": tokens_per_batch, "tokens_written": _written(samples)}
    return Trained(trainee, records, samples, sizes)


def _trained(
    wanted: Order, lesson: Lesson, steps: int, look: Callable[[int], dict[str, float]], work: Path, told: Told
) -> list[dict[str, Any]]:
    """The curve; the best weights are in the lesson."""
    options, fast = wanted.options, has_fast_bfloat16(wanted.setting.device)
    muon, every = fast and wanted.kind.muon, -(-steps // options.looks)
    plan = Plan(steps, wanted.kind.learning_rate, every=every, bfloat16=fast, muon=muon)
    trainer = Trainer(lesson, plan, work, {"seed": options.seed})
    if (work / LATEST).is_file():
        trainer.resume()
    told("training", trainer.progress.step, steps)  # a look comes first, and takes a while
    trainer.run(look, lambda step, loss: told(f"training, loss {loss:.3f}", step, steps))
    trainer.restore_best()
    return trainer.progress.records


def _texts(wanted: Order, work: Path, chosen: Chosen, spent: Spent, told: Told) -> list[Sample]:
    options, tokenizer = wanted.options, wanted.setting.opened.tokenizer
    slots = chosen.get("slots", lambda: wanted.slots)
    num_tokens = chosen.get("num_tokens", lambda: _num_tokens(wanted, slots))
    wish = Wish(num_tokens, options.max_answer, wanted.max_prompt, seed=options.seed)
    slots = max(1, min(slots, num_tokens // (2 * options.max_answer)))  # the last texts begun are beyond the wish
    return write_texts(
        _plain_engine(wanted, slots),
        tokenizer,
        wanted.prompts,
        wish,
        work / "texts",
        lambda done, total: told("writing texts", done, total),
        spent.keep,
    )


def _plain_engine(wanted: Order, slots: int) -> Engine:
    rule, model = choose_rule("auto", "point_mass", allow_lossy=False), wanted.setting.opened.model
    return Engine(model, NoDrafter(), rule, FixedPace(0), slots=slots, context_length=wanted.longest)


def _num_tokens(wanted: Order, slots: int) -> int:
    options = wanted.options
    if options.num_tokens is not None or options.minutes is None:
        return options.num_tokens or NUM_TOKENS
    begun = wanted.prompts or [opening(wanted.setting.opened.tokenizer)]
    return tokens_within(options.minutes, _plain_engine(wanted, slots), begun)


def _steps(wanted: Order, spent: Spent, lesson: Lesson, look: Callable[[], object]) -> int:
    options, fast = wanted.options, has_fast_bfloat16(wanted.setting.device)
    if options.steps is not None or options.minutes is None:
        return options.steps or NUM_STEPS
    left = 60 * options.minutes - spent.keep()
    return steps_within(left, lesson, look, options.looks, bfloat16=fast)


def _states(wanted: Order, parts: dict[str, list[Sample]], folder: Path, told: Told) -> dict[str, States]:
    """The stored states of these texts; what is there already is kept."""
    setting, found = wanted.setting, dict[str, States]()
    layers, hidden = wanted.kind.feature_layers(setting), setting.checkpoint.config.hidden_size
    folder.mkdir(exist_ok=True)
    for name, samples in parts.items():
        if (folder / name / MANIFEST).is_file():
            found[name] = open_states(folder / name)
            continue
        _check_disk(bytes_needed(samples, len(layers) * hidden, hidden), folder)
        found[name] = store_states(
            samples,
            setting.opened.model,
            setting.output,
            folder / name,
            feature_layers=layers,
            num_layers=num_layers_of(setting.opened.model),
            progress=lambda done, total: told("the target's states", done, total),
        )
    return found


def _check_disk(needed: int, folder: Path) -> None:
    """A disk that fills up under a mapped file would end the process without a word."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        shown = f"{folder} with {free / 1e9:.1f} GB free"
        raise InvalidOption("out", shown, f"a disk with {needed / 1e9:.1f} GB free", "Or write fewer tokens.")


def has_fast_bfloat16(device: torch.device) -> bool:
    """Whether products in bfloat16 are faster than in float32 there: on a GPU, from Ampere on."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()


def _written(samples: list[Sample]) -> int:
    return sum(len(s.tokens) - s.answer for s in samples)
