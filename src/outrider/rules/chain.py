"""Rules for drafts that are chains: which drafted tokens are kept, and what comes after them.

Every rule here is lossless and for sampled chains; those for trees, and for drafts that were chosen, are in `tree`.
The same code runs on float laws in production and on laws of `fractions.Fraction` in the proofs, where all outcomes of
the coins are enumerated. Nothing here knows where laws or coins come from.

q is the target's law and p the law that a draft token was drawn from; (a)+ is max(a, 0).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from outrider.core import Coins, Draft, Law, Rule, Verdict
from outrider.errors import InvalidOption

FITTING = {"sampled": "block", "point_mass": "point-mass", "hybrid": "traversal"}
"""The best lossless rule for each kind of draft; for a sampled tree it is the traversal rule too."""


class TokenRule:
    """Keeps token x with probability min(1, q(x) / p(x)), stops at the first refusal, then draws from (q - p)+.

    Source: Leviathan et al. (2211.17192), Chen et al. (2302.01318). `Verdict.acceptance` holds those ratios, up to
    and including the refused one.
    """

    name = "token"
    lossless = True
    proposals = frozenset({"sampled"})
    trees = False

    def verify(self, draft: Draft, target_probs: Law, coins: Coins, position: int) -> Verdict:
        """See `core.Rule.verify`.

        Raises:
            InvalidOption: if the draft is not a chain or was not sampled.
        """
        check_chain(self, draft)
        acceptance: list[float] = []
        for i, token in enumerate(draft.tokens):
            ratio = capped_ratio(1, target_probs.item(i, token), _drawn_from(draft, i).item(token))
            acceptance.append(float(ratio))
            if not coins.bernoulli(ratio):
                rest = residual(target_probs[i], _drawn_from(draft, i))
                return _verdict(i, or_target(rest, target_probs[i]), acceptance, coins, position)
        return _verdict(len(draft), target_probs[len(draft)], acceptance, coins, position)


class BlockRule:
    """Judges the draft as a whole: keeps the longest part whose coin falls, trying the longest first.

    With w_0 = 1, w_i = min(1, w_{i-1} q_i(x_i) / p_i(x_i)) and S_i the mass of (w_i q_{i+1} - p_{i+1})+, the part of
    length i < n is kept with probability S_i / (S_i + 1 - w_i), the whole with w_n; then the next token is drawn
    from (w_i q_{i+1} - p_{i+1})+. No exact rule for one sampled chain keeps more tokens on average. Source: Sun et al.
    (2403.10444). A low ratio does not end the draft: a high one behind it can make up for it.

    `Verdict.acceptance` holds w_1 ... w_n: given the draft, w_i is the probability that at least i tokens are kept.
    """

    name = "block"
    lossless = True
    proposals = frozenset({"sampled"})
    trees = False

    def verify(self, draft: Draft, target_probs: Law, coins: Coins, position: int) -> Verdict:
        """See `core.Rule.verify`.

        Raises:
            InvalidOption: if the draft is not a chain or was not sampled.
        """
        check_chain(self, draft)
        weights = block_weights(draft, target_probs)
        for kept in range(len(draft), -1, -1):
            if kept == len(draft):
                rest, chance = target_probs[kept], weights[kept]
            else:
                rest = residual(target_probs[kept], _drawn_from(draft, kept), weights[kept])
                chance = stop_chance(weights[kept], mass_of(rest))
            if kept == 0 or coins.bernoulli(chance):
                break
        acceptance = [float(weight) for weight in weights[1:]]
        return _verdict(kept, or_target(rest, target_probs[kept]), acceptance, coins, position)


def check_chain(rule: Rule, draft: Draft) -> None:
    """Refuse a draft whose law the rule would not keep; the empty draft fits every rule.

    Raises:
        InvalidOption: if the draft is a tree, or of a kind that is not among `rule.proposals`.
    """
    if tuple(draft.parents) != tuple(range(-1, len(draft) - 1)):
        allowed = f'a chain, with parents (-1, 0, 1, ...), for the rule "{rule.name}"'
        raise InvalidOption("draft.parents", draft.parents, allowed, 'Choose the rule "auto", or draft chains.')
    if len(draft) > 0 and draft.proposal not in rule.proposals:
        raise misfit(rule, draft.proposal)


def misfit(rule: Rule, proposal: str) -> InvalidOption:
    """The error for a rule that would not keep the law with drafts of this kind; it names the rule that does."""
    fix = f'Choose the rule "{FITTING[proposal]}", or "auto".'
    kinds = " or ".join(f'"{kind}"' for kind in sorted(rule.proposals))
    allowed = f'a rule for drafts of the kind "{proposal}", and this one is exact for {kinds} only'
    return InvalidOption("rule", rule.name, allowed, fix)


def block_weights(draft: Draft, target_probs: Law) -> list[Any]:
    """[n + 1] w_0 ... w_n of the block rule: w_0 = 1, w_i = min(1, w_{i-1} q_i(x_i) / p_i(x_i))."""
    weights: list[Any] = [1]
    for i, token in enumerate(draft.tokens):
        weights.append(capped_ratio(weights[i], target_probs.item(i, token), _drawn_from(draft, i).item(token)))
    return weights


def stop_chance(weight: Any, residual_mass: Any) -> Any:
    """h of the block rule: the chance to keep exactly this part, given that no longer one was kept.

    Args:
        weight: w in [0, 1].
        residual_mass: S >= 0, the sum of (w q - p)+ at the next position.
    """
    whole = residual_mass + (1 - weight)  # in this order, so that rounding never makes it less than the mass
    return residual_mass / whole if whole > 0 else 1  # w = 1 and S = 0: p equals q there


def capped_ratio(weight: Any, target_prob: Any, draft_prob: Any) -> Any:
    """min(1, weight q / p) of one token, in [0, 1]; a token that its own law excludes (p = 0) is never kept."""
    return min(1, weight * target_prob / draft_prob) if draft_prob > 0 else 0


def residual(target_row: Law, draft_row: Law, weight: Any = 1) -> Law:
    """[V] (weight q - p)+, not normalised, in a new array of the target's type."""
    return less(np.multiply(target_row, weight, dtype=target_row.dtype), draft_row)


def less(rest: Law, draft_row: Law) -> Law:
    """[V] (rest - p)+, in place."""
    rest -= draft_row
    return np.asarray(np.maximum(rest, 0, out=rest))


def mass_of(rest: Law) -> Any:
    """The sum of an array, in its own precision, as a plain number."""
    return rest.sum().item() if rest.dtype != object else rest.sum()


def _drawn_from(draft: Draft, node: int) -> Law:
    law = draft.law(node)
    assert law is not None, "a sampled draft comes with the laws it was drawn from"
    return law


def or_target(rest: Law, target_row: Law) -> Law:
    """A residual of zero means that only rounding refused the token: then the next token is the target's own."""
    return rest if rest.any() else target_row


def _verdict(kept: int, next_law: Law, acceptance: list[float], coins: Coins, position: int) -> Verdict:
    return Verdict(tuple(range(kept)), coins.categorical(next_law, position + kept), tuple(acceptance))
