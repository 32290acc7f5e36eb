"""What the target writes to be trained on, and the folder that it is kept in."""

from __future__ import annotations

import json

import pytest
import torch

from outrider.drafters.none import NoDrafter
from outrider.engine import Engine
from outrider.errors import InvalidOption
from outrider.models.opening import open_model
from outrider.planning.pace import FixedPace
from outrider.rules import choose_rule
from outrider.training import work
from outrider.training.budget import Chosen
from outrider.training.texts import Sample, Wish, load_samples, opening, read_prompts, write_samples
from outrider.training.trainer import read_kept
from outrider.training.work import check_out, prepare, split, write_texts
from toy import ByteTokenizer
from training_runs import toy_target


class WithoutTemplate(ByteTokenizer):
    chat_template = None


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return open_model(str(toy_target(tmp_path_factory.mktemp("target"))), "float32", torch.device("cpu"), None)


def plain_engine(target, slots=6):
    rule = choose_rule("auto", "point_mass", allow_lossy=False)
    return Engine(target.model, NoDrafter(), rule, FixedPace(0), slots=slots, context_length=160)


WISH = Wish(450, max_answer=40, max_prompt=60)


# ---------------------------------------------------------------- prompts


def test_prompts_are_read_from_both_kinds_of_lines(tmp_path):
    path, tokenizer = tmp_path / "data.jsonl", ByteTokenizer()
    asked = [{"role": "user", "content": "Hi"}]
    lines = [{"prompt": "Hi"}, {"messages": asked}, {"messages": [*asked, {"role": "assistant", "content": "Ho"}]}]
    path.write_text("\n\n".join(json.dumps(line) for line in lines))
    assert read_prompts(path, tokenizer) == [tokenizer.encode_chat(asked)] * 3
    assert read_prompts(path, tokenizer)[0] != tokenizer.encode_prompt("Hi")
    path.write_text('{"prompt": "Hi"}\n')
    assert read_prompts(path, WithoutTemplate()) == [tokenizer.encode_prompt("Hi")]


