"""The rules on float laws: no NaN, nothing outside the target's support, inputs untouched, the law kept to rounding."""

from __future__ import annotations

import numpy as np
import pytest

from enumeration import POSITION, emitted_law, law_error, random_model, sampled_chain
from hard_laws import LARGEST_BELOW_ONE, forced, hard_pairs, softmax
from outrider.core import Draft, Rule
from outrider.rules import RULES, streams
from outrider.rules.chain import mass_of, residual

every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.name)
lossless_rules = pytest.mark.parametrize(
    "rule", [rule for rule in RULES.values() if rule.lossless], ids=lambda rule: rule.name
)


@every_rule
@pytest.mark.parametrize("uniform", [0.0, 0.5, LARGEST_BELOW_ONE])
def test_no_draw_however_extreme_leaves_the_targets_support(rule: Rule, uniform: float) -> None:
    for target, law in hard_pairs():
        coins = forced(uniform)
        rows, laws = np.stack([target] * 4), np.stack([law] * 3)
        draft = Draft.chain([coins.categorical(law, 0)] * 3, laws)
        verdict = rule.verify(draft, rows, coins, POSITION)
        emitted = [draft.tokens[i] for i in verdict.path] + [verdict.next_token]
        assert all(target[token] > 0 for token in emitted)
        assert all(0 <= chance <= 1 for chance in verdict.acceptance)


@every_rule
def test_tokens_drawn_at_random_from_hard_laws_stay_in_the_targets_support(rule: Rule) -> None:
    draft_coins, verify_coins = streams(5, coupled=False)
    for target, law in hard_pairs():
        rows, laws = np.stack([target] * 4), np.stack([law] * 3)
        draft = Draft.chain([draft_coins.categorical(law, i) for i in range(3)], laws)
        verdict = rule.verify(draft, rows, verify_coins, POSITION)
        emitted = [draft.tokens[i] for i in verdict.path] + [verdict.next_token]
        assert all(target[token] > 0 for token in emitted)


@every_rule
def test_laws_are_not_modified(rule: Rule) -> None:
    dice = np.random.default_rng(1)
    for uniform in (0.0, 0.3, LARGEST_BELOW_ONE):
        rows, laws = (dice.dirichlet(np.ones(20), size=n).astype(np.float32) for n in (4, 3))
        rows.setflags(write=False)
        laws.setflags(write=False)
        rule.verify(Draft.chain([3, 1, 2], laws), rows, forced(uniform), POSITION)


def test_a_residual_has_the_targets_type_and_its_mass_is_close_to_the_sum_in_double() -> None:
    target = np.array([0.5, 0.3, 0.2], dtype=np.float32)
    draft = np.array([0.5, 0.2, 0.3], dtype=np.float32)
    rest = residual(target, draft, 0.9)
    assert rest.dtype == residual(target, draft.astype(np.float64), 0.9).dtype == np.float32
    assert rest[1] == np.float32(target[1] * np.float32(0.9)) - draft[1]
    assert residual(target.astype(np.float64), draft, 0.9).dtype == np.float64
    many = np.random.default_rng(1).dirichlet(np.ones(200_000)).astype(np.float32)
    assert mass_of(many) == pytest.approx(many.sum(dtype=np.float64), rel=5e-7)
    assert many.cumsum()[-1] != pytest.approx(many.sum(dtype=np.float64), rel=5e-7), "a plain running sum is too coarse"


@pytest.mark.parametrize("name", ["token", "block", "point-mass"])
def test_a_residual_of_zero_falls_back_to_the_targets_law(name: str) -> None:
    """Rounding left q slightly below p everywhere, or q(x) below 1; the refusal must still give a token."""
    target, law = np.array([0.0, 1 - 1e-7, 0.0], np.float32), np.array([0.0, 1.0, 0.0], np.float32)
    draft = Draft.chain([1], law[None])
    verdict = RULES[name].verify(draft, np.stack([target, target]), forced(LARGEST_BELOW_ONE), POSITION)
    assert verdict.path == ()
    assert verdict.next_token == 1


@pytest.mark.parametrize("name", ["token", "block"])
def test_a_token_that_its_own_law_excludes_is_not_kept(name: str) -> None:
    """As after an underflow of p: the ratio is infinite, but no such token can have been drawn."""
    rows = np.array([[0.5, 0.5, 0.0]] * 2)
    draft = Draft.chain([0], np.array([[0.0, 0.5, 0.5]]))
    assert RULES[name].verify(draft, rows, forced(0.0), POSITION).path == ()


@lossless_rules
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_float_rows_keep_the_law_to_rounding(rule: Rule, dtype: type) -> None:
    """All outcomes of a block of two on real-looking rows, through the shipped code, in floats."""
    dice = np.random.default_rng(7)
    target, draft = (softmax(dice.normal(size=8) * 2, 1.0).astype(dtype) for _ in range(2))
    error = law_error(rule, sampled_chain(lambda prefix: draft, 2), lambda prefix: target)
    assert error < (1e-6 if dtype == np.float32 else 1e-14)


@lossless_rules
def test_nearly_equal_float_rows_keep_the_law_to_rounding(rule: Rule) -> None:
    target = softmax(np.random.default_rng(8).normal(size=8), 1.0).astype(np.float32)
    draft = target * (1 + 1e-7 * np.array([1, -1] * 4, dtype=np.float32))
    assert not np.array_equal(target, draft)
    assert law_error(rule, sampled_chain(lambda prefix: draft, 2), lambda prefix: target) < 1e-6


@lossless_rules
def test_floats_decide_as_fractions_do(rule: Rule) -> None:
    target, draft = random_model("zeros", 3, 1), random_model("dense", 3, 2)
    exact = emitted_law(rule, sampled_chain(draft, 3), target)
    found = emitted_law(
        rule, sampled_chain(lambda prefix: draft(prefix).astype(float), 3), lambda prefix: target(prefix).astype(float)
    )
    for tokens in {*exact, *found}:  # rounding may make an impossible outcome possible with a chance like 1e-17
        assert float(found.get(tokens, 0)) == pytest.approx(float(exact.get(tokens, 0)), abs=1e-14)
