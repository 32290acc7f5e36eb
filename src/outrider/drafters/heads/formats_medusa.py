"""Medusa heads: as FasterDecoding writes them, TGI's two variants, and vLLM's own format."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

from outrider.drafters.heads.config import MedusaConfig
from outrider.drafters.heads.formats import MEDUSA_FILE, HeadFolder, Shape, Shapes, flag, size
from outrider.drafters.heads.formats_vocabulary import fault
from outrider.drafters.heads.stored import StoredHead
from outrider.errors import CheckpointError, InvalidOption, UnsupportedModel
from outrider.models.settings import positive

PREFIXES = ("medusa_head.", "medusa_heads.")
BLOCK = re.compile(r"(\d{1,4})\.(\d{1,4})\.linear\.(weight|bias)")
OUTPUT = re.compile(r"(\d{1,4})\.(\d{1,4})\.weight")
VLLM_BLOCK = re.compile(r"blocks\.(\d{1,4})\.layers\.(\d{1,4})\.(weight|bias)")
VLLM_OUTPUT = re.compile(r"lm_heads\.(\d{1,4})\.weight")
SHARED = "lm_head.weight"
"""vLLM's one output of all heads."""


def read_medusa(folder: HeadFolder) -> tuple[StoredHead, tuple[str, ...]]:
    """Medusa heads in any of the formats; which one follows from the names of the tensors.

    Raises:
        CheckpointError, UnsupportedModel: see `files.read_head`.
    """
    settings = folder.settings
    native = any(VLLM_BLOCK.fullmatch(name.removeprefix(PREFIXES[1])) for name in folder.entries)
    layers = size(settings, "num_hidden_layers" if native else "medusa_num_layers", 1)
    if positive(settings, "logit_scale", 1.0) != 1.0:
        raise UnsupportedModel(f"{folder.path} has logit_scale = {settings['logit_scale']}; read is only 1.")
    folder = _canonical(folder, layers)
    config, notes = _config(folder, layers, native)
    weights = folder.read_weights(_stored_shapes(folder, config))
    shared = weights.pop(SHARED, None)
    if shared is not None:
        weights |= {f"{k}.{layers}.weight": shared for k in range(config.num_heads)}
    ids = _token_map(folder, config)
    if ids is None:
        return StoredHead(config, weights), notes
    ids, order = ids.sort()
    for k in range(config.num_heads):
        name = f"{k}.{layers}.weight"
        if name in weights:  # one row per token, or all of the target's, of which the map takes some
            weights[name] = weights[name][order if len(weights[name]) == len(ids) else ids]
    return StoredHead(config, weights, ids), notes


def medusa_shapes(config: MedusaConfig) -> Shapes:
    """The tensors of Medusa heads by the names of `heads.medusa`."""
    H, heads, layers = config.hidden_size, range(config.num_heads), range(config.num_layers)
    blocks = [f"{k}.{block}.linear" for k in heads for block in layers]
    biases: dict[str, Shape] = {f"{name}.bias": (H,) for name in blocks}
    outputs: dict[str, Shape] = {f"{k}.{config.num_layers}.weight": (config.draft_vocab_size, H) for k in heads}
    return Shapes({f"{name}.weight": (H, H) for name in blocks}, biases | outputs)


# ---------------------------------------------------------------- steps of reading


def _canonical(folder: HeadFolder, layers: int) -> HeadFolder:
    whole_model = any(name.startswith(PREFIXES[0]) for name in folder.entries)
    shared = flag(folder.settings, "original_lm_head")

    def rename(name: str) -> str | None:
        if whole_model and not name.startswith(PREFIXES[0]):
            return None  # the model that the heads belong to lies in the same file
        for prefix in PREFIXES:
            name = name.removeprefix(prefix)
        block, output = VLLM_BLOCK.fullmatch(name), VLLM_OUTPUT.fullmatch(name)
        if block:
            return f"{block[1]}.{block[2]}.linear.{block[3]}"
        if output:
            return SHARED if shared and output[1] == "0" else f"{output[1]}.{layers}.weight"
        return name

    return folder.renamed(rename)


def _config(folder: HeadFolder, layers: int, native: bool) -> tuple[MedusaConfig, tuple[str, ...]]:
    settings, blocks = folder.settings, [BLOCK.fullmatch(name) for name in folder.entries]
    stored = {int(found[1]) for found in blocks if found}
    hidden = folder.entries.get("0.0.linear.weight")
    if hidden is None or not hidden.shape:
        raise CheckpointError(f"{folder.path} has no first block of Medusa head 0 (0.0.linear.weight).")
    claimed = size(settings, "num_heads" if native else "medusa_num_heads", len(stored))
    num_heads = len(stored) if not native and claimed < len(stored) else claimed  # published configs claim too few
    notes = []
    if num_heads != claimed:
        notes.append(f"the config claims {claimed} heads, the file holds {num_heads}.")
    biased = any(found and found[3] == "bias" for found in blocks)
    if biased and native and not flag(settings, "medusa_fc_bias"):
        notes.append("medusa_fc_bias is not true, so vLLM drops the biases of this file.")
    if flag(settings, "medusa_fc_bias") and not biased:
        raise CheckpointError(f"{folder.path} has medusa_fc_bias = true, but no biases.")
    rows, vocab_size = _vocabulary(folder)
    config = MedusaConfig(
        num_heads=num_heads,
        num_layers=layers,
        hidden_size=size(settings, "hidden_size", hidden.shape[0]),
        vocab_size=vocab_size,
        draft_vocab_size=size(settings, "truncated_vocab_size", rows if rows is not None else vocab_size),
    )
    if num_heads * layers > len(folder.entries):
        raise CheckpointError(f"{folder.path} has too few tensors for {num_heads} heads of {layers} layers.")
    if config.draft_vocab_size > vocab_size:
        raise CheckpointError(f"{folder.path}: {config.draft_vocab_size} tokens of {vocab_size} are too many.")
    return config, tuple(notes)


