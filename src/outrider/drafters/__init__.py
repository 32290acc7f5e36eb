"""Drafters: whatever guesses the next tokens. They import the core and the sampling laws, never the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

from outrider.core import Draft, Drafter, Proposal, Sequence
from outrider.drafters.model import ModelDrafter
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.errors import InvalidOption

__all__ = ["DRAFTERS", "ModelDrafter", "NgramDrafter", "NoDrafter", "SuffixDrafter", "build", "check_drafter"]


class NoDrafter:
    """Plain decoding: every draft is empty."""

    name = "none"
    proposal: Proposal = "point_mass"

    def propose(self, sequences: list[Sequence], budgets: list[int]) -> list[Draft]:
        """See `core.Drafter`."""
        return [Draft() for _ in sequences]


DRAFTERS: dict[str, Callable[[], Drafter]] = {"none": NoDrafter, "ngram": NgramDrafter, "suffix": SuffixDrafter}
"""Drafters that need nothing but their name; those with a model are built where models are loaded."""


def build(name: str) -> Drafter:
    """A new drafter with its default options.

    Raises:
        InvalidOption: for a name that is not in `DRAFTERS`, listing all that users may type.
    """
    if name not in DRAFTERS:
        raise InvalidOption("drafter", name, ", ".join([*DRAFTERS, "model:ID", "auto"]))
    return DRAFTERS[name]()


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
