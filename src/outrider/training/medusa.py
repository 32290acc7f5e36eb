"""Training of Medusa heads (2401.10774): several places guessed at once, from the target's last state alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, replace
from functools import partial
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
from outrider.training.losses import ROWS, Loss, acceptance, forward_kl, in_parts, in_parts_again, mean_of_texts
from outrider.training.texts import Sample
from outrider.training.typed import check_range

HEAD_WEIGHT = 0.8
"""Weight of a head relative to the one before it (2401.10774)."""

LOSSES: dict[str, Callable[..., tuple[Loss, torch.Tensor]]] = {
    "kl": lambda tokens, law: (forward_kl, law()),
    "ce": lambda tokens, law: (partial(F.cross_entropy, reduction="none"), tokens),
}
"""By name: from the tokens [n] that the target wrote and its laws [n, V] to a loss and what it compares logits with."""


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
    tokens_per_batch: int = 1024
    muon = False
    command = "medusa"
    drafter = "medusa"

    def check(self, setting: Setting) -> None:
        """See `kind.Kind`."""
        check_range("num_heads", self.num_heads)
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

    room = 1

    def __init__(self, kind: Medusa, setting: Setting) -> None:
        self._kind, self._setting = kind, setting
        self._in_parts, self._size = in_parts_again if kind.own_output else in_parts, max(1, ROWS // kind.num_heads)
        c = setting.checkpoint.config
        self._config = MedusaConfig(kind.num_heads, 1, c.hidden_size, c.vocab_size, c.vocab_size)
        self._output = setting.output
        self.parameters = {name: torch.nn.Parameter(w) for name, w in self._fresh().items()}
        self._heads = MedusaHeads(self._config, self.parameters, self._output.weight)

    def loss(self, batch: Batch, progress: float) -> torch.Tensor:
        """The mean over heads, the first ones weighing more, of the mean over texts."""
        rows, parts = self._rows(batch)
        return mean_of_texts(self._in_parts(self._losses, *parts, size=self._size), rows)

    @torch.no_grad()
    def accepted(self, batch: Batch) -> list[tuple[float, int]]:
        """See `kind.Trainee`; a place is a head."""
        _, parts = self._rows(batch)
        kept = in_parts(self._acceptances, *parts, size=self._size)
        return [(float(kept[:, k].sum()), len(kept)) for k in range(self._kind.num_heads)]

    def at_work(self, capacity: int) -> AtWork:
        """See `kind.Trainee`."""
        head, opened = self._stored(), self._setting.opened
        drafter = attach(head, opened, slots=1, capacity=capacity)
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
        device = self._setting.device
        for k in range(self._kind.num_heads):
            weights[f"{k}.0.linear.weight"] = torch.zeros(hidden, hidden, device=device)
            weights[f"{k}.0.linear.bias"] = torch.zeros(hidden, device=device)
            if self._kind.own_output:
                weights[f"{k}.1.weight"] = self._output.weight.clone()
        return weights

    def _rows(self, batch: Batch) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """[B, S'] which laws are guessed by all heads; and of these [n, K, H] the states that the heads' outputs read.

        Besides, of each law: the target's state [n, H] and norm [n], and the token [n] that the target wrote by it. The
        law after token c is guessed by head k from the state of token c - 1 - k.
        """
        heads, size = self._kind.num_heads, max(0, batch.features.shape[1] - self._kind.num_heads)
        rows = batch.counts[:, heads : heads + size]

        def at(part: torch.Tensor, start: int) -> torch.Tensor:
            return part[:, start : start + size][rows]

        read = torch.stack([self._heads.states(at(batch.last, heads - 1 - k), k) for k in range(heads)], dim=1)
        return rows, (read, at(batch.last, heads), at(batch.log_norms, heads), at(batch.tokens, heads + 1))

    def _losses(
        self, states: torch.Tensor, last: torch.Tensor, norms: torch.Tensor, tokens: torch.Tensor
    ) -> torch.Tensor:
        """[n] the mean over heads, by their weights."""
        loss, wanted = LOSSES[self._kind.loss](tokens, lambda: self._target(last, norms))
        heads = range(self._kind.num_heads)
        losses = torch.stack([HEAD_WEIGHT**k * loss(self._logits(states, k), wanted) for k in heads])
        return losses.sum(0) / sum(HEAD_WEIGHT**k for k in heads)

    def _acceptances(
        self, states: torch.Tensor, last: torch.Tensor, norms: torch.Tensor, _: torch.Tensor
    ) -> torch.Tensor:
        """[n, K]."""
        target = self._target(last, norms)
        return torch.stack([acceptance(self._logits(states, k), target) for k in range(self._kind.num_heads)], dim=1)

    def _logits(self, states: torch.Tensor, k: int) -> torch.Tensor:
        weight = self.parameters.get(f"{k}.1.weight", self._output.weight)
        return F.linear(states[:, k], weight).float()

    @torch.no_grad()
    def _target(self, last: torch.Tensor, norms: torch.Tensor) -> torch.Tensor:
        """[n, V] log-probabilities."""
        return self._output.logits(last).float() - norms[:, None]
