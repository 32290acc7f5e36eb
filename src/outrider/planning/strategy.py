"""What a typed drafter becomes for a plan: an engine to walk and to time it in, asked as in a batch of any size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from outrider.attaching import open_head, showing
from outrider.core import Drafter, Model
from outrider.drafters.catalogue import SEPARATOR, Choice, parse
from outrider.drafters.combined import CombinedDrafter
from outrider.drafting import Built, Setting, build_drafter, combined, early_exit_target
from outrider.engine import Engine
from outrider.errors import InvalidOption
from outrider.loading import check_trees, default_drafter, pace_of
from outrider.models.early_exit import EarlyExitTarget
from outrider.models.opening import Opened
from outrider.planning.timing import Given
from outrider.planning.walked import InCrowd
from outrider.rules import choose_rule


@dataclass(frozen=True)
class Place:
    """Where strategies run.

    Args:
        target: as users type it.
        opened: it.
        slots: sequences that are decoded together, at most.
        context_length: tokens of each.
    """

    target: str
    opened: Opened
    slots: int
    context_length: int

    @property
    def device(self) -> torch.device:
        """Of the target."""
        return torch.device(getattr(self.opened.model, "device", "cpu"))


@dataclass(frozen=True)
class Strategy:
    """A drafter at work.

    Args:
        typed: its name, "auto" written out.
        choices: what that means.
        built: it.
        setting: that it was built for.
        costly: of a combination, its parts whose drafts cost by their length: (typed, name).
    """

    typed: str
    choices: tuple[Choice, ...]
    built: Built
    setting: Setting
    costly: tuple[tuple[str, str], ...] = ()

    @property
    def drafter(self) -> Drafter:
        """The drafter."""
        return self.built.drafter

    @property
    def is_combined(self) -> bool:
        """Whether it is several drafters that take turns."""
        return len(self.choices) > 1

    @property
    def replays(self) -> bool:
        """Whether its drafts follow from the text alone, so that rounds can be replayed on a text."""
        return not self.is_combined and self.choices[0].entry.is_free and not hasattr(self.drafter, "observe")

    @property
    def is_chain(self) -> bool:
        """Whether it is one drafter of chains: their length can be fixed."""
        return not self.is_combined and not self.choices[0].drafts_trees

    @property
    def own_forward(self) -> bool:
        """Whether the target's forward is another one with it."""
        return isinstance(self.setting.model, EarlyExitTarget)

    def pace(self, batch: int) -> InCrowd:
        """A new pace of its own, as in a batch of this size."""
        if isinstance(self.drafter, CombinedDrafter):
            self.drafter.together = batch
        return InCrowd(pace_of("auto", self.choices, self.built, self.setting), batch)

    def engine(self) -> Engine:
        """The engine that it is walked and timed in: one alone, since drafters know sequences by their numbers."""
        rule = choose_rule("auto", self.drafter.proposal)
        check_trees(self.choices, rule, self.setting.model)
        slots, length = self.setting.slots, self.setting.context_length
        return Engine(self.setting.model, self.drafter, rule, Given(), slots=slots, context_length=length)


def check(drafter: str, target: str) -> str:
    """What is typed for a drafter, "auto" written out; nothing is loaded.

    Raises:
        InvalidOption: not a drafter, or none that drafts.
    """
    typed = default_drafter(target) if drafter == "auto" else drafter
    if any(choice.entry.name == "none" for choice in parse(typed)):
        raise InvalidOption("drafter", drafter, "one that drafts", "Plain decoding is what all are compared with.")
    return typed


def made(drafter: str, place: Place) -> Strategy:
    """A strategy, its drafter built.

    Args:
        drafter: as users type it.
        place: where it runs.

    Raises:
        InvalidOption, CheckpointError, UnsupportedModel, VocabularyMismatch, CacheTooLarge: as `outrider.load`.
    """
    typed = check(drafter, place.target)
    choices, opened = parse(typed), place.opened
    head = open_head(choices, opened)
    model = showing(head, opened) if head is not None else _model(choices, opened)
    setting = Setting(opened, model, place.slots, place.context_length, place.device, head=head)
    if len(choices) == 1:
        return Strategy(typed, choices, build_drafter(choices, setting), setting)
    parts = [build_drafter((choice,), setting) for choice in choices]
    built = Built(combined(parts, choices, setting.verify_cost))
    return Strategy(typed, choices, built, setting, tuple(_costly(typed, parts)))


def _model(choices: tuple[Choice, ...], opened: Opened) -> Model:
    """The target, or what shares its first layers if they draft."""
    layers = next((choice.argument for choice in choices if choice.entry.name == "early-exit"), None)
    return opened.model if layers is None else early_exit_target(opened.model, layers, False)


def _costly(typed: str, parts: list[Built]) -> Iterator[tuple[str, str]]:
    for name, part in zip(typed.split(SEPARATOR), parts, strict=True):
        if part.level is not None:
            yield name, part.drafter.name
