"""Token limits and context limits: exactly reached, never passed, whatever is drafted."""

from __future__ import annotations

from itertools import pairwise

import pytest

from engine_runs import DRAFTERS_AND_RULES, all_drafters, decode, draft_model, finish, new_tokens, toy_engine
from outrider.drafters import ModelDrafter, NgramDrafter
from outrider.errors import InvalidOption
from toy import ScriptedDrafter, TableModel, random_laws, rule_law

V, CONTEXT = 8, 128
LAW = random_laws(V, seed=7, sharpness=3)
TARGET = TableModel(V, order=2, law=LAW, context_length=CONTEXT)
PROMPT = [3, 4, 1]


def reasons(rounds):
    return [r.finish_reason for r in rounds]


@pytest.mark.parametrize("k", [0, 1, 4, 50, None])
@pytest.mark.parametrize(("drafter", "rule"), DRAFTERS_AND_RULES)
def test_exactly_as_many_tokens_as_asked_for(drafter, rule, k):
    # Known faults 2, 11 and 50.
    baseline = TARGET.greedy(PROMPT, 12)
    engine = toy_engine(TARGET, all_drafters(TARGET, 1, [*PROMPT, *baseline])[drafter](), rule, k)
    for limit in range(1, 13):
        sequence = engine.add(PROMPT, max_new_tokens=limit)
        (rounds,) = finish(engine).values()
        assert new_tokens(sequence) == baseline[:limit]
        assert reasons(rounds) == [None] * (len(rounds) - 1) + ["length"]
        left = limit
        for r in rounds:
            assert r.num_drafted <= min(left - 1, 50 if k is None else k)
            left -= len(r.token_ids)


@pytest.mark.parametrize("k", [1, 3, 8, 50])
@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_prompt_lookup_keeps_to_the_limit_on_the_prompt_that_was_reported(k, limit):
    # Known fault 2: the last three ids repeat the first three, and the target repeats what followed them.
    prompt = [3, 4, 9, 2, 7, 20, 3, 4, 9]
    follows = dict(pairwise(prompt)) | {9: 2}
    target = TableModel(24, order=1, law=rule_law(24, lambda context: follows[context[-1]]))
    assert decode(toy_engine(target, NgramDrafter(), k=k), prompt, max_new_tokens=limit) == [2, 7, 20, 3][:limit]


@pytest.mark.parametrize("k", [1, 7])
def test_drafts_are_as_long_as_asked_for(k):
    # Known fault 22.
    engine = toy_engine(TARGET, ScriptedDrafter([[*PROMPT, *TARGET.greedy(PROMPT, 40)]], V), k=k)
    engine.add(PROMPT, max_new_tokens=40)
    (rounds,) = finish(engine).values()
    assert {r.num_drafted for r in rounds[:-1]} == {k}


def test_with_one_token_left_the_round_is_a_plain_step():
    engine = toy_engine(TARGET, ScriptedDrafter([[*PROMPT, *TARGET.greedy(PROMPT, 12)]], V), k=5)
    engine.add(PROMPT, max_new_tokens=7)
    (rounds,) = finish(engine).values()
    assert [(r.num_drafted, len(r.token_ids)) for r in rounds] == [(5, 6), (0, 1)]


def test_no_limit_means_until_the_context_ends():
    engine = toy_engine(TARGET, NgramDrafter(), k=5)
    sequence = engine.add(PROMPT, max_new_tokens=None)
    (rounds,) = finish(engine).values()
    assert len(sequence.tokens) == CONTEXT
    assert new_tokens(sequence) == TARGET.greedy(PROMPT, CONTEXT - 3)
    assert rounds[-1].finish_reason == "length"


@pytest.mark.parametrize("k", [0, 1, 5, 64])
@pytest.mark.parametrize(("drafter", "rule"), DRAFTERS_AND_RULES)
def test_the_context_is_filled_to_its_last_token(drafter, rule, k):
    # Known fault 20.
    for length, room in ((120, 8), (126, 2), (127, 1)):
        prompt = [(token * token) % V for token in range(length)]
        baseline = TARGET.greedy(prompt, room)
        engine = toy_engine(TARGET, all_drafters(TARGET, 1, [*prompt, *baseline])[drafter](), rule, k)
        sequence = engine.add(prompt, max_new_tokens=50)
        (rounds,) = finish(engine).values()
        assert new_tokens(sequence) == baseline
        assert rounds[-1].finish_reason == "length"


