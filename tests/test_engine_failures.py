"""A failure stays where it belongs: a bad processor ends its own sequence, a failing target ends none."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine_runs import all_drafters, decode, finish, new_tokens, plain, toy_engine
from outrider.drafters import NgramDrafter
from outrider.errors import OutriderError, ProcessorError
from outrider.options import Sampling
from outrider.rules import KeyedCoins
from toy import ScriptedDrafter, TableModel, random_laws

V = 6
LAW = random_laws(V, seed=9, sharpness=2)
TARGET = TableModel(V, order=3, law=LAW)
WARM = Sampling(temperature=1.0)


# ---------------------------------------------------------------- processors


def raises(ids, logits):
    raise KeyError("lost")


def raises_at_length_6(ids, logits):
    if len(ids) == 6:
        raise KeyError("lost")
    return logits


BAD_PROCESSORS = {
    "raises": raises,
    "raises later": raises_at_length_6,
    "returns nothing": lambda ids, logits: None,
    "wrong shape": lambda ids, logits: logits[:-1],
    "a row too many": lambda ids, logits: logits[None],
    "whole numbers": lambda ids, logits: logits.long(),
    "a list": lambda ids, logits: logits.tolist(),
    "NaN": lambda ids, logits: logits * float("nan"),
    "forbids everything": lambda ids, logits: logits - torch.inf,
}


@pytest.mark.parametrize("name", BAD_PROCESSORS)
@pytest.mark.parametrize(("drafter", "rule"), [("scripted", "point-mass"), ("model", "block"), ("model", "coupled")])
def test_a_bad_processor_ends_its_own_sequence_with_an_error_and_no_other(name, drafter, rule):
    options = {"max_new_tokens": 10, "sampling": WARM, "seed": 3}
    make = all_drafters(TARGET, 3, [1, 2, *TARGET.greedy([1, 2], 10)])[drafter]
    alone = decode(toy_engine(TARGET, make(), rule), [1, 2], **options)
    engine = toy_engine(TARGET, make(), rule, slots=3)
    sound = engine.add([1, 2], **options)
    bad = engine.add([1, 2], **options | {"sampling": replace(WARM, processor=BAD_PROCESSORS[name])})
    also_sound = engine.add([1, 2], **options)
    rounds = finish(engine)
    assert new_tokens(sound) == new_tokens(also_sound) == alone
    last = rounds[bad][-1]
    assert (last.finish_reason, last.token_ids) == ("error", ())
    assert isinstance(last.error, ProcessorError)
    assert decode(engine, [1, 2], **options) == alone


@pytest.mark.parametrize("k", [0, 1, 4])
def test_what_was_emitted_before_a_processor_failed_stays(k):
    # A failure at a drafted position counts at once: it may come up to k tokens early, and never late.
    reference = TARGET.greedy([1, 2], 10)
    engine = toy_engine(TARGET, ScriptedDrafter([[1, 2, *reference]], V), k=k)
    sequence = engine.add([1, 2], sampling=Sampling(processor=raises_at_length_6))
    (rounds,) = finish(engine).values()
    assert (
        new_tokens(sequence) == [token for r in rounds for token in r.token_ids] == reference[: sequence.num_new_tokens]
    )
    assert 6 - k <= len(sequence.tokens) <= 6


def test_a_processor_that_needs_what_was_emitted_never_sees_what_was_not():
    # Its history is always prompt + emitted + accepted so far: an automaton that allows one way only.
    cycle = {0: 3, 3: 1, 1: 4, 4: 0}

    def follow(ids, logits):
        allowed = cycle[ids[-1]]  # a KeyError for any token off the cycle
        return torch.where(torch.arange(V) == allowed, logits, -torch.inf)

    # Known fault 27: drafts off the cycle are refused, whoever proposes them.
    for right in (None, 0, 2):
        engine = toy_engine(TARGET, ScriptedDrafter([[0, *[3, 1, 4, 0] * 5]], V, right), k=4)
        text = decode(engine, [0], sampling=Sampling(temperature=1.0, processor=follow), max_new_tokens=12, seed=1)
        assert text == [3, 1, 4, 0] * 3


def test_a_law_without_any_token_ends_its_own_sequence_with_an_error():
    # min_new_tokens forbids the one token that the bans leave.
    nothing_left = Sampling(banned_ids=frozenset(range(V)) - {2}, min_new_tokens=3)
    engine = toy_engine(TARGET, NgramDrafter(), slots=2)
    stuck = engine.add([1, 2], sampling=nothing_left, stop_ids=[2], max_new_tokens=9)
    sound = engine.add([1, 2], max_new_tokens=9)
    rounds = finish(engine)
    assert isinstance(rounds[stuck][-1].error, OutriderError)
    assert new_tokens(sound) == TARGET.greedy([1, 2], 9)


# ---------------------------------------------------------------- a target that fails


class Flaky(TableModel):
    """Its n-th forward raises."""

    fails_at = 0

    def forward(self, block, cache):
        self.fails_at -= 1
        if self.fails_at == 0:
            raise MemoryError("the machine is full")
        return super().forward(block, cache)


@pytest.mark.parametrize("fails_at", [1, 2, 3, 4])
def test_after_a_failing_target_the_same_requests_go_on_and_others_decode_right(fails_at):
    # The failure reaches whoever steps; nothing was committed, so the next step simply goes on.
    target = Flaky(V, order=None, law=LAW)
    expected = [target.greedy(prompt, 8) for prompt in ([1, 2, 3], [4, 5])]
    engine = toy_engine(target, NgramDrafter(), slots=2)
    sequences = [engine.add(prompt, max_new_tokens=8) for prompt in ([1, 2, 3], [4, 5])]
    target.fails_at = fails_at
    with pytest.raises(MemoryError, match="full"):
        finish(engine)
    finish(engine)
    assert [new_tokens(s) for s in sequences] == expected
    target.fails_at = fails_at
    victim = engine.add([1, 2, 3], max_new_tokens=8)
    with pytest.raises(MemoryError, match="full"):
        finish(engine)
    engine.cancel(victim)
    assert decode(engine, [4, 5], max_new_tokens=8) == expected[1]


def test_after_an_error_coupled_text_is_still_the_seeds_own():
    engine = toy_engine(TARGET, NgramDrafter(), "coupled")
    for seed in range(5):
        engine.add([1], sampling=replace(WARM, processor=raises_at_length_6), seed=seed)
        finish(engine)
        expected = plain(TARGET, [1, 2], 10, sampling=WARM, coins=KeyedCoins(seed))
        assert decode(engine, [1, 2], sampling=WARM, seed=seed, max_new_tokens=10) == expected
