"""Small problems made of real rows: a round's draft and laws, on a vocabulary so small that all its outcomes are known.

A few tokens stay what they are and all others become one. Whatever an exact rule is given, it keeps the law, so it
keeps it here; and the probabilities are those that it meets in the user's own texts. At each depth the laws are the
same whatever the path, so that a problem needs one row of the target and one of the draft for each depth.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from outrider.core import Coins, Draft, Law, Proposal
from outrider.tree import depths

SIZE = 4
"""Tokens of a problem's vocabulary, the one for all others included."""

MOST_NODES, MOST_DRAWN, MOST_CHILDREN, DEEPEST = 4, 3, 2, 3


@dataclass(frozen=True)
class Node:
    """A drafted node of a problem.

    Args:
        parent: its number, -1 for the pending token.
        depth: 1 for the children of the pending token.
        token: that was drafted, for a node that was chosen.
        law: [SIZE] that it is drawn from, None if it was chosen.
        without: drawn from what its elder siblings left of the law.
    """

    parent: int
    depth: int
    token: int
    law: Law | None
    without: bool


@dataclass(frozen=True)
class Problem:
    """One round in small.

    Args:
        nodes: parents first, siblings in drafted order.
        target: [depth + 1, SIZE] float64, the target's law at each depth.
        proposal: as the draft declared it.
        position: where the round stands.
    """

    nodes: tuple[Node, ...]
    target: Law
    proposal: Proposal
    position: str

    def propose(self, coins: Coins) -> Draft:
        """A draft, drawn as the real one was."""
        tokens, parents, rows, places = list[int](), list[int](), list[Law | None](), {-1: -1}
        for number, node in enumerate(self.nodes):
            if node.parent not in places:
                continue
            siblings = [t for t, parent in zip(tokens, parents, strict=True) if parent == places[node.parent]]
            row = None if node.law is None else _left(node, siblings)
            token = self._chosen(node, siblings) if node.law is None else None
            if row is not None:
                token = coins.categorical(row, 0)
            if token is None:
                continue
            places[number] = len(tokens)
            tokens.append(token)
            parents.append(places[node.parent])
            rows.append(row)
        laws = None if self.proposal == "point_mass" else tuple(rows)
        return Draft(tuple(tokens), tuple(parents), self.proposal, laws)

    def _chosen(self, node: Node, siblings: list[int]) -> int | None:
        """The drafted token, or the likeliest one that no elder sibling has."""
        if node.token not in siblings:
            return node.token
        free = self.target[node.depth - 1].copy()
        free[siblings] = -1
        best = int(free.argmax())
        return best if free[best] > 0 else None


def problem_of(draft: Draft, target_probs: Law, position: str) -> Problem:
    """A round with a draft, in small.

    Args:
        draft: not empty.
        target_probs: [n + 1, V].
        position: for reports.
    """
    kept, level = _kept_nodes(draft), depths(draft.parents)[1:]
    deepest = max(level[i] for i in kept)
    first = {depth: next(i for i in kept if level[i] == depth) for depth in range(1, deepest + 1)}
    alphabets, target = dict[int, list[int]](), np.zeros((deepest + 1, SIZE))
    for depth, lead in first.items():
        there = [i for i in kept if level[i] == depth]
        alphabets[depth] = _alphabet(draft, there, target_probs[draft.parents[lead] + 1])
        target[depth - 1] = _in_small(target_probs[draft.parents[lead] + 1], alphabets[depth])
    last = target_probs[first[deepest] + 1]
    target[deepest] = _in_small(last, _likeliest(last))
    nodes = tuple(_node(draft, i, kept, level[i], alphabets[level[i]]) for i in kept)
    return Problem(nodes, target, draft.proposal, position)


def _kept_nodes(draft: Draft) -> list[int]:
    kept, level = list[int](), depths(draft.parents)[1:]
    for i, parent in enumerate(draft.parents):
        siblings = sum(draft.parents[j] == parent for j in kept)
        drawn = sum(draft.law(j) is not None for j in kept)
        fits = siblings < MOST_CHILDREN and len(kept) < MOST_NODES and level[i] <= DEEPEST
        if (parent == -1 or parent in kept) and fits and (draft.law(i) is None or drawn < MOST_DRAWN):
            kept.append(i)
    return kept


def _alphabet(draft: Draft, nodes: list[int], target_row: Law) -> list[int]:
    """The tokens of one depth that stay themselves: the drafted ones, and where the two laws are or differ most."""
    if len(target_row) <= SIZE:
        return list(range(len(target_row)))
    wanted = [draft.tokens[i] for i in nodes]
    law = next((draft.law(i) for i in nodes if draft.law(i) is not None), None)
    if law is not None:
        wanted += [int((target_row - law).argmax()), int((law - target_row).argmax()), int(law.argmax())]
    wanted += _likeliest(target_row)
    return list(dict.fromkeys(wanted))[: SIZE - 1]


def _likeliest(row: Law) -> list[int]:
    """Up to SIZE - 1 tokens, the likeliest first; all of them if the last entry is not needed for the rest."""
    if len(row) <= SIZE:
        return list(range(len(row)))
    best = np.argpartition(row, 1 - SIZE)[1 - SIZE :]
    return [int(i) for i in best[np.argsort(-row[best], kind="stable")]]


def _in_small(row: Law, alphabet: list[int]) -> Law:
    """[SIZE] float64: the tokens of the alphabet, the rest in the last entry."""
    small, whole = np.zeros(SIZE), row.astype(np.float64)
    small[: len(alphabet)] = whole[alphabet]
    if len(alphabet) < len(row):
        small[-1] = max(0.0, whole.sum() - small.sum())
    return np.asarray(small / small.sum())


def _node(draft: Draft, number: int, kept: list[int], depth: int, alphabet: list[int]) -> Node:
    parent, law = draft.parents[number], draft.law(number)
    elder = [j for j in kept if j < number and draft.parents[j] == parent and draft.law(j) is not None]
    token = alphabet.index(draft.tokens[number]) if draft.tokens[number] in alphabet else SIZE - 1
    place = -1 if parent == -1 else kept.index(parent)
    if law is None or not elder:
        return Node(place, depth, token, None if law is None else _in_small(law, alphabet), False)
    before = draft.law(elder[0])
    assert before is not None
    taken = draft.tokens[elder[0]]
    without = bool(law[taken] == 0 and before[taken] > 0)
    return Node(place, depth, token, _in_small(before if without else law, alphabet), without)


def _left(node: Node, siblings: list[int]) -> Law | None:
    """[SIZE] what the node is drawn from, None if nothing is left."""
    assert node.law is not None
    if not node.without:
        return node.law
    row = node.law.copy()
    row[siblings] = 0
    return row / row.sum() if row.sum() > 0 else None
