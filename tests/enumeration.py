"""Exact proofs by enumeration: a coin oracle that visits every outcome of a program, with its probability.

The program may draft, verify and draw with the same coins; `outcomes` runs it once per leaf of its tree of choices.
Toy models are functions from a prefix to a law of fractions, so equality of laws is `==`, without any tolerance.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache
from typing import Any, TypeVar

import numpy as np

from outrider.core import Coins, Draft, Law, Rule, Verdict
from outrider.tree import paths

T = TypeVar("T")
Tokens = tuple[int, ...]
Emitted = dict[Tokens, Fraction]
ToyModel = Callable[[Tokens], Law]
Propose = Callable[[Coins], Draft]

POSITION = 7  # of the first drafted token; any number does


class BranchingCoins:
    """`core.Coins` that follow a script of choices, then take the first possible one and note the others."""

    def __init__(self, script: Tokens = ()) -> None:
        self.script, self.taken, self.probability = script, (), Fraction(1)
        self.untaken: list[Tokens] = []
        self.positions: list[int] = []

    def choose(self, weights: list[Any]) -> int:
        """Index i with probability weights[i] / sum(weights); floats count as the rationals that they are."""
        exact = [Fraction(weight) for weight in weights]
        possible = [i for i, weight in enumerate(exact) if weight > 0]
        if len(self.taken) < len(self.script):
            choice = self.script[len(self.taken)]
        else:
            choice = possible[0]
            self.untaken += [(*self.taken, other) for other in possible[1:]]
        self.taken = (*self.taken, choice)
        self.probability *= exact[choice] / sum(exact)
        return choice

    def bernoulli(self, probability: Any) -> bool:
        assert 0 <= probability <= 1
        return self.choose([1 - Fraction(probability), probability]) == 1

    def categorical(self, weights: Law, position: int) -> int:
        self.positions.append(position)
        return self.choose(weights.tolist())


class GridUniform:
    """Stands for a random stream whose uniform draws are 0, 1/n, ..., (n - 1)/n, each equally likely."""

    def __init__(self, coins: BranchingCoins, n: int) -> None:
        self.coins, self.n = coins, n

    def random(self) -> float:
        return self.coins.choose([1] * self.n) / self.n


def outcomes(program: Callable[[BranchingCoins], T]) -> Iterator[tuple[T, Fraction]]:
    """Every outcome of the program with its exact probability (one entry per leaf, so outcomes repeat)."""
    scripts: list[Tokens] = [()]
    while scripts:
        coins = BranchingCoins(scripts.pop())
        result = program(coins)
        scripts += coins.untaken
        yield result, coins.probability


def one_round(
    rule: Rule, propose: Propose, target: ToyModel, dice: Callable[[BranchingCoins], Coins] = lambda coins: coins
) -> Iterator[tuple[Draft, Verdict, Fraction]]:
    """Every (draft, verdict) of one round with its probability; `dice` turns the branching coins into others."""
    for draft, chance in outcomes(lambda branching: propose(dice(branching))):
        for verdict, probability in verdicts(rule, draft, target, dice):
            yield draft, verdict, chance * probability


def verdicts(
    rule: Rule, draft: Draft, target: ToyModel, dice: Callable[[BranchingCoins], Coins] = lambda coins: coins
) -> Iterator[tuple[Verdict, Fraction]]:
    """Every verdict on one draft with its probability."""
    rows = target_rows(target, draft)
    return outcomes(lambda branching: rule.verify(draft, rows, dice(branching), POSITION))


def emitted_law(rule: Rule, propose: Propose, target: ToyModel, **options: Any) -> Emitted:
    """P(tokens emitted in one round)."""
    law: Emitted = defaultdict(Fraction)
    for draft, verdict, probability in one_round(rule, propose, target, **options):
        law[(*(draft.tokens[i] for i in verdict.path), verdict.next_token)] += probability
    return dict(law)


def mean_emitted(law: Emitted) -> Fraction:
    """E[emitted tokens per round], the next token included."""
    return sum((len(tokens) * probability for tokens, probability in law.items()), Fraction(0))


def law_error(rule: Rule, propose: Propose, target: ToyModel, **options: Any) -> Fraction:
    """Total variation between what a round emits (continued by the target to equal length) and the target's law.

    Exactly 0 if and only if the rule is exact for these drafts.
    """
    law = emitted_law(rule, propose, target, **options)
    length = max(map(len, law))
    difference: Emitted = defaultdict(Fraction)
    for tokens, probability in continuations(target, (), length):
        difference[tokens] -= probability
    for start, start_probability in law.items():
        for tokens, probability in continuations(target, start, length):
            difference[tokens] += start_probability * probability
    return sum(map(abs, difference.values()), Fraction(0)) / 2


def continuations(target: ToyModel, start: Tokens, length: int) -> list[tuple[Tokens, Fraction]]:
    """Every string of `length` tokens that the target may continue `start` to, with its probability."""
    if len(start) == length:
        return [(start, Fraction(1))]
    return [
        (tokens, Fraction(chance) * probability)
        for token, chance in enumerate(target(start).tolist())
        if chance > 0
        for tokens, probability in continuations(target, (*start, token), length)
    ]


def target_rows(target: ToyModel, draft: Draft) -> Law:
    """[n + 1, V] the target's law after the pending token and after each node."""
    return np.stack([target(path) for path in paths(draft.tokens, draft.parents)])


