"""A smaller decoder as a transformers model: some of a target's layers, or all of a draft model's; in and out.

What is trained is transformers' own graph; what drafts is the native decoder on the same weights. That both mean the
same is checked where the graph is made: its config must be read back as the decoder's.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from outrider.errors import CheckpointError, InvalidOption, UnsupportedModel
from outrider.models.checkpoint import EMBEDDING, HEAD, Checkpoint, expected_shapes
from outrider.models.config import MODEL_TYPES, DecoderConfig, config_from_json, transformers_settings
from outrider.models.gguf_weights import Groups4
from outrider.models.settings import read_json
from outrider.models.tokenizer import Tokenizer

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
)

PER_LAYER = ("layer_types",)
"""Lists in a config with an entry per layer."""


def kept_layers(num_layers: int, wanted: int) -> tuple[int, ...]:
    """Which layers of the target a smaller one is made of: the first, the last, and evenly spaced ones between.

    Raises:
        InvalidOption: fewer than two, or all of them.
    """
    if not 2 <= wanted < num_layers:
        raise InvalidOption("layers", wanted, f"2 to {num_layers - 1}", f"The target has {num_layers} layers.")
    return tuple(round(i * (num_layers - 1) / (wanted - 1)) for i in range(wanted))


def build(checkpoint: Checkpoint, kept: tuple[int, ...]) -> Any:
    """A transformers model of these layers, float32, with the checkpoint's weights.

    Args:
        checkpoint: of the target or of a draft model.
        kept: ids of the layers, ascending.

    Raises:
        UnsupportedModel: a GGUF file with stretched positions, which no config.json of its own describes.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    config = replace(checkpoint.config, num_layers=len(kept))
    settings = _settings(checkpoint, kept)
    made = AutoConfig.for_model(**settings)
    made.architectures = [config.architecture]
    # Where a file says less than transformers writes, what it means must be the same.
    if config_from_json(json.loads(made.to_json_string(use_diff=False))) != config:
        raise UnsupportedModel(f"{checkpoint.path}: transformers reads its config in another way than outrider does.")
    model = AutoModelForCausalLM.from_config(made, dtype=torch.float32)
    names = _renamed(config, kept)
    model.load_state_dict({new: checkpoint.tensor(old) for new, old in names.items()}, strict=False)
    missing = {name for name, _ in model.named_parameters()} - names.keys()
    assert not missing, missing
    return model.train()


def _renamed(config: DecoderConfig, kept: tuple[int, ...]) -> dict[str, str]:
    """Names of the smaller decoder's tensors -> names of the same ones in the checkpoint."""
    names = {}
    for name in expected_shapes(config):
        head, _, rest = name.partition("model.layers.")
        number, _, part = rest.partition(".")
        names[name] = f"model.layers.{kept[int(number)]}.{part}" if rest else head
    if config.tie_embeddings:
        del names[HEAD]
    return names


def _settings(checkpoint: Checkpoint, kept: tuple[int, ...]) -> dict[str, Any]:
    """Contents of a config.json for these layers."""
    if not checkpoint.path.is_dir():
        return _settings_of_gguf(checkpoint, len(kept))
    settings = read_json(checkpoint.path / "config.json")
    settings.setdefault("model_type", _model_type(checkpoint.config))
    for name in PER_LAYER:
        if isinstance(settings.get(name), list):
            settings[name] = [settings[name][i] for i in kept]
    return {**settings, "num_hidden_layers": len(kept), "dtype": "float32", "torch_dtype": None}


def _settings_of_gguf(checkpoint: Checkpoint, num_layers: int) -> dict[str, Any]:
    c = checkpoint.config
    if c.rope.kind != "default":
        fix = "Name the folder that it was made from."
        raise UnsupportedModel(f"{checkpoint.path} stretches its positions ({c.rope.kind}). {fix}")
    return {"model_type": _model_type(c), **transformers_settings(replace(c, num_layers=num_layers))}


def _model_type(config: DecoderConfig) -> str:
    return next(name for name, architecture in MODEL_TYPES.items() if architecture == config.architecture)


# ---------------------------------------------------------------- the native decoder on the same weights


class InMemory:
    """Weights that are in memory, as `checkpoint.Weights`.

    Args:
        config: of the decoder.
        tensors: by Hugging Face name.
    """

    is_q4 = False

    def __init__(self, config: DecoderConfig, tensors: Mapping[str, torch.Tensor]) -> None:
        self.config, self.tensors = config, tensors
        self.shapes: Mapping[str, tuple[int, ...]] = {name: tuple(t.shape) for name, t in tensors.items()}

    def read(self, name: str) -> torch.Tensor:
        """A tensor as float32, a copy."""
        return self.tensors[name].detach().to(torch.float32, copy=True)

    def groups4(self, name: str) -> Groups4 | None:
        """None: nothing is in 4-bit groups."""
        assert name in self.tensors
        return None


def as_checkpoint(model: Any, config: DecoderConfig) -> Checkpoint:
    """The model's weights as they are now, for `load_decoder`.

    Args:
        model: from `build`.
        config: its shape, as the decoder has it.
    """
    tensors = {name: tensor for name, tensor in model.state_dict().items() if name in expected_shapes(config)}
    if config.tie_embeddings:
        tensors.pop(HEAD, None)
    assert EMBEDDING in tensors
    return Checkpoint(Path("memory"), config, frozenset(tensors), InMemory(config, tensors))


# ---------------------------------------------------------------- the folder


def save(model: Any, tokenizer: Tokenizer, source: Path, folder: Path) -> None:
    """A Hugging Face folder that `--drafter model:FOLDER` and transformers read.

    Args:
        model: from `build`.
        tokenizer: what it speaks.
        source: where that came from: its files are copied from a folder, and written anew for a GGUF file.
        folder: new or empty.

    Raises:
        CheckpointError: the folder has no tokenizer files.
    """
    model.config.bos_token_id, model.config.eos_token_id = tokenizer.bos_id, tokenizer.eos_id
    model.save_pretrained(folder, safe_serialization=True)
    if not source.is_dir():
        tokenizer.save(folder)
        return
    copied = [name for name in TOKENIZER_FILES if (source / name).is_file()]
    if not copied:
        raise CheckpointError(f"{source} has none of the files of a tokenizer.")
    for name in copied:
        shutil.copyfile(source / name, folder / name)
