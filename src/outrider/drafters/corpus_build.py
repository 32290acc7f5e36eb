"""From text files to the sorted arrays of a corpus: reading, tokenising piece by piece, sorting by what stands before.

It knows neither where corpora are kept nor who looks things up in them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Ordered
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from outrider.errors import InvalidOption
from outrider.memory import physical_memory

Array = np.ndarray[Any, np.dtype[Any]]

Progress = Callable[[int, int], None]
"""Told how many bytes of text are done, and of how many."""

PIECE = 16_384
"""Characters that are tokenised at once: a tokenizer keeps some hundred bytes per token until a piece is done."""

BORDERS = tuple(re.compile(pattern) for pattern in (r"[^\W_](?=[\r\n])", r"\S(?=[\r\n])", r"\S(?=\s)"))
"""Where a piece may end, best first: before a line break after a letter or digit, where the byte-level vocabularies in
use (GPT-2, Llama 3, Qwen, SmolLM) never join tokens, so that pieces give exactly the tokens of the whole text; before
another line break, or a space, where a token or two may differ, as they do for SentencePiece vocabularies anywhere."""

LEAST_DEPTH = 24
"""Tokens before a place by which places are sorted, at least; the widths of the sort double until they reach it."""

MEMORY_PER_BYTE = 16
"""Bytes of memory that building takes per byte of text, where a token has three bytes or more."""


class Encoder(Protocol):
    """What a tokenizer must know: `outrider.models.tokenizer.Tokenizer` does."""

    vocab_size: int

    def encode(self, text: str) -> list[int]:
        """Ids of a text, nothing added."""

    def strings(self) -> list[str | None]:
        """How the vocabulary spells each id."""


@dataclass(frozen=True)
class Packing:
    """How the tokens before a place become one number, the nearest in the highest bits.

    A token is stored as its id + 1, its *symbol*; 0 stands before, between and after documents.

    Args:
        vocab_size: ids are below this.
    """

    vocab_size: int

    @property
    def bits(self) -> int:
        """Bits per symbol."""
        return max(self.vocab_size.bit_length(), 1)

    @property
    def span(self) -> int:
        """Symbols per number of 64 bits."""
        return 64 // self.bits

    @property
    def depth(self) -> int:
        """Tokens before a place by which places are sorted: the longest match that can be told."""
        depth = self.span
        while depth < LEAST_DEPTH:
            depth *= 2
        return depth

    @property
    def symbol_type(self) -> np.dtype[Any]:
        """The narrowest type for symbols."""
        return np.dtype(np.uint16 if self.vocab_size < 2**16 else np.uint32)

    def pack(self, symbols: Ordered[int]) -> int:
        """One number for at most `span` symbols, the nearest first; missing ones count as 0."""
        packed = 0
        for symbol in symbols:
            packed = packed << self.bits | symbol
        return packed << self.bits * (self.span - len(symbols))

    def unpack(self, packed: int) -> list[int]:
        """The `span` symbols of a number, the nearest first."""
        mask = (1 << self.bits) - 1
        return [packed >> self.bits * place & mask for place in range(self.span - 1, -1, -1)]


@dataclass(frozen=True)
class Arrays:
    """A corpus of N symbols with M places, the tokens of all documents.

    Args:
        symbols: [N] see `Packing`.
        order: [M] uint32 places in `symbols`, sorted by the symbols before them, the nearest first; then by place.
        keys: [M] uint64 the packed symbols before `order[i]`, so not falling.
    """

    symbols: Array
    order: Array
    keys: Array


def read_text(path: Path) -> bytes:
    """A text file's bytes.

    Raises:
        InvalidOption: not there, a folder, not readable, larger than memory allows, or no text (NUL bytes, not UTF-8).
    """
    check_file(path)
    with _named_errors(path):
        content = path.read_bytes()
    _check_text(path, content)
    return content


@contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise InvalidOption("corpus", str(path), "text files", "There is no such file.") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        fix = f"It cannot be read: {getattr(error, 'strerror', None) or error}."
        raise InvalidOption("corpus", str(path), "text files that may be read", fix) from error


def check_file(path: Path) -> None:
    """Refuse what can be refused of a corpus file before it is read.

    Raises:
        InvalidOption: not there, a folder, a device, or larger than memory allows.
    """
    with _named_errors(path):
        _check_size(path)


def _check_size(path: Path) -> None:
    if path.is_dir():
        raise InvalidOption("corpus", str(path), "text files", "This is a folder; name the files in it.")
    if path.exists() and not path.is_file():
        raise InvalidOption("corpus", str(path), "text files", "This is a device or a pipe; save it as a file first.")
    size, memory = path.stat().st_size, physical_memory()
    if size * MEMORY_PER_BYTE > memory:
        fix = f"It has {size:,} bytes and building takes {MEMORY_PER_BYTE} times as much memory; here are {memory:,}."
        raise InvalidOption("corpus", str(path), f"files of {memory // MEMORY_PER_BYTE:,} bytes or less", fix)


def _check_text(path: Path, content: bytes) -> None:
    place = content.find(0)
    if place >= 0:
        raise InvalidOption("corpus", str(path), "text files", f"Byte {place} is NUL, so this is a binary file.")
    try:
        content.decode()
    except UnicodeDecodeError as error:
        fix = f"Byte {error.start} is not UTF-8; convert the file."
        raise InvalidOption("corpus", str(path), "text files in UTF-8", fix) from error


def pieces(text: str) -> Iterator[str]:
    """The text in pieces of at most `PIECE` characters that end at a border; see `BORDERS`."""
    start = 0
    while len(text) - start > PIECE:
        end = _border(text, start + PIECE // 2, start + PIECE)
        yield text[start:end]
        start = end
    yield text[start:]


def _border(text: str, low: int, high: int) -> int:
    for border in BORDERS:
        # What is looked ahead at must be in the window, so the border is at most at high - 1.
        found = [match.end() for match in border.finditer(text, low, high)]
        if found:
            return found[-1]
    return high


def build(contents: Ordered[bytes], tokenizer: Encoder, progress: Progress | None = None) -> Arrays:
    """The arrays of a corpus, one document per file.

    Args:
        contents: UTF-8, without NUL.
        tokenizer: the target's.
        progress: called after each piece.

    Raises:
        InvalidOption: nothing in it, or more than memory allows.
    """
    packing = Packing(tokenizer.vocab_size)
    size, memory = sum(len(content) for content in contents), physical_memory()
    if size * MEMORY_PER_BYTE > memory:
        raise InvalidOption("corpus", f"{size:,} bytes", f"{memory // MEMORY_PER_BYTE:,} or less on this machine")
    symbols = _tokenised(contents, tokenizer, packing.symbol_type, progress)
    if not symbols.any():
        raise InvalidOption("corpus", "empty", "files with text", "There is not one token in them.")
    assert len(symbols) < 2**32  # as physical memory is less than 64 GiB times MEMORY_PER_BYTE / 16
    order = _sorted_places(symbols, packing)
    return Arrays(symbols, order, _packed(symbols, packing)[order])


def _tokenised(
    contents: Ordered[bytes], tokenizer: Encoder, symbol_type: np.dtype[Any], progress: Progress | None
) -> Array:
    """[N] symbols of all documents, with a 0 before, between and after them."""
    separator, done = np.zeros(1, symbol_type), 0
    total = sum(len(content) for content in contents)
    found = [separator]
    for content in contents:
        for piece in pieces(content.decode("utf-8-sig")):
            found.append((np.array(tokenizer.encode(piece), np.int64) + 1).astype(symbol_type))
            done += len(piece.encode())
            if progress is not None:
                progress(done, total)
        found.append(separator)
    return np.concatenate(found)


def _packed(symbols: Array, packing: Packing) -> Array:
    """[N] uint64 the symbols before each place."""
    keys = np.zeros(len(symbols), np.uint64)
    for back in range(1, min(packing.span, len(symbols) - 1) + 1):
        before = symbols[:-back].astype(np.uint64)
        before <<= np.uint64(packing.bits * (packing.span - back))
        keys[back:] |= before
    return keys


def _sorted_places(symbols: Array, packing: Packing) -> Array:
    """[M] places sorted by the symbols before them, by doubling the width (Manber and Myers 1990, backwards)."""
    keys, width = _packed(symbols, packing), packing.span
    while width < packing.depth:
        _rank(keys)
        # In place: these arrays are most of the memory that building takes.
        ranks = keys.astype(np.uint32)
        keys <<= np.uint64(32)
        keys[width:] |= ranks[:-width]
        width *= 2
        del ranks
    # The stable sort leaves equal contexts in the order of their places.
    order = np.argsort(keys, kind="stable")
    return order[symbols[order] > 0].astype(np.uint32)


def _rank(keys: Array) -> None:
    """[N] uint64 Put each key's rank among the different keys, from 1 on, in its place."""
    order = np.argsort(keys)
    keys.sort()
    rises = np.ones(len(keys), bool)
    np.not_equal(keys[1:], keys[:-1], out=rises[1:])
    keys[order] = np.cumsum(rises, dtype=np.uint32)
