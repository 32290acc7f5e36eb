"""Trees from a draft model, a level per forward, as a function of nothing but the laws that it gives.

- `ShapedTree`: a fixed shape. Siblings are drawn one after the other without replacement.
- `MixedTree`: at each node one drawn child, then the likeliest tokens, which are not drawn.
- `LikeliestTree`: the tree of the likeliest nodes, none of them drawn.

At temperature 0 a draw would be no draw: there, `ShapedTree` takes the likeliest tokens in its ranks, and
`LikeliestTree` stands for `MixedTree`. Both rank by the law that the processed logits have at temperature 1.

Where tokens are drawn, how many children a node gets is decided before they are, from the laws on its own path alone;
and a drawn node is never taken back. Both are what keeps the rules exact.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heapreplace
from typing import Protocol

import numpy as np
import torch

import outrider.tree as tree
from outrider.core import Coins, Draft, Law, Proposal, Sequence
from outrider.drafters.growth import best_first, ranked, row_worth
from outrider.drafters.shapes import Form, Shape
from outrider.sampling import laws

ROOT = -1

KEPT = 0.8
"""Rough share of drawn tokens that a target keeps, where nothing is known of the law yet."""

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
    nearly always where it is peaked. On later levels it is taken to keep `KEPT` of the tokens of a chain.

    Each node shares its rows among its children as if a chain hung on each of them, with the m that promises the most
    tokens: a peaked law gets no extras, and few rows stay a chain. So what hangs on a node is a function of the laws
    on its own path alone.
    """

    def __init__(self, sequence: Sequence, budget: int, form: Form) -> None:
        self.sequence, self.budget, self.text, self.tree = sequence, budget, sequence.tokens, Draft()
        self._form = form
        self._nodes = _Nodes(sequence)
        self._plots = {ROOT: Plot(budget, 1.0, 1.0)}
        self._frontier = [ROOT]

    def grow(self, logits: torch.Tensor) -> bool:
        """See `Growth`."""
        grown = list[int]()
        for node, law in zip(self._frontier, self._nodes.laws(logits, self._frontier), strict=True):
            plot, depth = self._plots[node], self._nodes.depth(node)
            ranking = ranked(law, plot.rows + 1)
            form = self._form
            least = row_worth(form.row_cost, plot.expected, depth)
            deeper = row_worth(form.row_cost + form.level_cost, plot.expected, depth)
            plots = shared(ranking, plot, form.depth - depth, least, deeper)
            family = self._family(node, law, ranking[: len(plots) - 1]) if plots else []
            for child, its_plot in zip(family, plots, strict=True):
                grown.append(self._nodes.add(node, child))
                self._plots[grown[-1]] = its_plot
        self._frontier = [n for n in grown if self._plots[n].rows > 0 and self._nodes.may_go_on(n)]
        self.tree = self._nodes.to_feed(self._frontier)
        return bool(self._frontier)

    def draft(self) -> Draft:
        """See `Growth`."""
        return self._nodes.draft()

    def _family(self, node: int, law: Law, extras: Ranked) -> list[Child]:
        rest = without(law, [token for token, _ in extras])
        token = self.sequence.draft_coins.categorical(rest, self._nodes.position(node))
        return [(token, rest), *((token, None) for token, _ in extras)]


@dataclass(frozen=True)
class Plot:
    """Room to grow.

    Args:
        rows: most nodes that may hang on this one.
        reach: estimate of the probability that the text gets here.
        expected: tokens that a chain to here promises, this one included.
    """

    rows: int
    reach: float
    expected: float


def shared(ranking: Ranked, plot: Plot, levels: int, least: float, deeper: float) -> list[Plot]:
    """Each child's part of a node's plot: the drawn child's, then those of the likeliest tokens; [] for no children.

    Args:
        ranking: of the law after the node, one token more than there are rows, as far as it has them.
        plot: the node's.
        levels: longest path below it.
        least: what a child must be worth.
        deeper: what a row below it must be worth, which is drafted for.
    """
    best, most = list[Plot](), 0.0
    for num_extras in range(min(len(ranking), plot.rows)):
        extras = [p for _, p in ranking[:num_extras]]
        drawn = (max(0.0, 1 - sum(extras)) + ranking[num_extras][1]) / 2
        reaches = [plot.reach * p for p in (drawn, *extras)]
        rows, worth = _rows_of_chains(reaches, plot.rows, levels, least, deeper)
        if worth <= most:
            break
        best = [Plot(n - 1, reach, plot.expected + reach) for n, reach in zip(rows, reaches, strict=True)]
        most = worth
    return best


def _rows_of_chains(
    reaches: list[float], rows: int, levels: int, least: float, deeper: float
) -> tuple[list[int], float]:
    """Rows shared among chains that begin with these probabilities, one at least each, and what they are worth."""
    lengths, worth = [1] * len(reaches), sum(reaches) - len(reaches) * least
    heap = [(-reach * KEPT, i) for i, reach in enumerate(reaches)]
    heapify(heap)
    for _ in range(rows - len(reaches)):
        while heap and lengths[heap[0][1]] == levels:
            heappop(heap)
        if not heap or -heap[0][0] <= deeper:
            break
        value, i = heap[0]
        heapreplace(heap, (value * KEPT, i))
        lengths[i] += 1
        worth -= value + deeper
    return lengths, worth


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
        self._drafted, self._levels = Draft(), 0

    def grow(self, logits: torch.Tensor) -> bool:
        """See `Growth`."""
        self._levels += 1
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
        wanted = {
            path: r
            for path, r in zip(paths, reach, strict=True)
            if path not in self._known and len(path) < self._form.depth and r > least and self._may_go_on(path)
        }
        if not self._pays(sum(wanted.values()), sum(reach), len(drafted)):
            wanted = {}
        nodes = [n for n in range(len(drafted)) if any(w[: len(paths[n + 1])] == paths[n + 1] for w in wanted)]
        self.tree, self._fed = part(drafted, nodes), [(), *(paths[n + 1] for n in nodes)]

    def _pays(self, reach: float, expected: float, rows: int) -> bool:
        """Whether another level below nodes of this reach in all is worth a forward, if laws stay as peaked."""
        tops, form = [ranking[0][1] for ranking in self._known.values()], self._form
        cost = 1 + form.row_cost * rows + form.level_cost * self._levels
        return reach * sum(tops) / len(tops) > form.level_cost * expected / cost

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
