"""Tiny trained heads with random weights, and the targets that they read.

target = tiny_target()                      # the native decoder and transformers' own model, with the same weights
stored = eagle_head(target, fc_norm=True)   # or medusa_head, mlp_head: a `StoredHead`
drafter = head_drafter(target, stored, slots=3, tree="auto")
engine = toy_engine(target.showing(drafter), drafter, slots=3)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from checkpoints import save_folder, tiny_model
from outrider.core import Block, Model, Output
from outrider.drafters.eagle import EagleFeeder
from outrider.drafters.headed import HeadDrafter
from outrider.drafters.heads.config import EagleConfig, MedusaConfig, MlpConfig
from outrider.drafters.heads.eagle import MATRICES, EagleHead
from outrider.drafters.heads.medusa import MedusaHeads
from outrider.drafters.heads.mlp import MlpSpeculator
from outrider.drafters.heads.stored import StoredHead
from outrider.drafters.parallel import MedusaFeeder, MlpFeeder
from outrider.models.checkpoint import open_checkpoint
from outrider.models.load import load_decoder
from toy import TableModel, ToyCache

CPU = torch.device("cpu")
VOCAB_SIZE, HIDDEN_SIZE, NUM_LAYERS = 12, 48, 4

# ---------------------------------------------------------------- targets


@dataclass(frozen=True, eq=False)
class TinyTarget:
    """A target, and what heads may share with it or read of it.

    Args:
        model: what the engine runs.
        embedding: [V, Ht].
        output: [V, Ht].
        num_layers: N, the id of the last state.
        reference: transformers' own model of the same weights, where there is one.
    """

    model: Any
    embedding: torch.Tensor
    output: torch.Tensor
    num_layers: int
    reference: Any = None

    @property
    def vocab_size(self) -> int:
        return len(self.embedding)

    @property
    def hidden_size(self) -> int:
        return self.embedding.shape[1]

    def showing(self, drafter: Any) -> Model:
        """The model with the states that a drafter reads."""
        return self.model.showing(drafter.feature_layers)

    @torch.inference_mode()
    def states(self, tokens: list[int]) -> tuple[torch.Tensor, ...]:
        """[n, Ht] for the embedding and each layer, by transformers, all tokens at once."""
        output = self.reference(input_ids=torch.tensor([tokens]), output_hidden_states=True, use_cache=False)
        return tuple(state[0] for state in output.hidden_states)


@lru_cache
def tiny_target(vocab_size: int = VOCAB_SIZE, context_length: int = 1024) -> TinyTarget:
    """A Llama of four layers whose laws are neither flat nor certain."""
    model = tiny_model(
        "llama",
        vocab_size=vocab_size,
        hidden_size=HIDDEN_SIZE,
        intermediate_size=64,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=context_length,
        eos_token_id=1,
    )
    model.lm_head.weight.data *= 6
    for name, parameter in model.named_parameters():
        if "_proj" in name or "embed" in name:
            parameter.data *= 3
    with TemporaryDirectory() as folder:
        decoder = load_decoder(open_checkpoint(save_folder(model, Path(folder))), "float32")
    embedding, output = model.model.embed_tokens.weight.data, model.lm_head.weight.data
    return TinyTarget(decoder, embedding, output, NUM_LAYERS, model)


class ShownTable:
    """A `TableModel` that shows states: fixed random features of the law after each token, whatever the layer.

    Args:
        table: the target.
        feature_layers: how many, and which.
        hidden_size: width of each.
    """

    takes_trees = True

    def __init__(self, table: TableModel, feature_layers: tuple[int, ...] = (), hidden_size: int = 8) -> None:
        self.table, self.feature_layers, self.hidden_size = table, feature_layers, hidden_size
        self.vocab_size, self.context_length, self.precision = table.vocab_size, table.context_length, table.precision
        self._maps = [3 * noise(layer, table.vocab_size, hidden_size) for layer in feature_layers]

    def showing(self, feature_layers: tuple[int, ...]) -> ShownTable:
        return ShownTable(self.table, feature_layers, self.hidden_size)

    def new_cache(self, slots: int, capacity: int) -> ToyCache:
        return self.table.new_cache(slots, capacity)

    def forward(self, block: Block, cache: ToyCache) -> Output:
        output = self.table.forward(replace(block, prefill=False), cache)
        assert output.logits is not None
        laws = output.logits.softmax(-1)
        hidden = torch.cat([(laws @ each).tanh() for each in self._maps], -1) if self._maps else None
        return Output(None if block.prefill else output.logits, hidden)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.table, name)


def table_target(table: TableModel, hidden_size: int = 8) -> TinyTarget:
    """A table model as a target for heads."""
    embedding, output = (noise(seed, table.vocab_size, hidden_size) for seed in (50, 51))
    return TinyTarget(ShownTable(table, hidden_size=hidden_size), embedding, 3 * output, 4)


def noise(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# ---------------------------------------------------------------- heads


def eagle_head(
    target: TinyTarget,
    version: int = 3,
    *,
    feature_layers: tuple[int, ...] | None = None,
    draft_ids: tuple[int, ...] | None = None,
    own_embedding: bool = False,
    own_output: bool = True,
    qk_norm: bool = False,
    biased: bool = False,
    seed: int = 0,
    **flags: bool,
) -> StoredHead:
    """An EAGLE head of the target's width; version 1 shares the target's output matrix.

    Args:
        target: that it reads.
        version: 1 or 3.
        feature_layers: (1, 2, N), or what version 1 reads.
        draft_ids: what a reduced vocabulary holds.
        own_embedding: whether it has an embedding of its own.
        own_output: whether a head of version 3 has an output matrix of its own.
        qk_norm: whether queries and keys are normed.
        biased: whether `fc` has a bias.
        seed: of its weights.
        **flags: of `EagleConfig`.
    """
    last = target.num_layers
    layers = (last,) if version == 1 else (1, 2, last) if feature_layers is None else feature_layers
    width, vocab = target.hidden_size, target.vocab_size
    config = EagleConfig(
        version=version,
        hidden_size=width,
        target_hidden_size=width,
        intermediate_size=width + 8,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        vocab_size=vocab,
        draft_vocab_size=vocab if draft_ids is None else len(draft_ids),
        feature_layers=layers,
        rope_theta=5_000.0,
        **flags,
    )
    weights = _eagle_weights(config, seed)
    if qk_norm:
        weights |= {f"layers.0.self_attn.{x}_norm.weight": 1 + 0.3 * noise(seed + 90, 8) for x in "qk"}
    if biased:
        weights["fc.bias"] = noise(seed + 91, width)
    if own_embedding:
        weights["embed_tokens.weight"] = noise(seed + 92, vocab, width)
    if version == 3 and own_output:
        weights["lm_head.weight"] = 0.4 * noise(seed + 93, config.draft_vocab_size, width)
    return StoredHead(config, weights, None if draft_ids is None else torch.tensor(draft_ids))


def _eagle_weights(config: EagleConfig, seed: int) -> dict[str, torch.Tensor]:
    h, wide, inner, count = config.hidden_size, config.target_hidden_size, config.intermediate_size, config.head_dim
    attended, num_features = (1 if config.version == 1 else 2) * h, len(config.feature_layers)
    sizes = {
        "fc": (h, 2 * h if config.version == 1 else num_features * wide),
        "q_proj": (config.num_heads * count, attended),
        "k_proj": (config.num_kv_heads * count, attended),
        "v_proj": (config.num_kv_heads * count, attended),
        "o_proj": (h, config.num_heads * count),
        "gate_proj": (inner, h),
        "up_proj": (inner, h),
        "down_proj": (h, inner),
    }
    norms = {"layers.0.post_attention_layernorm": h}
    if config.version == 3:
        norms |= {"layers.0.input_layernorm": h, "layers.0.hidden_norm": h, "norm": h}
    if config.norm_before_fc:
        norms["input_norm"] = num_features * wide
    if config.fc_norm:
        norms |= {f"fc_norm.{i}": wide for i in range(num_features)}
    matrices = {name: sizes[name.rpartition(".")[2]] for name in MATRICES}
    gain = 1.0 if config.version == 1 else 1.5  # where no norm comes between one step and the next
    made = {f"{n}.weight": gain * noise(seed + i, *s) / s[1] ** 0.5 for i, (n, s) in enumerate(matrices.items())}
    return made | {f"{n}.weight": 1 + 0.3 * noise(seed + 40 + i, s) for i, (n, s) in enumerate(norms.items())}


def medusa_head(
    target: TinyTarget,
    num_heads: int = 3,
    num_layers: int = 1,
    *,
    biased: bool = True,
    own_outputs: bool = True,
    draft_ids: tuple[int, ...] | None = None,
    seed: int = 0,
) -> StoredHead:
    """Medusa heads; without outputs of their own they share the target's."""
    width, rows = target.hidden_size, target.vocab_size if draft_ids is None else len(draft_ids)
    config = MedusaConfig(num_heads, num_layers, width, target.vocab_size, rows)
    weights = dict[str, torch.Tensor]()
    for k in range(num_heads):
        for block in range(num_layers):
            place = seed + 10 * k + block
            weights[f"{k}.{block}.linear.weight"] = noise(place, width, width) / width**0.5
            if biased:
                weights[f"{k}.{block}.linear.bias"] = noise(place + 5, width)
        if own_outputs:
            weights[f"{k}.{num_layers}.weight"] = 1.5 * noise(seed + 70 + k, rows, width) / width**0.5
    return StoredHead(config, weights, None if draft_ids is None else torch.tensor(draft_ids))


