"""Rounds that are walked to see what drafts are worth: decoded side by side, or replayed on texts of the target.

Never is a draft judged at every place of a text: rounds begin right behind a rejection more often than elsewhere, where
drafts fare worse (docs/method.md, section 10). What is accepted does not depend on the batch, so many prompts are
decoded together, and how much a drafter asks for in a batch of another size is asked as if the batch had that size.

A draft of chosen tokens is kept as far as the target's own text agrees with it: by the point-mass rule the text is the
same as without drafts, in law. So look-ups are replayed, at any length, on texts that the target wrote plainly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field
from itertools import count
from time import perf_counter
from typing import NamedTuple

from outrider import tree
from outrider.core import Draft, Drafter, Sequence
from outrider.drafters.combined import CombinedDrafter
from outrider.drafters.sharing import companies
from outrider.engine import Engine
from outrider.options import Sampling
from outrider.planning.plan import Acceptance, K
from outrider.rounds import Pace, Round
from outrider.rules import streams

FREE = ""
"""Source of drafts that cost nothing by their length."""


class Guess(NamedTuple):
    """One round: how large its draft was, how much of it was kept, and which part of a combination drafted it."""

    nodes: int
    depth: int
    accepted: int
    source: str = FREE


Trace = list[Guess]
"""The rounds of one text, in order."""


@dataclass(frozen=True)
class Text:
    """What is decoded.

    Args:
        kind: texts of one kind are alike, and are decoded together.
        prompt: token ids.
    """

    kind: str
    prompt: tuple[int, ...]


@dataclass(frozen=True)
class Wish:
    """How much is decoded.

    Args:
        texts: at least one.
        temperatures: each text is decoded at each.
        max_new_tokens: of each.
        stop_ids: tokens that end a text.
    """

    texts: tuple[Text, ...]
    temperatures: tuple[float, ...]
    max_new_tokens: int
    stop_ids: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Step:
    """One step of a walk: the rounds of its sequences, and its seconds of drafting and of the target's forward."""

    guesses: tuple[Guess, ...]
    draft: float
    target: float


@dataclass
class Walk:
    """What was walked.

    Args:
        traces: by temperature, in the order of the texts.
        written: by temperature, the tokens that each text became, prompt and all.
        steps: of all of it.
    """

    traces: dict[float, list[Trace]] = field(default_factory=dict)
    written: dict[float, list[list[int]]] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)


class InCrowd:
    """A pace as if so many sequences were decoded together, however many are.

    Args:
        pace: is asked for so many at a time; what it learns is each sequence's own.
        batch: at least 1.
    """

    def __init__(self, pace: Pace, batch: int) -> None:
        self.pace, self.batch = pace, batch

    def budgets(self, sequences: list[Sequence]) -> list[int]:
        """See `rounds.Pace`."""
        found = [0] * len(sequences)
        for places in companies(sequences, self.batch):
            for place, budget in zip(places, self.pace.budgets([sequences[i] for i in places]), strict=True):
                found[place] = budget
        return found

    def observe(self, rounds: list[Round]) -> None:
        """See `rounds.Pace`."""
        self.pace.observe(rounds)


# ---------------------------------------------------------------- decoded


def walk(engine: Engine, wish: Wish, told: Callable[[int, int], None] = lambda done, total: None) -> Walk:
    """Decode all texts at all temperatures side by side, each with its number as its seed.

    Args:
        engine: with nothing else in it; its drafter and its pace are walked.
        wish: what to decode.
        told: called after every step with (tokens made, most tokens).
    """
    owner: dict[int, tuple[float, int]] = {}
    found = Walk({t: [[] for _ in wish.texts] for t in wish.temperatures})
    running = [_added(engine, wish, *place, owner) for place in _places(wish)]
    used, done = dict[int, dict[str, int]](), 0
    try:
        while engine.num_unfinished:
            rounds = engine.step()
            guesses = [_guess(r, engine.drafter, used) for r in rounds]
            for r, guess in zip(rounds, guesses, strict=True):
                temperature, number = owner[r.sequence.id]
                if r.finish_reason is None:  # one that a stop or a limit cut short says nothing of what was guessed
                    found.traces[temperature][number].append(guess)
            if rounds:
                found.steps.append(Step(tuple(guesses), rounds[0].seconds.draft, rounds[0].seconds.target))
            done += sum(len(r.token_ids) for r in rounds)
            told(done, len(running) * wish.max_new_tokens)
    finally:
        for sequence in running:  # after Ctrl-C
            engine.cancel(sequence)
    by_place = {owner[s.id]: s.tokens for s in running}
    found.written = {t: [by_place[t, number] for number in range(len(wish.texts))] for t in wish.temperatures}
    return found


def _places(wish: Wish) -> Iterator[tuple[float, int]]:
    """The same prompt at all temperatures in a row: it is processed once."""
    return ((temperature, number) for number in range(len(wish.texts)) for temperature in wish.temperatures)


def _added(
    engine: Engine, wish: Wish, temperature: float, number: int, owner: dict[int, tuple[float, int]]
) -> Sequence:
    sequence = engine.add(
        wish.texts[number].prompt,
        sampling=Sampling(temperature=temperature),
        seed=number,
        stop_ids=wish.stop_ids,
        max_new_tokens=wish.max_new_tokens,
    )
    sequence.seeded = False  # so that how much is drafted follows the batch, as it does where no seed is given
    owner[sequence.id] = temperature, number
    return sequence


