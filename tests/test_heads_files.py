from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from head_files import differences, written
from heads import eagle_head, medusa_head, mlp_head, noise, tiny_target
from outrider.drafters.heads.config import EagleConfig
from outrider.drafters.heads.files import FORMATS, read, read_head, write_head
from outrider.drafters.heads.formats import Hints
from outrider.drafters.heads.formats_eagle import eagle_shapes
from outrider.drafters.heads.formats_eagle_write import write_eagle3
from outrider.drafters.heads.stored import StoredHead
from outrider.errors import CheckpointError, InvalidOption

TARGET = tiny_target()
DEPTH = TARGET.num_layers
REDUCED = (0, 2, 3, 7, 11)


def eagle3(**options):
    return eagle_head(TARGET, draft_ids=REDUCED, **options)


def biased(head, *names):
    """With biases of attention."""
    stems = [f"layers.0.self_attn.{x}_proj" for x in names]
    extra = {f"{stem}.bias": noise(i, len(head.weights[f"{stem}.weight"])) for i, stem in enumerate(stems)}
    return replace(head, weights=head.weights | extra)


def with_fc(head, weight):
    return replace(head, weights=head.weights | {"fc.weight": weight(head.weights["fc.weight"])})


HEADS = {
    "eagle-1": ("safeailab-eagle1", eagle_head(TARGET, 1)),
    "eagle-1 with all": ("safeailab-eagle1", eagle_head(TARGET, 1, biased=True, own_embedding=True)),
    "eagle-3": ("safeailab-eagle3", eagle3()),
    "eagle-3 whole vocabulary": ("safeailab-eagle3", eagle_head(TARGET, own_embedding=True)),
    "eagle-3 flags": ("safeailab-eagle3", eagle3(norm_before_residual=True, norm_before_fc=True, norm_output=True)),
    "eagle-3 fc_norm": ("safeailab-eagle3", eagle3(fc_norm=True, biased=True)),
    "eagle-3 two states": ("safeailab-eagle3", eagle3(feature_layers=(0, 3))),
    "eagle-3 attention biases": ("safeailab-eagle3", biased(eagle3(), *"qkvo")),
    "speculators": ("speculators-eagle3", eagle3(own_embedding=True)),
    "speculators flags": (
        "speculators-eagle3",
        eagle3(own_embedding=True, norm_before_residual=True, norm_before_fc=True, norm_output=True, qk_norm=True),
    ),
    "speculators fc_norm": ("speculators-eagle3", eagle3(own_embedding=True, fc_norm=True, feature_layers=(3, 1))),
    "medusa": ("medusa", medusa_head(TARGET)),
    "medusa of two layers": ("medusa", medusa_head(TARGET, num_layers=2)),
    "vllm": ("vllm-medusa", medusa_head(TARGET, num_layers=2)),
    "vllm reduced": ("vllm-medusa", medusa_head(TARGET, biased=False, draft_ids=REDUCED)),
    "tgi": ("tgi-medusa", medusa_head(TARGET)),
    "tgi shared output": ("tgi-medusa", medusa_head(TARGET, own_outputs=False)),
}


# ---------------------------------------------------------------- round trips


@pytest.mark.parametrize("name", HEADS)
def test_a_round_trip_keeps_every_bit(name, tmp_path):
    kind, head = HEADS[name]
    found = read(written(tmp_path, head, kind), Hints(DEPTH))
    assert differences(found.head, head) == []
    assert found.format == ("medusa" if name == "tgi" else kind)  # V1 has the reference's tensors


def test_every_format_has_a_round_trip():
    assert {kind for kind, _ in HEADS.values()} == set(FORMATS)


@pytest.mark.parametrize(
    "change",
    [
        lambda head: replace(head, config=replace(head.config, rope_theta=5_000.1)),
        lambda head: replace(head, draft_ids=head.draft_ids.roll(1)),
        lambda head: with_fc(head, lambda weight: weight.nextafter(torch.ones(1))),
        lambda head: with_fc(head, torch.Tensor.double),
        lambda head: replace(head, weights={n: w for n, w in head.weights.items() if n != "norm.weight"}),
    ],
)
def test_a_changed_bit_is_seen(change):
    head = eagle3()
    assert differences(change(head), head) != []


