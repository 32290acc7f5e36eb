"""The production coins: right law, no token of weight zero, independent streams."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from hard_laws import LARGEST_BELOW_ONE, awkward_laws, forced
from outrider.core import Coins, Draft, Law
from outrider.errors import InvalidOption
from outrider.rules import RULES, KeyedCoins, RandomCoins, streams

NEVER_BY_CHANCE = 1e-5  # p-value below which a law is called wrong; seeds are fixed, so no test flickers


def chi_square(draw: Callable[[int], int], weights: Law, num_draws: int) -> float:
    """P-value of `num_draws` draws against the law; a draw of a token of weight zero gives 0."""
    counts = np.bincount([draw(i) for i in range(num_draws)], minlength=len(weights))
    possible = weights > 0
    if counts[~possible].any():
        return 0.0
    expected = weights[possible] / weights[possible].sum() * num_draws
    return float(stats.chisquare(counts[possible], expected).pvalue)


UNNORMALISED = np.array([0, 3, 1, 0, 6, 2, 0.5, 0], dtype=np.float32)


@pytest.mark.parametrize("role", [0, 1], ids=["draft", "verify"])
@pytest.mark.parametrize("coupled", [True, False])
def test_tokens_are_drawn_with_their_weights(role: int, coupled: bool) -> None:
    coins = streams(3, coupled=coupled)[role]
    pvalue = chi_square(lambda i: coins.categorical(UNNORMALISED, i), UNNORMALISED, 20_000)
    assert pvalue > NEVER_BY_CHANCE
    # Negative control: the same check sees weights that are a tenth off.
    skewed = UNNORMALISED * np.array([1, 1.1, 1, 1, 0.9, 1, 1, 1])
    assert chi_square(lambda i: coins.categorical(skewed, i), UNNORMALISED, 20_000) < NEVER_BY_CHANCE


def test_a_long_law_is_drawn_over_all_its_chunks() -> None:
    _, coins = streams(4, coupled=False)
    weights = np.random.default_rng(1).random(1300)
    by_hundreds = weights.reshape(13, 100).sum(axis=1)
    assert chi_square(lambda i: coins.categorical(weights, i) // 100, by_hundreds, 20_000) > NEVER_BY_CHANCE


def test_acceptance_coins_fall_as_often_as_asked() -> None:
    _, coins = streams(5, coupled=False)
    for probability in (0.02, 0.5, 0.9):
        fallen = sum(coins.bernoulli(probability) for _ in range(20_000))
        assert stats.binomtest(fallen, 20_000, probability).pvalue > NEVER_BY_CHANCE


@pytest.mark.parametrize("uniform", [0.0, LARGEST_BELOW_ONE])
def test_extreme_draws_respect_certainty(uniform: float) -> None:
    assert not forced(uniform).bernoulli(0.0)
    assert forced(uniform).bernoulli(1.0)


@pytest.mark.parametrize("uniform", [0.0, 5e-324, 0.1, 0.5, 1 - 2.0**-30, LARGEST_BELOW_ONE])
def test_extreme_draws_never_give_a_token_of_weight_zero(uniform: float) -> None:
    for law in awkward_laws():
        token = forced(uniform).categorical(law, 0)
        assert law[token] > 0


def test_extreme_draws_give_the_first_and_the_last_possible_token() -> None:
    weights = np.zeros(2000, dtype=np.float32)
    weights[[3, 600, 1999 - 300]] = [0.25, 0.5, 0.25]
    assert forced(0.0).categorical(weights, 0) == 3
    assert forced(0.5).categorical(weights, 0) == 600
    assert forced(LARGEST_BELOW_ONE).categorical(weights, 0) == 1699


def test_every_chunk_boundary_is_met() -> None:
    """Equal weights and a draw in the middle of each token's share: token i and no neighbour."""
    weights = np.full(1100, 1 / 1100)
    assert [forced((i + 0.5) / 1100).categorical(weights, 0) for i in range(1100)] == list(range(1100))


def test_keyed_coins_never_give_a_token_of_weight_zero() -> None:
    coins = KeyedCoins(1)
    for law in awkward_laws():
        for position in range(20):
            assert law[coins.categorical(law, position)] > 0


class StoppedNoise(KeyedCoins):
    """Keyed coins in which every exponential is 0, the worst that a random stream can give."""

    def _exponentials(self, position: int, count: int) -> Law:
        return np.zeros(count)


def test_keyed_noise_of_zero_never_gives_a_token_of_weight_zero() -> None:
    for law in awkward_laws():
        assert law[StoppedNoise(1).categorical(law, 0)] > 0


def test_keyed_draws_depend_on_seed_and_position_only() -> None:
    weights = np.random.default_rng(2).random(1000)
    forwards = [KeyedCoins(9).categorical(weights, position) for position in range(30)]
    one = KeyedCoins(9)
    for position in reversed(range(30)):
        one.categorical(weights[:500], position)  # other questions in between, at the same position
        assert one.categorical(weights, position) == forwards[position]
    assert len(set(forwards)) > 20
    assert [KeyedCoins(10).categorical(weights, position) for position in range(30)] != forwards


def test_keyed_draws_at_neighbouring_positions_are_independent() -> None:
    """Noise that overlaps shows as a constant shift between the tokens of neighbouring positions."""
    coins, flat = KeyedCoins(13), np.ones(64)
    tokens = [coins.categorical(flat, i) for i in range(4001)]
    for i in (1, 2):
        shifts = np.subtract(tokens[i:], tokens[:-i]) % 64
        assert chi_square(lambda j, shifts=shifts: shifts[j], flat, len(shifts)) > NEVER_BY_CHANCE


