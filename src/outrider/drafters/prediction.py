"""Where an output stands in the text that its user expects it to resemble, such as a file before an edit.

It knows no model and no drafter.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence as Ordered

TRUST = 16
"""Tokens that the start of the prediction counts as matched before there is any output."""

CANDIDATES = 16
"""Places nearest to the last one that are compared on each side; more would cost time in text full of repeats."""

LONGEST_COMPARED = 64
"""Tokens that are compared at a place."""


class PredictionIndex:
    """Follows an output along its prediction.

    As long as the output goes on as the prediction does, the place moves along and the match grows. At the first other
    token there is no match, until the last `min_match` output tokens stand together somewhere in the prediction:
    where most tokens before them agree, and of several such places at the one nearest to where the match was lost,
    forwards first. At the prediction's end, where nothing is left to copy, it is as if the match were lost.

    Args:
        min_match: shortest match, at least 1.
    """

    def __init__(self, min_match: int) -> None:
        self.tokens: list[int] = []
        self._min_match = min_match
        self._start((), 0)

    def push(self, token: int) -> None:
        """Take the next token of the sequence; O(1), the work is done when `find` is called."""
        self.tokens.append(token)

    def find(self, prediction: tuple[int, ...], prompt_length: int) -> tuple[int, int]:
        """Match length and the place in the prediction that it leads to; (0, 0) without a match.

        Args:
            prediction: at least 1 token.
            prompt_length: how many of `tokens` are the prompt, at most all of them.
        """
        if (prediction, prompt_length) != (self._prediction, self._prompt_length):
            self._start(prediction, prompt_length)
        while self._seen < len(self.tokens):
            self._seen += 1
            self._follow()
        return (self._matched, self._place) if self._matched else (0, 0)

    def _start(self, prediction: tuple[int, ...], prompt_length: int) -> None:
        self._prediction, self._prompt_length = prediction, prompt_length
        self._seen, self._place, self._matched = prompt_length, 0, TRUST
        self._ends: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)  # of each run of min_match tokens
        for end in range(self._min_match, len(prediction)):
            self._ends[prediction[end - self._min_match : end]].append(end)

    def _follow(self) -> None:
        """One more output token, the one before `_seen`."""
        goes_on = self._matched > 0 and self._prediction[self._place] == self.tokens[self._seen - 1]
        if goes_on and self._place + 1 < len(self._prediction):
            self._place, self._matched = self._place + 1, self._matched + 1
            return
        found = [(self._agreeing(end), end >= self._place, -abs(end - self._place), end) for end in self._candidates()]
        self._matched, _, _, self._place = max(found, default=(0, False, 0, self._place))

    def _candidates(self) -> list[int]:
        """Places in the prediction after the last `min_match` output tokens, some on each side of the last place."""
        start = self._seen - self._min_match
        if start < self._prompt_length:
            return []
        ends = self._ends.get(tuple(self.tokens[start : self._seen]), [])
        middle = bisect_left(ends, self._place)
        return ends[max(middle - CANDIDATES, 0) : middle + CANDIDATES]

    def _agreeing(self, end: int) -> int:
        """How many tokens before this place are also the last of the output, `LONGEST_COMPARED` at most."""
        most = min(end, self._seen - self._prompt_length, LONGEST_COMPARED)
        return _common(self._prediction[end - most : end][::-1], self.tokens[self._seen - most : self._seen][::-1])


def _common(first: Ordered[int], second: Ordered[int]) -> int:
    """Length of the common beginning of two runs of equal length."""
    pairs = enumerate(zip(first, second, strict=True))
    return next((place for place, (one, other) in pairs if one != other), len(first))
