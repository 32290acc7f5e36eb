"""What a drafter's guesses have been worth on one sequence, and so what the next one promises. It knows no drafts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from operator import mul

from outrider.drafters.sharing import Costs, Offer

LEVELS = (0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97)
"""What a chance can be."""

SWITCH = 1 / 32
"""How likely it is, after a round that told something, that the text has changed and the chance is another one."""

FADE = 1 / 256
"""The same after a round that told nothing."""

KNOWN, CHANGED = 4.0, 1.0
"""Tries that a prior weighs as much as: of a new text, of which drafters of its kind tell; and of a changed one."""

PROBE_EVERY = 16
"""Rounds after which a drafter that is not used is tried again, at the soonest."""

PROBE_SHARE = 0.02
"""Of the time without drafts, what may be spent on such tries: where they are dear, they are rare."""

RECENT = 0.1
"""Weight of the last draft in the mean size of drafts."""

LEAST_GAIN = 5e-4
"""Expected tokens of a node that is worth looking at."""

NUM_CLASSES = 6
"""Classes of depth: 0 not known beforehand, then 1, 2 to 3, 4 to 7, 8 to 15, and 16 or more tokens."""

LOOK_UP = (0.35, 0.85)
"""Chances of a look-up's first token, and of each one after a fitting one (public profiles of n-gram drafts)."""

MODEL = (0.5,)
"""The same of a model or a head, whose places are alike (public profiles of EAGLE drafts)."""

COPY = (0.9,)
"""The same of the target itself, rounded."""

Weights = tuple[float, ...]
"""[len(LEVELS)] probabilities of the levels."""


@cache
def beta(mean: float, tries: float) -> Weights:
    """Weights of a Beta law with this mean that is worth so many tries."""
    a, b = tries * mean, tries * (1 - mean)
    return _normal([level ** (a - 1) * (1 - level) ** (b - 1) for level in LEVELS])


@dataclass
class Chance:
    """A probability that stays what it is for some rounds and then is another one, seen through hits and misses.

    Bayes' rule over `LEVELS` (a hidden Markov model whose state is drawn anew with probability `SWITCH` per round): a
    steady mixture is estimated as its mean, and a change is seen after a few rounds.

    Args:
        weights: what is known.
        changed: the law of a new state.
    """

    weights: Weights
    changed: Weights

    @staticmethod
    def of(mean: float) -> Chance:
        """Before anything is known but what such chances are on average."""
        return Chance(beta(mean, KNOWN), beta(mean, CHANGED))

    def learn(self, hits: int, tries: int) -> None:
        """Take in a round: so many tries, and how many of them hit; 0 tries tell nothing."""
        if tries > 0:
            misses = tries - hits
            likelihoods = (level**hits * (1 - level) ** misses for level in LEVELS)
            self.weights = _normal(list(map(mul, self.weights, likelihoods)))
        self.doubt(SWITCH if tries > 0 else FADE)

    def doubt(self, share: float) -> None:
        """Hold it for so likely that the chance is another one now."""
        self.weights = tuple((1 - share) * w + share * c for w, c in zip(self.weights, self.changed, strict=True))

    @property
    def mean(self) -> float:
        """The probability of a hit, in (0, 1)."""
        return float(sum(map(mul, self.weights, LEVELS)))


@dataclass
class Habit:
    """How often the tokens of a draft fit.

    Args:
        chances: one, of any token given those before it; or two, which differ in look-ups: of the first token, and of
            each one after a fitting one.
    """

    chances: tuple[Chance, ...]

    def learn(self, matched: int, tried: int) -> None:
        """`matched` of the `tried` tokens that could be judged fitted, from the first on."""
        first, *further = self.chances
        tries = min(matched + 1, tried)
        cut = 1 if further else tries
        first.learn(min(matched, cut), min(tries, cut))
        for chance in further:
            chance.learn(max(matched - 1, 0), max(tries - 1, 0))

    @property
    def means(self) -> tuple[float, float]:
        """The chance of the first token, and of each one after a fitting one."""
        return self.chances[0].mean, self.chances[-1].mean


@dataclass(frozen=True)
class Outcome:
    """What a round told of a source; by default nothing."""

    depth_class: int = 0
    matched: int = 0
    tried: int = 0


