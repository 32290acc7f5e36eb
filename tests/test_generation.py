"""Text in, text out: prompts, samples, stop strings and what is counted, the same for every draft length."""

from __future__ import annotations

import pytest

from engine_runs import draft_model, toy_engine, writer
from outrider.drafters import ModelDrafter, NgramDrafter
from outrider.errors import InvalidOption, ProcessorError
from outrider.generation import TextEngine
from outrider.rules.typical import TypicalRule
from toy import ByteTokenizer, ScriptedDrafter, TableModel, random_laws

TOKENIZER = ByteTokenizer()
V, EOS = ByteTokenizer.vocab_size, ByteTokenizer.eos_id
DRAFT_LENGTHS = [0, 1, 2, 4, 16]
BABBLE = TableModel(V, order=2, law=random_laws(V, seed=11, sharpness=12))
"""Writes any bytes at all."""


def writing(reply, k=4, right=None, prompt="say: ", **options):
    """An engine whose target answers this raw prompt with `reply` (text or ids), and whose drafter knows it."""
    ids = TOKENIZER.encode(reply) if isinstance(reply, str) else reply
    prompt_ids = TOKENIZER.encode_prompt(prompt)
    drafter = ScriptedDrafter([[*prompt_ids, *ids]], V, right)
    return TextEngine(toy_engine(writer(prompt_ids, ids, V), drafter, k=k, **options), TOKENIZER)


def babbling(drafter="model", rule="auto", k=4, slots=4):
    made = ModelDrafter(draft_model(BABBLE), slots) if drafter == "model" else NgramDrafter()
    return TextEngine(toy_engine(BABBLE, made, rule, k, slots=slots), TOKENIZER)


def say(engine, **options):
    return engine.generate("say: ", raw=True, **options)


# ---------------------------------------------------------------- results


def test_a_result_says_what_was_asked_and_what_came():
    reply = [*TOKENIZER.encode("hello"), EOS]
    result = say(writing(reply, k=3))
    assert result.text == "hello"
    assert list(result.token_ids) == reply
    assert list(result.prompt_token_ids) == TOKENIZER.encode_prompt("say: ")
    assert result.finish_reason == "stop"
    assert result.origins == ("accepted", "accepted", "accepted", "next", "accepted", "accepted")
    assert (result.logprobs, result.error) == ((), None)
    assert (result.stats.drafter, result.stats.rule, result.stats.lossless) == ("scripted", "point-mass", True)


def test_the_statistics_say_that_a_rule_is_lossy():
    engine = TextEngine(toy_engine(BABBLE, ModelDrafter(draft_model(BABBLE), 1), TypicalRule()), TOKENIZER)
    stats = say(engine, max_new_tokens=3).stats
    assert (stats.rule, stats.lossless) == ("typical", False)


def test_a_stop_token_gives_no_text_even_if_it_is_a_letter():
    result = say(writing("abcdef"), stop_ids=TOKENIZER.encode("d"))
    assert (result.text, list(result.token_ids), result.finish_reason) == ("abc", TOKENIZER.encode("abcd"), "stop")


def test_the_models_own_stop_tokens_count_unless_others_are_given():
    reply = [*TOKENIZER.encode("a"), EOS, *TOKENIZER.encode("b")]
    assert say(writing(reply)).text == "a"
    assert say(writing(reply), stop_ids=[], max_new_tokens=3).text == "ab"


def test_a_prompt_may_be_text_or_a_conversation_or_ids():
    engine = babbling()
    question = {"role": "user", "content": "hi"}
    asked = [
        engine.generate("hi", max_new_tokens=1),
        engine.generate(messages=[question], max_new_tokens=1),
        engine.generate("hi", raw=True, max_new_tokens=1),
        engine.generate([1, 2, 3], max_new_tokens=1),
        engine.generate_many([[question], "hi", [5]], max_new_tokens=1)[0],
    ]
    chat, raw = TOKENIZER.encode_chat([question]), TOKENIZER.encode_prompt("hi")
    assert [list(result.prompt_token_ids) for result in asked] == [chat, chat, raw, [1, 2, 3], chat]


