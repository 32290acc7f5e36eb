"""Every way in which a folder can be wrong is an error that names it."""

from __future__ import annotations

import json

import pytest
import torch

from head_files import edited, save, written
from heads import eagle_head, medusa_head, mlp_head, tiny_target
from outrider.drafters.heads.files import read_head
from outrider.errors import CheckpointError, UnsupportedModel

TARGET = tiny_target()
DEPTH = TARGET.num_layers
ATTENTION = "midlayer.self_attn."

EAGLE3 = eagle_head(TARGET, draft_ids=(0, 2, 3, 7, 11), own_embedding=True)
BASES = {
    "safeailab-eagle3": EAGLE3,
    "speculators-eagle3": EAGLE3,
    "safeailab-eagle1": eagle_head(TARGET, 1, biased=True),
    "medusa": medusa_head(TARGET),
    "vllm-medusa": medusa_head(TARGET, draft_ids=(0, 2, 3, 7, 11)),
}


def config(**changes):
    return lambda settings, tensors: settings.update(changes)


def inner(**changes):
    return lambda settings, tensors: settings["transformer_layer_config"].update(changes)


def nested(**changes):
    return lambda settings, tensors: settings["eagle_config"].update(changes)


def tensor(name, *shape):
    return lambda settings, tensors: tensors.update({name: torch.ones(shape)})


def ids(name, *values, dtype=torch.int64):
    return lambda settings, tensors: tensors.update({name: torch.tensor(values, dtype=dtype)})


def without(*names):
    return lambda settings, tensors: [tensors.pop(name) for name in names]


def both(*changes):
    return lambda settings, tensors: [change(settings, tensors) for change in changes]


def latent(settings, tensors):
    tensors[f"{ATTENTION}q_a_proj.weight"] = tensors.pop(f"{ATTENTION}q_proj.weight")


def broken(settings, tensors):
    tensors["fc.weight"][1, 1] = float("nan")


def twice(settings, tensors):
    tensors["draft_model.fc.weight"] = tensors["fc.weight"]


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
BIASES = {f"layers.0.self_attn.{x}_proj.bias" for x in "qkvo"}

EAGLE3_FAULTS = {
    "a missing tensor": (without("norm.weight"), "missing norm.weight"),
    "a missing midlayer": (without("midlayer.hidden_norm.weight"), r"missing layers\.0\.hidden_norm\.weight"),
    "two missing": (without("norm.weight", f"{ATTENTION}o_proj.weight"), r"o_proj\.weight, norm\.weight"),
    "a missing fc": (without("fc.weight"), r"fc\.weight is missing"),
    "an extra tensor": (tensor("gate.weight", 3), r"left over gate\.weight"),
    "a tensor twice": (twice, "are the same tensor"),
    "a wrong shape": (tensor("midlayer.mlp.up_proj.weight", 3, 48), r"shape \[3, 48\], the config asks for \[56, 48\]"),
    "a wrong fc": (tensor("fc.weight", 48, 100), "must read states of the target's 48"),
    "fewer states": (tensor("fc.weight", 48, 96), "fc is 2 states wide"),
    "another count of states": (config(num_aux_hidden_states=2), "num_aux_hidden_states is not 3"),
    "a wider target": (config(target_hidden_size=96), "must read states of the target's 96"),
    "a wrong output": (config(draft_vocab_size=6), r"shape \[5"),
    "too large a vocabulary": (config(draft_vocab_size=13), "draft_vocab_size 13 is over vocab_size 12"),
    "two layers": (config(num_hidden_layers=2), "2 layers; only heads of one"),
    "tensors of a second layer": (tensor("layers.1.mlp.up_proj.weight", 56, 48), r"more than one layer \(layers\.1"),
    "latent attention": (latent, "latent attention"),
    "another activation": (config(hidden_act="gelu"), "hidden_act = 'gelu'"),
    "quantised": (config(quantization_config={"quant_method": "fp8"}), "quantization_config"),
    "rope of llama 3": (config(rope_scaling=LLAMA3), "rope_scaling of type 'llama3'"),
    "rope of old": (config(rope_scaling={"type": "dynamic", "factor": 2.0}), "rope_scaling of type 'dynamic'"),
    "part of a rotation": (config(partial_rotary_factor=0.5), "partial_rotary_factor"),
    "two bases": (config(rope_theta=10_000.0), "10000.0 and 5000.0"),
    "no base": (config(rope_theta=-1.0), "rope_theta = -1.0"),
    "a base of 1": (config(rope_theta=1, rope_parameters=None), "must be over 1"),
    "a flag that is none": (config(norm_before_residual="yes"), "norm_before_residual = 'yes'"),
    "a flag in two ways": (nested(norm_before_fc=True), "norm_before_fc is False, but True"),
    "a flag without its norm": (config(norm_before_fc=True), r"missing input_norm\.weight"),
    "flags without their norms": (config(fc_norm=True), r"missing fc_norm\.0\.weight, fc_norm\.1\.weight"),
    "a norm without its flag": (tensor("input_norm.weight", 144), r"left over input_norm\.weight"),
    "norms that exclude each other": (config(fc_norm=True, norm_before_fc=True), "exclude each other"),
    "biases by the config alone": (config(attention_bias=True), r"has no layers\.0\.self_attn\.k_proj\.bias"),
    "biases by the tensors alone": (tensor(f"{ATTENTION}q_proj.bias", 32), "attention_bias = false"),
    "half of the q and k norms": (tensor(f"{ATTENTION}q_norm.weight", 8), "only one of"),
    "no output though tied": (both(config(tie_word_embeddings=True), without("lm_head.weight")), "tie_word_embeddings"),
    "no maps": (without("d2t", "t2d"), "neither d2t nor t2d"),
    "maps that contradict": (ids("d2t", 0, 1, 1, 4, 6), "contradict each other"),
    "a map out of range": (both(ids("d2t", 0, 1, 1, 4, 9), without("t2d")), "id 13 is out of range"),
    "a map that collides": (both(ids("d2t", 0, 1, 0, 4, 7), without("t2d")), "two ids are both 2"),
    "a map that falls": (both(ids("d2t", 4, 1, 1, 4, 7), without("t2d")), "do not ascend"),
    "a short map": (ids("d2t", 0, 1, 1, 4), r"d2t' has shape \[4\]"),
    "a short mask": (ids("t2d", True, False, dtype=torch.bool), r"t2d' has shape \[2\]"),
    "a map of fractions": (tensor("d2t", 5), "stored as F32; read are I64, I32"),
    "a weight of integers": (ids("norm.weight", *range(48)), "stored as I64; read are F32"),
    "not a number": (broken, "'fc.weight' holds infinities or NaNs"),
    "no size": (config(hidden_size=None), "hidden_size = None"),
    "a negative size": (config(intermediate_size=-3), "intermediate_size = -3"),
    "a giant size": (config(intermediate_size=2**40), "from 1 to"),
    "heads that do not divide": (config(num_key_value_heads=3), "must divide among the key heads"),
    "odd heads": (config(head_dim=7), "must be even"),
    "no state": (config(eagle_aux_hidden_state_layer_ids=[1, 2, 5]), "contradict each other"),
    "DFlash": (config(dflash_config={}), "DFlash"),
    "no features": (nested(use_aux_hidden_state=False), "use_aux_hidden_state = false"),
    "another norm at the end": (nested(use_last_layernorm=False), "use_last_layernorm = False"),
    "several steps at once": (nested(parallel_draft_step=4), "parallel_draft_step = 4"),
}

