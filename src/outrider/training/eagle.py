"""Training of EAGLE heads: their start from the target's last layer, their draft vocabulary, and the loss of a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from outrider.drafters.heads.config import EagleConfig
from outrider.drafters.heads.eagle import LAYER, EagleHead
from outrider.drafters.heads.formats_layers import default_layers as usual_layers
from outrider.drafters.heads.stored import StoredHead
from outrider.models.checkpoint import Checkpoint
from outrider.models.config import DecoderConfig
from outrider.training.batches import Batch
from outrider.training.fused import guess_loss
from outrider.training.losses import acceptance, mean_of_texts
from outrider.training.states import Output
from outrider.training.texts import Sample
from outrider.training.unroll import unrolled

STEP_WEIGHT = 0.8
"""Weight of an unrolled step relative to the one before it (SafeAILab's script)."""

NOISE = 0.02
"""Standard deviation of fresh weights."""

REGRESSION, CROSS_ENTROPY = 1.0, 0.1
"""Weights of EAGLE-1's two losses."""


def default_layers(num_layers: int) -> tuple[int, ...]:
    """The states that EAGLE-3 heads read unless told otherwise, of which a target of few layers has fewer."""
    return tuple(sorted({min(max(0, layer), num_layers) for layer in usual_layers(num_layers)}))


def choose_vocabulary(samples: Iterable[Sample], size: int, vocab_size: int, always: Iterable[int]) -> torch.Tensor:
    """[Vd] the ids, ascending, that the target writes most often; some always.

    Args:
        samples: texts of the target; prompts count too, for answers take up their words.
        size: Vd, if the vocabulary is larger.
        vocab_size: Vt.
        always: ids to keep whatever their count, such as stop ids.
    """
    counts = Counter(token for sample in samples for token in sample.tokens)
    kept = sorted({i for i in always if i < vocab_size})
    ranked = sorted(range(vocab_size), key=lambda i: (-counts[i], i))
    chosen = dict.fromkeys([*kept, *ranked])
    return torch.tensor(sorted(list(chosen)[: min(size, vocab_size)]))


def new_head(
    version: int,
    target: DecoderConfig,
    checkpoint: Checkpoint | None,
    draft_ids: torch.Tensor,
    *,
    feature_layers: tuple[int, ...],
    seed: int,
    intermediate_size: int | None = None,
) -> StoredHead:
    """A head that has not been trained, made of the target's last layer where the target is a plain decoder.

    Where it is, the first step does nearly what the last layer does: the joined features pass on the last of them, and
    the attention reads the state and not the token yet. Output rows and embedding stay the target's own.

    Args:
        version: 1 or 3.
        target: its shape.
        checkpoint: the target's files; None draws all weights.
        draft_ids: [Vd], see `choose_vocabulary`; the whole vocabulary for version 1.
        feature_layers: ids of the states that it reads.
        seed: of the weights that are drawn.
        intermediate_size: width of the MLP; the target's if None or if it is made of the last layer.
    """
    config = EagleConfig(
        version,
        hidden_size=target.hidden_size,
        target_hidden_size=target.hidden_size,
        intermediate_size=intermediate_size or target.intermediate_size,
        num_heads=target.num_heads,
        num_kv_heads=target.num_kv_heads,
        head_dim=target.head_dim,
        vocab_size=target.vocab_size,
        draft_vocab_size=len(draft_ids),
        feature_layers=feature_layers,
        rms_norm_eps=target.rms_norm_eps,
        rope_theta=target.rope_theta,
        max_positions=target.context_length,
    )
    weights = _drawn(config, torch.Generator().manual_seed(seed))
    if checkpoint is not None:
        weights |= _of_last_layer(config, checkpoint, target.num_layers - 1, weights)
    ids = None if len(draft_ids) == target.vocab_size else draft_ids
    return StoredHead(config, weights, ids)


def _shapes(c: EagleConfig) -> dict[str, tuple[int, ...]]:
    """Of every tensor that is trained."""
    inner, queries, keys = 2 * c.hidden_size, c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    layer_in = c.hidden_size if c.version == 1 else inner
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (c.hidden_size, inner if c.version == 1 else len(c.feature_layers) * c.target_hidden_size),
        f"{LAYER}self_attn.q_proj.weight": (queries, layer_in),
        f"{LAYER}self_attn.k_proj.weight": (keys, layer_in),
        f"{LAYER}self_attn.v_proj.weight": (keys, layer_in),
        f"{LAYER}self_attn.o_proj.weight": (c.hidden_size, queries),
        f"{LAYER}mlp.gate_proj.weight": (c.intermediate_size, c.hidden_size),
        f"{LAYER}mlp.up_proj.weight": (c.intermediate_size, c.hidden_size),
        f"{LAYER}mlp.down_proj.weight": (c.hidden_size, c.intermediate_size),
        f"{LAYER}post_attention_layernorm.weight": (c.hidden_size,),
    }
    if c.version == 3:
        norms = (f"{LAYER}hidden_norm.weight", f"{LAYER}input_layernorm.weight", "norm.weight")
        shapes |= dict.fromkeys(norms, (c.hidden_size,))
    return shapes


