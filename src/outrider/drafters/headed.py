"""The drafter of a trained head: EAGLE, Medusa or an MLP speculator, chains or trees."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import torch

from outrider.core import Draft, Proposal, Sequence
from outrider.drafters.levels import Feeds, grow
from outrider.drafters.shapes import Form, Shape, read_form
from outrider.errors import InvalidOption
from outrider.rounds import Verified


class Remembers(Protocol):
    """What a head keeps of the target's states."""

    def read(self, sequence: Sequence, hidden: torch.Tensor) -> None:
        """See `rounds.Reader`."""

    def share(self, source: Sequence, sequence: Sequence) -> None:
        """See `rounds.Reader`."""

    def learn(self, verified: Verified) -> None:
        """Take in the states of the tokens that a round kept."""

    def is_ready(self, sequence: Sequence) -> bool:
        """Whether a draft can start."""


class HeadDrafter:
    """Drafts from the law of a head that reads the target's states; a `rounds.Reader` and `rounds.Learner`.

    Chains and trees of a given shape are drawn from that law, mapped to the target's vocabulary first, so the rules
    see the very law that was drawn from. Trees that are left to "auto" are as `model.ModelDrafter` has them.

    Args:
        name: "eagle", "medusa" or "mlp".
        feeds: the head at work.
        states: its memory of the sequences.
        feature_layers: ids of the states that it reads.
        vocab_size: the target's.
        capacity: tokens per sequence, drafts included; beyond it drafts are empty.
        max_depth: longest path that the head can draft.
        tree: "chain", "auto", a `Shape` or its text (see `model.ModelDrafter`).
        depth: longest path of an "auto" tree; `max_depth` if that is less.
        row_cost: see `model.ModelDrafter`.
        level_cost: likewise.

    Raises:
        InvalidOption: a value outside its range, or a shape that is deeper than the head can draft.

    Attributes:
        num_not_ready: how often a draft was empty because states of the sequence had not been seen.
        num_past_context: how often a draft was empty because a sequence had outgrown the capacity.
        num_failed: how often a draft ended early because its law could not be made (a user's processor raised).
    """

    def __init__(
        self,
        name: str,
        feeds: Feeds,
        states: Remembers,
        feature_layers: tuple[int, ...],
        *,
        vocab_size: int,
        capacity: int,
        max_depth: int = 64,
        tree: str | Shape = "chain",
        depth: int = 8,
        row_cost: float = 0.1,
        level_cost: float = 0.0,
    ) -> None:
        self.name, self.feature_layers = name, feature_layers
        self.form = _within(max_depth, read_form(tree, depth, row_cost, level_cost))
        self.proposal: Proposal = "sampled" if self.form is None else "hybrid"
        self._feeds, self._states, self._vocab_size = feeds, states, vocab_size
        self._capacity, self._max_depth = capacity, max_depth
        self.num_not_ready = self.num_past_context = self.num_failed = 0

    def ends_itself(self, sequence: Sequence) -> bool:
        """See `shapes.Form`."""
        return self.form is not None and self.form.ends_itself(sequence)

    def arrears(self, sequence: Sequence) -> int:
        """Tokens that are to be taken in before a draft can begin."""
        arrears = getattr(self._states, "arrears", None)  # of those that keep a cache
        return 0 if arrears is None else int(arrears(sequence))

    def propose(self, sequences: list[Sequence], budgets: list[int]) -> list[Draft]:
        """See `core.Drafter`."""
        room = [self._room(sequence, budget) for sequence, budget in zip(sequences, budgets, strict=True)]
        grown = grow(self._feeds, sequences, room, self.form, self._vocab_size)
        self.num_failed += grown.num_failed
        return grown.drafts

    def read(self, sequence: Sequence, hidden: torch.Tensor) -> None:
        """See `rounds.Reader`."""
        self._states.read(sequence, hidden)

    def share(self, source: Sequence, sequence: Sequence) -> None:
        """See `rounds.Reader`."""
        self._states.share(source, sequence)

    def observe(self, verified: list[Verified]) -> None:
        """See `rounds.Learner`."""
        for each in verified:
            self._states.learn(each)

    def _room(self, sequence: Sequence, budget: int) -> int:
        if budget > 0 and not self._states.is_ready(sequence):
            self.num_not_ready += 1
            return 0
        budget = min(budget, self._max_depth) if self.form is None else budget
        left = max(0, self._capacity - len(sequence.tokens))
        self.num_past_context += budget > 0 and left == 0
        return min(budget, left)


def _within(max_depth: int, form: Form | None) -> Form | None:
    """The form no deeper than the head can draft; a shape that is deeper was meant for another head."""
    if form is None:
        return None
    if form.shape is not None and form.shape.depth > max_depth:
        allowed = f"a shape of depth 1 to {max_depth}"
        raise InvalidOption("tree", f"a shape of depth {form.shape.depth}", allowed, "This head drafts no further.")
    return replace(form, depth=min(form.depth, max_depth))