def test_keyed_draws_of_close_laws_mostly_agree() -> None:
    """The point of shared noise; two unshared draws from 1,000 tokens would hardly ever agree."""
    weights = np.random.default_rng(3).random(1000)
    close = weights * np.random.default_rng(4).uniform(0.95, 1.05, size=1000)
    coins = KeyedCoins(2)
    agreeing = sum(coins.categorical(weights, i) == coins.categorical(close, i) for i in range(300))
    assert agreeing > 270


def test_keyed_coins_do_not_mind_a_padded_vocabulary() -> None:
    weights = np.random.default_rng(5).random(700)
    padded = np.concatenate([weights, np.zeros(300)])
    coins = KeyedCoins(6)
    assert all(coins.categorical(weights, i) == coins.categorical(padded, i) for i in range(50))


def test_keyed_coins_refuse_to_be_thrown_for_acceptance() -> None:
    _, coins = streams(1, coupled=True)
    with pytest.raises(InvalidOption, match="coupled"):
        coins.bernoulli(0.5)


@pytest.mark.parametrize("coupled", [True, False])
def test_a_negative_seed_is_refused(coupled: bool) -> None:
    with pytest.raises(InvalidOption, match="seed is -1; allowed: an integer >= 0"):
        streams(-1, coupled=coupled)


@pytest.mark.parametrize("coupled", [True, False])
def test_the_same_seed_gives_the_same_draws(coupled: bool) -> None:
    weights = np.random.default_rng(6).random(1000)

    def draws(seed: int) -> list[int]:
        return [coins.categorical(weights, i) for coins in streams(seed, coupled=coupled) for i in range(20)]

    assert draws(7) == draws(7)
    assert draws(7) != draws(8)


def test_drawing_from_one_stream_moves_no_other() -> None:
    weights = np.random.default_rng(6).random(1000)
    for drawn_first in (0, 5):
        draft, verify = streams(7, coupled=False)
        for i in range(drawn_first):
            draft.categorical(weights, i)
        accepted = [verify.bernoulli(0.5) for _ in range(40)]
        tokens = [verify.categorical(weights, i) for i in range(10)]
        if drawn_first == 0:
            expected = accepted, tokens
    assert (accepted, tokens) == expected


def correlation(a: list[float], b: list[float]) -> float:
    return float(abs(np.corrcoef(a, b)[0, 1]))


def test_no_stream_of_a_seed_says_anything_about_another() -> None:
    """Flat laws, so that the token is the draw itself; |correlation| of independent draws is below 4 / sqrt(n)."""
    num_draws, flat = 4000, np.ones(64)
    draft, verify = streams(12, coupled=False)
    keyed, _ = streams(12, coupled=True)
    assert isinstance(verify, RandomCoins)
    columns = {
        "draft": [draft.categorical(flat, i) for i in range(num_draws)],
        "acceptance": list(verify.accept.random(num_draws)),
        "next token": [verify.categorical(flat, i) for i in range(num_draws)],
        "keyed": [keyed.categorical(flat, i) for i in range(num_draws)],
    }
    names = list(columns)
    for i, one in enumerate(names):
        for other in names[:i]:
            assert correlation(columns[one], columns[other]) < 4 / num_draws**0.5, (one, other)
    # Negative control: a second generator of the drafting stream.
    shared, _ = streams(12, coupled=False)
    assert isinstance(shared, RandomCoins)
    assert correlation(list(shared.accept.random(num_draws)), columns["draft"]) > 0.9


TARGET_ROW = np.array([0.05, 0.30, 0.02, 0.13, 0.2, 0.0, 0.1, 0.2], dtype=np.float32)
DRAFT_ROW = np.array([0.25, 0.10, 0.15, 0.1, 0.1, 0.1, 0.15, 0.05], dtype=np.float32)


def emitted_first_tokens(name: str, draft_coins: Coins, verify_coins: Coins) -> Callable[[int], int]:
    """Draws one token, verifies it and gives the first token that the round emits."""
    drafts, targets = DRAFT_ROW[None], np.stack([TARGET_ROW, TARGET_ROW])

    def draw(i: int) -> int:
        token = draft_coins.categorical(DRAFT_ROW, 2 * i)
        verdict = RULES[name].verify(Draft.chain([token], drafts), targets, verify_coins, 2 * i)
        return token if verdict.path else verdict.next_token

    return draw


@pytest.mark.parametrize(
    ("name", "coupled"),
    [("token", False), ("block", False), ("point-mass", False), ("coupled", False), ("coupled", True)],
)
def test_a_round_with_the_streams_of_a_seed_has_the_targets_law(name: str, coupled: bool) -> None:
    draw = emitted_first_tokens(name, *streams(21, coupled=coupled))
    assert chi_square(draw, TARGET_ROW, 20_000) > NEVER_BY_CHANCE


@pytest.mark.parametrize("name", ["token", "block", "point-mass"])
def test_acceptance_coins_from_the_stream_that_drafted_bias_the_law(name: str) -> None:
    """Negative control: draft and verifier each throw the same generator from the same seed."""
    draft_dice, accept_dice, next_dice = (np.random.default_rng(21) for _ in range(3))
    draw = emitted_first_tokens(name, RandomCoins(draft_dice, draft_dice), RandomCoins(accept_dice, next_dice))
    assert chi_square(draw, TARGET_ROW, 20_000) < NEVER_BY_CHANCE
