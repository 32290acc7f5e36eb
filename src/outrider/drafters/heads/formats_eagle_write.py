"""Writing EAGLE heads: every setting is said, for each reader has defaults of its own."""

from __future__ import annotations

from typing import Any

import torch

from outrider.drafters.heads.config import EagleConfig
from outrider.drafters.heads.eagle import LAYER
from outrider.drafters.heads.formats_eagle import BIASES, FLAGS, QK_NORMS
from outrider.drafters.heads.formats_layers import IDS, NESTED
from outrider.drafters.heads.formats_vocabulary import maps
from outrider.drafters.heads.stored import StoredHead
from outrider.errors import InvalidOption

USUAL_COUNT = 3
SPECULATORS_VERSION = "0.3.0"
MODEL_FILE = "model.safetensors"

Written = tuple[dict[str, Any], dict[str, torch.Tensor], str]
"""Config, tensors and the name of their file."""


def write_eagle1(head: StoredHead) -> Written:
    """What the EAGLE reference reads.

    Raises:
        InvalidOption: the head has parts for which the format has no place.
    """
    config = _eagle(head)
    if config.version != 1:
        raise InvalidOption(
            "format", "safeailab-eagle1", "safeailab-eagle3, speculators-eagle3", "It is an EAGLE-3 head."
        )
    if head.draft_ids is not None or "lm_head.weight" in head.weights:
        fix = "The format has no place for an output or a vocabulary of the head's own."
        raise InvalidOption("format", "safeailab-eagle1", "none for this head", fix)
    settings = {"architectures": ["LlamaForCausalLM"], **_llama(head)}
    return settings | {"bias": "fc.bias" in head.weights}, dict(head.weights), MODEL_FILE


def write_eagle3(head: StoredHead) -> Written:
    """What SafeAILab and SpecForge write; layer ids are in it twice, counted in both ways.

    Raises:
        InvalidOption: a matrix is missing that the format requires, or there is one for which it has no place.
    """
    config, name = _eagle(head), "safeailab-eagle3"
    _require(head, name, "lm_head.weight")
    if QK_NORMS[0] in head.weights:
        raise InvalidOption("format", name, "speculators-eagle3", "Norms of q and k have no place in a Llama config.")
    settings = {"architectures": ["LlamaForCausalLMEagle3"], **_llama(head)}
    settings["draft_vocab_size"] = config.draft_vocab_size
    settings |= {flag: getattr(config, flag) for flag in FLAGS[:3]}
    if config.norm_output:  # written only if true, for SpecForge takes false for "no final norm"
        settings["norm_output"] = True
    if config.target_hidden_size != config.hidden_size:  # null would break readers
        settings["target_hidden_size"] = config.target_hidden_size
    if len(config.feature_layers) != USUAL_COUNT:
        settings["num_aux_hidden_states"] = len(config.feature_layers)
    if "fc.bias" in head.weights:
        settings["bias"] = True
    settings[IDS] = list(config.feature_layers)
    settings[NESTED] = {"use_aux_hidden_state": True, IDS: [i - 1 for i in config.feature_layers]}
    tensors = {_midlayer(n): tensor for n, tensor in head.weights.items()}
    return settings, tensors | _maps(head), MODEL_FILE


def write_speculators(head: StoredHead, target: str) -> Written:
    """What vLLM serves by itself and llama.cpp converts.

    Raises:
        InvalidOption: a matrix is missing that the format requires.
    """
    config = _eagle(head)
    _require(head, "speculators-eagle3", "lm_head.weight", "embed_tokens.weight")
    inner = _llama(head) | {"num_aux_hidden_states": len(config.feature_layers)}
    dtype = inner.pop("torch_dtype")
    if QK_NORMS[0] in head.weights:
        inner |= {"model_type": "qwen3", "use_sliding_window": False, "sliding_window": None}
        inner["layer_types"] = ["full_attention"]
    proposal = {"proposal_type": "greedy", "speculative_tokens": 5, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    settings: dict[str, Any] = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": SPECULATORS_VERSION,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": target, "architectures": []},
        },
        "transformer_layer_config": inner,
        "draft_vocab_size": config.draft_vocab_size,
        **{flag: getattr(config, flag) for flag in FLAGS},
        "target_hidden_size": config.target_hidden_size,
        IDS: list(config.feature_layers),
        "embed_requires_grad": False,
        "tie_word_embeddings": False,
        "torch_dtype": dtype,
    }
    return settings, {**head.weights, **_maps(head)}, MODEL_FILE


def _eagle(head: StoredHead) -> EagleConfig:
    assert isinstance(head.config, EagleConfig)
    return head.config


def _llama(head: StoredHead) -> dict[str, Any]:
    """The keys of a Llama config of one layer, in both spellings where there are two."""
    c = _eagle(head)
    return {
        "model_type": "llama",
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": c.num_heads,
        "num_key_value_heads": c.num_kv_heads,
        "head_dim": c.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": c.rms_norm_eps,
        "rope_theta": c.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": c.rope_theta},
        "rope_scaling": None,
        "max_position_embeddings": c.max_positions,
        "vocab_size": c.vocab_size,
        **{switch: any(name in head.weights for name in names) for switch, names in BIASES.items()},
        "tie_word_embeddings": False,
        "pad_token_id": 0,
        "torch_dtype": str(head.weights["fc.weight"].dtype).removeprefix("torch."),
    }


def _require(head: StoredHead, name: str, *matrices: str) -> None:
    if _eagle(head).version != 3:
        raise InvalidOption("format", name, "safeailab-eagle1", "It is an EAGLE-1 head.")
    for matrix in matrices:
        if matrix not in head.weights:
            fix = f"{matrix} is the target's own, and {name} requires it: copy it into the head's weights."
            raise InvalidOption("format", name, f"a format without {matrix}", fix)


def _midlayer(name: str) -> str:
    return "midlayer." + name.removeprefix(LAYER) if name.startswith(LAYER) else name


def _maps(head: StoredHead) -> dict[str, torch.Tensor]:
    return {} if head.draft_ids is None else maps(head.draft_ids, _eagle(head).vocab_size)
