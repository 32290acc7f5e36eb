"""Log-probabilities: one entry per emitted token, accepted or next, and the same as without drafts."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from engine_runs import DRAFTERS_AND_RULES, all_drafters, finish, toy_engine
from outrider.options import Sampling
from toy import ScriptedDrafter, TableModel, random_laws

V, PROMPT, LENGTH = 7, [1, 2, 1], 16
TARGET = TableModel(V, order=3, law=random_laws(V, seed=10, sharpness=2))


def expected_of(tokens, temperature):
    """From the literal law of the last token's context: its own log-probability, and all of them, best first."""
    law = TARGET.law(tokens[:-1]) ** (1 / (temperature or 1))
    log_probs = np.log(law / law.sum())
    return log_probs[tokens[-1]], np.sort(log_probs)[::-1], np.argsort(-log_probs, kind="stable")


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(("drafter", "rule"), DRAFTERS_AND_RULES)
def test_each_emitted_token_has_the_log_probabilities_of_plain_decoding(drafter, rule, temperature):
    # Known fault 15.
    make = all_drafters(TARGET, 2, [*PROMPT, *TARGET.greedy(PROMPT, LENGTH)])[drafter]
    engine = toy_engine(TARGET, make(), rule, k=3, slots=2)
    sampling = Sampling(temperature=temperature, logprobs=4)
    for seed in range(6):
        engine.add(PROMPT, sampling=sampling, seed=seed, max_new_tokens=LENGTH)
    kinds = set()
    for sequence, rounds in finish(engine).items():
        entries = [entry for r in rounds for entry in r.logprobs]
        assert len(entries) == sequence.num_new_tokens == LENGTH
        for place, entry in enumerate(entries, start=len(PROMPT) + 1):
            chosen, best, ids = expected_of(sequence.tokens[:place], temperature)
            assert entry.chosen == pytest.approx(chosen, abs=1e-5)
            assert [i for i, _ in entry.top] == ids[:4].tolist()
            assert [value for _, value in entry.top] == pytest.approx(best[:4], abs=1e-5)
        kinds |= {"accepted" if i < r.num_accepted else "next" for r in rounds for i in range(len(r.token_ids))}
    assert kinds == ({"next"} if drafter == "none" else {"accepted", "next"})


def test_a_row_off_by_one_would_be_seen():
    # Negative control: neighbouring rows do not have the same log-probabilities.
    tokens = [*PROMPT, *TARGET.greedy(PROMPT, LENGTH)]
    chosen = [expected_of(tokens[:place], 0.8)[0] for place in range(len(PROMPT) + 1, len(tokens) + 1)]
    assert max(abs(a - b) for a, b in pairwise(chosen)) > 0.1


@pytest.mark.parametrize(("asked", "num_top"), [(0, 0), (1, 1), (V, V)])
def test_as_many_likeliest_tokens_as_asked_for(asked, num_top):
    engine = toy_engine(TARGET, ScriptedDrafter([[*PROMPT, *TARGET.greedy(PROMPT, 9)]], V), k=3)
    engine.add(PROMPT, sampling=Sampling(logprobs=asked), max_new_tokens=9)
    (rounds,) = finish(engine).values()
    assert [len(entry.top) for r in rounds for entry in r.logprobs] == [num_top] * 9


def test_without_asking_there_are_none():
    engine = toy_engine(TARGET)
    engine.add(PROMPT, max_new_tokens=3)
    (rounds,) = finish(engine).values()
    assert [r.logprobs for r in rounds] == [()] * 3


def test_a_stop_inside_a_block_cuts_the_log_probabilities_too():
    baseline = TARGET.greedy(PROMPT, 12)
    engine = toy_engine(TARGET, ScriptedDrafter([[*PROMPT, *baseline]], V), k=6)
    for i in (place for place in range(12) if baseline[place] not in baseline[:place]):
        engine.add(PROMPT, sampling=Sampling(logprobs=2), stop_ids=[baseline[i]], max_new_tokens=12)
        (rounds,) = finish(engine).values()
        assert sum(len(r.logprobs) for r in rounds) == i + 1
