"""What steps take on this machine: the target's forward, drafting and everything else, timed in the engine itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from itertools import groupby
from statistics import median

import numpy as np

from outrider.core import Draft, Drafter, Model, Proposal, Sequence
from outrider.engine import Engine
from outrider.options import Sampling
from outrider.planning.plan import Context, DraftCost, OtherCost, TargetCost
from outrider.rounds import Round
from outrider.rules import choose_rule

WIDTHS = (1, 2, 4, 7)
"""Rows of each sequence; some kernels take a step every four or eight rows of the whole batch."""

ALONE = (1, 2, 3, 4, 5, 6, 7, 8, 9, 17)
"""The same of a sequence that is decoded alone, where every row tells."""

FEW = (1, 4)
"""The same where the forwards are known and only the rest of a step is timed."""

REPEATS = 5
"""Timed steps of each kind, after one that warms up."""

LONGER = 1024
"""Tokens in the cache where a longer context is timed."""

LONGER_WIDTHS = (1, 5)

PROBE_PROMPT, PROBE_LENGTH = 16, 128
"""Tokens of the prompt and of each sequence where a level of a draft is timed."""


class Given:
    """A pace that asks for what it is told to.

    Attributes:
        wanted: drafted tokens by place in the batch.
    """

    wanted: tuple[int, ...] = ()

    def budgets(self, sequences: list[Sequence]) -> list[int]:
        """See `rounds.Pace`."""
        return list(self.wanted[: len(sequences)])

    def observe(self, rounds: list[Round]) -> None:
        """Nothing to learn."""


class Repeats:
    """Drafts the last token again and again, as many times as it is asked for: rows without guesses."""

    name = "repeats"
    proposal: Proposal = "point_mass"

    def propose(self, sequences: list[Sequence], budgets: list[int]) -> list[Draft]:
        """See `core.Drafter`."""
        return [Draft.chain([s.tokens[-1]] * k) for s, k in zip(sequences, budgets, strict=True)]


@dataclass(frozen=True)
class Timed:
    """One step: drafted tokens asked for by each sequence, rows of the batch, the longest draft, seconds by part."""

    wanted: tuple[int, ...]
    rows: int
    depth: int
    draft: float
    target: float
    other: float


@dataclass(frozen=True)
class Batch:
    """What is timed: so many sequences with the same prompt."""

    prompt: tuple[int, ...]
    temperature: float
    size: int


def steps(engine: Engine, pace: Given, batch: Batch, wishes: Iterable[tuple[int, ...]]) -> Iterator[Timed]:
    """Timed steps, `REPEATS` for each wish, and begun anew where a sequence has filled its context.

    Args:
        engine: with nothing else in it, whose pace is the given one.
        pace: it.
        batch: at most as large as the engine; half its context holds the prompt.
        wishes: drafted tokens by place in the batch.
    """
    sequences = _begun(engine, pace, batch)
    try:
        for wanted in wishes:
            for repeat in range(REPEATS + 1):
                if max(len(s.tokens) for s in sequences) + max(wanted) + 1 >= engine.context_length:
                    _end(engine, sequences)
                    sequences = _begun(engine, pace, batch)
                pace.wanted = wanted
                rounds = engine.step()
                if repeat > 0:
                    yield _timed(wanted, rounds)
    finally:
        _end(engine, sequences)


def _begun(engine: Engine, pace: Given, batch: Batch) -> list[Sequence]:
    """Sequences that have made their first token."""
    sampling, pace.wanted = Sampling(temperature=batch.temperature), (0,) * batch.size
    sequences = [engine.add(batch.prompt, sampling=sampling, seed=seed) for seed in range(batch.size)]
    while len(engine.step()) < batch.size:
        pass
    return sequences


def _end(engine: Engine, sequences: list[Sequence]) -> None:
    for sequence in sequences:
        engine.cancel(sequence)


def _timed(wanted: tuple[int, ...], rounds: list[Round]) -> Timed:
    rows, seconds = sum(1 + r.num_drafted for r in rounds), rounds[0].seconds
    depth = max(r.depth for r in rounds)
    return Timed(wanted, rows, depth, seconds.draft, seconds.target, seconds.verify + seconds.other)


# ---------------------------------------------------------------- the target


def wishes(batch: int) -> list[tuple[int, ...]]:
    """Drafts of every width for all sequences of a batch, and one in which only half of them draft."""
    even = _even(batch, ALONE if batch == 1 else WIDTHS)
    if batch == 1:
        return even
    few = batch // 2
    mixed = [batch // few + (place < batch % few) for place in range(few)]  # as many rows as if each drafted one
    return [*even, (*mixed, *[0] * (batch - few))]


def few_wishes(batch: int) -> list[tuple[int, ...]]:
    """Those that are enough where the forwards are known."""
    return _even(batch, FEW)


def _even(batch: int, widths: Iterable[int]) -> list[tuple[int, ...]]:
    return [(width - 1,) * batch for width in widths]


def target_cost(timed: Ordered[Timed], batch: int, context: int) -> TargetCost:
    """The curve of a batch.

    Args:
        timed: steps of `wishes(batch)`, at all temperatures: the forward does not know them.
        batch: sequences.
        context: tokens that each had in its cache.
    """
    medians = {wanted: median(each.target for each in steps) for wanted, steps in _by_wish(timed)}
    even = {batch * (1 + wanted[0]): seconds for wanted, seconds in medians.items() if len(set(wanted)) == 1}
    spared = 0.0
    mixed = next((wanted for wanted in medians if len(set(wanted)) > 1), None)
    if mixed is not None:
        spared = max(0.0, (even[2 * batch] - medians[mixed]) / mixed.count(0))
    rows = sorted(even)
    even[batch] += spared * batch  # as if these sequences, too, had more than one row
    return TargetCost(batch, tuple(rows), isotonic([even[each] for each in rows]), spared, context, noise(timed))


def other_cost(timed: Ordered[Timed], temperature: float, batch: int) -> OtherCost:
    """Verification and bookkeeping by rows, at one temperature.

    Args:
        timed: steps of `wishes(batch)`, or of `few_wishes(batch)`, at this temperature.
        temperature: of the texts.
        batch: sequences.
    """
    by_rows = _medians(timed, lambda each: each.rows, lambda each: each.other)
    return OtherCost(temperature, batch, tuple(by_rows), isotonic(list(by_rows.values())))


def isotonic(values: Ordered[float]) -> tuple[float, ...]:
    """The nearest values, in squares, that never fall: neighbours that do are pooled (Ayer et al., 1955)."""
    pools = list[tuple[float, int]]()  # mean and size
    for value in values:
        pools.append((value, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (one, m), (two, n) = pools[-2:]
            pools[-2:] = [((m * one + n * two) / (m + n), m + n)]
    return tuple(mean for mean, size in pools for _ in range(size))


def noise(timed: Ordered[Timed]) -> float:
    """Relative standard error of a median of `REPEATS` steps, from how steps of the same kind differ."""
    spreads = []
    for _, same in _by_wish(timed):
        totals = [each.draft + each.target + each.other for each in same]
        middle = median(totals)
        spreads.append(median(abs(total - middle) for total in totals) / middle)
    return float(1.4826 * 1.2533 * median(spreads) / REPEATS**0.5)  # normal: a deviation, and a median's error


def longer_context(engine: Engine, pace: Given, prompt: tuple[int, ...], room: int) -> Context | None:
    """Forwards of one sequence with few and with many tokens in its cache; None if there is no room for many.

    Args:
        engine: see `steps`.
        pace: see `steps`.
        prompt: repeated to make a long one.
        room: tokens that fit in the engine.
    """
    few, many = len(prompt), min(LONGER, room // 2)
    if many < 2 * few:
        return None
    found = []
    for length in (few, many):
        batch = Batch((prompt * (length // few + 1))[:length], 0.0, 1)
        timed = list(steps(engine, pace, batch, [(width - 1,) for width in LONGER_WIDTHS]))
        found.append(_medians(timed, lambda each: each.rows, lambda each: each.target))
    return Context((few, many), LONGER_WIDTHS, tuple((found[0][rows], found[1][rows]) for rows in LONGER_WIDTHS))


# ---------------------------------------------------------------- drafting


def draft_cost(
    timed: Ordered[Timed], drafter: str, target: TargetCost, other: OtherCost, *, own_forward: bool = False
) -> DraftCost:
    """What a drafter adds to the steps of a batch.

    The machine may be slower now than when the target was timed: seconds are divided by what the target's forwards take
    now over what they took then.

    Args:
        timed: steps in which all sequences asked for as much, for several such lengths, 0 among them.
        drafter: whose steps they are.
        target: what forwards take in this batch.
        other: what steps take beside that without the drafter, in this batch and at this temperature.
        own_forward: whether the target's forward is another one with this drafter, whose layers it may use.
    """
    extra, slower = dict[int, float](), 1.0
    if not own_forward:
        slower = median(each.target / forward_seconds(target, each) for each in timed)
    for _, same in _by_wish(timed):
        rows = round(median(each.rows for each in same))
        extra[rows] = median(each.other for each in same) / slower - interpolated(other.rows, other.seconds, rows)
        if own_forward:
            extra[rows] += median(each.target - forward_seconds(target, each) for each in same)
    depths, seconds = _by_depth(timed)
    drafting = depths, tuple(each / slower for each in seconds)
    beyond = tuple(sorted(extra)), tuple(extra[rows] for rows in sorted(extra))
    return DraftCost(drafter, other.temperature, target.batch, *drafting, *beyond)


def level_units(model: Model, drafter: Drafter, sequences: int, nodes: int) -> float:
    """What drafting one token further costs, in units of a plain round of so many sequences.

    Args:
        model: what the drafter drafts for.
        drafter: with room for `PROBE_LENGTH` tokens of each sequence.
        sequences: decoded together.
        nodes: of each draft.
    """
    given, length = Given(), min(model.context_length, PROBE_LENGTH)
    rule = choose_rule("auto", drafter.proposal)
    engine = Engine(model, drafter, rule, given, slots=sequences, context_length=length)
    prompt = tuple(token % model.vocab_size for token in range(min(PROBE_PROMPT, length // 2)))
    timed = list(steps(engine, given, Batch(prompt, 0.0, sequences), [(0,) * sequences, (nodes,) * sequences]))
    plain = min(each.draft + each.target + each.other for each in timed if not any(each.wanted))
    return min(each.draft / max(each.depth, 1) for each in timed if any(each.wanted)) / plain


def _by_depth(timed: Iterable[Timed]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Depths and seconds of drafting: without a draft, and two points of the straight line through those with one."""
    timed = list(timed)
    at_work = _medians(timed, lambda each: each.depth, lambda each: each.draft)
    idle = at_work.pop(0)
    if not at_work:
        return (0,), (idle,)
    deepest = max(2, *at_work)
    if len(at_work) == 1:
        at_work[0] = idle
    weights = [sum(each.depth == depth for each in timed) ** 0.5 for depth in at_work]
    slope, start = np.polyfit(list(at_work), list(at_work.values()), 1, w=weights)
    first, last = isotonic([float(start + slope), float(start + slope * deepest)])
    return (0, 1, deepest), (idle, first, last)


