"""The embedded model as transformers describes it."""

from __future__ import annotations

from typing import Any

from transformers import LlamaConfig

from outrider.models.checkpoint import Checkpoint


def llama_config(checkpoint: Checkpoint, **changes: Any) -> LlamaConfig:
    """The checkpoint's shape; `changes` win."""
    c = checkpoint.config
    settings: dict[str, Any] = {
        "vocab_size": c.vocab_size,
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_hidden_layers": c.num_layers,
        "num_attention_heads": c.num_heads,
        "num_key_value_heads": c.num_kv_heads,
        "head_dim": c.head_dim,
        "max_position_embeddings": c.context_length,
        "rms_norm_eps": c.rms_norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": c.rope_theta},
        "tie_word_embeddings": c.tie_embeddings,
    }
    return LlamaConfig(**(settings | changes))
