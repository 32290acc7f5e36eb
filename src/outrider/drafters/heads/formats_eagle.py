"""Reading EAGLE heads: EAGLE-1 and 2, EAGLE-3 as SafeAILab, SpecForge and Model-Optimizer write it, speculators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outrider.drafters.heads.config import EagleConfig
from outrider.drafters.heads.eagle import LAYER, MATRICES
from outrider.drafters.heads.formats import HeadFolder, Shapes, flag, size
from outrider.drafters.heads.formats_layers import NESTED, read_layers
from outrider.drafters.heads.formats_vocabulary import map_shapes, read_draft_ids
from outrider.drafters.heads.stored import StoredHead
from outrider.errors import CheckpointError, UnsupportedModel
from outrider.models.settings import positive, record

FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
QK_NORMS = tuple(f"{LAYER}self_attn.{part}_norm.weight" for part in "qk")
BIASES = {"attention_bias": tuple(f"{LAYER}self_attn.{part}_proj.bias" for part in "qkvo")}
BIASES["mlp_bias"] = tuple(f"{LAYER}mlp.{part}_proj.bias" for part in ("gate", "up", "down"))

HARMLESS = ("rotary_emb.inv_freq", "verifier_lm_head.weight", "verifier_norm.weight")
"""Ends of the names of buffers that follow from the config, or serve training alone."""
SGLANG_NORMS = {"aux_norm_low": "fc_norm.0", "aux_norm_mid": "fc_norm.1", "aux_norm_high": "fc_norm.2"}
PLAIN_ONLY = {
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "parallel_draft_step": 1,
}
"""Settings of Model-Optimizer that change the graph, with the value that leaves it as it is here."""

Notes = tuple[str, ...]
"""What a reader should know although it could be read."""


def read_eagle1(folder: HeadFolder) -> tuple[StoredHead, Notes]:
    """An EAGLE-1 head, whose weights EAGLE-2 shares.

    Raises:
        CheckpointError, UnsupportedModel: see `files.read_head`.
    """
    folder, settings = _canonical(folder), folder.settings
    if folder.hints.num_target_layers is None and folder.hints.feature_layers is None:
        raise CheckpointError(
            f"{folder.path} is an EAGLE-1 head, which reads the target's last state, but the number of the target's "
            "layers was not given. Name the target."
        )
    depth = folder.hints.num_target_layers
    layers = folder.hints.feature_layers or (depth or 0,)
    vocab_size = size(settings, "vocab_size")
    config, notes = _config(folder, settings, 1, layers, vocab_size)
    if config.target_hidden_size != config.hidden_size:
        raise CheckpointError(f"{folder.path}: an EAGLE-1 head is as wide as its target.")
    bias = "fc.bias" in folder.entries
    if settings.get("bias") is not None and flag(settings, "bias") != bias:
        stored = "has" if bias else "has no"
        raise CheckpointError(
            f"{folder.path}: the config has bias = {settings['bias']}, but the file {stored} fc.bias."
        )
    if settings.get("bias") is None and not bias:
        notes += (
            "bias is missing: the EAGLE reference takes that as true, but the file has no fc.bias, so there is none.",
        )
    return StoredHead(config, folder.read_weights(eagle_shapes(config))), notes


def read_eagle3(folder: HeadFolder) -> tuple[StoredHead, Notes]:
    """An EAGLE-3 head whose config is a plain Llama config with some keys more.

    Raises:
        CheckpointError, UnsupportedModel: see `files.read_head`.
    """
    settings, nested = dict(folder.settings), record(folder.settings, NESTED)
    for name, plain in PLAIN_ONLY.items():
        if nested.get(name) not in (None, plain):
            raise UnsupportedModel(f"{folder.path}: {NESTED} has {name} = {nested[name]!r}; read is only {plain}.")
    for name in FLAGS:
        if nested.get(name) is not None:
            if settings.get(name) not in (None, nested[name]):
                raise CheckpointError(f"{folder.path}: {name} is {settings[name]!r}, but {nested[name]!r} in {NESTED}.")
            settings[name] = nested[name]
    if flag(settings, "use_aux_norm"):  # SGLang's name
        settings["fc_norm"] = True
    notes = []
    if settings.get("norm_output") is not None:
        notes.append(
            "norm_output is taken as vLLM and SGLang take it: whether the normed state is fed back. If SpecForge wrote "
            "it, it means something else, and false is what its heads were trained with."
        )
    head, more = _eagle3(folder, settings)
    return head, (*notes, *more)


def read_speculators(folder: HeadFolder) -> tuple[StoredHead, Notes]:
    """An EAGLE-3 head in the speculators format; its inner config is a difference to a class's defaults.

    Raises:
        CheckpointError, UnsupportedModel: see `files.read_head`.
    """
    kind = folder.settings.get("speculators_model_type")
    if kind != "eagle3":
        raise UnsupportedModel(f"{folder.path}: speculators_model_type is {kind!r}; read is only 'eagle3'.")
    inner = folder.settings.get("transformer_layer_config")
    if not isinstance(inner, dict):
        raise CheckpointError(f"{folder.path}: the config has no dictionary transformer_layer_config.")
    settings = _with_class_defaults(inner) | {
        name: value for name, value in folder.settings.items() if name != "transformer_layer_config"
    }
    notes = []
    if settings.get(FLAGS[0]) is None:
        notes.append(f"{FLAGS[0]} is missing: speculators takes that as false, vLLM as true.")
    head, more = _eagle3(folder, settings)
    return head, (*notes, *more)


def eagle_shapes(config: EagleConfig) -> Shapes:
    """The tensors of an EAGLE head by the names of `heads.eagle`."""
    H, F, first = config.hidden_size, config.intermediate_size, config.version == 1
    heads, kv_heads = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    features, width = len(config.feature_layers) * config.target_hidden_size, H if first else 2 * H
    sizes = dict(
        zip(
            MATRICES,
            [
                (H, 2 * H if first else features),
                *[(heads, width), (kv_heads, width), (kv_heads, width), (H, heads)],
                *[(F, H), (F, H), (H, F)],
            ],
            strict=True,
        )
    )
    required: dict[str, tuple[int, ...]] = {f"{name}.weight": shape for name, shape in sizes.items()}
    required[f"{LAYER}post_attention_layernorm.weight"] = (H,)
    optional: dict[str, tuple[int, ...]] = {f"{name}.bias": shape[:1] for name, shape in sizes.items()}
    borrowed: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (config.vocab_size, H)}
    if first:
        return Shapes(required, optional | borrowed)
    required |= dict.fromkeys((f"{LAYER}hidden_norm.weight", f"{LAYER}input_layernorm.weight", "norm.weight"), (H,))
    if config.norm_before_fc:
        required["input_norm.weight"] = (features,)
    if config.fc_norm:
        required |= {f"fc_norm.{i}.weight": (config.target_hidden_size,) for i in range(len(config.feature_layers))}
    optional |= dict.fromkeys(QK_NORMS, (config.head_dim,))
    borrowed["lm_head.weight"] = (config.draft_vocab_size, H)
    if config.target_hidden_size == H:
        return Shapes(required, optional | borrowed)
    return Shapes(required | borrowed, optional)  # the target's own would not fit


# ---------------------------------------------------------------- steps


def _eagle3(folder: HeadFolder, settings: Mapping[str, Any]) -> tuple[StoredHead, Notes]:
    folder, vocab_size = _canonical(folder), size(settings, "vocab_size")
    target_hidden = size(settings, "target_hidden_size", size(settings, "hidden_size"))
    fc = folder.entries.get("fc.weight")
    if fc is None or len(fc.shape) != 2 or not fc.shape[1] or fc.shape[1] % target_hidden:
        shape = "is missing" if fc is None else f"has shape {list(fc.shape)}"
        raise CheckpointError(f"{folder.path}: fc.weight {shape}; it must read states of the target's {target_hidden}.")
    count = fc.shape[1] // target_hidden
    if size(settings, "num_aux_hidden_states", count) != count:
        raise CheckpointError(f"{folder.path}: num_aux_hidden_states is not {count}, which fc.weight is made for.")
    layers = read_layers(folder, settings, count)
    config, notes = _config(folder, settings, 3, layers, _draft_vocab_size(folder, settings, vocab_size))
    if config.norm_before_fc and config.fc_norm:
        raise CheckpointError(f"{folder.path}: norm_before_fc and fc_norm exclude each other.")
    sizes = config.vocab_size, config.draft_vocab_size
    weights = folder.read_weights(eagle_shapes(config).allowing(map_shapes(*sizes)))
    if folder.hints.num_target_layers in layers:
        depth = folder.hints.num_target_layers
        notes += (f"state {depth} is taken after the target's final norm, which other readers may not do.",)
    if flag(settings, "tie_word_embeddings") and "lm_head.weight" in weights:
        notes += ("tie_word_embeddings is true, but lm_head.weight is the output: SGLang would take the embedding.",)
    return StoredHead(config, weights, read_draft_ids(folder, *sizes)), notes


def _canonical(folder: HeadFolder) -> HeadFolder:
    """Its tensors by our names; training's prefix and buffers gone."""
    folder = folder.renamed(_canonical_name)
    second = sorted(name for name in folder.entries if name.startswith("layers.") and not name.startswith(LAYER))
    if second:
        raise UnsupportedModel(
            f"{folder.path} has more than one layer ({second[0]}); only heads of one layer are read."
        )
    if any(".self_attn.q_a_proj" in name or ".self_attn.kv_a_proj" in name for name in folder.entries):
        raise UnsupportedModel(f"{folder.path} has multi-head latent attention (DeepSeek), which is not read.")
    return folder


