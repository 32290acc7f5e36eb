"""Plain decoding, as a drafter. It knows nothing."""

from __future__ import annotations

from outrider.core import Draft, Proposal, Sequence


class NoDrafter:
    """Plain decoding: every draft is empty."""

    name = "none"
    proposal: Proposal = "point_mass"

    def propose(self, sequences: list[Sequence], budgets: list[int]) -> list[Draft]:
        """See `core.Drafter`."""
        return [Draft() for _ in sequences]
