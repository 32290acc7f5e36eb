"""Many requests at once: each decodes as if it were alone, joins and leaves at any round, and frees its slot."""

from __future__ import annotations

import random

import pytest

from engine_runs import (
    DRAFTERS_AND_RULES,
    LIMIT,
    all_drafters,
    decode,
    draft_model,
    finish,
    new_tokens,
    p_value,
    toy_engine,
)
from outrider import engine as engine_module
from outrider.drafters import ModelDrafter, NgramDrafter, SuffixDrafter
from outrider.errors import InvalidOption
from outrider.options import Sampling
from toy import ScriptedDrafter, TableModel, exact_string_law, random_laws

V = 6
LAW = random_laws(V, seed=8, sharpness=2)
TARGET = TableModel(V, order=3, law=LAW)
WARM = Sampling(temperature=1.0)
REQUESTS = [
    {"prompt": [0], "max_new_tokens": 9},
    {"prompt": [1, 2, 3, 1, 2], "max_new_tokens": 14, "sampling": WARM, "seed": 1},
    {"prompt": [5, 4], "max_new_tokens": 1, "sampling": WARM, "seed": 2},
    {"prompt": [1, 2, 3, 1, 2], "max_new_tokens": 6, "stop_ids": [0]},
    {"prompt": [2] * 9, "max_new_tokens": 12, "sampling": Sampling(temperature=0.7, top_p=0.9), "seed": 3},
    {"prompt": [3, 3], "max_new_tokens": 5, "sampling": Sampling(presence_penalty=0.5)},
    {"prompt": [4, 0, 4], "max_new_tokens": 11, "sampling": WARM, "seed": 1},
    {"prompt": [1, 2, 3, 1, 2], "max_new_tokens": 10, "sampling": WARM, "seed": 9},
]


def engine_with(drafter, rule="auto", slots=1, k=3):
    return toy_engine(
        TARGET, all_drafters(TARGET, slots, [0, *TARGET.greedy([0], 12)])[drafter](), rule, k, slots=slots
    )


@pytest.mark.parametrize(("drafter", "rule"), DRAFTERS_AND_RULES)
def test_every_request_decodes_as_if_it_were_alone(drafter, rule, monkeypatch):
    # Known faults 18, 24, 37, 57: 8 requests in 3 slots, joining at different rounds, seeded, greedy and mixed.
    alone = [decode(engine_with(drafter, rule), **request) for request in REQUESTS]
    monkeypatch.setattr(engine_module, "PREFILL_CHUNK", 3)
    engine, rng = engine_with(drafter, rule, slots=3), random.Random(drafter + rule)
    sequences = []
    for request in REQUESTS:
        sequences.append(engine.add(**request))
        for _ in range(rng.randrange(4)):
            engine.step()
    finish(engine)
    assert [new_tokens(s) for s in sequences] == alone


def test_requests_beyond_the_slots_wait_and_are_all_served_in_order():
    # Known faults 57 and 62: 12 requests, 4 slots.
    engine = toy_engine(TARGET, NgramDrafter(), slots=4)
    sequences = [engine.add([i % V], max_new_tokens=5) for i in range(12)]
    engine.step()
    assert [s.slot for s in sequences] == [0, 1, 2, 3] + [-1] * 8
    assert engine.num_unfinished == 12
    finish(engine)
    assert [new_tokens(s) for s in sequences] == [TARGET.greedy([i % V], 5) for i in range(12)]


def test_one_step_gives_one_round_per_running_sequence():
    engine = toy_engine(TARGET, slots=3)
    sequences = [engine.add([i], max_new_tokens=4) for i in range(3)]
    assert [r.sequence for r in engine.step()] == sequences


def test_a_step_without_requests_does_nothing():
    engine = toy_engine(TARGET)
    assert engine.step() == []
    assert engine.num_unfinished == 0


# ---------------------------------------------------------------- several samples of one prompt


