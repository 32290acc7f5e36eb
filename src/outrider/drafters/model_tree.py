"""Trees from a draft model, a level per forward, as a function of nothing but the laws that it gives.

- `ShapedTree`: a fixed shape. Siblings are drawn one after the other without replacement.
- `MixedTree`: at each node one drawn child, then the likeliest tokens, which are not drawn.
- `LikeliestTree`: the tree of the likeliest nodes, none of them drawn.

At temperature 0 a draw would be no draw: there, `ShapedTree` takes the likeliest tokens in its ranks, and
`LikeliestTree` stands for `MixedTree`. Both rank by the law that the processed logits have at temperature 1.

Where tokens are drawn, how many children a node gets is decided before they are, from laws that depend on earlier
levels alone; and a drawn node is never taken back. Both are what keeps the rules exact.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import Protocol

import numpy as np
import torch

import outrider.tree as tree
from outrider.core import Coins, Draft, Law, Proposal, Sequence
from outrider.drafters.growth import best_first, check_row_cost, ranked, row_worth
from outrider.drafters.shapes import MAX_DEPTH, Shape, read_shape
from outrider.errors import InvalidOption
from outrider.options import whole
from outrider.sampling import laws

ROOT = -1

Child = tuple[int, Law | None]
"""A token and the law that it was drawn from, None if it was chosen."""

Ranked = list[tuple[int, float]]
"""Tokens and their probabilities, likeliest first."""

Path = tuple[int, ...]
"""Drafted tokens."""


class Growth(Protocol):
    """One draft in the making.

    Attributes:
        sequence: whose draft it is.
        budget: most nodes.
        text: what the model's cache is to hold, at least one token.
        tree: what stands on top of the text in the next forward: nodes whose laws are wanted, and those before them.
    """

    sequence: Sequence
    budget: int
    text: list[int]
    tree: Draft

    def grow(self, logits: torch.Tensor) -> bool:
        """Go on by a level; False if the draft has ended.

        Args:
            logits: [1 + n, vocabulary of the target] after the text and after each node of `tree`.

        Raises:
            OutriderError: from `sampling.laws`; the draft stays as it was.
        """

    def draft(self) -> Draft:
        """What has been drafted."""


@dataclass(frozen=True)
class Form:
    """What trees are to be like.

    Args:
        shape: a fixed shape; None leaves it to the laws.
        depth: longest path, without a shape.
        row_cost: see `growth.best_first`, without a shape.
    """

    shape: Shape | None
    depth: int
    row_cost: float


def read_form(tree: str | Shape, depth: int, row_cost: float) -> Form | None:
    """The options of a drafter that may draft trees; None for chains.

    Raises:
        InvalidOption: a value outside its range, or a shape that is none.
    """
    if not whole(depth, 1, MAX_DEPTH):
        raise InvalidOption("depth", depth, f"a whole number from 1 to {MAX_DEPTH}")
    check_row_cost(row_cost)
    if tree == "chain":
        return None
    return Form(None if tree == "auto" else read_shape(tree), depth, row_cost)


def new_tree(sequence: Sequence, budget: int, form: Form) -> Growth:
    """A tree of at most `budget` nodes that has not grown yet."""
    if form.shape is not None:
        return ShapedTree(sequence, budget, form.shape)
    kind = LikeliestTree if sequence.sampling.temperature == 0 else MixedTree
    return kind(sequence, budget, form)


class ShapedTree:
    """A `Growth` into a given shape; where a law has fewer tokens than a node has children, the last are missing."""

    def __init__(self, sequence: Sequence, budget: int, shape: Shape) -> None:
        self.sequence, self.budget, self.text, self.tree = sequence, budget, sequence.tokens, Draft()
        self._widths = shape.widths(budget)
        self._nodes = _Nodes(sequence)
        self._ranks: dict[int, tuple[int, ...]] = {ROOT: ()}
        self._frontier = [ROOT]

    def grow(self, logits: torch.Tensor) -> bool:
        """See `Growth`."""
        grown = []
        for node, law in zip(self._frontier, self._nodes.laws(logits, self._frontier), strict=True):
            for rank, child in enumerate(self._family(law, node)):
                grown.append(self._nodes.add(node, child))
                self._ranks[grown[-1]] = (*self._ranks[node], rank)
        self._frontier = [n for n in grown if self._ranks[n] in self._widths and self._nodes.may_go_on(n)]
        self.tree = self._nodes.to_feed(self._frontier)
        return bool(self._frontier)

    def draft(self) -> Draft:
        """See `Growth`."""
        return self._nodes.draft()

    def _family(self, law: Law, node: int) -> list[Child]:
        width = self._widths[self._ranks[node]]
        if self.sequence.sampling.temperature == 0:
            return [(token, None) for token, _ in ranked(law, width)]
        return draw_without_replacement(law, width, self.sequence.draft_coins, self._nodes.position(node))


class MixedTree:
    """A `Growth` of one drawn child per node and likeliest tokens beside it, as many as are worth their rows.

    With P_m the probability of the m likeliest tokens of the draft's law p, a node has m extras, which are these
    tokens, and one child drawn from the rest of p, which is verified first (Hu et al., 2502.18779). The target is
    taken to keep an extra x with probability p(x), and a token drawn from a law with probability (1 + its maximum) / 2:
    nearly always where it is peaked. Then one of the children is kept with probability (1 + P_(m+1)) / 2, so a further
    extra is worth half the probability of the token that follows it in rank, times the probability that the text gets
    there. A peaked law gets none.

    Rows go to what is worth most on the level. A row must be worth its cost, and no less than at the end of a chain
    of all rows that are left: so few rows make a chain, and many a tree.
    """

    def __init__(self, sequence: Sequence, budget: int, form: Form) -> None:
        self.sequence, self.budget, self.text, self.tree = sequence, budget, sequence.tokens, Draft()
        self._form = form
        self._nodes = _Nodes(sequence)
        self._reach = {ROOT: 1.0}  # estimates of the probability that the text gets to a node
        self._expected = 1.0  # tokens of the round
        self._frontier = [ROOT]

    def grow(self, logits: torch.Tensor) -> bool:
        """See `Growth`."""
        laws_here = self._nodes.laws(logits, self._frontier)
        room = self.budget - len(self._nodes)
        rankings = [ranked(law, room + 1) for law in laws_here]
        widths, grown = self._plan(rankings, room), list[int]()
        for node, law, ranking, width in zip(self._frontier, laws_here, rankings, widths, strict=True):
            if width > 0:
                grown += self._add_family(node, law, ranking, width - 1)
        self._frontier = [node for node in grown if self._may_grow(node)] if len(self._nodes) < self.budget else []
        self.tree = self._nodes.to_feed(self._frontier)
        return bool(self._frontier)

    def draft(self) -> Draft:
        """See `Growth`."""
        return self._nodes.draft()

    def _plan(self, rankings: list[Ranked], room: int) -> list[int]:
        """How many children each node of the frontier gets, before anything is drawn."""
        reach = [self._reach[node] for node in self._frontier]
        kept = [(1 + ranking[0][1]) / 2 for ranking in rankings]  # of a lone child
        best = max(range(len(reach)), key=lambda i: reach[i] * kept[i])
        widths = [0] * len(reach)
        heap = [(-r * k, i) for i, (r, k) in enumerate(zip(reach, kept, strict=True))]
        heapify(heap)
        while heap and room > 0:
            worth, i = -heap[0][0], heappop(heap)[1]
            rows = self.budget - room
            if worth < reach[best] * kept[best] ** room or not worth > row_worth(
                self._form.row_cost, self._expected, rows
            ):
                break
            self._expected += worth
            room -= 1
            widths[i] += 1
            if widths[i] < len(rankings[i]):  # else nothing would be left to draw from
                heappush(heap, (-reach[i] * rankings[i][widths[i]][1] / 2, i))
        return widths

    def _add_family(self, node: int, law: Law, ranking: Ranked, num_extras: int) -> list[int]:
        reach, extras = self._reach[node], ranking[:num_extras]
        rest = without(law, [token for token, _ in extras])
        token = self.sequence.draft_coins.categorical(rest, self._nodes.position(node))
        grown = [self._nodes.add(node, (token, rest))]
        left = max(0.0, 1 - sum(p for _, p in extras))
        self._reach[grown[0]] = reach * (left + ranking[num_extras][1]) / 2
        for token, p in extras:
            grown.append(self._nodes.add(node, (token, None)))
            self._reach[grown[-1]] = reach * p
        return grown

    def _may_grow(self, node: int) -> bool:
        least = row_worth(self._form.row_cost, self._expected, len(self._nodes))
        is_short = self._nodes.depth(node) < self._form.depth
        return is_short and self._reach[node] > least and self._nodes.may_go_on(node)


class LikeliestTree:
    """A `Growth` into the tree that `growth.best_first` would grow if it knew the law after every path.

    In each round it grows the tree from the laws known so far and asks for those of the nodes that are new in it. New
    children only ever displace less likely nodes, so after d rounds nothing above level d is missing. EAGLE-2
    (2406.16858) does the same with a fixed number of nodes per level and one ranking at the end.
    """

    def __init__(self, sequence: Sequence, budget: int, form: Form) -> None:
        self.sequence, self.budget, self.text, self.tree = sequence, budget, sequence.tokens, Draft()
        self._form = form
        self._known: dict[Path, Ranked] = {}  # what may follow a path
        self._fed: list[Path] = [()]  # the path to each row of the next forward
        self._drafted = Draft()

    def grow(self, logits: torch.Tensor) -> bool:
        """See `Growth`."""
        new = [row for row, path in enumerate(self._fed) if path not in self._known]
        found = laws(logits[new], _that_draws(self.sequence), [self._fed[row] for row in new])
        self._known.update((self._fed[row], ranked(law, self.budget)) for row, law in zip(new, found, strict=True))
        known, form = self._known, self._form
        self._drafted = best_first(
            lambda path: known.get(path, []), self.budget, max_depth=form.depth, row_cost=form.row_cost
        )
        self._ask()
        return len(self.tree) > 0

    def draft(self) -> Draft:
        """See `Growth`."""
        return self._drafted

    def _ask(self) -> None:
        """Set `tree`: the nodes whose children may still come into the draft, and those before them."""
        drafted = self._drafted
        paths, reach = tree.paths(drafted.tokens, drafted.parents), [1.0]
        for token, parent in zip(drafted.tokens, drafted.parents, strict=True):
            reach.append(reach[parent + 1] * dict(self._known[paths[parent + 1]])[token])
        least = row_worth(self._form.row_cost, sum(reach), len(drafted))
        if len(drafted) == self.budget:
            least = max(least, reach[-1])
        wanted = [
            path
            for path, r in zip(paths, reach, strict=True)
            if path not in self._known and len(path) < self._form.depth and r > least and self._may_go_on(path)
        ]
        nodes = [n for n in range(len(drafted)) if any(w[: len(paths[n + 1])] == paths[n + 1] for w in wanted)]
        self.tree, self._fed = part(drafted, nodes), [(), *(paths[n + 1] for n in nodes)]

    def _may_go_on(self, path: Path) -> bool:
        return path[-1] not in self.sequence.stop_ids


class _Nodes:
    """The nodes of a tree that only grows; ROOT stands for the sequence's last token."""

    def __init__(self, sequence: Sequence) -> None:
        self._sequence = sequence
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._laws: list[Law | None] = []
        self._paths: dict[int, Path] = {ROOT: ()}
        self._rows = {ROOT: 0}  # of the last forward, by node

    def __len__(self) -> int:
        return len(self._tokens)

    def add(self, parent: int, child: Child) -> int:
        """The number of the new node."""
        node = len(self._tokens)
        self._tokens.append(child[0])
        self._parents.append(parent)
        self._laws.append(child[1])
        self._paths[node] = (*self._paths[parent], child[0])
        return node

    def depth(self, node: int) -> int:
        """0 for the root."""
        return len(self._paths[node])

    def position(self, node: int) -> int:
        """Where in the text a child of the node stands."""
        return len(self._sequence.tokens) + self.depth(node)

    def may_go_on(self, node: int) -> bool:
        """Nothing follows a stop id."""
        return self._tokens[node] not in self._sequence.stop_ids

    def to_feed(self, frontier: Ordered[int]) -> Draft:
        """The frontier and all nodes before it."""
        found: set[int] = set()
        for node in frontier:
            while node != ROOT and node not in found:
                found.add(node)
                node = self._parents[node]
        nodes = sorted(found)
        self._rows = {node: row for row, node in enumerate([ROOT, *nodes])}
        return part(self._whole(), nodes)

    def laws(self, logits: torch.Tensor, frontier: Ordered[int]) -> list[Law]:
        """The law after each of these nodes, from the logits of what was fed."""
        rows = [self._rows[node] for node in frontier]
        return list(laws(logits[rows], _that_draws(self._sequence), [self._paths[node] for node in frontier]))

    def draft(self) -> Draft:
        """All of them."""
        num_drawn = sum(law is not None for law in self._laws)
        if num_drawn == 0:
            return self._whole()
        proposal: Proposal = "sampled" if num_drawn == len(self) else "hybrid"
        return replace(self._whole(), proposal=proposal, draft_probs=tuple(self._laws))

    def _whole(self) -> Draft:
        return Draft(tuple(self._tokens), tuple(self._parents))


