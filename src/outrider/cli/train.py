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
from outrider.training.typed import FEWEST_DRAFTED, MOST_LAYERS, allowed, typed

if TYPE_CHECKING:
    from outrider.training.kind import Kind

train = typer.Typer(no_args_is_help=True, help="Train a drafter for a target, on what the target itself writes.")


def _option(text: str, metavar: str, default: str | bool = False) -> Any:
    return typer.Option(help=text, metavar=metavar, show_default=default)


def _ranged(text: str, field: str, metavar: str, default: str | bool = False) -> Any:
    """An option whose range stands where its text has {}."""
    return _option(text.format(allowed(field)), metavar, default)


Out = Annotated[str, _option("A folder for the result; new or empty.", "FOLDER")]
Target = Annotated[str, _option("A folder, a .gguf file, a Hugging Face id or smollm2.", "ID", True)]
Minutes = Annotated[
    str | None,
    _ranged("About how long all of it may take: {}; tokens and steps follow from what is measured.", "minutes", "M"),
]
Tokens = Annotated[
    str | None, _ranged("Tokens that the target writes: {}.", "num_tokens", "N", "400,000, or by --minutes")
]
Steps = Annotated[str | None, _ranged("Steps of the optimiser: {}.", "steps", "N", "800, or by --minutes")]
Memory = Annotated[
    str | None, _ranged("Most memory to use, in GB: {}; the batch follows from it.", "memory", "GB", "no bound")
]
Data = Annotated[
    str | None,
    _option('JSONL of {"prompt": text} or {"messages": [...]}; without it the target writes the prompts too.', "FILE"),
]
Seed = Annotated[str | None, _ranged("Of everything that is drawn: {}.", "seed", "N", "0")]
Device = Annotated[str | None, _option("Where all is computed: cpu, cuda.", "NAME", "cpu")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with what is in the folder; same options.")]
DraftVocabulary = Annotated[
    str | None,
    _option(
        f"Tokens that the head can draft, those that the target writes most: {FEWEST_DRAFTED} to all of them.",
        "N",
        "8192",
    ),
]
Unroll = Annotated[
    str | None,
    _ranged("How often in a row it runs on its own output as it learns: {}.", "recipe.steps", "N", "5"),
]
HeadLayers = Annotated[
    str | None,
    typer.Option(
        "--layers",
        help=f"Ids of the target's states that the head reads, 1 to {MOST_LAYERS} of them: 0 is the embedding, then "
        "one per layer.",
        metavar="I,J,...",
        show_default="2, half of the layers, the last but 3",
    ),
]
Init = Annotated[
    str | None, _option("A head to go on from: a folder, a Hugging Face id or smollm2; as eagle:ID.", "ID", "none")
]
Heads = Annotated[str | None, _ranged("How many tokens are guessed: {}.", "num_heads", "K", "4")]
OwnOutput = Annotated[
    bool, typer.Option("--own-output", help="Train an output matrix per head; else all use the target's.")
]
HeadLoss = Annotated[str | None, _option("kl: to the target's law; ce: cross-entropy of what it wrote.", "NAME", "kl")]
Draft = Annotated[str | None, _option("A model to go on from, with the target's vocabulary; as --target.", "ID")]
Layers = Annotated[str | None, _option("Cut the target: so many layers, the first, the last and some between.", "N")]
DraftLoss = Annotated[str | None, _option("kl, reverse-kl, tv, hybrid.", "NAME", "hybrid")]

RATE = ("Of the optimiser at its highest: {}.", "learning_rate", "X")
BATCH = ("Tokens of a step, padding included: {}.", "tokens_per_batch", "N")
EagleRate = Annotated[str | None, _ranged(*RATE, "0.002")]
EagleBatch = Annotated[str | None, _ranged(*BATCH, "2048")]
MedusaRate = Annotated[str | None, _ranged(*RATE, "0.001")]
MedusaBatch = Annotated[str | None, _ranged(*BATCH, "1024")]
DraftRate = Annotated[str | None, _ranged(*RATE, "0.0005")]
DraftBatch = Annotated[str | None, _ranged(*BATCH, "2048")]


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
    feature_layers: HeadLayers = None,
    init: Init = None,
    unroll: Unroll = None,
    learning_rate: EagleRate = None,
    batch_tokens: EagleBatch = None,
    seed: Seed = None,
    precision: o.Precision = None,
    device: Device = None,
    threads: o.Threads = None,
    resume: Resume = False,
) -> None:
    """An EAGLE-3 head: one layer that reads three of the target's states, or as many as --layers names."""

    def kind(numbers: dict[str, Any]) -> Kind:
        from outrider.training.eagle_kind import Eagle3

        options = _given(draft_vocab_size=numbers.get("draft_vocabulary"), layers=_layer_ids(feature_layers), init=init)
        return Eagle3(**options, **_recipe(numbers, init), **_pace(numbers))

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
    init: Init = None,
    unroll: Unroll = None,
    learning_rate: EagleRate = None,
    batch_tokens: EagleBatch = None,
    seed: Seed = None,
    precision: o.Precision = None,
    device: Device = None,
    threads: o.Threads = None,
    resume: Resume = False,
) -> None:
    """An EAGLE-1 head, which EAGLE-2 trees use as well: one layer that reads the target's last state."""

    def kind(numbers: dict[str, Any]) -> Kind:
        from outrider.training.eagle_kind import Eagle1

        return Eagle1(**_given(init=init), **_recipe(numbers, init), **_pace(numbers))

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
    learning_rate: MedusaRate = None,
    batch_tokens: MedusaBatch = None,
    seed: Seed = None,
    precision: o.Precision = None,
    device: Device = None,
    threads: o.Threads = None,
    resume: Resume = False,
) -> None:
    """Medusa heads: each guesses one place, all from the target's last state."""

    def kind(numbers: dict[str, Any]) -> Kind:
        from outrider.training.medusa import Medusa

        options = _given(num_heads=numbers.get("heads"), loss=loss)
        return Medusa(**options, own_output=own_output, **_pace(numbers))

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
    learning_rate: DraftRate = None,
    batch_tokens: DraftBatch = None,
    seed: Seed = None,
    precision: o.Precision = None,
    device: Device = None,
    threads: o.Threads = None,
    resume: Resume = False,
) -> None:
    """A smaller decoder, cut from the target or given, that learns the target's laws: for --drafter model:FOLDER."""

    def kind(numbers: dict[str, Any]) -> Kind:
        from outrider.training.distill import Distill

        return Distill(**_given(draft=draft, layers=numbers.get("layers"), loss=loss), **_pace(numbers))

    _train(kind, locals())


