"""Rules for drafts that are trees: which path is kept, and what comes after it. Every rule here is lossless.

All of them walk siblings in drafted order against one running law R, the target's law less what refused siblings have
used up, and all treat a node without a law of its own as drawn from the law that is certain of its token: refusing x
then leaves (R - certain(x))+, which is R without x. So children drawn with or without replacement, from several
drafters, chosen by any means, or some so and some so, need no rules of their own. Greedy verification is any of these
rules on laws that are certain of one token. The same code runs on floats and, in the proofs, on fractions.

q is the target's law and p the law that a draft token was drawn from; (a)+ is max(a, 0).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from outrider.core import Coins, Draft, Law, Verdict
from outrider.rules.chain import capped_ratio, less, mass_of, or_target, stop_chance
from outrider.tree import check

ROOT = -1
"""The node number of the pending token."""

ANY_PROPOSAL = frozenset({"sampled", "point_mass", "hybrid"})


class PointMassRule:
    """At each node of the path the children x are kept with probability R(x) in turn; a refused one leaves R.

    In law this is "draw from q, and go on while a child has that token", so it is exact for any draft, however it was
    chosen, as long as the coins are independent of it. `Verdict.acceptance` holds R(x) of every node examined. Source:
    the verification of EAGLE-2 (2406.16858) at temperature > 0.
    """

    name = "point-mass"
    lossless = True
    trees = True
    proposals = ANY_PROPOSAL

    def verify(self, draft: Draft, target_probs: Law, coins: Coins, position: int) -> Verdict:
        """See `core.Rule.verify`.

        Raises:
            InvalidOption: if the draft is not a tree, or two siblings that were chosen have one token.
        """
        check(draft)
        return _walk(draft, target_probs, coins, position, lambda node: None)


class RecursiveRule:
    """Recursive rejection: child x is kept with probability min(1, R(x) / p(x)); a refused one leaves (R - p)+ of R.

    Source: SpecInfer (2305.09781) for children drawn with replacement, Sequoia (2402.12374) for those without, whose
    laws are what the earlier siblings left. A drawn child followed by chosen ones is the hybrid node of Hu et al.
    (2502.18779). `Verdict.acceptance` holds the probabilities, up to and including the last node examined.
    """

    name = "recursive"
    lossless = True
    trees = True
    proposals = ANY_PROPOSAL

    def verify(self, draft: Draft, target_probs: Law, coins: Coins, position: int) -> Verdict:
        """See `core.Rule.verify`.

        Raises:
            InvalidOption: if the draft is not a tree, or two siblings that were chosen have one token.
        """
        check(draft)
        return _walk(draft, target_probs, coins, position, draft.law)


class TraversalRule:
    """Block verification on a tree: leaves before their parents, and whole subtrees before their younger siblings.

    A node is reached with weight w; its child x with w_x = min(1, w R(x) / p(x)), which is the probability, given the
    draft, that this child or something below it is kept. A refused child leaves (w R - p)+, of mass S, for R, and
    S / (S + 1 - w) for w. When all children are refused the node itself is kept with probability w. Source: Weng et
    al., "Traversal verification" (2505.12398). On a chain it is the block rule. `Verdict.acceptance` holds the weights
    w_x in the order in which nodes were reached.
    """

    name = "traversal"
    lossless = True
    trees = True
    proposals = ANY_PROPOSAL

    def verify(self, draft: Draft, target_probs: Law, coins: Coins, position: int) -> Verdict:
        """See `core.Rule.verify`.

        Raises:
            InvalidOption: if the draft is not a tree, or two siblings that were chosen have one token.
        """
        check(draft)
        children, acceptance = _children(draft), list[float]()

        def visit(node: int, path: tuple[int, ...], weight: Any) -> tuple[tuple[int, ...], Law] | None:
            """What is kept of this subtree and the law after it; None if all of it is refused."""
            rest, whole = target_probs[node + 1], 1
            for place, child in enumerate(children[node]):
                rest = _times(rest, weight) if place == 0 else _divided(rest, whole)  # w R
                reach = _chance(rest, draft.tokens[child], draft.law(child))
                acceptance.append(float(reach))
                found = visit(child, (*path, child), reach)
                if found is not None:
                    return found
                rest = _less(rest, draft.tokens[child], draft.law(child))
                mass = mass_of(rest)
                whole, weight = mass + (1 - weight), stop_chance(weight, mass)
            if node == ROOT or coins.bernoulli(weight):
                return path, or_target(rest, target_probs[node + 1])
            return None

        kept = visit(ROOT, (), 1)
        assert kept is not None, "the root is never refused"
        path, law = kept
        return Verdict(path, coins.categorical(law, position + len(path)), tuple(acceptance))


class CoupledRule:
    """Draws the target's own token at every position and goes on while a child has it.

    Exact for any draft. With coins keyed by position the emitted tokens are a function of the seed alone, whatever
    drafter, draft or batch, and a token drafted with the same noise is kept with probability at least
    (1 - TV) / (1 + TV). Source: Daliri, Musco, Suresh (2408.07978). `Verdict.acceptance` holds the outcomes, 1.0 or
    0.0: once the noise is given, nothing is left to chance.
    """

    name = "coupled"
    lossless = True
    trees = True
    proposals = ANY_PROPOSAL

    def verify(self, draft: Draft, target_probs: Law, coins: Coins, position: int) -> Verdict:
        """See `core.Rule.verify`.

        Raises:
            InvalidOption: if the draft is not a tree, or two siblings that were chosen have one token.
        """
        check(draft)
        children, path, node = _children(draft), list[int](), ROOT
        while True:
            drawn = coins.categorical(target_probs[node + 1], position + len(path))
            match = next((child for child in children[node] if draft.tokens[child] == drawn), None)
            if match is None:
                missed = (0.0,) if children[node] else ()
                return Verdict(tuple(path), drawn, (1.0,) * len(path) + missed)
            path.append(match)
            node = match


def _walk(draft: Draft, target_probs: Law, coins: Coins, position: int, law_of: Callable[[int], Law | None]) -> Verdict:
    """From the root down: at each node the first child whose coin falls, and the running law where none does."""
    children, path, acceptance, node = _children(draft), list[int](), list[float](), ROOT
    while True:
        rest, kept = target_probs[node + 1], None
        for place, child in enumerate(children[node]):
            rest = rest.copy() if place == 0 else _divided(rest, mass_of(rest))  # R
            chance = _chance(rest, draft.tokens[child], law_of(child))
            acceptance.append(float(chance))
            if coins.bernoulli(chance):
                kept = child
                break
            rest = _less(rest, draft.tokens[child], law_of(child))
        if kept is None:
            law = or_target(rest, target_probs[node + 1])
            return Verdict(tuple(path), coins.categorical(law, position + len(path)), tuple(acceptance))
        path.append(kept)
        node = kept


def _children(draft: Draft) -> dict[int, list[int]]:
    """The children of each node and of the root, in drafted order."""
    found: dict[int, list[int]] = {node: [] for node in range(ROOT, len(draft))}
    for node, parent in enumerate(draft.parents):
        found[parent].append(node)
    return found


def _chance(rest: Law, token: int, drawn_from: Law | None) -> Any:
    """min(1, rest(x) / p(x)), in [0, 1]; p(x) is 1 where the token was chosen."""
    return min(1, rest.item(token)) if drawn_from is None else capped_ratio(1, rest.item(token), drawn_from.item(token))


def _less(rest: Law, token: int, drawn_from: Law | None) -> Law:
    """[V] (rest - p)+, in place; p is certain of the token where it was chosen."""
    if drawn_from is not None:
        return less(rest, drawn_from)
    rest[token] = 0
    return rest


def _times(law: Law, weight: Any) -> Law:
    """[V] a copy, of the same type."""
    return np.asarray(np.multiply(law, weight, dtype=law.dtype))


def _divided(rest: Law, whole: Any) -> Law:
    """The array over `whole`, in place; as it is if that is zero, for then rounding alone refused a child."""
    return np.divide(rest, whole, out=rest, dtype=rest.dtype) if whole > 0 else rest