def part(draft: Draft, nodes: Ordered[int]) -> Draft:
    """These nodes of a draft, in order, which must hold the parents of all of them; without laws."""
    place = {node: i for i, node in enumerate([ROOT, *nodes], start=ROOT)}
    return Draft(tuple(draft.tokens[n] for n in nodes), tuple(place[draft.parents[n]] for n in nodes))


def draw_without_replacement(law: Law, count: int, coins: Coins, position: int) -> list[Child]:
    """At most `count` siblings, in the order in which they are to be verified: fewer if the law has fewer tokens."""
    found: list[Child] = []
    while len(found) < count and law.any():
        token = coins.categorical(law, position)
        found.append((token, law))
        law = without(law, [token])
    return found


def without(law: Law, tokens: Ordered[int]) -> Law:
    """The law given that none of these tokens is drawn; all zero if no other is left."""
    if not tokens:
        return law
    rest: Law = law.copy()
    rest[list(tokens)] = 0
    total = float(rest.sum(dtype=np.float64))
    if total > 0:
        rest /= total
    return rest


def _that_draws(sequence: Sequence) -> Sequence:
    """The sequence, at a temperature at which its law says how likely tokens are."""
    if sequence.sampling.temperature > 0:
        return sequence
    return replace(sequence, sampling=replace(sequence.sampling, temperature=1.0, top_k=None, top_p=1.0, min_p=0.0))
