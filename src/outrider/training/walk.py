"""What a head is worth in decoding: rounds walked on held-out prompts, and the speed-up that follows from them."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from outrider.core import Drafter, Model
from outrider.engine import Engine
from outrider.options import Sampling
from outrider.planning.pace import FixedPace
from outrider.rounds import Round
from outrider.rules import choose_rule


@dataclass(frozen=True)
class Walk:
    """Held-out rounds with chains of a fixed length.

    Args:
        acceptance_length: emitted tokens per round, the next token included.
        conditional: by position, the share of drafted tokens that was kept where all before it were.
        draft_seconds: median per round of a sequence alone.
        target_seconds: the same, of the target's forward over the pending token and the draft.
        other_seconds: the same, of verification and the rest.
    """

    acceptance_length: float
    conditional: tuple[float, ...]
    draft_seconds: float
    target_seconds: float
    other_seconds: float


def walk(
    target: Model,
    drafter: Drafter,
    prompts: Ordered[list[int]],
    *,
    num_drafted: int,
    temperature: float,
    max_new_tokens: int,
    stop_ids: frozenset[int],
    context_length: int,
) -> Walk:
    """Decode the prompts one after the other, each with its number as its seed.

    Args:
        target: shows the states that the drafter reads.
        drafter: a head at work, made for one slot.
        prompts: token ids.
        num_drafted: tokens per draft.
        temperature: of all.
        max_new_tokens: per prompt.
        stop_ids: of the target.
        context_length: tokens per sequence.
    """
    rule = choose_rule("auto", drafter.proposal, allow_lossy=False)
    engine = Engine(target, drafter, rule, FixedPace(num_drafted), context_length=context_length)
    rounds = list[Round]()
    for seed, prompt in enumerate(prompts):
        engine.add(
            prompt,
            sampling=Sampling(temperature=temperature),
            seed=seed,
            stop_ids=stop_ids,
            max_new_tokens=max_new_tokens,
        )
        while engine.num_unfinished:
            rounds += engine.step()
    # A round that a stop or a limit cut short says nothing of what was guessed.
    whole = [r for r in rounds if r.num_drafted == num_drafted and r.finish_reason is None] or rounds
    reached = [sum(r.num_accepted >= i for r in whole) for i in range(num_drafted + 1)]
    return Walk(
        sum(len(r.token_ids) for r in whole) / len(whole),
        tuple(kept / tried if tried else 0.0 for tried, kept in pairwise(reached)),
        median(r.seconds.draft for r in whole),
        median(r.seconds.target for r in whole),
        median(r.seconds.verify + r.seconds.other for r in whole),
    )


@dataclass(frozen=True)
class Prediction:
    """The best chain, by a walk and the costs of this machine.

    Args:
        num_drafted: tokens per draft.
        acceptance_length: expected with it.
        speedup: expected tokens per second over those of plain decoding.
    """

    num_drafted: int
    acceptance_length: float
    speedup: float


def predict(walked: Walk, plain_seconds: float) -> Prediction:
    """The chain length that promises most.

    Chances by position are the walk's; drafting costs grow with the length, and the target's forward grows from a row's
    to that of the walk's blocks in a line.

    Args:
        walked: of chains longer than the best.
        plain_seconds: of a round of plain decoding.
    """
    longest, best = len(walked.conditional), Prediction(0, 1.0, 1.0)
    expected, reach = 1.0, 1.0
    for n, chance in enumerate(walked.conditional, start=1):
        reach *= chance
        expected += reach
        target = plain_seconds + (walked.target_seconds - plain_seconds) * n / longest
        seconds = target + walked.draft_seconds * n / longest + walked.other_seconds
        speedup = expected * plain_seconds / seconds
        if speedup > best.speedup:
            best = Prediction(n, expected, speedup)
    return best


def plain_seconds(walked: Walk) -> float:
    """Of a round of plain decoding, from a walk without drafts."""
    return walked.draft_seconds + walked.target_seconds + walked.other_seconds
