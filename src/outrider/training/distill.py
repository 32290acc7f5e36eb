"""Training of a smaller decoder on the laws of its target (DistillSpec, 2310.08461), as a draft model."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from outrider.drafters.model import ModelDrafter
from outrider.errors import InvalidOption
from outrider.models.checkpoint import Checkpoint, open_checkpoint
from outrider.models.linear import has_packed_half
from outrider.models.load import load_decoder
from outrider.models.locate import locate
from outrider.models.tokenizer import compare_vocabularies, load_tokenizer
from outrider.training.batches import Batch
from outrider.training.kind import AtWork, Setting
from outrider.training.losses import acceptance, in_parts, loss_of, mean_of_texts
from outrider.training.smaller import as_checkpoint, build, kept_layers, save
from outrider.training.texts import Sample

FROZEN = ("model.embed_tokens.weight", "lm_head.weight")
"""What stays as it is: most of a small model's numbers, and what its layers have been made for."""


@dataclass(frozen=True)
class Distill:
    """A smaller decoder with the target's vocabulary; its layers are trained, its embedding and output stay.

    Args:
        draft: a model to go on from: a folder, a .gguf file or a Hugging Face id; None to cut one from the target.
        layers: how many of the target's layers are kept, first and last among them; with `draft`, None.
        loss: a key of `losses.LOSSES`.
        learning_rate: see `kind.Kind`.
        tokens_per_batch: see `kind.Kind`.
    """

    draft: str | None = None
    layers: int | None = None
    loss: str = "hybrid"
    learning_rate: float = 5e-4
    tokens_per_batch: int = 2048
    muon = False
    command = "distill"
    drafter = "model"

    def check(self, setting: Setting) -> None:
        """See `kind.Kind`; a draft model must speak the target's vocabulary.

        Raises:
            VocabularyMismatch: it does not.
            CheckpointError: there is none.
        """
        loss_of(self.loss)
        if (self.draft is None) == (self.layers is None):
            given = "both" if self.draft is not None else None
            raise InvalidOption("layers", given, "either --layers N or --draft ID", "Cut the target, or name a model.")
        if self.layers is not None:
            kept_layers(setting.checkpoint.config.num_layers, self.layers)
        source = self.source(setting)
        if source is not setting.checkpoint:
            compare_vocabularies(setting.opened.tokenizer, load_tokenizer(source.path))

    def feature_layers(self, setting: Setting) -> tuple[int, ...]:
        """None besides the last state, for the target's laws."""
        return ()

    def begin(self, setting: Setting, samples: Iterable[Sample]) -> Student:
        """The draft model, or the target's layers, as they are."""
        return Student(self, setting)

    def source(self, setting: Setting) -> Checkpoint:
        """Whose weights it begins with."""
        return setting.checkpoint if self.draft is None else open_checkpoint(locate(self.draft))

    def kept(self, source: Checkpoint) -> tuple[int, ...]:
        """Ids of the layers that it is made of."""
        count = source.config.num_layers
        return tuple(range(count)) if self.layers is None else kept_layers(count, self.layers)


class Student:
    """A smaller decoder in training; a `kind.Trainee`.

    Args:
        kind: its options.
        setting: its target.

    Raises:
        UnsupportedModel: see `smaller.build`.
    """

    room = 0

    def __init__(self, kind: Distill, setting: Setting) -> None:
        self._setting, self._loss, self._source = setting, loss_of(kind.loss), kind.source(setting)
        self._kept = kind.kept(self._source)
        self._config = replace(self._source.config, num_layers=len(self._kept))
        self._model = build(self._source, self._kept).to(setting.device)
        for name in FROZEN:
            self._model.get_parameter(name).requires_grad_(False)
        self.parameters = {name: p for name, p in self._model.named_parameters() if p.requires_grad}
        self._output = setting.output
        self._common = min(self._config.vocab_size, self._output.weight.shape[0])

    def loss(self, batch: Batch, progress: float) -> torch.Tensor:
        """The mean over texts of their means."""
        rows, *parts = self._rows(batch)
        losses = in_parts(lambda *part: self._loss(*self._laws(*part)), *parts)
        return mean_of_texts(losses, rows)

    @torch.no_grad()
    def accepted(self, batch: Batch) -> list[tuple[float, int]]:
        """See `kind.Trainee`; a decoder guesses every place alike."""
        _, *parts = self._rows(batch)
        kept = in_parts(lambda *part: acceptance(*self._laws(*part)), *parts)
        return [(float(kept.sum()), len(kept))]

    def at_work(self, capacity: int) -> AtWork:
        """See `kind.Trainee`; in half precision where that is fast, as `--drafter` will mostly load it."""
        device, target = self._setting.device, self._setting.opened.model
        precision = "float16" if device.type != "cpu" or has_packed_half() else "float32"
        model = load_decoder(as_checkpoint(self._model, self._config), precision, device=device)
        return AtWork(target, ModelDrafter(model, 1, vocab_size=target.vocab_size, capacity=capacity))

    def facts(self, samples: Ordered[Sample]) -> dict[str, Any]:
        """Where its layers came from."""
        return {"made_of": str(self._source.path), "layers_kept": list(self._kept)}

    def write(self, folder: Path) -> None:
        """See `kind.Trainee`: a Hugging Face folder."""
        own = self._source is self._setting.checkpoint
        tokenizer = self._setting.opened.tokenizer if own else load_tokenizer(self._source.path)
        save(self._model, tokenizer, self._source.path, folder)

    def _rows(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """[B, S] which columns count; their states, the target's states, and its norms."""
        size = batch.features.shape[1]
        rows = batch.counts[:, :size]
        # Padding stands behind the texts, where no token of them looks.
        states = self._model.model(input_ids=batch.tokens[:, :size], use_cache=False).last_hidden_state
        return rows, states[rows], batch.last[:, :size][rows], batch.log_norms[:, :size][rows]

    def _laws(self, states: torch.Tensor, last: torch.Tensor, norms: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[n, V] logits of the student, and log-probabilities of the target, of the ids that both have."""
        with torch.no_grad():
            target = self._output.logits(last).float() - norms[:, None]
        return self._model.lm_head(states).float()[:, : self._common], target[:, : self._common]