def _drawn(config: EagleConfig, dice: torch.Generator) -> dict[str, torch.Tensor]:
    return {
        name: torch.ones(shape) if len(shape) == 1 else NOISE * torch.randn(shape, generator=dice)
        for name, shape in _shapes(config).items()
    }


def _of_last_layer(
    config: EagleConfig, checkpoint: Checkpoint, layer: int, drawn: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The target's last layer where its shapes fit; matrices of two halves keep noise in the token's half."""
    found = {}
    for name, wanted in drawn.items():
        source = name.replace(LAYER, f"model.layers.{layer}.").replace("hidden_norm", "input_layernorm")
        if name == f"{LAYER}input_layernorm.weight" or name == "fc.weight":
            continue
        weight = checkpoint.tensor("model.norm.weight" if name == "norm.weight" else source)
        if weight.shape == wanted.shape:
            found[name] = weight.clone()
        elif weight.ndim == 2 and wanted.shape == (weight.shape[0], 2 * weight.shape[1]):
            found[name] = torch.cat([0.1 * wanted[:, : weight.shape[1]], weight], dim=1)
    fc = 0.1 * drawn["fc.weight"].clone()
    fc[:, -config.hidden_size :] += torch.eye(config.hidden_size)
    return {**found, "fc.weight": fc}


@dataclass(frozen=True)
class Recipe:
    """How an EAGLE head is trained.

    Args:
        steps: how often the head runs on its own output; 1 for the first `single_share` of training.
        single_share: part of training, from the start, without unrolling.
        kl_share: part of training, from the start, with KL alone; then the hybrid with acceptance.
    """

    steps: int = 5
    single_share: float = 0.4
    kl_share: float = 0.3


class EagleTask:
    """The loss of an EAGLE head on a batch.

    Args:
        head: what is trained; its weights become parameters, where the embedding is.
        embedding: [Vt, H] the target's.
        output: the target's output matrix.
        recipe: how.
    """

    def __init__(self, head: StoredHead, embedding: torch.Tensor, output: Output, recipe: Recipe) -> None:
        assert isinstance(head.config, EagleConfig)
        self.config, self.recipe, self._draft_ids = head.config, recipe, head.draft_ids
        placed = {n: w.to(embedding.device, torch.float32, copy=True) for n, w in head.weights.items()}
        self.parameters = {name: torch.nn.Parameter(weight) for name, weight in placed.items()}
        rows = output.weight if head.draft_ids is None else output.weight[head.draft_ids]
        bias = output.bias if head.draft_ids is None or output.bias is None else output.bias[head.draft_ids]
        self._output = Output(rows.float(), None if bias is None else bias.float())
        self._head = EagleHead(head.config, self.parameters, embedding.float(), self._output.weight)

    def stored(self) -> StoredHead:
        """The head as it is now."""
        return StoredHead(self.config, {n: p.detach().clone() for n, p in self.parameters.items()}, self._draft_ids)

    def loss(self, batch: Batch, progress: float) -> torch.Tensor:
        """The mean over texts of a batch, to be made small.

        Args:
            batch: with room for `recipe.steps`.
            progress: part of training that is over, 0 to 1.
        """
        steps = 1 if progress < self.recipe.single_share else self.recipe.steps
        total, weights = torch.zeros((), device=batch.last.device), 0.0
        for j, states in enumerate(unrolled(self._head, batch.tokens, batch.features, steps)):
            rows, last, log_norms = _counting(batch, states, j)
            outlet = self._head.outlet(states[rows])
            losses = guess_loss(outlet, last, log_norms, self._output, hybrid=progress >= self.recipe.kl_share)
            if self.config.version == 1:
                regression = F.smooth_l1_loss(states[rows].float(), last, reduction="none").mean(-1)
                losses = CROSS_ENTROPY * losses + REGRESSION * regression
            total = total + STEP_WEIGHT**j * mean_of_texts(losses, rows)
            weights += STEP_WEIGHT**j
        return total / weights

    @torch.no_grad()
    def accepted(self, batch: Batch) -> list[tuple[float, int]]:
        """By step: the sum of the acceptance of its guesses on the target's own text, and their number."""
        found = []
        for j, states in enumerate(unrolled(self._head, batch.tokens, batch.features, self.recipe.steps)):
            rows, last, log_norms = _counting(batch, states, j)
            target = self._output.logits(last).float() - log_norms[:, None]
            kept = acceptance(self._head.logits(states[rows]).float(), target)
            found.append((float(kept.sum()), len(kept)))
        return found


def _counting(batch: Batch, states: torch.Tensor, j: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[B, S] which columns of step j count, and the target's last states and log norms of their guesses."""
    columns = slice(1 + j, 1 + j + states.shape[1])
    rows = batch.counts[:, columns]
    return rows, batch.last[:, columns][rows], batch.log_norms[:, columns][rows]
