"""The embedded model as transformers describes it."""

from __future__ import annotations

from typing import Any

from transformers import LlamaConfig

from outrider.models.checkpoint import Checkpoint
from outrider.models.config import transformers_settings


def llama_config(checkpoint: Checkpoint, **changes: Any) -> LlamaConfig:
    """The checkpoint's shape; `changes` win."""
    return LlamaConfig(**(transformers_settings(checkpoint.config) | changes))
