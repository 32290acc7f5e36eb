"""Rules decide which drafted tokens are kept; coins are the chance that they may use."""

from __future__ import annotations

from outrider.core import Rule
from outrider.errors import InvalidOption
from outrider.rules.auto import AutoRule
from outrider.rules.chain import FITTING, BlockRule, TokenRule, misfit
from outrider.rules.coins import KeyedCoins, RandomCoins, streams
from outrider.rules.tree import CoupledRule, PointMassRule, RecursiveRule, TraversalRule
from outrider.rules.typical import TypicalRule

__all__ = ["RULES", "KeyedCoins", "RandomCoins", "choose_rule", "streams"]

RULES: dict[str, Rule] = {
    "auto": AutoRule(),
    "block": BlockRule(),
    "coupled": CoupledRule(),
    "point-mass": PointMassRule(),
    "recursive": RecursiveRule(),
    "token": TokenRule(),
    "traversal": TraversalRule(),
    "typical": TypicalRule(),
}
"""Every rule by the name that users type."""


def choose_rule(name: str, proposal: str, *, allow_lossy: bool = False) -> Rule:
    """The rule of that name, if it keeps the target's law with such drafts.

    Args:
        name: a key of `RULES`; "auto" is the best lossless rule for each draft.
        proposal: how the drafter's tokens come about: "sampled", "point_mass" or "hybrid".
        allow_lossy: accept a rule whose output does not have the target's law.

    Raises:
        InvalidOption: for an unknown name, a rule that does not fit the proposal, or a lossy rule not allowed.
    """
    if proposal not in FITTING:
        raise InvalidOption("proposal", proposal, ", ".join(sorted(FITTING)), "No rule here keeps the law of others.")
    if name not in RULES:
        raise InvalidOption("rule", name, ", ".join(RULES))
    rule = RULES[name]
    if proposal not in rule.proposals:
        raise misfit(rule, proposal)
    if not rule.lossless and not allow_lossy:
        fix = f'Choose "{FITTING[proposal]}", or allow lossy rules and say so beside the output.'
        raise InvalidOption("rule", name, "a lossless rule, unless lossy ones are allowed (allow_lossy)", fix)
    return rule
