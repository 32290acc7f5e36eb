"""A fixed collection of text to copy from, built once and then mapped from disk, shared by all sequences.

Places are sorted by the tokens before them, so that all that follow the same tokens stand together; a search is a few
binary searches whatever the size (a suffix array, backwards). Nothing here is ever changed after it was built.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import zlib
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence as Ordered
from pathlib import Path
from typing import Any

import numpy as np

from outrider.drafters.corpus_build import Array, Arrays, Encoder, Packing, Progress, build, read_text
from outrider.drafters.growth import Children
from outrider.errors import InvalidOption
from outrider.storage import cache_folder

FORMAT = 1
"""Of the stored arrays; a change makes every stored corpus be built again."""

NAMES = ("symbols", "order", "keys")
"""Of the stored arrays."""

HEADER = "header.json"

SAMPLE = 64
"""Places that are looked at where more follow the same tokens: evenly spread, so a sample by what stands before."""

NOWHERE = np.zeros(0, np.uint32)
"""No places."""


class Corpus:
    """The places of a collection of text, found by the tokens before them. No match reaches across files.

    Args:
        arrays: what `corpus_build.build` made.
        vocab_size: of the tokenizer.
    """

    def __init__(self, arrays: Arrays, vocab_size: int) -> None:
        self._packing = Packing(vocab_size)
        self._symbols, self._order, self._keys = arrays.symbols, arrays.order, arrays.keys

    @property
    def num_tokens(self) -> int:
        """Tokens of all files."""
        return len(self._order)

    @property
    def depth(self) -> int:
        """The longest match that is told; longer ones count as this long."""
        return self._packing.depth

    def find(self, tokens: Ordered[int], limit: int = SAMPLE) -> tuple[int, Array]:
        """The longest suffix of the tokens that occurs in the corpus with a token after it, and where it ends.

        Args:
            tokens: the last `depth` of them are looked at.
            limit: most places, at least 1.

        Returns:
            Match length in [0, depth], and [n] places after the match: all, or `limit` of them evenly spread.
        """
        context = self._context(tokens)
        length = self._match_length(context)
        if length == 0:
            return 0, NOWHERE
        low, high = self._range(context[:length])
        count = min(high - low, limit)
        return length, self._order[low + np.arange(count) * (high - low) // count]

    def continuations(self, places: Array, depth: int) -> Children:
        """What follows these places, by how often, the most frequent first.

        Args:
            places: [n] as found.
            depth: what will be asked for is shorter than this.
        """
        ahead = places[:, None].astype(np.int64) + np.arange(depth)
        # Beyond the last symbol, a separator, there are only more of it.
        rows: dict[tuple[int, ...], list[list[int]]] = {(): self._symbols.take(ahead, mode="clip").tolist()}

        def children(path: tuple[int, ...]) -> list[tuple[int, float]]:
            end = len(path)
            if path:
                symbol = path[-1] + 1
                rows[path] = [row for row in rows[path[:-1]] if row[end - 1] == symbol]
            counts = Counter([row[end] for row in rows[path]])
            return [(symbol - 1, count / len(rows[path])) for symbol, count in counts.most_common() if symbol > 0]

        return children

    def close(self) -> None:
        """Let go of the files; a closed corpus matches nothing."""
        self._symbols = self._order = self._keys = np.zeros(0, np.uint64)

    def _context(self, tokens: Ordered[int]) -> list[int]:
        """Symbols of the last tokens, the last first, up to one that the vocabulary lacks (models pad theirs)."""
        context: list[int] = []
        for token in tokens[: -self.depth - 1 : -1]:
            if token >= self._packing.vocab_size:
                break
            context.append(token + 1)
        return context

    def _match_length(self, context: list[int]) -> int:
        """How many symbols of the context some place has before it."""
        span = self._packing.span
        head, rest = context[:span], context[span:]
        # The longest common beginning is with a neighbour in the order.
        near = int(np.searchsorted(self._keys, np.uint64(self._packing.pack(head))))
        neighbours = self._keys[max(near - 1, 0) : near + 1].tolist()
        length = max((_common(head, self._packing.unpack(key)) for key in neighbours), default=0)
        if length < span or not rest:
            return length
        low, high = self._range(head)
        near = bisect_left(self._order, rest, low, high, key=lambda place: self._further(place, len(rest)))
        neighbours = self._order[max(near - 1, low) : min(near + 1, high)]
        return span + max(_common(rest, self._further(place, len(rest))) for place in neighbours)

    def _range(self, context: list[int]) -> tuple[int, int]:
        """Which entries of the order have just these symbols before them."""
        span = self._packing.span
        head, rest = context[:span], context[span:]
        first = self._packing.pack(head)
        last = first + (1 << self._packing.bits * (span - len(head))) - 1
        low = int(np.searchsorted(self._keys, np.uint64(first), "left"))
        high = int(np.searchsorted(self._keys, np.uint64(last), "right"))
        if rest:
            low = bisect_left(self._order, rest, low, high, key=lambda place: self._further(place, len(rest)))
            high = bisect_right(self._order, rest, low, high, key=lambda place: self._further(place, len(rest)))
        return low, high

    def _further(self, place: Any, count: int) -> list[int]:
        """Symbols before a place from the one after `span` on, the nearest first."""
        end = max(int(place) - self._packing.span, 0)
        found: list[int] = self._symbols[max(end - count, 0) : end].tolist()
        return found[::-1]


def _common(first: list[int], second: list[int]) -> int:
    """Length of the common beginning."""
    length = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        length += 1
    return length


# ---------------------------------------------------------------- kept on disk


def open_corpus(
    files: str | Path | Ordered[str | Path], tokenizer: Encoder, *, progress: Progress | None = None
) -> Corpus:
    """The corpus of some text files: mapped from the cache, or built and put there.

    The cache is the folder `corpora` in OUTRIDER_CACHE or in ~/.cache/outrider. What is kept there belongs to the
    files' contents and the tokenizer, and is built again if it is damaged.

    Args:
        files: UTF-8 text, one document each.
        tokenizer: the target's.
        progress: told (bytes done, bytes in all) while it is built.

    Raises:
        InvalidOption: a file that is missing, a folder, not readable, not text or too large; no text at all; a cache
            that cannot be written.
    """
    paths = [Path(file) for file in ([files] if isinstance(files, (str, Path)) else files)]
    contents = [read_text(path) for path in paths]
    folder = cache_folder("corpora") / _digest(contents, tokenizer)
    arrays = _load(folder)
    if arrays is None:
        _store(build(contents, tokenizer, progress), folder)
        arrays = _load(folder)
        assert arrays is not None
    return Corpus(arrays, tokenizer.vocab_size)


def _digest(contents: Ordered[bytes], tokenizer: Encoder) -> str:
    texts = [hashlib.sha256(content).hexdigest() for content in contents]
    spelling = hashlib.sha256(json.dumps(tokenizer.strings()).encode()).hexdigest()
    return hashlib.sha256(json.dumps([FORMAT, spelling, texts]).encode()).hexdigest()


def _load(folder: Path) -> Arrays | None:
    """The arrays, mapped; None if they are not there or not what was stored."""
    try:
        if json.loads((folder / HEADER).read_text(encoding="utf-8")) != _header(folder):
            return None
        loaded = [np.load(_file(folder, name), mmap_mode="r", allow_pickle=False) for name in NAMES]
    except (OSError, ValueError):
        return None
    # Plain views: slicing a memmap costs several times as much.
    return Arrays(*(np.asarray(array) for array in loaded))


def _store(arrays: Arrays, folder: Path) -> None:
    """Write the arrays beside their place and move them there whole, so that no half of them is ever seen."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="building-", ignore_cleanup_errors=True) as made:
            new = Path(made, "corpus")
            new.mkdir()
            for name in NAMES:
                np.save(_file(new, name), getattr(arrays, name), allow_pickle=False)
            (new / HEADER).write_text(json.dumps(_header(new)), encoding="utf-8")
            shutil.rmtree(folder, ignore_errors=True)
            new.rename(folder)
    except OSError as error:
        if _load(folder) is None:  # else another process has just built the same
            fix = f"Writing failed: {error.strerror or error}. Set OUTRIDER_CACHE to another folder."
            raise InvalidOption("OUTRIDER_CACHE", str(folder.parent), "a folder with room for corpora", fix) from error


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name}.npy"


def _header(folder: Path) -> dict[str, Any]:
    """What a stored corpus is held against: the size and checksum of each of its files."""
    header: dict[str, Any] = {"format": FORMAT}
    for name in NAMES:
        checksum = 0
        with _file(folder, name).open("rb") as file:
            while block := file.read(2**22):
                checksum = zlib.crc32(block, checksum)
        header[name] = {"bytes": _file(folder, name).stat().st_size, "crc32": checksum}
    return header
