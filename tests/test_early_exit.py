"""Drafting with the target's first layers: the same text and the same bits, and verification that skips work."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from checkpoints import Kind, tiny_model, write_gguf
from engine_runs import LIMIT, finish, new_tokens, p_value, sample
from outrider.cache import KEY_BLOCK
from outrider.core import Block
from outrider.drafters.early_exit import EarlyExitDrafter
from outrider.drafters.none import NoDrafter
from outrider.engine import Engine
from outrider.errors import InvalidOption
from outrider.models.checkpoint import open_checkpoint
from outrider.models.decoder import Decoder
from outrider.models.early_exit import EarlyExitTarget, ExitCache
from outrider.models.load import load_decoder
from outrider.options import Sampling
from outrider.planning.pace import AutoPace, FixedPace
from outrider.rules import choose_rule
from outrider.tree import ancestors, depths

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


def test_the_embedded_model_writes_the_same_text(smollm2, smollm2_tokenizer):
    requests = [smollm2_tokenizer.encode(text) for text in ("The capital of France is", "1, 2, 3, 4, 5, 6,")]
    expected = texts(engine_of(smollm2("q4"), NoDrafter()), requests, max_new_tokens=16)
    target, drafter = early(smollm2("q4"), layers=26)
    engine = engine_of(target, drafter, slots=2)
    sequences = [engine.add(prompt, max_new_tokens=16) for prompt in requests]
    rounds = [r for each in finish(engine).values() for r in each]
    assert [new_tokens(s) for s in sequences] == expected
    assert 0 < sum(r.num_accepted for r in rounds) < sum(r.num_drafted for r in rounds)


def test_coupled_text_is_that_of_plain_decoding_at_any_temperature(decoder):
    options = {"sampling": Sampling(temperature=0.8), "max_new_tokens": 12}
    expected = texts(engine_of(decoder, NoDrafter(), "coupled"), prompts(4), **options)
    target, drafter = early(decoder)
    assert texts(engine_of(target, drafter, "coupled", slots=2), prompts(4), **options) == expected


def drafted_block(target, slots, rng, shortest=1):
    """Some tokens in a cache, drafts on top of them, and the block that verifies these and other tokens."""
    cache = target.new_cache(slots, shortest + 63)
    for slot in range(slots):
        prompt = torch.tensor([[rng.randrange(3, VOCAB) for _ in range(rng.randint(shortest, shortest + 8))]])
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
@pytest.mark.parametrize("shortest", [1, KEY_BLOCK - 8])
def test_verification_that_starts_behind_the_first_layers_gives_the_very_bits(decoder, slots, shortest):
    rng, target = random.Random(slots), EarlyExitTarget(decoder, 2)
    for _ in range(6):
        cache, block = drafted_block(target, slots, rng, shortest)
        saved = target.num_rows_saved
        short = target.forward(block, cache).logits
        assert target.num_rows_saved > saved
        rows_after = cache.data.clone()
        full = decoder.forward(block, cache).logits
        for i, width in enumerate(block.widths):
            assert torch.equal(short[i, :width], full[i, :width])
            start = cache.lengths[i]
            assert torch.equal(rows_after[:, i, start : start + width], cache.data[:, i, start : start + width])


class Credulous(EarlyExitTarget):
    """Planted bug: any token at a drafted place counts as the drafted one, wherever the draft began."""

    def _known(self, block, cache, row):
        run = cache.runs.get(block.slots[row])
        return [] if run is None or block.prefill else run.states[: block.widths[row]]


def test_stale_states_are_caught_by_that_comparison(decoder):
    rng, target, wrong = random.Random(1), Credulous(decoder, 2), 0
    for _ in range(6):
        cache, block = drafted_block(target, 3, rng)
        short, full = target.forward(block, cache).logits, decoder.forward(block, cache).logits
        wrong += any(not torch.equal(short[i, :w], full[i, :w]) for i, w in enumerate(block.widths))
    assert wrong > 0


def test_stale_states_are_caught_by_the_text_too(decoder, monkeypatch):
    """Negative control: states that outlive their round, whatever becomes of the slot, and are believed."""
    requests = prompts(5)
    expected = texts(engine_of(decoder, NoDrafter()), requests, max_new_tokens=12)
    monkeypatch.setattr(ExitCache, "commit", lambda self, slot, rows: self.whole.commit(slot, rows))

    class Keeps(dict):
        def pop(self, slot, default=None):
            return self.get(slot, default)

        def __setitem__(self, slot, run):
            self.setdefault(slot, run)

    target = Credulous(decoder, 2)
    engine = engine_of(target, EarlyExitDrafter(target), slots=3)
    engine.cache.runs = Keeps()
    assert texts(engine, requests, max_new_tokens=12) != expected


def tree_block(cache, rows, parents):
    """One sequence's block: the pending token and a tree."""
    places = [[cache.lengths[0] + depth for depth in depths(parents)]]
    mask = ancestors(parents, len(rows))[None]
    return Block(torch.tensor([rows]), torch.tensor(places), (0,), (len(rows),), ancestors=mask)


