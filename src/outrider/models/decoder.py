"""The native decoder: Llama, Mistral, Qwen2, Qwen3 and their relatives on the static slot cache.

Knows nothing about drafts or rules: it runs blocks. On a CPU every token of a block, prefills excepted, attends as a
problem of its own (same kernel, same shape, whatever stands beside it), so that with row-independent linears the
logits of a position are the same bits in any block and any batch.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn import functional as F

from outrider.cache import KEY_BLOCK, KVCache
from outrider.core import Block, Output
from outrider.models.config import DecoderConfig, check_feature_layers, inverse_frequencies
from outrider.models.linear import Linear

UNDIVIDED = 32767
"""Most elements that torch's elementwise kernels leave to one thread; more are cut anywhere, even inside a row."""


@dataclass(frozen=True)
class Layer:
    """Weights of one layer; `qkv` and `gate_up` are merged products, q and k rows in interleaved rotary order."""

    input_norm: torch.Tensor  # [H]
    qkv: Linear
    q_norm: torch.Tensor | None  # [D], interleaved like the heads
    k_norm: torch.Tensor | None
    out: Linear
    mlp_norm: torch.Tensor  # [H]
    gate_up: Linear
    down: Linear


@dataclass(frozen=True)
class Weights:
    """All weights of a decoder, ready to run."""

    embedding: torch.Tensor  # [V, H], any float type
    layers: tuple[Layer, ...]
    norm: torch.Tensor  # [H]
    head: Linear


@dataclass(frozen=True)
class _Span:
    """One sequence's rows in the flattened block and what they may attend to."""

    slot: int
    start: int  # first cache row written
    rows: slice
    mask: torch.Tensor  # [n, L] additive, L a multiple of KEY_BLOCK
    one_by_one: bool  # whether each row attends as a problem of its own


@dataclass(frozen=True)
class _Crowd:
    """Neighbouring slots with one row each: the same problems as of n spans, in one call."""

    slots: slice
    starts: torch.Tensor  # [n] cache row written, of each slot
    rows: torch.Tensor  # [n] in the flattened block
    mask: torch.Tensor  # [n, L]


class Rows(Protocol):
    """What the layers need of a cache: where each slot's rows are, and how many count."""

    rows: list[list[torch.Tensor]]
    lengths: list[int]
    data: torch.Tensor


@dataclass
class Flow:
    """A block on its way through the layers.

    Args:
        x: [T, H] the tokens of all sequences, one after the other; changed by every layer.
        rotation: [T, 1, D / 2] complex, of their positions.
        spans: whose they are and what they may attend to.
    """

    x: torch.Tensor
    rotation: torch.Tensor
    spans: list[_Span | _Crowd]


