"""Streams: whole characters, no taken-back text, and requests that end wherever the reader stops reading."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import pytest

from engine_runs import draft_model, toy_engine
from outrider.drafters import ModelDrafter, NgramDrafter, SuffixDrafter
from outrider.errors import ProcessorError
from outrider.generation import TextEngine
from test_generation import BABBLE, DRAFT_LENGTHS, EOS, TOKENIZER, V, babbling, writing
from toy import TableModel, rule_law

MIXED = "naïve 😀 日本語 e\u0301 👩‍🔬 — done"
"""Characters of 1, 2, 3 and 4 bytes, a combining mark, and an emoji joined of two."""
RAW = {"raw": True}


def read(engine, **options):
    pieces = list(engine.stream("say: ", **RAW, **options))
    return pieces, "".join(piece.text for piece in pieces)


# ---------------------------------------------------------------- characters


@pytest.mark.parametrize("k", range(6))
@pytest.mark.parametrize("right", [None, 0, 2])
def test_a_character_comes_whole_with_its_last_byte(right, k):
    # Known fault 21: edges of blocks fall inside characters.
    pieces, text = read(writing([*TOKENIZER.encode(MIXED), EOS], k=k, right=right))
    assert text == MIXED
    assert "\ufffd" not in text
    ends = {len(MIXED[: i + 1].encode()) for i in range(len(MIXED))}
    assert [bool(piece.text) for piece in pieces] == [i + 1 in ends for i in range(len(pieces) - 1)] + [False]


@pytest.mark.parametrize("k", DRAFT_LENGTHS)
def test_a_text_that_ends_inside_a_character_shows_one_replacement_at_the_end(k):
    encoded = TOKENIZER.encode(MIXED)
    for limit in range(1, len(encoded) + 1):
        engine = writing(encoded, k=k)
        pieces, text = read(engine, max_new_tokens=limit)
        assert text == TOKENIZER.decode(encoded[:limit])
        is_cut = bytes(encoded[:limit]).decode(errors="ignore") != text
        assert text.count("\ufffd") == is_cut
        assert all("\ufffd" not in piece.text for piece in pieces[:-1])


@pytest.mark.parametrize("k", DRAFT_LENGTHS)
@pytest.mark.parametrize("stop", ["STOP", "😀", "語", "\u0301", "🔬"])
def test_a_stop_string_beside_or_made_of_long_characters(stop, k):
    reply = "naïve 😀STOP日本語 e\u0301 👩‍🔬"
    _, text = read(writing(reply, k=k), stop=stop, max_new_tokens=60)
    assert text == reply[: reply.index(stop)]


@pytest.mark.parametrize("seed", range(20))
def test_streams_of_any_bytes_join_to_the_decode_of_all_tokens(seed):
    # Known fault 50 as well: ids and text of the stream are those of the result.
    options = {"temperature": 1.5, "seed": seed, "max_new_tokens": 40, "logit_bias": {240: 3.0, 159: 3.0, 152: 3.0}}
    engine = babbling("ngram", "coupled")
    result = engine.generate("say: ", **RAW, **options)
    pieces, text = read(engine, **options)
    assert text == result.text == TOKENIZER.decode([t for t in result.token_ids if t != EOS])
    assert [piece.token_id for piece in pieces] == list(result.token_ids)
    assert [piece.finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + [result.finish_reason]


@pytest.mark.parametrize("k", DRAFT_LENGTHS)
def test_streams_and_results_agree_wherever_a_stop_token_falls(k):
    # Known fault 50: F3 over all places.
    reply = "abcdefghijklm"
    for i, letter in enumerate(reply):
        engine = writing(reply, k=k)
        pieces, text = read(engine, stop_ids=[ord(letter)], max_new_tokens=20)
        assert [piece.token_id for piece in pieces] == TOKENIZER.encode(reply[: i + 1])
        assert text == reply[:i]
        assert pieces[-1].finish_reason == "stop"


# ---------------------------------------------------------------- readers that leave


def is_idle(engine):
    return engine.engine.num_unfinished == 0 and not engine._inboxes and not engine.engine._texts


def answers(engine):
    return list(engine.generate("zz", max_new_tokens=5, **RAW).token_ids) == BABBLE.greedy(
        TOKENIZER.encode_prompt("zz"), 5
    )


@pytest.mark.parametrize("drafter", ["ngram", "model"])
@pytest.mark.parametrize("num_read", [0, 1, 2, 7])
def test_closing_a_stream_frees_its_slot_and_the_next_request_decodes_right(num_read, drafter):
    # Known faults 29 and 43: one slot, 20 readers that leave.
    engine = babbling(drafter, slots=1)
    for _ in range(20):
        stream = engine.stream("a" * 50, max_new_tokens=1000, **RAW)
        assert len(list(islice(stream, num_read))) == num_read
        stream.close()
        assert is_idle(engine)
    assert answers(engine)


def test_a_stream_that_is_dropped_unread_is_cancelled():
    engine = babbling(slots=1)
    stream = engine.stream("abc", **RAW)
    del stream
    assert is_idle(engine)


def test_leaving_a_loop_over_a_stream_cancels_it():
    engine = babbling(slots=1)
    for piece in engine.stream("abc", max_new_tokens=1000, **RAW):
        if piece.token_id >= 0:
            break
    del piece
    assert is_idle(engine)
    assert answers(engine)


def test_a_request_driven_by_steps_leaves_nothing_behind():
    engine = babbling(slots=1)
    sequence = engine.add("abc", max_new_tokens=5, **RAW)
    rounds = []
    while engine.engine.num_unfinished:
        rounds += engine.step()
    assert len(engine.result(sequence, rounds).token_ids) == 5
    assert is_idle(engine)


def test_a_failing_processor_ends_a_stream_with_its_error_after_what_was_emitted():
    def fails_later(ids, logits):
        if len(ids) > 8:
            raise ValueError("too long")
        return logits

    engine = TextEngine(toy_engine(BABBLE, NgramDrafter(), k=2), TOKENIZER)
    pieces = []
    with pytest.raises(ProcessorError, match="too long"):
        pieces.extend(engine.stream("abc", processor=fails_later, **RAW))
    assert [p.token_id for p in pieces] == BABBLE.greedy(TOKENIZER.encode_prompt("abc"), len(pieces))
    assert len(pieces) >= 3
    assert is_idle(engine)
    assert answers(engine)


def test_a_request_inside_the_loop_of_another_waits_its_turn():
    # One slot: the inner request drives the outer one to its end first, whose pieces wait to be read.
    engine = babbling("ngram", slots=1)
    expected = engine.generate("abc", max_new_tokens=12, **RAW).token_ids
    outer = []
    for piece in engine.stream("abc", max_new_tokens=12, **RAW):
        outer.append(piece.token_id)
        if len(outer) == 2:
            assert answers(engine)
    assert tuple(outer) == expected
    assert is_idle(engine)


def test_two_streams_read_in_turn_do_not_mix():
    engine = babbling(slots=2)
    expected = [engine.generate(p, max_new_tokens=15, **RAW).token_ids for p in ("ab", "cd")]
    streams = [engine.stream(p, max_new_tokens=15, **RAW) for p in ("ab", "cd")]
    read_in_turn = list(zip(*streams, strict=True))
    assert [tuple(p.token_id for p in column) for column in zip(*read_in_turn, strict=True)] == expected


class Flaky(TableModel):
    """Raises at its n-th forward."""

    fails_at = 0

    def forward(self, block, cache):
        self.fails_at -= 1
        if self.fails_at == 0:
            raise KeyboardInterrupt
        return super().forward(block, cache)


@pytest.mark.parametrize("fails_at", [1, 2, 4])
@pytest.mark.parametrize("method", ["generate", "stream", "generate_many"])
def test_an_interrupt_inside_a_forward_leaves_the_engine_ready(method, fails_at):
    target = Flaky(V, order=2, law=lambda context: BABBLE.law(context))
    engine = TextEngine(toy_engine(target, SuffixDrafter(min_match=1), slots=2), TOKENIZER)
    target.fails_at = fails_at
    asked = ["abc", "abd"] if method == "generate_many" else "abc"
    with pytest.raises(KeyboardInterrupt):
        list(getattr(engine, method)(asked, max_new_tokens=20, **RAW))
    assert is_idle(engine)
    assert answers(engine)


# ---------------------------------------------------------------- threads


def echo_engine(slots):
    """The target repeats the second token of its prompt for ever: each request has its own text."""
    target = TableModel(V, order=None, law=rule_law(V, lambda context: context[1] if len(context) > 1 else 0))
    return TextEngine(toy_engine(target, ModelDrafter(draft_model(target, 0.2), slots), k=3, slots=slots), TOKENIZER)


@pytest.mark.parametrize(("slots", "num_threads"), [(1, 2), (3, 8)])
def test_threads_on_one_engine_each_get_their_own_text(slots, num_threads):
    # Known fault 42: unique markers, random cancels and retries.
    engine = echo_engine(slots)

    def ask(marker):
        rng, good = random.Random(marker), 0
        for _ in range(5):
            if rng.random() < 0.4:
                stream = engine.stream(marker, max_new_tokens=30, **RAW)
                read_some = "".join(piece.text for piece in islice(stream, rng.randrange(5)))
                stream.close()
                good += set(read_some) <= {marker}
            else:
                good += engine.generate(marker, max_new_tokens=12, **RAW).text == marker * 12
        return good

    with ThreadPoolExecutor(num_threads) as pool:
        assert list(pool.map(ask, "abcdefgh"[:num_threads], timeout=120)) == [5] * num_threads
    assert is_idle(engine)
