"""Attaching a trained head to its target: does it fit, what it shares, at what precision it runs, what it costs."""

from __future__ import annotations

from typing import Any

import torch

from outrider.core import Model
from outrider.drafters.catalogue import Choice
from outrider.drafters.eagle import EagleFeeder
from outrider.drafters.headed import HeadDrafter
from outrider.drafters.heads.config import EagleConfig, HeadConfig, MedusaConfig, MlpConfig
from outrider.drafters.heads.eagle import EagleHead
from outrider.drafters.heads.files import read_head
from outrider.drafters.heads.graph import Linear, MakeLinear
from outrider.drafters.heads.medusa import MedusaHeads
from outrider.drafters.heads.mlp import MlpSpeculator
from outrider.drafters.heads.stored import StoredHead
from outrider.drafters.parallel import MedusaFeeder, MlpFeeder
from outrider.errors import InvalidOption, VocabularyMismatch
from outrider.models.linear import Dense, Grouped4, PackedHalf, has_packed_half
from outrider.models.locate import locate_head
from outrider.models.opening import Opened, hidden_size_of, num_layers_of, shared_matrices
from outrider.models.quantise import fits_groups4, rounded

KINDS: dict[str, type[HeadConfig]] = {"eagle": EagleConfig, "medusa": MedusaConfig, "mlp": MlpConfig}


def open_head(choices: tuple[Choice, ...], opened: Opened) -> StoredHead | None:
    """The trained head among the drafters, if there is one, fit for this target.

    Raises:
        InvalidOption: a head of another kind than its name says.
        CheckpointError: nothing readable is there.
        VocabularyMismatch: a head for another target.
    """
    choice = next((choice for choice in choices if choice.entry.is_head), None)
    if choice is None:
        return None
    head = read_head(locate_head(choice.argument), num_layers_of(opened.model))
    check_kind(choice.entry.name, head)
    check_fit(head, opened)
    return head


def check_kind(name: str, head: StoredHead) -> None:
    """Refuse a head of another kind.

    Raises:
        InvalidOption: naming the drafter that takes it.
    """
    found = next(known for known, config in KINDS.items() if isinstance(head.config, config))
    if found != name:
        raise InvalidOption("drafter", name, f"{found}:PATH for this head")


def check_fit(head: StoredHead, opened: Opened) -> None:
    """Refuse a head whose sizes are another target's.

    Raises:
        VocabularyMismatch: naming both sizes.
    """
    config: Any = head.config
    vocab_size, hidden_size = opened.model.vocab_size, hidden_size_of(opened.model)
    wide = config.target_hidden_size if isinstance(config, EagleConfig) else config.hidden_size
    if wide != hidden_size:
        raise VocabularyMismatch(f"This head reads states of {wide} numbers; the target's have {hidden_size}.")
    if config.vocab_size > vocab_size:
        raise VocabularyMismatch(f"This head is for {config.vocab_size} tokens; the target has {vocab_size}.")


def feature_layers(config: HeadConfig, opened: Opened) -> tuple[int, ...]:
    """Ids of the target's states that a head reads."""
    return config.feature_layers if isinstance(config, EagleConfig) else (num_layers_of(opened.model),)


def showing(head: StoredHead, opened: Opened) -> Model:
    """The target with the states that the head reads.

    Raises:
        InvalidOption: a layer that the target does not have.
    """
    model: Any = opened.model
    shown: Model = model.showing(feature_layers(head.config, opened))
    return shown


def attach(head: StoredHead, opened: Opened, *, slots: int, capacity: int, **options: Any) -> HeadDrafter:
    """The drafter of a head.

    Args:
        head: that fits.
        opened: the target.
        slots: of the engine.
        capacity: tokens per sequence.
        options: of the drafter.

    Raises:
        InvalidOption: an option outside its range.
        CacheTooLarge: from the head's cache.
    """
    shared, linear, ids = shared_matrices(opened), _linear_for(opened.model), head.draft_ids
    device = shared.embedding.device
    rows = shared.output if ids is None else shared.output[ids.to(device)]
    layers, vocab_size = feature_layers(head.config, opened), opened.model.vocab_size
    common: dict[str, Any] = {"vocab_size": vocab_size, "capacity": capacity, **options}
    norms = {name: w.to(device).float() if w.ndim == 1 else w.to(device) for name, w in head.weights.items()}
    if isinstance(head.config, EagleConfig):
        graph = EagleHead(head.config, norms, shared.embedding, rows, linear)
        eagle = EagleFeeder(graph, ids, slots, capacity, device)
        return HeadDrafter("eagle", eagle, eagle, layers, **common)
    if isinstance(head.config, MedusaConfig):
        medusa = MedusaFeeder(MedusaHeads(head.config, norms, rows, linear), ids, capacity)
        return HeadDrafter("medusa", medusa, medusa.states, layers, max_depth=medusa.max_depth, **common)
    mlp = MlpFeeder(MlpSpeculator(head.config, norms, linear), capacity)
    return HeadDrafter("mlp", mlp, mlp.states, layers, max_depth=mlp.max_depth, **common)


def _linear_for(model: Model) -> MakeLinear:
    """Products at the target's own precision: a head has nothing to gain from a better one."""
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}.get(model.precision, torch.float16)

    def made(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        if model.precision == "q4" and fits_groups4(tuple(weight.shape)):
            return Grouped4(rounded(weight.float()), bias)
        if dtype == torch.float16 and weight.device.type == "cpu":
            return PackedHalf(weight, bias) if has_packed_half() else Dense(weight.float(), bias)
        return Dense(weight.to(dtype), bias)

    return made
