"""What `outrider train` does: options in, a folder with a drafter, its curve and its card out."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from outrider.errors import InvalidOption
from outrider.loading import check_options, torch_device
from outrider.models.opening import Progress, open_model
from outrider.training.curve import check_drawing, draw
from outrider.training.kind import Kind, Setting
from outrider.training.run import Noted, Options, Told, Trained, identity, order, train
from outrider.training.spent import Spent
from outrider.training.trainer import CURVE, best_of, read_kept, write_whole
from outrider.training.typed import RANGES, check_range, typed
from outrider.training.work import check_out, prepare

CARD = "card.json"

DEVICES = ("cpu", "cuda")


def run(kind: Kind, options: Options, out: Path, *, resume: bool, told: Told, noted: Noted = lambda line: None) -> str:
    """Train and write what came of it; the report, for people.

    Args:
        kind: what to train.
        options: how.
        out: the folder.
        resume: whether to go on with what is there.
        told: progress.
        noted: what each look at what was learnt found.

    Raises:
        InvalidOption: an option that cannot be used; nothing was written.
        CheckpointError, UnsupportedModel, VocabularyMismatch: from the target or a draft model.
        OutriderError: the disk is full; what was done before is kept.
        KeyboardInterrupt: after Ctrl-C; what was done is kept.
    """
    start = perf_counter()
    check(kind, options)
    device = device_of(options.device)
    check_drawing(out / "curve.png")
    asked = identity(kind, options)
    check_out(out, asked, resume=resume)
    if resume and (out / CARD).is_file():
        return "It is finished already.\n" + report(read_kept(out / CARD), out)
    opened = open_model(options.target, options.precision, device, _loading(told))
    setting = Setting(opened, options.target, options.seed)
    wanted = order(setting, kind, options)
    work = prepare(out, asked, resume=resume)
    spent = Spent(work / "seconds.json", start)
    try:
        trained = train(wanted, work, spent, told, noted)
    finally:
        spent.keep()
    card = _card(trained, spent.seconds, kind, setting, options)
    write_out(trained, card, out)
    return report(card, out)


def check(kind: Kind, options: Options) -> None:
    """Refuse numbers out of range.

    Raises:
        InvalidOption: naming the option.
    """
    for name, value, _ in (*_flat(options), *_flat(kind)):
        if name in RANGES and value is not None:
            check_range(name, value)
    check_options(num_draft_tokens="auto", rule="auto", precision=options.precision, invariant=False)


def device_of(name: str) -> torch.device:
    """The device that a training is to run on.

    Raises:
        InvalidOption: it is not one of `DEVICES`, or this torch cannot use it.
    """
    if name not in DEVICES:
        raise InvalidOption("device", name, ", ".join(DEVICES))
    return torch_device(name)


def _loading(told: Told) -> Progress:
    return lambda name, done, total: told(f"loading {name}", done, total)


def write_out(trained: Trained, card: Mapping[str, Any], out: Path) -> None:
    """The drafter, its curve and, last of all, its card; then the stored states, which are large, are deleted."""
    made = out / "work" / "made"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    trained.trainee.write(made)
    for path in sorted(made.iterdir()):
        path.replace(out / path.name)
    made.rmdir()
    shutil.copyfile(out / "work" / CURVE, out / CURVE)
    draw(trained.records, out / "curve.png")
    text = json.dumps(card, indent=1) + "\n"
    write_whole(out / CARD, lambda path: path.write_text(text, encoding="utf-8"))
    shutil.rmtree(out / "work" / "states", ignore_errors=True)


def _card(
    trained: Trained, seconds: Mapping[str, float], kind: Kind, setting: Setting, options: Options
) -> dict[str, Any]:
    return {
        "command": command_line(kind, options),
        "drafter": kind.drafter,
        "target": options.target,
        "target_precision": setting.opened.model.precision,
        "options": identity(kind, options),
        **trained.sizes,
        **trained.trainee.facts(trained.samples),
        "minutes": sum(seconds.values()) / 60,
        "seconds": seconds,
        "untrained": trained.records[0],
        "held_out": best_of(trained.records),
        "torch": torch.__version__,
    }


NOT_TYPED = {"max_answer", "max_prompt", "looks", "recipe.single_share", "recipe.kl_share"}


def command_line(kind: Kind, options: Options) -> str:
    """What to type for this training once more, into another folder."""
    parts = ["outrider", "train", kind.command, "--out", "FOLDER"]
    for name, value, default in (*_flat(options), *_flat(kind)):
        if value != default and name not in NOT_TYPED:
            shown = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            parts += [f"--{typed(name)}", *([] if value is True else [shlex.quote(shown)])]
    return " ".join(parts)


def _flat(options: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(name, value, default) of all fields; of those within others the name is "outer.inner"."""
    for field in fields(options):
        name, value = prefix + field.name, getattr(options, field.name)
        if is_dataclass(value):
            yield from _flat(value, f"{name}.")
        else:
            yield name, value, field.default


def report(card: Mapping[str, Any], out: Path) -> str:
    """What came of it, for people."""
    best, before = card["held_out"], card["untrained"]
    size = f"{card['tokens_written']:,} tokens, {card['steps']:,} steps"
    lines = [f"Trained in {card['minutes']:.1f} minutes on {size}; the best of them was step {best['step']:,}."]
    for name, value in best.items():
        if name.startswith("walked_"):
            temperature = name.removeprefix("walked_")
            lines.append(
                f"Temperature {temperature}: {value:.2f} tokens per round on held-out prompts ({before[name]:.2f} "
                f"untrained); predicted speed-up {best[f'speedup_{temperature}']:.2f} with "
                f"{best[f'best_k_{temperature}']} drafted tokens."
            )
    target, folder = shlex.quote(card["target"]), shlex.quote(str(out))
    lines.append(f"Use it: outrider generate --target {target} --drafter {card['drafter']}:{folder} ...")
    return "\n".join(lines)