def forward_seconds(target: TargetCost, timed: Timed) -> float:
    """Of the target's forward of a step in which all sequences draft, or none."""
    spared = 0.0 if timed.depth > 0 else target.spared * target.batch
    return interpolated(target.rows, target.seconds, timed.rows) - spared


def interpolated(places: Ordered[float], values: Ordered[float], place: float) -> float:
    """On straight lines between and beyond the places; one value stands everywhere."""
    return float(lines(places, values, np.asarray(place, dtype=float)))


def lines(places: Ordered[float], values: Ordered[float], at: np.ndarray) -> np.ndarray:
    """The same at many places, [...] -> [...]."""
    if len(places) == 1:
        return np.full(at.shape, float(values[0]))
    x, y = np.asarray(places, dtype=float), np.asarray(values, dtype=float)
    right = np.clip(np.searchsorted(x, at, side="right"), 1, len(x) - 1)
    slope = (y[right] - y[right - 1]) / (x[right] - x[right - 1])
    found: np.ndarray = y[right - 1] + slope * (at - x[right - 1])
    return found


def _by_wish(timed: Iterable[Timed]) -> Iterator[tuple[tuple[int, ...], list[Timed]]]:
    kept = sorted(timed, key=lambda each: each.wanted)
    return ((wanted, list(same)) for wanted, same in groupby(kept, key=lambda each: each.wanted))


def _medians(timed: Iterable[Timed], key: Callable[[Timed], int], value: Callable[[Timed], float]) -> dict[int, float]:
    kept = sorted(timed, key=key)
    return {place: median(value(each) for each in same) for place, same in groupby(kept, key=key)}
