"""What one vector of parents says: depth, attention mask and paths of a draft, chain or tree.

`parents[i]` is the node that node i continues, -1 for the pending token; it is always in [-1, i). The results have one
entry more than the draft has nodes: entry 0 is the pending token's and entry i + 1 is node i's, as in a block.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered

import torch


def depths(parents: Ordered[int]) -> list[int]:
    """[n + 1] tokens between the pending token and each entry: 0 for itself, 1 for its children."""
    depth = [0]
    for parent in parents:
        depth.append(depth[parent + 1] + 1)
    return depth


def ancestors(parents: Ordered[int]) -> torch.Tensor:
    """[n + 1, n + 1] bool: entry (i, j) is True if i is j or descends from it, so that i may attend to j."""
    mask = torch.eye(len(parents) + 1, dtype=torch.bool)
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
