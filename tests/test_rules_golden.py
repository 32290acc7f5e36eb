"""Rules against numbers worked out by hand or published beforehand."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from enumeration import (
    POSITION,
    BranchingCoins,
    context_free,
    emitted_law,
    fixed_chain,
    law_error,
    mean_emitted,
    one_round,
    outcomes,
    sampled_chain,
    target_rows,
)
from outrider.core import Coins, Draft
from outrider.rules import RULES, streams
from outrider.rules.chain import block_weights, residual, stop_chance

TWO_TARGET, TWO_DRAFT = context_free("1/3", "2/3"), context_free("2/3", "1/3")
THREE_TARGET, THREE_DRAFT = context_free("2/10", "3/10", "5/10"), context_free("5/10", "3/10", "2/10")


@pytest.mark.parametrize(
    ("length", "token", "block"),
    [(1, "2/3", "2/3"), (2, "10/9", "11/9"), (3, "38/27", "5/3"), (4, "130/81", "166/81")],
)
def test_accepted_tokens_on_two_letters(length: int, token: str, block: str) -> None:
    for name, accepted in (("token", token), ("block", block)):
        law = emitted_law(RULES[name], sampled_chain(TWO_DRAFT, length), TWO_TARGET)
        assert mean_emitted(law) - 1 == Fraction(accepted)


@pytest.mark.parametrize(
    ("length", "token", "block"), [(1, "17/10", "17/10"), (2, "219/100", "9/4"), (3, "2533/1000", "539/200")]
)
def test_emitted_tokens_on_three_letters(length: int, token: str, block: str) -> None:
    for name, emitted in (("token", token), ("block", block)):
        law = emitted_law(RULES[name], sampled_chain(THREE_DRAFT, length), THREE_TARGET)
        assert mean_emitted(law) == Fraction(emitted)


A, B = 0, 1
INSIDES = pytest.mark.parametrize(
    ("tokens", "weights", "masses", "chances", "by_length"),
    [
        ((A, A), "1 1/2 1/4", "1/3 0", "1 0 1/4", "3/4 0 1/4"),
        ((A, B), "1 1/2 1", "1/3 0", "1 0 1", "0 0 1"),
        ((B, A), "1 1 1/2", "1/3 1/3", "1 1 1/2", "0 1/2 1/2"),
        ((B, B), "1 1 1", "1/3 1/3", "1 1 1", "0 0 1"),
    ],
)


def fractions(words: str) -> list[Fraction]:
    return [Fraction(word) for word in words.split()]


def two_letter_draft(tokens: tuple[int, int]) -> Draft:
    return Draft.chain(tokens, np.stack([TWO_DRAFT(())] * 2))


@INSIDES
def test_the_insides_of_the_block_rule(
    tokens: tuple[int, int], weights: str, masses: str, chances: str, by_length: str
) -> None:
    w = block_weights(two_letter_draft(tokens), target_rows(TWO_TARGET, two_letter_draft(tokens)))
    s = [residual(TWO_TARGET(()), TWO_DRAFT(()), w[i]).sum() for i in range(2)]
    h = [stop_chance(w[0], s[0]), stop_chance(w[1], s[1]), w[2]]
    assert (w, s, h) == (fractions(weights), fractions(masses), fractions(chances))


@INSIDES
def test_how_many_tokens_the_block_rule_keeps(
    tokens: tuple[int, int], weights: str, masses: str, chances: str, by_length: str
) -> None:
    draft = two_letter_draft(tokens)
    rounds = one_round(RULES["block"], lambda coins: draft, TWO_TARGET)
    found = [Fraction(0)] * 3
    for _, verdict, probability in rounds:
        assert verdict.acceptance == tuple(map(float, fractions(weights)[1:]))
        found[len(verdict.path)] += probability
    assert found == fractions(by_length)


def test_where_draft_and_target_agree_there_is_no_chance_to_lose_a_token() -> None:
    assert stop_chance(1, 0) == 1
    assert stop_chance(1.0, 0.0) == 1.0
    assert stop_chance(0.5, 0.0) == 0.0


def test_a_refused_first_token_does_not_end_the_block() -> None:
    """The token rule's coin refuses "a" half the time and drops both; the block rule keeps both for sure."""
    draft = two_letter_draft((A, B))
    rows = target_rows(TWO_TARGET, draft)

    def kept(name: str) -> set[int]:
        return {len(v.path) for v, _ in outcomes(lambda coins: RULES[name].verify(draft, rows, coins, POSITION))}

    assert kept("token") == {0, 2}
    assert kept("block") == {2}


