"""Statistics of a stream of tokens whose laws are known: martingales, uniforms, and a bound by concentration.

Every bound holds for dependent tokens: given all that came before it, a token has its stated law, and nothing more is
assumed. Sources: Freedman's inequality (1975); Ville's (1939); the L1 concentration of Weissman et al. (2003), here for
martingales.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from outrider.core import Law

BETS = tuple(sign * size for size in (0.03, 0.1, 0.3, 0.6) for sign in (1, -1))
CELLS = 4


@dataclass
class Shift:
    """Sum of D = 1[token in A] - q(A), A known beforehand; above 0 if tokens fall into A too often.

    `peak` is the largest e-value so far: the mean of the wealth of several bets on a shift, up or down. It exceeds 1/x
    at any time with probability x at most if the law is right.
    """

    count: int = 0
    total: float = 0.0
    variance: float = 0.0
    peak: float = 1.0
    _wealth: list[float] = field(default_factory=lambda: [0.0] * len(BETS))

    def add(self, inside: bool, mass: float) -> None:
        """One token: was it in A, whose mass is q(A)?"""
        difference = float(inside) - mass
        self.count += 1
        self.total += difference
        self.variance += mass * (1 - mass)
        self._wealth = [w + math.log1p(bet * difference) for w, bet in zip(self._wealth, BETS, strict=True)]
        self.peak = max(self.peak, sum(math.exp(min(w, 700.0)) for w in self._wealth) / len(BETS))

    @property
    def z(self) -> float:
        """The sum in standard deviations; 0 if nothing was left to chance."""
        return self.total / math.sqrt(self.variance) if self.variance > 0 else 0.0

    @property
    def p_value(self) -> float:
        """Two-sided, by Freedman's inequality: never too small, however rare the tokens of A are."""
        size = abs(self.total)
        return min(1.0, 2 * math.exp(-(size**2) / (2 * (self.variance + size / 3)))) if size > 0 else 1.0

    @property
    def mean(self) -> float:
        """A lower bound on the mean total variation, if the shift is real."""
        return self.total / self.count if self.count else 0.0


@dataclass
class Uniforms:
    """Values that are independent and uniform on [0, 1] if every token had its stated law."""

    values: list[float] = field(default_factory=list)

    def add(self, value: float) -> None:
        """The next one."""
        self.values.append(min(max(value, 0.0), 1.0))

    def distance(self) -> float:
        """Kolmogorov's distance from the uniform distribution."""
        ordered, count = np.sort(self.values), len(self.values)
        steps = np.arange(count + 1) / count
        return float(max((steps[1:] - ordered).max(), (ordered - steps[:-1]).max()))

    def p_value(self) -> float:
        """Of the Kolmogorov-Smirnov test, with Stephens' correction; 1 for fewer than 8 values."""
        count = len(self.values)
        if count < 8:
            return 1.0
        scaled = (math.sqrt(count) + 0.12 + 0.11 / math.sqrt(count)) * self.distance()
        terms = ((-1) ** (j - 1) * math.exp(-2 * (j * scaled) ** 2) for j in range(1, 101))
        return min(1.0, max(0.0, 2 * sum(terms))) if scaled > 0.2 else 1.0

    def p_value_of_order(self) -> float:
        """Of the correlation between neighbours."""
        centred = np.asarray(self.values) - 0.5
        if len(centred) < 32:
            return 1.0
        return two_sided(float((centred[1:] * centred[:-1]).sum()) * 12 / math.sqrt(len(centred) - 1))

    def distance_in_cells(self) -> float:
        """Total variation between the shares of `CELLS` equal cells and what they should be; 1 without values."""
        if not self.values:
            return 1.0
        counts = np.bincount((np.asarray(self.values) * CELLS).astype(int).clip(0, CELLS - 1), minlength=CELLS)
        return float(abs(counts / len(self.values) - 1 / CELLS).sum()) / 2


def two_sided(z: float) -> float:
    """P(|N| >= |z|) of a standard normal N."""
    return math.erfc(abs(z) / math.sqrt(2))


def slack(count: int, confidence: float) -> float:
    """How far shares of `CELLS` cells may be from their mean law, in total variation, at this confidence."""
    return math.sqrt((CELLS * math.log(2) - math.log(1 - confidence)) / (2 * count)) if count else 1.0


def needed(distance: float, confidence: float) -> int:
    """How many samples keep the slack within half a distance."""
    return math.ceil((CELLS * math.log(2) - math.log(1 - confidence)) / (2 * (distance / 2) ** 2))


def rank(scores: Law, law: Law, token: int, place: float) -> float:
    """A token's place in the law [V] when tokens are ordered by falling score; equal scores share theirs at random.

    Args:
        scores: [V].
        law: [V] float64, sums to 1.
        token: that was drawn from the law, supposedly; then the result is uniform.
        place: uniform on [0, 1), independent of everything.
    """
    mine = scores[token]
    return float(law[scores > mine].sum() + place * law[scores == mine].sum())
