"""What a plan foretold, put beside what was measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.benching.figures import ALL, Cell, Interval
from outrider.benching.ways import Strategy
from outrider.errors import InvalidOption
from outrider.loading import default_drafter

if TYPE_CHECKING:
    from outrider.planning.plan import Plan


MAKE_ONE = "Make one for this run: outrider plan --json > FILE, with the same target, precision and threads."


def read_plan(path: Path) -> Plan:
    """A plan as JSON.

    Raises:
        InvalidOption: it cannot be read, or is no plan.
    """
    from outrider.planning.plan import from_json

    try:
        return from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidOption("plan", str(path), "a plan as JSON", f"{error}. {MAKE_ONE}") from error


def check_here(plan: Plan, target: str, threads: int | None) -> None:
    """Refuse a plan of another target, or one that was measured on another machine or of other files of its names.

    Args:
        plan: from a file.
        target: of the run, as users type it.
        threads: see `kept.this_machine`.

    Raises:
        InvalidOption: naming what the plan is of, and how that differs.
    """
    from outrider.planning.kept import of_another

    own = plan.asked.get("target")
    if own != target:
        raise InvalidOption("plan", f"for target {own}", f"one for target {target}", MAKE_ONE)
    other = of_another(plan, target, plan.asked.get("drafters", ()), threads)
    if other:
        raise InvalidOption("plan", f"of {other}", "one of this machine, model and version", MAKE_ONE)


def check_precision(plan: Plan, precision: str) -> None:
    """Refuse a plan of another precision, which is known when the target is loaded.

    Raises:
        InvalidOption: naming the plan's.
    """
    if plan.precision != precision:
        raise InvalidOption("plan", f"for precision {plan.precision}", f"one for precision {precision}", MAKE_ONE)


def with_plan(
    cells: Iterable[Cell], plan: Plan, strategies: Iterable[Strategy], kinds: list[str], target: str
) -> tuple[Cell, ...]:
    """The cells of all kinds together, or of the only one, with what the plan foretold; the others as they are.

    Args:
        cells: as measured.
        plan: that foretold.
        strategies: of the run.
        kinds: of its prompts.
        target: as typed; it decides what "auto" means in the plan.
    """
    by_name, whole = {each.name: each for each in strategies}, ALL if len(kinds) > 1 else kinds[0]
    return tuple(
        replace(cell, planned=_planned(cell, plan, by_name[cell.way], target))
        if cell.way in by_name and cell.kind == whole
        else cell
        for cell in cells
    )


def _planned(cell: Cell, plan: Plan, strategy: Strategy, target: str) -> Interval | None:
    for foretold in plan.at(cell.temperature, cell.batch):
        drafter = default_drafter(target) if foretold.drafter == "auto" else foretold.drafter
        same_length = foretold.k == strategy.num_draft_tokens
        if drafter == strategy.drafter and (same_length or (strategy.num_draft_tokens, foretold.k) == ("auto", "tree")):
            return Interval(foretold.speedup.mid, foretold.speedup.low, foretold.speedup.high)
    return None