def submit_only_a(coins: Coins) -> Draft:
    """Draws from (1/2, 1/2), but shows the token to the target only if it is "a": anticipation."""
    token = coins.categorical(FAIR(()), POSITION)
    return Draft.chain([token], np.stack([FAIR(())])) if token == A else Draft()


FAIR, SEVEN_TO_THREE = context_free("1/2", "1/2"), context_free("7/10", "3/10")


@pytest.mark.parametrize("name", ["token", "block"])
def test_submitting_a_token_because_of_its_value_biases_the_ratio_rules(name: str) -> None:
    law = emitted_law(RULES[name], submit_only_a, SEVEN_TO_THREE)
    first = [sum(p for tokens, p in law.items() if tokens[0] == token) for token in (A, B)]
    assert first == [Fraction(85, 100), Fraction(15, 100)]
    assert law_error(RULES[name], submit_only_a, SEVEN_TO_THREE) == Fraction(15, 100)


@pytest.mark.parametrize("name", ["point-mass", "coupled"])
def test_submitting_a_token_because_of_its_value_is_exact_for_pointwise_rules(name: str) -> None:
    assert law_error(RULES[name], submit_only_a, SEVEN_TO_THREE) == 0


def test_far_laws_accept_four_in_ten_and_leave_one_token() -> None:
    target, draft = context_free("7/10", "1/10", "1/10", "1/10"), context_free("1/10", "7/10", "1/10", "1/10")
    rest = residual(target(()), draft(()))
    assert (rest / rest.sum()).tolist() == [1, 0, 0, 0]
    assert mean_emitted(emitted_law(RULES["token"], sampled_chain(draft, 1), target)) == Fraction(14, 10)


def test_a_greedy_target_refuses_a_token_whose_raw_ratio_is_above_one() -> None:
    """Raw laws q = (.3, .5, .2), p(a) = .2: the ratio 1.5 would keep "a", the greedy law has only "b"."""
    greedy = context_free(0, 1, 0)
    draft = Draft.chain([A], np.stack([context_free("2/10", "4/10", "4/10")(())]))
    for name in ("token", "block"):
        assert emitted_law(RULES[name], lambda coins: draft, greedy) == {(B,): 1}
    assert emitted_law(RULES["point-mass"], fixed_chain((A,)), greedy) == {(B,): 1}


def test_shared_noise_accepts_as_often_as_the_formula_says() -> None:
    """Sum over x of 1 / sum over v of max(p(v)/p(x), q(v)/q(x)) = 41/65; unshared noise would give 29/100."""
    target, draft = (model(()).astype(np.float64) for model in (THREE_TARGET, THREE_DRAFT))
    rule, num_draws = RULES["coupled"], 50_000
    draft_coins, verify_coins = streams(seed=11, coupled=True)
    accepted, rows = 0, np.stack([target, target])
    for position in range(0, 2 * num_draws, 2):  # the next token uses position + 1
        token = draft_coins.categorical(draft, position)
        accepted += len(rule.verify(Draft.chain([token]), rows, verify_coins, position).path)
    rate = 41 / 65
    four_sigma = 4 * (rate * (1 - rate) / num_draws) ** 0.5
    assert accepted / num_draws == pytest.approx(rate, abs=four_sigma)


def test_branching_coins_visit_every_outcome_once() -> None:
    coins_law = [Fraction(1, 3), Fraction(0), Fraction(2, 3)]

    def program(coins: BranchingCoins) -> tuple[bool, int]:
        first = coins.bernoulli(Fraction(1, 4))
        return first, coins.categorical(np.array(coins_law, dtype=object), POSITION) if first else -1

    found = dict(outcomes(program))
    assert found == {(False, -1): Fraction(3, 4), (True, 0): Fraction(1, 12), (True, 2): Fraction(1, 6)}
