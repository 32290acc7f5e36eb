"""The report as tables of a terminal, 80 columns wide if need be."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from outrider.benching.figures import ALL, Cell
from outrider.benching.report import Report, state_of
from outrider.benching.words import equal, foretold, number, seconds, setting, share, speedup, times
from outrider.text import visible

LEGEND = (
    "Tokens/s: total tokens over total seconds of decoding, the prompts' own time excluded; all make the same number "
    "of tokens. Per round: tokens, the target's own next token included. Equal: runs whose texts are plain decoding's. "
    "Interval of a speed-up: 95 % of its values when the prompts are drawn anew. Expected: by what was accepted and "
    "what rows cost here, or as planned."
)

COLUMNS: tuple[tuple[str, Callable[[Cell], str]], ...] = (
    ("tokens/s", lambda c: number(c.tokens_per_second)),
    ("first", lambda c: seconds(c.first_token_seconds)),
    ("per round", lambda c: number(c.acceptance_length, ".2f")),
    ("accepted", lambda c: share(c.acceptance_rate)),
    ("equal", lambda c: equal(c.equality)),
    ("speed-up", lambda c: speedup(c.speedup)),
    ("expected", lambda c: times(foretold(c))),
)


def tables(report: Report) -> Iterable[Table | str]:
    """By temperature and batch: the figures of all prompts, and the speed-ups by kind; then what the words mean."""
    for (temperature, batch), group in groupby(report.cells, key=lambda cell: (cell.temperature, cell.batch)):
        cells = list(group)
        kinds = list(dict.fromkeys(cell.kind for cell in cells))
        yield _figures(setting(temperature, batch), [cell for cell in cells if cell.kind == kinds[-1]])
        if len(kinds) > 1:
            yield _by_kind(cells, kinds)
    for peer in report.peers:
        state, reason = state_of(peer, report.outcome.failed)
        if reason:
            yield f"{peer.name} is {state}: {reason}"
    yield LEGEND
    if report.outcome.partial:
        yield f"PARTIAL: stopped after {len(report.outcome.runs)} runs, before everything was measured."


def _figures(title: str, cells: list[Cell]) -> Table:
    table = _table(title)
    for heading, _ in COLUMNS:
        table.add_column(heading, justify="right", no_wrap=True)
    for cell in cells:
        table.add_row(Text(visible(cell.way)), *(show(cell) for _, show in COLUMNS))
    return table


def _by_kind(cells: list[Cell], kinds: list[str]) -> Table:
    table = _table("Speed-up by kind")
    for kind in kinds:
        table.add_column("all kinds" if kind == ALL else kind, justify="right", no_wrap=True)
    found = {(cell.way, cell.kind): times(cell.speedup) for cell in cells if cell.speedup is not None}
    for way in dict.fromkeys(way for way, _ in found):
        table.add_row(Text(visible(way)), *(found.get((way, kind), "-") for kind in kinds))
    return table


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=0, pad_edge=False)
    table.add_column("", overflow="fold", min_width=12)
    return table
