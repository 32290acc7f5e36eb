"""How much each of several sequences drafts, so that all of them together make most tokens per cost.

One forward verifies all drafts of a step. Kernels take rows in steps of four or eight, and a forward in which one
sequence drafts costs nearly as much as one in which all do, so what a row is worth depends on the others'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, replace
from functools import cache

from outrider.core import Drafter, Sequence

Verify = Callable[[float, int], float]
"""What a forward of the target costs, in any unit, by its rows and by the sequences that they are of."""

Level = Callable[[int], float]
"""What drafting one token further costs for so many sequences together, in units of a plain round of theirs."""

TAKEN_IN = 0.07
"""Of what drafting a token costs one sequence: roughly what taking in one of many tokens costs."""

HORIZON = 16
"""Rounds in which drafts are to repay what must be taken in before the first of them."""

GAIN = 1.0
"""Expected tokens per cost, plain decoding having 1, above which drafts are made."""

NEARLY = 0.03
"""Of the value of the best drafts, what is given up to leave their lengths as they are."""


def arrears_of(drafter: Drafter, sequence: Sequence) -> int:
    """Tokens that a drafter is to take in before it can draft for a sequence, if it has such."""
    arrears = getattr(drafter, "arrears", None)
    return 0 if arrears is None else int(arrears(sequence))


def straight(row: float) -> Verify:
    """A row of each sequence costs the same, in units of a plain round."""
    return lambda rows, sequences: 1 + row * (rows - sequences) / sequences


def free(sequences: int) -> float:
    """What look-ups cost."""
    return 0.0


class Costs:
    """Of rounds of some sequences with one source of drafts, in units of their plain round; each is worked out once.

    Args:
        verify: of the target's forwards.
        level: of the source's drafts.
        sequences: decoded together.
    """

    def __init__(self, verify: Verify, level: Level, sequences: int) -> None:
        self.level, self.sequences = level, sequences
        self._verify, self._plain = verify, verify(sequences, sequences)
        self.forward = cache(self._forward)
        self._one_deep = cache(self._drafting)
        self.perfect = cache(self._perfect)

    def round(self, nodes: float, depth: float) -> float:
        """If all sequences draft alike."""
        return self.forward(nodes * self.sequences) + self.drafting(self.sequences, depth)

    def drafting(self, sequences: int, depth: float) -> float:
        """Of drafts of so many of the sequences, the longest of this depth."""
        return self._one_deep(sequences) * depth if sequences else 0.0

    def taking_in(self, arrears: int) -> float:
        """Of what is to be taken in before a draft can begin, if all sequences have so many tokens of it."""
        return self.sequences * self.drafting(1, arrears * TAKEN_IN)

    def _forward(self, nodes: float) -> float:
        """Of the target with so many nodes, all sequences together."""
        return self._verify(self.sequences + nodes, self.sequences) / self._plain

    def _drafting(self, sequences: int) -> float:
        return self.level(sequences) * self._verify(sequences, sequences) / self._plain

    def _perfect(self, budget: int, nodes_per_depth: float) -> float:
        """Most tokens per cost of drafts of at most so many nodes in which all is right."""
        sizes = ((nodes, nodes / nodes_per_depth) for nodes in range(1, budget + 1))
        return max(((1 + depth) / self.round(nodes, depth) for nodes, depth in sizes), default=0.0)


@dataclass(frozen=True)
class Offer:
    """A draft that a sequence may have, or its first nodes.

    Args:
        gains: expected tokens that each further node adds, never rising.
        depth: of all of it.
        source: whose costs it has.
        whole: whether it is all or nothing.
        least: nodes that are drafted in any case, to learn from.
        last: nodes of its last draft, which are kept to where they are worth nearly the most; 0 for none.
    """

    gains: tuple[float, ...] = ()
    depth: float = 0.0
    source: int = 0
    whole: bool = False
    least: int = 0
    last: int = 0


def shared(offers: Ordered[Offer], costs: Ordered[Costs]) -> list[int]:
    """Nodes of each sequence, those that make most expected tokens per cost of all sequences together.

    Nodes are taken in the order of what they add, and the best of all the sets on the way is kept; as gains never rise
    along a draft, these are the best sets of every size.

    Args:
        offers: one of each sequence.
        costs: by source, of these very sequences.
    """
    total = _Total(offers, costs)
    best, most = list(total.taken), GAIN * total.value if any(total.taken) else GAIN * len(offers)
    for gain, number, nodes in sorted(_items(offers), key=lambda item: -item[0]):
        total.add(gain, number, nodes)
        if total.value > most:
            best, most = list(total.taken), total.value
    return _as_before(offers, best, (1 - NEARLY) * most, costs)


class _Total:
    """What some drafts cost and promise together.

    Args:
        offers: see `shared`.
        costs: see `shared`.
    """

    def __init__(self, offers: Ordered[Offer], costs: Ordered[Costs]) -> None:
        self._offers, self._costs = offers, costs
        self.taken, self._nodes, self._tokens = [0] * len(offers), 0, float(len(offers))
        self._drafting = [[0, 0.0] for _ in costs]  # by source, how many sequences and how deep
        for number, offer in enumerate(offers):
            if offer.least:
                self.add(sum(offer.gains[: offer.least]) / offer.least, number, offer.least)

    def add(self, gain: float, number: int, nodes: int) -> None:
        """Draft so many more nodes of a sequence that add so many tokens each."""
        offer, own = self._offers[number], self._drafting[self._offers[number].source]
        own[0] += self.taken[number] == 0
        self.taken[number] += nodes
        own[1] = max(own[1], offer.depth * self.taken[number] / max(len(offer.gains), 1))
        self._nodes += nodes
        self._tokens += gain * nodes

    @property
    def value(self) -> float:
        """Expected tokens per cost."""
        cost = self._costs[0].forward(self._nodes)
        for own, (sequences, depth) in zip(self._costs, self._drafting, strict=True):
            if sequences and own.level is not free:
                cost += own.drafting(int(sequences), depth)
        return self._tokens / cost


def _as_before(offers: Ordered[Offer], best: list[int], enough: float, costs: Ordered[Costs]) -> list[int]:
    """The lengths of the last drafts, if they are worth enough: lengths that swing are worth no more than even ones."""
    before = [min(o.last, len(o.gains)) if n and o.last else n for o, n in zip(offers, best, strict=True)]
    if before == best:
        return best
    total = _Total([replace(o, least=n) for o, n in zip(offers, before, strict=True)], costs)
    return before if total.value > enough else best


def promise(offer: Offer, costs: Costs) -> float:
    """The most expected tokens per cost of a draft or its first nodes, if all sequences draft alike; 0 of none."""
    tokens, most = 1.0, 0.0
    for nodes, gain in enumerate(offer.gains, start=1):
        tokens += gain
        if not offer.whole or nodes == len(offer.gains):
            most = max(most, tokens / costs.round(nodes, offer.depth * nodes / len(offer.gains)))
    return most


def repays(offer: Offer, costs: Costs, arrears: int) -> bool:
    """Whether drafts promise to repay what is to be taken in before the first one."""
    return arrears == 0 or promise(offer, costs) > GAIN + costs.taking_in(arrears) / HORIZON


def due(idle: Ordered[float], waits: Ordered[float]) -> list[bool]:
    """Who is to be tried: as a forward has room for many, those who waited half as long as they should join others.

    Args:
        idle: rounds that each waited.
        waits: rounds after which each is to be tried.
    """
    if not any(i >= wait for i, wait in zip(idle, waits, strict=True)):
        return [False] * len(waits)
    return [i >= wait / 2 for i, wait in zip(idle, waits, strict=True)]


def _items(offers: Ordered[Offer]) -> Iterator[tuple[float, int, int]]:
    """What may be added: tokens per node, whose draft, and nodes."""
    for number, offer in enumerate(offers):
        rest = offer.gains[offer.least :]
        if offer.whole and rest:
            yield sum(rest) / len(rest), number, len(rest)
        elif not offer.whole:
            yield from ((gain, number, 1) for gain in rest)


def companies(sequences: Ordered[Sequence], size: int | None = None) -> list[list[int]]:
    """Places of the sequences whose drafts are decided together.

    How much is drafted decides which coins are thrown for what, so where a seed is to give one text at a temperature
    above 0, nothing may depend on what else is decoded: there the sequence counts as alone.

    Args:
        sequences: of a step.
        size: as if in batches of so many, whose last is filled up with members of it; None for all together.
    """
    alone = [i for i, s in enumerate(sequences) if s.seeded and s.sampling.temperature > 0]
    others = [i for i in range(len(sequences)) if i not in alone]
    step = size or max(len(others), 1)
    parts = [others[start : start + step] for start in range(0, len(others), step)]
    filled = [[part[i % len(part)] for i in range(size or len(part))] for part in parts]
    return [*([i] for i in alone), *filled]