class Record:
    """What one source was worth for one sequence.

    Args:
        prior: means of the chances of its `Habit`, before anything is known.
    """

    def __init__(self, prior: tuple[float, ...]) -> None:
        self.uses = self.misses_in_a_row = 0
        self.rounds_idle = PROBE_EVERY
        self.nodes, self.nodes_per_depth = 0, 1.0  # of its last draft; more than 1 in a tree
        self.mean_nodes, self.mean_depth = 3.0, 2.0  # of its drafts lately
        self.overall, self.by_class = Habit(tuple(map(Chance.of, prior))), dict[int, Habit]()

    def learn(self, outcome: Outcome) -> None:
        """Take in a round."""
        if outcome.tried > 0:
            self.misses_in_a_row = 0 if outcome.matched > 0 else self.misses_in_a_row + 1
        self.overall.learn(outcome.matched, outcome.tried)
        if outcome.depth_class > 0:
            habit = self._habit(outcome.depth_class)
            for chance, overall in zip(habit.chances, self.overall.chances, strict=True):
                chance.changed = overall.weights
            habit.learn(outcome.matched, outcome.tried)

    def doubt(self) -> None:
        """Hold it for as likely as not that the text has changed."""
        for chance in self.overall.chances:
            chance.doubt(0.5)

    def gains(self, nodes: int, depth: float, depth_class: int = 0) -> tuple[float, ...]:
        """Expected tokens that each further node of a draft adds, up to the first that adds next to nothing.

        Args:
            nodes: of all of it.
            depth: likewise.
            depth_class: likewise, if known.
        """
        first, further = (self._habit(depth_class) if depth_class > 0 else self.overall).means
        shrinks, gains = further ** (depth / nodes), list[float]()
        gain = first * (1 - shrinks) / (1 - further)
        while len(gains) < nodes and gain > LEAST_GAIN:
            gains.append(gain)
            gain *= shrinks
        return tuple(gains)

    def whole(self, nodes: int, depth: float, depth_class: int = 0) -> tuple[float, ...]:
        """The same of a draft that is taken or left, the average for each node."""
        first, further = (self._habit(depth_class) if depth_class > 0 else self.overall).means
        return (first * (1 - further ** max(depth, 1.0)) / (1 - further) / nodes,) * nodes

    def offer(self, budget: int, *, source: int = 0, whole: bool = False, tried: bool = False) -> Offer:
        """What its drafter is likely to have, whose drafts are not known beforehand.

        Args:
            budget: most nodes.
            source: see `sharing.Offer`.
            whole: whether the drafter ends its drafts itself, so that one as large as those lately is to be expected.
            tried: whether it is to draft in any case, to be learned from.
        """
        if whole:
            nodes, depth = self.usual(budget)
            return Offer(self.whole(nodes, depth), depth, source, True, nodes if tried else 0)
        depth = budget / self.nodes_per_depth
        gains = self.gains(budget, depth)
        return Offer(gains, depth * len(gains) / budget, source, least=int(tried), last=self.nodes)

    def saw(self, nodes: int, depth: int) -> None:
        """Take in the size of its last draft."""
        self.nodes_per_depth = nodes / depth
        self.mean_nodes += RECENT * (nodes - self.mean_nodes)
        self.mean_depth += RECENT * (depth - self.mean_depth)

    def usual(self, budget: int) -> tuple[int, float]:
        """Nodes and depth of a draft as large as those lately."""
        return max(1, round(min(self.mean_nodes, budget))), self.mean_depth

    def wait(self, budget: int, costs: Costs, whole: bool, arrears: int = 0, most: float = 1.0) -> float:
        """Rounds after which it is to be tried again if it is idle; infinitely many if no draft could be worth it.

        Args:
            budget: most nodes of a draft.
            costs: of its drafts.
            whole: whether a try is a draft as large as those lately, and not of one node.
            arrears: tokens that are to be taken in before.
            most: tokens per cost that are to be had without it.
        """
        if costs.perfect(budget, self.nodes_per_depth) <= most:
            return math.inf
        nodes, depth = self.usual(budget) if whole else (1, 1.0)
        return max(PROBE_EVERY - 1, (costs.round(nodes, depth) - 1 + costs.taking_in(arrears)) / PROBE_SHARE)

    def _habit(self, depth_class: int) -> Habit:
        """Of drafts of this depth; what holds for all, until one was judged and where the text has changed."""
        if depth_class not in self.by_class:
            self.by_class[depth_class] = Habit(tuple(map(replace, self.overall.chances)))
        return self.by_class[depth_class]


def _normal(weights: list[float]) -> Weights:
    total = sum(weights)
    return tuple(weight / total for weight in weights)
