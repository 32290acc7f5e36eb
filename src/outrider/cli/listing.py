"""The table of `outrider drafters`."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from outrider.drafters.catalogue import ENTRIES, Entry

FOOT = """Options follow a colon and are separated by commas: --drafter suffix:branches=3,min_match=2
Several drafters are joined by +, and each round takes the one that promises most: --drafter suffix+model:ID
auto is suffix, and suffix+eagle:smollm2,tree=auto for smollm2, which ships with a head.
Your own class is passed to outrider.load(drafter=...)."""


def drafters_table() -> Table:
    """Every drafter: how it is typed, when it helps, what it needs and costs, and its options with their defaults."""
    table = Table(box=SIMPLE_HEAD, show_lines=True, caption=Text(FOOT), caption_justify="left")
    for heading in ("--drafter", "helps with", "needs", "costs", "options"):
        typed = heading in ("--drafter", "options")  # what is typed must not be broken
        table.add_column(heading, ratio=None if typed else 1, overflow="fold", no_wrap=typed)
    for entry in ENTRIES:
        table.add_row(*(Text(cell) for cell in (_typed(entry), entry.helps, entry.needs, entry.cost, _options(entry))))
    return table


def _typed(entry: Entry) -> str:
    if entry.argument.startswith("["):
        return f"{entry.name}[:{entry.argument[1:]}"
    return f"{entry.name}:{entry.argument}" if entry.argument else entry.name


def _options(entry: Entry) -> str:
    return "\n".join(f"{name}={default}" for name, default in entry.defaults.items())
