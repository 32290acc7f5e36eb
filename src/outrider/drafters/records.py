"""What a drafter's guesses have been worth on one sequence, and so what the next one promises. It knows no drafts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

DECAY = 0.85
"""Weight of all earlier rounds when a round tells something new."""

FADE = 0.97
"""Weight of what is known when a round tells nothing: old news turns slowly into the prior."""

NUM_CLASSES = 6
"""Classes of depth: 0 not known beforehand, then 1, 2 to 3, 4 to 7, 8 to 15, and 16 or more tokens."""


@dataclass
class Chance:
    """A probability, as seen lately; the prior weighs as much as one try.

    News of the n-th round in a row that all went one way lets what speaks for the other way fade by DECAY to the n:
    a source that begins to fit, or ceases to, is seen after a few rounds, and a steady mixture is hardly distorted.
    """

    hits: float = 0.0
    misses: float = 0.0
    run: int = 0  # rounds in a row that hit, or minus those that missed

    def learn(self, hits: int, tries: int) -> None:
        """Take in a round: so many tries, and how many of them hit; 0 tries tell nothing."""
        if tries == 0:
            self.hits, self.misses = FADE * self.hits, FADE * self.misses
        if hits > 0:
            self.run = max(self.run, 0) + 1
            self.hits, self.misses = DECAY * self.hits + hits, DECAY**self.run * self.misses
        if hits < tries:
            self.run = min(self.run, 0) - 1
            self.hits, self.misses = DECAY**-self.run * self.hits, DECAY * self.misses + tries - hits

    def estimate(self, prior: float) -> float:
        """The probability, in (0, 1)."""
        return (prior + self.hits) / (1 + self.hits + self.misses)


@dataclass
class Habit:
    """How often the first token of a draft fits, and how often each one after a fitting one."""

    first: Chance = field(default_factory=Chance)
    further: Chance = field(default_factory=Chance)

    def learn(self, matched: int, tried: int) -> None:
        """`matched` of the `tried` tokens that could be judged fitted, from the first on."""
        self.first.learn(min(matched, 1), min(tried, 1))
        self.further.learn(max(matched - 1, 0), max(min(matched + 1, tried) - 1, 0))

    def estimate(self, prior: tuple[float, float]) -> tuple[float, float]:
        """Of the first token, and of each one after a fitting one."""
        return self.first.estimate(prior[0]), self.further.estimate(prior[1])


@dataclass
class Outcome:
    """What a round told of a source; by default nothing."""

    depth_class: int = 0
    matched: int = 0
    tried: int = 0


class Record:
    """What one source was worth for one sequence, given its chances beforehand."""

    def __init__(self, prior: tuple[float, float]) -> None:
        self.uses = self.rounds_idle = 0
        self.nodes_per_depth = 1.0  # of its last draft; more in a tree
        self._prior = prior
        self._overall = Habit()
        self._by_class = [Habit() for _ in range(NUM_CLASSES)]

    def learn(self, outcome: Outcome) -> None:
        """Take in a round."""
        self._overall.learn(outcome.matched, outcome.tried)
        for depth_class, habit in enumerate(self._by_class):
            tells = depth_class == outcome.depth_class
            habit.learn(outcome.matched if tells else 0, outcome.tried if tells else 0)

    @property
    def misses_in_a_row(self) -> int:
        """Rounds since the first token of a draft last fitted."""
        return -self._overall.first.run

    def best(self, sizes: Iterable[tuple[int, float]], cost: float, depth_class: int = 0) -> tuple[float, int]:
        """The most expected tokens per cost among drafts of these sizes, and its nodes; (0, 0) if there is none.

        Args:
            sizes: nodes and depth.
            cost: per node.
            depth_class: of the whole draft, if known.
        """
        first, further = self._by_class[depth_class].estimate(self._overall.estimate(self._prior))
        best = 0.0, 0
        for nodes, depth in sizes:
            value = (1 + first * (1 - further**depth) / (1 - further)) / (1 + cost * nodes)
            if value > best[0]:
                best = value, nodes
        return best

    def sizes(self, budget: int) -> Iterable[tuple[int, float]]:
        """Nodes and likely depth of all that may be asked for, shaped like its last draft."""
        return ((nodes, nodes / self.nodes_per_depth) for nodes in range(1, budget + 1))

    def perfect(self, budget: int, cost: float) -> float:
        """Most tokens per cost if all it drafts were right."""
        return max((1 + depth) / (1 + cost * nodes) for nodes, depth in self.sizes(budget))
