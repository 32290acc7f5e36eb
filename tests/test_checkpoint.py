from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType as Kind
from safetensors.torch import load_file, save_file

from checkpoints import (
    ALL_KINDS,
    FAMILIES,
    dequantized,
    gguf_name,
    save_folder,
    tiny_model,
    to_gguf_rows,
    write_gguf,
)
from outrider.errors import CheckpointError, UnsupportedModel
from outrider.models.checkpoint import Checkpoint, Groups4, expected_shapes, open_checkpoint

Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture
def llama_folder(tmp_path: Path) -> Path:
    return save_folder(tiny_model("llama"), tmp_path / "llama")


def all_equal(checkpoint: Checkpoint, weights: dict[str, torch.Tensor]) -> bool:
    return checkpoint.names == weights.keys() and all(torch.equal(checkpoint.tensor(n), w) for n, w in weights.items())


# --- what is read is what was written -------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_gives_the_weights_that_transformers_saved(family: str, tmp_path: Path) -> None:
    model = tiny_model(family)
    checkpoint = open_checkpoint(save_folder(model, tmp_path / family))
    assert all_equal(checkpoint, model.state_dict())
    assert checkpoint.names == expected_shapes(checkpoint.config).keys()
    assert not checkpoint.is_q4
    assert checkpoint.groups4(Q_PROJ) is None


@pytest.mark.parametrize("family", FAMILIES)
def test_a_gguf_file_gives_the_same_weights_and_config_as_the_folder(family: str, tmp_path: Path) -> None:
    model = tiny_model(family)
    write_gguf(tmp_path / "model.gguf", model)
    folder, file = open_checkpoint(save_folder(model, tmp_path / family)), open_checkpoint(tmp_path / "model.gguf")
    assert all_equal(file, model.state_dict())
    theirs = vars(folder.config) | ({"architecture": "LlamaForCausalLM"} if family == "mistral" else {})
    ours = vars(file.config) | {"rms_norm_eps": pytest.approx(1e-5)}  # a GGUF file holds it in single precision
    assert ours == theirs


def test_rows_of_q_left_in_gguf_order_would_be_noticed(tmp_path: Path) -> None:
    model = tiny_model("llama")
    plain = model.state_dict()[Q_PROJ].numpy()
    write_gguf(tmp_path / "model.gguf", model, extra={gguf_name(Q_PROJ): (plain.view(np.uint8), Kind.F32)})
    assert not all_equal(open_checkpoint(tmp_path / "model.gguf"), model.state_dict())


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("kind", ALL_KINDS, ids=lambda kind: kind.name)
def test_every_number_format_is_dequantised_as_gguf_does(kind: Kind, family: str, tmp_path: Path) -> None:
    model = tiny_model(family)
    stored = write_gguf(tmp_path / "model.gguf", model, kind)
    checkpoint = open_checkpoint(tmp_path / "model.gguf")
    heads = {"q_proj": 4, "k_proj": 2} if family == "llama" else {}
    for name in model.state_dict():
        ours = checkpoint.tensor(name).numpy()
        if name.split(".")[-2] in heads:
            ours = to_gguf_rows(ours, heads[name.split(".")[-2]])
        assert ours.dtype == np.float32
        assert np.array_equal(ours, dequantized(*stored[gguf_name(name)]))


