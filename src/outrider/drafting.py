"""From what a user types after --drafter to a drafter, loading what it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
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
from outrider.drafters.sharing import Level, Verify
from outrider.drafters.translated import TranslatedDrafter
from outrider.errors import InvalidOption, VocabularyMismatch
from outrider.models.decoder import Decoder
from outrider.models.early_exit import EarlyExitTarget
from outrider.models.opening import Opened, Progress, open_model
from outrider.models.quantise import load_quantised
from outrider.models.tokenizer import compare_vocabularies
from outrider.planning.costs import VerifyCost, fingerprint, level_cost, verify_cost
from outrider.planning.timing import PROBE_LENGTH, level_units

CHAIN = 3
"""Tokens of the chains that are timed."""


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
        level: of drafting one token further, in units of a plain round, by the number of sequences; None for what costs
            nothing, and for combinations, which know it themselves.
    """

    drafter: Drafter
    level: Level | None = None


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
        return built[0]
    return Built(combined(built, choices, setting.verify_cost))


def combined(built: list[Built], choices: tuple[Choice, ...], verify: Verify) -> CombinedDrafter:
    """Several as one.

    Args:
        built: they.
        choices: what each was built of.
        verify: what forwards cost.
    """
    levels = [0.0 if each.level is None else each.level for each in built]
    priors = [choice.entry.prior for choice in choices]
    return CombinedDrafter([each.drafter for each in built], levels, verify, priors)


def _build(choice: Choice, setting: Setting) -> Built:
    options = dict(choice.options)
    if choice.wants_row_cost:
        options["row_cost"] = setting.verify_cost.per_row()
    if choice.entry.is_free:
        return Built(make_free(choice, options, setting.corpus))
    if choice.entry.name == "early-exit":
        assert isinstance(setting.model, EarlyExitTarget)
        share = setting.model.share
        return Built(EarlyExitDrafter(setting.model, **options), lambda sequences: share)
    if choice.entry.is_head:
        assert setting.head is not None
        make = partial(attach, setting.head, setting.target, **options)
        return _timed(make, choice, setting, repr(setting.head.config))
    draft = _draft_model(choice, setting)
    return _timed(_from_model(draft, setting.target, options), choice, setting, repr(fingerprint(draft.model)))


def _timed(make: Callable[..., Drafter], choice: Choice, setting: Setting, draft: str) -> Built:
    """A drafter whose drafts cost by their length; unless it is kept, what they cost is timed with another one of it.

    Args:
        make: called with slots, capacity and, for trees, what a level costs.
        choice: what it is made of.
        setting: that it is made for.
        draft: what tells its model or head from others.
    """

    def measured(sequences: int) -> float:
        return level_units(setting.model, make(slots=sequences, capacity=PROBE_LENGTH), sequences, nodes)

    nodes = choice.nodes or CHAIN
    key = f"{choice.entry.name} {sorted(choice.options.items())} {draft}"
    level = level_cost(setting.target.model, key, setting.slots, measured)
    costs = {"level_cost": level(1)} if choice.drafts_trees else {}
    return Built(make(slots=setting.slots, capacity=setting.context_length, **costs), level)


def _draft_model(choice: Choice, setting: Setting) -> Opened:
    if choice.entry.name == "model":
        return open_model(choice.argument, "auto", setting.device, setting.progress)
    target = setting.target
    if target.checkpoint is None:
        fix = "It needs a target that the native decoder reads."
        raise InvalidOption("drafter", "quantised", "another drafter", fix)
    model = load_quantised(target.checkpoint, target.model.precision, choice.argument, device=setting.device)
    return Opened(model, target.tokenizer)


def _from_model(draft: Opened, target: Opened, options: dict[str, Any]) -> Callable[..., Drafter]:
    """Makes drafters of so many slots and so much capacity."""
    try:
        compare_vocabularies(target.tokenizer, draft.tokenizer)
    except VocabularyMismatch:
        return _translated(draft, target, options)
    return partial(ModelDrafter, draft.model, vocab_size=target.model.vocab_size, **options)


def _translated(draft: Opened, target: Opened, options: dict[str, Any]) -> Callable[..., Drafter]:
    if options.get("tree", "chain") != "chain":
        fix = "This draft model has another tokenizer than the target."
        raise InvalidOption("drafter model: tree", options["tree"], "chain", fix)
    vocab_size = target.model.vocab_size
    return partial(TranslatedDrafter, draft.model, draft.tokenizer, target.tokenizer, vocab_size=vocab_size)
