"""The exact output law of the shipped rule, in float64, by running it through every outcome of its coins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np

from outrider.certifying.problems import SIZE, Problem
from outrider.core import Coins, Draft, Law, Proposal, Rule, Verdict
from outrider.tree import depths

T = TypeVar("T")
ROUNDING_OF_LAWS = 1e-6
"""Total variation that laws in float32 may have from themselves."""

ROUNDING = 1e-9
"""How far outside of [0, 1] a probability may be before it counts as wrong."""


class _Again(Exception):
    """The rule draws tokens more than once, so that their law cannot be read from one run."""


class _Seen(Exception):
    """All that was wanted of a run is known."""


class BranchingCoins:
    """Coins that follow a script, then take the first possible outcome and note the others.

    Args:
        script: outcomes to take.
        reads: note the weights of the one draw of a token instead of branching on it.
    """

    def __init__(self, script: tuple[int, ...] = (), *, reads: bool = False) -> None:
        self.script, self.reads = script, reads
        self.taken, self.probability = tuple[int, ...](), 1.0
        self.untaken: list[tuple[int, ...]] = []
        self.law: Law | None = None

    def bernoulli(self, probability: Any) -> bool:
        """See `core.Coins`."""
        chance = float(probability)
        assert -ROUNDING <= chance <= 1 + ROUNDING, f"{chance} is no probability"
        return self._choose(np.array([1 - chance, chance]).clip(0, 1)) == 1

    def categorical(self, weights: Law, position: int) -> int:
        """See `core.Coins`."""
        law = np.asarray(weights, dtype=np.float64) / np.asarray(weights, dtype=np.float64).sum()
        if not self.reads:
            return self._choose(law)
        if self.law is not None:
            raise _Again
        self.law = law
        return int(law.argmax())

    def _choose(self, law: Law) -> int:
        if self.law is not None:
            raise _Again
        possible = np.flatnonzero(law > 0).tolist()
        if len(self.taken) < len(self.script):
            choice = self.script[len(self.taken)]
        else:
            choice = possible[0]
            self.untaken += [(*self.taken, other) for other in possible[1:]]
        self.taken = (*self.taken, choice)
        self.probability *= float(law[choice])
        return int(choice)


def outcomes(program: Callable[[BranchingCoins], T], *, reads: bool = False) -> Iterator[tuple[T, BranchingCoins]]:
    """Every outcome of a program of coins, with the coins that led there."""
    scripts: list[tuple[int, ...]] = [()]
    while scripts:
        coins = BranchingCoins(scripts.pop(), reads=reads)
        result = program(coins)
        scripts += coins.untaken
        yield result, coins


def law_error(rule: Rule, problem: Problem) -> float:
    """Total variation between what one round emits, continued by the target to equal length, and the target's law."""
    found = np.zeros((SIZE,) * len(problem.target))
    for draft, drawing in outcomes(problem.propose):
        rows = problem.target[depths(draft.parents)]
        for path, law, probability in _verdicts(rule, draft, rows):
            tokens = tuple(draft.tokens[node] for node in path)
            found[tokens] += drawing.probability * probability * _times(law, *problem.target[len(path) + 1 :])
    return float(abs(found - _times(*problem.target)).sum()) / 2


def _verdicts(rule: Rule, draft: Draft, rows: Law) -> Iterator[tuple[tuple[int, ...], Law, float]]:
    """Every path, the law after it, and its probability."""

    def verify(coins: Coins) -> Verdict:
        return rule.verify(draft, rows, coins, 0)

    try:
        for verdict, coins in list(outcomes(verify, reads=True)):
            assert coins.law is not None, "a rule that draws no next token"
            yield verdict.path, coins.law, coins.probability
        return
    except _Again:
        pass
    for verdict, coins in outcomes(verify):
        certain = np.zeros(rows.shape[1])
        certain[verdict.next_token] = 1
        yield verdict.path, certain, coins.probability


