"""The tensors of a Hugging Face folder: config.json and one or more safetensors files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from outrider.errors import CheckpointError, UnsupportedModel
from outrider.models.config import config_from_json
from outrider.models.gguf_weights import Groups4
from outrider.models.settings import read_json

INDEX = "model.safetensors.index.json"
FLOAT_DTYPES = ("F32", "F16", "BF16")
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
PICKLE_REASON = (
    "pickle files can run code when they are read, so outrider does not read them; "
    "save the model as safetensors (model.save_pretrained(folder) does)"
)


class FolderWeights:
    """The tensors of one folder.

    Args:
        folder: with config.json and safetensors files.

    Raises:
        UnsupportedModel: an architecture, setting or number format that is not decoded; named.
        CheckpointError: a file that is missing or damaged.
    """

    is_q4 = False

    def __init__(self, folder: Path) -> None:
        self.config = config_from_json(read_json(folder / "config.json"))
        self.files = weight_files(folder)
        self._handles: dict[str, Any] = {}
        for path in self.files:
            self._add(path)
        self.shapes: Mapping[str, tuple[int, ...]] = {
            name: tuple(handle.get_slice(name).get_shape()) for name, handle in self._handles.items()
        }

    def _add(self, path: Path) -> None:
        try:
            handle: Any = safe_open(path, framework="pt")
            names = handle.keys()
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} is truncated or damaged: {error}.") from error
        for name in names:
            dtype = handle.get_slice(name).get_dtype()
            if dtype not in FLOAT_DTYPES:
                raise UnsupportedModel(
                    f"{path}: tensor {name!r} is stored as {dtype}; read are {', '.join(FLOAT_DTYPES)}."
                )
            if name in self._handles:
                raise CheckpointError(f"{path}: tensor {name!r} is in another file of the folder too.")
            self._handles[name] = handle

    def read(self, name: str) -> torch.Tensor:
        """A tensor as float32."""
        tensor: torch.Tensor = self._handles[name].get_tensor(name)
        return tensor.to(torch.float32, copy=True)

    def groups4(self, name: str) -> Groups4 | None:
        """None: no tensor here is in 4-bit groups."""
        assert name in self.shapes
        return None


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The files that the index lists, else the one safetensors file of the folder.

    Raises:
        CheckpointError: there are none, or not all that the index lists, or too many without an index.
    """
    if (folder / INDEX).exists():
        return _indexed_files(folder)
    found = sorted(folder.glob("*.safetensors"))
    if folder / "model.safetensors" in found:
        return (folder / "model.safetensors",)
    if len(found) == 1:
        return (found[0],)
    if found:
        raise CheckpointError(f"{folder} has {len(found)} safetensors files but no {INDEX} that lists them.")
    pickles = sorted(p.name for p in folder.iterdir() if p.suffix in PICKLE_SUFFIXES)
    if pickles:
        raise CheckpointError(f"{folder} has {pickles[0]} but no safetensors file: {PICKLE_REASON}.")
    raise CheckpointError(f"{folder} has no safetensors file.")


def _indexed_files(folder: Path) -> tuple[Path, ...]:
    listed = read_json(folder / INDEX).get("weight_map")
    if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()):
        raise CheckpointError(f"{folder / INDEX} has no weight_map from tensor names to file names.")
    names = sorted(set(listed.values()))
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise CheckpointError(f"{folder / INDEX} lists {name!r}, which is not a safetensors file of its folder.")
        if not (folder / name).exists():
            raise CheckpointError(f"{folder / INDEX} lists {name}, which the folder does not have.")
    return tuple(folder / name for name in names)
