"""Memory for caches: asked for before it is taken, so that too much is an error with a number in it."""

from __future__ import annotations

import math
import os

import numpy as np
import torch

from outrider.errors import CacheTooLarge

ALIGNMENT = 64


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor of zeros for a cache [layers, slots, rows, ...].

    On a CPU memory is taken page by page as rows are written, so room for long contexts costs nothing until it is used.

    Raises:
        CacheTooLarge: it is larger than this machine's memory, or the allocator refuses.
    """
    size = math.prod(shape) * dtype.itemsize
    text = f"the key/value cache of {shape[1]} slots of {shape[2]} tokens needs {size / 2**30:.1f} GiB"
    fix = "Lower the number of slots or the context length."
    if device.type == "cpu" and size > physical_memory():
        raise CacheTooLarge(f"{text}; this machine has {physical_memory() / 2**30:.1f} GiB. {fix}")
    try:
        if device.type == "cpu":
            return _untouched(size).view(dtype).view(shape)
        return torch.zeros(shape, dtype=dtype, device=device)
    except (MemoryError, RuntimeError) as error:
        raise CacheTooLarge(f"{text}, which could not be allocated. {fix}") from error


def _untouched(size: int) -> torch.Tensor:
    """Zero bytes that the system has promised but not yet given, aligned as torch aligns its own (kernels care)."""
    # torch.zeros would write every page.
    taken = torch.from_numpy(np.zeros(size + ALIGNMENT, np.uint8))
    return taken[-taken.data_ptr() % ALIGNMENT :][:size]


def physical_memory() -> int:
    """Bytes of memory in this machine, or a huge number where it does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 2**63
