"""Which node of a draft each acceptance probability and each coin of a rule belongs to.

Rules report both in the order in which they come to the nodes; that order follows from what they kept. What does not
add up, such as the verdict of a rule that is not known here, is attributed to no node: no figure is made up.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Ordered
from dataclasses import dataclass

from outrider.core import Draft, Verdict

ROOT = -1
"""The node number of the pending token."""

WALKS = frozenset({"token", "recursive", "point-mass"})
"""Rules that go from the root down and throw a coin for each node that they come to, with its acceptance."""


@dataclass(frozen=True)
class Thrown:
    """A coin.

    Args:
        chance: the probability that it was thrown with.
        uniform: what was drawn from [0, 1), or None if the coins do not tell.
        fell: whether it fell for the node: uniform < chance.
    """

    chance: float
    uniform: float | None
    fell: bool


def attributed(
    rule: str, draft: Draft, verdict: Verdict, thrown: Ordered[Thrown]
) -> tuple[dict[int, float], dict[int, Thrown]]:
    """Acceptance probabilities and coins by node; nodes that the rule did not come to have none.

    Args:
        rule: name of the rule that decided.
        draft: n nodes.
        verdict: of the rule.
        thrown: its coins, in order.
    """
    walked = list(examined(draft, verdict.path))
    if rule == "block":
        nodes, coined = list(range(len(draft))), list(range(len(draft) - 1, -1, -1))[: len(thrown)]
    elif rule == "traversal":
        nodes, coined = _traversed(draft, thrown)
    elif rule == "coupled":  # given the noise nothing is left to chance: 1 for the token that was drawn, 0 for others
        return {node: float(node in verdict.path) for node in walked}, {}
    else:
        nodes, coined = walked, walked if rule in WALKS else []
    if len(nodes) != len(verdict.acceptance) or len(coined) != len(thrown):
        return {}, {}
    return dict(zip(nodes, verdict.acceptance, strict=True)), dict(zip(coined, thrown, strict=True))


def examined(draft: Draft, path: Ordered[int]) -> Iterator[int]:
    """The nodes in the order in which a walk along this path comes to them: siblings up to the one that is kept."""
    children, node = children_of(draft.parents), ROOT
    for kept in (*path, None):
        for child in children[node]:
            yield child
            if child == kept:
                break
        if kept is not None:
            node = kept


def children_of(parents: Ordered[int]) -> dict[int, list[int]]:
    """The children of each node and of the root, in drafted order."""
    found: dict[int, list[int]] = {node: [] for node in range(ROOT, len(parents))}
    for node, parent in enumerate(parents):
        found[parent].append(node)
    return found


def _traversed(draft: Draft, thrown: Ordered[Thrown]) -> tuple[list[int], list[int]]:
    """Nodes as the traversal rule reaches them, and as it throws their coins: when all below them was refused."""
    children, coins = children_of(draft.parents), iter(thrown)
    reached, coined = list[int](), list[int]()

    def visit(node: int) -> bool:
        for child in children[node]:
            reached.append(child)
            if visit(child):
                return True
        if node == ROOT:
            return True
        coin = next(coins, None)
        coined.append(node)
        return coin is None or coin.fell

    visit(ROOT)
    return reached, coined
