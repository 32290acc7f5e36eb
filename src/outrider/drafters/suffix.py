"""The suffix-automaton drafter: finds the longest suffix of the text that occurs earlier, in O(1) per token.

Blumer et al. (1985) for the automaton; SAM-Decoding (Hu et al. 2024) for drafting with it; SuffixDecoding (Oliaro et
al. 2024) for trees by frequency. Beside the text it looks in a prediction and in a corpus. It knows no model.
"""

from __future__ import annotations

from math import isfinite
from typing import NamedTuple

from outrider.core import Draft, Proposal, Sequence
from outrider.drafters.corpus import NOWHERE, Corpus
from outrider.drafters.corpus_build import Array
from outrider.drafters.growth import Children, check_row_cost
from outrider.drafters.lookup import IndexPerSlot, Limits, branch_out, copied, cut
from outrider.drafters.prediction import PredictionIndex
from outrider.errors import InvalidOption

REFRESHED_LINKS = 8
"""Suffix links along which a token renews "most recent" and counts: bounded, since a loop makes chains of n links."""


class Match(NamedTuple):
    """A string of a text that something follows somewhere: its state in the automaton, and its length."""

    state: int
    length: int


class SuffixAutomaton:
    """All substrings of a growing text, grouped in states by the set of places where they end.

    After a push, the state of the whole text is `_last`; its suffix link is the longest suffix that also ends at
    another place, which can only be an earlier one. So the match needs no search of its own.

    How often a state's strings occur is counted along `refreshed_links` suffix links per token: exact for texts whose
    chains of links are no longer, as nearly all are; in loops the shortest suffixes are counted too rarely.

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
        self._counts = [0]  # of the places where its strings end

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
        self._count()

    @property
    def match_length(self) -> int:
        """Length of the longest suffix of the text that also occurs earlier (overlaps count); 0 if none does."""
        return self._lengths[self._links[self._last]] if self._last else 0

    @property
    def match_end(self) -> int:
        """Position just after an earlier occurrence of that suffix, normally the most recent; needs a match."""
        assert self.match_length > 0
        return self._ends[self._links[self._last]] + 1

    @property
    def match(self) -> Match:
        """That suffix, where `step` and `continuations` start."""
        return Match(self._links[self._last] if self._last else 0, self.match_length)

    def step(self, match: Match, token: int) -> Match:
        """The longest suffix of a string and one more token that occurs with something after it; empty if none does."""
        state, length = match.state, match.length
        while state > 0 and token not in self._edges[state]:
            state = self._links[state]
            length = self._lengths[state]
        state, length = self._edges[state].get(token, 0), length + 1
        while state > 0 and not self._edges[state]:
            state = self._links[state]
            length = self._lengths[state]
        return Match(state, length if state else 0)

    def continuations(self, match: Match) -> list[tuple[int, float]]:
        """What followed it, (token, share of all times), the most frequent first, then the most recent; [] if empty."""
        edges = self._edges[match.state] if match.length else {}
        total = sum(self._counts[target] for target in edges.values())
        ranked = sorted(edges.items(), key=lambda edge: (self._counts[edge[1]], self._ends[edge[1]]), reverse=True)
        return [(token, self._counts[target] / total) for token, target in ranked]

    def _add_state(self, length: int, edges: dict[int, int], end: int, count: int = 0) -> int:
        self._lengths.append(length)
        self._links.append(0)
        self._edges.append(edges)
        self._ends.append(end)
        self._counts.append(count)
        return len(self._lengths) - 1

    def _step(self, state: int, token: int) -> int:
        """The state whose longest string is the one of `state` + token, split off from a larger one if need be."""
        target = self._edges[state][token]
        if self._lengths[target] == self._lengths[state] + 1:
            return target
        edges, end, count = dict(self._edges[target]), self._ends[target], self._counts[target]
        clone = self._add_state(self._lengths[state] + 1, edges, end, count)
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

    def _count(self) -> None:
        """One more place where the whole text and its suffixes end."""
        state = self._last
        for _ in range(self._refreshed_links + 1):
            if state <= 0:
                break
            self._counts[state] += 1
            state = self._links[state]


MAX_BRANCHES = 64
"""No budget is larger."""


class SuffixDrafter:
    """Copies what followed the longest suffix of the text that occurred earlier; the longer it is, the more.

    Three sources compete by the length of their match: the sequence's prediction, which wins ties, its own text, and
    the corpus, which must match longer than both. A draft reaches `factor * match length + offset` tokens deep at most,
    and there is none if the match is shorter than `min_match`: in open text short matches are chance, and what follows
    them is mostly rejected.

    With `branches` over 1 a draft is a tree. The copy that `branches=1` would draft is its first path, as far as the
    budget goes; to it come the most frequent other continuations, a node's estimated probability being the share of
    times that it followed. The likeliest nodes are taken first.

    Args:
        min_match: shortest match to draft from, at least 1.
        factor: drafted tokens per matched token, > 0.
        offset: drafted tokens added to that, possibly negative.
        branches: most continuations per node, 1 to 64.
        min_probability: nodes that the target's text reaches less probably, by the estimate, are left out, except
            those of the copy; in [0, 1].
        row_cost: of one more row in the target's forward, in units of a forward of one row, for trees: nodes that are
            not worth it are left out, also those of the copy; 0 fills the budget.
        corpus: more text to look in; shared by all sequences.

    Raises:
        InvalidOption: a value outside its range.
    """

    name = "suffix"
    proposal: Proposal = "point_mass"

    def __init__(
        self,
        min_match: int = 2,
        factor: float = 1.0,
        offset: float = 0.0,
        *,
        branches: int = 1,
        min_probability: float = 0.1,
        row_cost: float = 0.0,
        corpus: Corpus | None = None,
    ) -> None:
        if min_match < 1:
            raise InvalidOption("min_match", min_match, "1 or more")
        if not (factor > 0 and isfinite(factor)):
            raise InvalidOption("factor", factor, "a number above 0")
        if not isfinite(offset):
            raise InvalidOption("offset", offset, "a number")
        if not 1 <= branches <= MAX_BRANCHES:
            raise InvalidOption("branches", branches, f"1 (a chain) to {MAX_BRANCHES}")
        if not 0 <= min_probability <= 1:
            raise InvalidOption("min_probability", min_probability, "0 to 1")
        check_row_cost(row_cost)
        self.min_match, self.factor, self.offset = min_match, factor, offset
        self.branches, self.min_probability, self.row_cost = branches, min_probability, row_cost
        self.corpus = corpus
        self._automata = IndexPerSlot(SuffixAutomaton)
        self._predictions = IndexPerSlot(lambda: PredictionIndex(min_match))

    def propose(self, sequences: list[Sequence], budgets: list[int]) -> list[Draft]:
        """See `core.Drafter`: chains, or trees if `branches` is over 1."""
        return [self._propose(sequence, budget) for sequence, budget in zip(sequences, budgets, strict=True)]

    def _propose(self, sequence: Sequence, budget: int) -> Draft:
        if budget < 1:
            return Draft()
        automaton = self._automata.caught_up(sequence)
        predicted, place = self._find_in_prediction(sequence)
        own = max(automaton.match_length, predicted)
        elsewhere, places = self._find_in_corpus(sequence, own)
        match_length = max(own, elsewhere)
        depth = min(budget, int(self.factor * match_length + self.offset))
        if match_length < self.min_match or depth < 1:
            return Draft()
        limits = Limits(budget, depth, self.branches, self.min_probability, self.row_cost)
        if self.corpus is not None and elsewhere > own:
            return branch_out([], self.corpus.continuations(places, depth), limits, sequence)
        if predicted == own:
            copy = cut(sequence.prediction[place : place + depth], sequence)
        else:
            copy = copied(automaton.match_end, depth, sequence)
        if self.branches == 1:
            return Draft.chain(copy)
        return branch_out(copy, _followed(automaton, own), limits, sequence)

    def _find_in_prediction(self, sequence: Sequence) -> tuple[int, int]:
        """Match length and the place in the prediction where it goes on; (0, 0) for none."""
        if not sequence.prediction:
            return 0, 0
        return self._predictions.caught_up(sequence).find(sequence.prediction, sequence.prompt_length)

    def _find_in_corpus(self, sequence: Sequence, beyond: int) -> tuple[int, Array]:
        """Match length and places after it; no match where the corpus cannot tell one over `beyond`."""
        if self.corpus is None or beyond >= self.corpus.depth:
            return 0, NOWHERE
        return self.corpus.find(sequence.tokens)


def _followed(automaton: SuffixAutomaton, match_length: int) -> Children:
    """What followed the match in the text and each drafted path after it, by how often.

    Where less of the text agrees than of what the copy is from, as behind a longer match in the prediction, the shares
    are worth so much less: they are scaled by the ratio of the two lengths.
    """
    matches: dict[tuple[int, ...], Match] = {(): automaton.match}

    def children(path: tuple[int, ...]) -> list[tuple[int, float]]:
        if path:
            matches[path] = automaton.step(matches[path[:-1]], path[-1])
        weight = matches[path].length / (match_length + len(path))
        return [(token, weight * share) for token, share in automaton.continuations(matches[path])]

    return children
