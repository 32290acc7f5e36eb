"""Paces: how many tokens to draft, from what was accepted in earlier rounds and what a round costs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from weakref import WeakKeyDictionary

from outrider.core import Sequence
from outrider.drafters.records import LOOK_UP, Outcome, Record
from outrider.drafters.sharing import Costs, Level, Offer, Verify, companies, due, free, repays, shared, straight
from outrider.errors import InvalidOption
from outrider.rounds import Round

MAX_K = 64
"""Longest draft that may be asked for."""

ROW_COST = 0.05
"""Of one more row of a sequence, in units of a plain round, where nobody measured it."""


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
    """Draft lengths of most expected tokens per cost of all sequences together, and 0 where plain decoding has more.

    - What was accepted so far tells, by `records.Record`, the chance of the next drafted tokens; what a round costs
      with so many rows for so many sequences is known beforehand. Both give the best lengths (`sharing.shared`).
    - From k = 0 a round now and then drafts one token, or what a drafter that ends its drafts itself has, as rarely as
      such a try is dear (`records.Record.wait`), and never if not even a perfect draft would be worth its cost.
    - A round in which nothing was drafted, by the drafter's own choice, teaches nothing, and a probe waits for one
      that does.

    It looks at earlier rounds alone, so the law stays the target's. The state of a sequence is its own and is forgotten
    when it ends; of the others only what they draft counts, since they share the forward, and not even that where a
    seed was given (`sharing.companies`).

    Args:
        cap: the largest k, in [1, 64].
        prior: chances before anything is known, see `records.Habit`: `LOOK_UP` or `MODEL`, or as planned.
        level: see `sharing.Level`.
        verify: see `sharing.Verify`; None for `ROW_COST` each.
        ends_itself: whether the drafter ends its drafts for a sequence where more is not worth it; then the cap is its
            budget, or 0 if not even its usual drafts are worth their cost. None for never.
        arrears: tokens that the drafter has to take in before it can draft for a sequence, which makes a try dearer.

    Raises:
        InvalidOption: a value outside its range.
    """

    def __init__(
        self,
        cap: int = 16,
        prior: tuple[float, ...] = LOOK_UP,
        level: Level = free,
        verify: Verify | None = None,
        ends_itself: Callable[[Sequence], bool] | None = None,
        arrears: Callable[[Sequence], int] = lambda sequence: 0,
    ) -> None:
        self.cap, self.prior = _checked("cap", cap, 1), prior
        if not prior or not all(0 < chance < 1 for chance in prior):
            raise InvalidOption("prior", prior, "chances between 0 and 1")
        self._level, self._verify, self._ends_itself = level, verify or straight(ROW_COST), ends_itself
        self._arrears, self._costs = arrears, cache(partial(Costs, self._verify, self._level))
        self._records: WeakKeyDictionary[Sequence, Record] = WeakKeyDictionary()

    def budgets(self, sequences: list[Sequence]) -> list[int]:
        """See `rounds.Pace`."""
        found = [0] * len(sequences)
        for places in companies(sequences):
            for place, budget in zip(places, self._together([sequences[i] for i in places]), strict=True):
                found[place] = budget
        return found

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

    def _together(self, sequences: list[Sequence]) -> list[int]:
        """Of sequences whose drafts share a forward."""
        costs, records = self._costs(len(sequences)), [self._record(s) for s in sequences]
        whole = [self._ends_itself is not None and self._ends_itself(s) for s in sequences]
        arrears = [self._arrears(s) for s in sequences]
        waits = [
            record.wait(self.cap, costs, own, rows) for record, own, rows in zip(records, whole, arrears, strict=True)
        ]
        tries = due([record.rounds_idle for record in records], waits)
        offers = [
            record.offer(self.cap, whole=own, tried=tried)
            for record, own, tried in zip(records, whole, tries, strict=True)
        ]
        offers = [
            offer if offer.least or repays(offer, costs, rows) else Offer()
            for offer, rows in zip(offers, arrears, strict=True)
        ]
        nodes = shared(offers, [costs])
        for record, own in zip(records, nodes, strict=True):
            record.nodes = own or record.nodes
        return [self.cap if most and own else own for own, most in zip(nodes, whole, strict=True)]

    def _learn(self, record: Record, round_: Round) -> None:
        record.rounds_idle = 0
        record.saw(round_.num_drafted, round_.depth)
        record.learn(Outcome(matched=round_.num_accepted, tried=round_.depth))


def _checked(name: str, value: int, smallest: int, largest: int = MAX_K) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not smallest <= value <= largest:
        raise InvalidOption(name, value, f"a whole number from {smallest} to {largest}")
    return value
