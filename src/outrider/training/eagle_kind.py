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
from outrider.training.typed import FEWEST_DRAFTED, MOST_LAYERS, check_range

DRAFT_VOCABULARY = 8192
"""Vd where none is asked for and the target has as many."""


@dataclass(frozen=True)
class Eagle1:
    """An EAGLE-1 head, which EAGLE-2 trees use as well: one layer that reads the target's last state.

    Args:
        recipe: how it is trained.
        learning_rate: see `kind.Kind`.
        tokens_per_batch: see `kind.Kind`.
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
        check_range("recipe.steps", self.recipe.steps)
        assert setting.checkpoint

    def feature_layers(self, setting: Setting) -> tuple[int, ...]:
        """The last state."""
        return (setting.checkpoint.config.num_layers,)

    def begin(self, setting: Setting, samples: Iterable[Sample]) -> EagleTrainee:
        """A head made of the target's last layer."""
        return EagleTrainee(self, setting, torch.arange(setting.checkpoint.config.vocab_size))


@dataclass(frozen=True)
class Eagle3:
    """An EAGLE-3 head: one layer that reads several of the target's states.

    Args:
        draft_vocab_size: Vd, at most the target's; None for `DRAFT_VOCABULARY`, or all of a target that has fewer.
        layers: ids of the states that it reads, in this order, as `models.decoder.Decoder` counts them; None for
            `eagle.default_layers`.
        recipe: how it is trained.
        learning_rate: see `kind.Kind`.
        tokens_per_batch: see `kind.Kind`.
    """

    draft_vocab_size: int | None = None
    layers: tuple[int, ...] | None = None
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
        check_range("recipe.steps", self.recipe.steps)
        wanted, there = self.draft_vocab_size, setting.checkpoint.config.vocab_size
        if wanted is not None and not FEWEST_DRAFTED <= wanted <= there:
            raise InvalidOption("draft-vocabulary", wanted, f"{FEWEST_DRAFTED} to {there:,}, what the target has")
        if self.layers is not None:
            _check_layers(self.layers, setting.checkpoint.config.num_layers)

    def feature_layers(self, setting: Setting) -> tuple[int, ...]:
        """By default of the target's beginning, middle and end."""
        return default_layers(setting.checkpoint.config.num_layers) if self.layers is None else self.layers

    def begin(self, setting: Setting, samples: Iterable[Sample]) -> EagleTrainee:
        """A head made of the target's last layer, for the tokens that the texts use most."""
        stops, vocab_size = setting.opened.tokenizer.stop_ids, setting.checkpoint.config.vocab_size
        size = DRAFT_VOCABULARY if self.draft_vocab_size is None else self.draft_vocab_size
        return EagleTrainee(self, setting, choose_vocabulary(samples, size, vocab_size, stops))


def _check_layers(layers: tuple[int, ...], num_layers: int) -> None:
    there = all(0 <= layer <= num_layers for layer in layers)
    if not there or not 1 <= len(layers) <= MOST_LAYERS or len(set(layers)) < len(layers):
        wanted = f"1 to {MOST_LAYERS} different ids from 0 to {num_layers}"
        fix = f"0 is the embedding, {num_layers} the last state."
        raise InvalidOption("layers", ",".join(map(str, layers)), wanted, fix)


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
