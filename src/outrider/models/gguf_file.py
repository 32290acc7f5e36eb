"""A strict reader of GGUF files: header, metadata and where each tensor lies.

Every count, length and offset is compared with the size of the file before anything is allocated, so a damaged file
gives a `CheckpointError`, never a crash. Knows nothing of models; gguf's own reader takes seconds on a large
vocabulary. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little endian).
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from outrider.errors import CheckpointError

MAX_DIMENSIONS = 4
DEFAULT_ALIGNMENT = 32
STRING, ARRAY = 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""GGUF value type -> `struct` code."""

_U64 = struct.Struct("<Q")


@dataclass(frozen=True)
class GgufTensor:
    """Where a tensor lies in its file.

    Args:
        name: GGUF name, such as blk.0.attn_q.weight.
        shape: row-major, as in torch: rows first (the file lists the row length first).
        kind: number format.
        offset: of its first byte in the file.
        num_bytes: its size in the file.
    """

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int
    num_bytes: int


@dataclass(frozen=True)
class GgufFile:
    """An open GGUF file, mapped into memory.

    Args:
        path: where it lies.
        version: 2 or 3.
        metadata: keys and values; arrays are lists (of str) or numpy arrays (of numbers).
        tensors: by GGUF name.
        data_start: offset of the first tensor's bytes; the header is all before it.
        content: the whole file.
    """

    path: Path
    version: int
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]
    data_start: int
    content: mmap.mmap

    def rows(self, name: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The stored bytes of a tensor, [rows, bytes per row], read-only and not copied; a vector has 1-number rows."""
        tensor = self.tensors[name]
        stored = np.frombuffer(self.content, np.uint8, tensor.num_bytes, tensor.offset)
        return stored.reshape(tensor.shape[0], -1)


def read_gguf(path: Path) -> GgufFile:
    """Open a GGUF file and read its header.

    Raises:
        CheckpointError: missing, empty, truncated or damaged, with what was claimed and what the file holds.
    """
    content = _map(path)
    reader = _Reader(path, content)
    magic = reader.take(4)
    if magic != b"GGUF":
        raise CheckpointError(f"{path} is not a GGUF file: it starts with {magic!r}, not b'GGUF'.")
    version = reader.scalar("I")
    if version not in (2, 3):
        note = " (big endian?)" if version & 0xFFFF == 0 else ""
        raise CheckpointError(f"{path} is GGUF version {version}{note}; versions 2 and 3, little endian, are read.")
    num_tensors = reader.count("tensors", smallest=8 + 4 + 8 + 4 + 8)
    num_values = reader.count("metadata values", smallest=8 + 4 + 1)
    metadata: dict[str, Any] = {}
    for _ in range(num_values):
        key = reader.string()
        if key in metadata:
            raise CheckpointError(f"{path} has the metadata key {key!r} twice.")
        metadata[key] = reader.value(reader.scalar("I"))
    infos = [_tensor_info(reader) for _ in range(num_tensors)]
    alignment = _alignment(path, metadata)
    data_start = -(-reader.position // alignment) * alignment
    tensors = _place_tensors(reader, infos, data_start, alignment)
    return GgufFile(path, version, metadata, tensors, data_start, content)


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist.") from None
    except ValueError:  # mmap refuses an empty file
        raise CheckpointError(f"{path} is empty.") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from error


class _Reader:
    """Takes values off the front of a mapped file, never past its end."""

    def __init__(self, path: Path, content: mmap.mmap) -> None:
        self.path, self.content, self.size, self.position = path, content, len(content), 0

    def take(self, num_bytes: int) -> bytes:
        """The next bytes."""
        end = self.position + num_bytes
        if end > self.size:
            raise CheckpointError(
                f"{self.path} is truncated or damaged: {num_bytes} bytes are claimed at byte {self.position}, "
                f"the file holds {self.size - self.position} more."
            )
        taken = self.content[self.position : end]
        self.position = end
        return taken

    def scalar(self, code: str) -> Any:
        """The next number, by its `struct` code."""
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def count(self, what: str, smallest: int) -> int:
        """A number of items of at least `smallest` bytes each, checked against what is left of the file."""
        claimed, left = self.scalar("Q"), self.size - self.position
        if claimed * smallest > left:
            raise CheckpointError(
                f"{self.path} is truncated or damaged: it claims {claimed} {what} at byte {self.position}, "
                f"the file holds {left} more bytes."
            )
        return int(claimed)

    def string(self) -> str:
        """A length and so many bytes of UTF-8."""
        taken = self.take(self.count("bytes of text", smallest=1))
        try:
            return taken.decode()
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{self.path} has text before byte {self.position} that is not UTF-8.") from error

    def value(self, kind: int) -> Any:
        """A metadata value of a GGUF value type."""
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            return self.array()
        if kind in SCALARS:
            return self.scalar(SCALARS[kind])
        raise CheckpointError(f"{self.path} has a metadata value of unknown type {kind} at byte {self.position}.")

    def array(self) -> Any:
        """An array of strings (a list) or of numbers (a numpy array)."""
        kind = self.scalar("I")
        if kind == STRING:
            return self.strings(self.count("strings", smallest=8))
        if kind not in SCALARS:
            raise CheckpointError(f"{self.path} has an array of unsupported type {kind} at byte {self.position}.")
        dtype = np.dtype("<" + SCALARS[kind])
        return np.frombuffer(self.take(self.count("numbers", dtype.itemsize) * dtype.itemsize), dtype)

    def strings(self, num_strings: int) -> list[str]:
        """So many strings; a loop without method calls, since vocabularies hold 100,000 of them."""
        content, size, position = self.content, self.size, self.position
        unpack, found = _U64.unpack_from, []
        try:
            for _ in range(num_strings):
                start = position + 8
                position = start + unpack(content, position)[0]
                if position > size:
                    raise CheckpointError(f"{self.path} is truncated or damaged: a string at byte {start} is too long.")
                found.append(content[start:position].decode())
        except (struct.error, UnicodeDecodeError) as error:
            raise CheckpointError(f"{self.path} is truncated or damaged near byte {position}: {error}.") from error
        self.position = position
        return found


def _tensor_info(reader: _Reader) -> tuple[str, tuple[int, ...], int, int]:
    """Name, row-major shape, number format, offset within the data."""
    name = reader.string()
    num_dimensions = reader.scalar("I")
    if not 1 <= num_dimensions <= MAX_DIMENSIONS:
        raise CheckpointError(f"{reader.path}: tensor {name!r} claims {num_dimensions} dimensions, 1 to 4 are allowed.")
    shape = tuple(reader.scalar("Q") for _ in range(num_dimensions))[::-1]
    return name, shape, reader.scalar("I"), reader.scalar("Q")


def _alignment(path: Path, metadata: dict[str, Any]) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(value, int) or value < 8 or value & (value - 1):
        raise CheckpointError(f"{path} has general.alignment = {value!r}; it must be a power of two, 8 or more.")
    return value


def _place_tensors(
    reader: _Reader, infos: list[tuple[str, tuple[int, ...], int, int]], data_start: int, alignment: int
) -> dict[str, GgufTensor]:
    """Check that every tensor lies in the file, aligned, and on no other."""
    tensors: dict[str, GgufTensor] = {}
    end_of_last, path = data_start, reader.path
    for name, shape, kind, offset in sorted(infos, key=lambda info: info[3]):
        if name in tensors:
            raise CheckpointError(f"{path} has the tensor {name!r} twice.")
        tensor = GgufTensor(name, shape, *_format(path, name, shape, kind, data_start + offset))
        end = tensor.offset + tensor.num_bytes
        if end > reader.size:
            raise CheckpointError(
                f"{path} is truncated or damaged: tensor {name!r} {list(shape)} {tensor.kind.name} claims bytes "
                f"{tensor.offset} to {end}, the file holds {reader.size}."
            )
        if offset % alignment or tensor.offset < end_of_last:
            raise CheckpointError(
                f"{path}: tensor {name!r} at byte {tensor.offset} overlaps another or is not aligned to {alignment}."
            )
        tensors[name], end_of_last = tensor, end
    return tensors


def _format(
    path: Path, name: str, shape: tuple[int, ...], kind: int, offset: int
) -> tuple[GGMLQuantizationType, int, int]:
    """Number format, offset and size in bytes."""
    try:
        known = GGMLQuantizationType(kind)
    except ValueError:
        raise CheckpointError(f"{path}: tensor {name!r} has the unknown number format {kind}.") from None
    per_block, block_bytes = GGML_QUANT_SIZES[known]
    if 0 in shape or shape[-1] % per_block:
        raise CheckpointError(
            f"{path}: tensor {name!r} has shape {list(shape)}; {known.name} needs rows of a multiple of {per_block}."
        )
    return known, offset, math.prod(shape) // per_block * block_bytes
