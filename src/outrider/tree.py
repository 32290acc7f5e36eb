"""What one vector of parents says: depth, attention mask and paths of a draft, chain or tree.

`parents[i]` is the node that node i continues, -1 for the pending token; it is always in [-1, i). The results have one
entry more than the draft has nodes: entry 0 is the pending token's and entry i + 1 is node i's, as in a block.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered

import torch

from outrider.core import Draft
from outrider.errors import InvalidOption


def check(draft: Draft) -> None:
    """Refuse what is not a tree, or wastes nodes on two equal siblings of which the second was not drawn.

    Raises:
        InvalidOption: naming the first node at fault.
    """
    seen: set[tuple[int, int]] = set()
    for i, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        if not -1 <= parent < i:
            fix = "A node comes after its parent, so there is no circle."
            raise InvalidOption(f"draft.parents[{i}]", parent, f"-1 (the pending token) to {i - 1}", fix)
        if draft.law(i) is None and (parent, token) in seen:
            raise InvalidOption(f"draft.tokens[{i}]", token, f"a token that no earlier child of node {parent} has")
        seen.add((parent, token))


def depths(parents: Ordered[int]) -> list[int]:
    """[n + 1] tokens between the pending token and each entry: 0 for itself, 1 for its children."""
    depth = [0]
    for parent in parents:
        depth.append(depth[parent + 1] + 1)
    return depth


def ancestors(parents: Ordered[int], width: int) -> torch.Tensor:
    """[width, width] bool, width > n: entry (i, j) is True if i is j or descends from it, so that i may attend to j."""
    mask = torch.eye(width, dtype=torch.bool)
    for i, parent in enumerate(parents):
        mask[i + 1] |= mask[parent + 1]
    return mask


def paths(tokens: Ordered[int], parents: Ordered[int]) -> list[tuple[int, ...]]:
    """[n + 1] drafted tokens that lead to each entry, its own included: () for the pending token."""
    found: list[tuple[int, ...]] = [()]
    for token, parent in zip(tokens, parents, strict=True):
        found.append((*found[parent + 1], token))
    return found


def is_chain(parents: Ordered[int]) -> bool:
    """Whether every node continues the one before it."""
    return list(parents) == list(range(-1, len(parents) - 1))
