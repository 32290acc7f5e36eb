"""Drafting with the target's first layers: the same text and the same bits, and verification that skips work."""

from __future__ import annotations

import random

import pytest
import torch

from checkpoints import Kind, tiny_model, write_gguf
from engine_runs import finish, new_tokens
from outrider.core import Block
from outrider.drafters.early_exit import EarlyExitDrafter
from outrider.drafters.none import NoDrafter
from outrider.engine import Engine
from outrider.errors import InvalidOption
from outrider.models.checkpoint import open_checkpoint
from outrider.models.early_exit import EarlyExitTarget
from outrider.models.load import load_decoder
from outrider.options import Sampling
from outrider.planning.pace import AutoPace, FixedPace
from outrider.rules import choose_rule

VOCAB, LAYERS = 320, 4


@pytest.fixture(scope="module", params=["float16", "q4"])
def decoder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("early") / "model.gguf"
    write_gguf(path, tiny_model("llama", num_hidden_layers=LAYERS, tie_word_embeddings=True), Kind.Q4_1)
    return load_decoder(open_checkpoint(path), request.param)


def engine_of(target, drafter, rule="auto", k=3, slots=1):
    pace = AutoPace() if k is None else FixedPace(k)
    return Engine(target, drafter, choose_rule(rule, drafter.proposal), pace, slots=slots, context_length=128)


def early(decoder, layers=2, **options):
    target = EarlyExitTarget(decoder, layers)
    return target, EarlyExitDrafter(target, **options)


def prompts(count, seed=0):
    rng = random.Random(seed)
    return [[rng.randrange(3, VOCAB) for _ in range(rng.randint(1, 12))] for _ in range(count)]


def texts(engine, requests, **options):
    sequences = [engine.add(prompt, seed=seed, **options) for seed, prompt in enumerate(requests)]
    finish(engine)
    return [new_tokens(s) for s in sequences]


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("k", [1, 4, None])
def test_greedy_text_is_that_of_plain_decoding_with_joins_leaves_and_rejections(decoder, slots, k):
    requests = prompts(5)
    expected = texts(engine_of(decoder, NoDrafter()), requests, max_new_tokens=12)
    target, drafter = early(decoder)
    assert texts(engine_of(target, drafter, k=k, slots=slots), requests, max_new_tokens=12) == expected
    assert target.num_rows_saved > 0


def test_coupled_text_is_that_of_plain_decoding_at_any_temperature(decoder):
    options = {"sampling": Sampling(temperature=0.8), "max_new_tokens": 12}
    expected = texts(engine_of(decoder, NoDrafter(), "coupled"), prompts(4), **options)
    target, drafter = early(decoder)
    assert texts(engine_of(target, drafter, "coupled", slots=2), prompts(4), **options) == expected


def drafted_block(target, slots, rng):
    """Some tokens in a cache, drafts on top of them, and the block that verifies these and other tokens."""
    cache = target.new_cache(slots, 64)
    for slot in range(slots):
        prompt = torch.tensor([[rng.randrange(3, VOCAB) for _ in range(rng.randint(1, 9))]])
        length = prompt.shape[1]
        target.forward(Block(prompt, torch.arange(length)[None], (slot,), (length,), prefill=True), cache)
        cache.commit(slot, range(length))
    used = list(range(slots))
    drafts = [[rng.randrange(3, VOCAB) for _ in range(rng.randint(1, 5))] for _ in used]
    target.begin(used, [cache.lengths[slot] for slot in used])
    for step in range(5):
        now = [slot for slot in used if step < len(drafts[slot])]
        if now:
            target.draft(now, [drafts[slot][step] for slot in now])
    rows = [draft + [rng.randrange(3, VOCAB) for _ in range(rng.randint(0, 2))] for draft in drafts]
    if slots > 1:
        rows[0][0] = (rows[0][0] + 1) % VOCAB  # what was drafted is not what is verified
        rows[0] += rows[0][:1]
    width = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    places = torch.tensor([[cache.lengths[slot] + i for i in range(width)] for slot in used])
    return cache, Block(tokens, places, tuple(used), tuple(map(len, rows)))


