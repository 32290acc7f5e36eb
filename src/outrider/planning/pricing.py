"""From rounds that were walked and what steps take to speed-ups with intervals. It knows no model and no clock.

A batch is begun at once, with prompts of one kind drawn with replacement, and each sequence makes as many tokens as it
was asked for; where one is done, the others go on. So does `outrider bench`. A step takes
    T_draft(longest draft) + T_target(rows of all sequences) + T_other(rows),
and plain decoding takes steps with a row for each sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from math import exp
from statistics import NormalDist

import numpy as np

from outrider.planning.plan import CONFIDENCE, Cell, DraftCost, Interval, K, OtherCost, TargetCost
from outrider.planning.timing import lines
from outrider.planning.walked import Guess, Trace

DRIFT = 0.04
"""Relative standard deviation of a quotient of costs between one time and another on a machine with other work."""

DRAWS = 48
"""Samples of prompts that are drawn for an interval."""

FEWEST_BATCHES = 3
"""Batches of each sample, at least; all prompts are decoded about once."""

Array = np.ndarray

LEAST = 1e-6
"""Seconds of any step: errors of timing, where a step takes hardly longer than they, must not make it take none."""


@dataclass(frozen=True)
class Prices:
    """What steps take at one temperature.

    Args:
        targets: by batch size, ascending.
        others: of the same sizes.
        drafts: by source, of the same sizes.
        look_up: seconds of drafting for each sequence and round.
    """

    targets: tuple[TargetCost, ...]
    others: tuple[OtherCost, ...]
    drafts: Mapping[str, tuple[DraftCost, ...]]
    look_up: float = 0.0

    def plain(self, batch: int) -> float:
        """Seconds of a step without drafts."""
        nothing = Prices(self.targets, self.others, {})
        return float(nothing.seconds(Steps(np.array(batch), np.array(batch), np.array(0), {})))

    def seconds(self, steps: Steps) -> Array:
        """Of each of the steps."""
        total, near = self.drafting(steps) + self.forwards(steps), _shares(self.sizes, steps.alive)
        for share, other in zip(near, self.others, strict=True):
            total = total + share * lines(other.rows, other.seconds, steps.rows)
        for source, costs in self.drafts.items():
            total = total + _extra(costs, steps.sources.get(source))
        return np.where(steps.alive > 0, np.maximum(total, LEAST), 0.0)

    @property
    def sizes(self) -> list[int]:
        """Batch sizes that were timed."""
        return [target.batch for target in self.targets]

    def forwards(self, steps: Steps) -> Array:
        """Seconds of the target alone."""
        total = np.zeros(())
        single = 1 - steps.drafting / np.maximum(steps.alive, 1)  # the share of sequences with one row
        for share, target in zip(_shares(self.sizes, steps.alive), self.targets, strict=True):
            forward = lines(target.rows, target.seconds, steps.rows) - target.spared * target.batch * single
            total = total + share * forward
        return total

    def drafting(self, steps: Steps) -> Array:
        """Seconds of drafting alone."""
        total = self.look_up * steps.alive
        for source, costs in self.drafts.items():
            total = total + _drafting(costs, steps.alive, steps.sources.get(source))
        return np.asarray(total)


@dataclass(frozen=True)
class Drafted:
    """What one source drafted in each step: for how many sequences, how deep at most, and how many nodes for all."""

    sequences: Array
    depth: Array
    nodes: Array


@dataclass(frozen=True)
class Steps:
    """Any number of steps, as arrays of one shape.

    Args:
        alive: sequences that are not done.
        rows: of the target's forward, all sequences together.
        drafting: sequences that have a draft.
        sources: by name, for those whose drafts cost by their length.
    """

    alive: Array
    rows: Array
    drafting: Array
    sources: Mapping[str, Drafted]


def _drafting(costs: Ordered[DraftCost], alive: Array, drafted: Drafted | None) -> Array:
    """Seconds of a source: idle for all sequences, and at work for those that it drafts for."""
    sizes = [cost.batch for cost in costs]
    total = sum(share * cost.seconds[0] for share, cost in zip(_shares(sizes, alive), costs, strict=True))
    if drafted is not None:
        for share, cost in zip(_shares(sizes, drafted.sequences), costs, strict=True):
            gained = lines(cost.depths, cost.seconds, drafted.depth) - cost.seconds[0]
            total = total + share * np.where(drafted.sequences > 0, gained, 0.0)
    return np.asarray(total)


def _extra(costs: Ordered[DraftCost], drafted: Drafted | None) -> Array:
    """What a source's drafts add to the rest of a step."""
    total = np.zeros(())
    if drafted is not None:
        for share, cost in zip(_shares([cost.batch for cost in costs], drafted.sequences), costs, strict=True):
            more = lines(cost.rows, cost.extra, drafted.sequences + drafted.nodes)
            total = total + share * np.where(drafted.sequences > 0, more, 0.0)
    return total


def _shares(sizes: Ordered[int], wanted: Array) -> list[Array]:
    """How much each measured size says of the wanted ones: the two neighbours on a straight line, else the nearest."""
    places = np.asarray(sizes, dtype=float)
    return [np.interp(wanted, places, np.eye(len(places))[place]) for place in range(len(places))]


# ---------------------------------------------------------------- texts that are decoded together


