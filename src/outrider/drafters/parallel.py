"""Medusa heads and MLP speculators at work: all they need of the past is the target's last state."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field

import torch

import outrider.tree as tree
from outrider.core import Draft, Sequence
from outrider.drafters.eagle import spread
from outrider.drafters.feeding import Text
from outrider.drafters.heads.medusa import MedusaHeads
from outrider.drafters.heads.mlp import MlpSpeculator
from outrider.rounds import Verified

Path = tuple[int, ...]


@dataclass
class _Last:
    """Of one sequence.

    Args:
        owner: the very sequence (see `eagle`).
        length: tokens whose states were seen.
        state: [H] of the last of them.
        prompt: (length, state) where its prefill ended, for those who share it.
        made: what was made of the state in this round.
    """

    owner: Sequence
    length: int
    state: torch.Tensor
    prompt: tuple[int, torch.Tensor]
    made: dict[Path, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)


class LastStates:
    """The target's last state of each sequence, from prompts and rounds."""

    def __init__(self) -> None:
        self._held: dict[int, _Last] = {}

    def read(self, sequence: Sequence, hidden: torch.Tensor) -> None:
        """See `rounds.Reader`."""
        held = self._held.get(sequence.slot)
        length = len(hidden) + (held.length if held is not None and held.owner is sequence else 0)
        last = hidden[-1].clone()  # a view would keep the whole chunk
        self._held[sequence.slot] = _Last(sequence, length, last, (length, last))

    def share(self, source: Sequence, sequence: Sequence) -> None:
        """See `rounds.Reader`."""
        held = self._held.get(source.slot)
        if held is not None and held.owner is source:
            self._held[sequence.slot] = _Last(sequence, *held.prompt, held.prompt)

    def learn(self, verified: Verified) -> None:
        """Take in the state of the last token that a round kept."""
        sequence, path = verified.sequence, verified.verdict.path
        if verified.hidden is None:
            return
        state = verified.hidden[path[-1] + 1 if path else 0]
        held = self._held.get(sequence.slot)
        if len(sequence.tokens) == 2 + len(path):  # the first round of a prompt of one token, which is not prefilled
            held = self._held[sequence.slot] = _Last(sequence, 0, state, (0, state))
        if held is not None and held.owner is sequence:
            held.state, held.length, held.made = state, held.length + 1 + len(path), {}

    def is_ready(self, sequence: Sequence) -> bool:
        """Whether the state of the token before the pending one is here."""
        held = self._held.get(sequence.slot)
        return held is not None and held.owner is sequence and held.length == len(sequence.tokens) - 1

    def of(self, slot: int) -> _Last:
        """What is held for a slot."""
        return self._held[slot]


class MedusaFeeder:
    """Medusa heads, whose guesses depend on how far ahead they are and on nothing that was drafted before.

    Args:
        heads: ready to run.
        draft_ids: [Vd], or None.
        capacity: tokens per sequence.
    """

    def __init__(self, heads: MedusaHeads, draft_ids: torch.Tensor | None, capacity: int) -> None:
        self.heads, self.capacity, self.max_depth = heads, capacity, heads.config.num_heads
        self.states, self._draft_ids = LastStates(), draft_ids

    @torch.inference_mode()
    def feed(self, texts: Ordered[Text], trees: Ordered[Draft]) -> list[torch.Tensor]:
        """See `eagle.EagleFeeder.feed`."""
        return [self._fed(text, draft) for text, draft in zip(texts, trees, strict=True)]

    def _fed(self, text: Text, draft: Draft) -> torch.Tensor:
        held = self.states.of(text.slot)
        ahead = len(text.tokens) - held.length - 1
        rows = [ahead + depth for depth in tree.depths(draft.parents)]
        for k in set(rows):
            if (k,) not in held.made:
                held.made[k,] = (held.state, self.heads.logits(held.state[None], k)[0])  # packed products take rows
        logits = torch.stack([held.made[k,][1] for k in rows])
        return spread(logits, self._draft_ids, self.heads.config.vocab_size)


class MlpFeeder:
    """An MLP speculator: each drafted token moves its state on.

    Args:
        speculator: ready to run.
        capacity: tokens per sequence.
    """

    def __init__(self, speculator: MlpSpeculator, capacity: int) -> None:
        self.speculator, self.capacity, self.max_depth = speculator, capacity, speculator.config.num_steps
        self.states = LastStates()

    @torch.inference_mode()
    def feed(self, texts: Ordered[Text], trees: Ordered[Draft]) -> list[torch.Tensor]:
        """See `eagle.EagleFeeder.feed`."""
        return [self._fed(text, draft) for text, draft in zip(texts, trees, strict=True)]

    def _fed(self, text: Text, draft: Draft) -> torch.Tensor:
        held = self.states.of(text.slot)
        pending, prefix = text.tokens[held.length], tuple(text.tokens[held.length + 1 :])
        found = []
        for path in tree.paths(draft.tokens, draft.parents):
            whole = (*prefix, *path)
            self._make(held, pending, whole)
            found.append(held.made[whole][1])
        return torch.stack(found)

    def _make(self, held: _Last, pending: int, path: Path) -> None:
        """The state and logits after a path, from those after its parent."""
        for depth in range(len(path) + 1):
            part = path[:depth]
            if part not in held.made:
                before = held.made[part[:-1]][0] if part else held.state
                token = torch.tensor([part[-1] if part else pending], device=held.state.device)
                state = self.speculator.step(token, before[None], depth)  # packed products take rows
                held.made[part] = (state[0], self.speculator.logits(state, depth)[0])
