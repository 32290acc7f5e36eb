"""What `outrider train` does: options in, a folder with a head, its curves and its card out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from outrider.drafters.heads.files import write_head
from outrider.errors import InvalidOption
from outrider.models.opening import Opened, open_model
from outrider.training.curve import draw
from outrider.training.run import Options, Told, Trained, train_eagle
from outrider.training.trainer import CURVE, write_whole

FORMATS = {"eagle1": "safeailab-eagle1", "eagle3": "safeailab-eagle3"}


def train_head(kind: str, given: Mapping[str, Any], told: Told) -> str:
    """Train a head and write it; what came of it, for people.

    Args:
        kind: see `run.Options`.
        given: the command's options by name.
        told: progress.

    Raises:
        InvalidOption: an option that cannot be used.
        CheckpointError, UnsupportedModel: from the target.
        OutriderError: the disk is full; what was done before is kept.
    """
    start, out = perf_counter(), Path(given["out"])
    options = read_options(kind, given)
    if given.get("threads"):
        torch.set_num_threads(int(given["threads"]))
    opened = open_model(options.target, given.get("precision") or "auto", torch.device("cpu"), None)
    trained = train_eagle(opened, options, out, resume=bool(given.get("resume")), told=told)
    minutes = (perf_counter() - start) / 60
    return write_out(trained, options, opened, out, minutes)


def read_options(kind: str, given: Mapping[str, Any]) -> Options:
    """The options as `run.Options`, checked.

    Raises:
        InvalidOption: naming the option.
    """
    limits = {"steps": (1, 10**7), "tokens": (1000, 10**10), "draft_vocabulary": (16, 10**7), "seed": (0, 2**31)}
    for name, (low, high) in limits.items():
        value = given.get(name)
        if value is not None and not low <= value <= high:
            raise InvalidOption(name, value, f"a whole number from {low:,} to {high:,}")
    known = {
        "num_tokens": given.get("tokens"),
        "steps": given.get("steps"),
        "seed": given.get("seed"),
        "draft_vocab_size": given.get("draft_vocabulary"),
        "data": None if given.get("data") is None else str(given["data"]),
    }
    chosen = {name: value for name, value in known.items() if value is not None}
    assert chosen.keys() <= {field.name for field in fields(Options)}
    return Options(kind, str(given["target"]), **chosen)


def write_out(trained: Trained, options: Options, opened: Opened, out: Path, minutes: float) -> str:
    """The head, its curve and its card, into the folder; then the stored states, which are large, are deleted."""
    made = out / "work" / "head"
    shutil.rmtree(made, ignore_errors=True)
    write_head(trained.head, made, FORMATS[options.kind], target=options.target)
    for path in made.iterdir():
        path.replace(out / path.name)
    made.rmdir()
    shutil.copyfile(out / "work" / CURVE, out / CURVE)
    draw(trained.records, out / "curve.png")
    card = _card(trained, options, opened, minutes)
    write_whole(out / "card.json", lambda path: path.write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8"))
    shutil.rmtree(out / "work" / "states", ignore_errors=True)
    return _report(card, out)


def _card(trained: Trained, options: Options, opened: Opened, minutes: float) -> dict[str, Any]:
    best = max(trained.records, key=lambda record: record["predicted_speedup"])
    return {
        "command": _command(options),
        "target": options.target,
        "target_precision": opened.model.precision,
        "seed": options.seed,
        "tokens_written": trained.num_tokens,
        "draft_vocabulary_coverage": trained.coverage,
        "steps": options.steps,
        "minutes": minutes,
        "seconds": trained.seconds,
        "held_out": best,
        "torch": torch.__version__,
    }


def _command(options: Options) -> str:
    parts = [f"outrider train {options.kind} --target {options.target}"]
    parts += [f"--tokens {options.num_tokens} --steps {options.steps} --seed {options.seed}"]
    if options.kind == "eagle3":
        parts += [f"--draft-vocabulary {options.draft_vocab_size}"]
    if options.data is not None:
        parts += [f"--data {options.data}"]
    return " ".join([*parts, "--out FOLDER"])


def _report(card: dict[str, Any], out: Path) -> str:
    held_out = card["held_out"]
    lines = [f"The head is in {out}, trained in {card['minutes']:.1f} minutes on {card['tokens_written']:,} tokens."]
    for name, value in held_out.items():
        if name.startswith("walked_"):
            temperature = name.removeprefix("walked_")
            lines.append(
                f"Temperature {temperature}: {value:.2f} tokens per round on held-out prompts; predicted speed-up "
                f"{held_out[f'speedup_{temperature}']:.2f} with {held_out[f'best_k_{temperature}']} drafted tokens."
            )
    lines.append(f"Use it: outrider generate --target {card['target']} --drafter eagle:{out} ...")
    return "\n".join(lines)
