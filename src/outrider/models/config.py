"""What a checkpoint says about its decoder: sizes and the switches of the Llama family.

Reads the settings of a Hugging Face config.json or of a GGUF header; knows nothing of weights. A setting that would
change the law and that the decoder does not compute is refused by name, never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import torch

from outrider.errors import CheckpointError, InvalidOption, UnsupportedModel
from outrider.models.rope import PLAIN_ROPE, RopeScaling, frequencies, rope_from_gguf, rope_from_json
from outrider.models.settings import ADAPTER_HINT, integer, positive

MODEL_TYPES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""model_type of a config.json -> class name."""

GGUF_ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""general.architecture of a GGUF file; Mistral files say "llama"."""


@dataclass(frozen=True)
class DecoderConfig:
    """A decoder of the Llama family.

    Args:
        architecture: Hugging Face class name, one of `MODEL_TYPES`.
        vocab_size: rows of the embedding, padding included.
        hidden_size: width of the residual stream.
        intermediate_size: width of the gated MLP (silu).
        num_layers: decoder layers.
        num_heads: query heads.
        num_kv_heads: key/value heads; divides `num_heads`.
        head_dim: width of a head, even; num_heads * head_dim need not be hidden_size.
        context_length: largest number of positions.
        rms_norm_eps: added to the mean square in every norm.
        rope_theta: base of the rotary frequencies.
        rope: changes to these frequencies.
        tie_embeddings: the head is the embedding; there is no lm_head.weight.
        attention_bias: q, k and v projections have a bias.
        output_bias: the o projection has a bias.
        mlp_bias: gate, up and down projections have a bias.
        qk_norm: q and k are RMS-normalised per head, before the rotation.
        sliding_window: the window in use or None; never shorter than `context_length`, so attention is always full.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int
    rms_norm_eps: float
    rope_theta: float
    rope: RopeScaling = PLAIN_ROPE
    tie_embeddings: bool = False
    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None

    def __post_init__(self) -> None:
        """Check what a damaged config can get wrong.

        Raises:
            CheckpointError: a size is not positive, or sizes do not fit each other.
        """
        sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads")
        for name in (*sizes, "head_dim", "context_length", "rms_norm_eps"):
            if not 0 < getattr(self, name) < 2**31:
                raise CheckpointError(f"{name} is {getattr(self, name)!r} in the model's config, which no model has.")
        if not self.rope_theta > 1:
            raise CheckpointError(f"rope_theta is {self.rope_theta} in the model's config; it must be over 1.")
        if self.num_heads % self.num_kv_heads:
            raise CheckpointError(f"{self.num_heads} query heads do not divide among {self.num_kv_heads} key heads.")
        if self.head_dim % 2:
            raise CheckpointError(f"head_dim is {self.head_dim}; rotary embeddings need an even one.")


def check_feature_layers(ids: tuple[int, ...], num_layers: int) -> None:
    """Refuse states that a model does not have.

    Raises:
        InvalidOption: an id that is not from 0, the embedding, to the number of layers, the last state.
    """
    for layer in ids:
        if not 0 <= layer <= num_layers:
            fix = "These are the features of another target."
            raise InvalidOption("feature layer", layer, f"0 to {num_layers}, the number of layers", fix)


def inverse_frequencies(config: DecoderConfig) -> tuple[torch.Tensor, float]:
    """Angle per position of each pair of dimensions, [head_dim / 2] float32, and what cos and sin are multiplied by."""
    return frequencies(config.rope, config.rope_theta, config.head_dim), config.rope.attention_scaling


