"""A draft model with another tokenizer than the target, exact by one of two methods.

*Token level*: draw from the draft's law restricted to the tokens that both vocabularies have (Timor et al., 2502.05202,
"token-level intersection"). The draft's logits become a row of target ids, -inf where nothing is shared, and take the
same road to a law as the target's: the law that is declared is the law of the draw. *String level*: the draft writes
what it finds likeliest, and the target's spelling of it is proposed. That was chosen, not drawn, so it is a point mass.
"""

from __future__ import annotations

import math
from typing import Literal, Protocol

import numpy as np
import torch

from outrider.core import Draft, Law, Model, Proposal, Sequence
from outrider.drafters.feeding import Feeder, Text
from outrider.drafters.translation import Translation
from outrider.drafters.vocabularies import Method, Spoken, Vocabularies, translate
from outrider.errors import OutriderError
from outrider.sampling import laws

MAX_STEPS = 2
"""Draft tokens that are written at most for each target token that is wanted, at the string level."""

ROOM_TO_SPARE = 1.25
"""Texts take more draft tokens than the sample text says, or fewer."""


class TranslatedDrafter:
    """Drafts chains from a model that reads and writes other tokens than the target.

    Args:
        model: the draft model.
        draft_tokenizer: its own.
        target_tokenizer: the target's.
        slots: as many as the engine has.
        vocab_size: ids that the target's law has; None for those of its tokenizer.
        method: "token", "string", or "auto": see `vocabularies.translate`.
        capacity: tokens of the target per slot, for whose text the draft's cache has room, judged by a sample text and
            a quarter more; None for the draft's whole context. Beyond either, drafts are empty.

    Raises:
        VocabularyMismatch: the two share too little for the method.
        InvalidOption: an unknown method.
        CacheTooLarge: from the model.

    Attributes:
        method: "token" or "string".
        note: the method and what is shared, in one line.
        num_past_context: how often a draft was empty because a text had outgrown the draft's context.
        num_failed: how often a draft ended early because its law could not be made.
    """

    name = "model"

    def __init__(
        self,
        model: Model,
        draft_tokenizer: Spoken,
        target_tokenizer: Spoken,
        slots: int,
        *,
        vocab_size: int | None = None,
        method: Method | Literal["auto"] = "auto",
        capacity: int | None = None,
    ) -> None:
        self._both = translate(
            target_tokenizer, draft_tokenizer, target_size=vocab_size, draft_size=model.vocab_size, method=method
        )
        self.method, self.note = self._both.method, self._both.note
        self.proposal: Proposal = "sampled" if self.method == "token" else "point_mass"
        room = math.inf if capacity is None else math.ceil(ROOM_TO_SPARE * self._both.stretch * capacity)
        self.feeder = Feeder(model, slots, int(min(room, model.context_length)))
        self.num_past_context = self.num_failed = 0
        self._restriction = _Restriction(self._both, vocab_size or self._both.target.size)
        self._translations: list[tuple[int, Translation] | None] = [None] * slots

    def propose(self, sequences: list[Sequence], budgets: list[int]) -> list[Draft]:
        """See `core.Drafter`: chains that end at their budget, after a stop id, or where the draft's context ends."""
        growths = [self._new_growth(sequence, budget) for sequence, budget in zip(sequences, budgets, strict=True)]
        growing = [growth for growth in growths if growth.budget > 0]
        while growing:
            logits = self.feeder.feed([Text(g.sequence.slot, g.sequence.id, g.text) for g in growing])
            growing = [g for g, rows in zip(growing, logits, strict=True) if self._goes_on(g, rows[0])]
        return [growth.draft() for growth in growths]

    def _new_growth(self, sequence: Sequence, budget: int) -> _Growth:
        text = self._translated(sequence) if budget > 0 else None
        room = 0 if text is None else max(0, self.feeder.capacity - len(text) + 1)
        self.num_past_context += text is not None and room == 0
        if self.method == "token":
            return _Drawn(sequence, min(budget, room), text or [], self._both, self._restriction)
        return _Written(sequence, budget if room else 0, text or [], self._both, room)

    def _translated(self, sequence: Sequence) -> list[int] | None:
        """The sequence's text in draft ids; None if there is nothing that the draft could continue."""
        held = self._translations[sequence.slot]
        if held is None or held[0] != sequence.id or not held[1].follows(sequence.tokens, sequence.prompt_length):
            held = sequence.id, Translation(self._both, sequence.tokens, sequence.prompt_length)
            self._translations[sequence.slot] = held
        held[1].read_on(sequence.tokens)
        return held[1].ids() or None

    def _goes_on(self, growth: _Growth, logits: torch.Tensor) -> bool:
        """Add a token; False if the draft has ended."""
        try:
            return growth.grow(logits)
        except OutriderError:  # no shared token is left, or a processor raised: the target meets its error too
            self.num_failed += 1
            return False


class _Restriction:
    """From the draft's logits to a row of target ids, in which what is not shared is impossible."""

    def __init__(self, both: Vocabularies, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._target_ids = torch.tensor(list(both.shared), dtype=torch.int64)
        self._draft_ids = torch.tensor(list(both.shared.values()), dtype=torch.int64)

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        """[V of the draft] -> [V of the target]."""
        row = torch.full((self._vocab_size,), -torch.inf, dtype=logits.dtype, device=logits.device)
        row[self._target_ids.to(logits.device)] = logits[self._draft_ids.to(logits.device)]
        return row


class _Growth(Protocol):
    """A draft in the making."""

    sequence: Sequence
    budget: int
    text: list[int]

    def grow(self, logits: torch.Tensor) -> bool:
        """Choose a token from the logits [V of the draft] behind `text`; False if the draft has ended."""

    def draft(self) -> Draft:
        """What has grown, in target ids."""


class _Drawn:
    """Tokens that are drawn from the restricted law."""

    def __init__(
        self, sequence: Sequence, budget: int, text: list[int], both: Vocabularies, restrict: _Restriction
    ) -> None:
        self.sequence, self.budget, self.text = sequence, budget, text
        self._both, self._restrict = both, restrict
        self._tokens: list[int] = []
        self._laws: list[Law] = []

    def grow(self, logits: torch.Tensor) -> bool:
        law = laws(self._restrict(logits)[None], self.sequence, [tuple(self._tokens)])[0]
        token = self.sequence.draft_coins.categorical(law, len(self.sequence.tokens) + len(self._tokens))
        self._laws.append(law)
        self._tokens.append(token)
        self.text.append(self._both.shared[token])
        return len(self._tokens) < self.budget and token not in self.sequence.stop_ids

    def draft(self) -> Draft:
        return Draft.chain(self._tokens, np.stack(self._laws) if self._laws else ())


class _Written:
    """The target's spelling of the text that the draft finds likeliest."""

    def __init__(self, sequence: Sequence, budget: int, text: list[int], both: Vocabularies, room: int) -> None:
        self.sequence, self.budget, self.text = sequence, budget, text
        self._both = both
        self._steps = min(room, MAX_STEPS * budget)
        self._written = b""
        self._tokens: list[int] = []

    def grow(self, logits: torch.Tensor) -> bool:
        token = int(logits.argmax())
        piece = self._both.draft.piece(token)
        if piece is None:  # a special token: whatever is written is finished
            self._tokens += self._both.ending(token)
            return False
        self.text.append(token)
        self._steps -= 1
        self._written += piece
        self._tokens = self._both.respell(self.sequence.tokens, self._written)
        return len(self._tokens) < self.budget and self._steps > 0

    def draft(self) -> Draft:
        return Draft.chain(self._tokens[: self.budget])