SPECULATORS_FAULTS = {
    "P-EAGLE": (config(speculators_model_type="peagle"), "'peagle'; read is only 'eagle3'"),
    "no inner config": (config(transformer_layer_config=None), "no dictionary transformer_layer_config"),
    "another family": (inner(model_type="gemma"), "model_type 'gemma'; read are llama, qwen3"),
    "nonsense": (inner(hidden_size="wide"), "not a config of type 'llama'|hidden_size"),
    "layers by default": (
        lambda settings, tensors: settings["transformer_layer_config"].pop("num_hidden_layers"),
        "32",
    ),
    "another attention": (inner(layer_types=["linear_attention"]), "linear_attention"),
    "rope": (inner(rope_parameters={**LLAMA3, "rope_theta": 5e3, "original_max_position_embeddings": 512}), "'llama3'"),
}

EAGLE1_FAULTS = {
    "a norm of the input": (tensor("layers.0.input_layernorm.weight", 48), "left over layers.0.input_layernorm"),
    "an output": (tensor("lm_head.weight", 12, 48), r"left over lm_head\.weight"),
    "no bias": (without("fc.bias"), r"bias = True, but the file has no fc\.bias"),
    "a bias too many": (config(bias=False), r"bias = False, but the file has fc\.bias"),
    "a wider target": (config(target_hidden_size=96), "as wide as its target"),
    "a wrong fc": (tensor("fc.weight", 48, 48), r"shape \[48, 48\]"),
    "two layers": (config(num_hidden_layers=2), "only heads of one"),
}

MEDUSA_FAULTS = {
    "a missing block": (without("1.0.linear.weight"), r"missing 1\.0\.linear\.weight"),
    "a missing output": (without("1.1.weight"), r"missing 1\.1\.weight"),
    "no blocks": (config(medusa_num_layers=2), r"missing 0\.1\.linear\.weight|shape|left over"),
    "more heads": (config(medusa_num_heads=5), r"missing 3\.0\.linear\.weight"),
    "too many heads": (config(medusa_num_heads=10**9), "too few tensors"),
    "an extra tensor": (tensor("x.weight", 2), r"left over x\.weight"),
    "a smaller vocabulary": (config(truncated_vocab_size=5), "no token_map"),
    "another width": (config(hidden_size=47), r"asks for \[47"),
    "biases by the config alone": (
        both(without(*(f"{k}.0.linear.bias" for k in range(3))), config(medusa_fc_bias=True)),
        "but no biases",
    ),
}

