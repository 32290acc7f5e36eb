"""The working folder of a training: texts, states and checkpoints, so that what was done is never done twice.

OUT/work/texts/000.jsonl, 001.jsonl, ...   what the target wrote, a part at a time
OUT/work/states/                           what the target makes of them
OUT/work/latest.safetensors, curve.jsonl   where training is
OUT/work/seconds.json                      what it has cost so far
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Ordered
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from outrider.engine import Engine
from outrider.errors import InvalidOption
from outrider.generation import TextCodec
from outrider.training.texts import (
    Progress,
    Sample,
    Wish,
    load_samples,
    save_samples,
    write_samples,
)
from outrider.training.trainer import read_kept, write_whole
from outrider.training.typed import typed

CHOSEN = "chosen"
"""Key of what was measured and chosen, in options.json beside what was asked for."""

PART_TOKENS = 50_000
"""Written tokens of a part; a part that was begun and not finished is written again."""

HELD_OUT_SHARE = 0.05
"""Of the texts, the last ones, are not trained on."""


def check_out(out: Path, identity: dict[str, Any], *, resume: bool) -> None:
    """Refuse a folder that cannot be begun or gone on with; nothing is written.

    Args:
        out: the folder.
        identity: all that decides the outcome, as JSON values.
        resume: whether to go on with what is there.

    Raises:
        InvalidOption: OUT exists and is not to be resumed, or was begun with other options, or there is none to resume.
    """
    begun = out / "work" / "options.json"
    if not resume:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise InvalidOption("out", str(out), "a folder that does not exist or is empty", "Or add --resume.")
        return
    if not begun.is_file():
        raise InvalidOption("resume", str(out), "a folder in which a training was begun", "Leave out --resume.")
    found = read_kept(begun)
    found.pop(CHOSEN, None)
    if found != json.loads(json.dumps(identity)):
        fix = f"These differ: {_differences(found, identity)}."
        raise InvalidOption("resume", str(out), "the options that it was begun with", fix)


def prepare(out: Path, identity: dict[str, Any], *, resume: bool) -> Path:
    """The working folder, made if the training begins.

    Raises:
        InvalidOption: see `check_out`.
        OutriderError: it cannot be written.
    """
    check_out(out, identity, resume=resume)
    work = out / "work"
    if not resume:
        try:
            work.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidOption("out", str(out), "a folder that can be written to", f"{error}.") from error
        asked = json.dumps(identity, sort_keys=True)
        write_whole(work / "options.json", lambda path: path.write_text(asked, encoding="utf-8"))
    return work


def _differences(before: dict[str, Any], now: dict[str, Any]) -> str:
    was, now = _flat(before), _flat(json.loads(json.dumps(now)))
    names = [name for name in sorted({*was, *now}) if was.get(name) != now.get(name)]
    return ", ".join(f"{typed(name)} was {was.get(name)!r}, is {now.get(name)!r}" for name in names)


def _flat(options: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Those within others by "outer.inner"."""
    found = dict[str, Any]()
    for name, value in options.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found


def write_texts(
    engine: Engine,
    tokenizer: TextCodec,
    prompts: Ordered[list[int]] | None,
    wish: Wish,
    folder: Path,
    progress: Progress | None = None,
    part_ended: Callable[[], object] | None = None,
) -> list[Sample]:
    """All texts, part by part; parts that are there are kept.

    Args:
        engine: the target, plainly decoding.
        tokenizer: its own.
        prompts: to be answered; None lets the target write them.
        wish: how much.
        folder: of the parts.
        progress: called with (tokens written, tokens wanted), first as a part is begun.
        part_ended: called when a part was written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    samples, done = list[Sample](), 0
    for number, part in enumerate(_parts(wish)):
        path = folder / f"{number:03d}.jsonl"
        if not path.is_file():
            source = None if prompts is None else _share(prompts, number, wish)
            told = None if progress is None else _shifted(progress, done, wish.num_tokens)
            if told is not None:
                told(0, 0)
            made = list(write_samples(engine, tokenizer, source, part, told))
            write_whole(path, partial(save_samples, made))
            if part_ended is not None:
                part_ended()
        samples += load_samples(path)
        done += part.num_tokens
    return samples


def _shifted(progress: Progress, before: int, total: int) -> Progress:
    return lambda now, _: progress(before + now, total)


def _parts(wish: Wish) -> Iterator[Wish]:
    """The wish in parts with seeds of their own."""
    for number, start in enumerate(range(0, wish.num_tokens, PART_TOKENS)):
        size = min(PART_TOKENS, wish.num_tokens - start)
        yield replace(wish, num_tokens=size, seed=wish.seed + 1_000_003 * (number + 1))


def _share(prompts: Ordered[list[int]], number: int, wish: Wish) -> Iterator[list[int]]:
    """Every n-th prompt, from the number of the part on, over and over: answers at other temperatures and seeds."""
    count = len(list(_parts(wish)))
    mine = [prompts[i] for i in range(number % len(prompts), len(prompts), count)] or [prompts[number % len(prompts)]]
    rounds = max(1, 3 * len(wish.temperatures))
    return islice((prompt for _ in range(rounds) for prompt in mine), None)


def split(samples: Ordered[Sample]) -> tuple[list[Sample], list[Sample]]:
    """Texts to train on, and those held out: the last ones, and no other answer to their prompts is trained on.

    Raises:
        InvalidOption: nothing is left to train on.
    """
    held_out = list(samples[-max(1, round(HELD_OUT_SHARE * len(samples))) :])
    seen = {sample.tokens[: sample.answer] for sample in held_out}
    training = [sample for sample in samples[: -len(held_out)] if sample.tokens[: sample.answer] not in seen]
    if not training:
        fix = "Ask for more tokens, or give more prompts."
        raise InvalidOption("data", f"{len(samples)} texts", "texts of at least two different prompts", fix)
    return training, held_out
