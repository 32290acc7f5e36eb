"""A draft model with another tokenizer than the target, exact by one of two methods.

*Token level*: draw from the law restricted to the tokens that both vocabularies have (Timor et al., "token-level
intersection", 2502.05202). The restriction comes first and the target's own settings after it, so the law that is
declared is the law of the draw. *String level*: let the draft write text, and propose how the target spells it; such a
draft was chosen, not drawn, so it is a point mass.
"""

from __future__ import annotations

from typing import Literal, Protocol

import torch

from outrider.core import Draft, Law, Model, Proposal, Sequence
from outrider.drafters.feeding import Feeder, Text
from outrider.drafters.vocabularies import Speller, Vocabularies
from outrider.errors import InvalidOption, OutriderError, VocabularyMismatch
from outrider.sampling import laws

ENOUGH_SHARED = 0.1
"""Share of the target's tokens from which on drafts are drawn token by token: common words are among the first tokens
of any vocabulary, so that a tenth of it covers most of a text."""

LOOK_BEHIND = 8
"""Tokens of the text that are spelled again together with what the draft wrote, since spelling depends on them."""

Method = Literal["token", "string"]


class Codec(Speller, Protocol):
    """A tokenizer that also reads."""

    def decode(self, ids: list[int]) -> str:
        """Text of ids; special tokens give nothing."""
        ...


class TranslatedDrafter:
    """Drafts chains from a model that reads and writes other tokens than the target.

    Args:
        model: the draft model.
        draft_tokenizer: its own.
        target_tokenizer: the target's.
        slots: as many as the engine has.
        vocab_size: the target's.
        capacity: cached draft tokens per slot; None for the draft's whole context.
        method: "token", "string", or "auto": by tokens if at least a tenth of the target's are shared.

    Raises:
        VocabularyMismatch: not one token is shared.
        InvalidOption: an unknown method.
        CacheTooLarge: from the model.

    Attributes:
        note: which method, and why, for the statistics.
        num_past_context: how often a draft was empty because a text had outgrown the draft's context.
        num_failed: how often a draft ended early because its law could not be made.
    """

    name = "model"

    def __init__(
        self,
        model: Model,
        draft_tokenizer: Codec,
        target_tokenizer: Codec,
        slots: int,
        *,
        vocab_size: int,
        capacity: int | None = None,
        method: Method | Literal["auto"] = "auto",
    ) -> None:
        if method not in ("auto", "token", "string"):
            raise InvalidOption("method", method, "auto, token, string")
        both = Vocabularies(target_tokenizer, draft_tokenizer)
        if not both.num_shared:
            raise VocabularyMismatch(
                f"Draft and target share none of the target's {both.num_ordinary} tokens, so neither can read the "
                "other. Use a draft model for the same kind of text."
            )
        share = both.num_shared / both.num_ordinary
        self.method: Method = method if method != "auto" else "token" if share >= ENOUGH_SHARED else "string"
        self.proposal: Proposal = "sampled" if self.method == "token" else "point_mass"
        self.note = f"{self.method} level, {both.num_shared:,} of {both.num_ordinary:,} tokens shared"
        self.vocab_size = vocab_size
        self._both, self._target, self._draft = both, target_tokenizer, draft_tokenizer
        limit = model.context_length if capacity is None else min(capacity, model.context_length)
        self.feeder = Feeder(model, slots, limit)
        ids = torch.tensor(both.pairs)
        self._target_ids, self._draft_ids = ids[:, 0], ids[:, 1]
        self.num_past_context = self.num_failed = 0

    def propose(self, sequences: list[Sequence], budgets: list[int]) -> list[Draft]:
        """See `core.Drafter`: chains that end at their budget, after a stop id, or where the draft's context ends."""
        growths = [self._new_growth(sequence, budget) for sequence, budget in zip(sequences, budgets, strict=True)]
        growing = [growth for growth in growths if growth.budget > 0]
        while growing:
            logits = self.feeder.feed([Text(g.sequence.slot, g.sequence.id, g.text) for g in growing])
            growing = [g for g, rows in zip(growing, logits, strict=True) if self._goes_on(g, rows[0])]
        return [self._drawn(growth) if self.method == "token" else self._spelled(growth) for growth in growths]

    def _new_growth(self, sequence: Sequence, budget: int) -> _Growth:
        text = self._both.in_draft_ids(sequence.tokens, whole_words=self.method == "string") if budget > 0 else []
        room = max(0, self.feeder.capacity - len(text) + 1)
        self.num_past_context += budget > 0 and room == 0
        return _Growth(sequence, min(budget, room) if text else 0, text)

    def _goes_on(self, growth: _Growth, logits: torch.Tensor) -> bool:
        """Add a token; False if the draft has ended."""
        if self.method == "string":
            token = int(logits.argmax())  # a point mass is kept with q of it: best the likeliest
            growth.text.append(token)
            growth.written.append(token)
            return len(growth.written) < growth.budget and token not in self._draft.stop_ids
        row = torch.full((self.vocab_size,), -torch.inf)
        row[self._target_ids] = logits.float().cpu()[self._draft_ids]
        try:
            law = laws(row[None], growth.sequence, [tuple(growth.drawn)])[0]
        except OutriderError:  # no shared token is left, or a processor failed: the target meets that error too
            self.num_failed += 1
            return False
        token = growth.sequence.draft_coins.categorical(law, len(growth.sequence.tokens) + len(growth.drawn))
        growth.rows.append(law)
        growth.drawn.append(token)
        growth.text += self._both.in_draft_ids([token], whole_words=False)
        return len(growth.drawn) < growth.budget and token not in growth.sequence.stop_ids

    def _drawn(self, growth: _Growth) -> Draft:
        return Draft.chain(growth.drawn, tuple(growth.rows))

    def _spelled(self, growth: _Growth) -> Draft:
        """How the target spells what the draft wrote, up to where more text could change it."""
        ended = any(token in self._draft.stop_ids for token in growth.written)
        written = self._draft.decode([t for t in growth.written if t not in self._draft.stop_ids]).rstrip("\ufffd")
        behind = growth.sequence.tokens[-LOOK_BEHIND:]
        tokens = self._target.encode(self._target.decode(behind) + written) if written else []
        if tokens[: len(behind)] == behind:
            tokens = tokens[len(behind) :]
        else:  # special tokens behind, or a spelling that is not the tokenizer's own
            tokens = self._target.encode(written) if written else []
        tokens = tokens if ended else tokens[:-1]  # the last one may grow together with what would follow
        return Draft.chain([t for t in tokens if t < self.vocab_size][: max(growth.budget, 0)])


class _Growth:
    """One draft in the making."""

    def __init__(self, sequence: Sequence, budget: int, text: list[int]) -> None:
        self.sequence, self.budget = sequence, budget
        self.text = text  # in the draft's ids, with what was drafted
        self.drawn: list[int] = []  # target ids, token level
        self.rows: list[Law] = []
        self.written: list[int] = []  # draft ids, string level
