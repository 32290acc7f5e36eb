"""One door to the weights of a model, whatever the file: canonical names, float32 tensors, stored 4-bit groups.

Strict both ways: opening fails if a tensor is missing, left over, or of another shape than the config says. Knows
nothing of how a decoder uses the weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import torch

from outrider.errors import CheckpointError
from outrider.models.config import DecoderConfig
from outrider.models.gguf_file import read_gguf
from outrider.models.gguf_weights import GgufWeights, Groups4
from outrider.models.locate import EMBEDDED_SHA256, check_embedded, is_embedded
from outrider.models.safetensors_folder import PICKLE_REASON, PICKLE_SUFFIXES, FolderWeights

__all__ = ["Checkpoint", "Groups4", "check_tensors", "expected_shapes", "open_checkpoint"]

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
HARMLESS_SUFFIX = "rotary_emb.inv_freq"
"""A buffer that old checkpoints store; it follows from the config."""

SAMPLED_HEAD, SAMPLED_PIECES, SAMPLED_BYTES = 16 << 20, 64, 4 << 10


class Weights(Protocol):
    """Where tensors come from: `GgufWeights` or `FolderWeights`."""

    config: DecoderConfig
    shapes: Mapping[str, tuple[int, ...]]

    @property
    def is_q4(self) -> bool:
        """Whether most matrices are in 4-bit groups."""
        ...

    def read(self, name: str) -> torch.Tensor:
        """A tensor as float32."""
        ...

    def groups4(self, name: str) -> Groups4 | None:
        """The stored 4-bit groups of a tensor, if it has them."""
        ...


@dataclass(frozen=True)
class Checkpoint:
    """An open checkpoint whose tensors fit its config.

    Args:
        path: the .gguf file or the folder.
        config: the decoder it is for.
        names: its tensors, in Hugging Face's naming; a tied head has none of its own.
        weights: where they are read from.
    """

    path: Path
    config: DecoderConfig
    names: frozenset[str]
    weights: Weights

    @property
    def is_q4(self) -> bool:
        """Whether most matrices are stored in 4-bit groups (GGUF Q4_0, Q4_1)."""
        return self.weights.is_q4

    @cached_property
    def fingerprint(self) -> str:
        """Hex digest that tells checkpoints apart: of the whole embedded file, of the start and samples of others."""
        return EMBEDDED_SHA256 if is_embedded(self.path) else _fingerprint(self.path)

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor as float32, a copy of its own; q and k rows in Hugging Face's rotary order.

        Raises:
            CheckpointError: it holds infinities or NaNs.
        """
        assert name in self.names, name
        tensor = self.weights.read(name)
        # The sum is the cheapest look at every number; a sum may overflow where all are finite.
        if not tensor.sum().isfinite() and not tensor.isfinite().all():
            raise CheckpointError(f"{self.path}: tensor {name!r} holds infinities or NaNs; the file is damaged.")
        return tensor

    def groups4(self, name: str) -> Groups4 | None:
        """The 4-bit groups of a tensor stored as Q4_0 or Q4_1, rows as in `tensor`; None for any other format."""
        assert name in self.names, name
        return self.weights.groups4(name)


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a .gguf file, or a folder with config.json and safetensors; reads headers only.

    Raises:
        CheckpointError: missing, damaged, not a model, or at odds with its own config.
        UnsupportedModel: a model that cannot be decoded exactly here.
    """
    path = Path(path)
    weights = _weights(path)
    shapes = {name: shape for name, shape in weights.shapes.items() if not name.endswith(HARMLESS_SUFFIX)}
    check_tensors(weights.config, shapes, path)
    if weights.config.tie_embeddings and HEAD in shapes:
        if not torch.equal(weights.read(HEAD), weights.read(EMBEDDING)):
            raise CheckpointError(f"{path}: the config ties {HEAD} to {EMBEDDING}, but the two differ.")
        del shapes[HEAD]
    return Checkpoint(path, weights.config, frozenset(shapes), weights)


def _weights(path: Path) -> Weights:
    if path.is_dir():
        return FolderWeights(path)
    if path.suffix in PICKLE_SUFFIXES:
        raise CheckpointError(f"{path}: {PICKLE_REASON}.")
    if path.suffix == ".safetensors":
        raise CheckpointError(f"{path}: give its folder, which must hold config.json too.")
    if is_embedded(path):
        check_embedded(path)
    return GgufWeights(read_gguf(path))


def check_tensors(config: DecoderConfig, shapes: Mapping[str, tuple[int, ...]], path: Path) -> None:
    """Compare the tensors that a checkpoint has with those its config asks for.

    Args:
        config: what the decoder needs.
        shapes: what the checkpoint has, by Hugging Face name.
        path: named in errors.

    Raises:
        CheckpointError: tensors are missing or left over (named), or one has another shape.
    """
    if config.num_layers > len(shapes):
        raise CheckpointError(
            f"{path} has {len(shapes)} tensors, too few for the {config.num_layers} layers it claims."
        )
    expected = expected_shapes(config)
    optional = {HEAD} if config.tie_embeddings else set()
    missing, left_over = expected.keys() - optional - shapes.keys(), shapes.keys() - expected.keys()
    if missing or left_over:
        raise CheckpointError(f"{path} does not fit its config: missing {_few(missing)}; left over {_few(left_over)}.")
    for name, shape in shapes.items():
        if tuple(shape) != expected[name]:
            raise CheckpointError(
                f"{path}: tensor {name!r} has shape {list(shape)}, its config asks for {list(expected[name])}."
            )


def _few(names: set[str]) -> str:
    listed = sorted(names)
    return ", ".join(listed[:5]) + (f" and {len(listed) - 5} more" if len(listed) > 5 else "") or "none"


def expected_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """The tensors of a decoder by Hugging Face name, with their shapes [out, in]; a tied head is among them."""
    hidden = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        EMBEDDING: (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
        HEAD: (config.vocab_size, hidden),
    }
    layer = _layer_shapes(config)
    for index in range(config.num_layers):
        shapes.update({f"model.layers.{index}.{name}": shape for name, shape in layer.items()})
    return shapes


def _layer_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner, heads = config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim
    kv_heads = config.num_kv_heads * config.head_dim
    sizes = {
        "self_attn.q_proj": (heads, hidden, config.attention_bias),
        "self_attn.k_proj": (kv_heads, hidden, config.attention_bias),
        "self_attn.v_proj": (kv_heads, hidden, config.attention_bias),
        "self_attn.o_proj": (hidden, heads, config.output_bias),
        "mlp.gate_proj": (inner, hidden, config.mlp_bias),
        "mlp.up_proj": (inner, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (hidden,)}
    shapes["post_attention_layernorm.weight"] = (hidden,)
    for name, (num_out, num_in, bias) in sizes.items():
        shapes[f"{name}.weight"] = (num_out, num_in)
        if bias:
            shapes[f"{name}.bias"] = (num_out,)
    if config.qk_norm:
        shapes["self_attn.q_norm.weight"] = shapes["self_attn.k_norm.weight"] = (config.head_dim,)
    return shapes


def _fingerprint(path: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted((*path.glob("*.safetensors"), path / "config.json")) if path.is_dir() else [path]:
        size = file.stat().st_size
        digest.update(f"{file.name if path.is_dir() else ''} {size}\n".encode())
        with file.open("rb") as content:
            digest.update(content.read(SAMPLED_HEAD))
            for piece in range(SAMPLED_PIECES):
                content.seek(size * piece // SAMPLED_PIECES)
                digest.update(content.read(SAMPLED_BYTES))
    return digest.hexdigest()
