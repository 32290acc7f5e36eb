"""Ways of decoding that are compared: this library's strategies on one target in memory, and what a run of one gives.

A way makes a fixed number of tokens of each prompt. Stop tokens do not end a text, so that all ways make equally many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field
from statistics import fmean
from time import perf_counter
from typing import Protocol

import torch

from outrider.attaching import open_head, showing
from outrider.core import Model, Sequence
from outrider.drafters.catalogue import Choice
from outrider.drafting import Setting, build_drafter, early_exit_target
from outrider.engine import Engine
from outrider.loading import check_trees, default_drafter, pace_of, parse_drafter
from outrider.models.opening import Opened
from outrider.options import Sampling
from outrider.rounds import Round, Seconds
from outrider.rules import choose_rule

PLAIN = "plain"
"""Name of decoding without drafts, which everything is compared with."""

NO_DRAFTER = "none"


@dataclass(frozen=True)
class Rounds:
    """What the rounds of a run did; a step is one forward for all sequences of a batch.

    Args:
        steps: forwards of the target, prompts excluded.
        rounds: the same, counted once for every sequence that took part.
        drafted: nodes that were verified.
        accepted: of them, those that were emitted.
        rows: rows of a forward, those of all sequences together -> how many forwards had so many.
        seconds: of all steps, by part.
        broken: proposals that were thrown away.
        reason: why the first of them was, or None.
    """

    steps: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    rows: Mapping[int, int] = field(default_factory=dict)
    seconds: Seconds = field(default_factory=Seconds)
    broken: int = 0
    reason: str | None = None

    def __add__(self, more: Rounds) -> Rounds:
        return Rounds(
            self.steps + more.steps,
            self.rounds + more.rounds,
            self.drafted + more.drafted,
            self.accepted + more.accepted,
            dict(Counter(self.rows) + Counter(more.rows)),
            self.seconds + more.seconds,
            self.broken + more.broken,
            self.reason or more.reason,
        )


@dataclass(frozen=True)
class Measured:
    """One run of one way: a batch of prompts, all begun at once.

    Args:
        token_ids: per prompt, the new tokens.
        seconds: from the start to the last token.
        first_token_seconds: from the start to a prompt's first token; the mean over the batch.
        decoded: tokens that were made in `decoding_seconds`.
        decoding_seconds: of decoding, the prompts' own processing excluded.
        rounds: what the rounds did; None of a way that does not tell.
    """

    token_ids: tuple[tuple[int, ...], ...]
    seconds: float
    first_token_seconds: float
    decoded: int
    decoding_seconds: float
    rounds: Rounds | None = None


@dataclass(frozen=True)
class Asked:
    """What a run is asked for.

    Args:
        prompts: token ids of each prompt of the batch.
        seeds: one for each.
        temperature: 0 or more.
        max_new_tokens: of each prompt; exactly so many are made.
    """

    prompts: tuple[tuple[int, ...], ...]
    seeds: tuple[int, ...]
    temperature: float
    max_new_tokens: int


class WayFailed(Exception):
    """A way that is not ours failed; the message says why."""


class Way(Protocol):
    """A way of decoding.

    Attributes:
        name: what the report calls it.
        most: the largest batch that it takes.
    """

    name: str
    most: int

    def run(self, asked: Asked) -> Measured:
        """Decode one batch and say what it took.

        Raises:
            WayFailed: it could not, and is left out from then on.
        """
        ...


# ---------------------------------------------------------------- this library's own


@dataclass(frozen=True)
class Strategy:
    """A drafter and how much it drafts.

    Args:
        drafter: as for `outrider.load`, but what "auto" means is written out; "none" is plain decoding.
        num_draft_tokens: as for `outrider.load`.
    """

    drafter: str
    num_draft_tokens: int | str = "auto"

    @property
    def name(self) -> str:
        """What the report calls it."""
        if self.drafter == NO_DRAFTER:
            return PLAIN
        return self.drafter if self.num_draft_tokens == "auto" else f"{self.drafter}, k={self.num_draft_tokens}"


def strategies(drafters: Iterable[str], target: str, num_draft_tokens: int | str = "auto") -> list[Strategy]:
    """What users name, each once; two names of the same are one.

    Args:
        drafters: as for `outrider.load`.
        target: as typed; it decides what "auto" means.
        num_draft_tokens: of all of them.
    """
    named = (default_drafter(target) if drafter == "auto" else drafter for drafter in drafters)
    return [Strategy(drafter, num_draft_tokens) for drafter in dict.fromkeys(named)]


class EngineWay:
    """A strategy of this library.

    Args:
        name: what the report calls it.
        engine: with nothing else in it; its slots are the largest batch.
    """

    def __init__(self, name: str, engine: Engine) -> None:
        self.name, self.most, self.engine = name, engine.slots, engine

    def run(self, asked: Asked) -> Measured:
        """See `Way.run`."""
        start, first, steps = perf_counter(), dict[int, float](), list[list[Round]]()
        sequences = self._added(asked)
        try:
            while self.engine.num_unfinished:
                rounds = self.engine.step()
                now = perf_counter() - start
                for each in rounds:
                    first.setdefault(each.sequence.id, now)
                steps += [rounds] if rounds else []
        finally:
            for sequence in sequences:  # after Ctrl-C
                self.engine.cancel(sequence)
        seconds, counted = perf_counter() - start, counted_rounds(steps)
        made = tuple(tuple(s.tokens[s.prompt_length :]) for s in sequences)
        num_tokens = sum(map(len, made))
        return Measured(made, seconds, fmean(first.values()), num_tokens, counted.seconds.total, counted)

    def _added(self, asked: Asked) -> list[Sequence]:
        sampling = Sampling(temperature=asked.temperature)
        sequences = [
            self.engine.add(prompt, sampling=sampling, seed=seed, max_new_tokens=asked.max_new_tokens)
            for prompt, seed in zip(asked.prompts, asked.seeds, strict=True)
        ]
        for sequence in sequences:
            sequence.seeded = False  # so that as much is drafted as suits the batch, as for users who give no seed
        return sequences


def counted_rounds(steps: Ordered[Ordered[Round]]) -> Rounds:
    """The rounds of all sequences, step by step, added up."""
    rounds = [each for step in steps for each in step]
    broken = [each.broken for each in rounds if each.broken is not None]
    return Rounds(
        steps=len(steps),
        rounds=len(rounds),
        drafted=sum(each.num_drafted for each in rounds),
        accepted=sum(each.num_accepted for each in rounds),
        rows=dict(Counter(sum(1 + each.num_drafted for each in step) for step in steps)),
        seconds=sum((step[0].seconds for step in steps), Seconds()),  # the sequences of a step share them
        broken=len(broken),
        reason=broken[0] if broken else None,
    )


def engine_of(strategy: Strategy, opened: Opened, slots: int, context_length: int) -> Engine:
    """An engine for a strategy that shares a target which is in memory already.

    Args:
        strategy: what drafts.
        opened: the target, on a CPU.
        slots: the largest batch.
        context_length: tokens per sequence.

    Raises:
        InvalidOption, CheckpointError, UnsupportedModel, VocabularyMismatch, CacheTooLarge: as `outrider.load`.
    """
    choices = parse_drafter(strategy.drafter)
    head = open_head(choices, opened)
    model = _early_exit(choices, opened) if head is None else showing(head, opened)
    setting = Setting(opened, model, slots, context_length, torch.device("cpu"), head=head)
    built = build_drafter(choices, setting)
    rule = choose_rule("auto", built.drafter.proposal)
    check_trees(choices, rule, model)
    pace = pace_of(strategy.num_draft_tokens, choices, built, setting)
    return Engine(model, built.drafter, rule, pace, slots=slots, context_length=context_length)


def _early_exit(choices: tuple[Choice, ...], opened: Opened) -> Model:
    """The target, or what shares its first layers if they draft."""
    layers = next((choice.argument for choice in choices if choice.entry.name == "early-exit"), None)
    return opened.model if layers is None else early_exit_target(opened.model, layers, False)
