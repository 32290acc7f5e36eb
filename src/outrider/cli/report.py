"""What is said at the end of a run: the closing tables, and the JSON object. Counts come from `stats`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

if TYPE_CHECKING:
    from outrider.cli.runs import Comparison
    from outrider.generation import Result
    from outrider.stats import Stats

DEFINITIONS = """Acceptance length: tokens per round, the next token of the target included.
Accepted up to here: share of the drafts that reach the position. If all before were: share of those among them.
A drafted tree counts with all its nodes, and reaches as far as its longest path."""
DISTANCE = "distance from the target's law"
DISTANCE_DEFINITION = """
Distance: total variation between the law that a token had under the lossy rule and the target's law there, from 0 (the
same) to 1, on average per token. The gain is not to be quoted without it."""
POSITIONS_PER_TABLE = 10
NOTHING = "-"


def as_json(result: Result, comparison: Comparison | None) -> str:
    """One line in ASCII. The keys `plain`, `speedup` and `identical` are there only if there was a comparison.

    Args:
        result: of the run; `mean_acceptance_length` counts the target's next token, `acceptance_by_position` is as in
            `stats.PositionAcceptance`; `distance` is null for a lossless rule.
        comparison: with plain decoding, or None; what could not be measured or compared is null.
    """
    stats = result.stats
    content: dict[str, Any] = {
        "text": result.text,
        "token_ids": result.token_ids,
        "prompt_token_ids": result.prompt_token_ids,
        "finish_reason": result.finish_reason,
        "tokens_per_second": stats.tokens_per_second,
        "speculative": _speculative(stats),
    }
    if comparison is not None:
        plain = comparison.plain
        content["plain"] = {"tokens_per_second": plain.stats.tokens_per_second, "token_ids": plain.token_ids}
        content["speedup"] = comparison.speedup
        content["identical"] = comparison.identical
    return json.dumps(content, allow_nan=False)


def _speculative(stats: Stats) -> dict[str, Any]:
    names = ("drafter", "note", "rule", "lossless", "num_rounds", "num_draft_tokens", "num_accepted_tokens")
    return {
        **{name: getattr(stats, name) for name in names},
        "mean_acceptance_length": stats.mean_acceptance_length,
        "distance": stats.distance,
        "acceptance_by_position": [
            {"position": p.position, "cumulative": p.cumulative, "conditional": p.conditional} for p in stats.acceptance
        ],
        "seconds": {part: getattr(stats.seconds, part) for part in ("draft", "target", "verify", "other")},
    }


ROWS: tuple[tuple[str, Callable[[Stats], str]], ...] = (
    ("drafter", lambda s: f"{s.drafter}: {s.note}" if s.note else s.drafter),
    ("rule", lambda s: f"{s.rule}, {'lossless' if s.lossless else 'LOSSY'}"),
    ("precision", lambda s: s.precision),
    ("tokens", lambda s: str(s.num_new_tokens)),
    ("tokens/s, prompt excluded", lambda s: _number(s.tokens_per_second, ".1f")),
    ("rounds", lambda s: str(s.num_rounds)),
    ("drafted", lambda s: str(s.num_draft_tokens)),
    ("accepted", lambda s: f"{s.num_accepted_tokens}{_share(s.acceptance_rate)}"),
    ("acceptance length", lambda s: _number(s.mean_acceptance_length, ".2f")),
    (DISTANCE, lambda s: NOTHING if s.distance is None else f"{s.distance:.3f} per token"),
    ("time: draft", lambda s: _time(s, s.seconds.draft)),
    ("time: target", lambda s: _time(s, s.seconds.target)),
    ("time: verification", lambda s: _time(s, s.seconds.verify)),
    ("time: other", lambda s: _time(s, s.seconds.other)),
    ("prompt", lambda s: f"{s.prefill_seconds:.2f} s"),
)


def tables(stats: Stats, plain: Stats | None = None) -> list[Table | str]:
    """Counts and times, acceptance by place in the draft, and what the words mean.

    Args:
        stats: of the run.
        plain: of plain decoding, shown beside it.
    """
    definitions = DEFINITIONS if stats.lossless else DEFINITIONS + DISTANCE_DEFINITION
    return [_summary(stats, plain), *_positions(stats), definitions]


def _summary(stats: Stats, plain: Stats | None) -> Table:
    table = Table(box=SIMPLE_HEAD, show_header=plain is not None)
    columns = [stats] if plain is None else [stats, plain]
    for heading in ("", "speculative", "plain")[: len(columns) + 1]:
        table.add_column(heading)
    for label, show in ROWS:
        if label == DISTANCE and stats.lossless:
            continue
        table.add_row(label, *(show(column) for column in columns))
    return table


def _positions(stats: Stats) -> list[Table]:
    """Some places per table; [] if nothing was drafted."""
    found = []
    for start in range(0, len(stats.acceptance), POSITIONS_PER_TABLE):
        part = stats.acceptance[start : start + POSITIONS_PER_TABLE]
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column("position in the draft")
        for place in part:
            table.add_column(str(place.position), justify="right")
        table.add_row("accepted up to here", *(_number(place.cumulative, ".0%") for place in part))
        table.add_row("if all before were", *(_number(place.conditional, ".0%") for place in part))
        found.append(table)
    return found


def verdict(comparison: Comparison, *, invariant: bool) -> str:
    """Speed-up and sameness in words, with the reason where the tokens differ.

    Args:
        comparison: of both runs.
        invariant: whether they ran in invariant mode.
    """
    speedup = comparison.speedup
    fast = "not measured" if speedup is None else f"{speedup:.2f}x" + (", slower than plain" if speedup < 1 else "")
    return f"speed-up: {fast}\nsame tokens: {_sameness(comparison, invariant)}"


def _sameness(comparison: Comparison, invariant: bool) -> str:
    if comparison.speculative is None or comparison.identical is None:
        return "not compared, for a run was stopped"
    stats = comparison.speculative.stats
    if comparison.identical:
        return "yes"
    where = f"no, they differ from token {comparison.first_difference} on (counted from 1)"
    if not stats.lossless:
        return f"{where}; rule {stats.rule} is LOSSY"
    if comparison.temperature > 0 and stats.rule != "coupled":
        return f"{where}; temperature > 0: same law, not same text; use --rule coupled to see the same text"
    if invariant:
        return f"{where}; in invariant mode they should not: please report it"
    return f"{where}; a near tie that rounding in {stats.precision} decided; try --invariant"


def ending(result: Result) -> str:
    """Why the text ends where it does, unless the model ended it."""
    reasons = {"cancelled": "(stopped by Ctrl-C)", "length": "(cut at the limit of tokens)"}
    return reasons.get(result.finish_reason, "")


def problems(stats: Stats) -> list[str]:
    """What kept speculation from doing its work, though the text is right."""
    if stats.broken_draft is None:
        return []
    return [f"{stats.num_broken_drafts} drafts could not be used and were left out. The last: {stats.broken_draft}"]


def _number(value: float | None, form: str) -> str:
    return NOTHING if value is None else format(value, form)


def _share(rate: float | None) -> str:
    return "" if rate is None else f" ({rate:.1%})"


def _time(stats: Stats, seconds: float) -> str:
    total = stats.seconds.total
    return f"{seconds:.2f} s" + _share(seconds / total if total > 0 else None)
