"""Negative controls for trees: known faults, planted on purpose, that the exactness check must catch.

Most mutants are the shipped code with one part replaced; the check is the one of test_rules_tree.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from enumeration import BranchingCoins, GridUniform, law_error, random_model
from outrider.core import Coins, Draft, Law, Rule, Verdict
from outrider.rules import RULES, RandomCoins, tree
from outrider.rules.chain import capped_ratio, residual, stop_chance
from tree_drafts import (
    WRONG_FAMILIES,
    Child,
    Family,
    Shape,
    even,
    grown,
    likeliest_ones,
    with_replacement,
    without_replacement,
)

RECURSIVE, TRAVERSAL, POINT_MASS = (RULES[name] for name in ("recursive", "traversal", "point-mass"))
tree_rules = pytest.mark.parametrize("rule", [r for r in RULES.values() if r.trees], ids=lambda r: r.name)
ratio_rules = pytest.mark.parametrize("rule", [RECURSIVE, TRAVERSAL], ids=lambda r: r.name)

TWO_THEN_ONE = even(2, 1)


def errors(rule: Rule, family: Family, shape: Shape = TWO_THEN_ONE) -> list[Fraction]:
    pairs = [(random_model("dense", 3, seed), random_model("dense", 3, seed + 1000)) for seed in range(4)]
    return [law_error(rule, grown(draft, shape, family), target) for target, draft in pairs]


@ratio_rules
@pytest.mark.parametrize("family", WRONG_FAMILIES, ids=lambda f: f.__name__)
def test_a_draft_that_lies_about_its_law_is_caught(rule: Rule, family: Family) -> None:
    caught = [error > 0 for error in errors(rule, family)]
    assert sum(caught) >= 2  # where one token alone is left after a refusal, a lie about the next one changes nothing


@tree_rules
@pytest.mark.parametrize("family", WRONG_FAMILIES, ids=lambda f: f.__name__)
def test_and_is_harmless_when_it_does_not_claim_a_law(rule: Rule, family: Family) -> None:
    def unclaimed(law, count, coins, position):
        tokens = dict.fromkeys(token for token, _ in family(law, count, coins, position))
        return [(token, None) for token in tokens]

    assert errors(rule, unclaimed) == [0] * 4


@pytest.mark.parametrize("rule", [POINT_MASS, RECURSIVE, TRAVERSAL], ids=lambda r: r.name)
def test_a_refused_token_left_in_the_residual_is_caught(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    assert errors(rule, likeliest_ones) == [0] * 4
    right = tree._less

    def forgetful(rest, token, drawn_from):
        return right(rest, token, drawn_from) if drawn_from is not None else rest

    monkeypatch.setattr(tree, "_less", forgetful)
    assert all(error > 0 for error in errors(rule, likeliest_ones))


@ratio_rules
def test_leniency_is_caught(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    lenient = lambda weight, q, p: min(1, weight * q / (Fraction(9, 10) * p))  # noqa: E731
    monkeypatch.setattr(tree, "capped_ratio", lenient)
    assert all(error > 0 for error in errors(rule, without_replacement))


@pytest.mark.parametrize("fault", ["the weight of a parent stays", "the weight is one", "no weight in the running law"])
def test_faults_in_the_weights_of_traversal_are_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault == "the weight of a parent stays":
        monkeypatch.setattr(tree, "stop_chance", lambda weight, mass: weight)
    elif fault == "the weight is one":
        monkeypatch.setattr(tree, "stop_chance", lambda weight, mass: 1)
    else:
        monkeypatch.setattr(tree, "_times", lambda law, weight: law.copy())
    assert any(error > 0 for error in errors(TRAVERSAL, without_replacement, even(2, 2)))


class TraversalMutant:
    """The traversal rule written out once more, without recursion, with room for two mistakes."""

    name, lossless, trees, proposals = "traversal", True, True, TRAVERSAL.proposals

    def __init__(self, stops_at_first_failure: bool = False, token_residual: bool = False) -> None:
        self.stops_at_first_failure, self.token_residual = stops_at_first_failure, token_residual

    def verify(self, draft: Draft, target_probs: Law, coins: Coins, position: int) -> Verdict:
        weight: dict[int, Any] = {-1: Fraction(1)}
        law = {node: target_probs[node + 1] for node in range(-1, len(draft))}
        untried = {node: [c for c, parent in enumerate(draft.parents) if parent == node] for node in law}
        node = -1
        while True:
            if untried[node]:
                parent, node = node, untried[node].pop(0)
                token, drawn_from = draft.tokens[node], draft.law(node)
                weight[node] = capped_ratio(weight[parent], law[parent][token], drawn_from[token])
            elif node == -1 or coins.bernoulli(weight[node]):
                break
            else:
                node, drawn_from = draft.parents[node], draft.law(node)
                rest = residual(law[node], drawn_from, 1 if self.token_residual else weight[node])
                mass = rest.sum()
                weight[node] = stop_chance(weight[node], mass)
                law[node] = rest / mass if mass > 0 else law[node]
                if self.stops_at_first_failure:
                    break
        path = [node]
        while path[0] != -1:
            path.insert(0, draft.parents[path[0]])
        return Verdict(tuple(path[1:]), coins.categorical(law[node], position + len(path) - 1))


def test_the_traversal_rule_written_out_without_a_mistake_is_exact() -> None:
    assert errors(TraversalMutant(), without_replacement, even(2, 2)) == [0] * 4


def test_a_traversal_rule_that_stops_at_the_first_failure() -> None:
    """It keeps the parent for sure then, and tries no sibling."""
    assert all(error > 0 for error in errors(TraversalMutant(stops_at_first_failure=True), without_replacement))


def test_a_traversal_rule_with_the_token_rules_residual() -> None:
    assert all(error > 0 for error in errors(TraversalMutant(token_residual=True), without_replacement))


class NotStrict(RandomCoins):
    """Accepts at u <= a."""

    def bernoulli(self, probability: Any) -> bool:
        return self.accept.random() <= probability


@pytest.mark.parametrize("rule", [RECURSIVE, TRAVERSAL, POINT_MASS], ids=lambda r: r.name)
def test_an_acceptance_test_that_is_not_strict(rule: Rule) -> None:
    """With u in {0, 1/4, 1/2, 3/4} a token that the target excludes is kept one time in four."""
    target, draft = (np.array(row, dtype=np.float32) for row in ([0.5, 0.5, 0, 0], [0.25, 0.25, 0.25, 0.25]))
    family = with_replacement if rule is not POINT_MASS else excluded_then_allowed

    def error(coins_type: type[RandomCoins]) -> Fraction:
        def dice(coins: BranchingCoins) -> Coins:
            return coins_type(GridUniform(coins, 4), GridUniform(coins, 4))

        return law_error(rule, grown(lambda path: draft, even(2), family), lambda path: target, dice=dice)

    assert error(RandomCoins) == 0
    assert error(NotStrict) > 0


def excluded_then_allowed(law: Law, count: int, coins: Coins, position: int) -> list[Child]:
    return [(2, None), (0, None)]
