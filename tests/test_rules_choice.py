"""Which rule may judge which draft, and what the user is told when it may not."""

from __future__ import annotations

import re

import numpy as np
import pytest

import outrider.rules
from enumeration import POSITION, context_free
from outrider.core import Draft, Rule
from outrider.errors import InvalidOption
from outrider.rules import RULES, choose_rule, streams
from outrider.rules.typical import TypicalRule

every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.name)
HALVES = np.full((4, 2), 0.5)


def test_every_rule_is_listed_under_its_own_name_in_order() -> None:
    assert list(RULES) == sorted(rule.name for rule in RULES.values())
    assert all(RULES[name].name == name for name in RULES)


def test_the_public_names_exist() -> None:
    assert all(hasattr(outrider.rules, name) for name in outrider.rules.__all__)


@pytest.mark.parametrize("proposal", ["sampled", "point_mass", "hybrid"])
def test_auto_fits_every_kind_of_draft(proposal: str) -> None:
    assert choose_rule("auto", proposal) is RULES["auto"]


@every_rule
@pytest.mark.parametrize("proposal", ["sampled", "point_mass", "hybrid"])
def test_a_rule_is_chosen_only_where_it_fits(rule: Rule, proposal: str) -> None:
    if proposal in rule.proposals:
        assert choose_rule(rule.name, proposal, allow_lossy=True) is rule
    else:
        with pytest.raises(InvalidOption, match="Choose the rule"):
            choose_rule(rule.name, proposal, allow_lossy=True)


def test_a_ratio_rule_for_a_deterministic_drafter_is_refused_with_the_rule_that_fits() -> None:
    expected = (
        "rule is 'block'; allowed: a rule for drafts of the kind \"point_mass\", and this one is exact for "
        '"sampled" only. Choose the rule "point-mass", or "auto".'
    )
    with pytest.raises(InvalidOption, match=f"^{re.escape(expected)}$"):
        choose_rule("block", "point_mass")


def test_an_unknown_rule_is_answered_with_the_known_ones() -> None:
    with pytest.raises(InvalidOption, match="auto, block, coupled, point-mass, recursive, token, traversal, typical"):
        choose_rule("tokn", "sampled")


def test_an_unknown_proposal_is_answered_with_the_known_ones() -> None:
    with pytest.raises(InvalidOption, match="proposal is 'beam'; allowed: hybrid, point_mass, sampled"):
        choose_rule("auto", "beam")


def test_a_lossy_rule_needs_permission() -> None:
    with pytest.raises(InvalidOption, match="allow_lossy"):
        choose_rule("typical", "sampled")
    assert choose_rule("typical", "sampled", allow_lossy=True) is RULES["typical"]


@pytest.mark.parametrize("name", ["token", "block"])
def test_a_ratio_rule_refuses_a_draft_that_was_not_sampled(name: str) -> None:
    _, coins = streams(0, coupled=False)
    with pytest.raises(InvalidOption, match='Choose the rule "point-mass"'):
        RULES[name].verify(Draft.chain([1, 0]), HALVES[:3], coins, POSITION)


@pytest.mark.parametrize("rule", [r for r in RULES.values() if not r.trees], ids=lambda rule: rule.name)
def test_a_mixed_draft_is_refused_by_rules_for_chains(rule: Rule) -> None:
    draft = Draft((1,), (-1,), "hybrid", HALVES[:1])
    with pytest.raises(InvalidOption, match="hybrid"):
        rule.verify(draft, HALVES[:2], streams(0, coupled=False)[1], POSITION)


@pytest.mark.parametrize("rule", [r for r in RULES.values() if not r.trees], ids=lambda rule: rule.name)
def test_a_tree_is_refused_by_rules_for_chains(rule: Rule) -> None:
    draft = Draft((1, 0), (-1, -1), "sampled", HALVES[:2])
    with pytest.raises(InvalidOption, match=re.escape("draft.parents is (-1, -1); allowed: a chain")):
        rule.verify(draft, HALVES[:3], streams(0, coupled=False)[1], POSITION)


@every_rule
@pytest.mark.parametrize("proposal", ["sampled", "point_mass", "hybrid"])
@pytest.mark.parametrize("coupled", [True, False])
def test_the_empty_draft_fits_every_rule(rule: Rule, proposal: str, coupled: bool) -> None:
    """Plain decoding: one draw, and no acceptance coin (keyed coins would refuse to throw one)."""
    row = context_free(0, 1, 0)(()).astype(np.float32)
    verdict = rule.verify(Draft(proposal=proposal), row[None], streams(0, coupled=coupled)[1], POSITION)
    assert verdict.path == ()
    assert verdict.next_token == 1
    assert verdict.acceptance == ()


def test_typical_keeps_what_is_likely_enough_for_a_law_so_flat() -> None:
    rule, (_, coins) = RULES["typical"], streams(0, coupled=False)
    assert isinstance(rule, TypicalRule)
    peaked, flat = np.array([0.91, 0.09] + [0.0] * 98), np.full(100, 0.01)
    assert rule.threshold(peaked) == 0.09
    assert rule.threshold(flat) == pytest.approx(0.3 / 100)
    rows = np.stack([flat, peaked, peaked])
    assert rule.verify(Draft.chain([7, 0]), rows, coins, POSITION).path == (0, 1)
    refused = rule.verify(Draft.chain([7, 1]), rows, coins, POSITION)
    assert refused.path == (0,)
    assert refused.acceptance == (1.0, 0.0)


@pytest.mark.parametrize("settings", [{"epsilon": 0.0}, {"epsilon": 1.0}, {"epsilon": float("nan")}, {"delta": 0.0}])
def test_typical_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(InvalidOption, match=f"{next(iter(settings))} is"):
        TypicalRule(**settings)
