"""Faults planted on purpose, in copies of a rule: what each tier of a certificate must find in its own data."""

from __future__ import annotations

import numpy as np

from outrider.core import Coins, Draft, Law, Rule, Verdict


class Faulty:
    """A copy of a rule, to be spoilt.

    Args:
        rule: decides, where the fault does not.
    """

    def __init__(self, rule: Rule) -> None:
        self.rule, self.name, self.trees = rule, rule.name, rule.trees
        self.lossless, self.proposals = rule.lossless, rule.proposals

    def verify(self, draft: Draft, target_probs: Law, coins: Coins, position: int) -> Verdict:
        """See `core.Rule.verify`."""
        return self.rule.verify(draft, target_probs, coins, position)


class Favours(Faulty):
    """Keeps the first drafted token without a look at the target, with a small probability.

    Args:
        rule: the rule that is copied.
        chance: how often.
    """

    def __init__(self, rule: Rule, chance: float) -> None:
        super().__init__(rule)
        self.chance = chance

    def verify(self, draft: Draft, target_probs: Law, coins: Coins, position: int) -> Verdict:
        """See `core.Rule.verify`."""
        if len(draft) == 0 or not coins.bernoulli(self.chance):
            return self.rule.verify(draft, target_probs, coins, position)
        return Verdict((0,), coins.categorical(target_probs[1], position + 1))


class Alters(Faulty):
    """Puts the likeliest other token in the place of the next token, at every fifth position."""

    def verify(self, draft: Draft, target_probs: Law, coins: Coins, position: int) -> Verdict:
        """See `core.Rule.verify`."""
        verdict = self.rule.verify(draft, target_probs, coins, position)
        if (position + len(verdict.path)) % 5:
            return verdict
        row = target_probs[verdict.path[-1] + 1 if verdict.path else 0].copy()
        row[verdict.next_token] = -1
        return Verdict(verdict.path, int(np.argmax(row)))
