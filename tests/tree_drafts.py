"""Ways to draft a tree from a toy model, for the proofs: the right ones, and the wrong ones that proofs must catch.

A *family* draws or chooses the children of one node from the draft's law there: (token, row of draft_probs) each.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from enumeration import POSITION, Propose, Tokens, ToyModel
from outrider.core import Coins, Draft, Law

Child = tuple[int, Law | None]
Family = Callable[[Law, int, Coins, int], list[Child]]
Shape = Callable[[Tokens], int]
"""From a node's way down, as child numbers, to how many children it gets."""


def grown(model: ToyModel, shape: Shape, family: Family) -> Propose:
    """Drafts trees of this shape, level by level, from the model."""

    def propose(coins: Coins) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        rows: list[Law | None] = []
        open_nodes: list[tuple[int, Tokens, Tokens]] = [(-1, (), ())]
        while open_nodes:
            node, path, ranks = open_nodes.pop(0)
            if shape(ranks) == 0:
                continue
            for rank, (token, row) in enumerate(family(model(path), shape(ranks), coins, POSITION + len(path))):
                open_nodes.append((len(tokens), (*path, token), (*ranks, rank)))
                tokens.append(token)
                parents.append(node)
                rows.append(row)
        return Draft(tuple(tokens), tuple(parents), *declared(rows))

    return propose


def declared(rows: list[Law | None]) -> tuple[str, tuple[Law | None, ...] | None]:
    drawn = {row is not None for row in rows}
    if drawn == {True}:
        return "sampled", tuple(rows)
    return ("hybrid", tuple(rows)) if True in drawn else ("point_mass", None)


def even(*widths: int) -> Shape:
    """The same number of children for all nodes of a level."""
    return lambda ranks: widths[len(ranks)] if len(ranks) < len(widths) else 0


def ragged(seed: int, depth: int, most: int) -> Shape:
    """A random shape; the root has two children or more."""

    def width(ranks: Tokens) -> int:
        if len(ranks) == depth:
            return 0
        dice = np.random.default_rng([seed, len(ranks), *ranks])
        return int(dice.integers(2 if not ranks else 0, most + 1))

    return width


def size(shape: Shape, ranks: Tokens = ()) -> int:
    """Nodes of a tree of this shape, if no node runs out of tokens."""
    return sum(1 + size(shape, (*ranks, rank)) for rank in range(shape(ranks)))


def with_replacement(law: Law, count: int, coins: Coins, position: int) -> list[Child]:
    return [(coins.categorical(law, position), law) for _ in range(count)]


def several_drafters(law: Law, count: int, coins: Coins, position: int) -> list[Child]:
    """SpecInfer: every child is another drafter's, with that drafter's own law."""
    laws = [np.roll(law, place) for place in range(count)]
    return [(coins.categorical(own, position), own) for own in laws]


def without_replacement(law: Law, count: int, coins: Coins, position: int) -> list[Child]:
    found: list[Child] = []
    while len(found) < count and law.any():
        law = law / law.sum()
        found.append((coins.categorical(law, position), law))
        law = without(law, found[-1][0])
    return found


def likeliest_ones(law: Law, count: int, coins: Coins, position: int) -> list[Child]:
    return [(token, None) for token in top(law, count)]


def one_drawn_then_extras(law: Law, count: int, coins: Coins, position: int) -> list[Child]:
    """The hybrid node: the likeliest count - 1 tokens are extras, one more is drawn from the rest and goes first."""
    extras = top(law, count - 1)
    rest = without(law, *extras)
    drawn = with_replacement(rest / rest.sum(), 1, coins, position) if rest.any() else []
    return [*drawn, *((token, None) for token in extras)]


def extras_then_one_drawn(law: Law, count: int, coins: Coins, position: int) -> list[Child]:
    family = one_drawn_then_extras(law, count, coins, position)
    return sorted(family, key=lambda child: child[1] is not None)


def one_drawn_then_extras_beside_it(law: Law, count: int, coins: Coins, position: int) -> list[Child]:
    """Drawn from the whole law; the extras are chosen afterwards, knowing what was drawn."""
    drawn = coins.categorical(law, position)
    return [(drawn, law), *((token, None) for token in top(without(law, drawn), count - 1))]


def by_depth(law: Law, count: int, coins: Coins, position: int) -> list[Child]:
    """Another family on each level."""
    families = (without_replacement, likeliest_ones, one_drawn_then_extras, with_replacement)
    return families[(position - POSITION) % len(families)](law, count, coins, position)


EXACT_FAMILIES: tuple[Family, ...] = (
    with_replacement,
    several_drafters,
    without_replacement,
    likeliest_ones,
    one_drawn_then_extras,
    extras_then_one_drawn,
    one_drawn_then_extras_beside_it,
    by_depth,
)

# --- wrong ones: each declares a law that its tokens were not drawn from ---------------------------------------------


def likeliest_ones_called_drawn(law: Law, count: int, coins: Coins, position: int) -> list[Child]:
    return [(token, law) for token in top(law, count)]


def reordered_after_the_draw(law: Law, count: int, coins: Coins, position: int) -> list[Child]:
    drawn = without_replacement(law, count, coins, position)
    return sorted(drawn, key=lambda child: law[child[0]])


def pruned_after_the_draw(law: Law, count: int, coins: Coins, position: int) -> list[Child]:
    drawn = with_replacement(law, count, coins, position)
    return [child for child in drawn if law[child[0]] > Fraction(1, 4)]


def duplicates_called_without_replacement(law: Law, count: int, coins: Coins, position: int) -> list[Child]:
    found: list[Child] = []
    rest = law
    for token, _ in with_replacement(law, count, coins, position):
        found.append((token, rest / rest.sum()))
        rest = without(rest, token)
        if not rest.any():
            break
    return found


WRONG_FAMILIES: tuple[Family, ...] = (
    likeliest_ones_called_drawn,
    reordered_after_the_draw,
    pruned_after_the_draw,
    duplicates_called_without_replacement,
)


def top(law: Law, count: int) -> list[int]:
    """The likeliest tokens, at most `count`, none of probability 0, the lowest id first among equals."""
    return [token for token in np.argsort(-law, kind="stable").tolist() if law[token] > 0][:count]


def without(law: Law, *tokens: int) -> Law:
    rest = law.copy()
    rest[list(tokens)] = Fraction(0)
    return rest
