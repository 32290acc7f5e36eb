"""One bound on memory, from which the sizes of a training follow.

What a training holds, in bytes: the target as it is loaded; its embedding and output matrix once more in float32; every
trained weight four times (itself, its gradient, two moments of AdamW); and what a step makes on its way, which grows
with the tokens of a batch. The last is not modelled but counted: two small made-up batches are run, and every byte that
torch allocates is followed from birth to death. While texts are written, a cache row per token of every slot counts
instead. Stored states are mapped from disk and do not count.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from outrider.errors import InvalidOption
from outrider.training.batches import Batch
from outrider.training.kind import Setting, Trainee

GB = 10**9
BASE = 10**9
"""Bytes of Python, torch and transformers themselves, and of what loading a target leaves behind."""

SLACK = 1.5
"""Memory that the system gives for a step's tensors, over their sizes: what was freed is not all given back."""

NUMBER = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "q4": 0.65}
"""Bytes of a weight of a loaded target."""

FLOAT = 4


@dataclass(frozen=True)
class Bound:
    """What may be used.

    Args:
        gigabytes: of 10^9 bytes.
        held: bytes that are used whatever the batch.
    """

    gigabytes: float
    held: float

    def most(self, per_piece: float, least: int, most: int) -> int:
        """How many pieces fit, at most `most`.

        Raises:
            InvalidOption: not even `least`, with what would do.
        """
        found = int((self.gigabytes * GB - self.held) // per_piece)
        if found < least:
            needed = math.ceil(10 * (self.held + least * per_piece) / GB) / 10
            fix = "Most of it is the target and what is trained."
            raise InvalidOption("memory", self.gigabytes, f"{needed:.1f} or more, in GB, for this target", fix)
        return min(found, most)


def slots_within(gigabytes: float, setting: Setting, capacity: int, most: int) -> int:
    """Texts that may be written side by side.

    Args:
        gigabytes: the bound.
        setting: the target.
        capacity: tokens per text.
        most: never more than these.

    Raises:
        InvalidOption: there is no room for one.
    """
    c = setting.checkpoint.config
    row = c.num_layers * 2 * c.num_kv_heads * c.head_dim * FLOAT
    return Bound(gigabytes, BASE + _target_bytes(setting)).most(row * capacity, 1, most)


def batch_within(gigabytes: float, setting: Setting, trainee: Trainee, features: int, longest: int, most: int) -> int:
    """Tokens per batch, padding included.

    Args:
        gigabytes: the bound.
        setting: the target.
        trainee: what is trained.
        features: numbers per token that it reads besides the last state.
        longest: tokens of the longest text, which is a batch at least.
        most: never more than these.

    Raises:
        InvalidOption: the longest text does not fit.
    """
    hidden = setting.checkpoint.config.hidden_size
    batches = [_made_up(texts, longest, features, hidden, trainee.room).to(setting.device) for texts in (1, 2)]
    peaks = [_peak_bytes(trainee, batch) for batch in batches]
    per_token = (peaks[1] - peaks[0]) / longest
    moments = sum(3 * FLOAT * p.numel() for p in trainee.parameters.values())  # gradients are in the peaks
    held = BASE + _target_bytes(setting) + _matrix_bytes(setting) + moments + max(0.0, peaks[0] - per_token * longest)
    return Bound(gigabytes, held).most(per_token, longest, most)


def _target_bytes(setting: Setting) -> float:
    numbers = sum(math.prod(shape) for shape in setting.checkpoint.weights.shapes.values())
    return numbers * NUMBER[setting.opened.model.precision]


def _matrix_bytes(setting: Setting) -> float:
    matrices = {m.data_ptr(): m.numel() for m in (setting.matrices.embedding, setting.matrices.output)}
    return FLOAT * sum(matrices.values())


def _made_up(texts: int, length: int, features: int, hidden: int, room: int) -> Batch:
    """A batch of the right shape in which every place counts."""
    wide = length + room
    return Batch(
        torch.zeros(texts, wide, dtype=torch.int64),
        torch.ones(texts, length, features),
        torch.ones(texts, wide, hidden),
        torch.zeros(texts, wide),
        torch.ones(texts, wide, dtype=torch.bool),
    )


def _peak_bytes(trainee: Trainee, batch: Batch) -> float:
    """The most that a step at its longest has allocated at once, gradients and the batch included."""
    parts = (batch.tokens, batch.features, batch.last, batch.log_norms, batch.counts)
    counter = _Counter()
    with counter:
        trainee.loss(batch, 1.0).backward()  # type: ignore[no-untyped-call]
    for parameter in trainee.parameters.values():
        parameter.grad = None
    return SLACK * (counter.peak + sum(part.numel() * part.element_size() for part in parts))


class _Counter(TorchDispatchMode):
    """Follows the memory of tensors that are made while it is entered.

    Attributes:
        peak: most bytes that were alive together.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak, self._alive = 0, 0
        self._seen = weakref.WeakSet[Any]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {id(t.untyped_storage()) for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        found = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, torch.Tensor) and id(tensor.untyped_storage()) not in given:
                self._born(tensor.untyped_storage())
        return found

    def _born(self, storage: Any) -> None:
        if storage not in self._seen:
            self._seen.add(storage)
            self._alive += storage.nbytes()
            self.peak = max(self.peak, self._alive)
            weakref.finalize(storage, self._died, storage.nbytes())

    def _died(self, size: int) -> None:
        self._alive -= size
