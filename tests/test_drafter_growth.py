"""Best-first growth against every tree there is, on random tables of estimates."""

from __future__ import annotations

import numpy as np
import pytest

import outrider.tree as tree
from outrider.drafters.growth import best_first, check_row_cost, ranked
from outrider.errors import InvalidOption

WIDTH, LARGEST = 3, 7
ALWAYS = [(0, 1.0)]


def random_children(seed, width=WIDTH):
    """Up to `width` children after every path, with random falling probabilities; some are equal or zero."""

    def children(path):
        dice = np.random.default_rng([seed, len(path), *path])
        shares = np.sort(dice.integers(0, 5, dice.integers(0, width + 1)))[::-1] / 8
        return list(zip(dice.permutation(width).tolist(), shares.tolist(), strict=False))

    return children


def value(children, path):
    return np.prod([dict(children(path[:i])).get(path[i], 0.0) for i in range(len(path))])


def expected(children, paths):
    """Tokens of a round that drafts these paths."""
    return 1 + sum(value(children, path) for path in paths)


def every_tree(children, size, max_depth=64):
    """All sets of at most `size` paths that hold each path's beginnings; the first come first."""
    grown = {frozenset[tuple[int, ...]]()}
    for _ in range(size):
        yield from grown
        grown = {
            nodes | {(*path, token)}
            for nodes in grown
            for path in [(), *nodes]
            for token, _ in children(path)
            if len(path) < max_depth and (*path, token) not in nodes
        }
    yield from grown


def grown_paths(draft):
    return tree.paths(draft.tokens, draft.parents)[1:]


def breadth_first(children, budget):
    """Not the best: whole levels, one after the other."""
    paths = [()]
    for path in paths:
        paths += [(*path, token) for token, _ in children(path)][: budget + 1 - len(paths)]
        if len(paths) > budget:
            break
    return paths[1:]


def shortfall(grow, size, max_depth=64):
    """Over random tables: how far the grown trees stay behind the best of all trees of their size."""
    worst = 0.0
    for seed in range(12):
        children = random_children(seed)
        best = max(expected(children, nodes) for nodes in every_tree(children, size, max_depth))
        worst = max(worst, best - expected(children, grow(children, size)))
    return worst


@pytest.mark.parametrize("size", range(LARGEST))
def test_no_tree_of_the_same_size_is_better(size):
    assert shortfall(lambda children, n: grown_paths(best_first(children, n)), size) < 1e-12


def test_no_tree_of_eight_nodes_with_two_children_each_is_better():
    for seed in range(4):
        children = random_children(seed, width=2)
        grown = expected(children, grown_paths(best_first(children, 8)))
        assert grown >= max(expected(children, nodes) for nodes in every_tree(children, 8)) - 1e-12


def test_the_same_comparison_tells_growth_in_breadth_from_the_best():
    assert shortfall(breadth_first, 4) > 0.01


@pytest.mark.parametrize("max_depth", [0, 1, 2])
def test_no_tree_of_the_same_size_and_depth_is_better(max_depth):
    def grow(children, size):
        paths = grown_paths(best_first(children, size, max_depth=max_depth))
        assert all(len(path) <= max_depth for path in paths)
        return paths

    assert shortfall(grow, 5, max_depth) < 1e-12


@pytest.mark.parametrize("row_cost", [0.02, 0.1, 0.3, 1.0])
def test_no_tree_of_any_size_has_more_tokens_per_cost(row_cost):
    sizes = set()
    for seed in range(5):
        children = random_children(seed)

        def rate(paths, children=children):
            return expected(children, paths) / (1 + row_cost * len(paths))

        paths = grown_paths(best_first(children, 6, row_cost=row_cost))
        sizes.add(len(paths))
        assert rate(paths) >= max(rate(nodes) for nodes in every_tree(children, 6)) - 1e-12
    assert sizes == {0} if row_cost == 1 else len(sizes) > 1


def test_the_tree_at_a_cost_is_how_the_tree_without_one_begins():
    for seed in range(12):
        free, costly = (best_first(random_children(seed), 12, row_cost=cost) for cost in (0, 0.1))
        assert free.tokens[: len(costly)] == costly.tokens
        assert free.parents[: len(costly)] == costly.parents


def test_equal_nodes_come_by_parent_and_rank():
    draft = best_first(lambda path: [(7, 0.5), (3, 0.5)] if len(path) < 2 else [], 6)
    assert draft.tokens == (7, 3, 7, 3, 7, 3)
    assert draft.parents == (-1, -1, 0, 0, 1, 1)
    assert draft.proposal == "point_mass"


@pytest.mark.parametrize(("budget", "max_depth"), [(0, 5), (5, 0), (-1, 5)])
def test_nothing_is_asked_without_budget_or_depth(budget, max_depth):
    asked = []
    assert len(best_first(lambda path: asked.append(path) or ALWAYS, budget, max_depth=max_depth)) == 0
    assert asked == []


def test_children_are_asked_for_once_per_node_and_not_below_the_deepest():
    asked = []
    draft = best_first(lambda path: asked.append(path) or ALWAYS, 9, max_depth=3)
    assert len(draft) == 3
    assert asked == [(), (0,), (0, 0)]


@pytest.mark.parametrize("row_cost", [0, 0.1])
def test_children_that_cannot_be_reached_are_never_drafted(row_cost):
    draft = best_first(lambda path: [(0, 0.9), (1, 0.0)] if not path else [], 2, row_cost=row_cost)
    assert draft.tokens == (0,)


# ---------------------------------------------------------------- ranks


def test_ranks_are_by_probability_then_by_id_without_zeros():
    law = np.array([0.1, 0.3, 0.0, 0.3, 0.2, 0.1], dtype=np.float32)
    order = [1, 3, 4, 0, 5]
    for count in range(8):
        assert [token for token, _ in ranked(law, count)] == order[:count]
    assert ranked(law, 1) == [(1, float(law[1]))]
    assert ranked(law, -1) == []


@pytest.mark.parametrize("wrong", [-0.1, float("inf"), float("nan"), "0.1", None, True])
def test_a_row_cost_that_is_none_is_refused(wrong):
    with pytest.raises(InvalidOption, match="row_cost"):
        check_row_cost(wrong)