def weights_of(groups: Groups4) -> torch.Tensor:
    rows = groups.codes.float().unflatten(1, (-1, 32)) * groups.scales[:, :, None] + groups.mins[:, :, None]
    return rows.flatten(1)


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1], ids=lambda kind: kind.name)
def test_groups4_are_the_stored_codes_scales_and_mins(kind: Kind, tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", tiny_model("llama"), kind)
    checkpoint = open_checkpoint(tmp_path / "model.gguf")
    assert checkpoint.is_q4
    for name in checkpoint.names:
        groups, tensor = checkpoint.groups4(name), checkpoint.tensor(name)
        if tensor.ndim == 1:
            assert groups is None
            continue
        assert groups is not None
        assert groups.codes.dtype == torch.uint8
        assert groups.codes.max() <= 15
        assert groups.scales.shape == groups.mins.shape == (len(tensor), tensor.shape[1] // 32)
        assert torch.equal(weights_of(groups), tensor)
        halves = groups.codes.unflatten(1, (-1, 2, 16)).flip(2).flatten(1)  # low and high nibbles exchanged
        assert not torch.equal(weights_of(Groups4(halves, groups.scales, groups.mins)), tensor)
        assert torch.equal(groups.mins, -8 * groups.scales) == (kind is Kind.Q4_0)


@pytest.mark.parametrize("kind", set(ALL_KINDS) - {Kind.Q4_0, Kind.Q4_1}, ids=lambda kind: kind.name)
def test_other_formats_have_no_groups4(kind: Kind, tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", tiny_model("qwen2"), kind)
    checkpoint = open_checkpoint(tmp_path / "model.gguf")
    assert not checkpoint.is_q4
    assert all(checkpoint.groups4(name) is None for name in checkpoint.names)


def test_tensors_are_copies_that_a_caller_may_change(llama_folder: Path, tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", tiny_model("llama"))
    for checkpoint in (open_checkpoint(llama_folder), open_checkpoint(tmp_path / "model.gguf")):
        before = checkpoint.tensor(Q_PROJ).clone()
        checkpoint.tensor(Q_PROJ).zero_()
        assert torch.equal(checkpoint.tensor(Q_PROJ), before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_folders_come_out_as_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    model = tiny_model("llama").to(dtype)
    checkpoint = open_checkpoint(save_folder(model, tmp_path / "half"))
    assert all_equal(checkpoint, {name: weight.float() for name, weight in model.state_dict().items()})


def test_a_folder_of_several_files_is_read_through_its_index(tmp_path: Path) -> None:
    model = tiny_model("qwen3")
    folder = save_folder(model, tmp_path / "shards", max_shard_size="1MB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    assert all_equal(open_checkpoint(folder), model.state_dict())


def test_biases_are_read_where_a_config_switches_them_on(tmp_path: Path) -> None:
    model = tiny_model("llama", attention_bias=True, mlp_bias=True)
    write_gguf(tmp_path / "model.gguf", model)
    for path in (save_folder(model, tmp_path / "biased"), tmp_path / "model.gguf"):
        checkpoint = open_checkpoint(path)
        assert all_equal(checkpoint, model.state_dict())
        assert checkpoint.config.attention_bias
        assert checkpoint.config.output_bias
        assert checkpoint.config.mlp_bias


# --- tied heads -----------------------------------------------------------------------------------------------------


def test_a_tied_head_has_no_tensor_of_its_own(tmp_path: Path) -> None:
    model = tiny_model("llama", tie_word_embeddings=True)
    write_gguf(tmp_path / "model.gguf", model)
    for path in (save_folder(model, tmp_path / "tied"), tmp_path / "model.gguf"):
        checkpoint = open_checkpoint(path)
        assert checkpoint.config.tie_embeddings
        assert "lm_head.weight" not in checkpoint.names


def test_a_stored_copy_of_a_tied_head_must_be_equal(tmp_path: Path) -> None:
    folder = save_folder(tiny_model("llama", tie_word_embeddings=True), tmp_path / "tied")
    change_tensors(folder, lambda t: t | {"lm_head.weight": t["model.embed_tokens.weight"].clone()})
    assert "lm_head.weight" not in open_checkpoint(folder).names
    change_tensors(folder, lambda t: t | {"lm_head.weight": t["lm_head.weight"] + 1})
    with pytest.raises(CheckpointError, match=r"ties lm_head\.weight .* differ"):
        open_checkpoint(folder)


# --- strict both ways -----------------------------------------------------------------------------------------------


def change_tensors(folder: Path, change: Any) -> None:
    file = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    save_file(change(tensors), file)


def without(tensors: dict[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    return {key: tensor for key, tensor in tensors.items() if key != name}


CHANGES = {
    "dropped": (lambda t: without(t, Q_PROJ), [f"missing {Q_PROJ}", "left over none"]),
    "added": (lambda t: t | {"model.extra.weight": torch.ones(2)}, ["missing none", "left over model.extra.weight"]),
    "renamed": (
        lambda t: without(t, Q_PROJ) | {"model.layers.1.self_attn.query.weight": t[Q_PROJ]},
        [f"missing {Q_PROJ}", "left over model.layers.1.self_attn.query.weight"],
    ),
    "of another shape": (lambda t: t | {Q_PROJ: t[Q_PROJ][:-1].clone()}, [Q_PROJ, "[255, 256]", "[256, 256]"]),
    "transposed": (
        lambda t: t | {"model.layers.0.mlp.up_proj.weight": t["model.layers.0.mlp.up_proj.weight"].T.contiguous()},
        ["model.layers.0.mlp.up_proj.weight", "[256, 512]", "[512, 256]"],
    ),
    "without its prefix": (lambda t: {n.removeprefix("model."): w for n, w in t.items()}, ["missing", "left over"]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_tensor_that_was_changed_is_named(change: str, llama_folder: Path) -> None:
    edit, messages = CHANGES[change]
    change_tensors(llama_folder, edit)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(llama_folder)
    assert all(message in str(caught.value) for message in (*messages, str(llama_folder)))


def test_a_missing_head_is_not_made_up(llama_folder: Path) -> None:
    change_tensors(llama_folder, lambda t: without(t, "lm_head.weight"))
    with pytest.raises(CheckpointError, match=r"missing lm_head\.weight"):
        open_checkpoint(llama_folder)


def test_stored_rotary_buffers_do_no_harm(llama_folder: Path) -> None:
    buffer = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(32)}
    change_tensors(llama_folder, lambda t: t | buffer)
    assert not open_checkpoint(llama_folder).names & buffer.keys()


def test_gguf_tensors_are_strict_too(tmp_path: Path) -> None:
    model = tiny_model("llama")
    odd = {"blk.0.attn_sinks.weight": (np.ones(4, np.float32), Kind.F32)}
    write_gguf(tmp_path / "odd.gguf", model, extra=odd)
    with pytest.raises(CheckpointError, match=r"left over blk\.0\.attn_sinks\.weight"):
        open_checkpoint(tmp_path / "odd.gguf")
    write_gguf(tmp_path / "more.gguf", model, metadata={"llama.block_count": 3})
    with pytest.raises(CheckpointError, match=r"missing model\.layers\.2\..* and 4 more"):
        open_checkpoint(tmp_path / "more.gguf")


def test_a_claim_of_a_billion_layers_is_refused_at_once(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", tiny_model("llama"), metadata={"llama.block_count": 10**9})
    with pytest.raises(CheckpointError, match="too few for the 1000000000 layers"):
        open_checkpoint(tmp_path / "model.gguf")


@pytest.mark.parametrize("kind", [Kind.Q2_K, Kind.IQ4_NL], ids=lambda kind: kind.name)
def test_a_number_format_that_is_not_read_is_refused_by_name(kind: Kind, tmp_path: Path) -> None:
    block = {Kind.Q2_K: 84, Kind.IQ4_NL: 8 * 18}[kind]
    odd = {gguf_name(Q_PROJ): (np.zeros((256, block), np.uint8), kind)}
    write_gguf(tmp_path / "model.gguf", tiny_model("llama"), extra=odd)
    with pytest.raises(UnsupportedModel, match=rf"blk\.1\.attn_q\.weight.* stored as {kind.name}"):
        open_checkpoint(tmp_path / "model.gguf")


def test_a_vector_in_blocks_is_refused_by_name(tmp_path: Path) -> None:
    odd = {"output_norm.weight": (np.zeros(8 * 34, np.uint8), Kind.Q8_0)}
    write_gguf(tmp_path / "model.gguf", tiny_model("llama"), extra=odd)
    with pytest.raises(UnsupportedModel, match=r"vector 'output_norm\.weight' is stored as Q8_0"):
        open_checkpoint(tmp_path / "model.gguf")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(value: float, llama_folder: Path, tmp_path: Path) -> None:
    model = tiny_model("llama")
    model.state_dict()[Q_PROJ][3, 5] = value
    write_gguf(tmp_path / "model.gguf", model)
    change_tensors(llama_folder, lambda t: t | {Q_PROJ: model.state_dict()[Q_PROJ]})
    for path in (llama_folder, tmp_path / "model.gguf"):
        with pytest.raises(CheckpointError, match=Q_PROJ):
            open_checkpoint(path).tensor(Q_PROJ)


def test_large_weights_are_not_mistaken_for_infinities(llama_folder: Path) -> None:
    change_tensors(llama_folder, lambda t: t | {Q_PROJ: torch.full_like(t[Q_PROJ], 3e38)})
    assert open_checkpoint(llama_folder).tensor(Q_PROJ).min() == 3e38


# --- damaged folders ------------------------------------------------------------------------------------------------


def test_a_safetensors_file_cut_anywhere_is_refused(llama_folder: Path) -> None:
    file = llama_folder / "model.safetensors"
    content = file.read_bytes()
    for end in (0, 4, 8, 100, 1000, len(content) // 2, len(content) - 1):
        file.write_bytes(content[:end])
        with pytest.raises(CheckpointError, match=r"model\.safetensors is truncated or damaged"):
            open_checkpoint(llama_folder)
    file.write_bytes(content)
    open_checkpoint(llama_folder)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[1, 2]", b'"text"'])
def test_a_config_that_is_no_json_dictionary_is_refused(content: bytes, llama_folder: Path) -> None:
    (llama_folder / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        open_checkpoint(llama_folder)


def test_a_folder_without_config_is_refused(llama_folder: Path) -> None:
    (llama_folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        open_checkpoint(llama_folder)


def test_pickle_files_are_refused_with_the_reason(llama_folder: Path) -> None:
    (llama_folder / "model.safetensors").rename(llama_folder / "pytorch_model.bin")
    for path in (llama_folder, llama_folder / "pytorch_model.bin"):
        with pytest.raises(CheckpointError, match=r"pytorch_model\.bin.*pickle files can run code"):
            open_checkpoint(path)


def test_a_folder_without_weights_is_refused(llama_folder: Path) -> None:
    (llama_folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="has no safetensors file"):
        open_checkpoint(llama_folder)


def test_several_files_without_an_index_are_refused(llama_folder: Path) -> None:
    for name in ("a.safetensors", "b.safetensors"):
        shutil.copy(llama_folder / "model.safetensors", llama_folder / name)
    (llama_folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"2 safetensors files but no model\.safetensors\.index\.json"):
        open_checkpoint(llama_folder)


@pytest.mark.parametrize("listed", ["../model.safetensors", "gone.safetensors", "config.json", 5])
def test_an_index_that_lists_no_file_of_its_folder_is_refused(listed: Any, llama_folder: Path) -> None:
    index = {"weight_map": {"lm_head.weight": listed}}
    (llama_folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"index\.json"):
        open_checkpoint(llama_folder)


def test_a_tensor_in_two_files_is_refused(llama_folder: Path) -> None:
    shutil.copy(llama_folder / "model.safetensors", llama_folder / "copy.safetensors")
    index = {"weight_map": {"lm_head.weight": "copy.safetensors", "model.norm.weight": "model.safetensors"}}
    (llama_folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="in another file of the folder too"):
        open_checkpoint(llama_folder)


def test_whole_numbers_as_weights_are_refused_by_name(llama_folder: Path) -> None:
    change_tensors(llama_folder, lambda t: t | {Q_PROJ: t[Q_PROJ].to(torch.int8)})
    with pytest.raises(UnsupportedModel, match=rf"{Q_PROJ}' is stored as I8"):
        open_checkpoint(llama_folder)


def test_a_single_safetensors_file_points_at_its_folder(llama_folder: Path) -> None:
    with pytest.raises(CheckpointError, match="give its folder"):
        open_checkpoint(llama_folder / "model.safetensors")


# --- identity -------------------------------------------------------------------------------------------------------


def test_the_fingerprint_follows_the_contents_and_not_the_place(llama_folder: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(llama_folder, tmp_path / "copy"))
    before = open_checkpoint(llama_folder).fingerprint
    assert open_checkpoint(copied).fingerprint == before
    change_tensors(copied, lambda t: t | {Q_PROJ: t[Q_PROJ] + 1e-3})
    assert open_checkpoint(copied).fingerprint != before


def test_the_fingerprint_follows_the_config(llama_folder: Path) -> None:
    before = open_checkpoint(llama_folder).fingerprint
    config = json.loads((llama_folder / "config.json").read_text())
    (llama_folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 2e-5}))
    assert open_checkpoint(llama_folder).fingerprint != before
