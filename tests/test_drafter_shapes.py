"""Shapes: what may be given, in which order the nodes stand, and what is refused."""

from __future__ import annotations

import json
import os
import pickle

import pytest

import outrider.tree as tree
from outrider.core import Draft
from outrider.drafters.shapes import MAX_BYTES, MAX_DEPTH, MAX_NODES, Shape, read_shape
from outrider.errors import InvalidOption

CHOICES = [[0], [0, 0], [1], [0, 1], [0, 0, 0], [2]]


def test_widths_give_every_node_of_a_level_as_many_children():
    shape = read_shape("3.2.1")
    assert len(shape.nodes) == 3 + 6 + 6
    assert shape.depth == 3
    assert shape.widths() == {(): 3, **{(a,): 2 for a in range(3)}, **{(a, b): 1 for a in range(3) for b in range(2)}}
    assert shape.nodes[:5] == ((0,), (1,), (2,), (0, 0), (0, 1))


def test_a_list_keeps_its_order_and_gives_parents():
    shape = read_shape(CHOICES)
    assert shape.nodes == tuple(map(tuple, CHOICES))
    assert shape.parents == (-1, 0, -1, 0, 1, -1)
    assert shape.widths() == {(): 3, (0,): 2, (0, 0): 1}
    tree.check(Draft(tuple(range(6)), shape.parents))


@pytest.mark.parametrize("order", [list(reversed(CHOICES)), sorted(CHOICES, key=len), sorted(CHOICES)])
def test_a_list_in_any_order_is_the_same_tree_with_parents_and_elder_siblings_first(order):
    shape = read_shape(order)
    assert set(shape.nodes) == set(map(tuple, CHOICES))
    assert all(parent < node for node, parent in enumerate(shape.parents))


def test_all_ways_to_give_a_shape_are_equal(tmp_path):
    file = tmp_path / "shape.json"
    file.write_text(json.dumps(read_shape("2.2").nodes), encoding="utf-8")
    nodes = read_shape("2.2").nodes
    for given in (file, str(file), nodes, [list(node) for node in nodes], Shape(nodes)):
        assert read_shape(given) == read_shape("2.2")


def test_a_budget_takes_the_first_nodes():
    shape = read_shape(CHOICES)
    for budget in range(7):
        assert sum(shape.widths(budget).values()) == budget
    assert shape.widths(3) == {(): 2, (0,): 1}
    assert shape.widths(-1) == {}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([], "0 nodes"),
        ([[1, 0], [0]], r"\(1, 0\).*parent, here \(1,\)"),
        ([[0], [2]], r"\(2,\).*elder siblings, here \(1,\)"),
        ([[0], [0, 1]], r"elder siblings, here \(0, 0\)"),
        ([[0], [1], [0]], r"\(0,\).*once"),
        ([[0], []], "1 to 32 ranks"),
        ([[0] * (n + 1) for n in range(MAX_DEPTH + 1)], "1 to 32 ranks"),
        ([[0], [-1]], r"\[-1\].*0 to 63"),
        ([[0], [MAX_NODES]], r"\[64\].*0 to 63"),
        ([[0], [1.0]], r"\[1.0\]"),
        ([[0], [True]], r"\[True\]"),
        ([[0], ["1"]], r"\['1'\]"),
        ([[0], 1], "1.*a list of ranks"),
        ([[0], "1"], "'1'.*a list of ranks"),
        ([[n] for n in range(MAX_NODES + 1)], "65 nodes"),
        ({"0": 0}, "rank paths"),
        (7, "rank paths"),
        (None, "rank paths"),
        ("", "no such file"),
        ("0", "at least 1 child"),
        ("2.0", "at least 1 child"),
        ("65", "64 nodes together"),
        ("4.4.4", "64 nodes together"),
        ("9999.9999", "64 nodes together"),
        (".".join("1" * (MAX_DEPTH + 1)), "32 levels"),
        ("4.", "no such file"),
        ("4.-2", "no such file"),
        ("missing.json", "no such file"),
    ],
)
def test_what_is_no_shape_is_refused_by_name(wrong, message):
    with pytest.raises(InvalidOption, match=f"(?s)tree.*{message}"):
        read_shape(wrong)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\xff\xfe\x80",
        b"[[0], [1]",
        b"[[0], [NaN]]",
        b"[[0], [1e999]]",
        b"{}",
        b'"4.2.1"',
        b"[" * 30_000,
        b"[[0], [" + b"9" * 5000 + b"]]",
        b"[[0]" + b" " * MAX_BYTES + b"]",
        pickle.dumps([[0], [1]]),
    ],
    ids=range(11),
)
def test_a_file_that_is_no_list_of_rank_paths_is_refused(content, tmp_path):
    file = tmp_path / "shape.json"
    file.write_bytes(content)
    with pytest.raises(InvalidOption, match="tree"):
        read_shape(file)


def test_a_huge_file_is_not_read(tmp_path):
    file = tmp_path / "huge.json"
    with file.open("wb") as sparse:
        sparse.truncate(1 << 40)
    with pytest.raises(InvalidOption, match="too large"):
        read_shape(file)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_what_is_no_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", "a\0b", "x" * 5000):
        with pytest.raises(InvalidOption, match="tree"):
            read_shape(path)


def test_the_largest_shapes_are_allowed():
    assert len(read_shape([[n] for n in range(MAX_NODES)]).nodes) == MAX_NODES
    assert read_shape(".".join("1" * MAX_DEPTH)).depth == MAX_DEPTH


def test_a_shape_that_is_made_directly_is_checked_too():
    with pytest.raises(InvalidOption, match="parent"):
        Shape(((0, 0), (0,)))