@pytest.mark.parametrize("length", [1, 2, 9, 20])
def test_equal_prompts_share_one_prefill(length, monkeypatch):
    monkeypatch.setattr(engine_module, "PREFILL_CHUNK", 4)
    target = TableModel(V, order=None, law=LAW)
    prompt = [i % V for i in range(length)]
    engine = toy_engine(target, slots=3)
    sequences = [engine.add(prompt, sampling=WARM, seed=seed, max_new_tokens=5) for seed in range(3)]
    finish(engine)
    chunks = -(-(length - 1) // 4)
    assert target.num_forwards == chunks + 5
    for seed, sequence in enumerate(sequences):
        assert decode(toy_engine(target), prompt, sampling=WARM, seed=seed, max_new_tokens=5) == new_tokens(sequence)


def test_a_prompt_that_joins_later_copies_the_rows_of_the_one_that_runs():
    target = TableModel(V, order=None, law=LAW)
    prompt = [1, 2, 3, 4]
    engine = toy_engine(target, slots=2)
    first = engine.add(prompt, max_new_tokens=12)
    engine.step()
    engine.step()
    second = engine.add(prompt, max_new_tokens=12)
    finish(engine)
    assert new_tokens(first) == new_tokens(second) == target.greedy(prompt, 12)
    assert target.num_forwards == 1 + 12 + 2


def test_a_prompt_that_only_begins_alike_shares_nothing():
    target = TableModel(V, order=None, law=LAW)
    engine = toy_engine(target, slots=3)
    prompts = [[1, 2, 3, 4], [1, 2, 3], [1, 2, 3, 5]]
    sequences = [engine.add(prompt, max_new_tokens=6) for prompt in prompts]
    finish(engine)
    assert [new_tokens(s) for s in sequences] == [target.greedy(prompt, 6) for prompt in prompts]
    assert target.num_forwards == 3 + 6


def test_a_prefill_that_others_wait_for_may_be_cancelled(monkeypatch):
    monkeypatch.setattr(engine_module, "PREFILL_CHUNK", 2)
    target = TableModel(V, order=None, law=LAW)
    engine, prompt = toy_engine(target, slots=3), [1, 2, 3, 4, 5, 0, 1]
    first, *others = [engine.add(prompt, max_new_tokens=6) for _ in range(3)]
    engine.step()
    engine.cancel(first)
    finish(engine)
    assert [new_tokens(s) for s in others] == [target.greedy(prompt, 6)] * 2


# ---------------------------------------------------------------- cancelling


def test_cancelling_frees_the_slot_for_the_next_step():
    engine = toy_engine(TARGET, NgramDrafter(), slots=1)
    first, second, third = (engine.add([i], max_new_tokens=8) for i in range(3))
    engine.step()
    engine.cancel(first)
    emitted = list(first.tokens)
    engine.cancel(second)
    assert engine.num_unfinished == 1
    assert [r.sequence for r in engine.step()] == [third]
    finish(engine)
    assert new_tokens(third) == TARGET.greedy([2], 8)
    assert first.tokens == emitted
    assert second.slot == -1


def test_cancelling_twice_or_after_the_end_or_elsewhere_does_nothing():
    engine, other = toy_engine(TARGET, slots=1), toy_engine(TARGET, slots=1)
    ended = engine.add([0], max_new_tokens=1)
    finish(engine)
    running = engine.add([1], max_new_tokens=4)
    stranger = other.add([2], max_new_tokens=4)
    engine.step()
    for sequence in (ended, ended, stranger):
        engine.cancel(sequence)
    finish(engine)
    assert new_tokens(running) == TARGET.greedy([1], 4)
    engine.cancel(running)
    engine.cancel(running)
    assert (engine.num_unfinished, other.num_unfinished) == (0, 1)


@pytest.mark.parametrize(("drafter", "rule"), DRAFTERS_AND_RULES)
def test_cancelling_at_any_round_disturbs_nobody(drafter, rule):
    alone = [decode(engine_with(drafter, rule), **request) for request in REQUESTS]
    for when in (0, 1, 3):
        engine = engine_with(drafter, rule, slots=3)
        sequences = [engine.add(**request) for request in REQUESTS]
        for _ in range(when):
            engine.step()
        for sequence in sequences[::2]:
            engine.cancel(sequence)
        finish(engine)
        assert [new_tokens(s) for s in sequences[1::2]] == alone[1::2]


# ---------------------------------------------------------------- seeds


@pytest.mark.parametrize(("drafter", "rule"), DRAFTERS_AND_RULES)
def test_a_seed_fixes_the_text_and_another_seed_changes_it(drafter, rule):
    # Known fault 18: 42 twice and 43 once, with an unseeded request in between.
    engine = engine_with(drafter, rule)
    request = {"prompt": [1, 2], "sampling": Sampling(temperature=1.5), "max_new_tokens": 20}
    first = decode(engine, **request, seed=42)
    decode(engine, **request)
    assert decode(engine, **request, seed=42) == first
    assert decode(engine, **request, seed=43) != first


def test_without_a_seed_every_run_differs():
    engine = toy_engine(TARGET, NgramDrafter())
    texts = {tuple(decode(engine, [1, 2], sampling=WARM, max_new_tokens=30)) for _ in range(5)}
    assert len(texts) == 5


def test_an_unseeded_row_among_others_has_the_targets_law(monkeypatch):
    # Known fault 24: a seeded row, an unseeded one and a greedy one, together.
    monkeypatch.setattr(engine_module.secrets, "randbits", random.Random(0).getrandbits)
    target = TableModel(3, order=2, law=random_laws(3, seed=1, sharpness=3))
    engine = toy_engine(target, ModelDrafter(draft_model(target), 3), slots=3)
    for seed in range(300):
        engine.add([0, 1], sampling=WARM, seed=seed, max_new_tokens=3)
        engine.add([0, 1, 2], sampling=WARM, max_new_tokens=3)
        engine.add([1], max_new_tokens=3)
    texts = [(s.tokens[: s.prompt_length], tuple(new_tokens(s))) for s in finish(engine)]
    unseeded = [text for prompt, text in texts if prompt == [0, 1, 2]]
    counts = {text: unseeded.count(text) for text in set(unseeded)}
    assert p_value(counts, exact_string_law(target, [0, 1, 2], 3)) > LIMIT
    assert {text for prompt, text in texts if prompt == [1]} == {tuple(target.greedy([1], 3))}


def test_seeds_that_follow_each_other_are_independent():
    # n samples of a prompt take seed, seed + 1, ...: pairs of neighbours have the product law.
    target = TableModel(3, order=1, law=random_laws(3, seed=4))
    engine = toy_engine(target, slots=5)
    sequences = [engine.add([0], sampling=WARM, seed=seed, max_new_tokens=1) for seed in range(2000)]
    finish(engine)
    tokens = [s.tokens[-1] for s in sequences]
    pairs = list(zip(tokens[::2], tokens[1::2], strict=True))
    law = target.law([0])
    product = {(a, b): float(law[a] * law[b]) for a in range(3) for b in range(3)}
    assert p_value({pair: pairs.count(pair) for pair in set(pairs)}, product) > LIMIT


# ---------------------------------------------------------------- one engine, many requests in a row


@pytest.mark.parametrize("drafter", ["ngram", "suffix", "model"])
def test_a_drafter_keeps_nothing_of_an_earlier_request(drafter):
    # Known faults 43 and 56: long prompt, short prompt, the long one again; and 30 fresh engines.
    long, short = [1, 2, 3, 4] * 12, [1, 2]
    options = {"sampling": WARM, "seed": 5, "max_new_tokens": 15}

    def rounds_of(engine, prompt):
        engine.add(prompt, **options)
        (rounds,) = finish(engine).values()
        return [(r.token_ids, r.num_drafted, r.num_accepted) for r in rounds]

    fresh = {tuple(p): rounds_of(engine_with(drafter), p) for p in (long, short)}
    engine = engine_with(drafter)
    for prompt in (long, short, long, short, short):
        assert rounds_of(engine, prompt) == fresh[tuple(prompt)]
    assert all(rounds_of(engine_with(drafter), short) == fresh[tuple(short)] for _ in range(30))


def test_adaptive_draft_lengths_start_afresh_with_each_request_and_do_not_mix():
    # Known fault 41: one request whose drafts are all right beside one whose drafts are all wrong.
    class HalfRight(ScriptedDrafter):
        def _propose(self, tokens, budget):
            self.right = 0 if tokens[0] == 5 else None
            return super()._propose(tokens, budget)

    prompts = [[0, 1], [5, 1]]
    drafter = HalfRight([[*p, *TARGET.greedy(p, 80)] for p in prompts], V)
    engine = toy_engine(TARGET, drafter, k=None, slots=2)
    for _ in range(2):
        right, wrong = (engine.add(p, max_new_tokens=80) for p in prompts)
        rounds = finish(engine)
        drafted = [[r.num_drafted for r in rounds[s]] for s in (right, wrong)]
        assert drafted[0][0] == drafted[1][0] > 4
        assert max(drafted[0]) > 8
        assert max(drafted[1][-20:]) <= 2  # a row costs little


def test_a_drafter_may_serve_two_engines_in_turn():
    # Ids start again with every engine: the same id and slot, other tokens.
    drafter = SuffixDrafter(min_match=1)
    for prompt in ([1, 2, 3, 1, 2], [5, 4, 5, 4], [1, 2, 3, 1, 2]):
        assert decode(toy_engine(TARGET, drafter), prompt, max_new_tokens=10) == TARGET.greedy(prompt, 10)


@pytest.mark.parametrize("slots", [0, -1])
def test_an_engine_needs_a_slot(slots):
    with pytest.raises(InvalidOption, match="slots"):
        toy_engine(TARGET, slots=slots)
