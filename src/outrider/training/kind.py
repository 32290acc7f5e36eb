"""What kinds of drafters that can be trained have in common: all that the flow of a training knows of them."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch

from outrider.core import Drafter, Model
from outrider.errors import UnsupportedModel
from outrider.models.checkpoint import Checkpoint
from outrider.models.opening import Matrices, Opened, full_matrices
from outrider.training.batches import Batch
from outrider.training.states import Output
from outrider.training.texts import Sample


@dataclass(frozen=True)
class Setting:
    """The target of a training, and the seed of what is drawn.

    Args:
        opened: the target.
        name: as users name it.
        seed: of fresh weights.
    """

    opened: Opened
    name: str
    seed: int

    @property
    def checkpoint(self) -> Checkpoint:
        """The target's files.

        Raises:
            UnsupportedModel: a target that the native decoder does not read.
        """
        if self.opened.checkpoint is None:
            raise UnsupportedModel("Training needs a target that the native decoder reads.")
        return self.opened.checkpoint

    @property
    def device(self) -> torch.device:
        """Where the target is, and all that is trained with it."""
        model: Any = self.opened.model
        return torch.device(model.device)

    @cached_property
    def matrices(self) -> Matrices:
        """The target's embedding and output, float32, where the target is."""
        found = full_matrices(self.opened)
        embedding = found.embedding.to(self.device)
        output = embedding if found.output is found.embedding else found.output.to(self.device)
        return Matrices(embedding, output, None if found.bias is None else found.bias.to(self.device))

    @property
    def output(self) -> Output:
        """The target's output matrix."""
        return Output(self.matrices.output, self.matrices.bias)


@dataclass(frozen=True)
class AtWork:
    """What is trained, drafting with the weights that it has.

    Args:
        model: the target, with the states that the drafter reads.
        drafter: made for one slot.
        longest: tokens of its longest draft.
    """

    model: Model
    drafter: Drafter
    longest: int = 64


class Trainee(Protocol):
    """What is trained.

    Attributes:
        parameters: by name.
        room: places behind each text that its batches need.
    """

    parameters: dict[str, torch.nn.Parameter]
    room: int

    def loss(self, batch: Batch, progress: float) -> torch.Tensor:
        """What is to be made small; `progress` is the part of training that is over, 0 to 1."""

    def accepted(self, batch: Batch) -> list[tuple[float, int]]:
        """By place in a draft: the sum of the acceptance of its laws on the target's own text, and their number."""

    def at_work(self, capacity: int) -> AtWork:
        """The drafter that it is now, for sequences of so many tokens."""

    def facts(self, samples: Ordered[Sample]) -> dict[str, Any]:
        """What its card says besides."""

    def write(self, folder: Path) -> None:
        """Write it into a new folder, as `--drafter` reads it."""


class Kind(Protocol):
    """A kind of drafter with its options, a frozen dataclass: other values are another training."""

    @property
    def command(self) -> str:
        """Of `outrider train`."""

    @property
    def drafter(self) -> str:
        """What `--drafter` calls it."""

    @property
    def learning_rate(self) -> float:
        """See `trainer.Plan`."""

    @property
    def muon(self) -> bool:
        """Whether its matrices are better trained with Muon, where that is quick; see `trainer.Plan`."""

    @property
    def tokens_per_batch(self) -> int:
        """Of a step, where memory allows."""

    def check(self, setting: Setting) -> None:
        """Refuse what cannot be trained for this target, before anything is written.

        Raises:
            InvalidOption: naming the option.
            UnsupportedModel: from the target.
        """

    def feature_layers(self, setting: Setting) -> tuple[int, ...]:
        """Ids of the target's states that it reads, besides the last."""

    def begin(self, setting: Setting, samples: Iterable[Sample]) -> Trainee:
        """What has not been trained yet; `samples` are the texts that it will be trained on."""
