"""Negative controls: faults planted in a drafter, a rule or the engine, which the test of the law must catch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from engine_runs import LIMIT, DrawsFromOneLaw, draft_model, toy_engine
from outrider import engine as engine_module
from outrider import tree
from outrider.core import Draft
from outrider.drafters import ModelDrafter
from outrider.engine import Engine
from outrider.rules import RandomCoins, chain, streams
from test_engine_law import TARGET, count, make

ratio_rules = pytest.mark.parametrize("rule", ["token", "block"])
SLOTS = 5


def p_of(drafter, rule, setting="temperature 1", engine_of=toy_engine):
    return count(drafter, rule, SLOTS, setting, engine_of=engine_of)[0]


class Meddler(DrawsFromOneLaw):
    """A sampling drafter with something done to each draft."""

    def __init__(self, meddle):
        super().__init__(np.array([0.3, 0.5, 0.2]))
        self.meddle = meddle

    def _propose(self, sequence, budget):
        draft = super()._propose(sequence, budget)
        return self.meddle(draft) if len(draft) else draft


def unchanged(draft):
    return draft


def of_another_temperature(draft):
    warmer = draft.draft_probs**0.25
    return replace(draft, draft_probs=warmer / warmer.sum(-1, keepdims=True))


def without_its_unlikely_end(draft):
    """Drops a token after it was drawn, because it is unlikely."""
    likely = [draft.draft_probs[i, token] > 0.4 for i, token in enumerate(draft.tokens)]
    kept = likely.index(False) if False in likely else len(draft)
    return Draft.chain(draft.tokens[:kept], draft.draft_probs[:kept])


@ratio_rules
@pytest.mark.parametrize("setting", ["temperature 1", "penalties"])
def test_without_a_planted_fault_the_same_check_passes(rule, setting):
    assert p_of(Meddler(unchanged), rule, setting) > LIMIT


@ratio_rules
@pytest.mark.parametrize("meddle", [of_another_temperature, without_its_unlikely_end])
def test_draft_probs_that_are_not_the_law_drawn_from(rule, meddle):
    assert p_of(Meddler(meddle), rule) < LIMIT


class ReportsTheLawBeforeTopP(DrawsFromOneLaw):
    """Draws from the two likeliest tokens, and hands over the law before that cut."""

    def _propose(self, sequence, budget):
        before, self.law = self.law, np.where(self.law < 0.2, 0, self.law)
        draft = super()._propose(sequence, budget)
        self.law = before
        return replace(draft, draft_probs=np.tile(before, (budget, 1)))


@ratio_rules
def test_draft_probs_from_before_top_p(rule):
    law = np.array([0.35, 0.5, 0.15])
    assert p_of(DrawsFromOneLaw(law), rule, "top-p") > LIMIT
    assert p_of(ReportsTheLawBeforeTopP(law), rule, "top-p") < LIMIT


class CallsItsGreedyDraftSampled(ModelDrafter):
    """Takes the likeliest token and hands over the law as if it had been drawn from it."""

    def propose(self, sequences, budgets):
        drafts = super().propose(sequences, [min(budget, 1) for budget in budgets])
        likeliest = [tuple(draft.draft_probs.argmax(-1).tolist()) for draft in drafts]
        return [replace(draft, tokens=tokens) for draft, tokens in zip(drafts, likeliest, strict=True)]


@ratio_rules
def test_a_greedy_draft_called_sampled(rule):
    assert p_of(CallsItsGreedyDraftSampled(draft_model(TARGET), SLOTS), rule) < LIMIT


def test_a_greedy_draft_called_sampled_does_no_harm_to_the_point_mass_rule():
    assert p_of(CallsItsGreedyDraftSampled(draft_model(TARGET), SLOTS), "point-mass") > LIMIT


@pytest.mark.parametrize("rule", ["token", "block", "point-mass"])
def test_a_random_stream_shared_by_draft_and_acceptance(rule, monkeypatch):
    def shared(seed, coupled):
        draft, accept, next_token = (np.random.default_rng([seed, stream]) for stream in (0, 0, 1))
        return RandomCoins(draft, draft), RandomCoins(accept, next_token)

    monkeypatch.setattr(engine_module, "streams", shared)
    assert p_of(Meddler(unchanged), rule) < LIMIT


def test_streams_that_start_again_with_every_round():
    class Forgetful(Engine):
        def _decide(self, sequence, draft, logits):
            sequence.verify_coins = streams(sequence.id, coupled=False)[1]
            return super()._decide(sequence, draft, logits)

    def engine_of(target, drafter, rule, k, **options):
        made = toy_engine(target, drafter, rule, k, **options)
        made.__class__ = Forgetful
        return made

    assert p_of(make("none", SLOTS), "point-mass", engine_of=engine_of) < LIMIT


@ratio_rules
def test_the_next_token_drawn_from_the_targets_law_after_a_refusal(rule, monkeypatch):
    monkeypatch.setattr(chain, "residual", lambda target_row, draft_row, weight=1: target_row.astype(float))
    assert p_of(Meddler(unchanged), rule) < LIMIT


@pytest.mark.parametrize("rule", ["token", "block", "point-mass", "coupled"])
def test_a_target_row_off_by_one(rule):
    class OffByOne(Engine):
        def _forward(self, ready, drafts):
            outputs = super()._forward(ready, drafts)
            return [replace(o, logits=torch.cat([o.logits[:1], o.logits[:-1]])) for o in outputs]

    def engine_of(target, drafter, rule, k, **options):
        made = toy_engine(target, drafter, rule, k, **options)
        made.__class__ = OffByOne
        return made

    assert p_of(Meddler(unchanged), rule, engine_of=engine_of) < LIMIT


@pytest.mark.parametrize("rule", ["token", "block", "point-mass", "coupled"])
def test_a_stale_penalty_history(rule, monkeypatch):
    monkeypatch.setattr(tree, "paths", lambda tokens, parents: [()] * (len(tokens) + 1))
    assert p_of(Meddler(unchanged), rule, "penalties") < LIMIT