def test_a_tokenizer_without_chat_template_takes_text_as_it_is():
    class Plain(ByteTokenizer):
        chat_template = None

    engine = TextEngine(toy_engine(BABBLE), Plain())
    result = engine.generate("hi", max_new_tokens=1)
    assert list(result.prompt_token_ids) == TOKENIZER.encode_prompt("hi")


def test_an_unfinished_request_sums_up_as_cancelled():
    engine = writing("abcdefghij", k=2)
    sequence = engine.add("say: ", raw=True)
    assert engine.result(sequence, []).finish_reason == "cancelled"
    rounds = [*engine.step(), *engine.step()]
    result = engine.result(sequence, rounds)
    assert (result.text, result.finish_reason, result.stats.num_rounds) == ("abcdef", "cancelled", 2)
    engine.cancel(sequence)
    assert engine.engine.num_unfinished == 0


# ---------------------------------------------------------------- what is counted


@pytest.mark.parametrize("limit", [1, 2, 5, 8])
@pytest.mark.parametrize("right", [None, 0, 2])
def test_usage_is_what_was_delivered(limit, right):
    # Known fault 16.
    engine = writing("abcdefghijklmnop", right=right)
    result, pieces = say(engine, max_new_tokens=limit), list(engine.stream("say: ", raw=True, max_new_tokens=limit))
    assert result.stats.num_new_tokens == len(result.token_ids) == len(pieces) == limit
    assert [piece.token_id for piece in pieces] == list(result.token_ids)
    assert tuple(piece.origin for piece in pieces) == result.origins
    assert result.origins.count("accepted") == result.stats.num_accepted_tokens


@pytest.mark.parametrize("stop", ["d", "cd", "fg", "h"])
def test_tokens_cut_by_a_stop_string_are_not_counted(stop):
    result = say(writing("abcdefghijklmnop", k=6), stop=stop)
    delivered = "abcdefghijklmnop".index(stop) + len(stop)
    assert result.stats.num_new_tokens == len(result.token_ids) == delivered
    assert result.stats.num_accepted_tokens == result.origins.count("accepted")


# ---------------------------------------------------------------- stop strings


COPY = "red blue green red blue green; end"


@pytest.mark.parametrize("k", DRAFT_LENGTHS)
@pytest.mark.parametrize("right", [None, 0, 3])
@pytest.mark.parametrize("stop", ["d", "ed", "blue", "n red b", "green;", "; end", "nd", COPY[:20], COPY])
def test_a_stop_string_cuts_the_text_wherever_blocks_end(stop, right, k):
    # Known fault 3: inside one block, across blocks, and as long as the whole text.
    result = say(writing([*TOKENIZER.encode(COPY), EOS], k=k, right=right), stop=stop)
    cut = COPY.index(stop)
    assert result.text == COPY[:cut]
    assert list(result.token_ids) == TOKENIZER.encode(COPY[: cut + len(stop)])
    assert result.finish_reason == "stop"


@pytest.mark.parametrize("k", DRAFT_LENGTHS)
def test_a_stop_string_that_begins_in_the_prompt_is_not_in_the_output(k):
    result = say(writing([*TOKENIZER.encode("red and say: red"), EOS], k=k), stop=[": re"])
    assert result.text == "red and say"


@pytest.mark.parametrize("k", DRAFT_LENGTHS)
@pytest.mark.parametrize(
    ("stop", "stop_ids", "text"),
    [
        (["green", "blue"], [], "red "),
        (("blue green", "red b", "e"), [], "r"),
        (["blue"], TOKENIZER.encode(" "), "red"),  # the stop token comes first
        (["d "], TOKENIZER.encode("b"), "re"),  # the stop string comes first
        (["blux"], TOKENIZER.encode("e"), "r"),
        (["red blux", "zzz"], [], COPY),  # begun, never completed
    ],
)
def test_the_earliest_end_wins(stop, stop_ids, text, k):
    reply = [*TOKENIZER.encode(COPY), EOS]
    result = say(writing(reply, k=k), stop=stop, stop_ids=[*stop_ids, EOS])
    assert (result.text, result.finish_reason) == (text, "stop")


