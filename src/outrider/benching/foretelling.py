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


def read_plan(path: Path) -> Plan:
    """A plan as JSON.

    Raises:
        InvalidOption: it cannot be read, or is no plan.
    """
    from outrider.planning.plan import from_json

    try:
        return from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidOption("plan", str(path), "a plan as JSON", f"{error}.") from error


def check_fit(plan: Plan, target: str, precision: str) -> None:
    """Refuse a plan of something else.

    Raises:
        InvalidOption: naming what the plan is for.
    """
    for name, own, wanted in (
        ("target", plan.asked.get("target"), target),
        ("precision", plan.precision, precision),
    ):
        if own != wanted:
            raise InvalidOption("plan", f"for {name} {own}", f"one for {name} {wanted}", "Make one for this run.")


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
