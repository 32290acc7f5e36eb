"""What forwards and drafts cost on this machine: measured once per machine, model and precision, and kept.

Kept, because what is drafted follows from it, and so does the text of a seed at temperatures above 0: the same machine
must not find another cost in every run.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch

from outrider.core import Block, Model
from outrider.planning.machine import processor
from outrider.storage import cache_folder

FEW_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 17)
"""Rows of one sequence, where each tells: some kernels take a step every four or eight of them."""

WIDTH = 8
"""Rows per sequence of the wide round that is compared with a plain one."""

MOST_ROWS = 256
"""Rows of the widest forward that is measured; beyond it costs are extrapolated."""

MOST_SEQUENCES = 16
"""Sequences that drafting is measured for, at most."""

LEAST_LEVEL = 0.01
"""Of drafting one token further, in plain rounds."""

REPEATS, SECONDS = 5, 2.0
"""Forwards of each width, and seconds after which no more are begun: one of each is timed in any case."""


@dataclass(frozen=True)
class VerifyCost:
    """What a forward costs by its rows, those of all sequences together.

    Args:
        rows: [n] ascending, at least 2 of them.
        units: [n] of a forward of rows[0] rows, the first 1.0, never falling.
    """

    rows: tuple[int, ...]
    units: tuple[float, ...]

    def __call__(self, rows: float) -> float:
        """Of so many rows, between and beyond those that were measured in straight lines."""
        right = min(max(1, bisect_right(self.rows, rows)), len(self.rows) - 1)
        (low, high), (least, most) = self.rows[right - 1 : right + 1], self.units[right - 1 : right + 1]
        return least + (most - least) * (rows - low) / (high - low)

    def drafting(self, sequences: int) -> Callable[[float], float]:
        """From the nodes that each of so many sequences drafts to a forward's cost, in units of one without drafts."""
        plain = self(sequences)
        return lambda nodes: self((1 + nodes) * sequences) / plain

    def per_row(self, sequences: int = 1) -> float:
        """Of one more row of one sequence, at least 0, in units of what a plain round costs each of so many."""
        return max(0.0, round((self(WIDTH * sequences) / self(sequences) - 1) / (WIDTH - 1), 2))


def verify_cost(model: Model, slots: int = 1) -> VerifyCost:
    """What forwards of this model cost: as kept, or measured now.

    Args:
        model: anything that can be run.
        slots: sequences decoded together, at most.
    """
    widest = min(MOST_ROWS, max(FEW_ROWS[-1], WIDTH * slots), model.context_length)
    widths = sorted({1, *(width for width in (*FEW_ROWS, WIDTH**2) if width < widest), max(2, widest)})
    kept = _kept(model)
    found = _read(kept)
    if any(width not in found for width in widths):
        found = dict(zip(widths, _medians([(model, width) for width in widths]), strict=True))
        _write(kept, found)
    seconds = list(accumulate((found[width] for width in sorted(found)), max))  # more rows never cost less
    return VerifyCost(tuple(sorted(found)), tuple(each / seconds[0] for each in seconds))


@dataclass(frozen=True)
class LevelCost:
    """What drafting one token further costs, by the sequences that are drafted for together.

    Args:
        sequences: [n] ascending.
        units: [n] of a plain round of as many sequences.
    """

    sequences: tuple[int, ...]
    units: tuple[float, ...]

    def __call__(self, sequences: int) -> float:
        """For so many: between those that were measured on straight lines, beyond them as for the last."""
        return float(np.interp(sequences, self.sequences, self.units))


def level_cost(model: Model, draft: str, slots: int, measured: Callable[[int], float]) -> LevelCost:
    """What drafts for this model cost: as kept, or measured now.

    Args:
        model: the target.
        draft: what tells the drafter from others.
        slots: sequences decoded together, at most.
        measured: from sequences to units, see `LevelCost`.
    """
    sizes, kept = sorted({1, min(slots, MOST_SEQUENCES)}), _kept(model, draft)
    found = _read(kept)
    if any(size not in found for size in sizes):
        found |= {size: max(LEAST_LEVEL, round(measured(size), 2)) for size in sizes if size not in found}
        _write(kept, found)
    return LevelCost(tuple(sorted(found)), tuple(found[size] for size in sorted(found)))


def fingerprint(model: Model) -> dict[str, Any]:
    """What costs depend on: the machine, the threads, the shape of the model and its precision."""
    device = torch.device(getattr(model, "device", "cpu"))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    machine = {"processor": name, "cores": os.cpu_count(), "threads": torch.get_num_threads()}
    shape = repr(getattr(model, "config", None))
    return {
        **machine,
        "torch": torch.__version__,
        "model": type(model).__name__,
        "shape": shape,
        "precision": model.precision,
    }


def _kept(model: Model, draft: str = "") -> Path | None:
    """Where the costs of a model, or of drafts for it, are kept; None for a model whose shape is not known."""
    if getattr(model, "config", None) is None:
        return None
    text = json.dumps({**fingerprint(model), **({"draft": draft} if draft else {})}, sort_keys=True)
    return cache_folder("costs") / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


def _read(path: Path | None) -> dict[int, float]:
    """Seconds by rows, or units by sequences; what cannot be read is measured again."""
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path is not None else {}
        seconds = {int(rows): float(taken) for rows, taken in found.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
    return seconds if all(rows > 0 and 0 < taken < 1e6 for rows, taken in seconds.items()) else {}


def _write(path: Path | None, seconds: dict[int, float]) -> None:
    """Keep them, if there is a place; without one they are measured in every run."""
    if path is None:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps(seconds), encoding="utf-8")
        new.replace(path)


def _medians(forwards: Iterable[tuple[Model, int]]) -> list[float]:
    """Median seconds of each (model, number of rows), all in turn; the first turn warms up."""
    each = [(model, width, model.new_cache(1, width), list[float]()) for model, width in forwards]
    begun = perf_counter()
    for repeat in range(REPEATS + 1):
        if repeat > 1 and perf_counter() - begun > SECONDS:
            break
        for model, width, room, taken in each:
            row = torch.arange(width)[None]
            start = perf_counter()
            model.forward(Block(row % model.vocab_size, row, (0,), (width,)), room)
            if repeat > 0:
                taken.append(perf_counter() - start)
    return [median(taken) for _, _, _, taken in each]