def mlp_head(target: TinyTarget, num_steps: int = 3, *, scale_input: bool = False, seed: int = 0) -> StoredHead:
    """An MLP speculator."""
    width, vocab, inner = target.hidden_size, target.vocab_size, target.hidden_size // 2
    weights = dict[str, torch.Tensor]()
    for i in range(num_steps):
        place, entering = seed + 10 * i, inner if i else width
        weights[f"emb.{i}.weight"] = noise(place, vocab, inner) / inner**0.5
        weights[f"proj.{i}.weight"] = noise(place + 1, inner, entering) / entering**0.5
        weights[f"head.{i}.weight"] = 2 * noise(place + 2, vocab, inner) / inner**0.5
        weights[f"ln.{i}.weight"] = 1 + 0.3 * noise(place + 3, inner)
        weights[f"ln.{i}.bias"] = 0.3 * noise(place + 4, inner)
    return StoredHead(MlpConfig(num_steps, width, inner, vocab, scale_input), weights)


HEADS = {
    "eagle-1": lambda target: eagle_head(target, 1, biased=True, seed=400),
    "eagle-3": lambda target: eagle_head(target, qk_norm=True, norm_before_residual=True, fc_norm=True),
    "eagle-3 reduced": lambda target: eagle_head(
        target, own_output=False, norm_before_fc=True, norm_output=True, draft_ids=tuple(range(0, target.vocab_size, 2))
    ),
    "medusa": medusa_head,
    "medusa shared": lambda target: medusa_head(target, num_layers=2, biased=False, own_outputs=False),
    "mlp": mlp_head,
    "mlp scaled": lambda target: mlp_head(target, num_steps=4, scale_input=True),
}
"""One head of each kind that differs in more than its weights."""


