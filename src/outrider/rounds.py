"""What a step reports of each sequence, and the protocol of those who learn from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from outrider.core import Draft, Sequence, Verdict

FinishReason = Literal["stop", "length", "cancelled", "error"]


@dataclass(frozen=True)
class Seconds:
    """Wall time of a round by part: drafting, the target's forward, laws and verification, everything else."""

    draft: float = 0.0
    target: float = 0.0
    verify: float = 0.0
    other: float = 0.0

    def __add__(self, more: Seconds) -> Seconds:
        return Seconds(
            self.draft + more.draft, self.target + more.target, self.verify + more.verify, self.other + more.other
        )

    @property
    def total(self) -> float:
        """Seconds of the whole round."""
        return self.draft + self.target + self.verify + self.other


@dataclass(frozen=True)
class TokenLogprobs:
    """Log-probabilities (natural) of one emitted token under the processed law.

    Args:
        chosen: of the token itself.
        top: the likeliest tokens, (id, log-probability), best first.
    """

    chosen: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Round:
    """What one step did for one sequence.

    Args:
        sequence: whose round it was.
        token_ids: emitted tokens, already cut at a stop or limit; () if the sequence ended without emitting.
        num_drafted: drafted nodes that were verified, on all branches.
        num_accepted: drafted nodes that were kept *and* emitted; they come first in `token_ids`.
        finish_reason: set in the sequence's last round.
        logprobs: one per emitted token if asked for, else ().
        seconds: wall time of the step, shared by all sequences of the batch.
        broken: why the drafter's proposal was thrown away, or None.
        depth: longest path of the draft; of a chain, `num_drafted`.
        rule: name of the rule that decided.
        error: what went wrong if `finish_reason` is "error".
        pieces: per emitted token the text that became final with it; () without a text stream.
        distance: per emitted token, as in `core.Verdict`.
    """

    sequence: Sequence
    token_ids: tuple[int, ...]
    num_drafted: int = 0
    num_accepted: int = 0
    finish_reason: FinishReason | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    seconds: Seconds = Seconds()
    broken: str | None = None
    error: Exception | None = None
    pieces: tuple[str, ...] = ()
    depth: int = 0
    rule: str = ""
    distance: tuple[float, ...] = ()


@dataclass(frozen=True)
class Verified:
    """What the target made of one draft, for drafters that learn from it.

    Args:
        sequence: whose tokens already hold what the round emitted.
        draft: as it was verified.
        verdict: what was kept of it.
        logits: [1 + n, V] after the pending token and after each node, on the model's device; not to be modified.
        hidden: [1 + n, F] features of the same rows, or None.
    """

    sequence: Sequence
    draft: Draft
    verdict: Verdict
    logits: torch.Tensor
    hidden: torch.Tensor | None


class Learner(Protocol):
    """A drafter that is told of every round: its state is a function of each sequence's tokens and `Verified`s."""

    def observe(self, verified: list[Verified]) -> None:
        """Learn from the sequences of one step that go on."""


class Reader(Protocol):
    """A drafter that reads states of the target, in prompts here and after that in `Verified.hidden`.

    Attributes:
        feature_layers: the states that it reads, as `models.decoder.Decoder` counts them.
    """

    feature_layers: tuple[int, ...]

    def read(self, sequence: Sequence, hidden: torch.Tensor) -> None:
        """Take in the features [n, F] of the next n tokens of the sequence's prompt; the last one is in no prompt."""

    def share(self, source: Sequence, sequence: Sequence) -> None:
        """Take over what was read of the same prompt for another sequence."""


class Pace(Protocol):
    """Decides how many tokens to draft."""

    def budgets(self, sequences: list[Sequence]) -> list[int]:
        """Wanted draft lengths, each >= 0, from what was seen before this round only."""

    def observe(self, rounds: list[Round]) -> None:
        """Learn from a finished step."""
