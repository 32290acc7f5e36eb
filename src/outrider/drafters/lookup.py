"""What all look-up drafters share: an index of one sequence's tokens per slot, copying, and trees around a copy.

Nothing here knows how an index finds that place.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from outrider.core import Draft, Sequence
from outrider.drafters.growth import Children, best_first


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
    """Draft the tokens from position `start` of the sequence on: `copied` as a chain."""
    return Draft.chain(copied(start, budget, sequence))


def copied(start: int, count: int, sequence: Sequence) -> list[int]:
    """The tokens from position `start` of the sequence on, cut where a draft has to end.

    A copy that reaches the end of the text goes on into itself, so that a loop of any period fills the count.

    Args:
        start: in [0, len(sequence.tokens)).
        count: at most so many tokens.
        sequence: whose tokens are copied.
    """
    text = sequence.tokens
    tokens: list[int] = []
    for source in range(start, start + count):
        tokens.append(text[source] if source < len(text) else tokens[source - len(text)])
    return cut(tokens, sequence)


def cut(tokens: Ordered[int], sequence: Sequence) -> list[int]:
    """The tokens up to and with the first stop id, and before the first banned id, which the target would refuse."""
    kept: list[int] = []
    for token in tokens:
        if token in sequence.sampling.banned_ids:
            break
        kept.append(token)
        if token in sequence.stop_ids:
            break
    return kept


@dataclass(frozen=True)
class Limits:
    """How large a tree may become.

    Args:
        budget: most nodes, at least 1.
        depth: longest path, at least 1.
        branches: most children of a node, at least 1.
        min_probability: least estimated probability of a node that is not part of the copy.
        row_cost: see `growth.best_first`.
    """

    budget: int
    depth: int
    branches: int
    min_probability: float
    row_cost: float


def branch_out(copy: Ordered[int], followers: Children, limits: Limits, sequence: Sequence) -> Draft:
    """The tree of the likeliest nodes: a copy and what else may follow at each of its places and at theirs.

    Where the copy goes on it goes first. It is believed as far as nothing speaks for another token, and no less than
    the likeliest other: what followed last is at least as good a guess as what followed most often.

    Args:
        copy: the main path, already `cut`; may be empty.
        followers: likely continuations of each path, (token, probability), likeliest first.
        limits: bounds on the tree.
        sequence: what it is for; no node has a banned id, and none follows a stop id.
    """
    copy = tuple(copy)
    reach: dict[tuple[int, ...], float] = {(): 1.0}

    def children(path: tuple[int, ...]) -> list[tuple[int, float]]:
        if path and path[-1] in sequence.stop_ids:
            return []
        family = [(token, p) for token, p in followers(path) if token not in sequence.sampling.banned_ids]
        first = copy[len(path) : len(path) + 1] if copy[: len(path)] == path else ()
        others = [(token, p) for token, p in family if token not in first]
        believed = max(1 - sum(p for _, p in others), family[0][1] if family else 0)
        likely = [(token, p) for token, p in others if p * reach[path] >= limits.min_probability]
        ranked = [*((token, believed) for token in first), *likely][: limits.branches]
        reach.update({(*path, token): reach[path] * p for token, p in ranked})
        return ranked

    return best_first(children, limits.budget, max_depth=limits.depth, row_cost=limits.row_cost)
