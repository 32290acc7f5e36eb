"""Paces: how many tokens to draft, from what was accepted in earlier rounds and what a round costs."""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary

from outrider.core import Sequence
from outrider.drafters.records import LOOK_UP, STAY, Costs, Forward, Outcome, Record, crowd, straight
from outrider.errors import InvalidOption
from outrider.rounds import Round

MAX_K = 64
"""Longest draft that may be asked for."""

ROW_COST = 0.05
"""Of one more row, in units of a forward of one, where nobody measured it."""


class FixedPace:
    """Always the same draft length.

    Args:
        k: in [0, 64]; 0 is plain decoding.

    Raises:
        InvalidOption: any other k.
    """

    def __init__(self, k: int) -> None:
        self.k = _checked("k", k, 0)

    def budgets(self, sequences: list[Sequence]) -> list[int]:
        """See `rounds.Pace`."""
        return [self.k] * len(sequences)

    def observe(self, rounds: list[Round]) -> None:
        """Nothing to learn."""


class AutoPace:
    """A draft length per sequence: the one of most expected tokens per cost, and 0 where plain decoding has more.

    - What was accepted so far tells, by `records.Record`, the chance of the next drafted tokens; what a round costs
      with so many rows for so many sequences is known beforehand. Both together give the best k.
    - From k = 0 a round now and then drafts one token, or what a drafter that ends its drafts itself has, as rarely as
      such a try is dear (`Record.is_overdue`), and never if not even a perfect draft would be worth its cost.
    - A round in which nothing was drafted, by the drafter's own choice, teaches nothing, and a probe waits for one
      that does.

    It looks at earlier rounds alone, so the law stays the target's. The state of a sequence is its own and is forgotten
    when it ends; of the others only their number counts, since it decides what a row costs, and not even that where a
    seed was given (`records.crowd`).

    Args:
        cap: the largest k, in [1, 64].
        prior: chances before anything is known, see `records.Habit`: `LOOK_UP` or `MODEL`, or as planned.
        level: cost of drafting one token further, in units of a plain round, by the number of sequences.
        forward: cost of the target's forward, from the number of sequences to a function of the nodes that each of
            them drafts, in the same units; None for `ROW_COST` each.
        ends_itself: whether the drafter ends its drafts for a sequence where more is not worth it; then the cap is its
            budget, or 0 if not even its usual drafts are worth their cost. None for never.

    Raises:
        InvalidOption: a value outside its range.
    """

    def __init__(
        self,
        cap: int = 16,
        prior: tuple[float, ...] = LOOK_UP,
        level: Callable[[int], float] | None = None,
        forward: Callable[[int], Forward] | None = None,
        ends_itself: Callable[[Sequence], bool] | None = None,
    ) -> None:
        self.cap, self.prior = _checked("cap", cap, 1), prior
        if not prior or not all(0 < chance < 1 for chance in prior):
            raise InvalidOption("prior", prior, "chances between 0 and 1")
        self._level, self._forward, self._ends_itself = level, forward, ends_itself
        self._records: WeakKeyDictionary[Sequence, Record] = WeakKeyDictionary()

    def budgets(self, sequences: list[Sequence]) -> list[int]:
        """See `rounds.Pace`."""
        return [self._budget(s, self._costs(s, len(sequences))) for s in sequences]

    def observe(self, rounds: list[Round]) -> None:
        """See `rounds.Pace`."""
        for round_ in rounds:
            if round_.finish_reason is not None:
                self._records.pop(round_.sequence, None)
            elif round_.num_drafted > 0:
                self._learn(self._record(round_.sequence), round_)
            else:
                record = self._record(round_.sequence)
                record.rounds_idle += 1
                record.learn(Outcome())

    def _record(self, sequence: Sequence) -> Record:
        if sequence not in self._records:
            self._records[sequence] = Record(self.prior)
        return self._records[sequence]

    def _costs(self, sequence: Sequence, num_sequences: int) -> Costs:
        together = crowd(sequence, num_sequences)
        forward = straight(ROW_COST) if self._forward is None else self._forward(together)
        return Costs(forward, 0.0 if self._level is None else self._level(together))

    def _budget(self, sequence: Sequence, costs: Costs) -> int:
        record = self._record(sequence)
        whole = self._ends_itself is not None and self._ends_itself(sequence)
        best = record.best(record.sizes(self.cap), costs, last=record.nodes)
        value, nodes = (record.usual(self.cap, costs), self.cap) if whole else best
        if value > STAY:
            record.nodes = nodes
            return nodes
        overdue = record.is_overdue(self.cap, costs, whole) and record.perfect(self.cap, costs) > 1
        return (self.cap if whole else 1) if overdue else 0

    def _learn(self, record: Record, round_: Round) -> None:
        record.rounds_idle = 0
        record.saw(round_.num_drafted, round_.depth)
        record.learn(Outcome(matched=round_.num_accepted, tried=round_.depth))


def _checked(name: str, value: int, smallest: int, largest: int = MAX_K) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not smallest <= value <= largest:
        raise InvalidOption(name, value, f"a whole number from {smallest} to {largest}")
    return value
