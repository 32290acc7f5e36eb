"""How far a training is: bars on a terminal, plain lines in a file or a pipe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from outrider.text import visible

EVERY = 30.0
"""Seconds between two lines of a stage, at least."""

UNITS = {
    "writing texts": "tokens",
    "the target's states": "texts",
    "training": "steps",
    "warming up": "runs",
    "measuring": "runs",
    "timing": "batches",
    "timing drafts": "batches",
    "walking rounds": "tokens",
    "decoding": "tokens",
    "exact laws": "rounds",
    "same text": "texts",
}
"""What is counted, by stage; while something is loaded, layers."""


@dataclass(frozen=True)
class Watcher:
    """What a training calls.

    Args:
        told: with (what is being done, done, in all).
        noted: with a line to keep.
    """

    told: Callable[[str, int, int], None]
    noted: Callable[[str], None]


@contextmanager
def watching() -> Iterator[Watcher]:
    """Shows a training on standard error."""
    console = Console(stderr=True)

    def noted(line: str) -> None:
        console.print(Text(visible(line)), soft_wrap=True)

    if not console.is_terminal:
        yield Watcher(lines(noted), noted)
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        yield Watcher(_bars(progress), noted)


def lines(show: Callable[[str], None], clock: Callable[[], float] = monotonic) -> Callable[[str, int, int], None]:
    """Shows a line when a stage begins, and then one at most every `EVERY` seconds."""
    stage, last = "", 0.0

    def told(what: str, done: int, total: int) -> None:
        nonlocal stage, last
        name, now = what.partition(",")[0], clock()
        if name != stage or now - last >= EVERY:
            stage, last = name, now
            show(f"{what}: {done:,} of {total:,} {UNITS.get(name, 'layers')}")

    return told


def _bars(progress: Progress) -> Callable[[str, int, int], None]:
    """A bar for each stage."""
    tasks: dict[str, TaskID] = {}

    def told(what: str, done: int, total: int) -> None:
        name = what.partition(",")[0]
        if name not in tasks:
            tasks[name] = progress.add_task(visible(name), total=total)
        progress.update(tasks[name], completed=done, total=total, description=visible(what))

    return told
