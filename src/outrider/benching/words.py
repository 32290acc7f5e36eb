"""Figures as people read them, the same in the table and on the page."""

from __future__ import annotations

from outrider.benching.figures import Cell, Equality, Interval

NOTHING = "-"


def number(value: float | None, form: str = ".1f") -> str:
    """A number, or a dash for what was not measured."""
    return NOTHING if value is None else format(value, form)


def share(value: float | None) -> str:
    """A share in percent."""
    return NOTHING if value is None else f"{value:.0%}"


def times(found: Interval | None) -> str:
    """A speed-up without its interval."""
    return NOTHING if found is None else f"{found.mid:.2f}x"


def between(found: Interval | None) -> str:
    """The interval of a speed-up."""
    return "" if found is None or found.low is None or found.high is None else f"{found.low:.2f}-{found.high:.2f}"


def speedup(found: Interval | None) -> str:
    """A speed-up with its interval."""
    return f"{times(found)} {between(found)}".strip()


def equal(found: Equality | None) -> str:
    """How many runs gave plain decoding's texts."""
    return NOTHING if found is None else f"{found.equal}/{found.compared}"


def seconds(value: float) -> str:
    """A time to the first token."""
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.0f} ms"


def setting(temperature: float, batch: int) -> str:
    """What the cells of a table have in common."""
    together = "one prompt at a time" if batch == 1 else f"{batch} prompts at a time"
    return f"Temperature {temperature:g}, {together}"


def foretold(cell: Cell) -> Interval | None:
    """The speed-up that was to be expected: as planned, if there was a plan, else by what its rounds should cost."""
    return cell.planned if cell.planned is not None else cell.predicted