def test_a_tree_takes_over_the_drafted_chain_that_it_begins_with(decoder):
    target = EarlyExitTarget(decoder, 2)
    cache = target.new_cache(1, 64)
    target.forward(Block(torch.tensor([[5, 6, 7]]), torch.arange(3)[None], (0,), (3,), prefill=True), cache)
    cache.commit(0, range(3))
    # pending 8 ── 9 ── 10 ── 11        the draft ran 8, 9, 10
    #          └── 12 ── 13
    for rows, parents, saved in (
        ([8, 9, 10, 11, 12, 13], (-1, 0, 1, -1, 3), 3),
        ([8, 9, 12, 10, 13, 11], (-1, -1, 0, 1, 2), 2),  # its third row is 9's sibling
        ([8, 12, 9, 13, 10, 11], (-1, -1, 0, 1, 3), 1),
        ([8, 9, 10], (-1, -1), 2),  # the right tokens, but 10 does not follow 9
    ):
        target.begin([0], [3])
        for token in (8, 9, 10):
            target.draft([0], [token])
        before, block = target.num_rows_saved, tree_block(cache, rows, parents)
        short = target.forward(block, cache).logits
        assert target.num_rows_saved - before == saved
        torch.testing.assert_close(short, decoder.forward(block, cache).logits, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("event", ["commit", "truncate", "copy"])
def test_whatever_becomes_of_a_slot_its_drafted_states_are_forgotten(decoder, event):
    """A slot that holds another text of the same length, without a forward in between, as after an interrupt."""
    target = EarlyExitTarget(decoder, 2)
    cache = target.new_cache(2, 64)
    for slot in (0, 1):
        start = torch.tensor([[5 + slot, 6, 7]])
        target.forward(Block(start, torch.arange(3)[None], (slot,), (3,), prefill=True), cache)
        cache.commit(slot, range(3))
    target.begin([1], [3])
    target.draft([1], [9])
    if event == "commit":
        cache.commit(1, [0])
        cache.truncate(1, 3)
    elif event == "truncate":
        cache.truncate(1, 3)
    else:
        cache.copy(0, 1)
    assert cache.runs == {}
    block = Block(torch.tensor([[9]]), torch.tensor([[3]]), (1,), (1,))
    assert torch.equal(target.forward(block, cache).logits, decoder.forward(block, cache).logits)
    assert target.num_rows_saved == 0


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


class CountsRows:
    """A linear that notes how many rows went through it."""

    def __init__(self, linear):
        self.linear, self.rows = linear, 0

    def __call__(self, x):
        self.rows += len(x)
        return self.linear(x)


@pytest.mark.parametrize("slots", [1, 3])
def test_each_drafted_row_runs_once_through_the_first_layers(decoder, slots):
    counters = [CountsRows(layer.qkv) for layer in decoder.weights.layers]
    layers = tuple(replace(layer, qkv=c) for layer, c in zip(decoder.weights.layers, counters, strict=True))
    counted = Decoder(decoder.config, replace(decoder.weights, layers=layers), decoder.precision)
    target, drafter = early(counted)
    engine = engine_of(target, drafter, k=4, slots=slots)
    requests = [[5], [9], [12]]  # one token each: nothing to prefill
    sequences = [engine.add(prompt, max_new_tokens=20) for prompt in requests]
    rounds = [r for each in finish(engine).values() for r in each]
    assert all(s.num_new_tokens == 20 for s in sequences)
    verified = sum(1 + r.num_drafted for r in rounds)
    assert [c.rows for c in counters] == [verified] * LAYERS, (
        "in the first layers: by the draft, or by the verification"
    )
    # All but the last drafted token had been run by the draft; without a draft, nothing had.
    assert target.num_rows_saved == sum(r.num_drafted for r in rounds) > 0


def test_without_reuse_each_drafted_row_runs_twice(decoder):
    """Negative control of the count above."""
    target = EarlyExitTarget(decoder, 2, reuse=False)
    expected = texts(engine_of(decoder, NoDrafter()), prompts(2), max_new_tokens=12)
    assert texts(engine_of(target, EarlyExitDrafter(target)), prompts(2), max_new_tokens=12) == expected
    assert target.num_rows_saved == 0


# ---------------------------------------------------------------- laws

SMALL, LENGTH = 5, 3


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A decoder of five tokens: its strings can be counted."""
    path = tmp_path_factory.mktemp("small") / "model.gguf"
    shape = {"vocab_size": SMALL, "hidden_size": 64, "intermediate_size": 64, "head_dim": 16, "num_hidden_layers": 3}
    write_gguf(path, tiny_model("llama", seed=4, bos_token_id=0, eos_token_id=0, **shape), Kind.F32)
    return load_decoder(open_checkpoint(path), "float16")


def law_after(decoder, tokens, temperature):
    cache = decoder.new_cache(1, 64)
    block = Block(torch.tensor([tokens]), torch.arange(len(tokens))[None], (0,), (len(tokens),))
    return (decoder.forward(block, cache).logits[0, -1].double() / temperature).softmax(-1).tolist()


def string_law(decoder, prompt, temperature):
    """Probability of each string of LENGTH tokens."""
    strings = {(): 1.0}
    for _ in range(LENGTH):
        strings = {
            (*string, token): p * q
            for string, p in strings.items()
            for token, q in enumerate(law_after(decoder, [*prompt, *string], temperature))
        }
    return strings


def count_strings(engine, prompt, temperature, num_samples=1500):
    return sample(engine, prompt, num_samples, sampling=Sampling(temperature=temperature), max_new_tokens=LENGTH)


@pytest.mark.parametrize(("rule", "min_confidence"), [("block", 0.0), ("token", 0.3)])
def test_the_emitted_strings_have_the_targets_law(small, rule, min_confidence):
    target, drafter = early(small, layers=1, min_confidence=min_confidence)
    engine = engine_of(target, drafter, rule, slots=5)
    strings, rounds = count_strings(engine, [1, 2, 3], 0.8)
    assert p_value(strings, string_law(small, [1, 2, 3], 0.8)) > LIMIT
    assert not any(r.broken for r in rounds)
    assert 0 < sum(r.num_accepted for r in rounds) < sum(r.num_drafted for r in rounds)
    assert target.num_rows_saved > 0


def test_the_early_law_would_be_told_from_the_targets(small):
    """Negative control: strings of the first layers alone."""
    weights = replace(small.weights, layers=small.weights.layers[:1])
    engine = engine_of(Decoder(small.config, weights, "float16"), NoDrafter(), slots=5)
    strings, _ = count_strings(engine, [1, 2, 3], 0.8)
    assert p_value(strings, string_law(small, [1, 2, 3], 0.8)) < LIMIT


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_confidence_ends_a_draft_before_the_draw_and_the_next_token_is_verified_all_the_same(decoder, temperature):
    target, drafter = early(decoder, min_confidence=0.999)
    engine = engine_of(target, drafter)
    engine.add(prompts(1)[0], sampling=Sampling(temperature=temperature), seed=0, max_new_tokens=10)
    (rounds,) = finish(engine).values()
    assert sum(r.num_drafted for r in rounds) == 0
    assert target.num_rows_saved == 9, "the pending token's, in all rounds but the last, which has no room for a draft"
    with pytest.raises(InvalidOption, match="min_confidence"):
        early(decoder, min_confidence=1.0)


# ---------------------------------------------------------------- precisions and other engines


def test_invariant_mode_gives_equal_texts_at_float32(tmp_path):
    path = tmp_path / "model.gguf"
    write_gguf(path, tiny_model("qwen3", num_hidden_layers=LAYERS), Kind.F32)
    exact = load_decoder(open_checkpoint(path), "float32")

    def text(target, drafter):
        rule = choose_rule("auto", drafter.proposal)
        engine = Engine(target, drafter, rule, FixedPace(3), slots=2, context_length=64, invariant=True)
        sequences = [engine.add(prompt, max_new_tokens=12, sampling=Sampling(logprobs=1)) for prompt in prompts(3)]
        rounds = [r for each in finish(engine).values() for r in each]
        return [new_tokens(s) for s in sequences], {(r.sequence.id, p.chosen) for r in rounds for p in r.logprobs}

    target = EarlyExitTarget(exact, 2)
    assert target.pads_to_same_bits
    expected = text(exact, NoDrafter())
    assert text(target, EarlyExitDrafter(target)) == expected
    assert target.num_rows_saved == 0
    target = EarlyExitTarget(exact, 2, reuse=True)
    assert not target.pads_to_same_bits
    assert text(target, EarlyExitDrafter(target)) != expected, "negative control: rows that ran on another width"
    assert target.num_rows_saved > 0


def test_invariant_mode_gives_equal_texts_at_float16_and_q4_and_saves_rows(decoder):
    def text(target, drafter):
        rule = choose_rule("auto", drafter.proposal)
        engine = Engine(target, drafter, rule, FixedPace(3), slots=2, context_length=64, invariant=True)
        return texts(engine, prompts(3), max_new_tokens=12)

    target, drafter = early(decoder)
    assert text(target, drafter) == text(decoder, NoDrafter())
    assert target.num_rows_saved > 0


def test_a_sequence_of_another_engine_gets_no_draft(decoder):
    target, drafter = early(decoder)
    first = engine_of(target, drafter)
    engine_of(target, drafter)
    first.add(prompts(1)[0], max_new_tokens=2)
    (rounds,) = finish(first).values()
    assert "another engine" in rounds[0].broken


def test_its_share_counts_layers_and_the_head(decoder):
    shares = [EarlyExitTarget(decoder, layers).share for layers in (1, 2, 3)]
    assert 1 / LAYERS < shares[0] < shares[1] < shares[2] < 1
    assert shares[1] - shares[0] == pytest.approx(shares[2] - shares[1])
    assert shares[2] + (shares[2] - shares[1]) == pytest.approx(1)


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
