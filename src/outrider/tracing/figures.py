"""What the rounds of a trace add up to."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass

from outrider.rounds import Seconds
from outrider.stats import PositionAcceptance
from outrider.tracing.traced import Trace, TracedRound
from outrider.tree import depths


@dataclass(frozen=True)
class Figures:
    """Counts as in `stats.Stats`; what a stop or a limit cut away counts as drafted only.

    Args:
        rounds: of all texts.
        tokens: emitted.
        drafted: nodes that were verified.
        accepted: of them, those that were emitted.
        seconds: of the steps, by part; texts that are decoded together share a step.
        positions: acceptance by place in the draft; in a tree as far as its longest path reaches.
    """

    rounds: int
    tokens: int
    drafted: int
    accepted: int
    seconds: Seconds
    positions: tuple[PositionAcceptance, ...]

    @property
    def tokens_per_round(self) -> float | None:
        """The next token included; None without a round."""
        return self.tokens / self.rounds if self.rounds else None

    @property
    def acceptance_rate(self) -> float | None:
        """Of the drafted tokens; None if nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None


def figures(rounds: Ordered[TracedRound]) -> Figures:
    """Add up any rounds of a trace."""
    steps = {r.step: r.seconds for r in rounds}
    return Figures(
        len(rounds),
        sum(len(r.tokens) for r in rounds),
        sum(len(r.nodes) for r in rounds),
        sum(r.num_accepted for r in rounds),
        sum(steps.values(), Seconds()),
        tuple(_positions(rounds)),
    )


def groups(trace: Trace) -> dict[str, list[TracedRound]]:
    """Rounds with a draft: all, and, where there are several, by drafter, by what decoded and by kind of prompt."""
    drafted = [(text.about, r) for text in trace.texts for r in text.rounds if r.nodes]
    found = {"all": [r for _, r in drafted]}
    for by in ("origin", "name", "kind"):
        parts: dict[str, list[TracedRound]] = {}
        for about, r in drafted:
            parts.setdefault(r.source if by == "origin" else about[by], []).append(r)
        if len(parts) > 1:
            found |= {f"{by}: {part}": own for part, own in parts.items()}
    return found


def _positions(rounds: Ordered[TracedRound]) -> list[PositionAcceptance]:
    """As `stats` counts them."""
    fared = [(max(depths([node.parent for node in r.nodes])), r.num_accepted) for r in rounds]
    table = []
    for position in range(1, max((depth for depth, _ in fared), default=0) + 1):
        drafted = [accepted for depth, accepted in fared if depth >= position]
        reached = sum(accepted >= position - 1 for accepted in drafted)
        kept = sum(accepted >= position for accepted in drafted)
        table.append(PositionAcceptance(position, kept / len(drafted), kept / reached if reached else None))
    return table