def _vocabulary(folder: HeadFolder) -> tuple[int | None, int]:
    """Ids of the token map, None without; and Vt by the config, by the outputs, or as the caller knows it."""
    mapped = folder.entries.get("token_map")
    rows = None if mapped is None or len(mapped.shape) != 1 else mapped.shape[0]
    outputs = [e.shape[0] for n, e in folder.entries.items() if (OUTPUT.fullmatch(n) or n == SHARED) and e.shape]
    known = folder.hints.vocab_size if mapped is not None or not outputs else outputs[0]
    if known is None and folder.settings.get("vocab_size") is None:
        raise CheckpointError(
            f"{folder.path}: the size of the target's vocabulary is in neither the config nor the tensors. Name the "
            "target."
        )
    return rows, size(folder.settings, "vocab_size", known)


def _stored_shapes(folder: HeadFolder, config: MedusaConfig) -> Shapes:
    """As stored: outputs may have rows for the whole vocabulary, of which a token map takes some."""
    shapes, names, mapped = medusa_shapes(config), folder.entries.keys(), "token_map" in folder.entries
    if not mapped and config.draft_vocab_size != config.vocab_size:
        raise CheckpointError(
            f"{folder.path}: the heads speak {config.draft_vocab_size} of {config.vocab_size} tokens, but there is no "
            "token_map that says which."
        )
    outputs = {name for name in shapes.optional if OUTPUT.fullmatch(name)}
    optional = {name: shape for name, shape in shapes.optional.items() if name not in outputs}
    if flag(folder.settings, "original_lm_head"):
        outputs = {SHARED}
    stored: dict[str, Shape] = {}
    for name in outputs if outputs & names else ():
        full = mapped and name in names and folder.entries[name].shape[:1] == (config.vocab_size,)
        stored[name] = (config.vocab_size if full else config.draft_vocab_size, config.hidden_size)
    return Shapes({**shapes.required, **stored}, {**optional, "token_map": (config.draft_vocab_size,)})


def _token_map(folder: HeadFolder, config: MedusaConfig) -> torch.Tensor | None:
    if "token_map" not in folder.entries:
        return None
    ids = folder.read("token_map").long()
    wrong = fault(ids.sort().values, config.vocab_size)
    if wrong:
        raise CheckpointError(f"{folder.path}: token_map is no vocabulary: {wrong}.")
    return ids


# ---------------------------------------------------------------- writing


def write_medusa(head: StoredHead, format: str, target: str) -> tuple[dict[str, Any], dict[str, torch.Tensor], str]:  # noqa: A002
    """Config, tensors and file name of Medusa heads.

    Args:
        head: with a `MedusaConfig`.
        format: "medusa", "tgi-medusa" or "vllm-medusa".
        target: what TGI loads the model from.

    Raises:
        InvalidOption: the format has no place for something that the head has, or needs what it does not have.
    """
    config = head.config
    assert isinstance(config, MedusaConfig)
    native = format == "vllm-medusa"
    outputs = {f"{k}.{config.num_layers}.weight" for k in range(config.num_heads)}
    shares = not outputs & head.weights.keys()
    if outputs - head.weights.keys() and not (format == "tgi-medusa" and shares and config.num_layers == 1):
        fix = f"{min(outputs - head.weights.keys())} is the target's own output: copy it into the head's weights."
        raise InvalidOption("format", format, "one that shares the target's output (tgi-medusa, one layer)", fix)
    if head.draft_ids is not None and not native:
        raise InvalidOption("format", format, "vllm-medusa", "Only it has a place for a smaller vocabulary.")
    weights = _with_biases(head.weights, config, always=not native)
    biased = any(name.endswith(".bias") for name in weights)
    settings: dict[str, Any] = {"base_model_name_or_path": target, "hidden_size": config.hidden_size}
    settings |= {"vocab_size": config.vocab_size, "medusa_fc_bias": biased}
    if not native:
        settings |= {"medusa_num_heads": config.num_heads, "medusa_num_layers": config.num_layers}
        return settings | ({"version": "2"} if format == "medusa" else {}), weights, MEDUSA_FILE
    settings |= {"model_type": "medusa", "architectures": ["MedusaModel"], "num_heads": config.num_heads}
    settings |= {"num_hidden_layers": config.num_layers, "truncated_vocab_size": config.draft_vocab_size}
    settings |= {"max_paths": 64, "topk": 10, "original_lm_head": False, "logit_scale": 1.0}
    tensors = {_vllm_name(name): tensor for name, tensor in weights.items()}
    return settings, tensors | ({} if head.draft_ids is None else {"token_map": head.draft_ids}), "model.safetensors"


def _with_biases(weights: Mapping[str, torch.Tensor], config: MedusaConfig, *, always: bool) -> dict[str, torch.Tensor]:
    """All biases or none: zeros where a format needs one that the heads do not have."""
    if not always and not any(name.endswith(".bias") for name in weights):
        return dict(weights)
    blocks = [f"{k}.{block}.linear" for k in range(config.num_heads) for block in range(config.num_layers)]
    zeros = {f"{n}.bias": weights[f"{n}.weight"].new_zeros(config.hidden_size) for n in blocks}
    return zeros | dict(weights)


def _vllm_name(name: str) -> str:
    block, output = BLOCK.fullmatch(name), OUTPUT.fullmatch(name)
    if block:
        return f"blocks.{block[1]}.layers.{block[2]}.{block[3]}"
    assert output, name
    return f"lm_heads.{output[1]}.weight"
