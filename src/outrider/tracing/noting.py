"""A rule and a pace around an engine's own, which pass everything on and tell what they saw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from outrider.core import Coins, Draft, Law, Rule, Sequence, Verdict
from outrider.rounds import Pace, Round
from outrider.rules import RandomCoins
from outrider.tracing.attributing import Thrown


class _Uniforms:
    """A random stream that remembers what was drawn last."""

    def __init__(self, stream: np.random.Generator) -> None:
        self.stream, self.last = stream, 0.0

    def random(self) -> float:
        self.last = float(self.stream.random())
        return self.last


class NotedCoins:
    """Coins that pass everything on and remember what was thrown.

    Args:
        coins: throws them.
    """

    def __init__(self, coins: Coins) -> None:
        self.thrown: list[Thrown] = []
        self._coins, self._uniforms = coins, None
        if type(coins) is RandomCoins:  # the same coins, from the same streams
            self._uniforms = _Uniforms(coins.accept)
            self._coins = RandomCoins(self._uniforms, coins.next_token)  # type: ignore[arg-type]

    def bernoulli(self, probability: Any) -> bool:
        """See `core.Coins.bernoulli`."""
        fell = bool(self._coins.bernoulli(probability))
        uniform = None if self._uniforms is None else self._uniforms.last
        self.thrown.append(Thrown(float(probability), uniform, fell))
        return fell

    def categorical(self, weights: Law, position: int) -> int:
        """See `core.Coins.categorical`."""
        return self._coins.categorical(weights, position)


@dataclass(frozen=True)
class Decided:
    """What a rule saw and said.

    Args:
        draft: n nodes.
        verdict: of the rule.
        rule: that decided.
        thrown: its coins, in order.
        target_probs: per node, q of its token; the next token's last.
    """

    draft: Draft
    verdict: Verdict
    rule: str
    thrown: tuple[Thrown, ...]
    target_probs: tuple[float, ...]


class TracedRule:
    """A rule that passes everything on and tells what was decided.

    Args:
        rule: decides.
        told: called with the coins of the sequence and what was decided.
    """

    def __init__(self, rule: Rule, told: Callable[[Coins, Decided], None]) -> None:
        self.rule, self._told = rule, told
        self.name, self.lossless, self.proposals, self.trees = rule.name, rule.lossless, rule.proposals, rule.trees

    def verify(self, draft: Draft, target_probs: Law, coins: Coins, position: int) -> Verdict:
        """See `core.Rule.verify`."""
        noted = NotedCoins(coins)
        verdict = self.rule.verify(draft, target_probs, noted, position)
        rows = (*(parent + 1 for parent in draft.parents), verdict.path[-1] + 1 if verdict.path else 0)
        tokens = (*draft.tokens, verdict.next_token)
        probs = tuple(float(target_probs.item(row, token)) for row, token in zip(rows, tokens, strict=True))
        self._told(coins, Decided(draft, verdict, verdict.rule or self.name, tuple(noted.thrown), probs))
        return verdict


class TracedPace:
    """A pace that passes everything on and tells of every step.

    Args:
        pace: decides.
        begins: called with the sequences of a step before they are drafted for.
        ended: called with the rounds of the step.
    """

    def __init__(
        self, pace: Pace, begins: Callable[[list[Sequence]], None], ended: Callable[[list[Round]], None]
    ) -> None:
        self.pace, self._begins, self._ended = pace, begins, ended

    def budgets(self, sequences: list[Sequence]) -> list[int]:
        """See `rounds.Pace.budgets`."""
        self._begins(sequences)
        return self.pace.budgets(sequences)

    def observe(self, rounds: list[Round]) -> None:
        """See `rounds.Pace.observe`."""
        self.pace.observe(rounds)
        self._ended(rounds)
