"""Drafting with the target's own first layers: no second model, no second prefill.

Zhang et al., "Draft & Verify"; Elhoushi et al., LayerSkip (2404.16710). It knows no rows: `EarlyExitTarget` keeps them.
"""

from __future__ import annotations

import torch

from outrider.core import Draft, Law, Proposal, Sequence
from outrider.errors import InvalidOption, OutriderError
from outrider.models.early_exit import EarlyExitTarget
from outrider.sampling import laws


class EarlyExitDrafter:
    """Draws chains from what the target's head says after its first layers, one token at a time for all sequences.

    Args:
        target: what the engine runs, with its way out.
        min_confidence: a draft ends where the early head, before any sampling option, gives no token this probability,
            in [0, 1). It is known before the token is drawn, so the ending does not depend on the token.

    Raises:
        InvalidOption: a confidence outside its range.

    Attributes:
        num_failed: how often a draft ended early because its law could not be made (a user's processor raised).
    """

    name = "early-exit"
    proposal: Proposal = "sampled"

    def __init__(self, target: EarlyExitTarget, min_confidence: float = 0.0) -> None:
        if not 0 <= min_confidence < 1:
            raise InvalidOption("min_confidence", min_confidence, "0 to below 1")
        self.target, self.min_confidence = target, min_confidence
        self.num_failed = 0

    def propose(self, sequences: list[Sequence], budgets: list[int]) -> list[Draft]:
        """See `core.Drafter`: chains that end at their budget or after a stop id."""
        chains = [_Chain(s, k) for s, k in zip(sequences, budgets, strict=True)]
        growing = [chain for chain in chains if chain.budget > 0]
        # Between rounds all but the pending token are in the cache that the first layers share.
        self.target.begin([c.sequence.slot for c in growing], [len(c.sequence.tokens) - 1 for c in growing])
        while growing:
            logits = self.target.draft([c.sequence.slot for c in growing], [c.last for c in growing])
            for chain, row in zip(growing, logits, strict=True):
                chain.draw(row, self.min_confidence)
            growing = [chain for chain in growing if not chain.ended]
        self.num_failed += sum(chain.failed for chain in chains)
        return [Draft.chain(chain.tokens, tuple(chain.rows)) for chain in chains]


class _Chain:
    """One draft in the making."""

    def __init__(self, sequence: Sequence, budget: int) -> None:
        self.sequence, self.budget = sequence, budget
        self.tokens: list[int] = []
        self.rows: list[Law] = []
        self.ended = self.failed = False

    @property
    def last(self) -> int:
        return self.tokens[-1] if self.tokens else self.sequence.tokens[-1]

    def draw(self, logits: torch.Tensor, min_confidence: float) -> None:
        """Add one token drawn from the law of these logits [V], unless they are too flat."""
        try:
            law = laws(logits[None], self.sequence, [tuple(self.tokens)])[0]
        except OutriderError:  # the target meets a processor's error too, and ends this sequence alone
            self.ended = self.failed = True
            return
        if min_confidence > 0 and logits.softmax(-1).max() < min_confidence:
            self.ended = True
            return
        place = len(self.sequence.tokens) + len(self.tokens)
        self.tokens.append(self.sequence.draft_coins.categorical(law, place))
        self.rows.append(law)
        self.ended = len(self.tokens) == self.budget or self.tokens[-1] in self.sequence.stop_ids
