"""`outrider.load` with targets that run through transformers: a model that the caller holds, or a folder of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

import outrider
from checkpoints import CHAT_TEMPLATE, byte_level_tokenizer, save_folder, save_tokenizer, tiny_model
from outrider.errors import InvalidOption, UnsupportedModel
from outrider.models.transformers import TransformersModel

WINDOW = 24


@pytest.fixture(scope="module")
def spoken() -> Any:
    return PreTrainedTokenizerFast(
        tokenizer_object=byte_level_tokenizer(), eos_token="<|im_end|>", chat_template=CHAT_TEMPLATE
    )


def greedy_ids(model: Any, prompt: list[int], count: int) -> list[int]:
    """What transformers itself decodes."""
    ids = model.generate(torch.tensor([prompt]), max_new_tokens=count, do_sample=False, pad_token_id=0)
    return ids[0, len(prompt) :].tolist()


def test_a_loaded_model_with_its_tokenizer_decodes_text(spoken: Any) -> None:
    model = tiny_model("llama")
    engine = outrider.load(model, tokenizer=spoken)
    result = engine.generate("The quick brown fox", raw=True, max_new_tokens=30)
    assert list(result.token_ids) == greedy_ids(model, spoken.encode("The quick brown fox"), 30)
    assert result.text == spoken.decode(result.token_ids, skip_special_tokens=True)
    assert len(result.text) > 10
    assert (
        "".join(piece.text for piece in engine.stream("The quick brown fox", raw=True, max_new_tokens=30))
        == result.text
    )


def test_its_chat_template_and_end_tokens_count(spoken: Any) -> None:
    model = tiny_model("llama")
    model.generation_config.eos_token_id = [7, 8]
    engine = outrider.load(model, tokenizer=spoken)
    assert engine.tokenizer.stop_ids == {2, 7, 8}
    wanted = spoken.encode("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert list(engine.generate("Hi", max_new_tokens=1).prompt_token_ids) == wanted


def test_without_a_tokenizer_the_one_saved_beside_the_model_is_taken(tmp_path: Path, spoken: Any) -> None:
    save_tokenizer(byte_level_tokenizer(), save_folder(tiny_model("llama"), tmp_path))
    engine = outrider.load(AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32))
    assert engine.generate("fox", raw=True, max_new_tokens=2).prompt_token_ids == tuple(spoken.encode("fox"))


def test_a_model_that_was_never_saved_needs_its_tokenizer() -> None:
    with pytest.raises(InvalidOption, match="tokenizer is None"):
        outrider.load(tiny_model("llama"))


def test_a_loaded_model_keeps_its_own_precision(spoken: Any) -> None:
    assert (
        outrider.load(tiny_model("llama"), tokenizer=spoken, precision="float32").engine.target.precision == "float32"
    )
    with pytest.raises(InvalidOption, match="precision is 'bfloat16'"):
        outrider.load(tiny_model("llama"), tokenizer=spoken, precision="bfloat16")


def windowed(source: str, folder: Path) -> Any:
    """A target whose layers forget what is more than WINDOW tokens back."""
    model = tiny_model("mistral", sliding_window=WINDOW)
    return model if source == "model" else save_tokenizer(byte_level_tokenizer(), save_folder(model, folder))


@pytest.mark.parametrize("source", ["model", "folder"])
def test_a_windowed_model_can_be_used_up_to_its_window(source: str, tmp_path: Path, spoken: Any) -> None:
    tokenizer = spoken if source == "model" else None
    target = windowed(source, tmp_path)
    with pytest.raises(UnsupportedModel, match=f"Pass context_length={WINDOW} to stop there"):
        outrider.load(target, tokenizer=tokenizer)
    engine = outrider.load(target, tokenizer=tokenizer, context_length=WINDOW)
    assert isinstance(engine.engine.target, TransformersModel)
    prompt = list(range(3, 11))
    result = engine.generate(prompt, max_new_tokens=None)
    assert result.finish_reason == "length"
    assert len(result.token_ids) == WINDOW - len(prompt)
    assert list(result.token_ids) == greedy_ids(
        tiny_model("mistral", sliding_window=WINDOW), prompt, WINDOW - len(prompt)
    )


def test_a_context_longer_than_the_models_is_refused(spoken: Any) -> None:
    with pytest.raises(InvalidOption, match="context_length is 513; allowed: 1 to 512"):
        outrider.load(tiny_model("llama"), tokenizer=spoken, context_length=513)
