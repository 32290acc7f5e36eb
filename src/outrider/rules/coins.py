"""Where chance comes from: coins thrown from random streams, and coins keyed by seed and position.

Rules and drafters see only `core.Coins`; nothing here knows what a draw decides.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from outrider.core import Coins, Law
from outrider.errors import InvalidOption

_CHUNK = 512
_KEYED_STREAM = 3  # streams 0, 1 and 2 of a seed are drafting, acceptance and next token


class RandomCoins:
    """Coins thrown from two independent streams.

    Args:
        accept: the stream of acceptance coins; only its `random()`, uniform on [0, 1), is used.
        next_token: the stream of token draws; only its `random()` is used.
    """

    def __init__(self, accept: np.random.Generator, next_token: np.random.Generator) -> None:
        self.accept, self.next_token = accept, next_token

    def bernoulli(self, probability: Any) -> bool:
        """True with `probability`; the test is strict, so 0 never accepts even if the uniform draw is 0."""
        return bool(self.accept.random() < probability)

    def categorical(self, weights: Law, position: int) -> int:
        """Index i with probability weights[i] / weights.sum(), from one uniform draw; `position` plays no part.

        Args:
            weights: [V] floats, non-negative, finite, not all zero, not necessarily normalised.
            position: ignored.
        """
        return _invert(weights, self.next_token.random())


class KeyedCoins:
    """Coins whose noise is a function of (seed, position) alone: coupled sampling.

    Every token v has a random arrival time E_v / w_v, E_v exponential, and the first to arrive is drawn; with the
    Gumbel noise g_v = -log E_v this is argmax(log w_v + g_v). The noise of a position does not depend on who asks,
    when, how often or with which weights, so two laws that are close mostly give the same token. Source: Daliri,
    Musco, Suresh, "Coupling without communication and drafter-invariant speculative decoding" (2408.07978).

    Args:
        seed: integer >= 0.
    """

    def __init__(self, seed: int) -> None:
        self._key = np.random.SeedSequence(seed, spawn_key=(_KEYED_STREAM,)).generate_state(2, np.uint64)

    def bernoulli(self, probability: Any) -> bool:
        """Refused: an acceptance coin must not depend on the draft, and a draft drawn with this noise does.

        Raises:
            InvalidOption: always.
        """
        raise InvalidOption(
            "rule", "one that throws acceptance coins", '"coupled", where draft and target share their noise'
        )

    def categorical(self, weights: Law, position: int) -> int:
        """Index i with probability weights[i] / weights.sum(), the same for the same seed, position and weights.

        Args:
            weights: [V] floats, non-negative, finite, not all zero, not necessarily normalised.
            position: absolute position of the token, >= 0.
        """
        positive = weights > 0
        candidates = np.count_nonzero(positive)
        assert candidates > 0, "a law without any token"
        if candidates == 1:  # a greedy law needs no noise
            return int(positive.argmax())
        # Times are counted in units of the likeliest token's weight: its own arrival is then finite, so it beats
        # both the excluded tokens and those whose weight is so small that the division overflows.
        noise = self._exponentials(position, len(weights)) * weights.max()
        with np.errstate(over="ignore"):
            arrival = np.divide(noise, weights, out=np.full(len(weights), np.inf), where=positive)
        return int(arrival.argmin())

    def _exponentials(self, position: int, count: int) -> Law:
        """[count] noise; the high word of Philox's 256-bit counter holds the position, so positions never overlap."""
        return np.random.Generator(np.random.Philox(key=self._key, counter=position << 192)).standard_exponential(count)


def streams(seed: int, coupled: bool) -> tuple[Coins, Coins]:
    """A sequence's `draft_coins` and `verify_coins`.

    Args:
        seed: integer >= 0; the same seed gives the same draws, whatever else is in the batch.
        coupled: True gives both the same keyed noise, for the rule "coupled" only; False gives three independent
            streams: drafting, acceptance, next token.

    Raises:
        InvalidOption: if the seed is negative.
    """
    if seed < 0:
        raise InvalidOption("seed", seed, "an integer >= 0")
    if coupled:
        keyed = KeyedCoins(seed)
        return keyed, keyed
    draft, accept, next_token = map(np.random.default_rng, np.random.SeedSequence(seed).spawn(3))
    return RandomCoins(draft, draft), RandomCoins(accept, next_token)


def _invert(weights: Law, uniform: float) -> int:
    """The index at which the cumulative weight passes `uniform` of the total; in two steps, since V is large."""
    sums = np.add.reduceat(weights, np.arange(0, len(weights), _CHUNK), dtype=np.result_type(weights, np.float32))
    chunks = np.cumsum(sums, dtype=np.float64)
    assert 0 < chunks[-1] < np.inf, "weights must be finite, non-negative and not all zero"
    level = uniform * chunks[-1]
    chunk = _first_above(chunks, level)
    start = chunk * _CHUNK
    below = chunks[chunk - 1] if chunk > 0 else 0.0
    return start + _first_above(np.cumsum(weights[start : start + _CHUNK], dtype=np.float64), level - below)


def _first_above(cumulative: Law, level: float) -> int:
    """First index above the level >= 0, else the last that added anything: either way its weight is positive."""
    index = int(np.searchsorted(cumulative, level, side="right"))
    return index if index < len(cumulative) else int(np.searchsorted(cumulative, cumulative[-1], side="left"))
