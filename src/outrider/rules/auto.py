"""The rule that picks the rule: by how the draft was proposed, its shape, and whether the target draws at all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from outrider.core import Coins, Draft, Law, Rule, Verdict
from outrider.rules.chain import BlockRule
from outrider.rules.tree import ANY_PROPOSAL, PointMassRule, TraversalRule
from outrider.tree import is_chain

_BLOCK, _POINT_MASS, _TRAVERSAL = BlockRule(), PointMassRule(), TraversalRule()


class AutoRule:
    """The best lossless rule for each draft; the verdict names it.

    The choice cannot change the law of what is emitted. Whether anything is drawn is settled before it is drawn; beyond
    that, two rules stand for each other only where they decide every single draft alike: "block" and "traversal" on
    chains, and all of them where every law of the target is certain of one token.
    """

    name = "auto"
    lossless = True
    trees = True
    proposals = ANY_PROPOSAL

    def verify(self, draft: Draft, target_probs: Law, coins: Coins, position: int) -> Verdict:
        """See `core.Rule.verify`."""
        rule = self.choose(draft, target_probs)
        return replace(rule.verify(draft, target_probs, coins, position), rule=rule.name)

    def choose(self, draft: Draft, target_probs: Law) -> Rule:
        """The rule for a draft of n nodes under the target's laws [n + 1, V]."""
        if draft.proposal == "point_mass" or len(draft) == 0 or _are_certain(target_probs):
            return _POINT_MASS
        return _BLOCK if draft.proposal == "sampled" and is_chain(draft.parents) else _TRAVERSAL


def _are_certain(rows: Law) -> bool:
    """Whether every law allows one token only; one row of several is not enough, for the others have ratios to use."""
    return all(np.count_nonzero(row > 0) == 1 for row in rows)
