"""A trace on a terminal. What comes from the file passes `text.visible`."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from outrider.text import visible
from outrider.tracing.figures import Figures, figures, groups
from outrider.tracing.lines import PARTS
from outrider.tracing.reading import EARLY
from outrider.tracing.traced import Trace, TracedRound

NUM_SLOWEST = 5
MOST_POSITIONS = 7
NOTHING = "-"
DEFINITIONS = """Tokens per round count the target's own next token. By position: of the drafts of which all before was
accepted, the share of which this token was too; a tree reaches as far as its longest path."""


def summary(trace: Trace) -> list[Table | str]:
    """Counts, time by part, acceptance by position, drafter and kind, and the slowest rounds."""
    drafted = {name: figures(rounds) for name, rounds in groups(trace).items()}
    return [*_heading(trace), _time(figures(trace.rounds)), *_acceptance(drafted), *_slowest(trace), DEFINITIONS]


def _heading(trace: Trace) -> list[str]:
    about, whole = trace.about, figures(trace.rounds)
    named = f"{about.get('target') or 'a target'} at {about['precision']}, drafter {about['drafter']}"
    texts = f"{len(trace.texts)} text{'' if len(trace.texts) == 1 else 's'}"
    counts = f"{texts}, {whole.rounds} rounds, {whole.tokens} tokens: {_number(whole.tokens_per_round)} per round"
    heading = [f"{visible(named)}\n{counts}; {trace.ending}"]
    if trace.ending == EARLY:
        heading.append("The file ends early: how the run went on is not known.")
    return heading


def _time(whole: Figures) -> Table:
    table = _table("time", "seconds", "of it", "per round")
    for part in (*PARTS, "total"):
        seconds = getattr(whole.seconds, part)
        share = seconds / whole.seconds.total if whole.seconds.total else None
        each = 1000 * seconds / whole.rounds if whole.rounds else None
        table.add_row(part, f"{seconds:.3f}", _percent(share), NOTHING if each is None else f"{each:.1f} ms")
    return table


def _acceptance(drafted: dict[str, Figures]) -> list[Table]:
    """[] if nothing was drafted."""
    if not drafted["all"].rounds:
        return []
    longest = min(max(len(each.positions) for each in drafted.values()), MOST_POSITIONS)
    table = _table("drafts", "rounds", "drafted", "accepted", *map(str, range(1, longest + 1)))
    for name, each in drafted.items():
        places = [_percent(place.conditional) for place in each.positions[:longest]]
        places += [NOTHING] * (longest - len(places))
        rate = _percent(each.acceptance_rate)
        table.add_row(Text(visible(name)), str(each.rounds), str(each.drafted), rate, *places)
    return [table]


def _slowest(trace: Trace) -> list[Table]:
    found = [(number, place, r) for number, text in enumerate(trace.texts) for place, r in enumerate(text.rounds)]
    table = _table("slowest", "text", "ms", *PARTS, "kept", "new text")
    for number, place, r in sorted(found, key=lambda each: -each[2].seconds.total)[:NUM_SLOWEST]:
        parts = [f"{1000 * getattr(r.seconds, part):.1f}" for part in ("total", *PARTS)]
        table.add_row(f"round {place}", str(number), *parts, f"{r.num_accepted} of {len(r.nodes)}", _made(r))
    return [table] if found else []


def _made(r: TracedRound) -> Text:
    text = visible("".join(token.text for token in r.tokens)).replace("\n", "\\n").replace("\t", "\\t")
    return Text(text if len(text) <= 20 else text[:19] + "…")


def _table(first: str, *others: str) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(first)
    for heading in others:
        table.add_column(heading, justify="left" if heading == "new text" else "right")
    return table


def _percent(share: float | None) -> str:
    return NOTHING if share is None else f"{share:.0%}"


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}"