# ---------------------------------------------------------------- steps of the commands

WHOLE = ("tokens", "steps", "seed", "draft_vocabulary", "unroll", "heads", "layers", "batch_tokens")
REAL = ("minutes", "memory", "learning_rate")


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


def _layer_ids(text: str | None) -> tuple[int, ...] | None:
    """The ids of --layers.

    Raises:
        InvalidOption: something else where a number belongs.
    """
    try:
        return None if text is None else tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise InvalidOption("layers", text, "whole numbers, such as 2,15,27") from error


def _recipe(numbers: dict[str, Any], init: str | None) -> dict[str, Any]:
    """What an EAGLE kind is given of its recipe; a head that was begun is past the first, simpler lessons."""
    from outrider.training.eagle import Recipe

    options: dict[str, Any] = _given(steps=numbers.get("unroll"))
    if init is not None:
        options |= {"single_share": 0.0, "kl_share": 0.0}
    return {"recipe": Recipe(**options)} if options else {}


def _pace(numbers: dict[str, Any]) -> dict[str, Any]:
    """What any kind is given of the optimiser's steps."""
    return _given(learning_rate=numbers.get("learning_rate"), tokens_per_batch=numbers.get("batch_tokens"))


def _typed(name: str) -> str:
    return "the curve" if name == "curve" else "--" + typed(name)


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
            **_given(num_tokens=numbers.get("tokens"), precision=others.get("precision")),
            **_given(data=given["data"], device=given["device"]),
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