@pytest.mark.parametrize("k", DRAFT_LENGTHS)
def test_what_was_held_back_for_a_stop_string_comes_at_the_end(k):
    for stop_ids, reply, reason in (([EOS], [*TOKENIZER.encode("red blu"), EOS], "stop"), ([], "red blue", "length")):
        engine = writing(reply, k=k)
        options = {"stop": "blues", "stop_ids": stop_ids, "max_new_tokens": 8 if reason == "stop" else 7}
        result = say(engine, **options)
        assert (result.text, result.finish_reason) == ("red blu", reason)
        pieces = list(engine.stream("say: ", raw=True, **options))
        assert [piece.text for piece in pieces][:4] == ["r", "e", "d", " "]
        assert "".join(piece.text for piece in pieces) == "red blu"


@pytest.mark.parametrize("k", DRAFT_LENGTHS)
def test_a_stop_string_completed_at_the_limit_is_a_stop(k):
    for limit, reason in ((7, "length"), (8, "stop")):
        result = say(writing("red blue!", k=k), stop="blue", max_new_tokens=limit)
        assert (result.text, result.finish_reason) == ("red " + "blu" * (limit == 7), reason)


# ---------------------------------------------------------------- many at once


@pytest.mark.parametrize(("drafter", "rule"), [("ngram", "point-mass"), ("model", "block"), ("model", "coupled")])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_samples_are_what_single_requests_with_their_seeds_give(drafter, rule, temperature):
    # Known fault 37: n = 3, seeds seed + i, each the same as alone.
    options = {"temperature": temperature, "max_new_tokens": 12, "raw": True}
    together = babbling(drafter, rule).generate_many(["ab", "cd"], n=3, seed=7, **options)
    alone = [babbling(drafter, rule).generate(p, seed=7 + i, **options) for p in ("ab", "cd") for i in range(3)]
    assert [r.token_ids for r in together] == [r.token_ids for r in alone]
    assert [r.text for r in together] == [r.text for r in alone]
    assert len({r.token_ids for r in together}) == (2 if temperature == 0 else 6)


def test_samples_share_their_prefill():
    target = TableModel(V, order=2, law=random_laws(V, seed=11))
    TextEngine(toy_engine(target, slots=3), TOKENIZER).generate_many(["a" * 100], n=3, max_new_tokens=4)
    assert target.num_forwards == 1 + 4


def test_results_come_in_the_order_of_the_prompts_whatever_ends_first():
    # Known fault 62.
    engine = babbling(slots=2)
    prompts = ["a", "bc", "d", "efg", "h"]
    results = engine.generate_many(prompts, max_new_tokens=3, raw=True)
    assert [r.prompt_token_ids[1:] for r in results] == [tuple(TOKENIZER.encode(p)) for p in prompts]
    assert engine.generate_many([]) == []


def test_one_failing_request_among_many_is_reported_in_its_place():
    def fails_for_b(ids, logits):
        if ids[1] == ord("b"):
            raise ValueError("no b")
        return logits

    engine = babbling("ngram")
    good, bad, fine = engine.generate_many(["a", "b", "c"], processor=fails_for_b, max_new_tokens=4, raw=True)
    assert (bad.finish_reason, bad.token_ids, bad.text) == ("error", (), "")
    assert isinstance(bad.error, ProcessorError)
    for result, prompt in ((good, "a"), (fine, "c")):
        assert list(result.token_ids) == BABBLE.greedy(TOKENIZER.encode_prompt(prompt), 4)
    with pytest.raises(ProcessorError, match="no b"):
        engine.generate("b", processor=fails_for_b, raw=True)
    assert engine.engine.num_unfinished == 0


def test_samples_without_a_seed_differ():
    results = babbling("ngram").generate_many(["a"], n=4, temperature=1.0, max_new_tokens=20)
    assert len({r.token_ids for r in results}) == 4


