"""What speculation did for one request, counted from its rounds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from outrider.rounds import Round, Seconds


@dataclass(frozen=True)
class PositionAcceptance:
    """How one place in the draft fared, counted from 1.

    Args:
        position: 1 is the token right after the pending one.
        cumulative: accepted here / rounds that drafted this far.
        conditional: accepted here / rounds that drafted this far and accepted everything before; None if never.
    """

    position: int
    cumulative: float
    conditional: float | None


@dataclass(frozen=True)
class Stats:
    """Counts and times of one request's decoding rounds; prefill is apart.

    Tokens that a stop or limit cut away are counted nowhere, drafted ones excepted.

    Args:
        drafter: name of the drafter.
        note: what the drafter says of itself, such as how it reads another vocabulary; mostly "".
        rule: name of the verification rule; of all that decided about a draft, if there were several.
        lossless: whether the rule keeps the target's law.
        precision: of the target.
        num_new_tokens: emitted tokens.
        num_rounds: target forwards of this request, prefill excluded.
        num_draft_tokens: drafted tokens that were verified.
        num_accepted_tokens: drafted tokens that were emitted.
        num_broken_drafts: proposals that were thrown away.
        broken_draft: why the first of them was, or None.
        acceptance: by position.
        distance: of the emitted tokens' laws from the target's, as the rule measured it: total variation in [0, 1] at
            each token, given those before it, on average per token. None if lossless. Times `num_new_tokens` it bounds,
            on average over texts, the total variation between the laws of whole texts: one token's law after another
            is put in the place of the target's, and none of these steps moves the text's law by more than its own.
        seconds: wall time of the rounds by part.
        prefill_seconds: wall time of the prompt.
    """

    drafter: str
    note: str
    rule: str
    lossless: bool
    precision: str
    num_new_tokens: int
    num_rounds: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_broken_drafts: int
    broken_draft: str | None
    acceptance: tuple[PositionAcceptance, ...]
    distance: float | None
    seconds: Seconds
    prefill_seconds: float

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted tokens, in [0, 1]; None if nothing was drafted."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """Emitted tokens per round, the next token included (tau); None without a round."""
        return self.num_new_tokens / self.num_rounds if self.num_rounds else None

    @property
    def tokens_per_second(self) -> float | None:
        """Emitted tokens per second of decoding, prefill excluded; None without a round."""
        return self.num_new_tokens / self.seconds.total if self.seconds.total > 0 else None


def collect(
    rounds: Iterable[Round],
    *,
    drafter: str,
    rule: str,
    lossless: bool,
    precision: str,
    prefill_seconds: float,
    note: str = "",
) -> Stats:
    """Count the rounds of one request.

    Args:
        rounds: all of them, in order.
        drafter: names and settings that `Stats` repeats.
        note: likewise.
        rule: of the engine; the rules that decided about the drafts take its place.
        lossless: likewise.
        precision: likewise.
        prefill_seconds: likewise.
    """
    rounds = list(rounds)
    used = sorted({r.rule for r in rounds if r.rule and r.num_drafted > 0})
    broken = [r.broken for r in rounds if r.broken is not None]
    distances = [distance for r in rounds for distance in r.distance]
    return Stats(
        drafter,
        note,
        ", ".join(used) or rule,
        lossless,
        precision,
        num_new_tokens=sum(len(r.token_ids) for r in rounds),
        num_rounds=len(rounds),
        num_draft_tokens=sum(r.num_drafted for r in rounds),
        num_accepted_tokens=sum(r.num_accepted for r in rounds),
        num_broken_drafts=len(broken),
        broken_draft=broken[0] if broken else None,
        acceptance=_by_position(rounds),
        distance=sum(distances) / len(distances) if distances else None,
        seconds=sum((r.seconds for r in rounds), Seconds()),
        prefill_seconds=prefill_seconds,
    )


def _by_position(rounds: list[Round]) -> tuple[PositionAcceptance, ...]:
    longest = max((r.depth for r in rounds), default=0)
    table = []
    for position in range(1, longest + 1):
        drafted = [r for r in rounds if r.depth >= position]
        reached = [r for r in drafted if r.num_accepted >= position - 1]
        accepted = sum(r.num_accepted >= position for r in drafted)
        conditional = accepted / len(reached) if reached else None
        table.append(PositionAcceptance(position, accepted / len(drafted), conditional))
    return tuple(table)