@dataclass(frozen=True)
class Played:
    """The rounds of some texts until each has as many tokens as it was asked for, [texts, most rounds] each.

    Args:
        alive: whether there is such a round.
        nodes: drafted.
        depth: of the draft.
        source: index into `sources`, -1 for drafts that cost nothing by their length.
        sources: names.
    """

    alive: Array
    nodes: Array
    depth: Array
    source: Array
    sources: tuple[str, ...]

    def together(self, batches: Array) -> Steps:
        """The steps of batches [..., sequences] of texts, by number: [..., most rounds]."""
        alive, nodes, depth, source = (part[batches] for part in (self.alive, self.nodes, self.depth, self.source))
        sources = {}
        for index, name in enumerate(self.sources):
            own = (source == index) & (nodes > 0)
            sources[name] = Drafted(own.sum(-2), np.where(own, depth, 0).max(-2), np.where(own, nodes, 0).sum(-2))
        return Steps(alive.sum(-2), alive.sum(-2) + nodes.sum(-2), (nodes > 0).sum(-2), sources)


def played(traces: Ordered[Trace], num_tokens: int, sources: Iterable[str]) -> Played:
    """The rounds of texts that go on until they have so many tokens; a trace that is too short begins again.

    Args:
        traces: one per text; an empty one is a text without drafts.
        num_tokens: at least 1.
        sources: whose drafts cost by their length.
    """
    return _played([list(_until(trace, num_tokens)) for trace in traces], tuple(sources))


def step_of(guesses: Ordered[Guess], sources: Iterable[str]) -> Steps:
    """[1] the step in which these rounds were made together.

    Args:
        guesses: of its sequences.
        sources: see `played`.
    """
    return _played([[guess] for guess in guesses], tuple(sources)).together(np.arange(len(guesses)))


def _played(rounds: list[list[Guess]], names: tuple[str, ...]) -> Played:
    shape = len(rounds), max(map(len, rounds))
    alive, nodes, depth, source = (np.full(shape, value, dtype=np.int64) for value in (0, 0, 0, -1))
    for text, own in enumerate(rounds):
        alive[text, : len(own)] = 1
        nodes[text, : len(own)] = [guess.nodes for guess in own]
        depth[text, : len(own)] = [guess.depth for guess in own]
        source[text, : len(own)] = [names.index(guess.source) if guess.source in names else -1 for guess in own]
    return Played(alive, nodes, depth, source, names)


def _until(trace: Trace, num_tokens: int) -> Iterator[Guess]:
    made, place = 0, 0
    while made < num_tokens:
        guess = trace[place % len(trace)] if trace else Guess(0, 0, 0)
        yield guess
        made, place = made + guess.accepted + 1, place + 1


# ---------------------------------------------------------------- cells


@dataclass(frozen=True)
class Place:
    """Of a cell: see `plan.Cell`."""

    drafter: str
    k: K
    temperature: float
    batch: int


@dataclass(frozen=True)
class Sample:
    """Texts and how they are decoded.

    Args:
        kinds: of each text; a batch has texts of one kind.
        num_tokens: that each makes.
        seed: of the draws.
    """

    kinds: tuple[str, ...]
    num_tokens: int
    seed: int = 0


def cell(place: Place, traces: Ordered[Trace], prices: Prices, sample: Sample) -> Cell:
    """The prediction of one cell.

    An interval spans the logarithms' normal law whose variance adds those of three independent things: the prompts, as
    the quotient varies between samples of them (the bootstrap, by kind, corrected for few prompts of a kind); the
    errors of the medians of what was timed, with drafts and without; and `DRIFT`.

    Args:
        place: which one.
        traces: one per text.
        prices: at its temperature.
        sample: the texts.
    """
    found = played(traces, sample.num_tokens, prices.drafts)
    batches = drawn(sample, place.batch)
    seconds = prices.seconds(found.together(batches)).sum(-1).sum(-1)  # [DRAWS]
    rounds = found.alive.sum(-1)[batches].sum(-1).sum(-1)
    made = batches.shape[1] * place.batch * sample.num_tokens
    plain = made / place.batch * prices.plain(place.batch)
    noise = next(target.noise for target in prices.targets if target.batch == place.batch)
    wide = _correction(sample.kinds)
    tokens = _interval(made * DRAWS / rounds.sum(), wide * float(np.log(rounds).std()))
    spread = (wide * np.log(seconds).std()) ** 2 + 2 * noise**2 + DRIFT**2
    speedup = _interval(plain * DRAWS / seconds.sum(), float(spread**0.5))
    return Cell(place.drafter, place.k, place.temperature, place.batch, tokens, speedup)


def drawn(sample: Sample, batch: int) -> Array:
    """[DRAWS, n, batch] numbers of texts: samples of n batches, each of one kind, all kinds in turn.

    A sample has as many texts of a kind as there are, drawn with replacement, and its batches have each of them equally
    often. With one text of each kind there is nothing to draw among, and all count as one kind.
    """
    kinds = sample.kinds if _few(sample.kinds) > 1 else ("",) * len(sample.kinds)
    names = list(dict.fromkeys(kinds))
    wanted = -(-max(FEWEST_BATCHES, -(-len(kinds) // batch)) // len(names))
    rng, found = np.random.default_rng(sample.seed), []
    for name in names:
        members = np.array([place for place, kind in enumerate(kinds) if kind == name])
        texts = members[rng.integers(len(members), size=(DRAWS, len(members)))]
        repeated = np.tile(texts, -(-wanted * batch // len(members)))[:, : wanted * batch]
        found.append(rng.permuted(repeated, axis=1).reshape(DRAWS, wanted, batch))
    return np.concatenate(found, axis=1)


def _few(kinds: Ordered[str]) -> int:
    """Texts of the kind that has fewest."""
    return min(kinds.count(kind) for kind in kinds)


def _correction(kinds: Ordered[str]) -> float:
    """Deviations between samples are too small by this factor where few are drawn among."""
    few = _few(kinds)
    few = few if few > 1 else len(kinds)
    return float((few / (few - 1)) ** 0.5) if few > 1 else 1.0


def _interval(mid: float, deviation: float) -> Interval:
    reach = exp(NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * deviation)
    return Interval(float(mid / reach), float(mid), float(mid * reach))
