"""Static trees: shapes without tokens. A node is named by ranks: (a, b) is the b-th child of the root's a-th child.

What a rank stands for is up to the drafter: the b-th likeliest token, or the b-th that was drawn. Shapes come as JSON
(Medusa, 2401.10774, calls them choices) or as numbers of children per level; nothing that is read can run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from outrider.core import Sequence
from outrider.drafters.growth import check_row_cost
from outrider.errors import InvalidOption
from outrider.options import whole

MAX_NODES = 64
"""Nodes of the largest shape: the longest draft that may be asked for."""

MAX_DEPTH = 32
"""Longest path."""

MAX_BYTES = 1 << 16
"""Of a shape's file; the largest shapes need a tenth of it."""

Ranks = tuple[int, ...]

FORMS = 'children per level such as "4.2.1", a JSON file with a list of rank paths, or such a list'


@dataclass(frozen=True)
class Shape:
    """A tree of 1 to 64 nodes, each named by its ranks from the root, (0,) for the root's first child.

    Args:
        nodes: by importance, but a node comes after its parent and its elder sibling.

    Raises:
        InvalidOption: naming the node at fault.
    """

    nodes: tuple[Ranks, ...]

    def __post_init__(self) -> None:
        if not 0 < len(self.nodes) <= MAX_NODES:
            raise InvalidOption("tree", f"{len(self.nodes)} nodes", f"1 to {MAX_NODES} nodes", "Leave out the last.")
        seen: set[Ranks] = {()}
        for node in self.nodes:
            _check(node, seen)
            seen.add(node)

    @property
    def depth(self) -> int:
        """Longest path, in nodes."""
        return max(len(node) for node in self.nodes)

    @property
    def parents(self) -> tuple[int, ...]:
        """[n] as in a `core.Draft`: the place of each node's parent in `nodes`, -1 for the root."""
        place = {node: i for i, node in enumerate(((), *self.nodes), start=-1)}
        return tuple(place[node[:-1]] for node in self.nodes)

    def widths(self, budget: int = MAX_NODES) -> dict[Ranks, int]:
        """How many children each node has, the root () too, in the first `budget` nodes; only those that have any."""
        found: dict[Ranks, int] = {}
        for node in self.nodes[: max(budget, 0)]:
            found[node[:-1]] = found.get(node[:-1], 0) + 1
        return found


def read_shape(given: Shape | str | PathLike[str] | Iterable[Ordered[int]]) -> Shape:
    """A shape from what users give: a `Shape`, "4.2.1", the path of a JSON file, or a list of rank paths in any order.

    In widths "4.2.1" the root has 4 children, each of these 2, and each of these 1. Lists keep their order, which
    is by importance, but for nodes that stand before their parent or elder sibling.

    Raises:
        InvalidOption: a file that is missing, too large or not JSON, or what is no shape, naming the fault.
    """
    if isinstance(given, Shape):
        return given
    if isinstance(given, str) and re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,4})*", given):
        return _from_widths(given)
    if isinstance(given, str | PathLike):
        return _from_list(_read_json(Path(given)), f" in {given}")
    return _from_list(given, "")


def _check(node: Ranks, seen: set[Ranks]) -> None:
    """That a node has its place beside those before it."""
    if not 0 < len(node) <= MAX_DEPTH:
        raise InvalidOption("tree", node, f"paths of 1 to {MAX_DEPTH} ranks")
    if node in seen:
        raise InvalidOption("tree", node, "each node once")
    if node[:-1] not in seen:
        raise InvalidOption("tree", node, f"nodes with their parent, here {node[:-1]}", "Add it, or leave this out.")
    if node[-1] > 0 and (elder := (*node[:-1], node[-1] - 1)) not in seen:
        raise InvalidOption("tree", node, f"nodes with all elder siblings, here {elder}", "Number children from 0.")