def _source(drafter: Drafter, r: Round, used: dict[int, dict[str, int]]) -> str:
    """Whose draft it was: of a combination the part that was used once more, else the drafter itself."""
    if r.num_drafted == 0:
        return FREE
    if not isinstance(drafter, CombinedDrafter):
        return drafter.name
    before, now = used.get(r.sequence.id, {}), drafter.uses(r.sequence)
    used[r.sequence.id] = now
    return next((name for name in now if now[name] > before.get(name, 0)), FREE)


def _guess(r: Round, drafter: Drafter, used: dict[int, dict[str, int]]) -> Guess:
    return Guess(r.num_drafted, r.depth, r.num_accepted, _source(drafter, r, used))


# ---------------------------------------------------------------- replayed


@dataclass(frozen=True)
class Replayed:
    """A look-up on texts that are there.

    Args:
        traces: in the order of the texts.
        seconds: of drafting and of saying how much, for each sequence and round, the mean.
    """

    traces: list[Trace]
    seconds: float


def replay(drafter: Drafter, pace: InCrowd, written: Ordered[Ordered[int]], wish: Wish, temperature: float) -> Replayed:
    """Walk rounds of a drafter of point masses on texts of the target, side by side and without the target.

    Args:
        drafter: whose drafts follow from the text alone.
        pace: how much it is asked for.
        written: the texts, prompts and all, as the target wrote them at this temperature.
        wish: by which they were written.
        temperature: one of the wish's.
    """
    sequences = [_sequence(n, text, temperature, wish.stop_ids) for n, text in enumerate(wish.texts)]
    traces, seconds, rounds = [Trace() for _ in sequences], 0.0, 0
    while live := [s for s in sequences if len(s.tokens) < len(written[s.slot])]:
        start = perf_counter()
        budgets = pace.budgets(live)
        room = [len(written[s.slot]) - len(s.tokens) - 1 for s in live]
        drafts = drafter.propose(live, [min(both) for both in zip(budgets, room, strict=True)])
        seconds += perf_counter() - start
        rounds += len(live)
        guesses = [_judged(draft, written[s.slot][len(s.tokens) :]) for s, draft in zip(live, drafts, strict=True)]
        for sequence, guess in zip(live, guesses, strict=True):
            tokens = written[sequence.slot]
            sequence.tokens += tokens[len(sequence.tokens) :][: guess.accepted + 1]
            if len(sequence.tokens) < len(tokens):
                traces[sequence.slot].append(guess)
                pace.observe([_round(sequence, guess)])
    return Replayed(traces, seconds / max(rounds, 1))


def _judged(draft: Draft, rest: Ordered[int]) -> Guess:
    """How far the target's text agrees with a draft."""
    paths = tree.paths(draft.tokens, draft.parents)
    matched = max(len(path) for path in paths if tuple(rest[: len(path)]) == path)
    return Guess(len(draft), max(map(len, paths)), matched)


def paced(traces: Ordered[Trace], pace: InCrowd, wish: Wish, temperature: float) -> list[Trace]:
    """Rounds that were walked with long chains, as they are if a pace asks for less; at most what was drafted.

    Args:
        traces: in the order of the texts.
        pace: how much is asked for.
        wish: by which they were walked.
        temperature: one of the wish's.
    """
    sequences = [_sequence(n, text, temperature, wish.stop_ids) for n, text in enumerate(wish.texts[: len(traces)])]
    found = [Trace() for _ in traces]
    for place in range(max(map(len, traces), default=0)):
        live = [sequence for sequence in sequences if place < len(traces[sequence.slot])]
        for sequence, budget in zip(live, pace.budgets(live), strict=True):
            less = shortened(traces[sequence.slot][place], budget)
            found[sequence.slot].append(less)
            pace.observe([_round(sequence, less)])
    return found


def cut(traces: Iterable[Trace], k: int) -> list[Trace]:
    """Rounds that were walked with longer chains, had at most k tokens been drafted."""
    return [[shortened(guess, k) for guess in trace] for trace in traces]


def shortened(guess: Guess, k: int) -> Guess:
    """The round of a chain, had at most k tokens been drafted.

    Rounds of shorter chains begin at other places, which makes little difference where drafts come from a model: of the
    embedded model's head, tokens per round of chains of 1 to 4 tokens were off by 1 % at most when cut from chains of 6
    (12 prompts, 48 tokens each, temperature 0).
    """
    return guess._replace(nodes=min(guess.nodes, k), depth=min(guess.depth, k), accepted=min(guess.accepted, k))


def _sequence(number: int, text: Text, temperature: float, stop_ids: frozenset[int]) -> Sequence:
    draft_coins, verify_coins = streams(number, coupled=False)
    return Sequence(
        number,
        list(text.prompt),
        len(text.prompt),
        Sampling(temperature=temperature),
        draft_coins,
        verify_coins,
        stop_ids,
        slot=number,
    )


def _round(sequence: Sequence, guess: Guess) -> Round:
    emitted = (0,) * (guess.accepted + 1)
    return Round(sequence, emitted, guess.nodes, guess.accepted, depth=guess.depth)


# ---------------------------------------------------------------- counted


def acceptance(traces: Iterable[Trace], drafter: str, k: K, temperature: float, batch: int | None) -> Acceptance:
    """By place, how often a token was tried and how often it was kept."""
    guesses = [guess for trace in traces for guess in trace]
    tried, kept = list[int](), list[int]()
    for place in count(1):
        reached = [g for g in guesses if g.depth >= place and g.accepted >= place - 1]
        if not reached:
            break
        tried.append(len(reached))
        kept.append(sum(g.accepted >= place for g in reached))
    return Acceptance(drafter, k, temperature, batch, len(guesses), tuple(tried), tuple(kept))