def context_free(*probabilities: Any) -> ToyModel:
    """A model with the same law after every prefix, from numbers or strings such as "2/3"."""
    row = np.array([Fraction(p) for p in probabilities], dtype=object)
    assert row.sum() == 1
    return lambda prefix: row


def random_model(kind: str, vocab: int, seed: int) -> ToyModel:
    """A random law of fractions for every prefix.

    Args:
        kind: "dense"; "zeros": about a third of the tokens is excluded; "one-hot": greedy; "even" or "odd": excludes
            the tokens of the other parity.
        vocab: number of tokens V.
        seed: of this model; the law after a prefix depends on seed and prefix only.
    """

    @cache
    def row(prefix: Tokens) -> Law:
        dice = random.Random(f"{kind} {vocab} {seed} {prefix}")
        weights = [dice.randint(1, 9) for _ in range(vocab)]
        sure = dice.randrange(vocab)
        allowed = {
            "dense": lambda token: True,
            "zeros": lambda token: token == sure or dice.random() < 2 / 3,
            "one-hot": lambda token: token == sure,
            "even": lambda token: token % 2 == 0,
            "odd": lambda token: token % 2 == 1,
        }[kind]
        kept = [weight if allowed(token) else 0 for token, weight in enumerate(weights)]
        return np.array([Fraction(weight, sum(kept)) for weight in kept], dtype=object)

    return row


def sampled_chain(model: ToyModel, length: int, stop_after: Callable[[Fraction], bool] = lambda p: False) -> Propose:
    """Draws up to `length` tokens from the model; stops *after keeping* one whose probability says so."""

    def propose(coins: Coins) -> Draft:
        tokens: list[int] = []
        rows: list[Law] = []
        while len(tokens) < length and not (tokens and stop_after(rows[-1][tokens[-1]])):
            rows.append(model(tuple(tokens)))
            tokens.append(coins.categorical(rows[-1], POSITION + len(tokens)))
        return Draft.chain(tokens, np.stack(rows) if rows else None)

    return propose


def likeliest(model: ToyModel, length: int) -> Tokens:
    """The model's greedy continuation, ties to the lowest id."""
    tokens: Tokens = ()
    for _ in range(length):
        tokens = (*tokens, model(tokens).tolist().index(max(model(tokens))))
    return tokens


def fixed_chain(tokens: Tokens) -> Propose:
    """Always proposes these tokens, as a point mass."""
    return lambda coins: Draft.chain(tokens)


def every_string(vocab: int, length: int) -> list[Tokens]:
    """All strings of that length."""
    return list(itertools.product(range(vocab), repeat=length))
