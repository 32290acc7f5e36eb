"""Laws that break careless code, and coins whose uniform draw is forced to its extremes."""

from __future__ import annotations

import numpy as np
import torch

from outrider.core import Law
from outrider.rules import RandomCoins

LARGEST_BELOW_ONE = 1 - 2.0**-53


class SameDraw:
    """Stands for a random stream that always draws the same number."""

    def __init__(self, uniform: float) -> None:
        self.uniform = uniform

    def random(self) -> float:
        return self.uniform


def forced(uniform: float) -> RandomCoins:
    return RandomCoins(SameDraw(uniform), SameDraw(uniform))


def rounded(row: Law, dtype: torch.dtype) -> Law:
    """The row as a low-precision softmax would give it: its sum is off by up to a per cent."""
    return torch.from_numpy(row).to(dtype).float().numpy()


def softmax(logits: Law, temperature: float) -> Law:
    scaled = (logits - logits.max()) / temperature
    return np.exp(scaled) / np.exp(scaled).sum()


def awkward_laws() -> list[Law]:
    dice = np.random.default_rng(0)
    logits = dice.normal(size=1500) * 3
    logits[[100, 700]] = logits.max()  # a tie that stays at temperature 1e-6
    laws = [softmax(logits, temperature) for temperature in (1e-6, 1e-3, 0.01, 1.0, 100.0)]
    laws += [rounded(law, dtype) for law in laws for dtype in (torch.bfloat16, torch.float16)]
    laws += [
        np.array([0.0, 0.0, 5e-324, 0.0]),
        np.array([0.0, 1e-310, 1.0, 0.0]),
        np.array([0.0, 1e-315, 2e-315, 0.0]),
        np.array([0.0, 1e-45, 0.0], np.float32),
    ]
    cut = np.where(laws[3] > 2e-4, laws[3], 0.0)
    return [*laws, cut, cut.astype(np.float32), np.eye(1, 2048, 2047)[0]]


def hard_pairs() -> list[tuple[Law, Law]]:
    """(target, draft) rows: nearly equal, rounded, nearly one-hot, disjoint."""
    pairs = []
    for law in awkward_laws():
        wobble = 1 + 1e-7 * np.where(np.arange(len(law)) % 2, 1, -1)
        flat = np.full(len(law), 1 / len(law), dtype=law.dtype)
        pairs += [(law, law.copy()), (law, law * wobble), (law * wobble, law), (law, flat), (flat, law)]
        pairs += [(law, law[::-1].copy()), (rounded(law, torch.bfloat16), law)]
    return [(target, draft) for target, draft in pairs if target.any() and draft.any()]