def _from_widths(text: str) -> Shape:
    widths = [int(width) for width in text.split(".")]
    level: list[Ranks] = [()]
    nodes: list[Ranks] = []
    for width in widths:
        if width == 0 or len(nodes) + len(level) * width > MAX_NODES or len(widths) > MAX_DEPTH:
            allowed = f"1 to {MAX_DEPTH} levels of at least 1 child each, {MAX_NODES} nodes together"
            raise InvalidOption("tree", text, allowed)
        level = [(*node, rank) for node in level for rank in range(width)]
        nodes += level
    return Shape(tuple(nodes))


def _read_json(path: Path) -> Any:
    try:
        if not path.is_file():
            raise InvalidOption("tree", str(path), f"chain, auto, {FORMS}", "There is no such file.")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise InvalidOption("tree", str(path), f"a file of at most {MAX_BYTES} bytes", "It is too large.")
        return json.loads(content.decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, InvalidOption):
            raise
        raise InvalidOption("tree", str(path), FORMS, f"It cannot be read: {error}.") from error


def _from_list(given: Any, where: str) -> Shape:
    """A shape from rank paths, each put right behind what it needs where that comes later."""
    if not isinstance(given, list | tuple):
        raise InvalidOption(f"tree{where}", given, FORMS)
    if len(given) > MAX_NODES:
        raise InvalidOption(f"tree{where}", f"{len(given)} nodes", f"at most {MAX_NODES} nodes")
    for node in given:
        if not isinstance(node, list | tuple) or not all(whole(rank, 0, MAX_NODES - 1) for rank in node):
            raise InvalidOption(f"tree{where}", node, f"a list of ranks from 0 to {MAX_NODES - 1} for each node")
        if not 0 < len(node) <= MAX_DEPTH:
            raise InvalidOption(f"tree{where}", node, f"paths of 1 to {MAX_DEPTH} ranks")
    nodes = [tuple(int(rank) for rank in node) for node in given]
    return Shape(tuple(_in_order(nodes)))


def _in_order(nodes: list[Ranks]) -> list[Ranks]:
    """The nodes in their order, but each after its parent and elder sibling, if they are there; duplicates stay."""
    known, placed, ordered = set(nodes), set[Ranks](), list[Ranks]()

    def place(node: Ranks) -> None:
        for needed in (node[:-1], (*node[:-1], node[-1] - 1)):
            if needed in known and needed not in placed:
                place(needed)
        placed.add(node)
        ordered.append(node)

    counted: dict[Ranks, int] = {}
    for node in nodes:
        counted[node] = counted.get(node, 0) + 1
        if node not in placed or counted[node] > 1:
            place(node)
    return ordered


@dataclass(frozen=True)
class Form:
    """What trees are to be like.

    Args:
        shape: a fixed shape; None leaves it to the laws.
        depth: longest path, without a shape.
        row_cost: see `growth.best_first`, without a shape.
        level_cost: of a level, which is a forward of the draft model, in the same units; 0 or more.
    """

    shape: Shape | None
    depth: int
    row_cost: float
    level_cost: float = 0.0

    def ends_itself(self, sequence: Sequence) -> bool:
        """Whether a tree for this sequence ends where more is not worth it, so that its budget is only a limit.

        Only at temperature 0: there the draft's law tells which tokens the target will take, elsewhere much less.
        """
        return self.shape is None and sequence.sampling.temperature == 0


def read_form(tree: str | Shape, depth: int, row_cost: float, level_cost: float = 0.0) -> Form | None:
    """The options of a drafter that may draft trees; None for chains.

    Raises:
        InvalidOption: a value outside its range, or a shape that is none.
    """
    if not whole(depth, 1, MAX_DEPTH):
        raise InvalidOption("depth", depth, f"a whole number from 1 to {MAX_DEPTH}")
    check_row_cost(row_cost)
    if tree == "chain":
        return None
    return Form(None if tree == "auto" else read_shape(tree), depth, row_cost, level_cost)
