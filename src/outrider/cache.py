"""The static key/value cache: storage with slots. The engine owns the lengths; a rejection is no operation at all."""

from __future__ import annotations

import os
from collections.abc import Sequence as Ordered

import torch

from outrider.errors import CacheTooLarge

KEY_BLOCK = 256
"""Rows are allocated, and attended to, in multiples of this: a fixed kernel shape keeps a row's bits (design 2.5)."""


class KVCache:
    """Keys and values of a decoder, `[layers, slots, capacity, 2 * kv_heads, head_dim]`, keys before values.

    Rows past `lengths[slot]` are scratch: `forward` writes them and only `commit` makes them count.

    Args:
        num_layers: decoder layers.
        slots: sequences held at once.
        capacity: tokens per slot; rounded up to a multiple of `KEY_BLOCK`.
        num_kv_heads: key/value heads.
        head_dim: size of a head.
        dtype: of keys and values.
        device: where they live.

    Raises:
        CacheTooLarge: with the number of bytes asked.
    """

    def __init__(
        self,
        num_layers: int,
        slots: int,
        capacity: int,
        *,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.capacity = capacity
        self.lengths = [0] * slots
        rows = -(-capacity // KEY_BLOCK) * KEY_BLOCK
        shape = (num_layers, slots, rows, 2 * num_kv_heads, head_dim)
        # Zeros, not empty: a masked row has weight 0, and 0 times stale NaN would still be NaN.
        self.data = _zeros(shape, dtype, torch.device(device))
        self.rows = [[layer[slot] for slot in range(slots)] for layer in self.data]
        """rows[layer][slot] is [capacity, 2 * kv_heads, head_dim], a view."""

    def commit(self, slot: int, rows: Ordered[int]) -> None:
        """Keep these rows of the slot's last block, in this order; a chain (0, 1, ..., m) only adds to the length."""
        start = self.lengths[slot]
        if list(rows) != list(range(len(rows))):
            taken = torch.tensor(rows, device=self.data.device) + start
            self.data[:, slot, start : start + len(rows)] = self.data[:, slot].index_select(1, taken)
        self.lengths[slot] = start + len(rows)
        assert self.lengths[slot] <= self.capacity

    def truncate(self, slot: int, length: int) -> None:
        """Forget everything from row `length` on."""
        assert 0 <= length <= self.lengths[slot]
        self.lengths[slot] = length

    def copy(self, source: int, target: int) -> None:
        """Make slot `target` an independent copy of slot `source`."""
        length = self.lengths[source]
        self.data[:, target, :length] = self.data[:, source, :length]
        self.lengths[target] = length


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    size = dtype.itemsize
    for n in shape:
        size *= n
    text = f"the key/value cache of {shape[1]} slots of {shape[2]} tokens needs {size / 2**30:.1f} GiB"
    fix = "Lower the number of slots or the context length."
    if device.type == "cpu" and size > physical_memory():
        raise CacheTooLarge(f"{text}; this machine has {physical_memory() / 2**30:.1f} GiB. {fix}")
    try:
        return torch.zeros(shape, dtype=dtype, device=device)
    except RuntimeError as error:
        raise CacheTooLarge(f"{text}, which could not be allocated. {fix}") from error


def physical_memory() -> int:
    """Bytes of memory in this machine, or a huge number where it does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # a platform that does not say: the allocator will
        return 2**63
