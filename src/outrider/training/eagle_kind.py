"""EAGLE heads as a kind of drafter that can be trained."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from outrider.attaching import attach, check_fit, check_kind, showing
from outrider.convert import complete, missing
from outrider.drafters.heads.config import EagleConfig
from outrider.drafters.heads.files import read_head, write_head
from outrider.drafters.heads.stored import StoredHead
from outrider.errors import InvalidOption
from outrider.models.locate import locate_head
from outrider.models.opening import num_layers_of
from outrider.training.eagle import EagleTask, Recipe, choose_vocabulary, default_layers, new_head
from outrider.training.kind import AtWork, Setting
from outrider.training.texts import Sample
from outrider.training.typed import FEWEST_DRAFTED, MOST_LAYERS, check_range

DRAFT_VOCABULARY = 8192
"""Vd where none is asked for and the target has as many."""

BORROWED = ("embed_tokens.weight", "lm_head.weight")
"""What a head in training shares with its target."""

SAME = 1e-2
"""Largest difference between matrices that are the same, at one precision or another."""


@dataclass(frozen=True)
class Eagle1:
    """An EAGLE-1 head, which EAGLE-2 trees use as well: one layer that reads the target's last state.

    Args:
        recipe: how it is trained.
        init: an EAGLE-1 head to go on from, as `eagle:` takes it; None for the target's last layer.
        learning_rate: see `kind.Kind`.
        tokens_per_batch: see `kind.Kind`.
    """

    recipe: Recipe = Recipe()  # noqa: RUF009 (frozen)
    init: str | None = None
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
        if self.init is not None:
            begun(self.init, self.version, setting)

    def feature_layers(self, setting: Setting) -> tuple[int, ...]:
        """The last state."""
        return (setting.checkpoint.config.num_layers,)

    def begin(self, setting: Setting, samples: Iterable[Sample]) -> EagleTrainee:
        """A head made of the target's last layer, or one that was begun."""
        if self.init is not None:
            return EagleTrainee(self, setting, begun(self.init, self.version, setting))
        return EagleTrainee(self, setting, _new(self, setting, torch.arange(setting.checkpoint.config.vocab_size)))


@dataclass(frozen=True)
class Eagle3:
    """An EAGLE-3 head: one layer that reads several of the target's states.

    Args:
        draft_vocab_size: Vd, at most the target's; None for `DRAFT_VOCABULARY`, or all of a target that has fewer.
        layers: ids of the states that it reads, in this order, as `models.decoder.Decoder` counts them; None for
            `eagle.default_layers`.
        recipe: how it is trained.
        init: an EAGLE-3 head to go on from, as `eagle:` takes it, with its draft vocabulary and layers; None for the
            target's last layer.
        learning_rate: see `kind.Kind`.
        tokens_per_batch: see `kind.Kind`.
    """

    draft_vocab_size: int | None = None
    layers: tuple[int, ...] | None = None
    recipe: Recipe = Recipe()  # noqa: RUF009 (frozen)
    init: str | None = None
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
        if self.init is not None:
            if wanted is not None or self.layers is not None:
                raise InvalidOption(
                    "init", self.init, "left out with --draft-vocabulary and --layers", "It has its own."
                )
            begun(self.init, self.version, setting)

    def feature_layers(self, setting: Setting) -> tuple[int, ...]:
        """By default of the target's beginning, middle and end."""
        if self.init is not None:
            return _config(begun(self.init, self.version, setting)).feature_layers
        return default_layers(setting.checkpoint.config.num_layers) if self.layers is None else self.layers

    def begin(self, setting: Setting, samples: Iterable[Sample]) -> EagleTrainee:
        """A head made of the target's last layer, for the tokens that the texts use most, or one that was begun."""
        if self.init is not None:
            return EagleTrainee(self, setting, begun(self.init, self.version, setting))
        stops, vocab_size = setting.opened.tokenizer.stop_ids, setting.checkpoint.config.vocab_size
        size = DRAFT_VOCABULARY if self.draft_vocab_size is None else self.draft_vocab_size
        return EagleTrainee(self, setting, _new(self, setting, choose_vocabulary(samples, size, vocab_size, stops)))


def begun(init: str, version: int, setting: Setting) -> StoredHead:
    """A head that is trained further.

    Args:
        init: "smollm2", a folder, or a Hugging Face id.
        version: 1 or 3.
        setting: the target.

    Raises:
        InvalidOption: no EAGLE head of this version, or one with an embedding or output of its own.
        CheckpointError: nothing readable is there.
        VocabularyMismatch: a head for another target.
    """
    head = read_head(locate_head(init), num_layers_of(setting.opened.model))
    check_kind("eagle", head)
    check_fit(head, setting.opened)
    if _config(head).version != version:
        raise InvalidOption("init", init, f"an EAGLE-{version} head", f"Train it with eagle{_config(head).version}.")
    shared = complete(head, BORROWED, setting.matrices).weights
    for name in BORROWED:
        own = head.weights.get(name)
        if own is not None and not torch.allclose(own, shared[name].to(own.device), atol=SAME):
            raise InvalidOption("init", init, "a head that shares its target's matrices", f"It has its own {name}.")
    return replace(head, weights={name: w for name, w in head.weights.items() if name not in BORROWED})


def _config(head: StoredHead) -> EagleConfig:
    assert isinstance(head.config, EagleConfig)
    return head.config


def _new(kind: Eagle1 | Eagle3, setting: Setting, draft_ids: torch.Tensor) -> StoredHead:
    layers, checkpoint = kind.feature_layers(setting), setting.checkpoint
    config, seed = checkpoint.config, setting.seed
    return new_head(kind.version, config, checkpoint, draft_ids, feature_layers=layers, seed=seed)


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
        head: as it begins.
    """

    def __init__(self, kind: Eagle1 | Eagle3, setting: Setting, head: StoredHead) -> None:
        self._kind, self._setting = kind, setting
        super().__init__(head, setting.matrices.embedding, setting.output, kind.recipe)
        self.room = kind.recipe.steps + 1

    def at_work(self, capacity: int) -> AtWork:
        """See `kind.Trainee`."""
        head, opened = self.stored(), self._setting.opened
        drafter = attach(head, opened, slots=1, capacity=capacity)
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