@pytest.mark.parametrize("length", [128, 129, 1000])
def test_a_prompt_that_fills_the_context_is_refused(length):
    engine = toy_engine(TARGET)
    with pytest.raises(InvalidOption, match=f"prompt is '{length} tokens'; allowed: fewer than the context of 128"):
        engine.add([0] * length)
    assert engine.num_unfinished == 0


def test_an_engine_may_have_a_shorter_context_than_its_target():
    engine = toy_engine(TARGET, NgramDrafter(), context_length=10)
    sequence = engine.add(PROMPT)
    (rounds,) = finish(engine).values()
    assert new_tokens(sequence) == TARGET.greedy(PROMPT, 7)
    assert rounds[-1].finish_reason == "length"
    with pytest.raises(InvalidOption, match="fewer than the context of 10"):
        engine.add([0] * 10)


@pytest.mark.parametrize("prompt_length", [20, 31, 32, 33, 60])
def test_past_the_drafts_context_plain_decoding_goes_on(prompt_length):
    # Known faults 20 and 52: the draft's context is 32, the target's 128.
    prompt = [token % V for token in range(prompt_length)]
    model = TableModel(V, order=2, law=LAW, context_length=32)
    drafter = ModelDrafter(model, 1)
    engine = toy_engine(TARGET, drafter, k=5)
    sequence = engine.add(prompt, max_new_tokens=60)
    (rounds,) = finish(engine).values()
    assert new_tokens(sequence) == TARGET.greedy(prompt, 60)
    total, plain_rounds = prompt_length, 0
    for r in rounds:
        if total > 32:
            assert r.num_drafted == 0
            plain_rounds += total + 1 < prompt_length + 60  # in the last round there is no room for a draft
        total += len(r.token_ids)
    assert drafter.num_past_context == plain_rounds > 0
    forwards = model.num_forwards
    decode(engine, [0] * 40, max_new_tokens=10)
    assert model.num_forwards == forwards


def test_past_the_drafts_context_a_batch_drafts_for_the_others():
    model = TableModel(V, order=2, law=LAW, context_length=32)
    engine = toy_engine(TARGET, ModelDrafter(model, 2), k=3, slots=2)
    long, short = engine.add([1] * 40, max_new_tokens=12), engine.add(PROMPT, max_new_tokens=12)
    rounds = finish(engine)
    assert new_tokens(long) == TARGET.greedy([1] * 40, 12)
    assert new_tokens(short) == TARGET.greedy(PROMPT, 12)
    assert sum(r.num_drafted for r in rounds[long]) == 0 < sum(r.num_drafted for r in rounds[short])


# ---------------------------------------------------------------- invariant mode


@pytest.mark.parametrize("k", [0, 1, 4, 15])
def test_fixed_width_forwards_give_the_same_text_up_to_the_end_of_the_context(k):
    drafter = ModelDrafter(draft_model(TARGET), 2)
    engine = toy_engine(TARGET, drafter, k=k, slots=2, invariant=True)
    prompts = [PROMPT, [1, 2] * 60]
    sequences = [engine.add(prompt) for prompt in prompts]
    rounds = finish(engine)
    for sequence, prompt in zip(sequences, prompts, strict=True):
        assert new_tokens(sequence) == TARGET.greedy(prompt, CONTEXT - len(prompt))
        assert rounds[sequence][-1].finish_reason == "length"


def test_a_draft_wider_than_a_fixed_width_forward_is_never_asked_for():
    engine = toy_engine(TARGET, NgramDrafter(), k=64, invariant=True)
    sequence = engine.add(PROMPT, max_new_tokens=100)
    (rounds,) = finish(engine).values()
    assert new_tokens(sequence) == TARGET.greedy(PROMPT, 100)
    assert max(r.num_drafted for r in rounds) <= 15