def head_drafter(
    target: TinyTarget, stored: StoredHead, slots: int = 1, capacity: int = 512, feeder: Any = None, **options: Any
) -> HeadDrafter:
    """The drafter of a head; `feeder` is a class to take instead of the head's own."""
    common: dict[str, Any] = {"vocab_size": target.vocab_size, "capacity": capacity} | options
    layers = feature_layers(target, stored)
    if isinstance(stored.config, EagleConfig):
        feeds = (feeder or EagleFeeder)(eagle_graph(target, stored), stored.draft_ids, slots, capacity, CPU)
        return HeadDrafter("eagle", feeds, feeds, layers, **common)
    if isinstance(stored.config, MedusaConfig):
        heads = MedusaHeads(stored.config, stored.weights, shared_output(target, stored))
        feeds = (feeder or MedusaFeeder)(heads, stored.draft_ids, capacity)
        return HeadDrafter("medusa", feeds, feeds.states, layers, max_depth=feeds.max_depth, **common)
    feeds = (feeder or MlpFeeder)(MlpSpeculator(stored.config, stored.weights), capacity)
    return HeadDrafter("mlp", feeds, feeds.states, layers, max_depth=feeds.max_depth, **common)


def feature_layers(target: TinyTarget, stored: StoredHead) -> tuple[int, ...]:
    """Ids of the states that the head reads."""
    return stored.config.feature_layers if isinstance(stored.config, EagleConfig) else (target.num_layers,)


def eagle_graph(target: TinyTarget, stored: StoredHead) -> EagleHead:
    """The head with what it shares with the target."""
    assert isinstance(stored.config, EagleConfig)
    return EagleHead(stored.config, stored.weights, target.embedding, shared_output(target, stored))


def shared_output(target: TinyTarget, stored: StoredHead) -> torch.Tensor:
    """[Vd, Ht] rows of the target's output matrix."""
    return target.output if stored.draft_ids is None else target.output[stored.draft_ids]
