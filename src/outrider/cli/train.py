"""The commands `outrider train eagle3` and their like."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import outrider.cli.options as o
from outrider.cli.screen import Screen

train = typer.Typer(no_args_is_help=True, help="Train a head for a target, on what the target itself writes.")

Out = Annotated[Path, typer.Option(help="A folder for the head; new or empty.", metavar="FOLDER")]
Minutes = Annotated[
    float | None, typer.Option(help="About how long all of it may take; sizes are chosen by measuring.", metavar="M")
]
Steps = Annotated[int | None, typer.Option(help="Steps of the optimiser.", metavar="N")]
Tokens = Annotated[int | None, typer.Option(help="Tokens that the target writes.", metavar="N")]
Data = Annotated[
    Path | None,
    typer.Option(
        help='JSONL of {"prompt": text} or {"messages": [...]}; without it the target writes the prompts too.',
        metavar="FILE",
    ),
]
Seed = Annotated[int, typer.Option(help="Of everything that is drawn.", metavar="N")]
DraftVocabulary = Annotated[int, typer.Option(help="Tokens that the head can draft.", metavar="N")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with what is in the folder; same options.")]
TargetId = Annotated[str, typer.Option(help="A folder, a .gguf file, a Hugging Face id or smollm2.", metavar="ID")]


@train.command()
def eagle3(
    out: Out,
    target: TargetId = "smollm2",
    minutes: Minutes = None,
    steps: Steps = None,
    tokens: Tokens = None,
    data: Data = None,
    seed: Seed = 0,
    draft_vocabulary: DraftVocabulary = 8192,
    precision: o.Precision = None,
    threads: o.Threads = None,
    resume: Resume = False,
) -> None:
    """An EAGLE-3 head: one layer that reads three of the target's states."""
    _train("eagle3", locals())


@train.command()
def eagle1(
    out: Out,
    target: TargetId = "smollm2",
    minutes: Minutes = None,
    steps: Steps = None,
    tokens: Tokens = None,
    data: Data = None,
    seed: Seed = 0,
    precision: o.Precision = None,
    threads: o.Threads = None,
    resume: Resume = False,
) -> None:
    """An EAGLE-1 head, which EAGLE-2 trees use as well: one layer that reads the target's last state."""
    _train("eagle1", locals())


def _train(kind: str, given: dict[str, Any]) -> None:
    from outrider.cli.app import leaving_cleanly, open_screen

    screen = open_screen(quiet=False, json=False)
    with leaving_cleanly(screen):
        from outrider.training.command import train_head

        with _bars(screen) as told:
            report = train_head(kind, given, told)
        screen.note(report)


@contextmanager
def _bars(screen: Screen) -> Iterator[Any]:
    """One bar per thing that is being done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen.notes, transient=False) as progress:
        tasks: dict[str, Any] = {}

        def told(what: str, done: int, total: int) -> None:
            name = what.partition(",")[0]
            if name not in tasks:
                tasks[name] = progress.add_task(name, total=total)
            progress.update(tasks[name], completed=done, description=what)

        yield told
