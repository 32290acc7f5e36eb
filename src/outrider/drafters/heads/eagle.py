"""The graph of EAGLE heads (2401.15077, 2503.01840): a state goes in with a token, the next state and logits come out.

It knows no cache, no tree and no training: whoever runs it says what a row may attend to.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional as F

from outrider.drafters.heads.config import EagleConfig
from outrider.drafters.heads.graph import MakeLinear, Weights, plain, rms_norm, rotary, rotated

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""From queries [..., heads, D], keys and values [..., kv_heads, D] of the rows to [..., heads * D]."""

LAYER = "layers.0."

MATRICES = (
    "fc",
    *(f"{LAYER}self_attn.{part}_proj" for part in "qkvo"),
    *(f"{LAYER}mlp.{part}_proj" for part in ("gate", "up", "down")),
)
"""What every head has, besides norms."""


class EagleHead:
    """An EAGLE head of one layer, ready to run.

    Args:
        config: its shape.
        weights: by the names of the speculators format: `fc`, `layers.0.*`, `norm`, `lm_head`, `embed_tokens`, and the
            norms that the config's flags ask for.
        embedding: [Vt, Ht] the target's, where the head has none of its own.
        output: [Vd, H] rows of the target's output matrix, where the head has none of its own.
        linear: makes its matrix products.
    """

    def __init__(
        self,
        config: EagleConfig,
        weights: Weights,
        embedding: torch.Tensor | None = None,
        output: torch.Tensor | None = None,
        linear: MakeLinear = plain,
    ) -> None:
        self.config, self.weights = config, weights
        self._embedding = _first(weights.get("embed_tokens.weight"), embedding)
        self._lm_head = linear(_first(weights.get("lm_head.weight"), output), None)
        self._fc, self._q, self._k, self._v, self._o, self._gate, self._up, self._down = (
            linear(weights[f"{name}.weight"], weights.get(f"{name}.bias")) for name in MATRICES
        )

    def fuse(self, features: torch.Tensor) -> torch.Tensor:
        """[..., A * Ht] the target's features -> [..., H] the state of the first step."""
        if self.config.version == 1:
            return features
        if self.config.norm_before_fc:
            features = self._normed(features, "input_norm")
        if self.config.fc_norm:
            parts = features.chunk(len(self.config.feature_layers), dim=-1)
            features = torch.cat([self._normed(part, f"fc_norm.{i}") for i, part in enumerate(parts)], dim=-1)
        return self._fc(features)

    def step(self, tokens: torch.Tensor, states: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """One pass through the layer.

        Args:
            tokens: [...] int64 ids of the target's vocabulary; each stands one place after its state.
            states: [..., H] from `fuse`, or `feedback` of the rows that these continue.
            positions: [...] of the states.
            attend: keeps the rows' keys and values and says what comes of the queries.

        Returns:
            [..., H]; `logits` and `feedback` take it.
        """
        c, at = self.config, f"{LAYER}self_attn."
        embedded = F.embedding(tokens, self._embedding).to(states.dtype)
        x, residual = self._joined(embedded, states)
        shape = (*x.shape[:-1], -1, c.head_dim)
        q, k, v = self._q(x).view(shape), self._k(x).view(shape), self._v(x).view(shape)
        if f"{at}q_norm.weight" in self.weights:
            q, k = self._normed(q, f"{at}q_norm"), self._normed(k, f"{at}k_norm")
        angles = rotary(positions, c.head_dim, c.rope_theta)
        y = residual + self._o(attend(rotated(q, angles), rotated(k, angles), v))
        n = self._normed(y, f"{LAYER}post_attention_layernorm")
        return y + self._down(F.silu(self._gate(n)) * self._up(n))

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """[..., H] from `step` -> [..., Vd]."""
        return self._lm_head(self.outlet(states))

    def outlet(self, states: torch.Tensor) -> torch.Tensor:
        """[..., H] from `step` -> [..., H] what goes into the output matrix."""
        return states if self.config.version == 1 else self._normed(states, "norm")

    def feedback(self, states: torch.Tensor) -> torch.Tensor:
        """[..., H] from `step` -> [..., H] what the next step starts from."""
        return self._normed(states, "norm") if self.config.norm_output else states

    def _joined(self, embedded: torch.Tensor, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What the attention reads, and the residual."""
        if self.config.version == 1:
            x = self._fc(torch.cat([embedded, states], dim=-1))
            return x, x
        normed = self._normed(states, f"{LAYER}hidden_norm")
        x = torch.cat([self._normed(embedded, f"{LAYER}input_layernorm"), normed], dim=-1)
        return x, normed if self.config.norm_before_residual else states

    def _normed(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return rms_norm(x, self.weights[f"{name}.weight"], self.config.rms_norm_eps)


def _first(own: torch.Tensor | None, shared: torch.Tensor | None) -> torch.Tensor:
    found = shared if own is None else own
    assert found is not None, "the head's own or the target's"
    return found
