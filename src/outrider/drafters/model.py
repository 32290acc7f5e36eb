"""The draft model: a smaller language model with the target's vocabulary, drawing from its own law.

It knows nothing of the target beyond the size of its vocabulary, and nothing of what became of a draft: what the
cache holds is compared with the sequence's tokens at the start of every round, and whatever is missing is fed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn.functional import pad

from outrider.core import Block, Draft, Law, Model, Output, Proposal, Sequence
from outrider.errors import OutriderError
from outrider.sampling import laws

PREFILL_WIDTH = 512
"""Tokens per sequence in one catch-up forward."""

LOGITS_WIDTH = 8
"""Catch-ups up to here run in the forward that gives the first logits; longer ones first run without logits."""


class ModelDrafter:
    """Draws chains from a second model, all sequences together, one forward per drafted token.

    Args:
        model: the draft model; it may be the target object itself, since the cache is the drafter's own.
        slots: as many as the engine has.
        vocab_size: the target's; ids that the draft lacks get probability 0, ids that only the draft has are masked.
            None if both are equal.
        capacity: cached tokens per slot; None for the draft's whole context. Beyond either, drafts are empty.

    Raises:
        CacheTooLarge: from the model.

    Attributes:
        num_past_context: how often a draft was empty because a sequence had outgrown the draft's context.
        num_failed: how often a draft ended early because its law could not be made (a user's processor raised).
    """

    name = "model"
    proposal: Proposal = "sampled"

    def __init__(self, model: Model, slots: int, *, vocab_size: int | None = None, capacity: int | None = None) -> None:
        self.model = model
        self.vocab_size = model.vocab_size if vocab_size is None else vocab_size
        self.capacity = model.context_length if capacity is None else min(capacity, model.context_length)
        self.cache: Any = model.new_cache(slots, self.capacity)
        self.num_past_context = 0
        self.num_failed = 0
        self._owners: list[int | None] = [None] * slots  # id of the sequence that each slot's rows belong to
        self._held: list[list[int]] = [[] for _ in range(slots)]  # the tokens in those rows

    def propose(self, sequences: list[Sequence], budgets: list[int]) -> list[Draft]:
        """See `core.Drafter`: chains that end at their budget, after a stop id, or where the draft's context ends."""
        chains = [
            _Chain(sequence, self._within_context(sequence, budget))
            for sequence, budget in zip(sequences, budgets, strict=True)
        ]
        growing = [chain for chain in chains if chain.budget > 0]
        for chain in growing:
            self._forget_disagreement(chain.sequence)
        while growing:
            for chain, logits in zip(growing, self._feed(growing), strict=True):
                chain.draw(_fit(logits, self.vocab_size))
            growing = [chain for chain in growing if not chain.ended]
        self.num_failed += sum(chain.failed for chain in chains)
        return [chain.draft(self.vocab_size) for chain in chains]

    def _within_context(self, sequence: Sequence, budget: int) -> int:
        """The budget, less what does not fit: all tokens but the last drafted one need a row."""
        room = max(0, self.capacity - len(sequence.tokens) + 1)
        self.num_past_context += budget > 0 and room == 0
        return min(budget, room)

    def _forget_disagreement(self, sequence: Sequence) -> None:
        """Keep the rows that agree with the sequence, but leave one token to feed: its logits start the draft."""
        slot, tokens = sequence.slot, sequence.tokens
        agreed = _common_prefix(self._held[slot], tokens) if self._owners[slot] == sequence.id else 0
        agreed = min(agreed, len(tokens) - 1)
        self.cache.truncate(slot, agreed)
        del self._held[slot][agreed:]
        self._owners[slot] = sequence.id

    def _feed(self, chains: list[_Chain]) -> list[torch.Tensor]:
        """Feed all that the cache lacks of each chain's text; per chain the logits [V] after its last token."""
        while late := [chain for chain in chains if self._num_unseen(chain) > LOGITS_WIDTH]:
            self._forward(late, [min(self._num_unseen(chain) - 1, PREFILL_WIDTH) for chain in late], prefill=True)
        counts = [self._num_unseen(chain) for chain in chains]
        output = self._forward(chains, counts, prefill=False)
        assert output.logits is not None
        return [output.logits[row, count - 1] for row, count in enumerate(counts)]

    def _num_unseen(self, chain: _Chain) -> int:
        return len(chain.text) - len(self._held[chain.sequence.slot])

    def _forward(self, chains: list[_Chain], counts: list[int], *, prefill: bool) -> Output:
        """Run and keep the next `counts[i]` unseen tokens of each chain."""
        slots = [chain.sequence.slot for chain in chains]
        tokens = torch.zeros(len(chains), max(counts), dtype=torch.int64)
        positions = torch.zeros_like(tokens)
        for row, (chain, slot, count) in enumerate(zip(chains, slots, counts, strict=True)):
            start = len(self._held[slot])
            tokens[row, :count] = torch.tensor(chain.text[start : start + count])
            positions[row, :count] = torch.arange(start, start + count)
        # An id that only the target has is fed as the draft's last one: that can cost acceptance, never exactness.
        tokens = tokens.clamp(max=self.model.vocab_size - 1)
        block = Block(tokens, positions, tuple(slots), tuple(counts), prefill=prefill)
        output = self.model.forward(block, self.cache)
        for chain, slot, count in zip(chains, slots, counts, strict=True):
            self.cache.commit(slot, range(count))
            start = len(self._held[slot])
            self._held[slot] += chain.text[start : start + count]
            assert self.cache.lengths[slot] == len(self._held[slot])
        return output


class _Chain:
    """One draft in the making."""

    def __init__(self, sequence: Sequence, budget: int) -> None:
        self.sequence = sequence
        self.budget = budget
        self.text = list(sequence.tokens)  # with the drafted tokens
        self.ended = self.failed = False
        self._laws: list[Law] = []

    @property
    def drafted(self) -> tuple[int, ...]:
        return tuple(self.text[len(self.sequence.tokens) :])

    def draw(self, logits: torch.Tensor) -> None:
        """Add one token drawn from the law of these logits [V]."""
        try:
            law = laws(logits[None], self.sequence, [self.drafted])[0]
        except OutriderError:  # the target meets a processor's error too, and ends this sequence alone
            self.ended = self.failed = True
            return
        token = self.sequence.draft_coins.categorical(law, len(self.text))
        self._laws.append(law)
        self.text.append(token)
        self.ended = len(self._laws) == self.budget or token in self.sequence.stop_ids

    def draft(self, vocab_size: int) -> Draft:
        rows = np.stack(self._laws) if self._laws else np.zeros((0, vocab_size), dtype=np.float32)
        return Draft.chain(self.drafted, rows)


def _fit(logits: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """[V of the draft] -> [vocab_size]: -inf on ids that the draft lacks, without the ids that only it has."""
    return pad(logits, (0, vocab_size - logits.shape[0]), value=-torch.inf)


def _common_prefix(first: list[int], second: list[int]) -> int:
    """How many tokens agree from the start, by bisection: slices compare much faster than a loop."""
    agreed, limit = 0, min(len(first), len(second))
    while agreed < limit:
        middle = (agreed + limit + 1) // 2
        if first[agreed:middle] == second[agreed:middle]:
            agreed = middle
        else:
            limit = middle - 1
    return agreed
