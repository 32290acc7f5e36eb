"""The graph of MLP speculators (2404.19124): a small recurrent net that starts from the target's last state."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

from outrider.drafters.heads.config import MlpConfig
from outrider.drafters.heads.graph import MakeLinear, Weights, plain

EPS = 1e-6


class MlpSpeculator:
    """Step i turns its state and a token into the next state and logits.

    Args:
        config: its shape.
        weights: `emb.{i}.weight` [Vt, inner], `proj.{i}.weight`, `head.{i}.weight` [Vt, inner], `ln.{i}.weight` and
            `.bias` [inner].
        linear: makes the matrix products.
    """

    def __init__(self, config: MlpConfig, weights: Weights, linear: MakeLinear = plain) -> None:
        self.config, self.weights = config, weights
        steps = range(config.num_steps)
        self._proj = [linear(weights[f"proj.{i}.weight"], None) for i in steps]
        self._head = [linear(weights[f"head.{i}.weight"], None) for i in steps]
        self._state_weight = 0.5 ** (0.5 / config.num_steps)
        self._token_weight = math.sqrt((1 - self._state_weight**2) * config.inner_size / 2)

    def step(self, tokens: torch.Tensor, states: torch.Tensor, i: int) -> torch.Tensor:
        """The state after step i.

        Args:
            tokens: [...] int64.
            states: [..., Ht] the target's last states after its final norm for i = 0, else [..., inner] of step i - 1.
            i: 0 to `num_steps` - 1.
        """
        if self.config.scale_input and i == 0:
            states = _normed(states) / math.sqrt(2)
        embedded = F.embedding(tokens, self.weights[f"emb.{i}.weight"])
        x = _normed(self._state_weight * self._proj[i](states) + self._token_weight * embedded)
        return F.gelu(self.weights[f"ln.{i}.weight"] * x + self.weights[f"ln.{i}.bias"])

    def logits(self, states: torch.Tensor, i: int) -> torch.Tensor:
        """[..., inner] of step i -> [..., Vt]."""
        return self._head[i](states)


def _normed(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)
