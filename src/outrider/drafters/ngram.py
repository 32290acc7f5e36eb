"""Prompt lookup: find the last few tokens earlier in the text and copy what followed them. It knows no model.

Saxena, "Prompt Lookup Decoding" (2023).
"""

from __future__ import annotations

from outrider.core import Draft, Proposal, Sequence
from outrider.drafters.lookup import IndexPerSlot, copy_from
from outrider.errors import InvalidOption

MAX_NGRAM = 64
"""Every token costs this many look-ups and entries."""


class NgramIndex:
    """Where each n-gram of a growing text was last followed by a token; O(max_ngram) per token.

    Args:
        max_ngram: longest n-gram that is indexed.
        min_ngram: shortest.
    """

    def __init__(self, max_ngram: int, min_ngram: int) -> None:
        self.tokens: list[int] = []
        self._lengths = range(max_ngram, min_ngram - 1, -1)
        self._followers: dict[tuple[int, ...], int] = {}  # n-gram -> position of the token after it

    def push(self, token: int) -> None:
        """Take the next token: only now do the n-grams before it have a follower."""
        position = len(self.tokens)
        for length in self._lengths:
            if length <= position:
                self._followers[tuple(self.tokens[-length:])] = position
        self.tokens.append(token)

    def find(self) -> int | None:
        """Position after the most recent earlier occurrence of the longest suffix that has one, or None."""
        for length in self._lengths:
            if length <= len(self.tokens):
                follower = self._followers.get(tuple(self.tokens[-length:]))
                if follower is not None:
                    return follower
        return None


class NgramDrafter:
    """Copies what followed the most recent earlier occurrence of the longest matching suffix of the text.

    Args:
        max_ngram: longest suffix to look for, from `min_ngram` to 64.
        min_ngram: shortest suffix to look for, at least 1.

    Raises:
        InvalidOption: lengths that leave nothing to look for.
    """

    name = "ngram"
    proposal: Proposal = "point_mass"

    def __init__(self, max_ngram: int = 3, min_ngram: int = 1) -> None:
        if min_ngram < 1:
            raise InvalidOption("min_ngram", min_ngram, "1 or more")
        if not min_ngram <= max_ngram <= MAX_NGRAM:
            raise InvalidOption("max_ngram", max_ngram, f"min_ngram ({min_ngram}) to {MAX_NGRAM}")
        self._indexes = IndexPerSlot(lambda: NgramIndex(max_ngram, min_ngram))

    def propose(self, sequences: list[Sequence], budgets: list[int]) -> list[Draft]:
        """See `core.Drafter`: chains, each as long as its budget if anything matches and no stop id comes first."""
        return [self._propose(sequence, budget) for sequence, budget in zip(sequences, budgets, strict=True)]

    def _propose(self, sequence: Sequence, budget: int) -> Draft:
        if budget < 1:
            return Draft()
        start = self._indexes.caught_up(sequence).find()
        return Draft() if start is None else copy_from(start, budget, sequence)