def config_from_json(settings: Mapping[str, Any]) -> DecoderConfig:
    """Read the contents of a config.json, in the spelling of transformers 4 or 5.

    Raises:
        UnsupportedModel: another architecture, or a setting that the decoder does not compute; named.
        CheckpointError: a size is missing or wrong.
    """
    architecture = _architecture(settings)
    _refuse_unsupported(settings, architecture)
    heads = integer(settings, "num_attention_heads")
    hidden = integer(settings, "hidden_size")
    theta, rope = rope_from_json(settings)
    switchable = architecture in ("LlamaForCausalLM", "Qwen3ForCausalLM")  # Qwen2 always has its bias, Mistral never
    own_bias = switchable and bool(settings.get("attention_bias", False))
    return DecoderConfig(
        architecture=architecture,
        vocab_size=integer(settings, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=integer(settings, "intermediate_size"),
        num_layers=integer(settings, "num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=integer(settings, "num_key_value_heads", heads),
        head_dim=integer(settings, "head_dim", hidden // max(heads, 1)),
        context_length=integer(settings, "max_position_embeddings"),
        rms_norm_eps=positive(settings, "rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope=rope,
        tie_embeddings=bool(settings.get("tie_word_embeddings", False)),
        attention_bias=architecture == "Qwen2ForCausalLM" or own_bias,
        output_bias=own_bias,
        mlp_bias=architecture == "LlamaForCausalLM" and bool(settings.get("mlp_bias", False)),
        qk_norm=architecture == "Qwen3ForCausalLM",
        sliding_window=_sliding_window(settings, architecture),
    )


def _architecture(settings: Mapping[str, Any]) -> str:
    named = settings.get("architectures") or [MODEL_TYPES.get(str(settings.get("model_type")))]
    name = (named[0] if isinstance(named, list) else named) or settings.get("model_type")
    if name not in MODEL_TYPES.values():
        known = ", ".join(MODEL_TYPES.values())
        raise UnsupportedModel(f"{name} is not a model that outrider decodes itself ({known}). {ADAPTER_HINT}")
    return str(name)


def _refuse_unsupported(settings: Mapping[str, Any], architecture: str) -> None:
    allowed = {"hidden_act": "silu", "quantization_config": None}
    for name, plain in allowed.items():
        value = settings.get(name)
        if value is not None and value != plain:
            shown = value.get("quant_method", value) if isinstance(value, dict) else value
            raise UnsupportedModel(f"{architecture} with {name} = {shown!r} is not decoded here. {ADAPTER_HINT}")
    if architecture == "Qwen3ForCausalLM":
        integer(settings, "head_dim")  # its default is not hidden_size / heads, so it has to be said


def _sliding_window(settings: Mapping[str, Any], architecture: str) -> int | None:
    """The window in use, refused where it is shorter than the context."""
    layer_types = settings.get("layer_types") or _layer_types(settings, architecture)
    if not isinstance(layer_types, list):
        raise CheckpointError(f"The model's config has layer_types = {layer_types!r}; it must be a list of names.")
    for layer_type in layer_types:
        if layer_type not in ("full_attention", "sliding_attention"):
            raise UnsupportedModel(f"{architecture} with layers of type {layer_type!r} is not decoded here.")
    if "sliding_attention" not in layer_types:
        return None
    window = integer(settings, "sliding_window", 4096)
    _check_window(window, integer(settings, "max_position_embeddings"), architecture)
    return window


def _layer_types(settings: Mapping[str, Any], architecture: str) -> list[str]:
    """What transformers makes of a config that does not list its layers."""
    if architecture == "MistralForCausalLM":
        sliding = "sliding_window" not in settings or settings["sliding_window"] is not None
    else:
        some = integer(settings, "max_window_layers", 28) < integer(settings, "num_hidden_layers")
        sliding = architecture != "LlamaForCausalLM" and bool(settings.get("use_sliding_window")) and some
    return ["sliding_attention" if sliding else "full_attention"]


def _check_window(window: int, context: int, architecture: str) -> None:
    if window < context:
        raise UnsupportedModel(
            f"{architecture} has layers of type 'sliding_attention' with a window of {window} tokens in a context of "
            f"{context}; only full attention is decoded here. {ADAPTER_HINT}"
        )


def config_from_gguf(
    metadata: Mapping[str, Any],
    tensor_names: AbstractSet[str],
    frequency_factors: tuple[float, ...] = (),
) -> DecoderConfig:
    """Read the metadata of a GGUF header.

    Args:
        metadata: keys and values as stored.
        tensor_names: GGUF names of the stored tensors (they tell of a tied head and of biases).
        frequency_factors: [head_dim / 2] contents of the tensor rope_freqs.weight, if the file has one.

    Raises:
        UnsupportedModel: another architecture, or a setting that the decoder does not compute; named.
        CheckpointError: a size is missing or wrong.
    """
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in GGUF_ARCHITECTURES:
        known = ", ".join(GGUF_ARCHITECTURES)
        raise UnsupportedModel(
            f"GGUF architecture {architecture!r} is not one that outrider decodes itself ({known}). {ADAPTER_HINT}"
        )
    prefix = f"{architecture}."
    values = {key[len(prefix) :]: value for key, value in metadata.items() if key.startswith(prefix)}
    heads, hidden = integer(values, "attention.head_count"), integer(values, "embedding_length")
    head_dim = integer(values, "attention.key_length", hidden // max(heads, 1))
    context = integer(values, "context_length")
    _refuse_unsupported_gguf(values, head_dim)
    tokens = metadata.get("tokenizer.ggml.tokens")
    window = integer(values, "attention.sliding_window", context)
    _check_window(window, context, architecture)
    return DecoderConfig(
        architecture=MODEL_TYPES[architecture],
        vocab_size=integer(values, "vocab_size", len(tokens) if isinstance(tokens, list) else None),
        hidden_size=hidden,
        intermediate_size=integer(values, "feed_forward_length"),
        num_layers=integer(values, "block_count"),
        num_heads=heads,
        num_kv_heads=integer(values, "attention.head_count_kv", heads),
        head_dim=head_dim,
        context_length=context,
        rms_norm_eps=positive(values, "attention.layer_norm_rms_epsilon"),
        rope_theta=positive(values, "rope.freq_base", 10_000.0),
        rope=rope_from_gguf(values, frequency_factors, head_dim),
        tie_embeddings="output.weight" not in tensor_names,
        attention_bias="blk.0.attn_q.bias" in tensor_names,
        output_bias="blk.0.attn_output.bias" in tensor_names,
        mlp_bias="blk.0.ffn_gate.bias" in tensor_names,
        qk_norm=architecture == "qwen3",
        sliding_window=None if window == context else window,
    )


def _refuse_unsupported_gguf(values: Mapping[str, Any], head_dim: int) -> None:
    expected = {
        "attention.value_length": head_dim,
        "rope.dimension_count": head_dim,
        "expert_count": 0,
        "rope.scaling.attn_factor": 1.0,
        "rope.scaling.yarn_ext_factor": 1.0,
        "rope.scaling.yarn_attn_factor": 1.0,
        "rope.scaling.yarn_log_multiplier": 0.0,
    }
    for name, allowed in expected.items():
        found = values.get(name, allowed)
        if not isinstance(found, (int, float)) or found != allowed:
            raise UnsupportedModel(f"{name} = {found!r} is not decoded here, only {allowed}. {ADAPTER_HINT}")


def transformers_settings(config: DecoderConfig) -> dict[str, Any]:
    """The shape as a transformers config names it; stretched rotary frequencies are not carried over."""
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.context_length,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "tie_word_embeddings": config.tie_embeddings,
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
    }
