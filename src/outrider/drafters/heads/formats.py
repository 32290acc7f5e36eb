"""The files of a head: config.json and one safetensors file, read by header first, written whole or not at all.

It knows names, shapes and number formats; what they mean is the business of the modules beside it.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from outrider.errors import CheckpointError, InvalidOption, UnsupportedModel
from outrider.models.safetensors_folder import FLOAT_DTYPES, PICKLE_SUFFIXES, weight_files
from outrider.models.settings import integer, read_json

MEDUSA_FILE = "medusa_lm_head.safetensors"
PICKLE_FIX = (
    "Pickle files can run code when they are read, so outrider does not read them. In a place that you trust, make it "
    'a safetensors file: safetensors.torch.save_file(torch.load(file, weights_only=True), "model.safetensors")'
)
MAP_DTYPES = {"d2t": ("I64", "I32"), "token_map": ("I64", "I32"), "t2d": ("BOOL",)}
"""Tensors that are no weights, and what they may be stored as."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Hints:
    """What the caller knows and the file may not say.

    Args:
        num_target_layers: N of the target.
        vocab_size: Vt of the target.
        feature_layers: ids of the target's states, in our counting, instead of those that the file tells of.
        d2t: how to read a `d2t` that could be either.
        as_stored: keep the number formats of the file; else everything becomes float32.
    """

    num_target_layers: int | None = None
    vocab_size: int | None = None
    feature_layers: tuple[int, ...] | None = None
    d2t: Literal["offset", "absolute"] | None = None
    as_stored: bool = False


@dataclass(frozen=True)
class Entry:
    """A tensor in a file that is open: its header is read, its numbers are not."""

    shape: Shape
    dtype: str
    stored_name: str
    handle: Any


@dataclass(frozen=True)
class HeadFolder:
    """A folder whose headers are read.

    Args:
        path: the folder.
        settings: contents of config.json.
        entries: tensors by name.
        hints: from the caller.
    """

    path: Path
    settings: Mapping[str, Any]
    entries: Mapping[str, Entry]
    hints: Hints

    def renamed(self, rename: Callable[[str], str | None]) -> HeadFolder:
        """The same tensors under other names; those that become None are left out.

        Raises:
            CheckpointError: two get the same name.
        """
        entries: dict[str, Entry] = {}
        for name, entry in self.entries.items():
            new = rename(name)
            if new in entries:
                raise CheckpointError(f"{self.path}: {name!r} and {entries[new].stored_name!r} are the same tensor.")
            if new is not None:
                entries[new] = entry
        return replace(self, entries=entries)

    def read(self, name: str) -> torch.Tensor:
        """A tensor; weights become float32 unless they are wanted as stored.

        Raises:
            CheckpointError: it holds infinities or NaNs.
        """
        entry = self.entries[name]
        tensor: torch.Tensor = entry.handle.get_tensor(entry.stored_name).clone()  # the file may change or go away
        if not tensor.is_floating_point():
            return tensor
        if not tensor.sum(dtype=torch.float32).isfinite() and not tensor.isfinite().all():
            raise CheckpointError(f"{self.path}: tensor {name!r} holds infinities or NaNs; the file is damaged.")
        return tensor if self.hints.as_stored else tensor.float()

    def read_weights(self, shapes: Shapes) -> dict[str, torch.Tensor]:
        """Every weight of these shapes that the file has, once all of them fit.

        Raises:
            CheckpointError: see `compare`.
        """
        compare({name: entry.shape for name, entry in self.entries.items()}, shapes, str(self.path))
        return {name: self.read(name) for name in self.entries if name not in MAP_DTYPES}


@dataclass(frozen=True)
class Shapes:
    """The tensors that a head must have and those that it may have, with their shapes."""

    required: Mapping[str, Shape]
    optional: Mapping[str, Shape]

    def allowing(self, more: Mapping[str, Shape]) -> Shapes:
        """With some that it may have besides."""
        return Shapes(self.required, {**self.optional, **more})


# ---------------------------------------------------------------- reading


def open_folder(path: str | Path, hints: Hints) -> HeadFolder:
    """Read the headers of a folder.

    Raises:
        CheckpointError: missing, damaged, a pickle, or of number formats that are no head's.
        UnsupportedModel: a GGUF file.
    """
    path = Path(path)
    if path.suffix in PICKLE_SUFFIXES:
        raise CheckpointError(f"{path} is a pickle file. {PICKLE_FIX}")
    if path.suffix == ".gguf":
        raise UnsupportedModel(f"{path}: heads in GGUF files are not read; give the folder that it was made from.")
    if not path.is_dir():
        raise CheckpointError(f"{path} is not a folder; a head is one with config.json and a safetensors file.")
    entries: dict[str, Entry] = {}
    for file in _files(path):
        entries |= _entries(file)
    return HeadFolder(path, read_json(path / "config.json"), entries, hints)


