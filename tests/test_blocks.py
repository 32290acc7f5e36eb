"""Blocks of ragged batches of trees, chains and empty drafts, entry by entry."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider import tree
from outrider.blocks import draft_block, prefill_block, rows_of
from outrider.core import Draft, Output
from toy import make_sequence

FORK = Draft((7, 8, 9), (-1, -1, 1))


def sequences_of(*slots):
    return [make_sequence([1, 2, 10 + slot], id=slot, slot=slot) for slot in slots]


def test_a_tree_beside_a_chain_and_an_empty_draft():
    block = draft_block(sequences_of(2, 0, 1), [FORK, Draft.chain((5, 6)), Draft()], [20, 30, 40])
    assert block.slots == (2, 0, 1)
    assert block.widths == (4, 3, 1)
    assert block.tokens.tolist() == [[12, 7, 8, 9], [10, 5, 6, 0], [11, 0, 0, 0]]
    assert block.positions.tolist()[0] == [40, 41, 41, 42]
    assert block.positions.tolist()[1][:3] == [20, 21, 22]
    assert block.positions.tolist()[2][:1] == [30]
    assert not block.prefill
    assert block.ancestors is not None
    assert block.ancestors[0].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]]
    assert torch.equal(block.ancestors[1, :3, :3], torch.ones(3, 3, dtype=torch.bool).tril())
    assert block.ancestors[2, 0].tolist() == [True, False, False, False]


def test_chains_alone_get_no_mask():
    assert draft_block(sequences_of(0, 1), [Draft.chain((5, 6)), Draft()], [3, 4]).ancestors is None


@pytest.mark.parametrize("draft", [FORK, Draft.chain((7, 8, 9)), Draft()], ids=["tree", "chain", "empty"])
def test_a_fixed_width_is_filled_with_copies_of_the_last_row(draft):
    block = draft_block(sequences_of(0), [draft], [20], width=6)
    last, depth = (*(10, *draft.tokens),)[-1], tree.depths(draft.parents)[-1]
    size = 1 + len(draft)
    assert block.widths == (6,)
    assert block.tokens.tolist() == [[10, *draft.tokens, *[last] * (6 - size)]]
    assert block.positions[0, size:].tolist() == [20 + depth] * (6 - size)
    if draft is FORK:
        assert torch.equal(block.ancestors[0, :size, :size], tree.ancestors(draft.parents, size))
        assert not block.ancestors[0, :size, size:].any()
        assert block.ancestors[0].diagonal().all()


def test_a_prefill_block_holds_the_next_tokens_of_one_prompt():
    (sequence,) = sequences_of(1)
    block = prefill_block(sequence, [4, 5, 6], [0, 9])
    assert (block.tokens.tolist(), block.positions.tolist()) == ([[4, 5, 6]], [[9, 10, 11]])
    assert (block.slots, block.widths, block.ancestors, block.prefill) == ((1,), (3,), None, True)


def test_rows_of_an_output_are_each_sequences_own_without_padding():
    logits, hidden = torch.arange(24.0).view(2, 4, 3), torch.arange(16.0).view(2, 4, 2)
    first, second = rows_of(Output(logits, hidden), [FORK, Draft.chain((5,))])
    assert torch.equal(first.logits, logits[0])
    assert torch.equal(second.logits, logits[1, :2])
    assert torch.equal(second.hidden, hidden[1, :2])
    assert rows_of(Output(logits), [FORK, Draft()])[1].hidden is None


@st.composite
def batches(draw):
    sizes = draw(st.lists(st.integers(0, 6), min_size=1, max_size=4))
    parents = [[draw(st.integers(-1, i - 1)) for i in range(size)] for size in sizes]
    return [Draft(tuple(range(20, 20 + len(each))), tuple(each)) for each in parents]


@settings(deadline=None, derandomize=True, database=None)
@given(batches())
def test_every_node_sees_its_way_from_the_root_and_stands_at_its_depth(drafts):
    lengths = [5 * (i + 1) for i in range(len(drafts))]
    block = draft_block(sequences_of(*range(len(drafts))), drafts, lengths)
    assert (block.ancestors is None) == all(tree.is_chain(draft.parents) for draft in drafts)
    for row, draft in enumerate(drafts):
        for node, parent in enumerate((None, *draft.parents)):
            way = [node]
            while way[-1] > 0:
                way.append(draft.parents[way[-1] - 1] + 1)
            assert block.positions[row, node] == lengths[row] + len(way) - 1
            assert block.tokens[row, node] == (10 + row if parent is None else 20 + node - 1)
            if block.ancestors is not None:
                assert block.ancestors[row, node].nonzero().flatten().tolist() == sorted(way)