class Decoder:
    """A decoder-only transformer that implements `core.Model`.

    Args:
        config: the shape.
        weights: as `models.load` prepares them.
        precision: what the output calls this target: float32, bfloat16, float16 or q4.
        feature_layers: states that `Output.hidden` shows, side by side, as transformers counts `hidden_states`: 0 is
            the embedding, i what enters layer i, the number of layers what leaves the final norm; () for none.
    """

    takes_trees = True

    def __init__(
        self, config: DecoderConfig, weights: Weights, precision: str, feature_layers: tuple[int, ...] = ()
    ) -> None:
        self.config = config
        self.weights = weights
        self.precision = precision
        self.feature_layers = feature_layers
        check_feature_layers(feature_layers, config.num_layers)
        self.vocab_size = config.vocab_size
        self.context_length = config.context_length
        self.device = weights.norm.device
        self._rotations = _rotations(config).to(self.device)

    @property
    def row_invariant(self) -> bool:
        """Whether a position's logits are the same bits in any block and batch (chains, on a CPU)."""
        return self.device.type == "cpu" and self.precision in ("float16", "q4")

    @property
    def pads_to_same_bits(self) -> bool:
        """Whether forwards of one fixed width give a position the same bits wherever it stands (on a CPU)."""
        return self.device.type == "cpu"

    def new_cache(self, slots: int, capacity: int) -> KVCache:
        """An empty cache for `slots` sequences of up to `capacity` tokens.

        Raises:
            CacheTooLarge: with the number of bytes asked.
        """
        dtype = torch.float32 if self.device.type == "cpu" else self.weights.embedding.dtype
        c = self.config
        return KVCache(
            c.num_layers,
            slots,
            capacity,
            num_kv_heads=c.num_kv_heads,
            head_dim=c.head_dim,
            dtype=dtype,
            device=self.device,
        )

    @torch.inference_mode()
    def forward(self, block: Block, cache: Rows) -> Output:
        """Run a block on top of its slots' committed rows; cache rows are written, lengths are not moved."""
        flow = self.embed(block, cache)
        features = self.run(flow, cache, range(len(self.weights.layers)))
        if self.config.num_layers in self.feature_layers:
            features[self.config.num_layers] = self._normed(flow)
        shown = [features[layer] for layer in self.feature_layers]
        hidden = _unflatten(torch.cat(shown, dim=-1), block) if shown else None
        return Output(None if block.prefill else self.head(flow, block), hidden)

    def showing(self, feature_layers: tuple[int, ...]) -> Decoder:
        """The same model, weights shared, with these features.

        Raises:
            InvalidOption: a layer that the model does not have.
        """
        return Decoder(self.config, self.weights, self.precision, feature_layers)

    def embed(self, block: Block, cache: Rows, skip: Ordered[int] | None = None) -> Flow:
        """The block's tokens as vectors, flattened, with what every layer needs to know of them.

        Args:
            block: tokens of some slots.
            cache: holds what is before them.
            skip: how many of each sequence's first tokens to leave out, whose rows of the cache have been written; None
                for none of them.
        """
        taken = [slice(s, n) for s, n in zip(skip or [0] * len(block.widths), block.widths, strict=True)]
        tokens = torch.cat([row[part] for row, part in zip(block.tokens, taken, strict=True)]).to(self.device)
        positions = torch.cat([row[part] for row, part in zip(block.positions, taken, strict=True)])
        x = F.embedding(tokens, self.weights.embedding).float()
        return Flow(x, self._rotations[positions.to(self.device)], self._spans(block, cache, taken))

    def run(self, flow: Flow, cache: Rows, layers: range) -> dict[int, torch.Tensor]:
        """Send the flow through some layers, in place; what entered those among `feature_layers`, [T, H] each."""
        features = {}
        for index in layers:
            layer = self.weights.layers[index]
            if index in self.feature_layers:
                features[index] = flow.x.clone()
            flow.x += self._attention(layer, flow, cache, index)
            flow.x += self._mlp(layer, flow.x)
        return features

    def head(self, flow: Flow, block: Block) -> torch.Tensor:
        """[B, N, V] logits of what came out of the last layer, or of an earlier one."""
        return _unflatten(self.weights.head(self._normed(flow)), block)

    def _normed(self, flow: Flow) -> torch.Tensor:
        return _rms_norm(flow.x, self.weights.norm, self.config.rms_norm_eps)

    def _attention(self, layer: Layer, flow: Flow, cache: Rows, index: int) -> torch.Tensor:
        x = flow.x
        c = self.config
        heads = c.num_heads + c.num_kv_heads
        qkv = layer.qkv(_rms_norm(x, layer.input_norm, c.rms_norm_eps)).view(len(x), -1, c.head_dim)
        if layer.q_norm is not None and layer.k_norm is not None:
            qkv[:, : c.num_heads] = _rms_norm(qkv[:, : c.num_heads], layer.q_norm, c.rms_norm_eps)
            qkv[:, c.num_heads : heads] = _rms_norm(qkv[:, c.num_heads : heads], layer.k_norm, c.rms_norm_eps)
        # Rotary pairs lie side by side, so one complex product rotates all heads of q and k in place.
        pairs = torch.view_as_complex(qkv[:, :heads].view(len(x), heads, -1, 2))
        for group in _undivided(pairs):
            pairs[group].mul_(flow.rotation[group])
        parts = [_attended(span, qkv[span.rows], c.num_heads, cache, index) for span in flow.spans]
        if len(parts) == 1:
            return layer.out(parts[0])
        attended = torch.empty(len(x), c.num_heads * c.head_dim, device=x.device)
        for span, part in zip(flow.spans, parts, strict=True):
            attended[span.rows] = part
        return layer.out(attended)

    def _mlp(self, layer: Layer, x: torch.Tensor) -> torch.Tensor:
        gate_up = layer.gate_up(_rms_norm(x, layer.mlp_norm, self.config.rms_norm_eps))
        gate, up = gate_up.chunk(2, dim=-1)
        for group in _undivided(gate):
            F.silu(gate[group], inplace=True)
        return layer.down(gate.mul_(up))

    def _spans(self, block: Block, cache: Rows, taken: list[slice]) -> list[_Span | _Crowd]:
        spans, first = list[_Span](), 0
        for index, (slot, part) in enumerate(zip(block.slots, taken, strict=True)):
            start, width, count = cache.lengths[slot], part.stop, part.stop - part.start
            assert start + width <= cache.data.shape[2], "the engine clamps drafts to the cache"
            if count == 0:
                continue
            ancestors = None if block.ancestors is None else block.ancestors[index, :width, :width]
            mask = _mask(start, width, ancestors)[part].to(self.device)
            one_by_one = self.device.type == "cpu" and not block.prefill
            spans.append(_Span(slot, start + part.start, slice(first, first + count), mask, one_by_one))
            first += count
        return _grouped(spans)


