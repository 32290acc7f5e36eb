"""Decoding with an engine as it is, while what its rule sees and decides is noted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Ordered
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from outrider.core import Coins, Draft, Law, Rule, Sequence, Verdict
from outrider.engine import Engine
from outrider.options import Sampling
from outrider.rounds import Pace, Round


@dataclass(frozen=True)
class Request:
    """One text that is decoded.

    Args:
        place: number of its prompt, from 0.
        prompt: token ids.
        seed: of its streams.
    """

    place: int
    prompt: tuple[int, ...]
    seed: int

    def at(self, token: int) -> str:
        """How a report names a place in the text, tokens counted from 0."""
        return f"prompt {self.place + 1}, seed {self.seed}, token {token + 1}"


@dataclass(frozen=True)
class Wish:
    """What all requests of a run have in common; see `Engine.add`."""

    sampling: Sampling
    stop_ids: frozenset[int]
    max_new_tokens: int


@dataclass(frozen=True)
class Decided:
    """One draft and what became of it.

    Args:
        request: whose it was.
        sequence: with the tokens after the round.
        start: new tokens of the sequence before it.
        draft: as it was verified.
        target_probs: [n + 1, V] that the rule saw; not kept by the engine.
        verdict: of the rule.
        round: what the engine reported.
    """

    request: Request
    sequence: Sequence
    start: int
    draft: Draft
    target_probs: Law
    verdict: Verdict
    round: Round


class _Noted:
    """A rule that notes what it is asked and what it says, and is otherwise the rule that it was given."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self.name, self.lossless, self.proposals, self.trees = rule.name, rule.lossless, rule.proposals, rule.trees
        self.calls: list[tuple[Draft, Law, Verdict]] = []

    def verify(self, draft: Draft, target_probs: Law, coins: Coins, position: int) -> Verdict:
        """See `core.Rule.verify`."""
        verdict = self._rule.verify(draft, target_probs, coins, position)
        self.calls.append((draft, target_probs, verdict))
        return verdict


class Urged:
    """A pace that drafts at least so much for every second sequence, so that what does not pay is tested too.

    Args:
        pace: decides otherwise.
        least: nodes.
    """

    def __init__(self, pace: Pace, least: int) -> None:
        self._pace, self._least = pace, least

    def budgets(self, sequences: list[Sequence]) -> list[int]:
        """See `rounds.Pace`."""
        own = self._pace.budgets(sequences)
        return [max(k, self._least) if s.id % 2 else k for k, s in zip(own, sequences, strict=True)]

    def observe(self, rounds: list[Round]) -> None:
        """See `rounds.Pace`."""
        self._pace.observe(rounds)


@contextmanager
def changed(engine: Any, **attributes: Any) -> Iterator[None]:
    """An engine, or anything else, with other attributes, such as the rule or the pace, and as it was afterwards."""
    before = {name: getattr(engine, name) for name in attributes}
    try:
        for name, value in attributes.items():
            setattr(engine, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(engine, name, value)


def decode(
    engine: Engine,
    requests: Iterator[Request],
    wish: Wish,
    saw: Callable[[Decided], None] = lambda decided: None,
    ended: Callable[[Request, Sequence], bool] = lambda request, sequence: True,
    began: Callable[[Sequence], None] = lambda sequence: None,
) -> None:
    """Decode requests, as many together as the engine has slots.

    Args:
        engine: with nothing else in it; its rule decides.
        requests: taken one by one as slots come free.
        wish: common to all.
        saw: told of every decision.
        ended: told of every text that is whole; False ends the run.
        began: told of every sequence before its first round.

    Raises:
        OutriderError: what failed in a sequence.
    """
    noted, running = _Noted(engine.rule), dict[int, tuple[Request, Sequence]]()
    with changed(engine, rule=noted):
        try:
            _refill(engine, requests, wish, running, began)
            while running:
                noted.calls.clear()
                rounds = engine.step()
                for r in rounds:
                    if r.error is not None:
                        raise r.error
                for r, call in zip(rounds, noted.calls, strict=True):
                    request, sequence = running[r.sequence.id]
                    saw(Decided(request, sequence, sequence.num_new_tokens - len(r.token_ids), *call, r))
                    if r.finish_reason is not None:
                        del running[sequence.id]
                        if not ended(request, sequence):
                            return
                _refill(engine, requests, wish, running, began)
        finally:
            for _, sequence in running.values():
                engine.cancel(sequence)


def texts(engine: Engine, requests: Ordered[Request], wish: Wish, **told: Any) -> list[list[int]]:
    """The new tokens of each request, in order."""
    made: dict[Request, list[int]] = {}

    def ended(request: Request, sequence: Sequence) -> bool:
        made[request] = sequence.tokens[sequence.prompt_length :]
        return True

    decode(engine, iter(requests), wish, ended=ended, **told)
    return [made[request] for request in requests]


def _refill(
    engine: Engine,
    requests: Iterator[Request],
    wish: Wish,
    running: dict[int, tuple[Request, Sequence]],
    began: Callable[[Sequence], None],
) -> None:
    while len(running) < engine.slots:
        request = next(requests, None)
        if request is None:
            return
        sequence = engine.add(
            request.prompt,
            sampling=wish.sampling,
            seed=request.seed,
            stop_ids=wish.stop_ids,
            max_new_tokens=wish.max_new_tokens,
        )
        running[sequence.id] = request, sequence
        began(sequence)
