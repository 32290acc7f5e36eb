"""EAGLE heads as a kind of drafter that can be trained."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from outrider.attaching import attach, showing
from outrider.convert import complete, missing
from outrider.drafters.heads.files import write_head
from outrider.errors import InvalidOption
from outrider.training.eagle import EagleTask, Recipe, choose_vocabulary, default_layers, new_head
from outrider.training.kind import AtWork, Setting
from outrider.training.texts import Sample


@dataclass(frozen=True)
class Eagle1:
    """An EAGLE-1 head, which EAGLE-2 trees use as well: one layer that reads the target's last state.

    Args: see `kind.Kind` and `eagle.Recipe`.
    """

    recipe: Recipe = Recipe()  # noqa: RUF009 (frozen)
    learning_rate: float = 2e-3
    tokens_per_batch: int = 2048
    muon = True
    command = "eagle1"
    drafter = "eagle"
    version = 1
    format = "safeailab-eagle1"

    def check(self, setting: Setting) -> None:
        """See `kind.Kind`."""
        assert setting.checkpoint

    def feature_layers(self, setting: Setting) -> tuple[int, ...]:
        """The last state."""
        return (setting.checkpoint.config.num_layers,)

    def begin(self, setting: Setting, samples: Iterable[Sample]) -> EagleTrainee:
        """A head made of the target's last layer."""
        return EagleTrainee(self, setting, torch.arange(setting.checkpoint.config.vocab_size))


@dataclass(frozen=True)
class Eagle3:
    """An EAGLE-3 head: one layer that reads three of the target's states.

    Args:
        draft_vocab_size: Vd, at most the target's.
        recipe: how it is trained.
        learning_rate: see `kind.Kind`.
        tokens_per_batch: see `kind.Kind`.
    """

    draft_vocab_size: int = 8192
    recipe: Recipe = Recipe()  # noqa: RUF009 (frozen)
    learning_rate: float = 2e-3
    tokens_per_batch: int = 2048
    muon = True
    command = "eagle3"
    drafter = "eagle"
    version = 3
    format = "safeailab-eagle3"

    def check(self, setting: Setting) -> None:
        """See `kind.Kind`."""
        if self.draft_vocab_size < 16:
            raise InvalidOption("draft_vocabulary", self.draft_vocab_size, "16 or more")
        assert setting.checkpoint

    def feature_layers(self, setting: Setting) -> tuple[int, ...]:
        """Of the target's beginning, middle and end."""
        return default_layers(setting.checkpoint.config.num_layers)

    def begin(self, setting: Setting, samples: Iterable[Sample]) -> EagleTrainee:
        """A head made of the target's last layer, for the tokens that the texts use most."""
        stops, vocab_size = setting.opened.tokenizer.stop_ids, setting.checkpoint.config.vocab_size
        return EagleTrainee(self, setting, choose_vocabulary(samples, self.draft_vocab_size, vocab_size, stops))


class EagleTrainee(EagleTask):
    """An EAGLE head in training; a `kind.Trainee`.

    Args:
        kind: its options.
        setting: its target.
        draft_ids: [Vd].
    """

    def __init__(self, kind: Eagle1 | Eagle3, setting: Setting, draft_ids: torch.Tensor) -> None:
        self._kind, self._setting = kind, setting
        head = new_head(
            kind.version,
            setting.checkpoint.config,
            setting.checkpoint,
            draft_ids,
            feature_layers=kind.feature_layers(setting),
            seed=setting.seed,
        )
        super().__init__(head, setting.matrices.embedding, setting.output, kind.recipe)
        self.room = kind.recipe.steps + 1

    def at_work(self, capacity: int) -> AtWork:
        """See `kind.Trainee`."""
        head, opened = self.stored(), self._setting.opened
        drafter, _ = attach(head, opened, slots=1, capacity=capacity, options={})
        return AtWork(showing(head, opened), drafter)

    def facts(self, samples: Ordered[Sample]) -> dict[str, Any]:
        """The share of the written tokens that the head can draft."""
        head = self.stored()
        if head.draft_ids is None:
            return {}
        kept = set(head.draft_ids.tolist())
        written = [token for s in samples for token in s.tokens[s.answer :]]
        return {"draft_vocabulary_coverage": sum(token in kept for token in written) / max(1, len(written))}

    def write(self, folder: Path) -> None:
        """See `kind.Trainee`."""
        head, written_as = self.stored(), self._kind.format
        head = complete(head, missing(head, written_as), self._setting.matrices)
        write_head(head, folder, written_as, target=self._setting.name)
