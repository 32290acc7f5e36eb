"""From runs to figures: totals, medians, speed-ups with intervals, and what the costs of this machine let expect.

A cell is one way on one kind of prompts, or on all kinds, at one temperature and batch. Speeds are total tokens over
total seconds of decoding; a speed-up is the quotient of two of them, over the groups of prompts that both ways did. Its
interval is where 95 % of its values lie when the groups of each kind are drawn anew, with replacement (the bootstrap):
it tells of prompts, and nothing of a machine that has other things to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from itertools import groupby
from statistics import median

import numpy as np

from outrider.benching.run import Run
from outrider.benching.ways import PLAIN, Rounds

ALL = "all"
"""Stands for all kinds together."""

DRAWS = 2000
COVERED = 0.95

Cost = Callable[[float], float]
"""From the rows of a forward to what it costs, in any unit."""

BatchCost = Callable[[float, int], float]
"""The same from the rows and the sequences that they are of."""


@dataclass(frozen=True)
class Interval:
    """A figure and where it lies.

    Args:
        mid: the figure.
        low: where its interval begins; None with a single group of prompts of each kind, which tells of no spread.
        high: where it ends.
    """

    mid: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Equality:
    """Whether the texts of runs are plain decoding's, token for token.

    Args:
        equal: runs, each of a batch of texts, all of which are equal.
        compared: runs that were compared.
        first_difference: the earliest place, counted from 1, where one differs; None if all are equal.
    """

    equal: int
    compared: int
    first_difference: int | None = None


@dataclass(frozen=True)
class Cell:
    """The figures of one cell; what a way does not tell, or what was not measured, is None.

    Args:
        way: its name.
        kind: of the prompts, or `ALL`.
        temperature: of all its runs.
        batch: likewise.
        groups: of prompts, each counted once.
        runs: of these groups.
        tokens: that were made.
        tokens_per_second: of decoding, the prompts excluded: total tokens over total seconds.
        median_tokens_per_second: the median over the runs.
        whole_tokens_per_second: the prompts included: total tokens over total seconds.
        first_token_seconds: the median over the runs.
        acceptance_length: tokens per round, the target's next token included.
        acceptance_rate: accepted / drafted nodes; None if nothing was drafted.
        rows_per_round: rows that a round takes of a forward, the pending token included.
        drafting: share of the seconds of decoding that was spent on drafts.
        broken: proposals that were thrown away.
        reason: why one of them was, or None.
        speedup: against plain decoding.
        speedup_of_medians: the quotient of the median speeds.
        predicted: the speed-up that `predicted_seconds` gives.
        planned: the speed-up that a plan foretold before the run.
        equality: with plain decoding's texts; None at temperatures above 0.
    """

    way: str
    kind: str
    temperature: float
    batch: int
    groups: int
    runs: int
    tokens: int
    tokens_per_second: float
    median_tokens_per_second: float
    whole_tokens_per_second: float
    first_token_seconds: float
    acceptance_length: float | None = None
    acceptance_rate: float | None = None
    rows_per_round: float | None = None
    drafting: float | None = None
    broken: int = 0
    reason: str | None = None
    speedup: Interval | None = None
    speedup_of_medians: float | None = None
    predicted: Interval | None = None
    planned: Interval | None = None
    equality: Equality | None = None


@dataclass(frozen=True)
class Total:
    """All runs of one way on one group of prompts, added up.

    Args:
        kind: of the prompts.
        decoded: tokens.
        seconds: of decoding.
        rounds: what they did, if the way tells.
    """

    kind: str
    decoded: int
    seconds: float
    rounds: Rounds | None = None


def cells(runs: Iterable[Run], cost: BatchCost | None = None, seed: int = 0) -> list[Cell]:
    """All cells for which there are runs: by temperature, batch and way, each kind and then all of them.

    Args:
        runs: of all ways.
        cost: of the target's forwards, for `predicted`; None leaves it out.
        seed: of the draws of the intervals.
    """
    found = []
    kept = sorted(runs, key=lambda run: (run.job.temperature, run.job.batch))  # stable
    for _, group in groupby(kept, key=lambda run: (run.job.temperature, run.job.batch)):
        here = list(group)
        names, kinds = (list(dict.fromkeys(found)) for found in ((r.way for r in here), (r.job.kind for r in here)))
        for name in sorted(names, key=lambda name: name != PLAIN):
            for kind in [*kinds, ALL] if len(kinds) > 1 else kinds:
                own = [run for run in here if kind in (run.job.kind, ALL)]
                if any(run.way == name for run in own):
                    found.append(_cell(name, kind, own, cost, seed))
    return found


def _cell(name: str, kind: str, runs: list[Run], cost: BatchCost | None, seed: int) -> Cell:
    own, plain = ([run for run in runs if run.way == wanted] for wanted in (name, PLAIN))
    rounds = [run.measured.rounds for run in own if run.measured.rounds is not None]
    both = paired(totals(own), totals(plain)) if name != PLAIN else []
    job, decoded = own[0].job, sum(run.measured.decoded for run in own)
    made = sum(len(ids) for run in own for ids in run.measured.token_ids)
    return Cell(
        name,
        kind,
        job.temperature,
        job.batch,
        groups=len(totals(own)),
        runs=len(own),
        tokens=made,
        tokens_per_second=decoded / sum(run.measured.decoding_seconds for run in own),
        median_tokens_per_second=_median_speed(own),
        whole_tokens_per_second=made / sum(run.measured.seconds for run in own),
        first_token_seconds=median(run.measured.first_token_seconds for run in own),
        **(_of_rounds(sum(rounds, Rounds()), decoded) if rounds else {}),  # type: ignore[arg-type]
        speedup=quotient(both, seed),
        speedup_of_medians=_median_speed(own) / _median_speed(plain) if both else None,
        predicted=None if cost is None or not rounds else quotient(expected(both, _of_batch(cost, job.batch)), seed),
        equality=_equality(own),
    )


def _median_speed(runs: list[Run]) -> float:
    return median(run.measured.decoded / run.measured.decoding_seconds for run in runs)


def _of_rounds(rounds: Rounds, tokens: int) -> dict[str, float | str | None]:
    return {
        "acceptance_length": tokens / rounds.rounds,
        "acceptance_rate": rounds.accepted / rounds.drafted if rounds.drafted else None,
        "rows_per_round": 1 + rounds.drafted / rounds.rounds,
        "drafting": rounds.seconds.draft / rounds.seconds.total,
        "broken": rounds.broken,
        "reason": rounds.reason,
    }


def _equality(runs: list[Run]) -> Equality | None:
    compared = [run for run in runs if run.compared]
    places = [run.first_difference for run in compared if run.first_difference is not None]
    return Equality(len(compared) - len(places), len(compared), min(places, default=None)) if compared else None


# ---------------------------------------------------------------- speed-ups


def totals(runs: Iterable[Run]) -> dict[tuple[str, tuple[int, ...]], Total]:
    """The runs of one way by their group of prompts, repeats added up."""
    found: dict[tuple[str, tuple[int, ...]], Total] = {}
    for run in runs:
        key, m = (run.job.kind, run.job.places), run.measured
        so_far = found.get(key, Total(run.job.kind, 0, 0.0, None if m.rounds is None else Rounds()))
        rounds = None if so_far.rounds is None or m.rounds is None else so_far.rounds + m.rounds
        found[key] = Total(so_far.kind, so_far.decoded + m.decoded, so_far.seconds + m.decoding_seconds, rounds)
    return found


Pair = tuple[Total, Total]
"""A way's total and plain decoding's of the same group of prompts."""


def paired(
    own: dict[tuple[str, tuple[int, ...]], Total], plain: dict[tuple[str, tuple[int, ...]], Total]
) -> list[Pair]:
    """The groups that both did."""
    return [(total, plain[key]) for key, total in own.items() if key in plain]


def quotient(pairs: Ordered[Pair], seed: int = 0) -> Interval | None:
    """Speed of the ways over speed of plain decoding, with its interval; None without pairs.

    Args:
        pairs: groups of prompts, of one kind or of several.
        seed: of the draws.
    """
    if not pairs:
        return None
    sums = np.array([(own.decoded, own.seconds, plain.decoded, plain.seconds) for own, plain in pairs], float)

    def of(drawn: np.ndarray) -> np.ndarray:
        """[...] from the sums [..., 4]."""
        speeds: np.ndarray = drawn[..., ::2] / drawn[..., 1::2]
        found: np.ndarray = speeds[..., 0] / speeds[..., 1]
        return found

    mid = float(of(sums.sum(0)))
    kinds = [own.kind for own, _ in pairs]
    if all(kinds.count(kind) == 1 for kind in kinds):
        return Interval(mid)
    rng = np.random.default_rng(seed)
    drawn = np.zeros((DRAWS, 4))
    for kind in dict.fromkeys(kinds):
        members = sums[[place for place, own in enumerate(kinds) if own == kind]]
        drawn += members[rng.integers(len(members), size=(DRAWS, len(members)))].sum(1)
    low, high = np.quantile(of(drawn), [(1 - COVERED) / 2, (1 + COVERED) / 2])
    return Interval(mid, float(low), float(high))


# ---------------------------------------------------------------- what was to be expected


def expected(pairs: Ordered[Pair], cost: Cost) -> list[Pair]:
    """The same pairs with the seconds that the ways' rounds should have taken."""
    plain = sum((each.rounds for _, each in pairs if each.rounds is not None), Rounds())
    return [
        (Total(own.kind, own.decoded, predicted_seconds(own.rounds, plain, cost), own.rounds), each)
        for own, each in pairs
        if own.rounds is not None and plain.steps > 0
    ]


def predicted_seconds(rounds: Rounds, plain: Rounds, cost: Cost) -> float:
    """What rounds should take, from plain decoding's and the cost of rows: the forwards of the target are not measured.

    With it a speed-up is that of `planning.speedup.round_speedup`, for rounds of different sizes: forwards by their
    rows, drafts as measured, verification by the row, and everything else by the step, as in plain decoding.

    Args:
        rounds: with drafts.
        plain: without, at the same batch.
        cost: of a forward of the target by its rows, in any unit.
    """
    unit = plain.seconds.target / _units(plain, cost)
    verifying = plain.seconds.verify / plain.rounds * (rounds.rounds + rounds.drafted)
    other = plain.seconds.other / plain.steps * rounds.steps
    return unit * _units(rounds, cost) + rounds.seconds.draft + verifying + other


def _of_batch(cost: BatchCost, batch: int) -> Cost:
    """Where fewer rows are left than there were sequences, some of them have ended."""
    return lambda rows: cost(rows, min(batch, int(rows)))


def _units(rounds: Rounds, cost: Cost) -> float:
    return sum(count * cost(rows) for rows, count in rounds.rows.items())