def _grouped(spans: list[_Span]) -> list[_Span | _Crowd]:
    """The spans, those of one row in neighbouring slots together; keys that one of them lacks are masked for it."""
    runs = list[list[_Span]]()
    for span in sorted(spans, key=lambda span: span.slot):
        if runs and runs[-1][-1].slot + 1 == span.slot and _alike(runs[-1][0], span):
            runs[-1].append(span)
        else:
            runs.append([span])
    return [run[0] if len(run) == 1 else _crowd(run) for run in runs]


def _alike(one: _Span, two: _Span) -> bool:
    """Whether both are one row, attended to alone, and padding the shorter costs less than a call of its own."""
    single = all(span.one_by_one and len(span.mask) == 1 for span in (one, two))
    lengths = one.mask.shape[-1], two.mask.shape[-1]
    return single and max(lengths) <= 2 * min(lengths)


def _crowd(run: list[_Span]) -> _Crowd:
    length = max(span.mask.shape[-1] for span in run)
    return _Crowd(
        slice(run[0].slot, run[-1].slot + 1),
        torch.tensor([span.start for span in run]),
        torch.tensor([span.rows.start for span in run]),
        torch.cat([F.pad(span.mask, (0, length - span.mask.shape[-1]), value=float("-inf")) for span in run]),
    )


def _mask(start: int, width: int, ancestors: torch.Tensor | None) -> torch.Tensor:
    """[n, L]: 0 where row i of a block may attend to cache row j, -inf elsewhere."""
    length = -(-(start + width) // KEY_BLOCK) * KEY_BLOCK
    mask = torch.full((width, length), float("-inf"))
    mask[:, :start] = 0
    if ancestors is None:
        ancestors = torch.ones(width, width, dtype=torch.bool).tril()
    mask[:, start : start + width].masked_fill_(ancestors.cpu(), 0)
    return mask


def _attended(span: _Span | _Crowd, qkv: torch.Tensor, num_heads: int, cache: Rows, index: int) -> torch.Tensor:
    """[n, heads + 2 * kv_heads, D] -> [n, heads * D]: write the rows' keys and values, and attend to what is there."""
    n, length = span.mask.shape
    queries, new = qkv[:, :num_heads], qkv[:, num_heads:]
    if isinstance(span, _Crowd):
        held = cache.data[index, span.slots]
        held[torch.arange(n), span.starts] = new.to(held.dtype)
        return _attend_one_by_one(queries, held[:, :length], span.mask)
    row = cache.rows[index][span.slot]
    row[span.start : span.start + n] = new
    if span.one_by_one:
        return _attend_one_by_one(queries, row[:length].expand(n, -1, -1, -1), span.mask)
    return _attend_together(queries, row[:length], span.mask)


def _attend_one_by_one(q: torch.Tensor, kv: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """q [n, heads, D] on kv [n, L, 2 * kv_heads, D] under mask [n, L] -> [n, heads * D], the same bits for any n.

    Each token is a batch entry: its group of query heads against the keys, a product of one shape for every n.
    """
    n, _, dim = q.shape
    keys, values = (part.transpose(1, 2) for part in kv.chunk(2, dim=2))  # [n, kv_heads, L, D]
    grouped = q.reshape(n, keys.shape[1], -1, dim)
    return F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask[:, None, None]).reshape(n, -1)


def _attend_together(q: torch.Tensor, kv: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The same, all tokens in one product: quicker for many of them."""
    keys, values = (part.transpose(0, 1)[None] for part in kv.chunk(2, dim=1))  # [1, kv_heads, L, D]
    queries, mask = q.to(kv.dtype).transpose(0, 1)[None], mask.to(kv.dtype)
    out = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=True)
    return out[0].transpose(0, 1).reshape(len(q), -1).to(q.dtype)


def _rotations(config: DecoderConfig) -> torch.Tensor:
    """[context, 1, D / 2] complex: what the rotary pairs of a position are multiplied with (Su et al. 2104.09864).

    A table, because sines computed for several positions at once may differ in the last bit from those of one.
    """
    frequencies, scale = inverse_frequencies(config)
    angles = torch.arange(config.context_length)[:, None, None].float() * frequencies
    return torch.polar(torch.full_like(angles, scale), angles)


def _undivided(x: torch.Tensor) -> list[slice]:
    """Groups of rows with at most `UNDIVIDED` elements."""
    size = max(1, UNDIVIDED // x[0].numel())
    return [slice(first, first + size) for first in range(0, len(x), size)]


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x * weight / sqrt(mean(x^2) + eps) over the last dimension; few operators, each row alike."""
    mean_square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1])
    normed: torch.Tensor = (x * mean_square.add_(eps).rsqrt_()).mul_(weight)
    return normed


def _unflatten(rows: torch.Tensor, block: Block) -> torch.Tensor:
    """[T, F] -> [B, N, F]; padding rows are zero."""
    if len(block.widths) == 1:
        return rows[None]
    parts = torch.split(rows, list(block.widths))
    return torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True)
