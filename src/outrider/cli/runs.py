"""One request from start to end, with Ctrl-C; and the same request plainly, to compare with. Prints nothing."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal

from outrider.core import Sequence
from outrider.drafters import NoDrafter
from outrider.engine import Engine
from outrider.generation import Result, TextEngine
from outrider.planning.pace import FixedPace
from outrider.rounds import Round
from outrider.rules import choose_rule

Show = Callable[[str, Literal["accepted", "next"]], None]
"""Called with each token's text and its origin."""


@dataclass(frozen=True)
class Run:
    """A request that ended or was stopped, with its rounds."""

    result: Result
    rounds: list[Round]


def decode(engine: TextEngine, sequence: Sequence, show: Show) -> Run:
    """Decode a request to its end, or until Ctrl-C: then the round under way is finished and the rest cancelled.

    Args:
        engine: that the request was added to, with no other.
        sequence: the request.
        show: called for every token as its round ends.

    Raises:
        KeyboardInterrupt: Ctrl-C a second time, before the round has ended.
    """
    rounds: list[Round] = []
    try:
        with _interruptible() as is_interrupted:
            while not is_interrupted() and not (rounds and rounds[-1].finish_reason):
                for latest in engine.step():
                    rounds.append(latest)
                    _show(latest, show)
    finally:
        engine.cancel(sequence)
    return Run(engine.result(sequence, rounds), rounds)


def _show(latest: Round, show: Show) -> None:
    for i, text in enumerate(latest.pieces):
        show(text, "accepted" if i < latest.num_accepted else "next")


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Turns the first Ctrl-C into a flag, so that no round is lost half-way; the second interrupts as usual."""
    pressed: list[int] = []

    def note(number: int, frame: Any) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)

    previous = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, previous)


# ---------------------------------------------------------------- comparison


@dataclass(frozen=True)
class Comparison:
    """The same request decoded plainly and speculatively.

    Args:
        plain: with empty drafts.
        speculative: with the drafter; None if the plain run was stopped.
        temperature: of both.
    """

    plain: Result
    speculative: Result | None
    temperature: float

    @property
    def speedup(self) -> float | None:
        """Tokens per second of decoding, speculative / plain; None if one of them has none."""
        if self.speculative is None:
            return None
        fast, slow = self.speculative.stats.tokens_per_second, self.plain.stats.tokens_per_second
        return fast / slow if fast and slow else None

    @property
    def identical(self) -> bool | None:
        """Whether the tokens are equal; None if a run was stopped or failed."""
        runs = (self.plain, self.speculative)
        if not all(run is not None and run.finish_reason in ("stop", "length") for run in runs):
            return None
        return self.first_difference is None

    @property
    def first_difference(self) -> int | None:
        """Place of the first token that differs or is missing, counted from 1; None if the tokens are equal."""
        ours = () if self.speculative is None else self.speculative.token_ids
        pairs = enumerate(zip_longest(self.plain.token_ids, ours), start=1)
        return next((place for place, (one, other) in pairs if one != other), None)


def plain_twin(text_engine: TextEngine) -> TextEngine:
    """The same target with the same cache policy and no drafts; coupled if the other is, so that a seed means the same.

    Args:
        text_engine: what to compare with; its target is shared, not loaded again.
    """
    engine, drafter = text_engine.engine, NoDrafter()
    rule = choose_rule("coupled" if engine.rule.name == "coupled" else "auto", drafter.proposal)
    twin = Engine(
        engine.target,
        drafter,
        rule,
        FixedPace(0),
        slots=1,
        context_length=engine.context_length,
        invariant=engine.invariant,
    )
    return TextEngine(twin, text_engine.tokenizer)


def warm_up(engine: TextEngine, token: int) -> None:
    """Decode a few tokens, so that what is made on first use is not charged to the run that is measured.

    Args:
        engine: used, and left as it was found.
        token: repeated as the prompt: every drafter drafts after a run of one token.
    """
    length = min(32, engine.engine.context_length - 1)
    engine.generate([token] * length, max_new_tokens=8, stop_ids=())
