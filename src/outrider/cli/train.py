"""The commands `outrider train eagle3` and their like."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import outrider.cli.options as o
from outrider.cli.leaving import leaving_cleanly
from outrider.cli.progress import watching
from outrider.cli.screen import open_screen
from outrider.errors import InvalidOption

if TYPE_CHECKING:
    from outrider.training.kind import Kind

train = typer.Typer(no_args_is_help=True, help="Train a drafter for a target, on what the target itself writes.")


def _option(text: str, metavar: str, default: str | bool = False) -> Any:
    return typer.Option(help=text, metavar=metavar, show_default=default)


Out = Annotated[str, _option("A folder for the result; new or empty.", "FOLDER")]
Target = Annotated[str, _option("A folder, a .gguf file, a Hugging Face id or smollm2.", "ID", True)]
Minutes = Annotated[
    str | None, _option("About how long all of it may take: tokens and steps follow from what is measured.", "M")
]
Tokens = Annotated[str | None, _option("Tokens that the target writes.", "N", "400,000, or by --minutes")]
Steps = Annotated[str | None, _option("Steps of the optimiser.", "N", "800, or by --minutes")]
Memory = Annotated[str | None, _option("Most memory to use, in GB; the batch follows from it.", "GB", "no bound")]
Data = Annotated[
    str | None,
    _option('JSONL of {"prompt": text} or {"messages": [...]}; without it the target writes the prompts too.', "FILE"),
]
Seed = Annotated[str | None, _option("Of everything that is drawn.", "N", "0")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with what is in the folder; same options.")]
DraftVocabulary = Annotated[
    str | None, _option("Tokens that the head can draft: those that the target writes most.", "N", "8192")
]
Heads = Annotated[str | None, _option("How many tokens are guessed, 1 to 16.", "K", "4")]
OwnOutput = Annotated[
    bool, typer.Option("--own-output", help="Train an output matrix per head; else all use the target's.")
]
HeadLoss = Annotated[str | None, _option("kl: to the target's law; ce: cross-entropy of what it wrote.", "NAME", "kl")]
Draft = Annotated[str | None, _option("A model to go on from, with the target's vocabulary; as --target.", "ID")]
Layers = Annotated[str | None, _option("Cut the target: so many layers, the first, the last and some between.", "N")]
DraftLoss = Annotated[str | None, _option("kl, reverse-kl, tv, hybrid.", "NAME", "hybrid")]


@train.command()
def eagle3(
    out: Out,
    target: Target = "smollm2",
    minutes: Minutes = None,
    tokens: Tokens = None,
    steps: Steps = None,
    memory: Memory = None,
    data: Data = None,
    draft_vocabulary: DraftVocabulary = None,
    seed: Seed = None,
    precision: o.Precision = None,
    threads: o.Threads = None,
    resume: Resume = False,
) -> None:
    """An EAGLE-3 head: one layer that reads three of the target's states."""

    def kind(numbers: dict[str, Any]) -> Kind:
        from outrider.training.eagle_kind import Eagle3

        return Eagle3(**_given(draft_vocab_size=numbers.get("draft_vocabulary")))

    _train(kind, locals())


@train.command()
def eagle1(
    out: Out,
    target: Target = "smollm2",
    minutes: Minutes = None,
    tokens: Tokens = None,
    steps: Steps = None,
    memory: Memory = None,
    data: Data = None,
    seed: Seed = None,
    precision: o.Precision = None,
    threads: o.Threads = None,
    resume: Resume = False,
) -> None:
    """An EAGLE-1 head, which EAGLE-2 trees use as well: one layer that reads the target's last state."""

    def kind(numbers: dict[str, Any]) -> Kind:
        from outrider.training.eagle_kind import Eagle1

        return Eagle1()

    _train(kind, locals())


@train.command()
def medusa(
    out: Out,
    target: Target = "smollm2",
    heads: Heads = None,
    loss: HeadLoss = None,
    own_output: OwnOutput = False,
    minutes: Minutes = None,
    tokens: Tokens = None,
    steps: Steps = None,
    memory: Memory = None,
    data: Data = None,
    seed: Seed = None,
    precision: o.Precision = None,
    threads: o.Threads = None,
    resume: Resume = False,
) -> None:
    """Medusa heads: each guesses one place, all from the target's last state."""

    def kind(numbers: dict[str, Any]) -> Kind:
        from outrider.training.medusa import Medusa

        return Medusa(**_given(num_heads=numbers.get("heads"), loss=loss), own_output=own_output)

    _train(kind, locals())


@train.command()
def distill(
    out: Out,
    target: Target = "smollm2",
    draft: Draft = None,
    layers: Layers = None,
    loss: DraftLoss = None,
    minutes: Minutes = None,
    tokens: Tokens = None,
    steps: Steps = None,
    memory: Memory = None,
    data: Data = None,
    seed: Seed = None,
    precision: o.Precision = None,
    threads: o.Threads = None,
    resume: Resume = False,
) -> None:
    """A smaller decoder, cut from the target or given, that learns the target's laws: for --drafter model:FOLDER."""

    def kind(numbers: dict[str, Any]) -> Kind:
        from outrider.training.distill import Distill

        return Distill(**_given(draft=draft, layers=numbers.get("layers"), loss=loss))

    _train(kind, locals())


# ---------------------------------------------------------------- steps of the commands

WHOLE = ("tokens", "steps", "seed", "draft_vocabulary", "heads", "layers")
REAL = ("minutes", "memory")
TYPED = {"draft_vocab_size": "draft_vocabulary", "curve": "the curve"}


def _given(**options: Any) -> dict[str, Any]:
    """Those that were given; the others are left to the library."""
    return {name: value for name, value in options.items() if value is not None}


def _numbers(given: dict[str, Any]) -> dict[str, Any]:
    """The numbers among what was typed.

    Raises:
        InvalidOption: something else where a number belongs.
    """
    found = {}
    for names, read, wanted in ((WHOLE, int, "a whole number"), (REAL, float, "a number")):
        for name in names:
            if given.get(name) is not None:
                try:
                    found[name] = read(given[name])
                except ValueError as error:
                    raise InvalidOption(name, given[name], wanted) from error
    return found


def _typed(name: str) -> str:
    return name if " " in TYPED.get(name, name) else "--" + TYPED.get(name, name).replace("_", "-")


def _train(kind: Callable[[dict[str, Any]], Kind], given: dict[str, Any]) -> None:
    screen, out = open_screen(), Path(given["out"])
    with leaving_cleanly(screen, _typed, lambda: _how_to_resume(out)):
        numbers, others = _numbers(given), o.values(("precision", "threads"), given)
        import torch

        from outrider.training.command import run
        from outrider.training.run import Options

        if "threads" in others:
            torch.set_num_threads(others["threads"])
        options = Options(
            given["target"],
            **_given(num_tokens=numbers.get("tokens"), precision=others.get("precision"), data=given["data"]),
            **{name: numbers[name] for name in ("steps", "minutes", "memory", "seed") if name in numbers},
        )
        with watching() as watcher:
            asked = kind(numbers), options, out
            report = run(*asked, resume=given["resume"], told=watcher.told, noted=watcher.noted)
        screen.note(report)


def _how_to_resume(out: Path) -> str:
    if not (out / "work" / "options.json").is_file():
        return "Interrupted; nothing was done yet."
    typed = [word for word in sys.argv[1:] if word != "--resume"]
    writing = not (out / "work" / "states").exists()
    kept = "What was done is kept" + (", but for the part of the texts that was begun" if writing else "")
    return f"Interrupted. {kept}; to go on: {shlex.join(['outrider', *typed, '--resume'])}"
