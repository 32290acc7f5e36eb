"""The geometry of drafts against what one gets by walking from each node to the root."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core import Draft
from outrider.errors import InvalidOption
from outrider.tree import ancestors, check, depths, is_chain, paths

#        pending
#        /     \
#       0       2
#      / \      |
#     1   3     4
#         |
#         5
PARENTS = (-1, 0, -1, 0, 2, 3)
TOKENS = (10, 11, 12, 13, 14, 15)


@st.composite
def trees(draw):
    size = draw(st.integers(0, 12))
    return [draw(st.integers(-1, i - 1)) for i in range(size)]


def line_of(parents, node):
    """The node and those above it, from the root down; -1, the pending token, left out."""
    return [*line_of(parents, parents[node]), node] if node >= 0 else []


def test_a_tree_drawn_by_hand():
    assert depths(PARENTS) == [0, 1, 2, 1, 2, 2, 3]
    assert paths(TOKENS, PARENTS) == [(), (10,), (10, 11), (12,), (10, 13), (12, 14), (10, 13, 15)]
    assert ancestors(PARENTS, len(PARENTS) + 1).int().tolist() == [
        [1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0],
        [1, 0, 0, 1, 0, 0, 0],
        [1, 1, 0, 0, 1, 0, 0],
        [1, 0, 0, 1, 0, 1, 0],
        [1, 1, 0, 0, 1, 0, 1],
    ]


def test_the_empty_draft_is_the_pending_token_alone():
    assert (depths(()), paths((), ())) == ([0], [()])
    assert ancestors((), 1).tolist() == [[True]]
    assert is_chain(())


def test_a_chain_has_ascending_depths_a_triangular_mask_and_prefixes_as_paths():
    draft = Draft.chain((5, 6, 7))
    assert is_chain(draft.parents)
    assert depths(draft.parents) == [0, 1, 2, 3]
    assert np.array_equal(ancestors(draft.parents, len(draft) + 1).numpy(), np.tri(4, dtype=bool))
    assert paths(draft.tokens, draft.parents) == [(), (5,), (5, 6), (5, 6, 7)]


@given(trees())
def test_every_entry_is_what_its_way_to_the_root_says(parents):
    tokens = [100 + i for i in range(len(parents))]
    lines = [line_of(parents, node) for node in range(-1, len(parents))]
    assert depths(parents) == [len(line) for line in lines]
    assert paths(tokens, parents) == [tuple(tokens[i] for i in line) for line in lines]
    expected = [[j == 0 or j - 1 in line for j in range(len(lines))] for line in lines]
    assert ancestors(parents, len(parents) + 1).tolist() == expected
    assert is_chain(parents) == (parents == list(range(-1, len(parents) - 1)))


def test_tokens_and_parents_of_different_length_are_refused():
    with pytest.raises(ValueError, match="zip"):
        paths((1, 2), (-1,))


def test_every_tree_with_distinct_siblings_passes_the_check():
    check(Draft(TOKENS, PARENTS))
    check(Draft((5, 5, 5), (-1, 0, 1)))
    check(Draft())


@given(trees(), st.data())
def test_a_parent_that_does_not_come_before_its_node_is_refused(parents, data):
    if parents:
        node = data.draw(st.integers(0, len(parents) - 1))
        parents[node] = data.draw(st.integers(node, node + 3) | st.integers(-5, -2))
        with pytest.raises(InvalidOption, match=rf"draft.parents\[{node}\]"):
            check(Draft(tuple(range(len(parents))), tuple(parents)))


def test_two_chosen_siblings_with_one_token_are_refused_and_drawn_ones_are_not():
    law = np.full(4, 0.25)
    twins = {"tokens": (3, 3), "parents": (-1, -1)}
    for laws in (None, (None, None), (law, None)):
        with pytest.raises(InvalidOption, match=r"draft.tokens\[1\] is '?3"):
            check(Draft(**twins, proposal="hybrid", draft_probs=laws))
    for laws in ((law, law), (None, law)):
        check(Draft(**twins, proposal="hybrid", draft_probs=laws))
