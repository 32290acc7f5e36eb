"""The door: names and options to an engine, and what is refused there."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf.constants import GGMLQuantizationType as Kind

import outrider
from checkpoints import save_folder, tiny_model, write_gguf
from outrider.drafters import NgramDrafter
from outrider.errors import CheckpointError, InvalidOption, OutriderError
from outrider.models.checkpoint import Checkpoint, open_checkpoint
from outrider.models.decoder import Decoder
from outrider.models.precision import MAX_KL, SAMPLE_TEXT, choose_precision, known_distances, mean_kl
from outrider.models.tokenizer import Tokenizer

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        (
            "drafter",
            "ngrams",
            "none, ngram, suffix, lookahead, recycling, early-exit:LAYERS, quantised, model:ID, eagle:PATH",
        ),
        ("drafter", "model:", "model:ID, with options"),
        ("drafter", object(), "propose"),
        ("rule", "exact", "auto, block, coupled, point-mass, recursive, token, traversal, typical"),
        ("rule", "block", "point-mass"),
        ("rule", "typical", "allow_lossy"),
        ("precision", "int8", "auto, float32, bfloat16, float16, q4"),
        ("num_draft_tokens", -1, "0 to 64"),
        ("num_draft_tokens", 65, "0 to 64"),
        ("num_draft_tokens", "many", "0 to 64"),
        ("slots", 0, "1 to 1024"),
        ("slots", 10**9, "1 to 1024"),
        ("context_length", 1, "2 to 8192"),
        ("context_length", 0, "2 to 8192"),
        ("context_length", 8193, "2 to 8192"),
        ("threads", 0, "1 to 1024"),
        ("threads", 10**9, "1 to 1024"),
        ("threads", True, "1 to 1024"),
        ("num_draft_tokens", True, "0 to 64"),
        ("rule", ["token"], "auto, block"),
        ("drafter", NgramDrafter, "an object, not a class"),
        ("device", "gpu7", "device"),
        ("tokenizer", "gpt2", "None for a target that is named"),
    ],
)
def test_a_bad_option_is_refused_with_what_is_allowed(option: str, value: Any, named: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        outrider.load("smollm2", **{"precision": "q4", "context_length": 64, option: value})
    assert named in str(caught.value)


@pytest.mark.parametrize("target", ["no-such-model", "no/such/model.gguf", "/nowhere"])
def test_a_target_that_does_not_exist_is_refused(target: str) -> None:
    with pytest.raises(CheckpointError, match="There is no model"):
        outrider.load(target)


def test_invariant_mode_limits_the_draft() -> None:
    with pytest.raises(InvalidOption, match="0 to 15 in invariant mode"):
        outrider.load("smollm2", num_draft_tokens=16, invariant=True)


def test_a_draft_of_another_vocabulary_is_translated_and_says_so(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    from checkpoints import byte_level_tokenizer

    folder = save_folder(tiny_model("llama"), tmp_path)
    PreTrainedTokenizerFast(tokenizer_object=byte_level_tokenizer(), eos_token="<|im_end|>").save_pretrained(folder)
    engine = outrider.load("smollm2", precision="q4", context_length=64, drafter=f"model:{folder}")
    stats = engine.generate("One, two.", max_new_tokens=6, temperature=0.8, seed=1).stats
    assert re.fullmatch(r"(token|string) level, \d+ of [\d,]+ tokens shared", stats.note)
    assert stats.broken_draft is None
    with pytest.raises(InvalidOption, match="another tokenizer"):
        outrider.load("smollm2", precision="q4", context_length=64, drafter=f"model:{folder},tree=auto")


def test_a_model_drafts_for_itself_and_everything_is_accepted() -> None:
    engine = outrider.load(
        "smollm2", precision="q4", context_length=128, drafter="model:smollm2", num_draft_tokens=3, slots=1
    )
    stats = engine.generate("Name two planets.", max_new_tokens=16, stop_ids=(), temperature=0.8, seed=3).stats
    assert stats.rule == "block"
    assert stats.num_accepted_tokens == stats.num_draft_tokens > 0


def test_auto_takes_the_fastest_precision_near_float32() -> None:
    engine = outrider.load("smollm2", context_length=64)
    assert engine.engine.target.precision == "q4"
    assert engine.engine.drafter.name == "suffix+eagle"


def test_the_shipped_distances_are_those_of_this_machine(
    smollm2: Callable[[str], Decoder], smollm2_checkpoint: Checkpoint, smollm2_tokenizer: Tokenizer
) -> None:
    tokens = smollm2_tokenizer.encode(SAMPLE_TEXT)
    shipped = known_distances()[smollm2_checkpoint.fingerprint]
    for precision in ("q4", "float16"):
        found = mean_kl(smollm2("float32"), smollm2(precision), tokens)
        assert found < MAX_KL
        assert found == pytest.approx(shipped[precision], rel=0.5, abs=1e-5)


def test_auto_measures_what_is_not_known(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", tiny_model("llama"), Kind.Q4_1)
    checkpoint = open_checkpoint(tmp_path / "model.gguf")
    model = choose_precision(checkpoint, lambda: list(range(3, 100)), CPU)
    assert model.precision in ("q4", "float16")


def test_a_far_precision_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from outrider.models import precision as module

    write_gguf(tmp_path / "model.gguf", tiny_model("llama"), Kind.Q4_1)
    monkeypatch.setattr(module, "MAX_KL", 0.0)
    model = choose_precision(open_checkpoint(tmp_path / "model.gguf"), lambda: [3, 4, 5], CPU)
    assert model.precision == "float32"


def test_every_error_of_ours_has_one_base() -> None:
    from outrider import errors

    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    ours = [kind for kind in kinds if not issubclass(kind, Warning)]
    assert len(ours) == 7
    assert all(issubclass(kind, OutriderError) for kind in ours)


REPEAT = "Repeat: one two three four one two three four one two three"


@cache
def plain_text() -> str:
    plain = outrider.load("smollm2", drafter="none", precision="q4", context_length=128, slots=1)
    return plain.generate(REPEAT, max_new_tokens=16).text


@pytest.mark.parametrize(
    ("typed", "kind", "note"),
    [
        ("suffix:branches=3,min_match=1", "suffix", ""),
        ("recycling:row_cost=0.1", "recycling", ""),
        ("lookahead:window=2,ngram=3,candidates=2", "lookahead", ""),
        ("early-exit:20", "early-exit", ""),
        ("suffix+early-exit:20", "suffix+early-exit", "suffix in"),
    ],
)
def test_every_drafter_of_the_embedded_model_gives_the_plain_text(typed: str, kind: str, note: str) -> None:
    fixed = {"num_draft_tokens": 4} if "early-exit" in typed else {}  # seldom worth it, so seldom used
    engine = outrider.load("smollm2", drafter=typed, precision="q4", context_length=128, slots=1, **fixed)
    result = engine.generate(REPEAT, max_new_tokens=16)
    assert result.text == plain_text()
    assert (result.stats.drafter, result.stats.note[: len(note)]) == (kind, note)
    assert result.stats.num_draft_tokens > 0
    assert result.stats.broken_draft is None


def test_a_narrower_copy_of_the_target_drafts_for_it() -> None:
    options = {"context_length": 64, "slots": 1}
    engine = outrider.load("smollm2", drafter="quantised", precision="float16", num_draft_tokens=3, **options)
    stats = engine.generate("Name two fruits.", max_new_tokens=16).stats
    assert stats.mean_acceptance_length > 1.5
    with pytest.raises(InvalidOption, match="nothing narrower"):
        outrider.load("smollm2", drafter="quantised", precision="q4", **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drafter": "early-exit:30"}, r"1 to 29.*has 30 layers"),
        ({"drafter": "early-exit:x"}, "N a number of layers"),
        ({"drafter": "suffix:branches=0"}, "branches"),
        ({"drafter": "lookahead:window=99"}, "window"),
        ({"drafter": "recycling", "rule": "token"}, "rule is 'token'.*takes trees"),
        ({"drafter": "ngram", "corpus": ["x.txt"]}, "corpus.*suffix"),
        ({"drafter": "suffix", "corpus": ["no-such-file.txt"]}, "corpus.*no-such-file"),
        ({"drafter": "suffix", "corpus": [3]}, "corpus.*list of file names"),
        ({"drafter": "suffix", "corpus": [b"x"]}, "corpus.*list of file names"),
        ({"drafter": "suffix", "corpus": "text.txt"}, "corpus.*list of file names"),
        ({"drafter": "suffix:branches=65"}, "branches is 65; allowed: 1 .* to 64"),
    ],
)
def test_drafters_that_cannot_be_had_are_refused_by_name(options: dict, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        outrider.load("smollm2", precision="q4", context_length=64, slots=1, **options)


def test_a_prediction_is_drafted_and_a_corpus_is_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    options = {"precision": "q4", "context_length": 128, "slots": 1}
    prompt = "Write the first ten numbers as words."
    plain = outrider.load("smollm2", drafter="none", **options).generate(prompt, max_new_tokens=24)
    (tmp_path / "text.txt").write_text(f"Something else. {plain.text} And more.", encoding="utf-8")
    predicted = outrider.load("smollm2", **options).generate(prompt, prediction=plain.text, max_new_tokens=24)
    looked_up = outrider.load("smollm2", corpus=[tmp_path / "text.txt"], **options).generate(prompt, max_new_tokens=24)
    for result in (predicted, looked_up):
        assert result.token_ids == plain.token_ids
        assert result.stats.mean_acceptance_length > 2
