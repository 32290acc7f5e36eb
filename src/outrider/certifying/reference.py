"""Plain decoding, apart from the engine: logits and laws of a text from a fresh prefill; how far rounding reaches."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from outrider.core import Block, Law, Model, Sequence
from outrider.options import Sampling
from outrider.rules import RandomCoins
from outrider.sampling import laws

CHUNK = 256
WIDTH = 32
"""Rows of a forward with logits."""

MARGIN = 10.0
"""How many times as far as plain ways of decoding are from each other two laws may be, and still count as equal."""

FLOOR = 1e-6
LIKELY = 10


@dataclass(frozen=True)
class Drift:
    """How far the same position is from itself when it is computed plainly in other shapes; 0 where bits agree.

    Args:
        law: total variation.
        logit: of the likeliest tokens' logits.
    """

    law: float
    logit: float

    @property
    def law_limit(self) -> float:
        """Two laws that are closer count as equal."""
        return MARGIN * self.law + FLOOR

    @property
    def gap_limit(self) -> float:
        """Two tokens whose logits are closer count as tied."""
        return 4 * self.logit + FLOOR


class Reference:
    """The target's own laws.

    Args:
        target: the model.
        prompts: token ids; each is read once.
        sampling: the law's settings.
        stop_ids: which `min_new_tokens` and processors heed.
        capacity: most tokens of prompt and text.
    """

    def __init__(
        self,
        target: Model,
        prompts: Ordered[tuple[int, ...]],
        sampling: Sampling,
        stop_ids: frozenset[int],
        capacity: int,
    ) -> None:
        self.target, self.prompts, self.sampling, self.stop_ids = target, prompts, sampling, stop_ids
        self._cache: Any = target.new_cache(len(prompts) + 1, capacity)
        self._work, self._read = len(prompts), set[int]()

    def logits(self, place: int, new: Ordered[int], width: int = WIDTH, *, masked: bool = False) -> torch.Tensor:
        """[len(new) + 1, V] after the prompt and after each new token.

        Args:
            place: number of the prompt.
            new: what follows it.
            width: rows of a forward.
            masked: tell the target as a tree of one branch what a row may see.
        """
        prompt = self.prompts[place]
        self._prefill(place)
        self._cache.copy(place, self._work)
        tokens, rows = [prompt[-1], *new], list[torch.Tensor]()
        for start in range(0, len(tokens), width):
            rows.append(self._forward(self._work, tokens[start : start + width], masked=masked))
        return torch.cat(rows)

    def law(self, place: int, new: Ordered[int], logits: torch.Tensor) -> Law:
        """[V] after the prompt and all of `new`, from the logits [V] there; each history is taken as a whole."""
        sequence = self._sequence(place, new, self.sampling)
        return np.asarray(laws(logits[None], sequence, [()])[0])

    def gap(self, place: int, new: Ordered[int], logits: torch.Tensor, first: int, second: int) -> float:
        """How much more likely one token is than another before temperature and filters, in nats."""
        bare = replace(self.sampling, temperature=1.0, top_k=None, top_p=1.0, min_p=0.0)
        law = laws(logits[None], self._sequence(place, new, bare), [()])[0]
        with np.errstate(divide="ignore", invalid="ignore"):
            gap = abs(float(np.log(law[first]) - np.log(law[second])))
        return gap if np.isfinite(gap) else float("inf")

    def drift(self, place: int, new: Ordered[int]) -> Drift:
        """Between forwards of many rows, of one row and, if the target takes trees, of a masked few."""
        wide, found = self.logits(place, new), Drift(0.0, 0.0)
        ways = [(1, False), *([(8, True)] if self.target.takes_trees else [])]
        for width, masked in ways:
            other = self.logits(place, new, width, masked=masked)
            for i in range(len(wide)):
                there, here = (self.law(place, new[:i], each[i]) for each in (wide, other))
                likely = wide[i].topk(min(LIKELY, len(wide[i]))).indices
                moved = (wide[i] - other[i])[likely].abs().nan_to_num(0.0).max().item()
                found = Drift(max(found.law, apart(there, here)), max(found.logit, moved))
        return found

    def _prefill(self, place: int) -> None:
        if place in self._read:
            return
        before = list(self.prompts[place][:-1])
        self._cache.truncate(place, 0)
        for start in range(0, len(before), CHUNK):
            self._forward(place, before[start : start + CHUNK], prefill=True)
        self._read.add(place)

    def _forward(self, slot: int, tokens: list[int], *, prefill: bool = False, masked: bool = False) -> torch.Tensor:
        start, n = self._cache.lengths[slot], len(tokens)
        mask = torch.ones(1, n, n, dtype=torch.bool).tril() if masked else None
        places = torch.arange(start, start + n)[None]
        output = self.target.forward(
            Block(torch.tensor([tokens]), places, (slot,), (n,), mask, prefill=prefill), self._cache
        )
        self._cache.commit(slot, range(n))
        return torch.empty(0) if output.logits is None else output.logits[0, :n].cpu().clone()

    def _sequence(self, place: int, new: Ordered[int], sampling: Sampling) -> Sequence:
        prompt, dice = self.prompts[place], np.random.default_rng(0)
        coins = RandomCoins(dice, dice)
        return Sequence(0, [*prompt, *new], len(prompt), sampling, coins, coins, self.stop_ids)


def total_variation(one: Law, other: Law) -> float:
    """Between two laws [V], each divided by its sum."""
    a, b = one.astype(np.float64), other.astype(np.float64)
    return float(abs(a / a.sum() - b / b.sum()).sum()) / 2


def apart(one: Law, other: Law) -> float:
    """Total variation; tokens at the very edge of top-k, top-p or min-p, which rounding moves in or out, are left out.

    They are told by being, where they are in, the least likely of all, as far as rounding goes.
    """
    both, only = (one > 0) & (other > 0), (one > 0) != (other > 0)
    if not only.any() or not both.any():
        return total_variation(one, other)
    least = min(one[both].min(), other[both].min())
    outside = np.where(only, one + other, 0)
    if outside.max() > 1.1 * least or outside.sum() > 0.5:
        return total_variation(one, other)
    return total_variation(one[both], other[both])
