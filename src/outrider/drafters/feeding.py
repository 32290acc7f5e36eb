"""Feeding texts to a model with a cache of its own: what agrees stays, what is missing is fed, then the logits.

It knows no laws and no drafts' fate: what the cache holds is compared with each text every time, so there is nothing
to roll back and no special case after a round. A tree may stand on top of a text; its rows are never kept.
"""

from __future__ import annotations

from collections.abc import Hashable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import Any

import torch

import outrider.tree as tree
from outrider.core import Block, Draft, Model

PREFILL_WIDTH = 512
"""Tokens per text in one catch-up forward."""

LOGITS_WIDTH = 8
"""Catch-ups up to here run in the forward that gives the logits; longer ones first run without logits."""


@dataclass(frozen=True)
class Text:
    """What one slot is to hold.

    Args:
        slot: row of the cache; distinct among the texts of one call.
        owner: whose text it is; rows of another owner are never trusted.
        tokens: at least one; ids beyond the model's vocabulary are fed as its last one.
    """

    slot: int
    owner: Hashable
    tokens: list[int]


class Feeder:
    """A model and the cache that holds what it was fed.

    Args:
        model: any; trees need one that takes them.
        slots: as many as the engine has.
        capacity: cached tokens per slot, at least that of every text and its tree.
        cache: an empty cache of this model's kind, for so many slots and tokens; None makes one.

    Raises:
        CacheTooLarge: from the model.
    """

    def __init__(self, model: Model, slots: int, capacity: int, cache: Any = None) -> None:
        self.model = model
        self.capacity = capacity
        self.cache: Any = model.new_cache(slots, capacity) if cache is None else cache
        self._owners: list[Hashable] = [None] * slots
        self._held: list[list[int]] = [[] for _ in range(slots)]  # the tokens in each slot's rows

    def feed(self, texts: Ordered[Text], trees: Ordered[Draft] | None = None) -> list[torch.Tensor]:
        """Feed whatever the cache lacks of each text; afterwards it holds exactly the texts.

        Args:
            texts: distinct slots.
            trees: one draft per text that continues it, only looked at; None for empty ones.

        Returns:
            Per text the logits [1 + n, V of the model] after its last token and after each of its tree's n nodes.
        """
        trees = [Draft()] * len(texts) if trees is None else trees
        for text in texts:
            self._forget_disagreement(text)
        while late := [text for text in texts if self._num_unseen(text) > LOGITS_WIDTH]:
            self._forward(late, [Draft()] * len(late), [min(self._num_unseen(t) - 1, PREFILL_WIDTH) for t in late])
        counts = [self._num_unseen(text) for text in texts]
        logits = self._forward(texts, trees, counts, prefill=False)
        assert logits is not None
        return [logits[i, c - 1 : c + len(d)] for i, (c, d) in enumerate(zip(counts, trees, strict=True))]

    def arrears(self, text: Text) -> int:
        """Tokens that it lacks of a text, if what it holds agrees with it."""
        held = self._held[text.slot] if self._owners[text.slot] == text.owner else []
        return max(0, len(text.tokens) - len(held))

    def _forget_disagreement(self, text: Text) -> None:
        """Keep the rows that agree with the text, but leave one token to feed: its logits are wanted."""
        held = self._held[text.slot]
        agreed = _common_prefix(held, text.tokens) if self._owners[text.slot] == text.owner else 0
        agreed = min(agreed, len(text.tokens) - 1)
        self.cache.truncate(text.slot, agreed)
        del held[agreed:]
        self._owners[text.slot] = text.owner

    def _num_unseen(self, text: Text) -> int:
        return len(text.tokens) - len(self._held[text.slot])

    def _forward(
        self, texts: Ordered[Text], trees: Ordered[Draft], counts: list[int], *, prefill: bool = True
    ) -> torch.Tensor | None:
        """Run the next `counts[i]` unseen tokens of each text, with its tree behind them, and keep the former."""
        starts = [len(self._held[text.slot]) for text in texts]
        fresh = [text.tokens[start : start + count] for text, start, count in zip(texts, starts, counts, strict=True)]
        block = _block([text.slot for text in texts], starts, fresh, trees, self.model.vocab_size - 1, prefill)
        output = self.model.forward(block, self.cache)
        for text, tokens in zip(texts, fresh, strict=True):
            self.cache.commit(text.slot, range(len(tokens)))
            self._held[text.slot] += tokens
            assert self.cache.lengths[text.slot] == len(self._held[text.slot])
        return output.logits


def _block(
    slots: list[int], starts: list[int], fresh: list[list[int]], trees: Ordered[Draft], last_id: int, prefill: bool
) -> Block:
    """Rows of `fresh[i]`, which begins at position `starts[i]`, and of the tree that continues it."""
    # A run of tokens is a tree too: the chain that the drafted tree hangs on.
    parents = [_hung(draft.parents, len(tokens)) for draft, tokens in zip(trees, fresh, strict=True)]
    widths = tuple(1 + len(each) for each in parents)
    tokens, positions = torch.zeros(2, len(slots), max(widths), dtype=torch.int64)
    for row, (start, width) in enumerate(zip(starts, widths, strict=True)):
        tokens[row, :width] = torch.tensor([*fresh[row], *trees[row].tokens])
        positions[row, :width] = start + torch.tensor(tree.depths(parents[row]))
    # An id that only the target has is fed as the model's last one: that can cost acceptance, never exactness.
    tokens = tokens.clamp(max=last_id)
    ancestors = None
    if not all(tree.is_chain(each) for each in parents):
        ancestors = torch.stack([tree.ancestors(each, max(widths)) for each in parents])
    return Block(tokens, positions, tuple(slots), widths, ancestors, prefill)


def _hung(parents: Ordered[int], count: int) -> tuple[int, ...]:
    """The parents of a block whose first `count` rows are a chain and the rest a tree that hangs on its last row."""
    return (*range(-1, count - 2), *(parent + count - 1 for parent in parents))


def _common_prefix(first: list[int], second: list[int]) -> int:
    """How many tokens agree from the start, by bisection: slices compare much faster than a loop."""
    if second[: len(first)] == first:
        return len(first)
    agreed, limit = 0, min(len(first), len(second))
    while agreed < limit:
        middle = (agreed + limit + 1) // 2
        if first[agreed:middle] == second[agreed:middle]:
            agreed = middle
        else:
            limit = middle - 1
    return agreed