@pytest.mark.parametrize("slots", [1, 3])
def test_verification_that_starts_behind_the_first_layers_gives_the_very_bits(decoder, slots):
    rng, target = random.Random(slots), EarlyExitTarget(decoder, 2)
    for _ in range(6):
        cache, block = drafted_block(target, slots, rng)
        saved = target.num_rows_saved
        short = target.forward(block, cache).logits
        assert target.num_rows_saved > saved
        rows_after = cache.data.clone()
        full = decoder.forward(block, cache).logits
        for i, width in enumerate(block.widths):
            assert torch.equal(short[i, :width], full[i, :width])
            start = cache.lengths[i]
            assert torch.equal(rows_after[:, i, start : start + width], cache.data[:, i, start : start + width])


def test_stale_states_are_caught_by_that_comparison(decoder):
    class Forgetful(EarlyExitTarget):
        """Believes that any token at a drafted place is the drafted one."""

        def _known(self, block, cache, row):
            run = self._runs.get(block.slots[row])
            return [] if run is None or block.prefill else run.states[: block.widths[row] - 1]

    rng, target, wrong = random.Random(1), Forgetful(decoder, 2), 0
    for _ in range(6):
        cache, block = drafted_block(target, 3, rng)
        short, full = target.forward(block, cache).logits, decoder.forward(block, cache).logits
        wrong += any(not torch.equal(short[i, :w], full[i, :w]) for i, w in enumerate(block.widths))
    assert wrong > 0


def test_states_are_used_once_and_never_for_another_text(decoder):
    rng, target = random.Random(2), EarlyExitTarget(decoder, 2)
    cache, block = drafted_block(target, 1, rng)
    target.forward(block, cache)
    saved = target.num_rows_saved
    target.forward(block, cache)
    assert target.num_rows_saved == saved


def test_a_draft_is_what_the_first_layers_and_the_head_say(decoder):
    """Against a decoder that has no other layers, from an empty cache."""
    target, drafter = early(decoder)
    weights = decoder.weights
    short = type(decoder)(
        decoder.config, type(weights)(weights.embedding, weights.layers[:2], weights.norm, weights.head), "q4"
    )
    engine = engine_of(target, drafter)
    sequence = engine.add(prompts(1)[0], max_new_tokens=30)
    for _ in range(4):
        tokens = list(sequence.tokens)
        if sequence.slot >= 0:
            (draft,) = drafter.propose([sequence], [3])
            grown = list(tokens)
            for token in draft.tokens:
                cache = short.new_cache(1, 64)
                row = torch.tensor([grown])
                logits = short.forward(Block(row, torch.arange(len(grown))[None], (0,), (len(grown),)), cache).logits
                assert int(logits[0, -1].argmax()) == token
                grown.append(token)
        engine.step()


def test_the_sampled_law_is_the_one_it_declares_and_rounds_accept_as_it_predicts(decoder):
    target, drafter = early(decoder)
    engine = engine_of(target, drafter, "block", k=3, slots=4)
    sampling = Sampling(temperature=0.8, top_k=20)
    for seed, prompt in enumerate(prompts(8)):
        engine.add(prompt, seed=seed, sampling=sampling, max_new_tokens=20)
    rounds = [r for each in finish(engine).values() for r in each]
    assert {r.rule for r in rounds} == {"block"}
    assert sum(r.num_drafted for r in rounds) > 100
    assert not any(r.broken for r in rounds)


def test_confidence_ends_a_draft_before_the_draw(decoder):
    target, drafter = early(decoder, min_confidence=0.999)
    engine = engine_of(target, drafter)
    engine.add(prompts(1)[0], sampling=Sampling(temperature=1.0), seed=0, max_new_tokens=10)
    (rounds,) = finish(engine).values()
    assert sum(r.num_drafted for r in rounds) == 0
    with pytest.raises(InvalidOption, match="min_confidence"):
        early(decoder, min_confidence=1.0)


@pytest.mark.parametrize("layers", [0, LAYERS, -1, 99])
def test_a_way_out_that_the_model_does_not_have_is_refused_with_the_number_of_layers(decoder, layers):
    with pytest.raises(InvalidOption, match=f"1 to {LAYERS - 1}.*has {LAYERS} layers"):
        EarlyExitTarget(decoder, layers)


def test_a_slot_used_again_starts_afresh(decoder):
    target, drafter = early(decoder)
    engine = engine_of(target, drafter, slots=1)
    first, second = prompts(2, seed=9)
    alone = texts(engine_of(decoder, NoDrafter()), [first, second], max_new_tokens=10)
    running = engine.add(first, max_new_tokens=10)
    engine.step()
    engine.cancel(running)
    assert texts(engine, [second], max_new_tokens=10) == alone[1:]
