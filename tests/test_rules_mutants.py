"""Negative controls: known faults, planted on purpose, that the exactness check must catch.

Most mutants are the shipped code with one part replaced; the check is the one of test_rules_exact.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from enumeration import (
    POSITION,
    BranchingCoins,
    GridUniform,
    Propose,
    ToyModel,
    context_free,
    emitted_law,
    law_error,
    likeliest,
    random_model,
    sampled_chain,
)
from outrider.core import Coins, Draft, Law, Rule, Verdict
from outrider.rules import RULES, RandomCoins, chain

ratio_rules = pytest.mark.parametrize("rule", [RULES["token"], RULES["block"]], ids=lambda rule: rule.name)
SEEDS = range(4)


def errors(rule: Rule, propose: Callable[[ToyModel], Propose], vocab: int = 3) -> list[Fraction]:
    """The rule's error on each of a few random pairs of models."""
    pairs = [(random_model("dense", vocab, seed), random_model("dense", vocab, seed + 1000)) for seed in SEEDS]
    return [law_error(rule, propose(draft), target) for target, draft in pairs]


def three_sampled(draft: ToyModel) -> Propose:
    return sampled_chain(draft, 3)


@ratio_rules
def test_the_next_token_drawn_from_q_after_a_refusal(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "residual", lambda target_row, draft_row, weight=1: target_row.copy())
    assert all(error > 0 for error in errors(rule, three_sampled))


@ratio_rules
def test_leniency(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    def lenient(weight: Any, target_prob: Any, draft_prob: Any) -> Any:
        return min(1, weight * target_prob / (Fraction(9, 10) * draft_prob))

    monkeypatch.setattr(chain, "capped_ratio", lenient)
    assert all(error > 0 for error in errors(rule, three_sampled))


class BlockMutant:
    """The block rule written out once more, with room for two public mistakes."""

    name, lossless, proposals = "block", True, frozenset({"sampled"})

    def __init__(self, stops_at_first_failure: bool = False, token_residual: bool = False) -> None:
        self.stops_at_first_failure, self.token_residual = stops_at_first_failure, token_residual

    def verify(self, draft: Draft, target_probs: Law, coins: Coins, position: int) -> Verdict:
        w = chain.block_weights(draft, target_probs)
        rests = [chain.residual(target_probs[i], draft.draft_probs[i], w[i]) for i in range(len(draft))]
        chances = [chain.stop_chance(w[i], rests[i].sum()) for i in range(len(draft))] + [w[-1]]
        kept = 0
        for i in range(1, len(draft) + 1):
            if coins.bernoulli(chances[i]):
                kept = i
            elif self.stops_at_first_failure:
                break
        weight = 1 if self.token_residual else w[kept]
        full = kept == len(draft)
        law = target_probs[kept] if full else chain.residual(target_probs[kept], draft.draft_probs[kept], weight)
        next_law = law if law.any() else target_probs[kept]
        return Verdict(tuple(range(kept)), coins.categorical(next_law, position + kept))


def test_the_block_rule_written_out_without_a_mistake_is_exact() -> None:
    assert errors(BlockMutant(), three_sampled) == [0] * len(SEEDS)


def test_a_block_rule_that_stops_at_the_first_failure() -> None:
    assert all(error > 0 for error in errors(BlockMutant(stops_at_first_failure=True), three_sampled))


def test_a_block_rule_with_the_token_rules_residual() -> None:
    # Four tokens, so that the residuals are seldom a single token, where both would agree.
    assert all(error > 0 for error in errors(BlockMutant(token_residual=True), three_sampled, vocab=4))


class NotStrict(RandomCoins):
    """Accepts at u <= a."""

    def bernoulli(self, probability: Any) -> bool:
        return self.accept.random() <= probability


@ratio_rules
def test_an_acceptance_test_that_is_not_strict(rule: Rule) -> None:
    """With u in {0, 1/4, 1/2, 3/4} a token that the target excludes is kept one time in four."""
    target, draft = (np.array(row, dtype=np.float32) for row in ([0.5, 0.5, 0, 0], [0.25, 0.25, 0.25, 0.25]))

    def error(coins_type: type[RandomCoins]) -> Fraction:
        def dice(coins: BranchingCoins) -> Coins:
            return coins_type(GridUniform(coins, 4), GridUniform(coins, 4))

        return law_error(rule, sampled_chain(lambda prefix: draft, 1), lambda prefix: target, dice=dice)

    assert error(RandomCoins) == 0
    assert error(NotStrict) == Fraction(1, 8)


def greedy_called_sampled(draft: ToyModel) -> Propose:
    """Takes the likeliest token and hands over the softmax as if the token had been drawn from it."""
    tokens = likeliest(draft, 2)
    rows = np.stack([draft(tokens[:i]) for i in range(2)])
    return lambda coins: Draft.chain(tokens, rows)


@ratio_rules
def test_a_softmax_ratio_on_a_greedy_draft(rule: Rule) -> None:
    assert all(error > 0 for error in errors(rule, greedy_called_sampled))
    assert errors(RULES["point-mass"], greedy_called_sampled) == [0] * len(SEEDS)


@ratio_rules
def test_a_softmax_ratio_on_a_greedy_draft_has_the_bias_that_was_reported(rule: Rule) -> None:
    draft = Draft.chain([0], np.stack([context_free(".6", ".3", ".1")(())]))
    law = emitted_law(rule, lambda coins: draft, context_free(".5", ".3", ".2"))
    first = [sum(p for tokens, p in law.items() if tokens[0] == token) for token in range(3)]
    assert first == [Fraction(5, 6), 0, Fraction(1, 6)]


def drops_unlikely(draft: ToyModel) -> Propose:
    """Draws a token and then ends the draft *before* it because the token is unlikely."""

    def propose(coins: Coins) -> Draft:
        tokens: tuple[int, ...] = ()
        while len(tokens) < 3:
            token = coins.categorical(draft(tokens), POSITION + len(tokens))
            if draft(tokens)[token] < Fraction(2, 5):
                break
            tokens = (*tokens, token)
        return Draft.chain(tokens, np.stack([draft(tokens[:i]) for i in range(len(tokens))]) if tokens else None)

    return propose


@ratio_rules
def test_dropping_an_unlikely_token_after_it_was_drawn(rule: Rule) -> None:
    assert all(error > 0 for error in errors(rule, drops_unlikely))
    assert errors(RULES["point-mass"], drops_unlikely) == [0] * len(SEEDS)


def draws_after_top_p(draft: ToyModel) -> Propose:
    """Draws from the two likeliest tokens of three, but hands over the law before that cut."""

    def cut(prefix: tuple[int, ...]) -> Law:
        row = draft(prefix).copy()
        row[row.tolist().index(min(row))] = Fraction(0)
        return row / row.sum()

    def propose(coins: Coins) -> Draft:
        chain_of_cut = sampled_chain(cut, 2)(coins)
        return Draft.chain(chain_of_cut.tokens, np.stack([draft(chain_of_cut.tokens[:i]) for i in range(2)]))

    return propose


@ratio_rules
def test_draft_probs_from_before_top_p(rule: Rule) -> None:
    assert all(error > 0 for error in errors(rule, draws_after_top_p))


def test_the_rules_that_call_themselves_lossy_are() -> None:
    lossy = [rule for rule in RULES.values() if not rule.lossless]
    assert [rule.name for rule in lossy] == ["typical"]
    for rule in lossy:
        assert all(error > 0 for error in errors(rule, three_sampled))
