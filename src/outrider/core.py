"""The nouns of speculative decoding and the protocols between its parts.

Nothing here knows how a model computes, how a drafter guesses or how a rule decides. Notation, used everywhere:
the *target* law q is `target_probs`, the law p that a draft token was drawn from is `draft_probs`. Laws are numpy
arrays of float32 or better in production and of `fractions.Fraction` in the proofs; rules treat both alike.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch

from outrider.options import Sampling

Law = np.ndarray[Any, np.dtype[Any]]
"""[V] one law, or [n, V] one per row: probabilities that sum to 1."""

Proposal = Literal["sampled", "point_mass", "hybrid"]
"""How a draft came about: drawn from `draft_probs`, chosen in any other way, or some nodes so and some so."""


class Coins(Protocol):
    """All the randomness that a verifier or drafter may use; production throws dice, the proofs branch."""

    def bernoulli(self, probability: Any) -> bool:
        """True with `probability` in [0, 1]; never true at 0, always true at 1."""

    def categorical(self, weights: Law, position: int) -> int:
        """Index i with probability weights[i] / weights.sum(), never one of weight 0.

        Args:
            weights: [V] non-negative, not all zero, not necessarily normalised.
            position: absolute position, in the sequence, of the token that is drawn (keys the coupled noise).
        """


@dataclass(frozen=True)
class Draft:
    """Proposed tokens as a tree: `parents[i]` is the node that token i continues, -1 for the pending token.

    Args:
        tokens: [n] token ids; siblings are verified in the order in which they stand here.
        parents: [n] each in [-1, i); a chain is -1, 0, 1, ...
        proposal: "sampled" if every token was drawn from its row, "hybrid" if some were, "point_mass" if none was.
        draft_probs: n rows [V]; row i is precisely the law that token i was drawn from, given its path and its earlier
            siblings (drawn without replacement, the rest of the law divided by its sum). None instead of a row, or of
            all: chosen in any other way, which is drawing from the law that is certain of the token.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    proposal: Proposal = "point_mass"
    draft_probs: Law | tuple[Law | None, ...] | None = None

    @staticmethod
    def chain(tokens: Ordered[int], draft_probs: Law | tuple[Law, ...] | None = None) -> Draft:
        """A chain: sampled if `draft_probs`, n rows [V], are given, a point mass otherwise."""
        proposal: Proposal = "point_mass" if draft_probs is None else "sampled"
        return Draft(tuple(tokens), tuple(range(-1, len(tokens) - 1)), proposal, draft_probs)

    def law(self, node: int) -> Law | None:
        """[V] the law that a node's token was drawn from, None if it was not drawn."""
        return None if self.draft_probs is None else self.draft_probs[node]

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class Verdict:
    """What a rule decided about one draft.

    Args:
        path: accepted node indices, root first; () if none.
        next_token: the token the target adds after the accepted ones.
        acceptance: [m] for the trace: the probability with which each examined node was accepted.
        rule: name of the rule that decided, where one rule chose another; "" for the one that was asked.
        distance: per new token, `next_token` last, the total variation of its law from the target's; () if lossless.
    """

    path: tuple[int, ...]
    next_token: int
    acceptance: tuple[float, ...] = ()
    rule: str = ""
    distance: tuple[float, ...] = ()


class Rule(Protocol):
    """Decides which drafted nodes are kept, so that the emitted tokens have the target's law.

    `name` is what users type; `lossless` is False for rules that change the law; `proposals` are the kinds of
    draft whose law the rule keeps; `trees` is False if it takes chains only.
    """

    name: str
    lossless: bool
    proposals: frozenset[str]
    trees: bool

    def verify(self, draft: Draft, target_probs: Law, coins: Coins, position: int) -> Verdict:
        """Walk the draft and choose the next token.

        Args:
            draft: n nodes, n = 0 allowed.
            target_probs: [n + 1, V]; row 0 follows the pending token, row i + 1 follows node i.
            coins: acceptance coins and next-token draws; each acceptance coin is independent of the draft.
            position: absolute position of the first drafted token, which is len(sequence.tokens).
        """


