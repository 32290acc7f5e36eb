"""The run: every group of prompts by every way in turn, in an order that favours none.

One process and one target. A group of prompts is decoded by all ways before the next group, and who begins changes from
group to group, so that a machine that becomes slower or warmer does so for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from outrider.benching.asked import Prompts
from outrider.benching.ways import PLAIN, Asked, Measured, Way, WayFailed
from outrider.errors import InvalidOption

WARMING_UP = "warming up"
"""What is told of runs that are not measured."""

WARM_UP_TOKENS = 16
"""Made by every way for every batch and temperature before anything is measured."""

Told = Callable[[str, int, int], None]
"""Called with (what is being done, runs done, runs in all)."""


@dataclass(frozen=True)
class Grid:
    """What is measured of every way.

    Args:
        temperatures: each 0 or more.
        batches: prompts that are decoded together, each 1 or more.
        max_new_tokens: made of each prompt, in every run.
        repeats: of every group of prompts.
        seed: a prompt's own seed follows from it, its place and the repeat; all ways get the same.
    """

    temperatures: tuple[float, ...] = (0.0, 0.8)
    batches: tuple[int, ...] = (1,)
    max_new_tokens: int = 64
    repeats: int = 1
    seed: int = 0


@dataclass(frozen=True)
class Job:
    """A group of prompts that is decoded by every way.

    Args:
        kind: of the prompts.
        places: which of them, counted from 0.
        temperature: of all.
        repeat: counted from 0.
        turn: decides which way begins.
    """

    kind: str
    places: tuple[int, ...]
    temperature: float
    repeat: int
    turn: int

    @property
    def batch(self) -> int:
        """How many prompts are decoded together."""
        return len(self.places)


@dataclass(frozen=True)
class Run:
    """One job by one way.

    Args:
        way: its name.
        job: what was decoded.
        measured: what came of it.
        first_difference: at temperature 0, place of the first token, counted from 1, in which a text differs from plain
            decoding's; None if none does, or nothing was compared.
        compared: whether it was compared with plain decoding.
    """

    way: str
    job: Job
    measured: Measured
    first_difference: int | None = None
    compared: bool = False


@dataclass(frozen=True)
class Outcome:
    """What was measured.

    Args:
        runs: in the order in which they ran.
        partial: whether it was stopped before all was measured.
        failed: name of a way that failed -> why; what it had measured before is kept.
    """

    runs: tuple[Run, ...]
    partial: bool = False
    failed: dict[str, str] = field(default_factory=dict)


def groups(count: int, batch: int) -> list[tuple[int, ...]]:
    """Places of `count` prompts in groups of `batch`; the last is filled up with the first ones."""
    return [tuple((start + i) % count for i in range(batch)) for start in range(0, count, batch)]


def jobs(prompts: Prompts, grid: Grid) -> list[Job]:
    """All jobs, in the order in which they are done: what was measured when it is stopped is of all kinds.

    Raises:
        InvalidOption: a batch that is larger than the number of prompts of a kind.
    """
    found = []
    for number, (kind, own) in enumerate(prompts.items()):
        for batch in grid.batches:
            if batch > len(own):
                fix = "A prompt is never twice in a batch."
                raise InvalidOption("batch", batch, f"1 to {len(own)}, the number of prompts of kind {kind}", fix)
            turns = groups(len(own), batch)
            found += [
                Job(kind, places, temperature, repeat, turn=number + group + repeat * len(turns))
                for repeat in range(grid.repeats)
                for group, places in enumerate(turns)
                for temperature in grid.temperatures
            ]
    return sorted(found, key=lambda job: (job.repeat, job.places[0]))


def in_turn(ways: Ordered[Way], job: Job) -> list[Way]:
    """The ways that take this job, in the order in which they do."""
    able = [way for way in ways if job.batch <= way.most]
    first = job.turn % len(able)
    return [*able[first:], *able[:first]]


def asked_of(job: Job, prompts: Prompts, grid: Grid) -> Asked:
    """What a job asks of a way."""
    own = prompts[job.kind]
    seeds = tuple((grid.seed + 1000 * job.repeat + place) % 2**63 for place in job.places)
    return Asked(tuple(own[place].ids for place in job.places), seeds, job.temperature, grid.max_new_tokens)


def measure(ways: Ordered[Way], prompts: Prompts, grid: Grid, told: Told) -> Outcome:
    """Do all jobs by all ways, `PLAIN` among them, until the end or Ctrl-C.

    Args:
        ways: distinct names; one that raises `WayFailed` is left out from then on.
        prompts: at least one of each kind.
        grid: what is measured.
        told: called before every run.

    Raises:
        InvalidOption: see `jobs`.
    """
    work = jobs(prompts, grid)
    bench = _Bench(list(ways), prompts, grid, told)
    bench.in_all = sum(len(in_turn(ways, job)) for job in work)
    try:
        bench.warm_up(work)
        for job in work:
            bench.do(job)
    except KeyboardInterrupt:
        return Outcome(tuple(bench.runs), True, bench.failed)
    return Outcome(tuple(bench.runs), False, bench.failed)


@dataclass
class _Bench:
    """A run that is under way."""

    ways: list[Way]
    prompts: Prompts
    grid: Grid
    told: Told
    in_all: int = 0
    num_done: int = 0
    runs: list[Run] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def warm_up(self, work: list[Job]) -> None:
        """What is made on first use is made now."""
        firsts = {(job.batch, job.temperature): job for job in reversed(work)}
        for job in reversed(firsts.values()):
            asked = asked_of(job, self.prompts, self.grid)
            short = replace(asked, max_new_tokens=min(WARM_UP_TOKENS, asked.max_new_tokens))
            for way in in_turn(self.ways, job):
                self.told(WARMING_UP, 0, self.in_all)
                self._tried(way, short)

    def do(self, job: Job) -> None:
        """One job by all ways; what was done of it before Ctrl-C is kept."""
        asked, found = asked_of(job, self.prompts, self.grid), dict[str, Measured]()
        try:
            for way in in_turn(self.ways, job):
                self.told(f"measuring, {job.kind}: {way.name}", self.num_done, self.in_all)
                measured = self._tried(way, asked)
                self.num_done += 1
                if measured is not None:
                    found[way.name] = measured
        finally:
            self.runs += judged(job, found)

    def _tried(self, way: Way, asked: Asked) -> Measured | None:
        """None of a way that fails: it is left out from then on."""
        try:
            return way.run(asked)
        except WayFailed as failure:
            self.failed[way.name] = str(failure)
            self.ways = [each for each in self.ways if each is not way]
            return None


def judged(job: Job, found: dict[str, Measured]) -> Iterator[Run]:
    """The runs of a job; at temperature 0 each is compared with plain decoding, if that was done."""
    plain = found.get(PLAIN)
    for name, measured in found.items():
        if job.temperature > 0 or plain is None or name == PLAIN:
            yield Run(name, job, measured)
        else:
            places = [first_difference(*both) for both in zip(plain.token_ids, measured.token_ids, strict=True)]
            yield Run(name, job, measured, min((place for place in places if place), default=None), True)


def first_difference(plain: Ordered[int], tokens: Ordered[int]) -> int | None:
    """Place of the first token that differs or is missing, counted from 1; None if the texts are equal."""
    pairs = enumerate(zip_longest(plain, tokens), start=1)
    return next((place for place, (one, other) in pairs if one != other), None)
