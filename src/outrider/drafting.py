"""From what a user types after --drafter to a drafter, loading what it needs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from outrider.attaching import attach
from outrider.core import Drafter, Model
from outrider.drafters import make_free
from outrider.drafters.catalogue import Choice
from outrider.drafters.combined import CombinedDrafter
from outrider.drafters.corpus import Corpus
from outrider.drafters.early_exit import EarlyExitDrafter
from outrider.drafters.heads.stored import StoredHead
from outrider.drafters.model import ModelDrafter
from outrider.drafters.translated import TranslatedDrafter
from outrider.errors import InvalidOption, VocabularyMismatch
from outrider.models.decoder import Decoder
from outrider.models.early_exit import EarlyExitTarget
from outrider.models.opening import Opened, Progress, open_model
from outrider.models.quantise import load_quantised
from outrider.models.tokenizer import compare_vocabularies
from outrider.planning.costs import VerifyCost, relative_cost, verify_cost


@dataclass(frozen=True)
class Setting:
    """What drafters are built for.

    Args:
        target: the target's files and tokenizer.
        model: what the engine runs: the target, or what shares its first layers.
        slots: of the engine.
        context_length: of the engine.
        device: where models run.
        corpus: text to look things up in, or None.
        progress: called while layers load.
        head: that was trained for the target, if one drafts.
    """

    target: Opened
    model: Model
    slots: int
    context_length: int
    device: torch.device
    corpus: Corpus | None = None
    progress: Progress | None = None
    head: StoredHead | None = None

    @cached_property
    def verify_cost(self) -> VerifyCost:
        """What the target's forwards cost."""
        return verify_cost(self.target.model, self.slots)


@dataclass(frozen=True)
class Built:
    """A drafter, and what it costs.

    Args:
        drafter: made.
        level: of drafting one token further, in units of the target's forward of one row; 0 for what costs nothing,
            and for combinations, which know it themselves.
    """

    drafter: Drafter
    level: float


def early_exit_target(target: Model, layers: str, invariant: bool) -> EarlyExitTarget:
    """The target with a way out after its first layers; where bits count, it reuses only what keeps them.

    Raises:
        InvalidOption: not a number of layers, or a target that is not run by the native decoder.
    """
    if not isinstance(target, Decoder):
        raise InvalidOption("drafter", f"early-exit:{layers}", "another drafter", "It needs the native decoder.")
    return EarlyExitTarget(target, int(layers), reuse=None if invariant else True)


def build_drafter(choices: tuple[Choice, ...], setting: Setting) -> Built:
    """The drafter, or the combination of several.

    Raises:
        InvalidOption: an option outside its range.
        CheckpointError, UnsupportedModel, VocabularyMismatch, CacheTooLarge: from a draft model.
    """
    built = [_build(choice, setting) for choice in choices]
    if len(built) == 1:
        return Built(*built[0])
    drafters, costs = [drafter for drafter, _ in built], [cost for _, cost in built]
    priors = [choice.entry.prior for choice in choices]
    return Built(CombinedDrafter(drafters, costs, setting.verify_cost.per_row, priors), 0.0)


def _build(choice: Choice, setting: Setting) -> tuple[Drafter, float]:
    """The drafter and what it costs per drafted token, in units of the target's forward of one row."""
    options = dict(choice.options)
    if choice.wants_row_cost:
        options["row_cost"] = setting.verify_cost.per_row()
    if choice.entry.is_free:
        return make_free(choice, options, setting.corpus), 0.0
    if choice.entry.name == "early-exit":
        assert isinstance(setting.model, EarlyExitTarget)
        return EarlyExitDrafter(setting.model, **options), setting.model.share
    if choice.entry.is_head:
        assert setting.head is not None
        return attach(
            setting.head, setting.target, slots=setting.slots, capacity=setting.context_length, options=options
        )
    return _from_model(_draft_model(choice, setting), setting, options)


def _draft_model(choice: Choice, setting: Setting) -> Opened:
    if choice.entry.name == "model":
        return open_model(choice.argument, "auto", setting.device, setting.progress)
    target = setting.target
    if target.checkpoint is None:
        fix = "It needs a target that the native decoder reads."
        raise InvalidOption("drafter", "quantised", "another drafter", fix)
    model = load_quantised(target.checkpoint, target.model.precision, choice.argument, device=setting.device)
    return Opened(model, target.tokenizer)


def _from_model(draft: Opened, setting: Setting, options: dict[str, Any]) -> tuple[Drafter, float]:
    target, cost = setting.target, relative_cost(draft.model, setting.target.model)
    try:
        compare_vocabularies(target.tokenizer, draft.tokenizer)
    except VocabularyMismatch:
        return _translated(draft, setting, options), cost
    vocab_size, capacity = target.model.vocab_size, setting.context_length
    common: dict[str, Any] = {"vocab_size": vocab_size, "capacity": capacity, "level_cost": cost}
    return ModelDrafter(draft.model, setting.slots, **common, **options), cost


def _translated(draft: Opened, setting: Setting, options: dict[str, Any]) -> Drafter:
    if options.get("tree", "chain") != "chain":
        fix = "This draft model has another tokenizer than the target."
        raise InvalidOption("drafter model: tree", options["tree"], "chain", fix)
    return TranslatedDrafter(
        draft.model,
        draft.tokenizer,
        setting.target.tokenizer,
        setting.slots,
        vocab_size=setting.target.model.vocab_size,
        capacity=setting.context_length,
    )