def _files(folder: Path) -> tuple[Path, ...]:
    if (folder / MEDUSA_FILE).exists():
        return (folder / MEDUSA_FILE,)  # beside it may lie the whole model that it belongs to
    pickles = sorted(file.name for file in folder.iterdir() if file.suffix in PICKLE_SUFFIXES)
    if pickles and not any(folder.glob("*.safetensors")):
        raise CheckpointError(f"{folder} has {pickles[0]} but no safetensors file. {PICKLE_FIX}")
    return weight_files(folder)


def _entries(file: Path) -> dict[str, Entry]:
    try:
        handle: Any = safe_open(file, framework="pt")
        slices = {name: handle.get_slice(name) for name in handle.keys()}  # noqa: SIM118 (not a dictionary)
        found = {name: Entry(tuple(s.get_shape()), s.get_dtype(), name, handle) for name, s in slices.items()}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} is truncated or damaged: {error}.") from error
    for name, entry in found.items():
        allowed = MAP_DTYPES.get(name.rpartition(".")[2], FLOAT_DTYPES)
        if entry.dtype not in allowed:
            raise CheckpointError(f"{file}: tensor {name!r} is stored as {entry.dtype}; read are {', '.join(allowed)}.")
    return found


def compare(found: Mapping[str, Shape], shapes: Shapes, where: str) -> None:
    """Compare the tensors that there are with those that the config asks for.

    Raises:
        CheckpointError: tensors are missing or left over, or one has another shape; named.
    """
    known = {**shapes.required, **shapes.optional}
    missing, left_over = shapes.required.keys() - found.keys(), found.keys() - known.keys()
    if missing or left_over:
        parts = [f"{what} {few(names)}" for what, names in (("missing", missing), ("left over", left_over)) if names]
        raise CheckpointError(f"{where}: the tensors do not fit the config: {'; '.join(parts)}.")
    for name, shape in found.items():
        if shape != known[name]:
            asked = list(known[name])
            raise CheckpointError(f"{where}: tensor {name!r} has shape {list(shape)}, the config asks for {asked}.")


def few(names: AbstractSet[str]) -> str:
    """The first of some names, in words."""
    listed = sorted(names)
    return ", ".join(listed[:5]) + (f" and {len(listed) - 5} more" if len(listed) > 5 else "")


# ---------------------------------------------------------------- single values of a config


def size(settings: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A whole number from 1 to 2^31 - 1.

    Raises:
        CheckpointError: it is anything else.
    """
    value = integer(settings, name, default)
    if not 0 < value < 2**31:
        raise CheckpointError(f"The head's config has {name} = {value}; it must be from 1 to 2^31 - 1.")
    return value


def flag(settings: Mapping[str, Any], name: str, default: bool = False) -> bool:
    """A switch, or the default where it is absent or null.

    Raises:
        CheckpointError: it is neither true nor false.
    """
    value = settings.get(name)
    value = default if value is None else value
    if not isinstance(value, bool):
        raise CheckpointError(f"The head's config has {name} = {value!r}; it must be true or false.")
    return value


def text(settings: Mapping[str, Any], name: str) -> str:
    """A string, empty where it is absent or something else."""
    value = settings.get(name)
    return value if isinstance(value, str) else ""


# ---------------------------------------------------------------- writing


def check_new(folder: str | Path) -> Path:
    """Where a head will be written, resolved.

    Raises:
        InvalidOption: there is something already.
    """
    path = Path(folder).expanduser().resolve()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InvalidOption("folder", str(folder), "a new or an empty folder", "Nothing was written.")
    return path


def save_folder(
    folder: str | Path, settings: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], file: str
) -> None:
    """Write a folder beside its place and move it there when it is complete.

    Raises:
        InvalidOption: there is something already, or it cannot be written.
    """
    path = check_new(folder)
    made = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        made.mkdir(parents=True)
        (made / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        # Copies, for safetensors refuses tensors that share memory.
        copies = {n: t.detach().cpu().clone(memory_format=torch.contiguous_format) for n, t in tensors.items()}
        save_file(copies, made / file, metadata={"format": "pt"})
        if path.exists():
            path.rmdir()
        made.rename(path)
    except (OSError, SafetensorError) as error:
        raise InvalidOption("folder", str(folder), "a folder that can be written", f"{error}.") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
