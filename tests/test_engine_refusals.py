"""Requests and engines that make no sense: refused with a reason, and nothing is left behind."""

from __future__ import annotations

import pytest

from engine_runs import decode, finish, new_tokens, toy_engine
from outrider.drafters import NgramDrafter
from outrider.errors import InvalidOption
from outrider.options import Sampling
from toy import TableModel, random_laws

V = 6
TARGET = TableModel(V, order=3, law=random_laws(V, seed=9, sharpness=2))


BAD_REQUESTS = {
    "an empty prompt": {"prompt": []},
    "a prompt as long as the context": {"prompt": [0] * 16},
    "an id too large": {"prompt": [1, V]},
    "a negative id": {"prompt": [-1]},
    "a fractional id": {"prompt": [1.0]},
    "a true id": {"prompt": [True]},
    "a string for ids": {"prompt": "ab"},
    "a nested prompt": {"prompt": [[1, 2]]},
    "no prompt": {"prompt": None},
    "a number for a prompt": {"prompt": 5},
    "a limit of 0": {"max_new_tokens": 0},
    "a negative limit": {"max_new_tokens": -1},
    "a true limit": {"max_new_tokens": True},
    "a fractional limit": {"max_new_tokens": 1.5},
    "a limit in words": {"max_new_tokens": "5"},
    "one stop id": {"stop_ids": 5},
    "a negative stop id": {"stop_ids": [-1]},
    "a fractional stop id": {"stop_ids": [1.5]},
    "a stop id in words": {"stop_ids": ["end"]},
    "a stop string for stop ids": {"stop_ids": "end"},
    "a nested stop id": {"stop_ids": [[1]]},
    "a negative seed": {"seed": -1},
    "a fractional seed": {"seed": 1.5},
    "a seed in words": {"seed": "7"},
    "a true seed": {"seed": True},
    "no temperature": {"sampling": Sampling(temperature=None)},
    "a temperature that is no number": {"sampling": Sampling(temperature=float("nan"))},
    "an endless temperature": {"sampling": Sampling(temperature=float("inf"))},
    "a negative temperature": {"sampling": Sampling(temperature=-0.1)},
    "top_k 0": {"sampling": Sampling(top_k=0)},
    "top_k beyond the vocabulary": {"sampling": Sampling(top_k=V + 1)},
    "top_p 0": {"sampling": Sampling(top_p=0.0)},
    "top_p above 1": {"sampling": Sampling(top_p=1.1)},
    "min_p above 1": {"sampling": Sampling(min_p=1.5)},
    "repetition_penalty 0": {"sampling": Sampling(repetition_penalty=0.0)},
    "a bias for an unknown id": {"sampling": Sampling(logit_bias={V: 1.0})},
    "no bias": {"sampling": Sampling(logit_bias=None)},
    "an endless bias": {"sampling": Sampling(logit_bias={0: float("inf")})},
    "a ban of an unknown id": {"sampling": Sampling(banned_ids=frozenset({V}))},
    "no bans": {"sampling": Sampling(banned_ids=None)},
    "a ban of everything": {"sampling": Sampling(banned_ids=frozenset(range(V)))},
    "a negative minimum": {"sampling": Sampling(min_new_tokens=-1)},
    "a processor that cannot be called": {"sampling": Sampling(processor=5)},
    "too many logprobs": {"sampling": Sampling(logprobs=V + 1)},
    "a dict for sampling": {"sampling": {"temperature": 1.0}},
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_a_bad_request_is_refused_and_leaves_nothing_behind(name):
    engine = toy_engine(TARGET, NgramDrafter(), context_length=16)
    running = engine.add([1, 2], max_new_tokens=6)
    engine.step()
    with pytest.raises(InvalidOption, match="allowed: "):
        engine.add(**{"prompt": [1, 2], **BAD_REQUESTS[name]})
    assert engine.num_unfinished == 1
    finish(engine)
    assert new_tokens(running) == TARGET.greedy([1, 2], 6)
    assert decode(engine, [3], max_new_tokens=4) == TARGET.greedy([3], 4)


@pytest.mark.parametrize(
    "options",
    [
        {"slots": 0},
        {"slots": True},
        {"slots": 1.5},
        {"slots": "2"},
        {"context_length": 1},
        {"context_length": 0},
        {"context_length": 5000},
        {"context_length": 8.5},
        {"context_length": True},
    ],
)
def test_a_bad_engine_is_refused(options):
    with pytest.raises(InvalidOption, match="allowed: "):
        toy_engine(TARGET, **options)


@pytest.mark.parametrize("name", ["temperature", "repetition_penalty", "presence_penalty", "frequency_penalty"])
def test_a_huge_whole_number_within_the_limits_decodes(name):
    sampling = Sampling(**{"temperature": 1.0, name: 2**70})
    assert len(decode(toy_engine(TARGET, NgramDrafter()), [1, 2], sampling=sampling, max_new_tokens=4)) == 4
