"""Drafters: whatever guesses the next tokens. They import the core and the sampling laws, never the engine."""

from __future__ import annotations

from typing import Any, get_args

from outrider.core import Drafter, Proposal
from outrider.drafters.catalogue import CATALOGUE, Choice, parse
from outrider.drafters.combined import CombinedDrafter
from outrider.drafters.corpus import Corpus
from outrider.drafters.early_exit import EarlyExitDrafter
from outrider.drafters.lookahead import LookaheadDrafter
from outrider.drafters.model import ModelDrafter
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.none import NoDrafter
from outrider.drafters.recycling import RecyclingDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.drafters.translated import TranslatedDrafter
from outrider.errors import InvalidOption

__all__ = [
    "CATALOGUE",
    "CombinedDrafter",
    "EarlyExitDrafter",
    "LookaheadDrafter",
    "ModelDrafter",
    "NgramDrafter",
    "NoDrafter",
    "RecyclingDrafter",
    "SuffixDrafter",
    "TranslatedDrafter",
    "build",
    "check_drafter",
    "make_free",
]


def build(text: str) -> Drafter:
    """A new drafter that needs no model, from what users type.

    Raises:
        InvalidOption: for a name that is not in the catalogue, one that needs a model, or a bad option.
    """
    choices = parse(text)
    bound = next((choice for choice in choices if not choice.entry.is_free), None)
    if bound is not None:
        fix = "Use outrider.load for it."
        raise InvalidOption("drafter", text, "one that needs no model", fix)
    free = [make_free(choice, choice.options) for choice in choices]
    return free[0] if len(free) == 1 else CombinedDrafter(free, [0.0] * len(free))


def make_free(choice: Choice, options: dict[str, Any], corpus: Corpus | None = None) -> Drafter:
    """A drafter that needs no model.

    Args:
        choice: one of those.
        options: arguments of its class.
        corpus: text for the suffix drafter to look things up in.

    Raises:
        InvalidOption: an option outside its range.
    """
    source = {"corpus": corpus} if corpus is not None and choice.entry.name == "suffix" else {}
    return choice.entry.make(**options, **source)


def check_drafter(drafter: object) -> None:
    """Refuse an object that is not a drafter before it meets the engine.

    Raises:
        InvalidOption: naming the attribute that is missing or wrong.
    """
    fix = "See outrider.core.Drafter."
    if isinstance(drafter, type):
        raise InvalidOption("drafter", drafter, "an object, not a class", f"Pass {drafter.__name__}(...).")
    if not callable(getattr(drafter, "propose", None)):
        raise InvalidOption("drafter", drafter, "an object with a method propose(sequences, budgets)", fix)
    if not isinstance(getattr(drafter, "name", None), str):
        raise InvalidOption("drafter.name", getattr(drafter, "name", None), "a string", fix)
    proposal = getattr(drafter, "proposal", None)
    if proposal not in get_args(Proposal):
        raise InvalidOption("drafter.proposal", proposal, ", ".join(get_args(Proposal)), fix)
