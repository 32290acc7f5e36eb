"""Stop tokens: wherever in a block they fall, whoever proposes them, nothing comes after them."""

from __future__ import annotations

import numpy as np
import pytest

from engine_runs import DRAFTERS_AND_RULES, all_drafters, decode, draft_model, finish, new_tokens, plain, toy_engine
from outrider.core import Draft
from outrider.drafters import ModelDrafter, NgramDrafter
from outrider.options import Sampling
from outrider.rules import KeyedCoins
from toy import ScriptedDrafter, TableModel, random_laws, rule_law

V, PROMPT, LENGTH = 24, [3, 1], 24
TARGET = TableModel(V, order=2, law=random_laws(V, seed=6, sharpness=4))
BASELINE = TARGET.greedy(PROMPT, LENGTH)
PLACES = [i for i, token in enumerate(BASELINE) if token not in BASELINE[:i]]
"""Where a token occurs for the first time: declared a stop, it must end the text right there."""


@pytest.mark.parametrize("k", [0, 1, 2, 3, 6])
@pytest.mark.parametrize("right", [None, 0, 2])
def test_a_stop_token_ends_the_text_at_every_place_of_a_block(right, k):
    # Known faults 1 and 50.
    for i in PLACES:
        engine = toy_engine(TARGET, ScriptedDrafter([[*PROMPT, *BASELINE]], V, right), k=k)
        sequence = engine.add(PROMPT, stop_ids=[BASELINE[i]], max_new_tokens=LENGTH)
        (rounds,) = finish(engine).values()
        assert new_tokens(sequence) == BASELINE[: i + 1]
        assert [r.finish_reason for r in rounds] == [None] * (len(rounds) - 1) + ["stop"]
        assert sum(len(r.token_ids) for r in rounds) == i + 1


def test_the_stops_above_fall_on_every_place_of_a_block():
    engine, seen = toy_engine(TARGET, ScriptedDrafter([[*PROMPT, *BASELINE]], V), k=3), set()
    for i in PLACES:
        engine.add(PROMPT, stop_ids=[BASELINE[i]], max_new_tokens=LENGTH)
        (rounds,) = finish(engine).values()
        seen.add(["first", "middle", "last", "next"][len(rounds[-1].token_ids) - 1])
    assert seen == {"first", "middle", "last", "next"}


@pytest.mark.parametrize(("drafter", "rule"), DRAFTERS_AND_RULES)
def test_every_drafter_and_rule_stops_where_plain_decoding_does(drafter, rule):
    make = all_drafters(TARGET, 1, [*PROMPT, *BASELINE])[drafter]
    engine = toy_engine(TARGET, make(), rule, k=5)
    for i in PLACES:
        assert decode(engine, PROMPT, stop_ids=[BASELINE[i]], max_new_tokens=LENGTH) == BASELINE[: i + 1]


def test_one_of_several_stop_tokens_is_enough_and_the_earliest_wins():
    first, second = PLACES[3], PLACES[5]
    engine = toy_engine(TARGET, ScriptedDrafter([[*PROMPT, *BASELINE]], V), k=8)
    for stop_ids in ([BASELINE[second], BASELINE[first]], {BASELINE[first], BASELINE[second]}, (BASELINE[first],)):
        assert decode(engine, PROMPT, stop_ids=stop_ids, max_new_tokens=LENGTH) == BASELINE[: first + 1]


def test_without_stop_tokens_nothing_stops():
    engine = toy_engine(TARGET, ScriptedDrafter([[*PROMPT, *BASELINE]], V), k=8)
    assert decode(engine, PROMPT, max_new_tokens=LENGTH) == BASELINE


def test_a_stop_token_in_the_prompt_stops_nothing():
    engine = toy_engine(TARGET, NgramDrafter(), k=4)
    absent = next(token for token in range(V) if token not in BASELINE)
    prompt = [absent, *PROMPT]
    assert decode(engine, prompt, stop_ids=[absent], max_new_tokens=LENGTH) == BASELINE


def test_a_stop_token_at_the_limit_is_a_stop():
    engine = toy_engine(TARGET, ScriptedDrafter([[*PROMPT, *BASELINE]], V), k=8)
    for i in PLACES:
        engine.add(PROMPT, stop_ids=[BASELINE[i]], max_new_tokens=i + 1)
        (rounds,) = finish(engine).values()
        assert rounds[-1].finish_reason == "stop"