def test_broken_lines_are_counted_and_named(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": \n\n{"text": "b"}\n{"prompt": ""}\n[1]\n{"prompt": "c"}\n')
    with pytest.raises(InvalidOption) as refused:
        read_prompts(path, ByteTokenizer())
    message = str(refused.value)
    assert "4 of 7 lines are broken" in message
    for number in (2, 4, 5, 6):
        assert f"line {number}: " in message
    assert "line 1:" not in message
    assert "line 7:" not in message


def test_lines_that_are_json_and_no_prompts_are_named_too(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text('{"messages": ["x"]}\n{"messages": [null]}\n' + '{"prompt": ' + "[" * 100_000 + "\n")
    with pytest.raises(InvalidOption, match="3 of 3 lines are broken: line 1"):
        read_prompts(path, ByteTokenizer())


def test_a_line_may_hold_any_line_end_of_unicode_and_the_file_a_byte_order_mark(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text('\ufeff{"prompt": "one\u2028two\u0085"}\n', encoding="utf-8")
    tokenizer = ByteTokenizer()
    (prompt,) = read_prompts(path, tokenizer)
    assert "one\u2028two\u0085" in tokenizer.decode(prompt)


@pytest.mark.parametrize("content", ["", "[]", "junk", '{"tokens": [1]}', "\0"])
def test_damaged_texts_are_refused_with_what_to_do(content, tmp_path):
    path = tmp_path / "000.jsonl"
    path.write_text(content)
    if content:
        with pytest.raises(InvalidOption, match="Delete the file"):
            load_samples(path)
    else:
        assert load_samples(path) == []


@pytest.mark.parametrize("content", ["", "[]", "junk", "[" * 100_000])
def test_damaged_files_of_a_training_are_refused_by_name(content, tmp_path):
    path = tmp_path / "options.json"
    path.write_text(content)
    with pytest.raises(InvalidOption, match=r"resume is .*options\.json"):
        read_kept(path)


def test_a_template_that_begins_with_the_users_words_is_refused():
    class Bare(ByteTokenizer):
        def encode_chat(self, messages, add_generation_prompt=True):
            return self.encode(messages[0]["content"])

    class Deaf(ByteTokenizer):
        def encode_chat(self, messages, add_generation_prompt=True):
            return [1, 2, 3]

    for tokenizer in (Bare(), Deaf()):
        with pytest.raises(InvalidOption, match="nothing before the user's words"):
            opening(tokenizer)


@pytest.mark.parametrize("content", [None, b"", b"\n\n", b"\xff\xfe\x00"], ids=["missing", "empty", "blank", "binary"])
def test_a_file_without_prompts_is_refused(content, tmp_path):
    if content is not None:
        (tmp_path / "data.jsonl").write_bytes(content)
    with pytest.raises(InvalidOption, match=r"^data is "):
        read_prompts(tmp_path / "data.jsonl", ByteTokenizer())


def test_a_target_without_a_template_cannot_write_prompts():
    with pytest.raises(InvalidOption, match=r"data is None; allowed: a JSONL file of prompts.*no chat template"):
        opening(WithoutTemplate())


def test_the_opening_is_all_before_the_users_first_word(target):
    assert target.tokenizer.decode(opening(target.tokenizer)) == "user\n"
    assert opening(ByteTokenizer()) == [256, 259]


# ---------------------------------------------------------------- texts


def written(target, **changes):
    samples = list(write_samples(plain_engine(target), target.tokenizer, None, Wish(**{**vars(WISH), **changes})))
    assert sum(len(s.tokens) - s.answer for s in samples) >= WISH.num_tokens
    return samples


def test_the_target_writes_both_sides_of_a_conversation(target):
    begun = opening(target.tokenizer)
    samples = written(target)
    for sample in samples:
        assert list(sample.tokens[: len(begun)]) == begun
        assert sample.own == len(begun) < sample.answer < len(sample.tokens)
        assert target.tokenizer.decode(sample.tokens[: sample.answer]).endswith("assistant\n")
        assert len(sample.tokens) - sample.answer <= WISH.max_answer
    assert len({sample.tokens[: sample.answer] for sample in samples}) == len(samples)
    ended = [sample for sample in samples if sample.tokens[-1] in target.tokenizer.stop_ids]
    assert len(ended) > len(samples) / 4


def test_texts_are_a_function_of_the_seed(target):
    assert written(target) == written(target) != written(target, seed=1)


def test_given_prompts_are_answered_and_nothing_else_is_the_targets_own(target):
    prompts = [target.tokenizer.encode_chat([{"role": "user", "content": word}]) for word in ("river", "stone")]
    samples = list(write_samples(plain_engine(target), target.tokenizer, prompts, WISH))
    assert sorted(list(s.tokens[: s.answer]) for s in samples) == sorted(prompts)
    assert all(sample.own == sample.answer for sample in samples)


def test_parts_that_are_there_are_not_written_again(target, tmp_path, monkeypatch):
    monkeypatch.setattr(work, "PART_TOKENS", 150)
    told = []
    whole = write_texts(
        plain_engine(target), target.tokenizer, None, WISH, tmp_path / "a", lambda done, _: told.append(done)
    )
    assert told == sorted(told)
    assert told[-1] == WISH.num_tokens
    parts = sorted((tmp_path / "a").iterdir())
    assert len(parts) == 3
    kept = parts[1].stat().st_mtime_ns
    parts[2].unlink()
    assert write_texts(plain_engine(target), target.tokenizer, None, WISH, tmp_path / "a") == whole
    assert parts[1].stat().st_mtime_ns == kept


def test_the_last_texts_are_held_out():
    texts = [Sample((i, 0, 7), 2, 2) for i in range(50)]
    training, held_out = split(texts)
    assert [*training, *held_out] == texts
    assert len(held_out) == 2
    with pytest.raises(InvalidOption, match="at least two different prompts"):
        split(texts[:1])


def test_no_answer_to_a_held_out_prompt_is_trained_on():
    texts = [Sample((i % 5, 0, i), 2, 2) for i in range(50)]
    training, held_out = split(texts)
    assert {s.tokens[:2] for s in training}.isdisjoint(s.tokens[:2] for s in held_out)
    assert len(training) == 50 - 2 * 10
    with pytest.raises(InvalidOption, match="give more prompts"):
        split([Sample((1, 0, i), 2, 2) for i in range(50)])


# ---------------------------------------------------------------- the folder

ASKED = {"kind": "medusa", "seed": 0, "layers": (1, 2)}


def test_a_folder_with_something_in_it_is_refused(tmp_path):
    (tmp_path / "mine").write_text("precious")
    for out in (tmp_path, tmp_path / "mine"):
        with pytest.raises(InvalidOption, match=r"out is .*; allowed: a folder that does not exist or is empty"):
            prepare(out, ASKED, resume=False)
    assert (tmp_path / "mine").read_text() == "precious"


def test_only_what_was_begun_with_the_same_options_is_resumed(tmp_path):
    with pytest.raises(InvalidOption, match="a folder in which a training was begun"):
        prepare(tmp_path / "out", ASKED, resume=True)
    begun = prepare(tmp_path / "out", ASKED, resume=False)
    assert prepare(tmp_path / "out", ASKED, resume=True) == begun
    with pytest.raises(InvalidOption, match="seed was 0, is 1"):
        prepare(tmp_path / "out", {**ASKED, "seed": 1}, resume=True)


def test_sizes_are_chosen_once(tmp_path):
    path = prepare(tmp_path / "out", ASKED, resume=False) / "options.json"
    assert Chosen(path).get("steps", lambda: 7) == 7
    assert Chosen(path).get("steps", lambda: 8) == 7
    assert Chosen(path).get("tokens", lambda: 9) == 9
    check_out(tmp_path / "out", ASKED, resume=True)
