"""From what a user names to a model with its tokenizer: the native decoder if it can, else the adapter.

It knows nothing of drafters and engines.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from outrider.core import Model
from outrider.errors import InvalidOption, UnsupportedModel
from outrider.models.checkpoint import EMBEDDING, HEAD, Checkpoint, open_checkpoint
from outrider.models.load import load_decoder
from outrider.models.locate import locate
from outrider.models.precision import SAMPLE_TEXT, choose_precision
from outrider.models.tokenizer import Tokenizer, load_tokenizer

Progress = Callable[[str, int, int], None]
"""Called with (what is being loaded, layers done, layers in all)."""


@dataclass(frozen=True)
class Opened:
    """A model, ready to run, and what it came from.

    Args:
        model: the native decoder or the adapter.
        tokenizer: its own.
        checkpoint: the files, if the native decoder reads them.
    """

    model: Model
    tokenizer: Tokenizer
    checkpoint: Checkpoint | None = None


def open_model(
    target: Any,
    precision: str,
    device: torch.device,
    progress: Progress | None,
    tokenizer: Any = None,
    context_length: int | None = None,
) -> Opened:
    """Load a model by name, folder, file or id, or wrap a loaded transformers model.

    Args:
        target: see `outrider.load`.
        precision: see `outrider.load`.
        device: where it runs.
        progress: called while layers load.
        tokenizer: of a loaded transformers model.
        context_length: wanted tokens per sequence; only the adapter needs to know.

    Raises:
        InvalidOption, CheckpointError, UnsupportedModel: see `outrider.load`.
    """
    if not isinstance(target, str | Path):
        if not hasattr(target, "config"):
            forms = "smollm2, a folder, a .gguf file, a Hugging Face id, or a loaded transformers model"
            raise InvalidOption("target", target, forms)
        return _wrap(target, precision, tokenizer, context_length)
    if tokenizer is not None:
        raise InvalidOption("tokenizer", tokenizer, "None for a target that is named", "Its own tokenizer is loaded.")
    path = locate(str(target))
    try:
        checkpoint = open_checkpoint(path)
    except UnsupportedModel:
        if not path.is_dir():
            raise
        return _adapt(path, precision, device, context_length)
    report = None if progress is None else lambda done, total: progress(str(target), done, total)
    with ThreadPoolExecutor(max_workers=1) as aside:  # importing transformers takes as long as reading the weights
        spoken = aside.submit(load_tokenizer, path)
        if precision == "auto":
            model = choose_precision(checkpoint, lambda: spoken.result().encode(SAMPLE_TEXT), device, report)
        else:
            model = load_decoder(checkpoint, precision, device=device, progress=report)
        return Opened(model, spoken.result(), checkpoint)


def _adapt(path: Path, precision: str, device: torch.device, context_length: int | None) -> Opened:
    from outrider.models.transformers import load_transformers

    if precision == "q4":
        raise InvalidOption("precision", precision, "float32, bfloat16, float16", "q4 needs a 4-bit GGUF file.")
    dtype = torch.float32 if precision == "auto" else getattr(torch, precision)
    model = load_transformers(str(path), dtype, device, context_length=context_length)
    return Opened(model, load_tokenizer(path))


def _wrap(model: Any, precision: str, tokenizer: Any, context_length: int | None) -> Opened:
    """A transformers model that the user holds already."""
    from transformers import AutoTokenizer

    from outrider.models.tokenizer import wrap_tokenizer
    from outrider.models.transformers import TransformersModel

    adapter = TransformersModel(model, context_length=context_length)
    if precision not in ("auto", adapter.precision):
        fix = "A loaded model keeps its own precision; cast it before."
        raise InvalidOption("precision", precision, f"auto, {adapter.precision}", fix)
    if tokenizer is None:
        name = model.config.name_or_path
        if not name:
            raise InvalidOption("tokenizer", None, "the model's transformers tokenizer", "Pass tokenizer=... .")
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    return Opened(adapter, wrap_tokenizer(tokenizer, model.generation_config))


@dataclass(frozen=True)
class Matrices:
    """What a head may share with its target.

    Args:
        embedding: [V, H].
        output: [V, H], applied to the last state after the final norm.
        bias: [V] of the output, or None.
    """

    embedding: torch.Tensor
    output: torch.Tensor
    bias: torch.Tensor | None = None


def full_matrices(opened: Opened) -> Matrices:
    """The target's embedding and output matrix at the precision of its files.

    Raises:
        UnsupportedModel: a model without such matrices.
    """
    if opened.checkpoint is None:
        shared = shared_matrices(opened)
        bias = None if shared.bias is None else shared.bias.float()
        return Matrices(shared.embedding.float(), shared.output.float(), bias)
    table = opened.checkpoint.tensor(EMBEDDING)
    return Matrices(table, table if opened.checkpoint.config.tie_embeddings else opened.checkpoint.tensor(HEAD))


def shared_matrices(opened: Opened) -> Matrices:
    """The target's embedding and output matrix as they are in memory, where they are.

    Raises:
        UnsupportedModel: a model without such matrices.
    """
    model: Any = opened.model
    if opened.checkpoint is not None:
        table = model.weights.embedding
        if opened.checkpoint.config.tie_embeddings:
            return Matrices(table, table)
        return Matrices(table, opened.checkpoint.tensor(HEAD).to(table.device, table.dtype))
    inputs, outputs = model.model.get_input_embeddings(), model.model.get_output_embeddings()
    if inputs is None or outputs is None:
        raise UnsupportedModel(f"{type(model.model).__name__} does not name its embedding and output matrices.")
    bias = getattr(outputs, "bias", None)
    return Matrices(inputs.weight.detach(), outputs.weight.detach(), None if bias is None else bias.detach())


def hidden_size_of(model: Any) -> int:
    """How many numbers a state of the target has."""
    if hasattr(model, "weights"):
        return int(model.config.hidden_size)
    return int(model.model.get_input_embeddings().weight.shape[-1])


def num_layers_of(model: Any) -> int:
    """How many layers the target has."""
    if hasattr(model, "weights"):
        return int(model.config.num_layers)
    return int(model.model.config.get_text_config(decoder=True).num_hidden_layers)
