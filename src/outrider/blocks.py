"""Blocks for the target: tokens, positions and attention mask of one forward, from sequences and their drafts.

It knows the shape of a draft and how many rows each slot holds, nothing of laws or rules.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import replace

import torch

import outrider.tree as tree
from outrider.core import Block, Draft, Output, Sequence


def draft_block(sequences: Ordered[Sequence], drafts: Ordered[Draft], lengths: Ordered[int], width: int = 0) -> Block:
    """The pending token and the draft of each sequence; with an attention mask if any draft is a tree.

    Args:
        sequences: distinct slots.
        drafts: one each; any mixture of trees, chains and empty drafts.
        lengths: committed rows by slot.
        width: each row is padded to so many tokens with copies of its last one, which are computed like the others.
    """
    tokens = [_padded([s.tokens[-1], *d.tokens], width) for s, d in zip(sequences, drafts, strict=True)]
    depths = [_padded(tree.depths(d.parents), width) for d in drafts]
    block = _block(sequences, tokens, depths, lengths)
    if all(tree.is_chain(d.parents) for d in drafts):
        return block
    masks = [tree.ancestors(d.parents, block.tokens.shape[1]) for d in drafts]
    return replace(block, ancestors=torch.stack(masks))


def prefill_block(sequence: Sequence, tokens: list[int], lengths: Ordered[int]) -> Block:
    """The next tokens of one prompt, for their cache rows alone."""
    return replace(_block([sequence], [tokens], [list(range(len(tokens)))], lengths), prefill=True)


def rows_of(output: Output, drafts: Ordered[Draft]) -> list[Output]:
    """Each sequence's own rows [1 + n, ...] of a block's output, without padding."""
    logits, hidden = output.logits, output.hidden
    assert logits is not None
    widths = [1 + len(draft) for draft in drafts]
    return [Output(logits[i, :n], None if hidden is None else hidden[i, :n]) for i, n in enumerate(widths)]


def _block(
    sequences: Ordered[Sequence], tokens: list[list[int]], depths: list[list[int]], lengths: Ordered[int]
) -> Block:
    widths = tuple(len(row) for row in tokens)
    places = [[lengths[s.slot] + depth for depth in row] for s, row in zip(sequences, depths, strict=True)]
    padded = [[row + [0] * (max(widths) - len(row)) for row in rows] for rows in (tokens, places)]
    return Block(torch.tensor(padded[0]), torch.tensor(padded[1]), tuple(s.slot for s in sequences), widths)


def _padded(row: list[int], width: int) -> list[int]:
    return row + row[-1:] * (width - len(row))