VLLM_FAULTS = {
    "a map out of range": (ids("token_map", 0, 2, 3, 7, 12), "id 12 is out of range"),
    "a map that collides": (ids("token_map", 0, 2, 3, 3, 11), "two ids are both 3"),
    "a short map": (ids("token_map", 0, 2), r"token_map' has shape \[2\]"),
    "a scale": (config(logit_scale=0.5), "logit_scale = 0.5"),
    "too large a vocabulary": (config(truncated_vocab_size=13), "too many"),
    "two maps": (ids("d2t", 0, 1), "left over d2t"),
}

FAULTS = {
    f"{kind}: {name}": (kind, *fault)
    for kind, faults in {
        "safeailab-eagle3": EAGLE3_FAULTS,
        "speculators-eagle3": SPECULATORS_FAULTS,
        "safeailab-eagle1": EAGLE1_FAULTS,
        "medusa": MEDUSA_FAULTS,
        "vllm-medusa": VLLM_FAULTS,
    }.items()
    for name, fault in faults.items()
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named(name, tmp_path):
    kind, change, message = FAULTS[name]
    folder = edited(written(tmp_path, BASES[kind], kind), change)
    with pytest.raises((CheckpointError, UnsupportedModel), match=message):
        read_head(folder, DEPTH)


@pytest.mark.parametrize("kind", BASES)
def test_without_a_fault_there_is_no_error(kind, tmp_path):
    read_head(edited(written(tmp_path, BASES[kind], kind), lambda settings, tensors: None), DEPTH)


def test_an_eagle1_head_needs_the_depth_of_its_target(tmp_path):
    with pytest.raises(CheckpointError, match=r"EAGLE-1 head.*Name the target"):
        read_head(written(tmp_path, BASES["safeailab-eagle1"], "safeailab-eagle1"))


def test_faults_of_mlp_speculators_are_named(tmp_path):
    head = mlp_head(TARGET)
    settings = {"model_type": "mlp_speculator", "emb_dim": 48, "inner_dim": 24, "n_predict": 3, "vocab_size": 12}
    with pytest.raises(CheckpointError, match=r"ties emb\.1\.weight to emb\.0\.weight"):
        read_head(save(tmp_path / "tied", settings | {"tie_weights": True}, head.weights))
    with pytest.raises(CheckpointError, match="too few tensors"):
        read_head(save(tmp_path / "long", settings | {"n_predict": 10**9}, head.weights))
    fewer = {name: w for name, w in head.weights.items() if name != "ln.2.bias"}
    with pytest.raises(CheckpointError, match=r"missing ln\.2\.bias"):
        read_head(save(tmp_path / "fewer", settings, fewer))
    with pytest.raises(CheckpointError, match=r"shape \[24\], the config asks for \[23\]"):
        read_head(save(tmp_path / "narrow", settings | {"inner_dim": 23}, {"ln.0.bias": head.weights["ln.0.bias"]} | {
            name: torch.ones([23 if size == 24 else size for size in w.shape])
            for name, w in head.weights.items() if name != "ln.0.bias"
        }))  # fmt: skip


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("suffix", ["bin", "pt", "pth", "ckpt"])
def test_pickles_are_refused_with_the_way_out(suffix, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / f"head.{suffix}").write_bytes(b"\x80\x04.")
    for path in (tmp_path, tmp_path / f"head.{suffix}"):
        with pytest.raises(CheckpointError, match=rf"head\.{suffix}.*run code.*save_file"):
            read_head(path)


def test_what_is_no_head_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="not a folder"):
        read_head(tmp_path / "nothing")
    with pytest.raises(UnsupportedModel, match="GGUF"):
        read_head(tmp_path / "head.gguf")
    with pytest.raises(CheckpointError, match="no safetensors file"):
        read_head(tmp_path)
    with pytest.raises(CheckpointError, match="no head that outrider knows"):
        read_head(save(tmp_path / "model", {"model_type": "llama"}, {"model.norm.weight": torch.ones(3)}))


def test_damaged_files_are_refused(tmp_path):
    folder = written(tmp_path, EAGLE3, "safeailab-eagle3")
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    for damaged in (whole[:-7], whole[:20], b"", b"\xff" * 40):
        file.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="truncated or damaged"):
            read_head(folder, DEPTH)
    file.write_bytes(whole)
    read_head(folder, DEPTH)
    settings = (folder / "config.json").read_text()
    for damaged in (settings[:-9], "[]", "null", '{"hidden_size": NaN}'):
        (folder / "config.json").write_text(damaged)
        with pytest.raises(CheckpointError):
            read_head(folder, DEPTH)
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        read_head(folder, DEPTH)


def test_every_key_of_a_config_may_be_of_any_type(tmp_path):
    """Whatever stands there, it is read or refused, and never a crash."""
    for kind, head in BASES.items():
        folder = written(tmp_path, head, kind)
        settings = json.loads((folder / "config.json").read_text())
        for key in settings:
            for value in (None, True, -1, 0, 2**70, 1.5, "x", [], ["x"], [2**70], {}, {"x": 1}):
                (folder / "config.json").write_text(json.dumps(settings | {key: value}))
                try:
                    read_head(folder, DEPTH)
                except (CheckpointError, UnsupportedModel):
                    continue
