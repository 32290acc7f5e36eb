"""What forwards cost on this machine, measured. It knows models, not drafts."""

from __future__ import annotations

from statistics import median
from time import perf_counter

import torch

from outrider.core import Block, Model

WIDTH = 16
"""Rows of the wide forward that is compared with one row."""

REPEATS = 5


def row_cost(model: Model) -> float:
    """Cost of one more row in a block, in units of a forward of one row; at least 0.

    The slope between 1 and `WIDTH` rows, from interleaved forwards on an empty cache, in steps of a twentieth: so small
    differences between two measurements mostly do not change the trees that are grown with it.
    """
    wide = min(WIDTH, model.context_length)
    narrow_seconds, wide_seconds = _medians([(model, 1), (model, wide)])
    return round(20 * max(0.0, wide_seconds / narrow_seconds - 1) / max(1, wide - 1)) / 20


def relative_cost(draft: Model, target: Model) -> float:
    """Seconds of a one-row forward of the draft model, in units of the target's, 0.1 or more, in tenths."""
    draft_seconds, target_seconds = _medians([(draft, 1), (target, 1)])
    return max(0.1, round(draft_seconds / target_seconds, 1))


def _medians(forwards: list[tuple[Model, int]]) -> list[float]:
    """Median seconds of each (model, number of rows), all in turn; the first turn warms up."""
    taken: list[list[float]] = [[] for _ in forwards]
    caches = [model.new_cache(1, width) for model, width in forwards]
    for repeat in range(REPEATS + 1):
        for (model, width), cache, times in zip(forwards, caches, taken, strict=True):
            row = torch.arange(width)[None]
            start = perf_counter()
            model.forward(Block(row % model.vocab_size, row, (0,), (width,)), cache)
            if repeat > 0:
                times.append(perf_counter() - start)
    return [median(times) for times in taken]
