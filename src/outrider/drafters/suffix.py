"""The suffix-automaton drafter: finds the longest suffix of the text that occurs earlier, in O(1) per token.

Blumer et al. (1985) for the automaton; SAM-Decoding (Hu et al. 2024) for drafting with it. It knows no model.
"""

from __future__ import annotations

from outrider.core import Draft, Proposal, Sequence
from outrider.drafters.lookup import IndexPerSlot, copy_from
from outrider.errors import InvalidOption

REFRESHED_LINKS = 8
"""Suffix links along which a token renews "most recent": bounded, since a loop makes chains of n links."""


class SuffixAutomaton:
    """All substrings of a growing text, grouped in states by the set of places where they end.

    After a push, the state of the whole text is `_last`; its suffix link is the longest suffix that also ends at
    another place, which can only be an earlier one. So the match needs no search of its own.

    Args:
        refreshed_links: see `REFRESHED_LINKS`.
    """

    def __init__(self, refreshed_links: int = REFRESHED_LINKS) -> None:
        self.tokens: list[int] = []
        self._refreshed_links = refreshed_links
        self._last = 0
        # One entry per state; state 0 is the empty string.
        self._lengths = [0]  # of its longest string
        self._links = [-1]  # state of the longest suffix that ends at more places
        self._edges: list[dict[int, int]] = [{}]  # token -> state
        self._ends = [-1]  # a place where its strings end, the most recent one known

    def push(self, token: int) -> None:
        """Append a token; amortised O(1)."""
        self._refresh()
        state = self._add_state(len(self.tokens) + 1, {}, len(self.tokens))
        self.tokens.append(token)
        walker, self._last = self._last, state
        while walker != -1 and token not in self._edges[walker]:
            self._edges[walker][token] = state
            walker = self._links[walker]
        self._links[state] = 0 if walker == -1 else self._step(walker, token)

    @property
    def match_length(self) -> int:
        """Length of the longest suffix of the text that also occurs earlier (overlaps count); 0 if none does."""
        return self._lengths[self._links[self._last]] if self._last else 0

    @property
    def match_end(self) -> int:
        """Position just after an earlier occurrence of that suffix, normally the most recent; needs a match."""
        assert self.match_length > 0
        return self._ends[self._links[self._last]] + 1

    def _add_state(self, length: int, edges: dict[int, int], end: int) -> int:
        self._lengths.append(length)
        self._links.append(0)
        self._edges.append(edges)
        self._ends.append(end)
        return len(self._lengths) - 1

    def _step(self, state: int, token: int) -> int:
        """The state whose longest string is the one of `state` + token, split off from a larger one if need be."""
        target = self._edges[state][token]
        if self._lengths[target] == self._lengths[state] + 1:
            return target
        clone = self._add_state(self._lengths[state] + 1, dict(self._edges[target]), self._ends[target])
        self._links[clone], self._links[target] = self._links[target], clone
        while state != -1 and self._edges[state].get(token) == target:
            self._edges[state][token] = clone
            state = self._links[state]
        return clone

    def _refresh(self) -> None:
        """Suffixes that occurred before end here too; only now, with a token to follow, is that place worth copying."""
        state = self._links[self._last]
        for _ in range(self._refreshed_links):
            if state <= 0:
                break
            self._ends[state] = len(self.tokens) - 1
            state = self._links[state]


class SuffixDrafter:
    """Copies what followed the longest suffix of the text that occurred earlier; the longer it is, the more.

    A draft has at most `factor * match length + offset` tokens, and none if the match is shorter than `min_match`:
    in open text short matches are chance, and what follows them is mostly rejected.

    Args:
        min_match: shortest match to draft from, at least 1.
        factor: drafted tokens per matched token, > 0.
        offset: drafted tokens added to that, possibly negative.

    Raises:
        InvalidOption: a value outside its range.
    """

    name = "suffix"
    proposal: Proposal = "point_mass"

    def __init__(self, min_match: int = 2, factor: float = 1.0, offset: float = 0.0) -> None:
        if min_match < 1:
            raise InvalidOption("min_match", min_match, "1 or more")
        if not factor > 0:
            raise InvalidOption("factor", factor, "a number above 0")
        self.min_match, self.factor, self.offset = min_match, factor, offset
        self._automata = IndexPerSlot(SuffixAutomaton)

    def propose(self, sequences: list[Sequence], budgets: list[int]) -> list[Draft]:
        """See `core.Drafter`: chains."""
        return [self._propose(sequence, budget) for sequence, budget in zip(sequences, budgets, strict=True)]

    def _propose(self, sequence: Sequence, budget: int) -> Draft:
        if budget < 1:
            return Draft()
        automaton = self._automata.caught_up(sequence)
        if automaton.match_length < self.min_match:
            return Draft()
        wanted = int(self.factor * automaton.match_length + self.offset)
        return copy_from(automaton.match_end, min(budget, wanted), sequence)
