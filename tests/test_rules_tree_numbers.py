"""The rules on trees of float laws: no NaN, nothing outside the target's support, inputs untouched, the law kept."""

from __future__ import annotations

import numpy as np
import pytest

from enumeration import POSITION, emitted_law, law_error, random_model
from hard_laws import LARGEST_BELOW_ONE, forced, hard_pairs, softmax
from outrider.core import Coins, Draft, Law, Rule
from outrider.rules import RULES, streams
from tree_drafts import (
    Family,
    declared,
    even,
    grown,
    likeliest_ones,
    one_drawn_then_extras,
    one_drawn_then_extras_beside_it,
    with_replacement,
    without_replacement,
)

tree_rules = pytest.mark.parametrize("rule", [r for r in RULES.values() if r.trees], ids=lambda r: r.name)
families = pytest.mark.parametrize(
    "family",
    [with_replacement, without_replacement, likeliest_ones, one_drawn_then_extras, one_drawn_then_extras_beside_it],
    ids=lambda f: f.__name__,
)


def two_levels(law: Law, family: Family, coins: Coins) -> Draft:
    """Up to three children of the root, and two of the last of them."""
    children = family(law, 3, coins, POSITION)
    grandchildren = family(law, 2, coins, POSITION + 1)
    tokens, rows = zip(*children, *grandchildren, strict=True)
    parents = (-1,) * len(children) + (len(children) - 1,) * len(grandchildren)
    return Draft(tokens, parents, *declared(list(rows)))


@tree_rules
@families
def test_no_draw_however_extreme_leaves_the_targets_support(rule: Rule, family: Family) -> None:
    _, fair = streams(5, coupled=False)
    for target, law in hard_pairs():
        target.setflags(write=False)
        law.setflags(write=False)
        rows = np.stack([target] * 6)
        rows.setflags(write=False)
        for coins in (fair, forced(0.0), forced(0.5), forced(LARGEST_BELOW_ONE)):
            draft = two_levels(law, family, coins)
            verdict = rule.verify(draft, rows[: len(draft) + 1], coins, POSITION)
            emitted = [*(draft.tokens[node] for node in verdict.path), verdict.next_token]
            assert all(target[token] > 0 for token in emitted)
            assert all(0 <= chance <= 1 for chance in verdict.acceptance)


@tree_rules
@pytest.mark.parametrize("kind", ["drawn", "chosen", "hybrid"])
def test_where_rounding_alone_refuses_everything_the_next_token_is_the_targets(rule: Rule, kind: str) -> None:
    """All of q is slightly below p, or below 1; every coin falls on the other side."""
    target, law = np.array([0.0, 1 - 1e-7, 0.0], np.float32), np.array([0.0, 1.0, 0.0], np.float32)
    drafts = {
        "drawn": Draft((1, 1, 1), (-1, -1, 1), "sampled", (law, law, law)),
        "chosen": Draft((1, 0, 1), (-1, -1, 1)),
        "hybrid": Draft((1, 0, 1), (-1, -1, 1), "hybrid", (law, None, law)),
    }
    verdict = rule.verify(drafts[kind], np.stack([target] * 4), forced(LARGEST_BELOW_ONE), POSITION)
    assert verdict.next_token == 1


@tree_rules
@families
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_float_rows_keep_the_law_to_rounding(rule: Rule, family: Family, dtype: type) -> None:
    dice = np.random.default_rng(7)
    target, draft = (softmax(dice.normal(size=4) * 2, 1.0).astype(dtype) for _ in range(2))
    error = law_error(rule, grown(lambda path: draft, even(2, 1), family), lambda path: target)
    assert error < (1e-6 if dtype == np.float32 else 1e-14)


@tree_rules
@families
def test_nearly_equal_float_rows_keep_the_law_to_rounding(rule: Rule, family: Family) -> None:
    target = softmax(np.random.default_rng(8).normal(size=4), 1.0).astype(np.float32)
    draft = target * (1 + 1e-7 * np.array([1, -1] * 2, dtype=np.float32))
    assert not np.array_equal(target, draft)
    assert law_error(rule, grown(lambda path: draft, even(2, 1), family), lambda path: target) < 1e-6


@tree_rules
@families
def test_floats_decide_as_fractions_do(rule: Rule, family: Family) -> None:
    target, draft = random_model("zeros", 3, 1), random_model("dense", 3, 2)
    exact = emitted_law(rule, grown(draft, even(2, 2), family), target)
    as_floats = grown(lambda path: draft(path).astype(float), even(2, 2), family)
    found = emitted_law(rule, as_floats, lambda path: target(path).astype(float))
    for tokens in {*exact, *found}:  # rounding may make an impossible outcome possible with a chance like 1e-17
        assert float(found.get(tokens, 0)) == pytest.approx(float(exact.get(tokens, 0)), abs=1e-14)


@tree_rules
@families
def test_trees_over_a_large_vocabulary_are_judged_with_finite_chances(rule: Rule, family: Family) -> None:
    dice, (coins, verify_coins) = np.random.default_rng(3), streams(3, coupled=False)
    for sharpness in (1, 30, 300):
        rows = np.stack([softmax(dice.normal(size=49_152), 1 / sharpness) for _ in range(6)]).astype(np.float32)
        draft = two_levels(np.roll(rows[0], 7), family, coins)
        verdict = rule.verify(draft, rows[: len(draft) + 1], verify_coins, POSITION)
        row = verdict.path[-1] + 1 if verdict.path else 0
        assert rows[row, verdict.next_token] > 0
        assert all(0 <= chance <= 1 for chance in verdict.acceptance)
