from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from head_files import differences, edited, save, written
from heads import eagle_head, medusa_head, mlp_head, noise, tiny_target
from outrider.drafters.heads.files import read, read_head
from outrider.drafters.heads.formats import Hints
from outrider.drafters.heads.formats_eagle import eagle_shapes
from outrider.drafters.heads.formats_vocabulary import draft_ids
from outrider.drafters.heads.stored import StoredHead
from outrider.errors import CheckpointError

TARGET = tiny_target()
DEPTH, VOCAB = TARGET.num_layers, TARGET.vocab_size
REDUCED = (0, 2, 3, 7, 11)


def eagle3(**options):
    return eagle_head(TARGET, draft_ids=REDUCED, **options)


# ---------------------------------------------------------------- what others write


def test_the_prefix_of_a_trainer_is_taken_off(tmp_path):
    def prefixed(settings, tensors):
        for name in list(tensors):
            tensors[f"draft_model.{name}"] = tensors.pop(name)

    folder = edited(written(tmp_path, eagle3(), "safeailab-eagle3"), prefixed)
    assert differences(read_head(folder, DEPTH), eagle3()) == []


def test_model_optimizer_is_read_without_t2d(tmp_path):
    def nvidia(settings, tensors):
        del tensors["t2d"], settings["eagle_aux_hidden_state_layer_ids"]
        settings["eagle_config"] |= {"use_last_layernorm": True, "use_mtp_layernorm": False, "parallel_draft_step": 1}
        for name in [name for name in tensors if name.startswith("midlayer.")]:
            tensors[name.replace("midlayer.", "layers.0.")] = tensors.pop(name)

    found = read(edited(written(tmp_path, eagle3(), "safeailab-eagle3"), nvidia), Hints(DEPTH))
    assert found.format == "modelopt-eagle3"
    assert differences(found.head, eagle3()) == []


def test_the_names_of_sglang_for_feature_norms_are_read(tmp_path):
    def sglang(settings, tensors):
        settings["use_aux_norm"] = True
        del settings["fc_norm"]
        for i, name in enumerate(("low", "mid", "high")):
            tensors[f"aux_norm_{name}.weight"] = tensors.pop(f"fc_norm.{i}.weight")

    head = eagle3(fc_norm=True)
    assert differences(read_head(edited(written(tmp_path, head, "safeailab-eagle3"), sglang), DEPTH), head) == []


