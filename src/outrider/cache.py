"""The static key/value cache: storage with slots. The engine owns the lengths; a rejection is no operation at all."""

from __future__ import annotations

from collections.abc import Sequence as Ordered

import torch

from outrider.memory import zeros

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
        self.data = zeros(shape, dtype, torch.device(device))
        self.rows = [[layer[slot] for slot in range(slots)] for layer in self.data]
        """rows[layer][slot] is [capacity, 2 * kv_heads, head_dim], a view."""

    def commit(self, slot: int, rows: Ordered[int]) -> None:
        """Keep these rows of the slot's last block, in this order; a chain (0, 1, ..., m) only adds to the length."""
        start = self.lengths[slot]
        if list(rows) != list(range(len(rows))):
            block = self.data[:, slot, start : start + max(rows) + 1]  # gathering from all of the slot would copy it
            self.data[:, slot, start : start + len(rows)] = block[:, list(rows)]
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
