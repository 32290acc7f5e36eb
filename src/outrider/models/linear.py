"""Matrix products of the decoder, one class per weight format. All take and give float32 rows.

On a CPU the packed-half and the 4-bit kernel compute every row with the same bits, however many rows there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch.nn import functional as F

from outrider.models.checkpoint import Groups4


class Linear(Protocol):
    """x [T, in] float32 -> [T, out] float32."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply rows [T, in] by the weight [out, in] and add the bias, if any."""
        ...


class Dense:
    """A plain weight in any float type; activations are cast to that type and back.

    Args:
        weight: [out, in].
        bias: [out] or None.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight = weight
        self.bias = None if bias is None else bias.to(weight.dtype)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, in] -> [T, out]."""
        return F.linear(x.to(self.weight.dtype), self.weight, self.bias).float()


class PackedHalf:
    """Half-precision weights packed for the CPU, float32 activations and sums (x86 only).

    Args:
        weight: [out, in] float32; rounded to half.
        bias: [out] or None.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.packed = torch.ops.quantized.linear_prepack_fp16(weight.float().contiguous(), bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, in] -> [T, out]."""
        product: torch.Tensor = torch.ops.quantized.linear_dynamic_fp16(x, self.packed)
        return product


class Grouped4:
    """The 4-bit kernel: bfloat16 activations, groups of 32 as stored, nothing requantised (CPU only).

    Args:
        groups: the stored matrix; `out` must be a multiple of 16.
        bias: [out] float32 or None.
    """

    def __init__(self, groups: Groups4, bias: torch.Tensor | None = None) -> None:
        self.packed = torch._convert_weight_to_int4pack_for_cpu(groups.codes.int(), 1)
        # The kernel computes (code - 8) * scale + zero.
        pairs = torch.stack([groups.scales, groups.mins + 8 * groups.scales], dim=-1)
        self.scales_and_zeros = pairs.transpose(0, 1).contiguous().bfloat16()
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, in] -> [T, out]."""
        product = torch._weight_int4pack_mm_for_cpu(x.bfloat16(), self.packed, 32, self.scales_and_zeros).float()
        return product if self.bias is None else product + self.bias


class Stacked:
    """Several linears of the same input, their outputs side by side (parts of different formats).

    Args:
        parts: in the order of their outputs.
    """

    def __init__(self, parts: Sequence[Linear]) -> None:
        self.parts = tuple(parts)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, in] -> [T, sum of outs]."""
        return torch.cat([part(x) for part in self.parts], dim=-1)


def has_packed_half() -> bool:
    """Whether this machine's torch has the packed half kernel (x86 builds with FBGEMM)."""
    return "fbgemm" in torch.backends.quantized.supported_engines
