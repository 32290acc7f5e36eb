"""Training of Medusa heads (2401.10774): several places guessed at once, from the target's last state alone."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from outrider.attaching import attach, showing
from outrider.drafters.heads.config import MedusaConfig
from outrider.drafters.heads.files import write_head
from outrider.drafters.heads.medusa import MedusaHeads
from outrider.drafters.heads.stored import StoredHead
from outrider.errors import InvalidOption
from outrider.training.batches import Batch
from outrider.training.kind import AtWork, Setting
from outrider.training.losses import acceptance, forward_kl, in_parts, mean_of_texts
from outrider.training.texts import Sample

HEAD_WEIGHT = 0.8
"""Weight of a head relative to the one before it (2401.10774)."""

MAX_HEADS = 16

LOSSES = ("kl", "ce")


@dataclass(frozen=True)
class Medusa:
    """Medusa heads of one residual block each, over the target's whole vocabulary.

    Args:
        num_heads: K; head k guesses the token k + 2 places after the state that it reads.
        loss: "kl" to the law of the target there, or "ce", the cross-entropy of the token that it wrote there.
        own_output: whether each head trains an output matrix of its own; else all use the target's, as it is.
        learning_rate: see `kind.Kind`.
        tokens_per_batch: see `kind.Kind`.
    """

    num_heads: int = 4
    loss: str = "kl"
    own_output: bool = False
    learning_rate: float = 1e-3
    tokens_per_batch: int = 2048
    command = "medusa"
    drafter = "medusa"

    def check(self, setting: Setting) -> None:
        """See `kind.Kind`."""
        if not 1 <= self.num_heads <= MAX_HEADS:
            raise InvalidOption("heads", self.num_heads, f"1 to {MAX_HEADS}")
        if self.loss not in LOSSES:
            raise InvalidOption("loss", self.loss, ", ".join(LOSSES))
        assert setting.checkpoint

    def feature_layers(self, setting: Setting) -> tuple[int, ...]:
        """None besides the last state."""
        return ()

    def begin(self, setting: Setting, samples: Iterable[Sample]) -> MedusaTrainee:
        """Heads that guess what the target itself would write next: identity blocks before its own output."""
        return MedusaTrainee(self, setting)


class MedusaTrainee:
    """Medusa heads in training; a `kind.Trainee`.

    Args:
        kind: their options.
        setting: their target.
    """

    def __init__(self, kind: Medusa, setting: Setting) -> None:
        self._kind, self._setting, self.room = kind, setting, kind.num_heads + 1
        c = setting.checkpoint.config
        self._config = MedusaConfig(kind.num_heads, 1, c.hidden_size, c.vocab_size, c.vocab_size)
        self._output = setting.output
        self.parameters = {name: torch.nn.Parameter(w) for name, w in self._fresh().items()}
        self._heads = MedusaHeads(self._config, self.parameters, self._output.weight)

    def loss(self, batch: Batch, progress: float) -> torch.Tensor:
        """The mean over heads, the first ones weighing more, of the mean over texts."""
        total, weights = torch.zeros(()), 0.0
        for k in range(self._kind.num_heads):
            rows, *parts = self._rows(batch, k)
            losses = in_parts(lambda *part, k=k: self._losses(k, *part), *parts)
            total = total + HEAD_WEIGHT**k * mean_of_texts(losses, rows)
            weights += HEAD_WEIGHT**k
        return total / weights

    @torch.no_grad()
    def accepted(self, batch: Batch) -> list[tuple[float, int]]:
        """See `kind.Trainee`; a place is a head."""
        found = []
        for k in range(self._kind.num_heads):
            _, *parts = self._rows(batch, k)
            kept = in_parts(lambda *part, k=k: acceptance(*self._laws(k, *part)), *parts)
            found.append((float(kept.sum()), len(kept)))
        return found

    def at_work(self, capacity: int) -> AtWork:
        """See `kind.Trainee`."""
        head, opened = self._stored(), self._setting.opened
        drafter, _ = attach(head, opened, slots=1, capacity=capacity, options={})
        return AtWork(showing(head, opened), drafter, self._kind.num_heads)

    def facts(self, samples: Ordered[Sample]) -> dict[str, Any]:
        """Nothing."""
        return {}

    def write(self, folder: Path) -> None:
        """See `kind.Trainee`; the format has no place for a shared output, so each head gets a copy, in half."""
        head, blocks = self._stored(), self._config.num_layers
        names = [f"{k}.{blocks}.weight" for k in range(self._kind.num_heads)]
        shared = self._output.weight.half()
        copies = {name: head.weights.get(name, shared).half().clone() for name in names}
        whole = replace(head, weights={**head.weights, **copies})
        write_head(whole, folder, "medusa", target=self._setting.name)

    def _stored(self) -> StoredHead:
        return StoredHead(self._config, {name: p.detach().clone() for name, p in self.parameters.items()})

    def _fresh(self) -> dict[str, torch.Tensor]:
        hidden, weights = self._config.hidden_size, dict[str, torch.Tensor]()
        for k in range(self._kind.num_heads):
            weights[f"{k}.0.linear.weight"] = torch.zeros(hidden, hidden)
            weights[f"{k}.0.linear.bias"] = torch.zeros(hidden)
            if self._kind.own_output:
                weights[f"{k}.1.weight"] = self._output.weight.clone()
        return weights

    def _rows(self, batch: Batch, k: int) -> tuple[torch.Tensor, ...]:
        """[B, S] which columns of head k count; their states, and the states, norms and tokens of the guessed laws.

        Column t reads the state of token t; the law of token t + 2 + k is that of the state of the token before it.
        """
        size = batch.features.shape[1]
        columns = slice(1 + k, 1 + k + size)
        rows = batch.counts[:, columns]
        tokens = batch.tokens[:, 2 + k : 2 + k + size]
        return (
            rows,
            batch.last[:, :size][rows],
            batch.last[:, columns][rows],
            batch.log_norms[:, columns][rows],
            tokens[rows],
        )

    def _laws(
        self, k: int, states: torch.Tensor, last: torch.Tensor, norms: torch.Tensor, _: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[n, V] logits of head k, and log-probabilities of the target."""
        with torch.no_grad():
            target = self._output.logits(last).float() - norms[:, None]
        return self._heads.logits(states, k).float(), target

    def _losses(self, k: int, *part: torch.Tensor) -> torch.Tensor:
        if self._kind.loss == "ce":
            return F.cross_entropy(self._heads.logits(part[0], k).float(), part[-1], reduction="none")
        return forward_kl(*self._laws(k, *part))
