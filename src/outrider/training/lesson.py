"""What the loop trains: a trainee on batches of stored states."""

from __future__ import annotations

import torch

from outrider.training.batches import Batches
from outrider.training.kind import Trainee
from outrider.training.states import States

MEASURED = 4
"""Batches of held-out texts that acceptance is measured on."""


class Lesson:
    """A trainee, the batches that it learns from, and those that it is tested on; a `trainer.Task`.

    Args:
        trainee: what learns.
        training: states of the texts to learn from.
        held_out: of those to be tested on.
        tokens_per_batch: of a step.
        seed: of the order.
    """

    def __init__(self, trainee: Trainee, training: States, held_out: States, tokens_per_batch: int, seed: int) -> None:
        self.trainee, self.parameters = trainee, trainee.parameters
        self._device = next(iter(self.parameters.values())).device
        self._training = Batches(training, tokens_per_batch, trainee.room, seed)
        self._held_out = Batches(held_out, tokens_per_batch, trainee.room, seed)

    def loss_at(self, step: int, progress: float) -> torch.Tensor:
        """See `trainer.Task`."""
        return self.trainee.loss(self._training.at(step).to(self._device), progress)

    def measure(self) -> dict[str, float]:
        """Acceptance by place in a draft on held-out texts of the target's own, as they are."""
        sums: dict[int, list[float]] = {}
        for i in range(min(MEASURED, len(self._held_out))):
            batch = self._held_out.at(i).to(self._device)
            for place, (total, count) in enumerate(self.trainee.accepted(batch), start=1):
                before = sums.get(place, [0.0, 0.0])
                sums[place] = [before[0] + total, before[1] + count]
        return {f"accepted_{place}": total / max(count, 1.0) for place, (total, count) in sums.items()}