def test_training_buffers_are_ignored(tmp_path):
    def training(settings, tensors):
        tensors["verifier_norm.weight"] = torch.ones(7)
        tensors["layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)

    head = eagle3(own_embedding=True)
    assert differences(read_head(edited(written(tmp_path, head, "speculators-eagle3"), training), DEPTH), head) == []


def test_rope_theta_is_the_heads_own_and_else_10000(tmp_path):
    def without(settings, tensors):
        del settings["rope_theta"], settings["rope_parameters"]

    def nested_only(settings, tensors):
        del settings["rope_theta"]

    folder = written(tmp_path, eagle3(), "safeailab-eagle3")
    assert read_head(edited(folder, nested_only), DEPTH).config.rope_theta == 5_000.0
    folder = edited(folder, lambda settings, tensors: settings.pop("rope_parameters"))
    assert read_head(folder, DEPTH).config.rope_theta == 10_000.0


def test_a_speculators_config_is_a_difference_to_its_class(tmp_path):
    """Without model_type it is Qwen3's, whose heads are 128 wide whatever the hidden size; Llama's follow from it."""
    config = replace(eagle3().config, num_heads=2, num_kv_heads=2, head_dim=128, rms_norm_eps=1e-6, rope_theta=10_000.0)
    shapes = eagle_shapes(config)
    names = {**shapes.required, **{n: shapes.optional[n] for n in ("lm_head.weight", "embed_tokens.weight")}}
    names |= {
        name: shape for name, shape in shapes.optional.items() if name.endswith(("q_norm.weight", "k_norm.weight"))
    }
    head = StoredHead(
        config, {name: noise(i, *shape) for i, (name, shape) in enumerate(names.items())}, eagle3().draft_ids
    )

    def difference(settings, tensors):
        inner = settings["transformer_layer_config"]
        for key in ("model_type", "head_dim", "rms_norm_eps", "hidden_act", "rope_theta", "rope_parameters"):
            del inner[key]

    folder = edited(written(tmp_path, head, "speculators-eagle3"), difference)
    assert differences(read_head(folder, DEPTH), head) == []
    folder = edited(folder, lambda settings, tensors: settings["transformer_layer_config"].update(model_type="llama"))
    with pytest.raises(CheckpointError, match="shape"):  # heads of 48 / 2
        read_head(folder, DEPTH)


def test_a_sliding_window_is_the_length_of_a_head(tmp_path):
    def slides(settings, tensors):
        settings["transformer_layer_config"] |= {"layer_types": ["sliding_attention"], "sliding_window": 64}

    found = read(edited(written(tmp_path, eagle3(own_embedding=True), "speculators-eagle3"), slides), Hints(DEPTH))
    assert found.head.config.max_positions == 64
    assert "window of 64" in found.notes[0]


def test_what_could_be_meant_otherwise_is_noted(tmp_path):
    kinds = {
        "safeailab-eagle1": (eagle_head(TARGET, 1), {"bias": None}, "takes that as true"),
        "safeailab-eagle3": (eagle3(feature_layers=(1, 2, 3)), {"norm_output": True}, "SpecForge"),
        "speculators-eagle3": (
            eagle3(own_embedding=True, feature_layers=(1, 2, 3)),
            {"norm_before_residual": None},
            "vLLM as true",
        ),
        "vllm-medusa": (medusa_head(TARGET), {"medusa_fc_bias": False}, "vLLM drops the biases"),
    }
    for kind, (head, change, message) in kinds.items():
        folder = written(tmp_path, head, kind)
        assert read(folder, Hints(DEPTH)).notes == ()
        edited(folder, lambda settings, tensors, change=change: settings.update(change))
        assert message in read(folder, Hints(DEPTH)).notes[0]
    tied = edited(tmp_path / "safeailab-eagle3", lambda settings, tensors: settings.update(tie_word_embeddings=True))
    assert "SGLang would take the embedding" in read(tied, Hints(DEPTH)).notes[-1]
    assert "after the target's final norm" in read(tied, Hints(3)).notes[-2]


def test_medusa_heads_are_counted_by_their_tensors(tmp_path):
    folder = written(tmp_path, medusa_head(TARGET), "medusa")
    found = read(edited(folder, lambda settings, tensors: settings.update(medusa_num_heads=2)), Hints())
    assert differences(found.head, medusa_head(TARGET)) == []
    assert "claims 2" in found.notes[0]


def test_medusa_heads_are_found_beside_their_model(tmp_path):
    def whole(settings, tensors):
        for name in list(tensors):
            tensors[f"medusa_head.{name}"] = tensors.pop(name)
        tensors["model.norm.weight"] = torch.ones(4)

    folder = edited(written(tmp_path, medusa_head(TARGET), "medusa"), whole)
    assert differences(read_head(folder), medusa_head(TARGET)) == []


def test_a_token_map_takes_rows_of_whole_outputs_in_the_order_of_the_ids(tmp_path):
    whole = medusa_head(TARGET)

    def truncated(settings, tensors):
        settings["truncated_vocab_size"] = 3
        tensors["token_map"] = torch.tensor([9, 1, 4])

    found = read_head(edited(written(tmp_path, whole, "vllm-medusa"), truncated))
    assert found.draft_ids.tolist() == [1, 4, 9]
    assert torch.equal(found.weights["2.1.weight"], whole.weights["2.1.weight"][[1, 4, 9]])

    def rows(settings, tensors):
        for k in range(3):
            tensors[f"lm_heads.{k}.weight"] = tensors[f"lm_heads.{k}.weight"][[9, 1, 4]]

    assert differences(read_head(edited(tmp_path / "vllm-medusa", rows)), found) == []


def test_one_output_of_all_heads_is_each_ones(tmp_path):
    def shared(settings, tensors):
        settings["original_lm_head"] = True
        del tensors["lm_heads.1.weight"], tensors["lm_heads.2.weight"]

    head = medusa_head(TARGET)
    found = read_head(edited(written(tmp_path, head, "vllm-medusa"), shared))
    assert all(torch.equal(found.weights[f"{k}.1.weight"], head.weights["0.1.weight"]) for k in range(3))


def test_medusa_without_output_needs_the_vocabulary(tmp_path):
    head = medusa_head(TARGET, own_outputs=False)
    folder = edited(written(tmp_path, head, "tgi-medusa"), lambda settings, tensors: settings.pop("vocab_size"))
    with pytest.raises(CheckpointError, match="target's vocabulary"):
        read_head(folder)
    assert differences(read_head(folder, vocab_size=VOCAB), head) == []


def mlp_settings(head, **changes):
    c = head.config
    own = {
        "model_type": "mlp_speculator",
        "emb_dim": c.hidden_size,
        "inner_dim": c.inner_size,
        "n_predict": c.num_steps,
    }
    return own | {"vocab_size": c.vocab_size, "tie_weights": False, "scale_input": c.scale_input} | changes


@pytest.mark.parametrize("prefix", ["speculator.", ""])
def test_mlp_speculators_are_read(prefix, tmp_path):
    head = mlp_head(TARGET, scale_input=True)
    folder = save(tmp_path / "mlp", mlp_settings(head), {prefix + name: w for name, w in head.weights.items()})
    assert differences(read_head(folder), head) == []


@pytest.mark.parametrize("heads", ["shared", "own"])
def test_tied_mlp_speculators_are_expanded(heads, tmp_path):
    head = mlp_head(TARGET, num_steps=4)
    first = {"emb": 0, "ln": 0, "proj": 1} | ({"head": 0} if heads == "shared" else {})
    stored = {n: w for n, w in head.weights.items() if int(n.split(".")[1]) <= first.get(n.split(".")[0], 9)}
    found = read_head(save(tmp_path / "mlp", mlp_settings(head, tie_weights=True), stored)).weights
    assert found.keys() == head.weights.keys()
    for name, weight in found.items():
        part, step, rest = name.split(".")
        assert torch.equal(weight, head.weights[f"{part}.{min(int(step), first.get(part, 9))}.{rest}"])


def test_an_inner_width_of_0_is_the_targets(tmp_path):
    head = mlp_head(TARGET)
    square = {n: noise(i, *(TARGET.hidden_size if s == head.config.inner_size else s for s in w.shape))
              for i, (n, w) in enumerate(head.weights.items())}  # fmt: skip
    found = read_head(save(tmp_path / "mlp", mlp_settings(head, inner_dim=0), square))
    assert found.config.inner_size == TARGET.hidden_size


# ---------------------------------------------------------------- layer ids and vocabularies

LAYERS = {
    "both keys": ({"top": [1, 2, 4], "nested": [0, 1, 3]}, 4, (1, 2, 4)),
    "top-level alone": ({"top": [1, 2, 4]}, 4, (1, 2, 4)),
    "nested alone": ({"nested": [0, 1, 3]}, 4, (1, 2, 4)),
    "nested, the embedding": ({"nested": [-1, 1, 3]}, None, (0, 2, 4)),
    "the usual ones, top-level": ({"top": [2, 15, 27]}, 30, (2, 15, 27)),
    "the usual ones, nested": ({"nested": [1, 14, 26]}, 30, (2, 15, 27)),
    "none": ({}, 30, (2, 15, 27)),
    "empty": ({"nested": []}, 30, (2, 15, 27)),
    "none, unknown depth": ({}, None, "Name the target"),
    "swapped, top-level": ({"top": [1, 14, 26]}, 30, "contradict"),
    "swapped, nested": ({"nested": [2, 15, 27]}, 30, "contradict"),
    "swapped, unknown depth": ({"top": [1, 14, 26]}, None, (1, 14, 26)),
    "both keys, one below the usual": ({"top": [1, 14, 26], "nested": [0, 13, 25]}, 30, (1, 14, 26)),
    "both keys, one above the usual": ({"top": [3, 16, 28], "nested": [2, 15, 27]}, 30, (3, 16, 28)),
    "both keys alike": ({"top": [1, 2, 4], "nested": [1, 2, 4]}, 4, "contradict"),
    "a layer too many": ({"top": [1, 2, 4]}, 3, "state 4 is not one of a target with 3 layers"),
    "two": ({"top": [1, 2]}, 4, "fc is 3 states wide"),
    "words": ({"top": [1, "2", 4]}, 4, "list of layer ids"),
    "no list": ({"top": 3}, 4, "list of layer ids"),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layer_ids_are_told_or_refused(name, tmp_path):
    ids, depth, expected = LAYERS[name]

    def change(settings, tensors):
        key = "eagle_aux_hidden_state_layer_ids"
        del settings[key], settings["eagle_config"]
        settings |= {key: ids["top"]} if "top" in ids else {}
        settings |= {"eagle_config": {key: ids["nested"]}} if "nested" in ids else {}

    folder = edited(written(tmp_path, eagle3(), "safeailab-eagle3"), change)
    if isinstance(expected, str):
        with pytest.raises(CheckpointError, match=expected):
            read_head(folder, depth)
        assert read_head(folder, 30, feature_layers=(1, 2, 4)).config.feature_layers == (1, 2, 4)
    else:
        assert read_head(folder, depth).config.feature_layers == expected


VOCABULARIES = {
    "offsets": ([0, 1, 1, 4, 7], True, None, REDUCED),
    "offsets without t2d": ([0, 1, 1, 4, 7], False, None, REDUCED),
    "ids": ([0, 2, 3, 7, 11], True, None, REDUCED),
    "ids without t2d": ([0, 2, 3, 7, 11], False, None, REDUCED),
    "t2d alone": (None, True, None, REDUCED),
    "neither tells": ([0, 1, 2, 3, 4], False, None, "can be read as offsets and as ids"),
    "offsets, as the caller says": ([0, 1, 2, 3, 4], False, "offset", (0, 2, 4, 6, 8)),
    "ids, as the caller says": ([0, 1, 2, 3, 4], False, "absolute", (0, 1, 2, 3, 4)),
    "out of range": ([0, 1, 1, 4, 8], False, None, "id 12 is out of range"),
    "negative": ([-1, 1, 1, 4, 7], False, None, "id -1 is out of range"),
    "colliding": ([0, 1, 0, 4, 7], False, None, "two ids are both 2"),
    "not monotone": ([0, 1, 1, -2, 7], False, None, "do not ascend"),
    "inconsistent": ([0, 1, 2, 4, 7], True, None, "contradict"),
}


@pytest.mark.parametrize("name", VOCABULARIES)
def test_vocabularies_are_told_or_refused(name):
    d2t, masked, reading, expected = VOCABULARIES[name]
    mask = torch.zeros(VOCAB, dtype=torch.bool)
    mask[list(REDUCED)] = True
    given = None if d2t is None else torch.tensor(d2t), mask if masked else None, VOCAB, reading
    if isinstance(expected, str):
        with pytest.raises(CheckpointError, match=expected):
            draft_ids(*given)
    else:
        assert draft_ids(*given).tolist() == list(expected)


def test_a_map_of_the_whole_vocabulary_is_no_map(tmp_path):
    def mapped(settings, tensors):
        tensors |= {"d2t": torch.zeros(VOCAB, dtype=torch.int64), "t2d": torch.ones(VOCAB, dtype=torch.bool)}

    head = eagle_head(TARGET)
    assert differences(read_head(edited(written(tmp_path, head, "safeailab-eagle3"), mapped), DEPTH), head) == []
