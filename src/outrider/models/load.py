"""From a checkpoint to a decoder in a chosen precision."""

from __future__ import annotations

from collections.abc import Callable

import torch

from outrider.errors import InvalidOption
from outrider.models.checkpoint import Checkpoint, Groups4
from outrider.models.decoder import Decoder, Layer, Weights
from outrider.models.linear import Dense, Grouped4, Linear, PackedHalf, Stacked, has_packed_half

PRECISIONS = ("float32", "bfloat16", "float16", "q4")

Progress = Callable[[int, int], None]
"""Called with (done, total) layers while a model loads."""


def available_precisions(checkpoint: Checkpoint, device: torch.device) -> tuple[str, ...]:
    """The precisions this checkpoint can have on this device, slowest first."""
    names = ["float32", "bfloat16"]
    if device.type != "cpu" or has_packed_half():
        names.append("float16")
    if device.type == "cpu" and has_packed_half() and checkpoint.is_q4:
        names.append("q4")
    return tuple(names)


def load_decoder(
    checkpoint: Checkpoint,
    precision: str,
    *,
    device: str | torch.device = "cpu",
    feature_layers: tuple[int, ...] = (),
    progress: Progress | None = None,
) -> Decoder:
    """Read every tensor of a checkpoint and build the decoder.

    Args:
        checkpoint: an opened checkpoint; its tensors were checked against its config when it was opened.
        precision: float32, bfloat16, float16 or q4 (4-bit files on a CPU only).
        device: where to run.
        feature_layers: see `Decoder`.
        progress: called after each layer.

    Raises:
        InvalidOption: a precision that this checkpoint or machine cannot have, naming those it can.
        CheckpointError: a tensor that cannot be read.
    """
    device = torch.device(device)
    allowed = available_precisions(checkpoint, device)
    if precision not in allowed:
        reason = "q4 runs 4-bit Q4_0/Q4_1 files as stored, on x86 CPUs." if precision == "q4" else ""
        raise InvalidOption("precision", precision, ", ".join(allowed), reason)
    builder = _Builder(checkpoint, precision, device)
    layers = []
    for index in range(checkpoint.config.num_layers):
        layers.append(builder.layer(index))
        if progress is not None:
            progress(index + 1, checkpoint.config.num_layers)
    return Decoder(checkpoint.config, builder.weights(tuple(layers)), precision, feature_layers)


class _Builder:
    """Turns named tensors into linears of one precision."""

    def __init__(self, checkpoint: Checkpoint, precision: str, device: torch.device) -> None:
        self.checkpoint, self.precision, self.device = checkpoint, precision, device

    def weights(self, layers: tuple[Layer, ...]) -> Weights:
        table = self.checkpoint.tensor("model.embed_tokens.weight")
        tied = self.checkpoint.config.tie_embeddings
        head = self.float_linear(table) if tied else self.linear("lm_head.weight")
        return Weights(self.storage(table), layers, self.vector("model.norm.weight"), head)

    def layer(self, index: int) -> Layer:
        c, prefix = self.checkpoint.config, f"model.layers.{index}."
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        q_rows = interleaved_rows(c.num_heads, c.head_dim)
        k_rows = interleaved_rows(c.num_kv_heads, c.head_dim)
        head_rows = interleaved_rows(1, c.head_dim)
        return Layer(
            input_norm=self.vector(prefix + "input_layernorm.weight"),
            qkv=self.merged(
                (attention + "q_proj", q_rows), (attention + "k_proj", k_rows), (attention + "v_proj", None)
            ),
            q_norm=self.vector(attention + "q_norm.weight")[head_rows] if c.qk_norm else None,
            k_norm=self.vector(attention + "k_norm.weight")[head_rows] if c.qk_norm else None,
            out=self.merged((attention + "o_proj", None)),
            mlp_norm=self.vector(prefix + "post_attention_layernorm.weight"),
            gate_up=self.merged((mlp + "gate_proj", None), (mlp + "up_proj", None)),
            down=self.merged((mlp + "down_proj", None)),
        )

    def vector(self, name: str) -> torch.Tensor:
        return self.checkpoint.tensor(name).float().to(self.device)

    def storage(self, table: torch.Tensor) -> torch.Tensor:
        dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16}
        return table.to(self.device, dtypes.get(self.precision, torch.float16))

    def linear(self, name: str) -> Linear:
        return self.float_linear(self.checkpoint.tensor(name))

    def float_linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        if self.device.type == "cpu" and self.precision in ("float16", "q4"):
            return PackedHalf(weight, bias)
        return Dense(self.storage(weight), None if bias is None else bias.to(self.device))

    def merged(self, *parts: tuple[str, torch.Tensor | None]) -> Linear:
        """One product for several projections of the same input, each with its rows re-ordered if asked."""
        biases = [self.bias(name, rows) for name, rows in parts]
        if self.precision == "q4":
            return self.merged4(parts, biases)
        weights = [self.rows(name, rows) for name, rows in parts]
        return self.float_linear(torch.cat(weights), _merged_bias(weights, biases))

    def merged4(self, parts: tuple[tuple[str, torch.Tensor | None], ...], biases: list[torch.Tensor | None]) -> Linear:
        groups = [self.groups(name, rows) for name, rows in parts]
        stored = [g for g in groups if g is not None]
        if len(stored) == len(groups):
            fields = ([getattr(g, f) for g in stored] for f in ("codes", "scales", "mins"))
            return Grouped4(Groups4(*(torch.cat(f) for f in fields)), _merged_bias([g.codes for g in stored], biases))
        linears: list[Linear] = []
        for (name, rows), group, bias in zip(parts, groups, biases, strict=True):
            linears.append(self.float_linear(self.rows(name, rows), bias) if group is None else Grouped4(group, bias))
        return linears[0] if len(linears) == 1 else Stacked(linears)

    def rows(self, name: str, order: torch.Tensor | None) -> torch.Tensor:
        weight = self.checkpoint.tensor(name + ".weight")
        return weight if order is None else weight[order]

    def bias(self, name: str, order: torch.Tensor | None) -> torch.Tensor | None:
        if name + ".bias" not in self.checkpoint.names:
            return None
        bias = self.checkpoint.tensor(name + ".bias").float()
        return bias if order is None else bias[order]

    def groups(self, name: str, order: torch.Tensor | None) -> Groups4 | None:
        groups = self.checkpoint.groups4(name + ".weight")
        if groups is None or order is None:
            return groups
        return Groups4(groups.codes[order], groups.scales[order], groups.mins[order])


def interleaved_rows(num_heads: int, head_dim: int) -> torch.Tensor:
    """Row order [num_heads * head_dim] that puts the two halves of each rotary pair side by side."""
    rows = torch.arange(num_heads * head_dim).view(num_heads, 2, head_dim // 2)
    return rows.transpose(1, 2).reshape(-1)


def _merged_bias(weights: list[torch.Tensor], biases: list[torch.Tensor | None]) -> torch.Tensor | None:
    if all(bias is None for bias in biases):
        return None
    filled = [torch.zeros(len(w)) if b is None else b for w, b in zip(weights, biases, strict=True)]
    return torch.cat(filled)
