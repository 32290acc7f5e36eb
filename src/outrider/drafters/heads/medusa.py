"""The graph of Medusa heads (2401.10774): several places guessed at once from one state of the target."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from outrider.drafters.heads.config import MedusaConfig
from outrider.drafters.heads.graph import MakeLinear, Weights, plain


class MedusaHeads:
    """K heads of L residual blocks x + SiLU(W x + b) and an output matrix.

    Args:
        config: their shape.
        weights: `{k}.{l}.linear.weight`, `{k}.{l}.linear.bias` (or none), `{k}.{L}.weight` [Vd, H] (or none).
        output: [Vd, H] rows of the target's output matrix, for heads without one of their own.
        linear: makes the matrix products.
    """

    def __init__(
        self, config: MedusaConfig, weights: Weights, output: torch.Tensor | None = None, linear: MakeLinear = plain
    ) -> None:
        self.config = config
        shared = None if output is None else linear(output, None)
        self._blocks, self._outputs = [], []
        for k in range(config.num_heads):
            names = [f"{k}.{block}.linear" for block in range(config.num_layers)]
            self._blocks.append([linear(weights[f"{n}.weight"], weights.get(f"{n}.bias")) for n in names])
            own = weights.get(f"{k}.{config.num_layers}.weight")
            made = shared if own is None else linear(own, None)
            assert made is not None, "the heads' own or the target's"
            self._outputs.append(made)

    def logits(self, hidden: torch.Tensor, head: int) -> torch.Tensor:
        """[..., H] the target's last states, after its final norm -> [..., Vd] for the token `head` + 2 places on."""
        return self._outputs[head](self.states(hidden, head))

    def states(self, hidden: torch.Tensor, head: int) -> torch.Tensor:
        """[..., H] the target's last states -> [..., H] what the head's output matrix is applied to."""
        for block in self._blocks[head]:
            hidden = hidden + F.silu(block(hidden))
        return hidden