def test_number_formats_are_kept_where_they_are_wanted(tmp_path):
    head = eagle3()
    head = replace(head, weights={n: w.bfloat16() if w.ndim == 2 else w for n, w in head.weights.items()})
    folder = written(tmp_path, head, "safeailab-eagle3")
    assert differences(read(folder, Hints(DEPTH, as_stored=True)).head, head) == []
    assert json.loads((folder / "config.json").read_text())["torch_dtype"] == "bfloat16"
    read_back = read_head(folder, DEPTH).weights
    assert all(torch.equal(read_back[n], w.float()) for n, w in head.weights.items())
    assert {w.dtype for w in read_back.values()} == {torch.float32}


def test_a_conversion_and_back_keeps_every_bit(tmp_path):
    head = eagle3(own_embedding=True, norm_before_fc=True)
    there = read_head(written(tmp_path, head, "speculators-eagle3"), DEPTH)
    assert differences(read_head(written(tmp_path, there, "safeailab-eagle3"), DEPTH), head) == []


def test_heads_that_share_one_output_are_written_one_by_one(tmp_path):
    head = medusa_head(TARGET)
    shared = {name: head.weights["0.1.weight"] if name.endswith(".1.weight") else w for name, w in head.weights.items()}
    head = replace(head, weights=shared)
    assert differences(read_head(written(tmp_path, head, "medusa")), head) == []


# ---------------------------------------------------------------- what is written

SMOLLM2_CONFIG = """{
  "architectures": ["LlamaForCausalLMEagle3"],
  "model_type": "llama",
  "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 1,
  "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64,
  "hidden_act": "silu", "rms_norm_eps": 1e-05,
  "rope_theta": 10000.0, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
  "rope_scaling": null, "max_position_embeddings": 2048,
  "vocab_size": 49152, "draft_vocab_size": 8192,
  "attention_bias": false, "mlp_bias": false, "tie_word_embeddings": false,
  "pad_token_id": 0, "torch_dtype": "float32",
  "norm_before_residual": false, "norm_before_fc": false, "fc_norm": false,
  "eagle_aux_hidden_state_layer_ids": [2, 15, 27],
  "eagle_config": {"use_aux_hidden_state": true, "eagle_aux_hidden_state_layer_ids": [1, 14, 26]}
}"""
"""What a head for SmolLM2-135M must have (reference: head formats, section 5.1)."""


def smollm2_head(**changes):
    config = EagleConfig(3, 576, 576, 1536, 9, 3, 64, 49_152, 8192, (2, 15, 27), **changes)
    shapes = eagle_shapes(config)
    needed = {**shapes.required, "lm_head.weight": shapes.optional["lm_head.weight"]}
    weights = {name: torch.empty(shape, device="meta") for name, shape in needed.items()}
    return StoredHead(config, weights, torch.arange(8192) * 3)


def test_the_config_of_an_eagle3_head_is_the_golden_one():
    settings, tensors, _ = write_eagle3(smollm2_head())
    assert settings == json.loads(SMOLLM2_CONFIG)
    own = {"fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d"}
    assert {name for name in tensors if "midlayer" not in name} == own
    assert tensors["d2t"][:3].tolist() == [0, 2, 4]
    assert tensors["t2d"].nonzero()[:, 0].tolist() == list(range(0, 24_576, 3))


def test_norm_output_is_written_only_where_it_is_true():
    assert write_eagle3(smollm2_head(norm_output=True))[0]["norm_output"] is True


def test_a_speculators_config_says_everything(tmp_path):
    head = eagle3(own_embedding=True)
    settings = json.loads((written(tmp_path, head, "speculators-eagle3") / "config.json").read_text())
    flags = ["norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"]
    assert [settings[flag] for flag in flags] == [False] * 4
    assert settings["eagle_aux_hidden_state_layer_ids"] == [1, 2, 4]
    assert settings["speculators_config"]["verifier"]["name_or_path"] == "owner/target"
    inner = settings["transformer_layer_config"]
    assert inner["rope_theta"] == inner["rope_parameters"]["rope_theta"] == 5_000.0
    assert inner["num_aux_hidden_states"] == 3


