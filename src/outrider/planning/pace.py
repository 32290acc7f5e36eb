"""Paces: how many tokens to draft, from what was accepted in earlier rounds alone. They know no costs."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from outrider.core import Sequence
from outrider.errors import InvalidOption
from outrider.rounds import Round

MAX_K = 64
"""Longest draft that may be asked for."""


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


@dataclass
class _Habit:
    """What one sequence's drafts have been worth: `mean` is a moving average of accepted lengths."""

    k: int
    mean: float
    whole_in_a_row: int = 0
    rounds_without_draft: int = 0


class AutoPace:
    """A draft length per sequence, one more than what was accepted lately, and 0 where drafts keep failing.

    - The mean of accepted lengths forgets by `DECAY` per round. A draft of n tokens that was accepted whole would have
      gone on: it counts as n + the number of whole drafts in a row, at most 2n, and never lowers the mean.
    - k follows mean + 1, but moves only when it is off by more than a quarter, so that it does not flip.
    - A mean below `GIVE_UP` sets k = 0. From there every `PROBE_EVERY`-th round drafts one token; an accepted probe
      sets k = 1 with a mean of `RESUME`.
    - A round in which nothing was drafted, by the drafter's own choice, teaches nothing, and a probe waits for one
      that does.

    The state of a sequence is its own and is forgotten when it ends.

    Args:
        cap: the largest k, in [1, 64].
        start: k of a new sequence; None for 4 or the cap.

    Raises:
        InvalidOption: a cap or start outside its range.
    """

    DECAY = 0.85
    GIVE_UP = 0.15
    RESUME = 0.5
    PROBE_EVERY = 16

    def __init__(self, cap: int = 16, start: int | None = None) -> None:
        self.cap = _checked("cap", cap, 1)
        self.start = min(4, self.cap) if start is None else _checked("start", start, 1, self.cap)
        self._habits: WeakKeyDictionary[Sequence, _Habit] = WeakKeyDictionary()

    def budgets(self, sequences: list[Sequence]) -> list[int]:
        """See `rounds.Pace`."""
        return [self._budget(self._habit(sequence)) for sequence in sequences]

    def observe(self, rounds: list[Round]) -> None:
        """See `rounds.Pace`."""
        for round_ in rounds:
            if round_.finish_reason is not None:
                self._habits.pop(round_.sequence, None)
            elif round_.num_drafted > 0:
                self._learn(self._habit(round_.sequence), round_.depth, round_.num_accepted)
            else:
                self._habit(round_.sequence).rounds_without_draft += 1

    def _habit(self, sequence: Sequence) -> _Habit:
        return self._habits.setdefault(sequence, _Habit(self.start, self.start - 1.0))

    def _budget(self, habit: _Habit) -> int:
        return 1 if habit.k == 0 and habit.rounds_without_draft >= self.PROBE_EVERY - 1 else habit.k

    def _learn(self, habit: _Habit, num_drafted: int, num_accepted: int) -> None:
        habit.rounds_without_draft = 0
        if habit.k == 0:  # a probe
            if num_accepted > 0:
                habit.k, habit.mean = 1, self.RESUME
            return
        habit.mean = self.DECAY * habit.mean + (1 - self.DECAY) * self._worth(habit, num_drafted, num_accepted)
        if habit.mean < self.GIVE_UP:
            habit.k = 0
        elif abs(habit.mean + 1 - habit.k) > max(0.75, habit.k / 4):
            habit.k = min(self.cap, round(habit.mean + 1))

    def _worth(self, habit: _Habit, num_drafted: int, num_accepted: int) -> float:
        """What a draft tells of the accepted length that an endless draft would have had."""
        if num_accepted < num_drafted:
            habit.whole_in_a_row = 0
            return num_accepted
        habit.whole_in_a_row += 1
        return max(habit.mean, min(1.5 * self.cap, num_drafted + min(habit.whole_in_a_row, num_drafted)))


def _checked(name: str, value: int, smallest: int, largest: int = MAX_K) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not smallest <= value <= largest:
        raise InvalidOption(name, value, f"a whole number from {smallest} to {largest}")
    return value
