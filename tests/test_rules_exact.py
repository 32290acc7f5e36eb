"""Every lossless rule keeps the target's law: proved by enumerating all drafts and all coins, with `==`."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from enumeration import (
    POSITION,
    BranchingCoins,
    GridUniform,
    ToyModel,
    context_free,
    emitted_law,
    every_string,
    fixed_chain,
    law_error,
    likeliest,
    mean_emitted,
    one_round,
    outcomes,
    random_model,
    sampled_chain,
    target_rows,
)
from outrider.core import Draft, Rule
from outrider.rules import RULES, RandomCoins

TOKEN, BLOCK, POINT_MASS, COUPLED = (RULES[name] for name in ("token", "block", "point-mass", "coupled"))

for_sampled = pytest.mark.parametrize(
    "rule", [r for r in RULES.values() if r.lossless and "sampled" in r.proposals], ids=lambda r: r.name
)
for_point_mass = pytest.mark.parametrize(
    "rule", [r for r in RULES.values() if r.lossless and "point_mass" in r.proposals], ids=lambda r: r.name
)
kinds = pytest.mark.parametrize(
    ("target_kind", "draft_kind"),
    [
        ("dense", "dense"),
        ("zeros", "zeros"),
        ("zeros", "dense"),
        ("dense", "one-hot"),
        ("one-hot", "dense"),
        ("one-hot", "one-hot"),
        ("even", "odd"),
        ("zeros", "even"),
    ],
)
sizes = pytest.mark.parametrize(("vocab", "length"), [(2, 4), (3, 1), (3, 4), (4, 2)])


def pair(target_kind: str, draft_kind: str, vocab: int, seed: int) -> tuple[ToyModel, ToyModel]:
    return random_model(target_kind, vocab, seed), random_model(draft_kind, vocab, seed + 1000)


@for_sampled
@kinds
@sizes
def test_a_draft_drawn_from_the_drafts_law_keeps_the_targets_law(
    rule: Rule, target_kind: str, draft_kind: str, vocab: int, length: int
) -> None:
    for seed in range(3):
        target, draft = pair(target_kind, draft_kind, vocab, seed)
        assert law_error(rule, sampled_chain(draft, length), target) == 0


@for_point_mass
@pytest.mark.parametrize("target_kind", ["dense", "zeros", "one-hot"])
@pytest.mark.parametrize(("vocab", "length"), [(2, 4), (3, 2)])
def test_any_fixed_draft_keeps_the_targets_law(rule: Rule, target_kind: str, vocab: int, length: int) -> None:
    target = random_model(target_kind, vocab, seed=5)
    for tokens in every_string(vocab, length):
        assert law_error(rule, fixed_chain(tokens), target) == 0


@for_sampled
def test_the_empty_draft_is_plain_decoding(rule: Rule) -> None:
    target = random_model("zeros", vocab=4, seed=2)
    law = emitted_law(rule, fixed_chain(()), target)
    assert law == {(token,): p for token, p in enumerate(target(())) if p > 0}


@for_sampled
def test_stopping_after_an_unlikely_token_that_is_kept_stays_exact(rule: Rule) -> None:
    for seed in range(4):
        target, draft = pair("zeros", "dense", vocab=3, seed=seed)
        propose = sampled_chain(draft, 3, stop_after=lambda p: p < Fraction(2, 5))
        lengths = {len(chain) for chain, _, _ in one_round(rule, propose, target)}
        assert len(lengths) > 1, "the draft length does not vary, so nothing is tested"
        assert law_error(rule, propose, target) == 0


@for_sampled
def test_equal_laws_accept_everything(rule: Rule) -> None:
    target = random_model("dense", vocab=3, seed=1)
    law = emitted_law(rule, sampled_chain(target, 3), target)
    if rule not in (POINT_MASS, COUPLED):
        assert mean_emitted(law) == 4
    else:  # these do not know that the draft was drawn from the target's law; they keep it when the draws agree
        assert 1 < mean_emitted(law) < 4


@for_sampled
def test_disjoint_supports_accept_nothing(rule: Rule) -> None:
    target, draft = pair("even", "odd", vocab=4, seed=1)
    assert mean_emitted(emitted_law(rule, sampled_chain(draft, 2), target)) == 1


@pytest.mark.parametrize("length", [1, 2, 3])
def test_the_block_rule_emits_at_least_what_the_token_rule_does(length: int) -> None:
    gains = []
    for seed in range(12):
        target, draft = pair("dense", "dense", vocab=3, seed=seed)
        token, block = (
            mean_emitted(emitted_law(rule, sampled_chain(draft, length), target)) for rule in (TOKEN, BLOCK)
        )
        gains.append(block - token)
    assert all(gain == 0 for gain in gains) if length == 1 else all(gain > 0 for gain in gains)


@for_sampled
def test_the_reported_acceptance_adds_up_to_the_tokens_accepted_on_average(rule: Rule) -> None:
    target, draft = pair("zeros", "dense", vocab=3, seed=4)
    rounds = list(one_round(rule, sampled_chain(draft, 3), target))
    accepted = sum(probability * len(verdict.path) for _, verdict, probability in rounds)
    reported = sum(probability * Fraction(sum(verdict.acceptance)) for _, verdict, probability in rounds)
    assert float(reported) == pytest.approx(float(accepted), rel=1e-12)


def test_one_drafted_token_is_judged_alike_by_the_token_and_the_block_rule() -> None:
    target, draft = pair("zeros", "dense", vocab=4, seed=8)
    propose = sampled_chain(draft, 1)
    assert emitted_law(TOKEN, propose, target) == emitted_law(BLOCK, propose, target)


def test_a_one_hot_draft_law_is_a_point_mass_to_every_rule() -> None:
    target, draft = pair("dense", "one-hot", vocab=3, seed=3)
    by_point_mass = emitted_law(POINT_MASS, fixed_chain(likeliest(draft, 3)), target)
    for rule in (TOKEN, BLOCK, POINT_MASS, COUPLED):
        assert emitted_law(rule, sampled_chain(draft, 3), target) == by_point_mass


def test_a_greedy_target_keeps_the_longest_matching_start_and_nothing_else() -> None:
    target = random_model("one-hot", vocab=3, seed=6)
    plain = likeliest(target, 4)
    for tokens in every_string(3, 3):
        matching = next((i for i in range(3) if tokens[i] != plain[i]), 3)
        for rule in RULES.values():
            laws = np.stack([random_model("dense", 3, 1)(())] * 3) if rule in (TOKEN, BLOCK) else None
            draft = Draft.chain(tokens, laws)
            verdict = rule.verify(draft, target_rows(target, draft), BranchingCoins(), POSITION)
            assert verdict.path == tuple(range(matching))
            assert verdict.next_token == plain[matching]


@for_sampled
def test_next_tokens_are_drawn_for_their_own_positions(rule: Rule) -> None:
    target, draft = pair("dense", "dense", vocab=2, seed=0)

    def program(coins: BranchingCoins) -> tuple[list[int], int]:
        chain = sampled_chain(draft, 2)(coins)
        coins.positions.clear()
        verdict = rule.verify(chain, target_rows(target, chain), coins, POSITION)
        return coins.positions, POSITION + len(verdict.path)

    for (positions, of_next_token), _ in outcomes(program):
        assert positions[-1] == of_next_token
        assert positions == sorted(set(positions))


@for_sampled
@pytest.mark.parametrize(
    ("target_row", "draft_row", "length", "grid"),
    [
        (["1/2", "1/2", "0", "0"], ["1", "0", "0", "0"], 1, 8),
        (["1/2", "1/2", "0", "0"], ["1/4", "1/4", "1/4", "1/4"], 2, 4),
        (["0", "0", "1/2", "1/2"], ["0", "1/4", "3/4", "0"], 1, 12),  # 2/3 is rounded, and must fall on the right side
    ],
)
def test_random_coins_keep_the_law_over_every_uniform_draw_of_a_grid(
    rule: Rule, target_row: list[str], draft_row: list[str], length: int, grid: int
) -> None:
    """The shipped coins on float32 laws whose every chance is a multiple of 1/grid, so that the grid has no error."""
    target, draft = (context_free(*row)(()).astype(np.float32) for row in (target_row, draft_row))
    propose = sampled_chain(lambda prefix: draft, length)
    error = law_error(
        rule, propose, lambda prefix: target, dice=lambda c: RandomCoins(GridUniform(c, grid), GridUniform(c, grid))
    )
    assert error == 0
