"""The cache of the `transformers` adapter: one cache of transformers' own kind per slot, rolled back by cropping."""

from __future__ import annotations

import copy
from collections.abc import Sequence as Ordered
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer


class TransformersCache:
    """One `transformers` cache per slot, cut to the committed length when its slot runs next.

    Memory grows with the sequences; nothing is reserved for `capacity`.

    Args:
        config: the model's config, which says what kind of cache its layers need.
        slots: how many sequences it holds.
        capacity: rows that may be committed per slot.
    """

    def __init__(self, config: Any, slots: int, capacity: int) -> None:
        self.lengths = [0] * slots
        self.capacity = capacity
        self._config = config
        self._caches = [empty_cache(config) for _ in range(slots)]
        self._uncommitted = [0] * slots

    def open(self, slot: int, width: int) -> Any:
        """The slot's own cache, holding its committed rows and ready to take `width` more."""
        crop(self._caches[slot], self.lengths[slot])
        self._uncommitted[slot] = width
        return self._caches[slot]

    def commit(self, slot: int, rows: Ordered[int]) -> None:
        """Keep these rows of the slot's last block, in this order; a chain keeps 0, 1, ..., m."""
        assert all(0 <= row < self._uncommitted[slot] for row in rows), "a committed row was never written"
        if list(rows) != list(range(len(rows))):
            self._gather(slot, rows)
        self.lengths[slot] += len(rows)
        self._uncommitted[slot] = 0
        assert self.lengths[slot] <= self.capacity

    def truncate(self, slot: int, length: int) -> None:
        """Forget everything from row `length` on; at 0 the slot's memory is freed."""
        assert 0 <= length <= self.lengths[slot]
        if length == 0:
            self._caches[slot] = empty_cache(self._config)
        self.lengths[slot] = length
        self._uncommitted[slot] = 0

    def copy(self, source: int, target: int) -> None:
        """Make slot `target` an independent copy of the committed rows of slot `source`."""
        self._caches[target] = copy.deepcopy(self._caches[source])
        self.lengths[target] = self.lengths[source]
        self._uncommitted[target] = 0

    def _gather(self, slot: int, rows: Ordered[int]) -> None:
        start = self.lengths[slot]
        kept = torch.tensor([*range(start), *(start + row for row in rows)])
        for layer in self._caches[slot].layers:
            if layer.keys is not None:
                layer.keys = layer.keys.index_select(-2, kept.to(layer.keys.device))
                layer.values = layer.values.index_select(-2, kept.to(layer.values.device))


def empty_cache(config: Any) -> DynamicCache:
    """A cache of the kind that the model asks for, for one sequence."""
    cache = DynamicCache(config=config)
    # A window layer drops rows as it fills; a plain one keeps them, and the context fits in the window.
    cache.layers = [DynamicLayer() if getattr(layer, "is_sliding", False) else layer for layer in cache.layers]
    return cache


def crop(cache: Any, length: int) -> None:
    """Forget everything from row `length` on."""
    # Layer by layer, because a forward that failed half-way has grown only some of them.
    for layer in cache.layers:
        if layer.keys is not None and layer.get_seq_length() > length:
            layer.crop(length - layer.get_seq_length())
