"""Smaller decoders: transformers' graph and the native decoder mean the same by the same weights."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from checkpoints import (
    FAMILIES,
    Kind,
    byte_level_tokenizer,
    gguf_vocabulary,
    save_folder,
    save_tokenizer,
    tiny_model,
    write_gguf,
)
from outrider.core import Block
from outrider.errors import CheckpointError, InvalidOption, UnsupportedModel
from outrider.models.checkpoint import open_checkpoint
from outrider.models.load import load_decoder
from outrider.models.opening import open_model
from outrider.models.tokenizer import compare_vocabularies, load_tokenizer
from outrider.training.smaller import as_checkpoint, build, kept_layers, save

TOKENS = [3, 17, 250, 4, 4, 99]
SMALL = {"num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 96, "head_dim": 16}


def native(checkpoint):
    decoder = load_decoder(checkpoint, "float32")
    block = Block(torch.tensor([TOKENS]), torch.arange(len(TOKENS))[None], (0,), (len(TOKENS),))
    return decoder.forward(block, decoder.new_cache(1, 16)).logits[0]


@torch.inference_mode()
def through_transformers(model):
    return model.eval()(input_ids=torch.tensor([TOKENS]), use_cache=False).logits[0]


@pytest.mark.parametrize(
    ("num_layers", "wanted", "kept"),
    [(30, 2, (0, 29)), (30, 4, (0, 10, 19, 29)), (4, 3, (0, 2, 3)), (6, 5, (0, 1, 2, 4, 5))],
)
def test_the_first_and_the_last_layer_are_kept_and_even_ones_between(num_layers, wanted, kept):
    assert kept_layers(num_layers, wanted) == kept


@pytest.mark.parametrize("wanted", [-1, 0, 1, 4, 9])
def test_too_few_or_all_layers_are_refused(wanted):
    with pytest.raises(InvalidOption, match=f"layers is {wanted}; allowed: 2 to 3. The target has 4 layers"):
        kept_layers(4, wanted)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [False, True], ids=["own head", "tied"])
def test_both_graphs_of_the_kept_layers_agree(family, tied, tmp_path):
    whole = tiny_model(family, tie_word_embeddings=tied, **SMALL)
    checkpoint = open_checkpoint(save_folder(whole, tmp_path / "target"))
    model = build(checkpoint, (0, 2, 3))
    small = as_checkpoint(model, replace(checkpoint.config, num_layers=3))
    assert torch.allclose(native(small), through_transformers(model), atol=1e-4)
    del whole.model.layers[1]  # the plain way to the same model
    for index, layer in enumerate(whole.model.layers):
        layer.self_attn.layer_idx = index
    assert torch.allclose(through_transformers(whole), through_transformers(model), atol=1e-5)
    assert not torch.allclose(native(small), native(checkpoint), atol=1e-1)


def test_all_layers_are_the_model_itself(tmp_path):
    checkpoint = open_checkpoint(save_folder(tiny_model("llama", **SMALL), tmp_path / "target"))
    assert torch.equal(native(as_checkpoint(build(checkpoint, range(4)), checkpoint.config)), native(checkpoint))


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0},
        {
            "rope_type": "llama3",
            "rope_theta": 5000.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ],
    ids=["linear", "llama3"],
)
def test_stretched_positions_stay_stretched(rope, tmp_path):
    checkpoint = open_checkpoint(save_folder(tiny_model("llama", rope_parameters=rope, **SMALL), tmp_path / "target"))
    model = build(checkpoint, (0, 3))
    small = as_checkpoint(model, replace(checkpoint.config, num_layers=2))
    assert torch.allclose(native(small), through_transformers(model), atol=1e-4)


def test_a_folder_is_written_that_everybody_reads(tmp_path):
    target = save_folder(tiny_model("qwen3", **SMALL), tmp_path / "target")
    save_tokenizer(byte_level_tokenizer(), target)
    checkpoint, tokenizer = open_checkpoint(target), load_tokenizer(target)
    model = build(checkpoint, (0, 3))
    save(model, tokenizer, target, tmp_path / "small")
    opened = open_model(str(tmp_path / "small"), "float32", torch.device("cpu"), None)
    compare_vocabularies(tokenizer, opened.tokenizer)
    assert opened.tokenizer.stop_ids == tokenizer.stop_ids
    assert opened.tokenizer.chat_template == tokenizer.chat_template
    assert opened.checkpoint.config == replace(checkpoint.config, num_layers=2)
    assert torch.equal(native(opened.checkpoint), native(as_checkpoint(model, opened.checkpoint.config)))


def test_a_gguf_target_is_cut_and_its_tokenizer_written(tmp_path):
    model, backend = tiny_model("llama", **SMALL), byte_level_tokenizer()
    path = tmp_path / "target.gguf"
    write_gguf(path, model, Kind.Q8_0, metadata=gguf_vocabulary(backend, "gpt-2"))
    checkpoint, tokenizer = open_checkpoint(path), load_tokenizer(path)
    small = build(checkpoint, (0, 3))
    save(small, tokenizer, path, tmp_path / "small")
    opened = open_model(str(tmp_path / "small"), "float32", torch.device("cpu"), None)
    compare_vocabularies(tokenizer, opened.tokenizer)
    assert opened.tokenizer.eos_id in opened.tokenizer.stop_ids <= tokenizer.stop_ids
    assert opened.tokenizer.encode_chat([{"role": "user", "content": "Hi"}]) == tokenizer.encode_chat(
        [{"role": "user", "content": "Hi"}]
    )
    assert torch.allclose(native(opened.checkpoint), through_transformers(small), atol=1e-4)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    target = save_folder(tiny_model("llama", **SMALL), tmp_path / "target")
    (target / "generation_config.json").unlink(missing_ok=True)
    model = build(open_checkpoint(target), (0, 3))
    with pytest.raises(CheckpointError, match="none of the files of a tokenizer"):
        save(model, load_tokenizer_of_bytes(tmp_path), target, tmp_path / "small")


def load_tokenizer_of_bytes(tmp_path):
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": 2}))
    return load_tokenizer(save_tokenizer(byte_level_tokenizer(), folder))


def test_a_gguf_file_with_stretched_positions_is_refused(tmp_path):
    checkpoint = open_checkpoint(save_folder(tiny_model("llama", **SMALL), tmp_path / "target"))
    stretched = replace(checkpoint.config, rope=replace(checkpoint.config.rope, kind="linear", factor=2.0))
    with pytest.raises(UnsupportedModel, match=r"stretches its positions \(linear\)"):
        build(replace(checkpoint, path=tmp_path / "target.gguf", config=stretched), (0, 3))
