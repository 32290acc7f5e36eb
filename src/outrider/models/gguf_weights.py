"""The tensors of a GGUF file under their Hugging Face names, as float32 or as the 4-bit groups that are stored.

Files of architecture "llama" hold the rows of q and k in GGUF's rotary order (pairs side by side); here they come
out in Hugging Face's (first halves, then second halves).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType as Kind
from gguf.quants import dequantize

from outrider.errors import CheckpointError, UnsupportedModel
from outrider.models.config import DecoderConfig, config_from_gguf
from outrider.models.gguf_file import GgufFile

FLOAT_KINDS = (Kind.F32, Kind.F16, Kind.BF16)
BLOCK_KINDS = (Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K)
GROUP_KINDS = (Kind.Q4_0, Kind.Q4_1)
GROUP_SIZE = 32

FREQUENCY_FACTORS = "rope_freqs.weight"

_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_TENSOR = re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.([a-z_]+)\.(weight|bias)")

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class Groups4:
    """A matrix in 4-bit groups of 32, as stored: weight = codes * scale + min.

    Args:
        codes: [out, in] uint8, each in 0..15.
        scales: [out, in / 32] float32.
        mins: [out, in / 32] float32.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    mins: torch.Tensor


def canonical_name(name: str) -> str:
    """Hugging Face name of a GGUF tensor; a name that is not known is given back as it is."""
    found = _LAYER_TENSOR.fullmatch(name)
    if found is None or found[2] not in _IN_LAYER:
        return _OUTER.get(name, name)
    return f"model.layers.{found[1]}.{_IN_LAYER[found[2]]}.{found[3]}"


class GgufWeights:
    """The tensors of one GGUF file.

    Args:
        file: an open file.

    Raises:
        UnsupportedModel: an architecture, setting or number format that is not decoded; named.
        CheckpointError: a config that makes no sense.
    """

    def __init__(self, file: GgufFile) -> None:
        self._file = file
        _check_formats(file)
        self.config = config_from_gguf(file.metadata, file.tensors.keys(), self._frequency_factors())
        self._names = {canonical_name(name): name for name in file.tensors if name != FREQUENCY_FACTORS}
        self.shapes: Mapping[str, tuple[int, ...]] = {
            name: file.tensors[stored].shape for name, stored in self._names.items()
        }
        self._heads = _permuted_heads(file, self.config)

    @property
    def is_q4(self) -> bool:
        """Whether most matrices are stored as Q4_0 or Q4_1."""
        matrices = [tensor for tensor in self._file.tensors.values() if len(tensor.shape) == 2]
        return 2 * sum(tensor.kind in GROUP_KINDS for tensor in matrices) > len(matrices)

    def read(self, name: str) -> torch.Tensor:
        """A tensor as float32."""
        groups = self.groups4(name)
        if groups is not None:
            return _weights_of(groups)
        tensor, rows = self._file.tensors[self._names[name]], self._rows(name)
        with np.errstate(all="ignore"):  # damaged scales give infinities, which the caller refuses
            values = dequantize(rows, tensor.kind)
        return torch.from_numpy(np.array(values, np.float32)).view(tensor.shape)

    def groups4(self, name: str) -> Groups4 | None:
        """The stored groups of a Q4_0 or Q4_1 matrix, rows in the order of `read`; None for other formats."""
        tensor = self._file.tensors[self._names[name]]
        if tensor.kind not in GROUP_KINDS or len(tensor.shape) != 2:
            return None
        num_out, num_in = tensor.shape
        blocks = self._rows(name).reshape(num_out, num_in // GROUP_SIZE, -1)
        codes = np.empty((num_out, num_in // GROUP_SIZE, 2, GROUP_SIZE // 2), np.uint8)
        np.bitwise_and(blocks[:, :, -16:], 15, out=codes[:, :, 0])  # a block's first half lies in the low nibbles
        np.right_shift(blocks[:, :, -16:], 4, out=codes[:, :, 1])
        scales = _halves(blocks[:, :, 0:2])
        mins = _halves(blocks[:, :, 2:4]) if tensor.kind is Kind.Q4_1 else -8 * scales
        return Groups4(torch.from_numpy(codes).view(num_out, num_in), scales, mins)

    def _rows(self, name: str) -> Bytes:
        rows, heads = self._file.rows(self._names[name]), self._heads.get(_projection(name))
        if heads is not None:
            rows = rows.reshape(heads, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)
        return rows

    def _frequency_factors(self) -> tuple[float, ...]:
        tensor = self._file.tensors.get(FREQUENCY_FACTORS)
        if tensor is None:
            return ()
        if tensor.kind is not Kind.F32 or len(tensor.shape) != 1:
            raise CheckpointError(f"{self._file.path}: {FREQUENCY_FACTORS} must be a vector of F32 numbers.")
        return tuple(self._file.rows(FREQUENCY_FACTORS).view(np.float32).ravel().tolist())


def _check_formats(file: GgufFile) -> None:
    for tensor in file.tensors.values():
        allowed = FLOAT_KINDS if len(tensor.shape) == 1 else (*FLOAT_KINDS, *BLOCK_KINDS)
        if tensor.kind not in allowed:
            what = "vector" if len(tensor.shape) == 1 else "tensor"
            raise UnsupportedModel(
                f"{file.path}: {what} {tensor.name!r} is stored as {tensor.kind.name}; read are "
                f"{', '.join(kind.name for kind in allowed)}."
            )


def _permuted_heads(file: GgufFile, config: DecoderConfig) -> dict[str, int]:
    """Projections whose rows GGUF re-orders, with their number of heads."""
    if file.metadata["general.architecture"] != "llama":
        return {}
    return {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}


def _projection(name: str) -> str:
    return name.split(".")[-2] if "." in name else name


def _halves(stored: Bytes) -> torch.Tensor:
    """Little-endian halves [..., 2 bytes] -> [...] float32."""
    return torch.from_numpy(np.ascontiguousarray(stored).view("<f2")[..., 0].astype(np.float32))


def _weights_of(groups: Groups4) -> torch.Tensor:
    num_out, num_in = groups.codes.shape
    weights = groups.codes.float().view(num_out, -1, GROUP_SIZE)
    return weights.mul_(groups.scales[:, :, None]).add_(groups.mins[:, :, None]).view(num_out, num_in)