@pytest.mark.parametrize("kind", ["medusa", "tgi-medusa"])
def test_tgi_and_the_reference_get_zeros_for_missing_biases(kind, tmp_path):
    head = medusa_head(TARGET, biased=False)
    folder = written(tmp_path, head, kind)
    found = read_head(folder)
    assert all(not found.weights[f"{k}.0.linear.bias"].any() for k in range(3))
    assert "architectures" not in json.loads((folder / "config.json").read_text())
    assert [path.name for path in folder.glob("*.safetensors")] == ["medusa_lm_head.safetensors"]


def test_vllm_is_told_of_biases(tmp_path):
    for place, has in enumerate((True, False)):
        (tmp_path / str(place)).mkdir()
        folder = written(tmp_path / str(place), medusa_head(TARGET, biased=has), "vllm-medusa")
        settings = json.loads((folder / "config.json").read_text())
        assert settings["medusa_fc_bias"] is has
        assert [key for key in settings if "num" in key and "heads" in key] == ["num_heads"]


REFUSALS = {
    "no output of its own": (
        "safeailab-eagle3",
        eagle_head(TARGET, own_output=False),
        r"lm_head\.weight is the target",
    ),
    "no embedding": ("speculators-eagle3", eagle3(), r"embed_tokens\.weight is the target's own"),
    "no outputs": ("medusa", medusa_head(TARGET, own_outputs=False), r"0\.1\.weight is the target's own"),
    "no outputs, two layers": ("tgi-medusa", medusa_head(TARGET, num_layers=2, own_outputs=False), r"0\.2\.weight is"),
    "no place for a vocabulary": ("medusa", medusa_head(TARGET, draft_ids=REDUCED), "place for a smaller vocabulary"),
    "no place for q and k norms": ("safeailab-eagle3", eagle3(qk_norm=True), "Norms of q and k"),
    "another kind": ("medusa", eagle3(), "safeailab-eagle1, safeailab-eagle3, speculators-eagle3"),
    "another version": ("safeailab-eagle3", eagle_head(TARGET, 1), "It is an EAGLE-1 head"),
    "another version again": ("safeailab-eagle1", eagle3(), "It is an EAGLE-3 head"),
    "an MLP speculator": ("medusa", mlp_head(TARGET), "only read"),
    "no such format": ("eagle", eagle3(), "'eagle'"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_a_format_has_no_place_for_is_refused(name, tmp_path):
    kind, head, message = REFUSALS[name]
    with pytest.raises(InvalidOption, match=message):
        write_head(head, tmp_path / "out", kind, target="owner/target")
    assert list(tmp_path.iterdir()) == []


def test_a_head_that_does_not_fit_its_config_is_not_written(tmp_path):
    head = eagle3()
    wrong = {
        "fc.weight": replace(head, weights=head.weights | {"fc.weight": torch.ones(3, 3)}),
        "norm.weight": replace(head, weights={n: w for n, w in head.weights.items() if n != "norm.weight"}),
        "draft_ids": replace(head, draft_ids=torch.tensor([0, 2, 2, 7, 11])),
        "there are 2": replace(head, draft_ids=torch.tensor([0, 2])),
    }
    for message, each in wrong.items():
        with pytest.raises(CheckpointError, match=message):
            write_head(each, tmp_path / "out", "safeailab-eagle3", target="")
    assert list(tmp_path.iterdir()) == []


def test_only_a_new_or_an_empty_folder_is_written_to(tmp_path):
    (tmp_path / "empty").mkdir()
    write_head(eagle3(), tmp_path / "empty", "safeailab-eagle3", target="")
    assert differences(read_head(tmp_path / "empty", DEPTH), eagle3()) == []
    before = sorted((p.name, p.stat().st_mtime_ns) for p in (tmp_path / "empty").iterdir())
    with pytest.raises(InvalidOption, match="new or an empty folder"):
        write_head(eagle3(), tmp_path / "empty", "safeailab-eagle3", target="")
    assert before == sorted((p.name, p.stat().st_mtime_ns) for p in (tmp_path / "empty").iterdir())
    with pytest.raises(InvalidOption, match="can be written"):
        write_head(eagle3(), tmp_path / "empty" / "config.json" / "x", "safeailab-eagle3", target="")
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