def _canonical_name(name: str) -> str | None:
    name = name.removeprefix("draft_model.")
    if name.endswith(HARMLESS):
        return None
    for old, new in SGLANG_NORMS.items():
        if name == f"{old}.weight":
            return f"{new}.weight"
    return LAYER + name.removeprefix("midlayer.") if name.startswith("midlayer.") else name


def _config(
    folder: HeadFolder, settings: Mapping[str, Any], version: int, layers: tuple[int, ...], draft_vocab_size: int
) -> tuple[EagleConfig, Notes]:
    _refuse_unsupported(folder, settings)
    hidden, heads = size(settings, "hidden_size"), size(settings, "num_attention_heads")
    positions, notes = _max_positions(settings)
    config = EagleConfig(
        version=version,
        hidden_size=hidden,
        target_hidden_size=size(settings, "target_hidden_size", hidden),
        intermediate_size=size(settings, "intermediate_size"),
        num_heads=heads,
        num_kv_heads=size(settings, "num_key_value_heads", heads),
        head_dim=size(settings, "head_dim", hidden // heads or 1),
        vocab_size=size(settings, "vocab_size"),
        draft_vocab_size=draft_vocab_size,
        feature_layers=layers,
        rms_norm_eps=positive(settings, "rms_norm_eps", 1e-6),
        rope_theta=_rope_theta(settings),
        max_positions=positions,
        **{name: version == 3 and flag(settings, name) for name in FLAGS},
    )
    if config.num_heads % config.num_kv_heads or config.head_dim % 2:
        raise CheckpointError(
            f"{folder.path}: {heads} heads of {config.head_dim} with {config.num_kv_heads} key heads are not possible; "
            "the heads must divide among the key heads, and their size must be even."
        )
    return config, notes


def _refuse_unsupported(folder: HeadFolder, settings: Mapping[str, Any]) -> None:
    names = folder.entries.keys()
    if size(settings, "num_hidden_layers", 1) != 1:
        raise UnsupportedModel(f"The head has {settings['num_hidden_layers']} layers; only heads of one are read.")
    for name, plain in {"hidden_act": "silu", "quantization_config": None}.items():
        if settings.get(name) not in (None, plain):
            raise UnsupportedModel(f"A head with {name} = {settings[name]!r} is not read, only {plain}.")
    if len(names & set(QK_NORMS)) == 1:
        raise CheckpointError(f"{folder.path} has only one of {' and '.join(QK_NORMS)}.")
    for switch, tensors in BIASES.items():
        if settings.get(switch) is None:
            continue
        wanted, found = flag(settings, switch), names & set(tensors)
        needed = set(tensors) - {f"{LAYER}self_attn.o_proj.bias"}
        if found and not wanted:
            raise CheckpointError(f"{folder.path} has {min(found)}, but its config has {switch} = false.")
        if wanted and needed - names:
            raise CheckpointError(f"{folder.path} has no {min(needed - names)}, but its config has {switch} = true.")
    if flag(settings, "tie_word_embeddings") and "lm_head.weight" not in names and "embed_tokens.weight" in names:
        raise CheckpointError(
            f"{folder.path} has tie_word_embeddings = true and no lm_head.weight: its output may be its own embedding "
            "or the target's output. Write lm_head.weight into the file, or set the key to false for the target's."
        )


def _draft_vocab_size(folder: HeadFolder, settings: Mapping[str, Any], vocab_size: int) -> int:
    """Vd by the config, else by the tensors."""
    stored = (folder.entries[name].shape for name in ("d2t", "lm_head.weight") if name in folder.entries)
    found = next((shape[0] for shape in stored if shape), vocab_size)
    draft_vocab_size = size(settings, "draft_vocab_size", found)
    if draft_vocab_size > vocab_size:
        raise CheckpointError(f"{folder.path}: draft_vocab_size {draft_vocab_size} is over vocab_size {vocab_size}.")
    return draft_vocab_size


def _rope_theta(settings: Mapping[str, Any]) -> float:
    """The head's own base, 10000 where it has none; the target's is never asked for."""
    scaling, values = record(settings, "rope_scaling"), record(settings, "rope_parameters")
    for where in (scaling, values, settings):
        kind = where.get("rope_type", where.get("type"))
        if where is not settings and kind not in ("default", None):
            raise UnsupportedModel(f"A head with rope_scaling of type {kind!r} is not read, only without scaling.")
        if where.get("partial_rotary_factor") not in (None, 1):
            raise UnsupportedModel("A head with a partial_rotary_factor other than 1 is not read.")
    values = scaling | values
    inner = positive(values, "rope_theta", positive(settings, "rope_theta", 10_000.0))
    if positive(settings, "rope_theta", inner) != inner:
        raise CheckpointError(
            f"The head's config has rope_theta {settings['rope_theta']} and {inner} in rope_parameters."
        )
    if inner <= 1:
        raise CheckpointError(f"The head's config has rope_theta = {inner}; it must be over 1.")
    return inner


def _max_positions(settings: Mapping[str, Any]) -> tuple[int, Notes]:
    """Tokens within which its attention is full: a sliding window ends them."""
    positions, kinds = size(settings, "max_position_embeddings", 2048), settings.get("layer_types")
    if isinstance(kinds, list) and kinds:
        if kinds[0] not in ("full_attention", "sliding_attention"):
            raise UnsupportedModel(f"A head whose layer is of type {kinds[0]!r} is not read.")
        slides = kinds[0] == "sliding_attention"
    else:
        mistral = settings.get("model_type") == "mistral" and settings.get("sliding_window") is not None
        slides = mistral or flag(settings, "use_sliding_window")
    if not slides:
        return positions, ()
    window = size(settings, "sliding_window")
    if window >= positions:
        return positions, ()
    return window, (
        f"its window of {window} tokens is taken as its length, {positions} before: attention is full here.",
    )


def _with_class_defaults(inner: Mapping[str, Any]) -> dict[str, Any]:
    """The whole config of the class that `model_type` names; values come from it, never from the target."""
    from transformers import LlamaConfig, Qwen3Config

    classes = {"llama": LlamaConfig, "qwen3": Qwen3Config}
    kind = inner.get("model_type", "qwen3")
    if not isinstance(kind, str) or kind not in classes:
        raise UnsupportedModel(f"transformer_layer_config has model_type {kind!r}; read are {', '.join(classes)}.")
    try:
        whole: dict[str, Any] = classes[kind](**inner).to_dict()
    except Exception as error:  # transformers checks values in ways of its own
        first = str(error).strip().split("\n")[0]
        raise CheckpointError(f"transformer_layer_config is not a config of type {kind!r}: {first}") from error
    return whole | ({"rope_theta": inner["rope_theta"]} if "rope_theta" in inner else {})
