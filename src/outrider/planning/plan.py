"""A plan: what was measured of a target and its drafters, what that predicts, and what to do. No torch here.

A *cell* is one drafter with one draft length at one temperature and batch size. Its speed-up is that of decoding, the
prompts' own forwards left out, against the same target without drafts at the same temperature and batch size.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from collections.abc import Sequence as Ordered
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

VERSION = 1
"""Of the form of a plan; one of another is not read."""

K = int | str
"""How much is drafted: so many tokens, `AUTO` or `TREE`."""

AUTO = "auto"
"""What the drafter's own pace, or the combination, decides in every round."""

TREE = "tree"
"""A tree that the drafter shapes itself."""

CONFIDENCE = 0.95
"""How likely an interval is to hold what is measured later, if the prompts and the machine are like those now."""


@dataclass(frozen=True)
class Interval:
    """A figure and how far off it may be."""

    low: float
    mid: float
    high: float


@dataclass(frozen=True)
class Cell:
    """A prediction.

    Args:
        drafter: as users type it.
        k: how much is drafted.
        temperature: of the text.
        batch: sequences decoded together.
        tokens: per round of a sequence, the target's next token included.
        speedup: tokens per second over those of plain decoding.
    """

    drafter: str
    k: K
    temperature: float
    batch: int
    tokens: Interval
    speedup: Interval


@dataclass(frozen=True)
class TargetCost:
    """What a forward of the target takes in a batch of one size.

    Args:
        batch: sequences.
        rows: [n] of the whole batch, ascending; all sequences have as many.
        seconds: [n] medians, made never to fall.
        spared: seconds less for each sequence that has one row only, beside others that have more.
        context: tokens that each sequence had in its cache.
        noise: relative standard error of what was timed.
    """

    batch: int
    rows: tuple[int, ...]
    seconds: tuple[float, ...]
    spared: float
    context: int
    noise: float