@dataclass(eq=False)
class Sequence:
    """One request on its way: the only mutable noun.

    The engine keeps `cache.lengths[slot] == len(tokens) - 1` between rounds: the last token is *pending*, emitted
    but not yet in the target's cache. Tokens are only ever appended.

    Args:
        id: unique for the life of the engine.
        tokens: prompt and everything emitted.
        prompt_length: how many of `tokens` are the prompt.
        sampling: the settings that define this sequence's target law (drafters that sample use them too).
        stop_ids: tokens that end the sequence; they also end a draft.
        max_new_tokens: limit on emitted tokens; None means until a stop or the context's end.
        draft_coins: the drafting stream: drafters that sample must draw from it and from nothing else.
        verify_coins: the acceptance and next-token streams.
        prediction: tokens that the user expects in the output, for drafters that look things up.
        slot: row of the caches that this sequence owns; -1 before it is admitted.
        prefill_seconds: wall time spent on its prompt.
        seeded: whether its seed was given, so that its text must not depend on what else is decoded.
    """

    id: int
    tokens: list[int]
    prompt_length: int
    sampling: Sampling
    draft_coins: Coins
    verify_coins: Coins
    stop_ids: frozenset[int] = frozenset()
    max_new_tokens: int | None = None
    prediction: tuple[int, ...] = ()
    slot: int = -1
    prefill_seconds: float = 0.0
    seeded: bool = False

    @property
    def num_new_tokens(self) -> int:
        """Tokens emitted so far."""
        return len(self.tokens) - self.prompt_length


class Drafter(Protocol):
    """Guesses continuations. State is allowed; proposing must equal what a fresh drafter would propose."""

    name: str
    proposal: Proposal

    def propose(self, sequences: list[Sequence], budgets: list[int]) -> list[Draft]:
        """One draft per sequence, each with at most `budgets[i]` nodes; empty drafts are fine.

        A stateful drafter keys its state by `sequence.slot` and `sequence.id`, drops what no longer agrees with
        `sequence.tokens`, and first consumes every token that it has not seen (catch-up).
        """


@dataclass(frozen=True)
class Block:
    """What one forward takes: per sequence its pending token and draft, padded to a common width N.

    Args:
        tokens: [B, N] int64 ids; padding may hold any valid id.
        positions: [B, N] int64 absolute positions (root + depth).
        slots: [B] cache slots, distinct.
        widths: [B] real tokens per row, each in [1, N].
        ancestors: [B, N, N] bool, entry (i, j) true if node i may attend to node j; None means chains.
        prefill: True if only the cache rows are wanted: no logits are computed.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    slots: tuple[int, ...]
    widths: tuple[int, ...]
    ancestors: torch.Tensor | None = None
    prefill: bool = False


@dataclass(frozen=True)
class Output:
    """What one forward gives.

    Args:
        logits: [B, N, V] float32; None for a prefill block. Rows past a sequence's width are meaningless.
        hidden: [B, N, F] features of the layers the model was built to show, or None.
    """

    logits: torch.Tensor | None
    hidden: torch.Tensor | None = None


class Cache(Protocol):
    """Keys and values of all slots. `forward` writes rows past a slot's length; only `commit` moves the length."""

    lengths: list[int]
    capacity: int

    def commit(self, slot: int, rows: Ordered[int]) -> None:
        """Keep these rows of the slot's last block, in this order; a chain keeps 0, 1, ..., m."""

    def truncate(self, slot: int, length: int) -> None:
        """Forget everything from row `length` on."""

    def copy(self, source: int, target: int) -> None:
        """Make slot `target` an independent copy of slot `source`."""


class Model(Protocol):
    """A decoder-only language model with a cache that can be rolled back."""

    vocab_size: int
    context_length: int
    precision: str

    @property
    def takes_trees(self) -> bool:
        """Whether `forward` heeds `Block.ancestors`."""

    def new_cache(self, slots: int, capacity: int) -> Any:
        """An empty cache (a `Cache` of this model's own kind) for so many slots and tokens per slot.

        Raises:
            CacheTooLarge: with the number of bytes asked.
        """

    def forward(self, block: Block, cache: Any) -> Output:
        """Run the block on top of the committed rows of its slots. Does not move any length."""
