"""The recycling drafter: what the target lately thought could follow a token, drafted when the token comes again.

Token Recycling (Luo et al. 2024, 2408.08696), with trees that grow as far as a row is worth its cost instead of one
fixed shape. It knows no model, only logits.
"""

from __future__ import annotations

from itertools import pairwise

from outrider.core import Draft, Proposal, Sequence
from outrider.drafters.growth import best_first, check_row_cost
from outrider.drafters.learned import StatePerRequest
from outrider.errors import InvalidOption
from outrider.options import whole
from outrider.rounds import Verified

Row = tuple[tuple[int, float], ...]
"""Tokens that may follow a token, with probabilities, likeliest first."""

PRIOR = 0.4
"""Probability that a token is followed as it last was in the prompt; earlier followers share the rest likewise."""

DECAY = 0.9
"""How much of what earlier rounds taught about `trust` a round keeps."""

TRUST = (0.25, 1.5)
"""Bounds of `trust`; the lower one lets a tree come back after a bad stretch."""


class RecyclingDrafter:
    """Draws a tree from a table of each token's likely next tokens, as the target last saw them.

    Every row of logits of a verified block, those of rejected nodes too, renews the table's row for its token. A token
    that the target has not met yet has the tokens that follow it in the prompt. A node's value is the product of the
    probabilities on its path, each times how much they have lately proved true (`Adjacency.trust`).

    Args:
        candidates: next tokens kept per token, 1 to 64.
        max_depth: longest path, 1 to 64.
        row_cost: cost of one more row in the target's forward, in units of a forward of one row, 0 or more; 0 fills the
            budget.

    Raises:
        InvalidOption: a value outside its range.
    """

    name = "recycling"
    proposal: Proposal = "point_mass"

    def __init__(self, candidates: int = 8, max_depth: int = 6, row_cost: float = 0.1) -> None:
        for name, value in (("candidates", candidates), ("max_depth", max_depth)):
            if not whole(value, 1, 64):
                raise InvalidOption(name, value, "a whole number from 1 to 64")
        check_row_cost(row_cost)
        self.candidates, self.max_depth, self.row_cost = candidates, max_depth, row_cost
        self._states = StatePerRequest(lambda s: Adjacency(s, self.candidates))

    def propose(self, sequences: list[Sequence], budgets: list[int]) -> list[Draft]:
        """See `core.Drafter`: trees."""
        return [self._propose(s, budget) for s, budget in zip(sequences, budgets, strict=True)]

    def observe(self, verified: list[Verified]) -> None:
        """See `rounds.Learner`: renew the rows of the tokens in the blocks."""
        for v in verified:
            self._states.of(v.sequence).learn(v)

    def _propose(self, sequence: Sequence, budget: int) -> Draft:
        state = self._states.of(sequence)

        def children(path: tuple[int, ...]) -> Row:
            return state.children(path[-1]) if path else state.children(sequence.tokens[-1], pending=True)

        return best_first(children, budget, max_depth=self.max_depth, row_cost=self.row_cost)


class Adjacency:
    """Which tokens may follow which, in one request; it grows by one row per token met.

    Args:
        sequence: whose prompt gives the first rows.
        candidates: longest row.
    """

    def __init__(self, sequence: Sequence, candidates: int) -> None:
        self._candidates = candidates
        self._stop_ids, self._banned_ids = sequence.stop_ids, sequence.sampling.banned_ids
        self._rows = _rows_of_text(sequence.tokens[: sequence.prompt_length], candidates)
        # One token's worth of belief that the probabilities are right.
        self._expected = self._accepted = 1.0

    @property
    def trust(self) -> float:
        """Accepted tokens per expected one: probabilities from one context are mostly too high, or low, for another."""
        return min(max(self._accepted / self._expected, TRUST[0]), TRUST[1])

    def children(self, token: int, *, pending: bool = False) -> Row:
        """What may follow a token, with calibrated probabilities; nothing follows a drafted stop id."""
        if token in self._stop_ids and not pending:
            return ()
        trust, row = self.trust, self._rows.get(token, ())
        return tuple((t, min(1.0, trust * p)) for t, p in row if t not in self._banned_ids)

    def learn(self, verified: Verified) -> None:
        """Judge the probabilities by what was accepted, then replace them by the target's newest."""
        pending = verified.sequence.tokens[-len(verified.verdict.path) - 2]
        block = (pending, *verified.draft.tokens)
        self._judge(verified, block)
        newest = self._newest_rows(verified, block)
        logits = verified.logits[list(newest.values())].float()
        best = logits.topk(min(self._candidates, logits.shape[1]))
        probs = (best.values - logits.logsumexp(-1, keepdim=True)).exp()
        for token, tokens, row in zip(newest, best.indices.tolist(), probs.tolist(), strict=True):
            self._rows[token] = tuple((t, p) for t, p in zip(tokens, row, strict=True) if p > 0)

    def _judge(self, verified: Verified, block: tuple[int, ...]) -> None:
        """Compare accepted with expected tokens at the nodes that the target's text reached."""
        draft, path = verified.draft, verified.verdict.path
        expected = accepted = 0.0
        for parent, kept in zip((-1, *path), (*path, None), strict=True):
            row = dict(self._rows.get(block[parent + 1], ()))
            drafted = [i for i, p in enumerate(draft.parents) if p == parent and draft.tokens[i] in row]
            expected += sum(row[draft.tokens[i]] for i in drafted)
            accepted += kept in drafted
        if expected > 0:
            self._expected = DECAY * self._expected + expected
            self._accepted = DECAY * self._accepted + accepted

    def _newest_rows(self, verified: Verified, block: tuple[int, ...]) -> dict[int, int]:
        """Token -> its row in the block; of several the last one in the text, if the text has it at all."""
        path = verified.verdict.path
        rejected = [node for node in range(len(verified.draft)) if node not in path]
        return {block[node + 1]: node + 1 for node in (*rejected, -1, *path)}


def _rows_of_text(text: list[int], candidates: int) -> dict[int, Row]:
    """Rows of the tokens that follow each other in a text, the latest followers first."""
    followers: dict[int, list[int]] = {}
    for token, follower in reversed(list(pairwise(text))):
        known = followers.setdefault(token, [])
        if follower not in known and len(known) < candidates:
            known.append(follower)
    return {
        token: tuple((follower, PRIOR * (1 - PRIOR) ** rank) for rank, follower in enumerate(known))
        for token, known in followers.items()
    }
