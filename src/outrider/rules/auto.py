"""The rule that picks the rule: by how the draft was proposed, its shape, and whether the target draws at all."""

from __future__ import annotations

from dataclasses import replace

from outrider.core import Coins, Draft, Law, Rule, Verdict
from outrider.rules.chain import BlockRule
from outrider.rules.tree import ANY_PROPOSAL, PointMassRule, TraversalRule
from outrider.tree import is_chain

_BLOCK, _POINT_MASS, _TRAVERSAL = BlockRule(), PointMassRule(), TraversalRule()


class AutoRule:
    """The best lossless rule for each draft; the verdict names it.

    The choice looks at the kind of draft, at its shape and at the target's law after the pending token, never at what
    was drawn, so it cannot change the law of what is emitted.
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
        is_greedy = target_probs[0].max() == 1  # then ratios say no more than "equal or not"
        if draft.proposal == "point_mass" or is_greedy or len(draft) == 0:
            return _POINT_MASS
        return _BLOCK if draft.proposal == "sampled" and is_chain(draft.parents) else _TRAVERSAL
