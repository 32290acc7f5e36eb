"""Growing draft trees: best first by estimated path probability, and stopping when a row is not worth its cost.

It knows no model: estimates come from whoever drafts. A tree grown here is a point mass: it was chosen, not drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from heapq import heappop, heappush
from typing import Any

import numpy as np
import torch

from outrider.core import Draft, Law
from outrider.errors import InvalidOption

Children = Callable[[tuple[int, ...]], Ordered[tuple[int, float]]]
"""From the drafted tokens on the way to a node to its distinct children, (token, probability), likeliest first."""


def best_first(children: Children, budget: int, *, max_depth: int = 64, row_cost: float = 0.0) -> Draft:
    """The tree of the likeliest nodes, as long as each is worth its row.

    A node's value is the estimated probability that the target's text reaches it. Values never rise along a path or
    from a sibling to the next, so taking the largest value that hangs on the tree gives the best tree of every size
    (Sequoia, 2402.12374, section 3; DDTree, 2604.12989). Expected tokens of a round are 1 + the sum of values; growing
    stops before the node that would lower tokens per cost.

    Args:
        children: asked once per node of the tree.
        budget: most nodes.
        max_depth: longest path.
        row_cost: cost of one more row in the target's forward, in units of a forward of one row; 0 fills the budget.
    """
    tokens: list[int] = []
    parents: list[int] = []
    expected, heap = 1.0, list[tuple[float, int, int, tuple[int, ...], Ordered[tuple[int, float]], float]]()

    def offer(parent: int, rank: int, path: tuple[int, ...], family: Ordered[tuple[int, float]], reach: float) -> None:
        if rank < len(family):
            # Ties go to what was offered first by parent and rank, so that a tree is a function of its estimates.
            heappush(heap, (-reach * family[rank][1], parent, rank, path, family, reach))

    if budget > 0 and max_depth > 0:
        offer(-1, 0, (), children(()), 1.0)
    while heap and len(tokens) < budget:
        value, parent, rank, path, family, reach = heappop(heap)
        if not -value > row_worth(row_cost, expected, len(tokens)):
            break
        tokens.append(family[rank][0])
        parents.append(parent)
        expected -= value
        offer(parent, rank + 1, path, family, reach)
        longer = (*path, family[rank][0])
        if len(longer) < max_depth and len(tokens) < budget:
            offer(len(tokens) - 1, 0, longer, children(longer), -value)
    return Draft(tuple(tokens), tuple(parents))


def row_worth(row_cost: float, expected: float, rows: int) -> float:
    """What a further row must add to a round's expected tokens so as not to lower tokens per cost.

    Args:
        row_cost: see `best_first`.
        expected: tokens of the round without it.
        rows: drafted so far.
    """
    return row_cost * expected / (1 + row_cost * rows)


def check_row_cost(value: Any) -> None:
    """Refuse what is no `row_cost`.

    Raises:
        InvalidOption: not a finite number, or negative.
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
        raise InvalidOption("row_cost", value, "a finite number, at least 0")


def ranked(law: Law, count: int) -> list[tuple[int, float]]:
    """The `count` likeliest tokens of a law [V] with their probabilities, likeliest first, the lowest id among equals.

    Tokens of probability 0 are left out, so there may be fewer.
    """
    count = min(count, len(law))
    if count < 1:
        return []
    least = float(torch.topk(torch.from_numpy(law), count).values[-1])  # several times as fast as numpy's partition
    ids = np.flatnonzero((law >= least) & (law > 0))
    ids = ids[np.argsort(-law[ids], kind="stable")][:count]
    return [(int(i), float(law[i])) for i in ids]
