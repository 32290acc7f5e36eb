"""Trained heads on the embedded model: from a folder to text, and refusals of what does not fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import outrider
from outrider.drafters.heads.config import EagleConfig, MedusaConfig
from outrider.drafters.heads.files import write_head
from outrider.drafters.heads.stored import StoredHead
from outrider.errors import CheckpointError, InvalidOption, OutriderError, VocabularyMismatch
from outrider.models.checkpoint import Checkpoint
from outrider.training.eagle import default_layers, new_head

PROMPT = "Name three birds."
TARGET = {"precision": "q4", "context_length": 96, "slots": 1}


def eagle_head(checkpoint: Checkpoint, version: int) -> StoredHead:
    """Made of the target's last layer, not trained; its own output rows, as the format wants."""
    config = checkpoint.config
    ids = torch.arange(0, config.vocab_size, 1 if version == 1 else 96)
    layers = (config.num_layers,) if version == 1 else default_layers(config.num_layers)
    head = new_head(version, config, checkpoint, ids, feature_layers=layers, seed=0)
    if version == 1:
        return head
    return replace(
        head, weights={**head.weights, "lm_head.weight": checkpoint.tensor("model.embed_tokens.weight")[ids]}
    )


def medusa_head(checkpoint: Checkpoint) -> StoredHead:
    config = checkpoint.config
    shape = MedusaConfig(2, 1, config.hidden_size, config.vocab_size, config.vocab_size)
    blocks = {f"{k}.0.linear.weight": torch.zeros(config.hidden_size, config.hidden_size) for k in range(2)}
    biases = {f"{k}.0.linear.bias": torch.zeros(config.hidden_size) for k in range(2)}
    rows = dict.fromkeys(("0.1.weight", "1.1.weight"), checkpoint.tensor("model.embed_tokens.weight").half())
    return StoredHead(shape, blocks | biases | rows)


def write_mlp(folder: Path, vocab_size: int, hidden_size: int) -> None:
    """A speculator of two steps in its published form, which outrider reads and does not write."""
    dice = torch.Generator().manual_seed(0)
    shapes = {}
    for i, width in enumerate((hidden_size, 32)):
        shapes |= {f"emb.{i}.weight": (vocab_size, 32), f"head.{i}.weight": (vocab_size, 32)}
        shapes |= {f"proj.{i}.weight": (32, width), f"ln.{i}.weight": (32,), f"ln.{i}.bias": (32,)}
    tensors = {f"speculator.{name}": torch.randn(shape, generator=dice) for name, shape in shapes.items()}
    config = {"model_type": "mlp_speculator", "vocab_size": vocab_size, "emb_dim": hidden_size, "inner_dim": 32}
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    more = {"n_predict": 2, "top_k_tokens_per_head": [2, 2], "tie_weights": False, "scale_input": False}
    (folder / "config.json").write_text(json.dumps({**config, **more}))


@pytest.fixture(scope="module")
def folders(smollm2_checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("heads")
    heads = {
        "eagle3": (eagle_head(smollm2_checkpoint, 3), "safeailab-eagle3"),
        "eagle1": (eagle_head(smollm2_checkpoint, 1), "safeailab-eagle1"),
        "medusa": (medusa_head(smollm2_checkpoint), "tgi-medusa"),
    }
    for name, (head, form) in heads.items():
        write_head(head, root / name, form, target="smollm2")
    write_mlp(root / "mlp", smollm2_checkpoint.config.vocab_size, smollm2_checkpoint.config.hidden_size)
    return {name: root / name for name in (*heads, "mlp")}


@pytest.fixture(scope="module")
def plain() -> Callable[[float], tuple[int, ...]]:
    engine = outrider.load("smollm2", drafter="none", rule="coupled", **TARGET)
    return lambda temperature: engine.generate(PROMPT, temperature=temperature, seed=3, max_new_tokens=24).token_ids


@pytest.mark.parametrize(
    "typed",
    [
        "eagle:{eagle3}",
        "eagle:{eagle3},tree=auto",
        "eagle:{eagle1}",
        "medusa:{medusa}",
        "mlp:{mlp}",
        "suffix+eagle:{eagle3}",
    ],
)
def test_a_head_from_its_folder_drafts_and_the_text_is_the_plain_one(typed, folders, plain) -> None:
    engine = outrider.load("smollm2", drafter=typed.format(**folders), rule="coupled", **TARGET)
    for temperature in (0.0, 0.8):
        result = engine.generate(PROMPT, temperature=temperature, seed=3, max_new_tokens=24)
        assert result.token_ids == plain(temperature)
        assert result.stats.num_broken_drafts == 0
    assert "suffix" in typed or result.stats.num_draft_tokens > 0


def changed(folder: Path, tmp_path: Path, **fields: object) -> Path:
    """The head with another config, its weights as they are."""
    from outrider.drafters.heads.files import read_head

    head = read_head(folder, 30)
    assert isinstance(head.config, EagleConfig)
    return written(replace(head, config=replace(head.config, **fields)), tmp_path)  # type: ignore[arg-type]


def written(head: StoredHead, tmp_path: Path) -> Path:
    write_head(head, tmp_path / "head", "safeailab-eagle3", target="other")
    return tmp_path / "head"


def narrow_head() -> StoredHead:
    """Of a target with states of 64 numbers."""
    config = EagleConfig(3, 64, 64, 96, 2, 1, 32, 49_152, 512, (2, 15, 27))
    from outrider.training.eagle import _drawn

    weights = _drawn(config, torch.Generator().manual_seed(0))
    return StoredHead(config, {**weights, "lm_head.weight": torch.zeros(512, 64)}, torch.arange(512))


def test_a_head_of_another_width_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VocabularyMismatch, match="states of 64 numbers; the target's have 576"):
        outrider.load("smollm2", drafter=f"eagle:{written(narrow_head(), tmp_path)}", **TARGET)


def test_a_head_that_reads_layers_the_target_lacks_is_refused(folders, tmp_path: Path) -> None:
    head = changed(folders["eagle3"], tmp_path, feature_layers=(2, 15, 47))
    with pytest.raises(OutriderError, match="47"):
        outrider.load("smollm2", drafter=f"eagle:{head}", **TARGET)


@pytest.mark.parametrize(("typed", "right"), [("medusa:{eagle3}", "eagle:PATH"), ("eagle:{medusa}", "medusa:PATH")])
def test_a_head_of_another_kind_is_refused_with_its_drafter(typed, right, folders) -> None:
    with pytest.raises(InvalidOption, match=right):
        outrider.load("smollm2", drafter=typed.format(**folders), **TARGET)


@pytest.mark.parametrize("name", ["no-such-folder", "file"])
def test_what_is_no_folder_of_a_head_is_refused(name, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match=name):
        outrider.load("smollm2", drafter=f"eagle:{tmp_path / name}", **TARGET)
