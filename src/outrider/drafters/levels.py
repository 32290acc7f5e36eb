"""Drafts of all sequences, a level per forward, from whatever gives logits after a text and the nodes of a tree.

Chains and trees of a given shape are drawn from the law of those logits; see `model_tree` for the others.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch.nn.functional import pad

from outrider.core import Draft, Law, Sequence
from outrider.drafters.feeding import Text
from outrider.drafters.model_tree import Growth, new_tree
from outrider.drafters.shapes import Form
from outrider.errors import OutriderError
from outrider.sampling import laws


class Feeds(Protocol):
    """Gives logits: a model behind its cache, or a head behind its target's states."""

    def feed(self, texts: Ordered[Text], trees: Ordered[Draft]) -> list[torch.Tensor]:
        """Per text [1 + n, V] after it and after each node of the tree that continues it."""
        ...


@dataclass(frozen=True)
class Grown:
    """Drafts, and how many of them ended early because their law could not be made (a user's processor raised)."""

    drafts: list[Draft]
    num_failed: int


def grow(feeds: Feeds, sequences: list[Sequence], budgets: list[int], form: Form | None, vocab_size: int) -> Grown:
    """One draft per sequence; they end at their budget or after a stop id.

    Args:
        feeds: what gives logits; a text is the sequence's tokens, with those of a chain that is being drafted.
        sequences: distinct slots.
        budgets: most nodes, as many as there is room for.
        form: of the trees; None for chains.
        vocab_size: the target's; ids that the logits lack get probability 0, ids that only they have are left out.
    """
    growths = [_new_growth(s, budget, form) for s, budget in zip(sequences, budgets, strict=True)]
    growing, num_failed = [growth for growth in growths if growth.budget > 0], 0
    while growing:
        texts = [Text(growth.sequence.slot, growth.sequence.id, growth.text) for growth in growing]
        going_on = []
        for growth, logits in zip(growing, feeds.feed(texts, [growth.tree for growth in growing]), strict=True):
            try:
                if growth.grow(_fit(logits, vocab_size)):
                    going_on.append(growth)
            except OutriderError:  # the target meets a processor's error too, and ends this sequence alone
                num_failed += 1
        growing = going_on
    return Grown([growth.draft() for growth in growths], num_failed)


class _Chain:
    """A `Growth` by one drawn token at a time."""

    tree = Draft()

    def __init__(self, sequence: Sequence, budget: int) -> None:
        self.sequence = sequence
        self.budget = budget
        self.text = list(sequence.tokens)  # with the drafted tokens
        self._laws: list[Law] = []

    @property
    def _drafted(self) -> tuple[int, ...]:
        return tuple(self.text[len(self.sequence.tokens) :])

    def grow(self, logits: torch.Tensor) -> bool:
        law = laws(logits, self.sequence, [self._drafted])[0]
        token = self.sequence.draft_coins.categorical(law, len(self.text))
        self._laws.append(law)
        self.text.append(token)
        return len(self._laws) < self.budget and token not in self.sequence.stop_ids

    def draft(self) -> Draft:
        return Draft.chain(self._drafted, np.stack(self._laws) if self._laws else ())


def _new_growth(sequence: Sequence, budget: int, form: Form | None) -> Growth:
    return _Chain(sequence, budget) if form is None else new_tree(sequence, budget, form)


def _fit(logits: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """[n, V of the draft] -> [n, vocab_size]: -inf on ids that the draft lacks, without the ids that only it has."""
    return pad(logits, (0, vocab_size - logits.shape[1]), value=-torch.inf)
