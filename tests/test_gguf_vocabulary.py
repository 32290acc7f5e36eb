from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import pre_tokenizers

from checkpoints import byte_level_tokenizer, gguf_vocabulary, write_gguf_file
from outrider.errors import CheckpointError, UnsupportedModel
from outrider.models.tokenizer import load_tokenizer


@pytest.fixture
def metadata() -> dict[str, Any]:
    splitting = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return gguf_vocabulary(byte_level_tokenizer(splitting, vocab_size=400), "gpt-2")


def write_vocabulary(path: Path, metadata: dict[str, Any]) -> Path:
    write_gguf_file(path, {"general.architecture": "llama"} | metadata, {})
    return path


# --- damaged and unknown vocabularies -------------------------------------------------------------------------------

DAMAGED: dict[str, dict[str, Any]] = {
    "no tokens": {"tokens": None},
    "tokens that are numbers": {"tokens": [1, 2, 3]},
    "types of fewer tokens": {"token_type": [1, 1]},
    "types that are words": {"token_type": ["a"] * 400},
    "merges that are numbers": {"merges": [1, 2]},
    "merges of unknown tokens": {"merges": ["never seen"]},
    "merges of three parts": {"merges": ["a b c"]},
    "merges of one part": {"merges": ["ab"]},
    "an end outside the vocabulary": {"eos_token_id": 400},
    "an end that is a word": {"eos_token_id": "end"},
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_vocabulary_is_refused(name: str, tmp_path: Path, metadata: dict[str, Any]) -> None:
    damage = {f"tokenizer.ggml.{key}": value for key, value in DAMAGED[name].items()}
    with pytest.raises(CheckpointError, match=r"v\.gguf"):
        load_tokenizer(write_vocabulary(tmp_path / "v.gguf", metadata | damage))


@pytest.mark.parametrize(("key", "value"), [("model", "bert"), ("model", None), ("pre", "viking"), ("pre", 3)])
def test_an_unknown_kind_of_vocabulary_is_refused_by_name(key: str, value: Any, tmp_path: Path, metadata: Any) -> None:
    path = write_vocabulary(tmp_path / "v.gguf", metadata | {f"tokenizer.ggml.{key}": value})
    with pytest.raises(UnsupportedModel, match=repr(value)):
        load_tokenizer(path)


# --- SentencePiece --------------------------------------------------------------------------------------------------

PIECES = [
    "<unk>",
    "<s>",
    "</s>",
    *(f"<0x{byte:02X}>" for byte in range(256)),
    "▁",
    "t",
    "h",
    "e",
    "▁t",
    "he",
    "▁the",
    "▁▁",
]
SENTENCEPIECE: dict[str, Any] = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": PIECES,
    "tokenizer.ggml.scores": [0.0] * 259 + [-9.0, -10.0, -11.0, -12.0, -1.0, -2.0, -3.0, -4.0],
    "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * 8,
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("the", ["▁the"]),
        ("the the", ["▁the", "▁the"]),
        ("  the", ["▁▁", "▁the"]),
        ("thé", ["▁t", "h", "<0xC3>", "<0xA9>"]),
        ("the\n", ["▁the", "<0x0A>"]),
        ("</s>the", ["</s>", "▁the"]),
        ("<0x0A>", ["▁", "<0x3C>", "<0x30>", "<0x78>", "<0x30>", "<0x41>", "<0x3E>"]),
    ],
)
def test_sentencepiece_merges_the_best_score_first(text: str, spelled: list[str], tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_vocabulary(tmp_path / "v.gguf", SENTENCEPIECE))
    assert [PIECES[i] for i in tokenizer.encode(text)] == spelled
    assert tokenizer.encode_prompt(text) == [1, *tokenizer.encode(text)]
    if "</s>" not in text:
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(("score", "spelled"), [(-0.5, ["▁", "th", "e"]), (-20.0, ["▁the"])])
def test_sentencepiece_scores_decide(score: float, spelled: list[str], tmp_path: Path) -> None:
    added = {"tokens": "th", "scores": score, "token_type": 1}
    more = {f"tokenizer.ggml.{key}": [*SENTENCEPIECE[f"tokenizer.ggml.{key}"], value] for key, value in added.items()}
    tokenizer = load_tokenizer(write_vocabulary(tmp_path / "v.gguf", SENTENCEPIECE | more))
    assert [tokenizer.strings()[i] for i in tokenizer.encode("the")] == spelled


def test_sentencepiece_without_its_space_prefix(tmp_path: Path) -> None:
    metadata = SENTENCEPIECE | {"tokenizer.ggml.add_space_prefix": False}
    tokenizer = load_tokenizer(write_vocabulary(tmp_path / "v.gguf", metadata))
    assert [PIECES[i] for i in tokenizer.encode("the the")] == ["t", "he", "▁the"]
    assert tokenizer.decode(tokenizer.encode(" the")) == " the"


def test_sentencepiece_without_scores_is_refused(tmp_path: Path) -> None:
    path = write_vocabulary(tmp_path / "v.gguf", SENTENCEPIECE | {"tokenizer.ggml.scores": None})
    with pytest.raises(CheckpointError, match=r"without tokenizer\.ggml\.scores"):
        load_tokenizer(path)