# ---------------------------------------------------------------- log-probabilities


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_log_probabilities_with_drafts_equal_those_without_in_results_and_streams(temperature):
    # Known fault 15, with coupled sampling so that the texts are the same.
    options = {"temperature": temperature, "seed": 3, "logprobs": 5, "max_new_tokens": 12, "raw": True}
    plain = TextEngine(toy_engine(BABBLE, rule="coupled"), TOKENIZER).generate("ab", **options)
    engine = babbling("model", "coupled")
    result, pieces = engine.generate("ab", **options), list(engine.stream("ab", **options))
    assert {"accepted", "next"} == set(result.origins)
    assert result.token_ids == plain.token_ids
    assert result.logprobs == plain.logprobs == tuple(piece.logprobs for piece in pieces)
    assert len(result.logprobs) == len(result.token_ids)


# ---------------------------------------------------------------- refusals


REFUSED = {
    "nothing": {"prompt": None},
    "prompt and messages": {"messages": [{"role": "user", "content": "a"}]},
    "an empty text": {"prompt": ""},
    "no ids": {"prompt": []},
    "a number": {"prompt": 5},
    "a prompt beyond the context": {"prompt": "a" * 5000},
    "an unknown id": {"prompt": [V]},
    "an unknown option": {"temprature": 1.0},
    "an option of others": {"do_sample": True},
    "an empty stop": {"stop": ""},
    "an empty stop among others": {"stop": ["a", ""]},
    "a stop that is no string": {"stop": [5]},
    "a number for a stop": {"stop": 5},
    "no stop": {"stop": None},
    "one stop id": {"stop_ids": 257},
    "a stop id in words": {"stop_ids": ["end"]},
    "a limit of 0": {"max_new_tokens": 0},
    "a negative limit": {"max_new_tokens": -1},
    "a true limit": {"max_new_tokens": True},
    "a fractional limit": {"max_new_tokens": 1.5},
    "a negative seed": {"seed": -1},
    "a fractional seed": {"seed": 0.5},
    "a seed in words": {"seed": "7"},
    "a temperature that is no number": {"temperature": float("nan")},
    "a temperature in words": {"temperature": "warm"},
    "top_p 0": {"top_p": 0},
    "no bias": {"logit_bias": None},
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("method", ["generate", "stream", "add"])
def test_what_makes_no_sense_is_refused_at_once_and_nothing_is_queued(method, name):
    engine = babbling("ngram")
    with pytest.raises(InvalidOption, match="allowed: "):
        getattr(engine, method)(**{"prompt": "a", **REFUSED[name]})
    assert engine.engine.num_unfinished == 0
    assert engine.generate("a", max_new_tokens=2, raw=True).stats.num_new_tokens == 2


@pytest.mark.parametrize("name", [name for name in REFUSED if name != "prompt and messages"])
def test_one_bad_request_among_many_is_refused_before_anything_is_decoded(name):
    engine = babbling("ngram")
    options = {"prompt": "a", **REFUSED[name]}
    with pytest.raises(InvalidOption, match="allowed: "):
        engine.generate_many(["b", options.pop("prompt")], **options)
    assert engine.engine.num_unfinished == 0
    assert not engine._inboxes


@pytest.mark.parametrize("n", [0, -1, 1.5, "2", True, None])
def test_a_number_of_samples_that_makes_no_sense_is_refused(n):
    with pytest.raises(InvalidOption, match="n is"):
        babbling().generate_many(["a"], n=n)


@pytest.mark.parametrize("prompts", ["one text", None, 5])
def test_prompts_that_are_no_list_are_refused(prompts):
    with pytest.raises(InvalidOption, match="prompts"):
        babbling().generate_many(prompts)


def test_a_seed_that_runs_out_of_range_is_refused_before_anything_is_decoded():
    engine = babbling()
    with pytest.raises(InvalidOption, match="seed"):
        engine.generate_many(["a"], n=2, seed=2**63 - 1)
    assert engine.engine.num_unfinished == 0


@pytest.mark.parametrize("raw", ["yes", 1, None])
def test_raw_is_true_or_false(raw):
    with pytest.raises(InvalidOption, match=r"raw is .*; allowed: True or False"):
        TextEngine(toy_engine(TableModel(8)), ByteTokenizer()).add("hi", raw=raw)