@pytest.mark.parametrize("j", range(5))
def test_a_draft_that_proposes_a_stop_wrongly_is_refused_there_and_the_rounds_go_on(j):
    # Known fault 58: the draft says stop at its token j, the target does not.
    stop = next(token for token in range(V) if token not in BASELINE)

    class SaysStop(ScriptedDrafter):
        def _propose(self, tokens, budget):
            right = list(super()._propose(tokens, budget).tokens)
            return Draft.chain([*right[:j], stop, *right[j + 1 :]][:budget])

    engine = toy_engine(TARGET, SaysStop([[*PROMPT, *BASELINE]], V), k=5)
    sequence = engine.add(PROMPT, stop_ids=[stop], max_new_tokens=LENGTH)
    (rounds,) = finish(engine).values()
    assert new_tokens(sequence) == BASELINE
    assert {r.num_drafted for r in rounds[:3]} == {j + 1}
    assert {r.num_accepted for r in rounds[:3]} == {j}


def test_prompt_lookup_does_not_copy_past_a_stop():
    # Known fault 12: prompt "a b STOP c a" with 1-grams continues "b STOP", and an empty rest is no error.
    a, b, c, stop = 0, 1, 2, 3
    follows = {a: b, b: stop, stop: c, c: a}
    target = TableModel(4, order=1, law=rule_law(4, lambda context: follows[context[-1]]))
    for prompt, expected in (([a, b, stop, c, a], [b, stop]), ([a, b, stop, c, a, b], [stop])):
        engine = toy_engine(target, NgramDrafter(1, 1), k=4)
        engine.add(prompt, stop_ids=[stop], max_new_tokens=10)
        (rounds,) = finish(engine).values()
        assert [list(r.token_ids) for r in rounds] == [expected]
        assert (rounds[0].num_drafted, rounds[0].num_accepted) == (len(expected), len(expected))


# ---------------------------------------------------------------- a minimum of new tokens


@pytest.mark.parametrize(("drafter", "rule"), DRAFTERS_AND_RULES)
def test_no_stop_token_comes_before_the_minimum(drafter, rule):
    # Known fault 51: the greedy text stops early, and several ids are stops.
    sampling, stop_ids = Sampling(min_new_tokens=10), [BASELINE[3], BASELINE[PLACES[-1]], BASELINE[0]]
    expected = plain(TARGET, PROMPT, LENGTH, sampling=sampling, stop_ids=stop_ids)
    assert set(expected[:10]).isdisjoint(stop_ids)
    for k in (1, 4, 12):
        drafter_now = all_drafters(TARGET, 1, [*PROMPT, *BASELINE])[drafter]()
        engine = toy_engine(TARGET, drafter_now, rule, k)
        assert decode(engine, PROMPT, sampling=sampling, stop_ids=stop_ids, max_new_tokens=LENGTH) == expected


def test_the_minimum_counts_drafted_tokens_and_allows_the_stop_right_after_it():
    favours_7 = np.full(V, 0.1 / (V - 1))
    favours_7[7] = 0.9
    target = TableModel(V, order=1, law=lambda context: favours_7)
    for minimum in range(1, 7):
        for k in (0, 2, 5):
            engine = toy_engine(target, ModelDrafter(draft_model(target), 1), k=k)
            stopped = decode(engine, [1], sampling=Sampling(min_new_tokens=minimum), stop_ids=[7], max_new_tokens=20)
            assert stopped.index(7) == len(stopped) - 1 == minimum


def test_sampled_texts_stop_where_coupled_plain_decoding_does():
    sampling, stop_ids = Sampling(temperature=1.0, min_new_tokens=2), [0, 5, 9]
    for seed in range(10):
        expected = plain(TARGET, PROMPT, LENGTH, sampling=sampling, stop_ids=stop_ids, coins=KeyedCoins(seed))
        engine = toy_engine(TARGET, ModelDrafter(draft_model(TARGET), 1), "coupled", 4)
        options = {"sampling": sampling, "seed": seed, "stop_ids": stop_ids, "max_new_tokens": LENGTH}
        assert decode(engine, PROMPT, **options) == expected
