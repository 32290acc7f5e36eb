"""A head as it lies in memory after reading and before writing, whatever the file format."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from outrider.drafters.heads.config import HeadConfig


@dataclass(frozen=True)
class StoredHead:
    """A head's shape, its tensors and its vocabulary.

    Args:
        config: the shape.
        weights: tensors by the names that the graphs take (`eagle`, `medusa`, `mlp`); matrices that are missing
            (`embed_tokens.weight`, `lm_head.weight`, a Medusa head's output) are the target's own.
        draft_ids: [Vd] int64, ascending: the target's id of each id of the head; None where both are equal.
    """

    config: HeadConfig
    weights: dict[str, torch.Tensor]
    draft_ids: torch.Tensor | None = None
