"""What all look-up drafters share: an index of one sequence's tokens per slot, and copying from an earlier place.

Nothing here knows how an index finds that place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from outrider.core import Draft, Sequence


class Index(Protocol):
    """Anything that grows token by token and remembers them all in `tokens`."""

    tokens: list[int]

    def push(self, token: int) -> None:
        """Take the next token."""
        ...


AnyIndex = TypeVar("AnyIndex", bound=Index)


class IndexPerSlot(Generic[AnyIndex]):
    """One index per slot, for the sequence that owns the slot now.

    Args:
        new_index: makes an empty index.
    """

    def __init__(self, new_index: Callable[[], AnyIndex]) -> None:
        self._new_index = new_index
        self._held: dict[int, tuple[int, AnyIndex]] = {}  # by slot: the sequence's id and its index

    def caught_up(self, sequence: Sequence) -> AnyIndex:
        """The index over exactly `sequence.tokens`; it is built anew if it belonged to other tokens."""
        owner, index = self._held.get(sequence.slot, (None, None))
        # Ids start again with every engine, so the tokens decide; comparing 8,000 takes some 50 microseconds.
        if index is None or owner != sequence.id or sequence.tokens[: len(index.tokens)] != index.tokens:
            index = self._new_index()
            self._held[sequence.slot] = sequence.id, index
        for token in sequence.tokens[len(index.tokens) :]:
            index.push(token)
        return index


def copy_from(start: int, budget: int, sequence: Sequence) -> Draft:
    """Draft the tokens from position `start` of the sequence on.

    A copy that reaches the end of the text goes on into itself, so that a loop of any period fills the budget.
    It ends just after a stop id, and before a banned id, which the target would refuse anyway.

    Args:
        start: in [0, len(sequence.tokens)).
        budget: at most so many tokens.
        sequence: whose tokens are copied.
    """
    text = sequence.tokens
    copied: list[int] = []
    for source in range(start, start + budget):
        token = text[source] if source < len(text) else copied[source - len(text)]
        if token in sequence.sampling.banned_ids:
            break
        copied.append(token)
        if token in sequence.stop_ids:
            break
    return Draft.chain(copied)
