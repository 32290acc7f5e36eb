"""Training-time test of EAGLE-3 (2503.01840): the head runs on its own outputs, as it will when it drafts.

Column t of a text holds the state of token t and the token t + 1. In step j it reads token t + 1 + j and its own state
of step j - 1, stands at position t + j, and sees what it will see when it drafts: the keys that true features gave
up to t, and its own of steps 1 to j.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from outrider.drafters.heads.eagle import EagleHead

Heads = torch.Tensor
"""[B, S, heads, D]."""


class _Attention:
    """What the columns see, step by step; padding stands behind a text, where no column of it looks."""

    def __init__(self) -> None:
        self._keys: list[Heads] = []
        self._values: list[Heads] = []

    def __call__(self, q: Heads, k: Heads, v: Heads) -> torch.Tensor:
        """Keep this step's keys and values, and attend: [B, S, heads * D]."""
        groups, size, scale = q.shape[2] // k.shape[2], q.shape[1], q.shape[3] ** -0.5
        self._keys.append(k.repeat_interleave(groups, 2))
        self._values.append(v.repeat_interleave(groups, 2))
        later = torch.ones(size, size, dtype=torch.bool, device=q.device).triu(1)
        true = torch.einsum("bshd,buhd->bhsu", q, self._keys[0]).float().masked_fill(later, -torch.inf)
        own = [torch.einsum("bshd,bshd->bhs", q, key).float()[..., None] for key in self._keys[1:]]
        weights = (torch.cat([true, *own], dim=-1) * scale).softmax(-1).to(v.dtype)
        out = torch.einsum("bhsu,buhd->bshd", weights[..., :size], self._values[0])
        for i, value in enumerate(self._values[1:]):
            out = out + weights[..., size + i].transpose(1, 2)[..., None] * value
        return out.flatten(2)


def unrolled(head: EagleHead, tokens: torch.Tensor, features: torch.Tensor, steps: int) -> Iterator[torch.Tensor]:
    """The states [B, S, H] of each step, for `head.logits`: in step j column t guesses token t + 2 + j.

    Args:
        head: with parameters.
        tokens: [B, S + steps] ids; column t's own token is at t.
        features: [B, S, F] of the target.
        steps: how often the head runs.
    """
    size, attention, states = features.shape[1], _Attention(), head.fuse(features)
    places = torch.arange(size, device=tokens.device)[None]
    for j in range(steps):
        found = head.step(tokens[:, 1 + j : 1 + j + size], states, places + j, attention)
        yield found
        states = head.feedback(found)