def _times(*laws: Law) -> Law:
    """The law of independent tokens, one axis each."""
    product = np.ones(())
    for law in laws:
        product = np.multiply.outer(product, law)
    return product


# ---------------------------------------------------------------- the whole vocabulary, one token


class _FirstCoins:
    """Coins for one drafted token: the first chance is read, and then falls as told; so is the law of the next token.

    Args:
        accepts: None stops at the first chance.
    """

    def __init__(self, accepts: bool | None) -> None:
        self.accepts, self.chance = accepts, 0.0
        self.law: Law | None = None

    def bernoulli(self, probability: Any) -> bool:
        self.chance = float(probability)
        if self.accepts is None:
            raise _Seen
        return self.accepts

    def categorical(self, weights: Law, position: int) -> int:
        self.law = np.asarray(weights, dtype=np.float64)
        raise _Seen


def first_token_error(rule: Rule, proposal: Proposal, target_probs: Law, law: Law | None, token: int) -> float:
    """Total variation of the first token's law from the target's, on the whole vocabulary and in the shipped precision.

    With a(x) the chance to keep x and r the law after x was refused, the first token has the law a(x) [y = x] +
    (1 - a(x)) r(y) if x was chosen. If it was drawn from p, either every x gives the target's law so, or all of them
    together do: p(y) a(y) + (sum of p(x) (1 - a(x))) r(y), r being the same for all.

    Args:
        rule: takes this kind of draft.
        proposal: of the draft.
        target_probs: [2, V].
        law: [V] p, None if the token was chosen.
        token: that was drafted; if it was drawn, any other could have been.
    """

    def run(x: int, accepts: bool | None) -> _FirstCoins:
        draft = Draft((x,), (-1,), proposal, None if law is None else (law,))
        return _run(rule, draft, target_probs, accepts)

    wanted = target_probs[0].astype(np.float64) / target_probs[0].sum(dtype=np.float64)
    drawn = np.zeros(len(wanted)) if law is None else law.astype(np.float64)
    drawn[token] += law is None
    drawn /= drawn.sum()
    tried = list(dict.fromkeys((token, int(drawn.argmax()), int(np.where(drawn > 0, -drawn, -np.inf).argmax()))))
    each = max(_distance(_given(run, x, len(wanted)), wanted) for x in tried)
    return min(each, _distance(_on_average(run, drawn, token), wanted)) if each > ROUNDING_OF_LAWS else each


def _given(run: Callable[[int, bool | None], _FirstCoins], x: int, size: int) -> Law:
    """[size] the law of the first token if x was drafted."""
    found, seen = np.zeros(size), run(x, None)
    if seen.law is not None:  # it draws the target's own token first, whatever the draft
        return np.asarray(seen.law / seen.law.sum())
    if seen.chance < 1:
        rest = run(x, False).law
        assert rest is not None
        found = (1 - seen.chance) * rest / rest.sum()
    found[x] += seen.chance
    return found


def _on_average(run: Callable[[int, bool | None], _FirstCoins], drawn: Law, token: int) -> Law:
    """[V] the law of the first token if the drafted one was drawn from this law."""
    chances = np.zeros(len(drawn))
    for x in np.flatnonzero(drawn).tolist():
        chances[x] = run(x, None).chance
    found = drawn * chances
    refused = np.flatnonzero((drawn > 0) & (chances < 1))
    if len(refused):
        rest = run(token if chances[token] < 1 else int(refused[0]), False).law
        assert rest is not None
        found += (1 - found.sum()) * rest / rest.sum()
    return found


def _distance(found: Law, wanted: Law) -> float:
    return float(abs(found - wanted).sum()) / 2


def _run(rule: Rule, draft: Draft, target_probs: Law, accepts: bool | None) -> _FirstCoins:
    coins = _FirstCoins(accepts)
    with suppress(_Seen):
        rule.verify(draft, target_probs, coins, 0)
    return coins
