"""What forwards and drafts cost on this machine: measured once per machine, model and precision, and kept.

Kept, because what is drafted follows from it, and so does the text of a seed at temperatures above 0: the same machine
must not find another cost in every run.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from outrider.core import Block, Model
from outrider.planning.machine import processor
from outrider.storage import cache_folder

MORE_ALONE, MORE = (0, 1, 2, 3, 4, 5, 6, 7, 8, 16), (0, 1, 2, 4, 8)
"""Rows beyond one of each sequence in the forwards that are measured: some kernels take a step every four or eight."""

WIDTHS = (2, 4, 8)
"""Rows of each sequence in those where all draft alike."""

SIZES = (1, 4, 16, 64)
"""Sequences in one forward; the largest that are wanted are measured too, beyond the last costs are extrapolated."""

MOST_ROWS = 256
"""Rows of the widest forward that is measured."""

LEAST_LEVEL = 0.01
"""Of drafting one token further, in plain rounds."""

MOST_SEQUENCES = 16
"""Sequences that drafting is measured for, at most."""

REPEATS, SECONDS = 5, 6.0
"""Forwards of each kind, and seconds after which no more are begun: one of each is timed in any case."""

FORWARD = re.compile("[1-9][0-9]{0,5}x[1-9][0-9]{0,5}")
"""Name of a forward that is kept: sequences, and rows of all of them."""

KEPT = re.compile(FORWARD.pattern + "|level [0-9a-f]{16} [1-9][0-9]{0,5}")
"""The same, or a digest of the drafter and the sequences whose drafts were timed."""

DISTURBED = 0.3
"""What is kept was measured while the machine did other things if a forward takes less now by this share."""

TELLING = 1e-3
"""Seconds of a forward from which that can be told."""


@dataclass(frozen=True)
class VerifyCost:
    """What a forward costs, by its sequences and its rows.

    Args:
        curves: by the number of sequences, at least one, the rows of all of them together, ascending and at least two,
            with the seconds of such a forward, never falling.
    """

    curves: Mapping[int, tuple[tuple[int, float], ...]]

    def __call__(self, rows: float, sequences: int = 1) -> float:
        """Seconds with so many rows, in straight lines between and beyond what was measured."""
        sizes = sorted(self.curves)
        if sequences >= sizes[-1]:  # as many rows of fewer sequences
            return _on(self.curves[sizes[-1]], rows)
        above = bisect_right(sizes, sequences)
        low, high = sizes[above - 1], sizes[above]
        share = (sequences - low) / (high - low)
        few, many = (_on(self.curves[size], rows / sequences * size) for size in (low, high))
        return few + share * (many - few)

    def per_row(self, sequences: int = 1) -> float:
        """Of one more row of one sequence, at least 0, in units of what a plain round costs each of so many."""
        wide = self(WIDTHS[-1] * sequences, sequences) / self(sequences, sequences)
        return max(0.0, round((wide - 1) / (WIDTHS[-1] - 1), 2))


def _on(curve: tuple[tuple[int, float], ...], rows: float) -> float:
    right = min(max(1, bisect_right(curve, rows, key=itemgetter(0))), len(curve) - 1)
    (low, least), (high, most) = curve[right - 1 : right + 1]
    return max(0.0, least + (most - least) * (rows - low) / (high - low))


def verify_cost(model: Model, slots: int = 1) -> VerifyCost:
    """What forwards of this model cost: as kept, or measured now.

    Args:
        model: anything that can be run.
        slots: sequences decoded together, at most.
    """
    kept = _kept(model)
    found, wanted = _forwards(_read(kept)), list(_shapes(slots, model.context_length))
    if found and found[1, 1] > TELLING and _least(model, [(1, 1)])[0] < (1 - DISTURBED) * found[1, 1]:
        found = {}
        _write(kept, {})
    if any(shape not in found for shape in wanted):
        found |= dict(zip(wanted, _least(model, wanted), strict=True))
        _write(kept, _read(kept) | {f"{size}x{rows}": seconds for (size, rows), seconds in found.items()})
    return VerifyCost({size: _curve(found, size) for size in sorted({size for size, _ in found})})


def _shapes(slots: int, context_length: int) -> Iterator[tuple[int, int]]:
    """(sequences, rows of all of them) of the forwards that are measured."""
    most = min(slots, SIZES[-1])
    for size in sorted({*(size for size in SIZES if size < most), most}):
        rows = {*(size + more for more in (MORE_ALONE if size == 1 else MORE)), *(size * width for width in WIDTHS)}
        yield from ((size, each) for each in sorted(rows) if each <= max(2, min(context_length * size, MOST_ROWS)))


def _forwards(kept: dict[str, float]) -> dict[tuple[int, int], float]:
    """Of all that is kept, seconds by (sequences, rows); nothing without the plainest."""
    shapes = {tuple(map(int, name.split("x"))): seconds for name, seconds in kept.items() if FORWARD.fullmatch(name)}
    found = {(size, rows): seconds for (size, rows), seconds in shapes.items()}
    return found if (1, 1) in found else {}


def _curve(found: dict[tuple[int, int], float], size: int) -> tuple[tuple[int, float], ...]:
    rows = sorted(own for known, own in found if known == size)
    rising = accumulate((found[size, each] for each in rows), max)  # more rows never cost less
    return tuple(zip(rows, rising, strict=True))


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
    kept, drafter = _kept(model), hashlib.sha256(draft.encode()).hexdigest()[:16]
    all_kept, names = _read(kept), {f"level {drafter} {size}": size for size in {1, min(slots, MOST_SEQUENCES)}}
    missing = {name: max(LEAST_LEVEL, round(measured(names[name]), 2)) for name in names.keys() - all_kept.keys()}
    if missing:
        _write(kept, all_kept | missing)
    prefix = f"level {drafter} "
    found = sorted(
        (int(name.removeprefix(prefix)), units)
        for name, units in (all_kept | missing).items()
        if name.startswith(prefix)
    )
    return LevelCost(tuple(size for size, _ in found), tuple(units for _, units in found))


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


def _kept(model: Model) -> Path | None:
    """Where the costs of a model and of drafts for it are kept; None for a model whose shape is not known."""
    if getattr(model, "config", None) is None:
        return None
    text = json.dumps(fingerprint(model), sort_keys=True)
    return cache_folder("costs") / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


def _read(path: Path | None) -> dict[str, float]:
    """Positive numbers by the name of what was measured; what cannot be read is measured again."""
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path is not None else {}
        seconds = {name: float(taken) for name, taken in found.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
    sound = all(KEPT.fullmatch(name) and 0 < taken < 1e6 for name, taken in seconds.items())
    return seconds if sound else {}


def _write(path: Path | None, seconds: dict[str, float]) -> None:
    """Keep them, if there is a place; without one they are measured in every run."""
    if path is None:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps(seconds), encoding="utf-8")
        new.replace(path)


def _least(model: Model, shapes: Iterable[tuple[int, int]]) -> list[float]:
    """Least seconds of forwards of each shape, all in turn, the first turn apart: other programs only ever add."""
    each = [(_block(model, *shape), list[float]()) for shape in shapes]
    begun = perf_counter()
    for repeat in range(REPEATS + 1):
        if repeat > 1 and perf_counter() - begun > SECONDS:
            break
        for block, taken in each:
            room = model.new_cache(len(block.slots), max(block.widths))
            start = perf_counter()
            model.forward(block, room)
            if repeat > 0:
                taken.append(perf_counter() - start)
    return [min(taken) for _, taken in each]


def _block(model: Model, size: int, rows: int) -> Block:
    """So many rows of so many sequences, the first ones having one more where they cannot have as many each."""
    widths = tuple(rows // size + (place < rows % size) for place in range(size))
    positions = torch.arange(max(widths)).repeat(size, 1)
    return Block(positions % model.vocab_size, positions, tuple(range(size)), widths)
