"""The report as one HTML page that needs nothing else: no network, no script; for a phone, a screen and paper.

Every text that is not this module's own passes `pages.safe`: prompts, names and reasons are data.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import groupby

from outrider.benching.figures import ALL, Cell
from outrider.benching.plots import Point, bars, speedups
from outrider.benching.report import Report, state_of
from outrider.benching.ways import PLAIN
from outrider.benching.words import equal, foretold, number, seconds, setting, share, speedup, times
from outrider.pages import page, resource, safe

COLUMNS: tuple[tuple[str, str, Callable[[Cell], str]], ...] = (
    ("way", "", lambda c: safe(c.way)),
    ("tokens/s", "total tokens over total seconds of decoding", lambda c: number(c.tokens_per_second)),
    ("median", "of the runs' tokens/s", lambda c: number(c.median_tokens_per_second)),
    ("with prompt", "tokens/s, the prompts' own time included", lambda c: number(c.whole_tokens_per_second)),
    ("first token", "median time to it", lambda c: seconds(c.first_token_seconds)),
    ("speed-up", "against plain decoding, with its interval", lambda c: speedup(c.speedup)),
    ("of medians", "the quotient of the median speeds", lambda c: number(c.speedup_of_medians, ".2f")),
    ("expected", "the speed-up that was to be expected", lambda c: times(foretold(c))),
    ("tokens/round", "the target's own next token included", lambda c: number(c.acceptance_length, ".2f")),
    ("accepted", "of the drafted tokens", lambda c: share(c.acceptance_rate)),
    ("rows/round", "that a forward of the target has", lambda c: number(c.rows_per_round, ".2f")),
    ("drafting", "share of the time of decoding", lambda c: share(c.drafting)),
    ("equal", "runs whose texts are plain decoding's, of those compared", lambda c: _equal(c)),
)

HOW = """
<p>Every group of prompts is decoded by all ways in turn, in one process with one copy of the target, before the next
group, and another way begins each time. All ways make the same number of tokens of each prompt: tokens that would end a
text do not ({after_end} of plain decoding's tokens come after one). A speed is total tokens over total seconds of
decoding, the prompt's own time excluded; a speed-up is the quotient of two speeds. Its interval holds 95&nbsp;% of the
values that it takes when the prompts of each kind are drawn anew (the bootstrap): it tells how much depends on the
prompts, and nothing of other work that the machine had.</p>
<p>What was <i>expected</i> follows from plain decoding's time, from what was accepted, and from the cost of rows that
was measured on this machine apart from this run, unless a plan was given, which foretold it.</p>
<p>Other engines get the same token ids, weights and threads. Their time of decoding begins with their first token. They
round differently, and may read the numbers of a file differently, so that their texts may differ from ours.</p>
"""


def as_page(report: Report) -> str:
    """The page."""
    title = f"outrider bench: {report.target}"
    body = [
        f'<p class="sub">{safe(_subtitle(report))}</p>',
        *_warnings(report),
        *_sections(report),
        *_peers(report),
        *_prompts(report),
        "<h2>How this was measured</h2>",
        HOW.format(after_end=f"{report.after_end:.1%}"),
        *_provenance(report),
    ]
    return page(title, resource("bench.css"), body)


def _subtitle(report: Report) -> str:
    kinds = ", ".join(f"{len(own)} {kind}" for kind, own in report.prompts.items())
    machine = report.provenance.get("machine", {})
    parts = [
        f"Precision {report.precision}",
        f"prompts: {kinds}",
        f"{report.grid.max_new_tokens} new tokens each",
        f"repeats: {report.grid.repeats}",
        f"{machine.get('processor')}, threads: {machine.get('threads')}",
        str(report.provenance.get("date")),
    ]
    return "; ".join(parts)


def _warnings(report: Report) -> Iterable[str]:
    if report.outcome.partial:
        yield '<p class="warning"><b>Partial:</b> the run was stopped before everything was measured.</p>'
    ours = {each.name for each in report.strategies}
    for cell in report.cells:
        if cell.way in ours and (cell.kind == ALL or len(report.prompts) == 1) and (cell.broken or _differs(cell)):
            yield f'<p class="warning">{safe(setting(cell.temperature, cell.batch))}: {safe(_fault(cell))}</p>'


def _differs(cell: Cell) -> bool:
    return cell.equality is not None and cell.equality.equal < cell.equality.compared


def _fault(cell: Cell) -> str:
    found = []
    if cell.equality is not None and _differs(cell):
        found.append(
            f"{cell.equality.compared - cell.equality.equal} of {cell.equality.compared} texts of {cell.way} are not "
            f"plain decoding's, the first from token {cell.equality.first_difference} on: near ties that rounding "
            "decides, in trees, at float32 or bfloat16, or in batches; anywhere else, please report it."
        )
    if cell.broken:
        found.append(f"{cell.broken} drafts of {cell.way} could not be used: {cell.reason}")
    return " ".join(found)


# ---------------------------------------------------------------- sections


def _sections(report: Report) -> Iterable[str]:
    colours = {each.name: number for number, each in enumerate(report.strategies)}
    by_setting = groupby(report.cells, key=lambda cell: (cell.temperature, cell.batch))
    for (temperature, batch), group in by_setting:
        cells = list(group)
        yield f"<section>\n<h2>{safe(setting(temperature, batch))}</h2>"
        points = _points(cells, colours)
        if any(points.values()):
            yield "<h3>How much faster than plain decoding</h3>"
            yield '<p class="key">Dot: measured, with its 95&nbsp;% interval. Stroke: expected. Line at 1x: plain.</p>'
            yield speedups(points)
        first, *others = _kinds(cells)
        yield f"<h3>Tokens per second, {_of(first)}</h3>"
        yield bars(_speeds([cell for cell in cells if cell.kind == first], colours))
        for kind in (first, *others):
            table = _table([cell for cell in cells if cell.kind == kind])
            opened = " open" if kind == first else ""
            yield f"<details{opened}><summary>Figures, {_of(kind)}</summary>{table}</details>"
        yield "</section>"


def _kinds(cells: list[Cell]) -> list[str]:
    """All kinds together, if there are several, and then each."""
    return sorted(dict.fromkeys(cell.kind for cell in cells), key=lambda kind: kind != ALL)


def _of(kind: str) -> str:
    return "all kinds" if kind == ALL else safe(kind)


def _points(cells: list[Cell], colours: dict[str, int]) -> dict[str, list[Point]]:
    """Lines by kind, of what shares a model with plain decoding."""
    ours = [cell for cell in cells if cell.way in colours]
    return {
        "all kinds" if kind == ALL else kind: [
            Point(cell.way, colours[cell.way], cell.speedup, foretold(cell))
            for cell in ours
            if cell.kind == kind and cell.speedup is not None
        ]
        for kind in _kinds(ours)
    }


def _speeds(cells: list[Cell], colours: dict[str, int]) -> dict[str, tuple[float, str, int | None]]:
    return {cell.way: (cell.tokens_per_second, number(cell.tokens_per_second), colours.get(cell.way)) for cell in cells}


def _table(cells: list[Cell]) -> str:
    heads = "".join(f'<th title="{safe(meaning)}">{safe(name)}</th>' for name, meaning, _ in COLUMNS)
    rows = "".join("<tr>" + "".join(f"<td>{show(cell)}</td>" for _, _, show in COLUMNS) + "</tr>" for cell in cells)
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'


def _equal(cell: Cell) -> str:
    return f'<span class="unequal">{equal(cell.equality)}</span>' if _differs(cell) else equal(cell.equality)


def _peers(report: Report) -> Iterable[str]:
    if report.peers:
        yield "<h2>Other engines</h2>"
        heads = "".join(f"<th>{name}</th>" for name in ("engine", "version", "settings", "state"))
        rows = ""
        for peer in report.peers:
            state, reason = state_of(peer, report.outcome.failed)
            shown = (peer.name, peer.version or "-", peer.settings, f"{state}: {reason}" if reason else state)
            rows += "<tr>" + "".join(f"<td>{safe(text)}</td>" for text in shown) + "</tr>"
        yield f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'


def _prompts(report: Report) -> Iterable[str]:
    yield "<h2>The prompts</h2>"
    for kind, own in report.prompts.items():
        items = "".join(f"<li><pre>{safe(prompt.text)}</pre></li>" for prompt in own)
        yield f"<details><summary>{safe(kind)}: {len(own)}</summary><ol>{items}</ol></details>"


def _provenance(report: Report) -> Iterable[str]:
    yield "<h2>Where this comes from</h2>"
    settings = {
        "drafters": [each.name for each in report.strategies],
        "temperatures": report.grid.temperatures,
        "batches": report.grid.batches,
        "seed": report.grid.seed,
        "plain decoding": PLAIN,
    }
    rows = {**report.provenance, **settings}
    shown = {name: value if isinstance(value, str) else json.dumps(value) for name, value in rows.items()}
    yield "<dl>" + "".join(f"<dt>{safe(name)}</dt><dd>{safe(value)}</dd>" for name, value in shown.items()) + "</dl>"
