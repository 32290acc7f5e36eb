"""The lookahead drafter: the target guesses its own text by Jacobi iteration, beside the round's verification.

Lookahead decoding (Fu et al. 2024, 2402.02057). It needs no attention mask of its own, because its window is a draft
tree: the oldest level is a chain from the pending token, and the younger tokens of a column hang below its oldest one.
It knows no model, only logits.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered

import torch

import outrider.tree as tree
from outrider.core import Draft, Proposal, Sequence
from outrider.drafters.learned import StatePerRequest
from outrider.errors import InvalidOption
from outrider.options import whole
from outrider.rounds import Verified

MAX_NODES = 64
"""Largest window and candidates together, as many as any pace allows."""


class LookaheadDrafter:
    """Verifies n-grams from a pool, and fills the pool from a window of trajectories that every forward moves on.

    The window has `window` columns of `ngram` - 1 tokens. Column j stands j places behind the pending token; what the
    target would say after its last token becomes the column's next token. The finished n-gram goes to the pool, under
    its first token, and the column drops that token. The `candidates` most recent continuations of the pending token
    are drafted as chains; the window is drafted beside them, for its logits, but is accepted too where it is right.

    With fewer nodes than (window + candidates) * (ngram - 1), candidates come first and columns are left out.

    Beyond the paper: the pool also takes the n-grams of the text itself; columns start as phrases of the prompt; where
    several emitted tokens move the window, the columns that come in go on from their neighbour and the pool instead of
    from random tokens; stop and banned ids are never guessed, so that no column dies behind one.

    Args:
        window: W, columns, 1 to 32.
        ngram: N, tokens per n-gram with its first, 2 to 8.
        candidates: G, most n-grams to verify, and to keep per first token, 0 to 32.

    Raises:
        InvalidOption: a value outside its range, or (window + candidates) * (ngram - 1) over 64.
    """

    name = "lookahead"
    proposal: Proposal = "point_mass"

    def __init__(self, window: int = 5, ngram: int = 4, candidates: int = 5) -> None:
        ranges = (("window", window, 1, 32), ("ngram", ngram, 2, 8), ("candidates", candidates, 0, 32))
        for name, value, low, high in ranges:
            if not whole(value, low, high):
                raise InvalidOption(name, value, f"a whole number from {low} to {high}")
        nodes = (window + candidates) * (ngram - 1)
        if nodes > MAX_NODES:
            raise InvalidOption("(window + candidates) * (ngram - 1)", nodes, f"at most {MAX_NODES}", "Lower one.")
        self.window, self.ngram, self.candidates = window, ngram, candidates
        self._states = StatePerRequest(lambda s: Trajectories(s, self.window, self.ngram, self.candidates))

    def propose(self, sequences: list[Sequence], budgets: list[int]) -> list[Draft]:
        """See `core.Drafter`: trees."""
        return [self._propose(s, budget) for s, budget in zip(sequences, budgets, strict=True)]

    def observe(self, verified: list[Verified]) -> None:
        """See `rounds.Learner`: move each window on, and pool its n-grams."""
        for v in verified:
            self._states.of(v.sequence).learn(v)

    def _propose(self, sequence: Sequence, budget: int) -> Draft:
        state = self._states.of(sequence)
        state.read(sequence.tokens)
        trie = _Trie(budget, state.barred)
        for continuation in state.pool.get(sequence.tokens[-1], ()):
            trie.add(continuation)
        for path in state.paths():
            trie.add_whole(path)
        return trie.draft()


class Trajectories:
    """Window and pool of one request.

    `columns[j]` holds ngram - 1 tokens, oldest first; the oldest stands j places behind the pending token, and that of
    column 0 is the pending token. `pool` has the continuations of a token, ngram - 1 tokens each, most recent first.

    Args:
        sequence: whose prompt the first columns are taken from.
        window: columns.
        ngram: tokens per n-gram.
        candidates: most continuations per token.
    """

    def __init__(self, sequence: Sequence, window: int, ngram: int, candidates: int) -> None:
        self.barred = sequence.stop_ids | sequence.sampling.banned_ids
        self.pool: dict[int, list[tuple[int, ...]]] = {}
        self._ngram, self._candidates, self._num_read = ngram, candidates, 0
        prompt = sequence.tokens[: sequence.prompt_length]
        text = [token for token in prompt if token not in self.barred] or prompt
        starts = [j * len(text) // window for j in range(window)]
        self.columns = [[text[(start + i) % len(text)] for i in range(ngram - 1)] for start in starts]

    def paths(self) -> list[tuple[int, ...]]:
        """Per column, the drafted tokens that lead from the pending token to its last token, that one included."""
        oldest = [column[0] for column in self.columns]
        return [(*oldest[1 : j + 1], *column[1:]) for j, column in enumerate(self.columns)]

    def read(self, tokens: Ordered[int]) -> None:
        """Pool the n-grams that end in tokens not read before."""
        for end in range(max(self._num_read + 1, self._ngram), len(tokens) + 1):
            self._keep(tuple(tokens[end - self._ngram : end]))
        self._num_read = max(self._num_read, len(tokens))

    def learn(self, verified: Verified) -> None:
        """Give every column that was drafted its next token, and follow the pending token."""
        tokens, num_emitted = verified.sequence.tokens, len(verified.verdict.path) + 1
        before = tokens[:-num_emitted]
        self.read(before)
        self.columns[0][0] = before[-1]
        grown = {j: [*self.columns[j], token] for j, token in self._next_tokens(verified).items()}
        for j in sorted(grown, reverse=True):  # column 0 last: it knows the text best, so it is to be tried first
            self._keep(tuple(grown[j]))
        self._move(grown, num_emitted)

    def _next_tokens(self, verified: Verified) -> dict[int, int]:
        """What the target finds likeliest after each column, by column, where that was drafted as a whole."""
        rows = {path: row for row, path in enumerate(tree.paths(verified.draft.tokens, verified.draft.parents))}
        ends = {j: rows[path] for j, path in enumerate(self.paths()) if path in rows}
        logits = verified.logits[list(ends.values())]  # a copy
        logits[:, [token for token in self.barred if token < logits.shape[1]]] = -torch.inf
        return dict(zip(ends, logits.argmax(dim=-1).tolist(), strict=True))

    def _move(self, grown: dict[int, list[int]], num_emitted: int) -> None:
        """The columns as they stand behind the new pending token.

        A column that grew drops its oldest token, so it stands one place further on. One that was not drafted stays
        where it is, unless its neighbour took its place.
        """
        placed = dict(enumerate(self.columns)) | {j + 1: column[1:] for j, column in grown.items()}
        window, column = [], self.columns[-1]
        for place in range(num_emitted, num_emitted + len(self.columns)):
            column = placed.get(place) or self._after(column)
            window.append(column)
        self.columns = window

    def _after(self, column: list[int]) -> list[int]:
        """A guess at the column to the right of this one: its last tokens, and one that the pool knows to follow."""
        known = self.pool.get(column[-1])
        return [*column[1:], known[0][0] if known else column[0]]

    def _keep(self, ngram: tuple[int, ...]) -> None:
        first, continuation = ngram[0], ngram[1:]
        if self._candidates == 0 or not self.barred.isdisjoint(continuation):
            return
        family = self.pool.setdefault(first, [])
        if continuation in family:
            family.remove(continuation)
        family.insert(0, continuation)
        del family[self._candidates :]


class _Trie:
    """A draft without equal siblings that grows path by path, with at most `budget` nodes and none that is barred."""

    def __init__(self, budget: int, barred: frozenset[int]) -> None:
        self._budget, self._barred = budget, barred
        self._nodes: dict[tuple[int, ...], int] = {(): -1}  # by path, in the order of the draft
        self._parents: list[int] = []

    def add(self, path: Ordered[int]) -> None:
        """As much of the path as is allowed and fits."""
        for depth, token in enumerate(path):
            longer = tuple(path[: depth + 1])
            if longer in self._nodes:
                continue
            if token in self._barred or len(self._parents) >= self._budget:
                return
            self._parents.append(self._nodes[longer[:-1]])
            self._nodes[longer] = len(self._parents) - 1

    def add_whole(self, path: Ordered[int]) -> None:
        """The path if all of it is allowed and fits, else nothing."""
        missing = sum(tuple(path[:depth]) not in self._nodes for depth in range(1, len(path) + 1))
        if len(self._parents) + missing <= self._budget and self._barred.isdisjoint(path):
            self.add(path)

    def draft(self) -> Draft:
        """The tree."""
        return Draft(tuple(path[-1] for path in self._nodes if path), tuple(self._parents))
