"""What the graphs of heads are made of: weights by name, norms, linears, rotary angles."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.nn import functional as F

Weights = Mapping[str, torch.Tensor]
"""Tensors by their names in `files`; they may be parameters in training."""

Linear = Callable[[torch.Tensor], torch.Tensor]
"""[..., in] -> [..., out]."""

MakeLinear = Callable[[torch.Tensor, torch.Tensor | None], Linear]
"""From weight [out, in] and bias [out] to what multiplies by them."""


def plain(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """The linear of training and of proofs."""
    return lambda x: F.linear(x, weight, bias)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """weight * x / sqrt(mean(x^2) + eps) over the last dimension, in float32."""
    return F.rms_norm(x.float(), weight.shape, weight.float(), eps)


def rotary(positions: torch.Tensor, head_dim: int, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines [..., 1, D] of positions [...], halves repeated as transformers has them (2104.09864)."""
    inverse = 1.0 / theta ** (torch.arange(0, head_dim, 2, device=positions.device).float() / head_dim)
    half = positions.float()[..., None] * inverse
    angles = torch.cat([half, half], dim=-1)[..., None, :]
    return angles.cos(), angles.sin()


def rotated(x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """[..., heads, D] turned by the angles of its positions."""
    first, second = x.chunk(2, dim=-1)
    return x * angles[0] + torch.cat([-second, first], dim=-1) * angles[1]