@dataclass(frozen=True)
class OtherCost:
    """What a round takes beside drafting and the target's forward: verification and bookkeeping of the whole batch."""

    temperature: float
    batch: int
    rows: tuple[int, ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class DraftCost:
    """What a drafter adds to a round of the whole batch.

    Args:
        drafter: as users type it.
        temperature: of the text.
        batch: sequences.
        depths: [n] tokens drafted one after the other, ascending from 0.
        seconds: [n] of drafting, learning from the round before included.
        rows: [m] of the whole batch, ascending.
        extra: [m] what the target's forward and the rest of the round take beyond `TargetCost` and `OtherCost`: rules
            that weigh two laws take longer, and layers that drafting has run need not run again.
    """

    drafter: str
    temperature: float
    batch: int
    depths: tuple[int, ...]
    seconds: tuple[float, ...]
    rows: tuple[int, ...] = (1,)
    extra: tuple[float, ...] = (0.0,)


@dataclass(frozen=True)
class Acceptance:
    """How often drafted tokens were kept in rounds that were walked.

    Args:
        drafter: as users type it.
        k: how much was drafted in the walk.
        temperature: of the text.
        batch: for which the drafter chose how much to draft; None where that plays no part.
        rounds: that were walked.
        tried: by place, drafted tokens before which all were kept.
        kept: how many of these were kept.
    """

    drafter: str
    k: K
    temperature: float
    batch: int | None
    rounds: int
    tried: tuple[int, ...]
    kept: tuple[int, ...]

    @property
    def conditional(self) -> tuple[float, ...]:
        """By place, the chance of a token whose predecessors were kept."""
        return tuple(kept / tried for kept, tried in zip(self.kept, self.tried, strict=True))


@dataclass(frozen=True)
class Context:
    """How much longer a forward of one sequence takes with more in its cache.

    Args:
        tokens: in the cache, few and many.
        rows: of the forwards.
        seconds: by rows, with few and with many.
    """

    tokens: tuple[int, int]
    rows: tuple[int, ...]
    seconds: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Plan:
    """All of it.

    Args:
        asked: what was asked for, see `kept.Asked`.
        machine: what costs depend on, by name, see `kept.this_machine`.
        model: what tells one target from another, see `kept.this_model`.
        precision: of the target.
        num_prompts: that texts were made of.
        targets: by batch size.
        others: by temperature and batch size.
        drafts: by drafter, temperature and batch size.
        acceptances: of the walks.
        cells: the predictions.
        context: longer contexts; None before that was measured.
        missing: drafters that were not measured: the plan was interrupted.
        auto: what the drafter "auto" stands for.
        version: `VERSION`.
    """

    asked: dict[str, Any]
    machine: dict[str, Any]
    model: dict[str, Any]
    precision: str
    num_prompts: int
    targets: tuple[TargetCost, ...] = ()
    others: tuple[OtherCost, ...] = ()
    drafts: tuple[DraftCost, ...] = ()
    acceptances: tuple[Acceptance, ...] = ()
    cells: tuple[Cell, ...] = ()
    context: Context | None = None
    missing: tuple[str, ...] = ()
    auto: str = ""
    version: int = VERSION

    @property
    def partial(self) -> bool:
        """Whether something that was asked for is missing."""
        return bool(self.missing)

    def at(self, temperature: float, batch: int) -> list[Cell]:
        """The cells of one temperature and batch size."""
        return [cell for cell in self.cells if (cell.temperature, cell.batch) == (temperature, batch)]


# ---------------------------------------------------------------- JSON


def to_json(plan: Plan, indent: int | None = None) -> str:
    """One JSON object, ASCII."""
    return json.dumps({**asdict(plan), "partial": plan.partial}, allow_nan=False, indent=indent)


def from_json(text: str) -> Plan:
    """What `to_json` wrote.

    Raises:
        ValueError: it is something else, or of another version.
    """
    try:
        data = json.loads(text)
        if data.pop("version") != VERSION:
            raise ValueError("a plan of another version")
        for told in ("partial", "recommendations"):  # they follow from the rest
            data.pop(told, None)
        context = data.pop("context")
        parts: dict[str, Any] = {
            name: tuple(_part(kind, each) for each in data.pop(name)) for name, kind in PARTS.items()
        }
        missing = tuple(data.pop("missing"))
        if not all(isinstance(data[name], dict) for name in ("asked", "machine", "model")):
            raise TypeError("asked, machine and model are objects")
        return Plan(**data, **parts, missing=missing, context=None if context is None else _context(context))
    except (AttributeError, KeyError, RecursionError, TypeError) as error:
        raise ValueError(f"not a plan: {error!r}") from error


PARTS: dict[str, Any] = {
    "targets": TargetCost,
    "others": OtherCost,
    "drafts": DraftCost,
    "acceptances": Acceptance,
    "cells": Cell,
}


def _part(kind: Any, data: dict[str, Any]) -> Any:
    """A record of tuples, numbers and intervals."""
    made = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
    made.update({name: Interval(**value) for name, value in made.items() if isinstance(value, dict)})
    return kind(**made)


def _context(data: dict[str, Any]) -> Context:
    few, many = data["tokens"]
    return Context((few, many), tuple(data["rows"]), tuple((short, long) for short, long in data["seconds"]))


# ---------------------------------------------------------------- what to do


@dataclass(frozen=True)
class Recommendation:
    """What to do at one temperature and batch size.

    Args:
        temperature: of the text.
        batch: sequences decoded together.
        cell: to be used; None: do not speculate.
        reason: in words, one sentence or two.
    """

    temperature: float
    batch: int
    cell: Cell | None
    reason: str


def recommend(plan: Plan, temperature: float, batch: int) -> Recommendation:
    """The cell of the highest predicted speed-up, or not to speculate unless its interval begins above 1.

    The best of many predictions is mostly too high, and what may lose is no advice; the drafter "auto" finds out at run
    time, and stops by itself.

    Args:
        plan: that has cells.
        temperature: one that was asked for.
        batch: likewise.
    """
    cells = plan.at(temperature, batch)
    if not cells:
        return Recommendation(temperature, batch, None, "do not speculate: nothing was measured yet.")
    best = max(cells, key=lambda cell: cell.speedup.mid)
    if best.speedup.mid <= 1:
        return Recommendation(temperature, batch, None, f"do not speculate: {_loss(best)}")
    reason = f"{in_words(best)}: {_factor(best.speedup)} of plain decoding's speed."
    if best.speedup.low <= 1:
        return Recommendation(temperature, batch, None, f"do not speculate: the best may also lose. That is {reason}")
    return Recommendation(temperature, batch, best, reason)


def in_words(cell: Cell) -> str:
    """How it is asked for: the drafter and, if it is fixed, k."""
    return f"{cell.drafter}, k = {cell.k}" if isinstance(cell.k, int) else cell.drafter


def _loss(best: Cell) -> str:
    """Why the best of all does not pay."""
    tokens, cost = best.tokens.mid, best.tokens.mid / best.speedup.mid
    many = "" if best.batch == 1 else f" in a batch of {best.batch}"
    return (
        f"the best, {in_words(best)}, would run at {_factor(best.speedup)} of plain decoding's speed. A round with its "
        f"draft takes {cost:.2f} plain rounds{many}, so it would have to emit more than {cost:.2f} tokens; it emits "
        f"{tokens:.2f}."
    )


def _factor(speedup: Interval) -> str:
    return f"{speedup.mid:.2f} ({speedup.low:.2f} to {speedup.high:.2f})"


@dataclass(frozen=True)
class Stops:
    """The batch size at which speculation stops paying.

    Args:
        batch: the first at which nothing pays, between sizes that were measured on a straight line; None if something
            pays at all of them.
        asked: the sizes that were measured, ascending.
    """

    batch: int | None
    asked: tuple[int, ...]

    @property
    def in_words(self) -> str:
        """A sentence."""
        if self.batch is None:
            return f"The best is predicted to pay up to a batch of {self.asked[-1]}, the largest that was measured."
        if self.batch == self.asked[0]:
            return f"Nothing is predicted to pay in a batch of {self.batch} or more."
        about = "" if self.batch in self.asked else "about "
        return f"The best is predicted to stop paying at a batch of {about}{self.batch}."


def stops_paying(plan: Plan, temperature: float) -> Stops:
    """Where the best speed-up of all drafters falls to 1, at one temperature.

    Args:
        plan: that has cells.
        temperature: one that was asked for.
    """
    batches = sorted({cell.batch for cell in plan.cells if cell.temperature == temperature})
    best = [max(cell.speedup.mid for cell in plan.at(temperature, batch)) for batch in batches]
    asked = tuple(batches)
    if not batches or best[0] <= 1:
        return Stops(batches[0] if batches else None, asked or (0,))
    for (small, high), (large, low) in pairwise(zip(batches, best, strict=True)):
        if low <= 1:
            share = (high - 1) / (high - low)
            return Stops(min(large, int(small + share * (large - small)) + 1), asked)
    return Stops(None, asked)


def strategies(cells: Iterable[Cell]) -> list[str]:
    """The drafters, in the order in which they were asked for."""
    return list(dict.fromkeys(cell.drafter for cell in cells))


def lengths(cells: Iterable[Cell]) -> list[K]:
    """All k, numbers first."""
    found = {cell.k for cell in cells}
    return [*sorted(k for k in found if isinstance(k, int)), *(k for k in (AUTO, TREE) if k in found)]


def best_of(cells: Ordered[Cell], drafter: str) -> Cell | None:
    """The fastest of one drafter."""
    return max((c for c in cells if c.drafter == drafter), key=lambda cell: cell.speedup.mid, default=None)
