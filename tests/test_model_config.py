from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from checkpoints import FAMILIES, gguf_metadata, tiny_config
from outrider.errors import CheckpointError, UnsupportedModel
from outrider.models.config import DecoderConfig, config_from_gguf, config_from_json, inverse_frequencies

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 2.5},
    "llama3": LLAMA3,
    "yarn": YARN,
    "yarn with its own blend": YARN | {"beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
    "yarn with its own magnitude": YARN | {"attention_factor": 1.25},
    "yarn with mscale": YARN | {"mscale": 0.7, "mscale_all_dim": 1.4},
    "yarn of which nothing is kept": YARN | {"original_max_position_embeddings": 4},
}


def as_json(config: Any) -> dict[str, Any]:
    """What save_pretrained writes into config.json."""
    settings: dict[str, Any] = json.loads(config.to_json_string())
    return settings | {"architectures": [f"{type(config).__name__.removesuffix('Config')}ForCausalLM"]}


def llama(**changes: Any) -> dict[str, Any]:
    return as_json(tiny_config("llama", **changes))


def changed(settings: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Settings with some replaced; None takes a setting away."""
    return {name: value for name, value in (settings | changes).items() if value is not None}


# --- rotary frequencies ---------------------------------------------------------------------------------------------


def reference_frequencies(config: Any) -> tuple[torch.Tensor, float]:
    kind = config.rope_parameters["rope_type"]
    if kind == "default":
        return LlamaRotaryEmbedding(config).inv_freq, 1.0
    frequencies, scaling = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    return frequencies, scaling


@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
@pytest.mark.parametrize("name", ROPES)
def test_frequencies_have_the_bits_of_transformers(name: str, theta: float) -> None:
    config = tiny_config("llama", rope_parameters=ROPES[name] | {"rope_theta": theta})
    ours, scaling = inverse_frequencies(config_from_json(as_json(config)))
    theirs, their_scaling = reference_frequencies(config)
    assert ours.dtype == torch.float32
    assert torch.equal(ours, theirs)
    assert scaling == their_scaling


def test_every_rope_setting_of_the_comparison_gives_other_frequencies() -> None:
    seen = [
        inverse_frequencies(config_from_json(llama(rope_parameters=rope | {"rope_theta": 1e4})))
        for rope in ROPES.values()
    ]
    assert len({(tuple(frequencies.tolist()), scaling) for frequencies, scaling in seen}) == len(ROPES)


@pytest.mark.parametrize("name", ROPES)
def test_the_spelling_of_transformers_4_means_the_same(name: str) -> None:
    new = llama(rope_parameters=ROPES[name] | {"rope_theta": 50_000.0})
    rope = dict(ROPES[name])
    rope["type"] = rope.pop("rope_type")
    scaling = None if name == "default" else rope
    old = changed(new, rope_parameters=None) | {"rope_theta": 50_000.0, "rope_scaling": scaling}
    assert config_from_json(old) == config_from_json(new)


def test_an_original_context_beside_the_rope_record_wins() -> None:
    settings = llama(rope_parameters=LLAMA3 | {"rope_theta": 1e4}) | {"original_max_position_embeddings": 64}
    assert config_from_json(settings).rope.original_context == 64


def test_yarn_without_a_factor_takes_the_ratio_of_the_contexts() -> None:
    rope = {key: value for key, value in YARN.items() if key != "factor"} | {"rope_theta": 1e4}
    assert config_from_json(changed(llama(), rope_parameters=rope)).rope.factor == 512 / 128


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "mrope", "proportional"])
def test_another_rope_type_is_refused_by_name(kind: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"Rope type '{kind}'"):
        config_from_json(llama() | {"rope_parameters": {"rope_type": kind, "factor": 2.0}})


@pytest.mark.parametrize("where", ["outside", "inside"])
def test_partial_rotation_is_refused(where: str) -> None:
    settings = llama()
    (settings if where == "outside" else settings["rope_parameters"])["partial_rotary_factor"] = 0.5
    with pytest.raises(UnsupportedModel, match=r"partial_rotary_factor = 0\.5"):
        config_from_json(settings)


# --- config.json ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_a_config_means_what_transformers_makes_of_it(family: str) -> None:
    config = tiny_config(family, tie_word_embeddings=True, head_dim=32, num_key_value_heads=1)
    ours = config_from_json(as_json(config))
    assert (ours.vocab_size, ours.hidden_size) == (config.vocab_size, config.hidden_size)
    assert (ours.intermediate_size, ours.num_layers) == (config.intermediate_size, config.num_hidden_layers)
    assert (ours.num_heads, ours.num_kv_heads, ours.head_dim) == (4, 1, 32)
    assert (ours.context_length, ours.rms_norm_eps, ours.rope_theta) == (512, 1e-5, 10_000.0)
    assert ours.tie_embeddings
    assert (ours.attention_bias, ours.qk_norm) == (family == "qwen2", family == "qwen3")


def test_a_config_of_the_first_llama_is_read_with_its_defaults() -> None:
    ours = config_from_json(
        {
            "model_type": "llama",
            "vocab_size": 32_000,
            "hidden_size": 4096,
            "intermediate_size": 11_008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "max_position_embeddings": 2048,
        }
    )
    assert ours == DecoderConfig("LlamaForCausalLM", 32_000, 4096, 11_008, 32, 32, 32, 128, 2048, 1e-6, 10_000.0)


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "MixtralForCausalLM", "Gemma3ForCausalLM", "Qwen3MoeForCausalLM"])
def test_another_architecture_is_refused_by_name_and_sent_to_the_adapter(name: str) -> None:
    with pytest.raises(UnsupportedModel, match=rf"{name} is not .* The transformers adapter may run this model\."):
        config_from_json(llama() | {"architectures": [name]})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("hidden_act", "gelu", "hidden_act = 'gelu'"),
        ("quantization_config", {"quant_method": "gptq", "bits": 4}, "quantization_config = 'gptq'"),
    ],
)
def test_a_setting_that_changes_the_law_is_refused_by_name(name: str, value: Any, message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        config_from_json(llama() | {name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hidden_size", None),
        ("vocab_size", "many"),
        ("vocab_size", 0),
        ("num_hidden_layers", 2.5),
        ("num_key_value_heads", 3),
        ("num_attention_heads", 0),
        ("head_dim", 63),
        ("rms_norm_eps", -1e-5),
        ("rms_norm_eps", float("nan")),
        ("max_position_embeddings", True),
        ("rope_parameters", [1, 2]),
        ("rope_parameters", {"rope_type": "default", "rope_theta": 0.5}),
        ("rope_parameters", {"rope_type": "linear"}),
        ("rope_parameters", LLAMA3 | {"high_freq_factor": 1.0}),
        ("rope_parameters", YARN | {"original_max_position_embeddings": 0}),
        ("rope_parameters", YARN | {"beta_fast": -1}),
    ],
)
def test_a_size_that_is_missing_or_wrong_is_refused(name: str, value: Any) -> None:
    with pytest.raises(CheckpointError):
        config_from_json(changed(llama(), **{name: value}))


ODD_VALUES: tuple[Any, ...] = (True, -1, 0, 2**70, 1.5, float("inf"), "text", [], ["a"], [[]], {}, {"a": {}}, None)


@pytest.mark.parametrize("family", FAMILIES)
def test_settings_of_any_other_type_give_only_our_errors_or_a_config(family: str) -> None:
    settings = as_json(tiny_config(family, rope_parameters=YARN | {"rope_theta": 1e4}))
    outcomes = {"read": 0, "refused": 0}
    for where in (settings, settings["rope_parameters"]):
        for name in (*where, "quantization_config", "mscale", "mscale_all_dim", "attention_factor"):
            for value in ODD_VALUES:
                part = changed(where, **{name: value})
                try:
                    inverse_frequencies(
                        config_from_json(part if where is settings else settings | {"rope_parameters": part})
                    )
                    outcomes["read"] += 1
                except (CheckpointError, UnsupportedModel):
                    outcomes["refused"] += 1
    assert min(outcomes.values()) > 50


SLIDING = [
    ("mistral", {"sliding_window": 256}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 256, "max_window_layers": 1}),
    ("qwen3", {"use_sliding_window": True, "sliding_window": 256, "max_window_layers": 0}),
    ("qwen3", {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 256}),
]
FULL = [
    ("mistral", {"sliding_window": None}),
    ("mistral", {"sliding_window": 512}),
    ("qwen2", {"use_sliding_window": False, "sliding_window": 256, "max_window_layers": 0}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 256, "max_window_layers": 2}),
    ("qwen3", {"layer_types": ["full_attention", "full_attention"], "sliding_window": 256}),
]


def without_layer_types(settings: dict[str, Any]) -> dict[str, Any]:
    """As transformers 4 wrote it."""
    return {name: value for name, value in settings.items() if name != "layer_types"}


@pytest.mark.parametrize(("family", "window"), SLIDING)
def test_a_window_in_use_that_is_shorter_than_the_context_is_refused(family: str, window: dict[str, Any]) -> None:
    settings = as_json(tiny_config(family)) | window
    if "layer_types" not in window:
        settings = without_layer_types(settings)
    with pytest.raises(UnsupportedModel, match="'sliding_attention' with a window of 256 tokens in a context of 512"):
        config_from_json(settings)


@pytest.mark.parametrize(("family", "window"), FULL)
def test_a_window_that_hides_nothing_is_accepted(family: str, window: dict[str, Any]) -> None:
    settings = without_layer_types(as_json(tiny_config(family))) | window
    assert config_from_json(settings).sliding_window in (None, 512)


def test_a_mistral_config_without_a_window_has_the_one_of_transformers() -> None:
    settings = as_json(tiny_config("mistral", max_position_embeddings=8192))
    del settings["sliding_window"]
    with pytest.raises(UnsupportedModel, match="a window of 4096 tokens in a context of 8192"):
        config_from_json(settings)


def test_another_layer_type_is_refused_by_name() -> None:
    settings = as_json(tiny_config("qwen3")) | {"layer_types": ["full_attention", "linear_attention"]}
    with pytest.raises(UnsupportedModel, match="layers of type 'linear_attention'"):
        config_from_json(settings)


# --- GGUF metadata --------------------------------------------------------------------------------------------------


def gguf(family: str = "llama", **changes: Any) -> DecoderConfig:
    metadata = gguf_metadata(tiny_config(family))
    own = {f"{metadata['general.architecture']}.{name.replace('__', '.')}": value for name, value in changes.items()}
    return config_from_gguf(changed(metadata, **own), {"output.weight"})


def test_gguf_rope_scalings_are_those_of_a_folder() -> None:
    linear = gguf(rope__scaling__type="linear", rope__scaling__factor=2.5)
    yarn = gguf(rope__scaling__type="yarn", rope__scaling__factor=4.0, rope__scaling__original_context_length=128)
    for ours, name in (
        (linear, "linear"),
        (yarn, "yarn"),
        (gguf(), "default"),
        (gguf(rope__scale_linear=2.5), "linear"),
    ):
        theirs = config_from_json(llama(rope_parameters=ROPES[name] | {"rope_theta": 1e4}))
        assert ours.rope == theirs.rope


def test_llama_3_factors_in_a_gguf_file_give_the_frequencies_of_the_folder() -> None:
    plain, _ = inverse_frequencies(config_from_json(llama()))
    scaled, _ = inverse_frequencies(config_from_json(llama(rope_parameters=LLAMA3 | {"rope_theta": 1e4})))
    factors = tuple((plain / scaled).tolist())
    ours = config_from_gguf(gguf_metadata(tiny_config("llama")), {"output.weight"}, factors)
    assert torch.allclose(inverse_frequencies(ours)[0], scaled, rtol=1e-6, atol=0)
    assert not torch.allclose(plain, scaled, rtol=1e-3, atol=0)


@pytest.mark.parametrize("factors", [(1.0,) * 31, (0.0,) * 32, (float("inf"),) * 32])
def test_damaged_llama_3_factors_are_refused(factors: tuple[float, ...]) -> None:
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight"):
        config_from_gguf(gguf_metadata(tiny_config("llama")), {"output.weight"}, factors)


@pytest.mark.parametrize("name", ["gemma3", "mistral3", "qwen2moe", "gpt2", None, 7])
def test_another_gguf_architecture_is_refused_by_name(name: Any) -> None:
    with pytest.raises(UnsupportedModel, match=f"GGUF architecture {name!r} .* The transformers adapter may run"):
        config_from_gguf({"general.architecture": name}, set())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rope__dimension_count", 32),
        ("attention__value_length", 32),
        ("expert_count", 8),
        ("rope__scaling__type", "longrope"),
        ("rope__scaling__attn_factor", 1.2),
        ("rope__scaling__yarn_ext_factor", 0.5),
        ("attention__sliding_window", 256),
    ],
)
def test_a_gguf_setting_that_changes_the_law_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        gguf(**{name: value})
    assert str(value) in str(caught.value)


@pytest.mark.parametrize("name", ["block_count", "embedding_length", "attention__head_count", "context_length"])
def test_a_gguf_size_that_is_missing_is_named(name: str) -> None:
    with pytest.raises(CheckpointError, match=name.replace("__", ".")):
        gguf(**{name: None})


def test_the_vocabulary_of_a_gguf_file_gives_its_size_where_none_is_stated() -> None:
    metadata = changed(gguf_metadata(tiny_config("llama")), **{"llama.vocab_size": None})
    with pytest.raises(CheckpointError, match="vocab_size"):
        config_from_gguf(metadata, set())
    assert config_from_gguf(metadata | {"tokenizer.ggml.tokens": ["a"] * 77}, set()).vocab_size == 77
