"""What a plan is to be measured of, and what all its drafters share."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from functools import cached_property
from statistics import median_low
from typing import Any

from outrider.core import Drafter
from outrider.drafters.none import NoDrafter
from outrider.engine import Engine
from outrider.errors import InvalidOption
from outrider.models.opening import Opened
from outrider.planning.kept import Asked
from outrider.planning.pace import FixedPace
from outrider.planning.pricing import Sample
from outrider.planning.strategy import Place
from outrider.planning.walked import Text, Walk, Wish, walk
from outrider.rounds import Pace
from outrider.rules import RULES

SIDE_BY_SIDE = 8
"""Sequences that are walked together, at least."""

ROOM = 64
"""Tokens beside the prompt for which there is room where steps are timed."""

Told = Callable[[str, int, int], None]
"""Called with (what is being done, done, in all)."""


@dataclass(frozen=True)
class Job:
    """What is to be measured.

    Args:
        asked: the question.
        opened: the target.
        texts: at least one.
        machine: see `kept.this_machine`.
        model: see `kept.this_model`.
        told: progress.
    """

    asked: Asked
    opened: Opened
    texts: tuple[Text, ...]
    machine: dict[str, Any]
    model: dict[str, Any]
    told: Told

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Batch sizes that are timed: those asked for, one, and that of the walks."""
        return tuple(sorted({1, max(SIDE_BY_SIDE, *self.asked.batches), *self.asked.batches}))

    @cached_property
    def prompt(self) -> tuple[int, ...]:
        """Of the steps that are timed: one of middle length."""
        middle = median_low(len(text.prompt) for text in self.texts)
        prompt = next(text.prompt for text in self.texts if len(text.prompt) == middle)
        return prompt[: max(1, self.opened.model.context_length // 2)]

    @cached_property
    def place(self) -> Place:
        """With room for all texts."""
        longest = max(len(text.prompt) for text in self.texts) + self.asked.max_new_tokens
        length = min(max(longest, len(self.prompt) + ROOM), self.opened.model.context_length)
        return Place(self.asked.target, self.opened, self.sizes[-1], length)

    @cached_property
    def wish(self) -> Wish:
        """What is walked."""
        stops = frozenset(self.opened.tokenizer.stop_ids)
        return Wish(self.texts, self.asked.temperatures, self.asked.max_new_tokens, stops)

    @cached_property
    def sample(self) -> Sample:
        """What is priced."""
        return Sample(tuple(text.kind for text in self.texts), self.asked.max_new_tokens)

    @cached_property
    def written(self) -> Walk:
        """What the target writes by itself."""
        engine = self.engine(NoDrafter(), FixedPace(0))
        return walk(engine, self.wish, lambda done, total: self.told("writing texts", done, total))

    def engine(self, drafter: Drafter, pace: Pace, *, slots: int = 0, context_length: int = 0) -> Engine:
        """An engine with the target and a drafter of point masses; as large as the place, unless told otherwise."""
        return Engine(
            self.opened.model,
            drafter,
            RULES["point-mass"],
            pace,
            slots=slots or self.place.slots,
            context_length=context_length or self.place.context_length,
        )


def check_lengths(job: Job) -> None:
    """Refuse texts that do not fit into the context with what is to be made of them.

    Raises:
        InvalidOption: naming the first of them.
    """
    new, context = job.asked.max_new_tokens, job.opened.model.context_length
    if new >= context:
        raise InvalidOption("max_new_tokens", new, f"2 to {context - 1}", f"The target's context is {context} tokens.")
    for number, text in enumerate(job.texts, start=1):
        if len(text.prompt) + new > context:
            allowed = f"at most {context - new}: the target's context of {context} less {new} new tokens"
            value = f"{len(text.prompt)} tokens in prompt {number}"
            raise InvalidOption("prompts", value, allowed, "Leave it out or make fewer new tokens.")


def sampled(texts: Ordered[Text], most: int) -> tuple[Text, ...]:
    """So many of the texts, evenly spread; all if there are no more."""
    if len(texts) <= most:
        return tuple(texts)
    return tuple(texts[place * len(texts) // most] for place in range(most))
