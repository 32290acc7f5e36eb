"""Which tokens of two vocabularies are the same piece of text, and a target's text in a draft model's ids.

It knows no model and no law: only how the two tokenizers spell.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from functools import lru_cache
from re import fullmatch
from typing import Protocol


class Speller(Protocol):
    """What is needed of a tokenizer; `models.tokenizer.Tokenizer` is one."""

    stop_ids: frozenset[int]
    special_ids: frozenset[int]

    def encode(self, text: str) -> list[int]:
        """Ids of raw text, nothing added."""
        ...

    def strings(self) -> list[str | None]:
        """How the vocabulary spells each id."""
        ...


@dataclass(frozen=True)
class Pieces:
    """What the ids of one vocabulary stand for.

    Args:
        bytes: [V] UTF-8 bytes of each ordinary id; None for special and unused ones.
        specials: special ids by how they are spelled and whether they end a text.
    """

    bytes: tuple[bytes | None, ...]
    specials: dict[tuple[str, bool], int]


def pieces_of(speller: Speller) -> Pieces:
    """Read a vocabulary, byte-level (a space is Ġ) or SentencePiece-like (a space is ▁, single bytes are <0x0A>)."""
    spelled = speller.strings()
    is_byte_level = any(s is not None and "Ġ" in s for s in spelled)
    read = _byte_level if is_byte_level else _sentencepiece
    plain = [None if s is None or i in speller.special_ids else read(s) for i, s in enumerate(spelled)]
    specials = {(s, i in speller.stop_ids): i for i in speller.special_ids if i < len(spelled) and (s := spelled[i])}
    return Pieces(tuple(plain), specials)


class Vocabularies:
    """A target's and a draft model's vocabulary side by side.

    Args:
        target: the target's tokenizer.
        draft: the draft model's.

    Attributes:
        pairs: (target id, draft id) of the same text, special ones only if they are spelled alike and both or neither
            end a text; ascending target ids.
        num_ordinary: ids of the target that stand for text.
    """

    def __init__(self, target: Speller, draft: Speller) -> None:
        self._draft = draft
        self._target_pieces, draft_pieces = pieces_of(target), pieces_of(draft)
        by_text = {piece: i for i, piece in reversed(list(enumerate(draft_pieces.bytes))) if piece}
        same = {i: by_text[p] for i, p in enumerate(self._target_pieces.bytes) if p and p in by_text}
        self.num_shared, self.num_ordinary = len(same), sum(map(bool, self._target_pieces.bytes))
        for spelled, i in self._target_pieces.specials.items():
            if spelled in draft_pieces.specials:
                same[i] = draft_pieces.specials[spelled]
        self.pairs = tuple(sorted(same.items()))
        self._same = same
        self._encode = lru_cache(maxsize=4096)(lambda text: tuple(draft.encode(text)))

    def in_draft_ids(self, tokens: Iterable[int], *, whole_words: bool) -> list[int]:
        """A target's tokens as the draft model reads them; a function of the tokens alone.

        Args:
            tokens: ids of the target; special ones that are not shared are left out.
            whole_words: spell all text anew, as the draft's tokenizer would; otherwise shared tokens stay one token
                each, and only what lies between them is spelled anew.
        """
        found: list[int] = []
        loose = bytearray()
        pieces = self._target_pieces.bytes
        for token in tokens:
            piece = pieces[token] if token < len(pieces) else None
            if piece and (whole_words or token not in self._same or _is_cut(loose)):
                loose += piece
                continue
            found += self._spelled(loose)
            loose.clear()
            if token in self._same:
                found.append(self._same[token])
        return [*found, *self._spelled(loose)]

    def _spelled(self, text: bytes | bytearray) -> tuple[int, ...]:
        """Half a character at the end is left out, for the other half may follow."""
        readable = bytes(text).decode(errors="ignore")
        return self._encode(readable) if readable else ()


def _is_cut(text: bytes | bytearray) -> bool:
    """Whether the text ends inside a character."""
    try:
        bytes(text).decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return False


def _byte_level(spelled: str) -> bytes | None:
    if not all(char in _BYTE_OF for char in spelled):
        return None
    return bytes(_BYTE_OF[char] for char in spelled)


def _sentencepiece(spelled: str) -> bytes | None:
    if fullmatch("<0x[0-9A-Fa-f]{2}>", spelled):
        return bytes([int(spelled[3:5], 16)])
    return spelled.replace("▁", " ").encode(errors="replace")


def _byte_alphabet() -> dict[str, int]:
    """The characters with which byte-level vocabularies spell the 256 bytes: printable ones stand for themselves."""
    printable: Ordered[int] = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}


_BYTE_OF = _byte_alphabet()
