"""One sequence's text in the ids of a draft model that has another tokenizer."""

from __future__ import annotations

import re

from outrider.drafters.vocabularies import Vocabularies, cut_unfinished

_BETWEEN_WORDS = re.compile(rb"(?<=\S) (?=\S)")


class Translation:
    """A sequence's tokens in the draft's ids: a function of the tokens and of how many of them are its prompt.

    The prompt is spelled as the draft's tokenizer would. Behind it, if the method is "token", a shared token stays one
    token, but for parts of characters. All else is spelled word by word: a word that is not finished, as far as it
    goes, and anew when it goes on. What the target puts in front of a prompt gives way to what the draft does.

    Args:
        both: the vocabularies.
        tokens: of the sequence.
        prompt_length: how many of them are the prompt.
    """

    def __init__(self, both: Vocabularies, tokens: list[int], prompt_length: int) -> None:
        self._both = both
        self._prompt_length = prompt_length
        self._settled = list(both.draft.tokenizer.prefix_ids)
        self._loose = b""  # text behind the settled ids
        self._begins = True  # no text is settled
        self._heard = False  # no text was read
        self._read = tokens[:prompt_length]
        prefix = list(both.target.tokenizer.prefix_ids)
        for token in self._read[len(prefix) if self._read[: len(prefix)] == prefix else 0 :]:
            self._take(token, stays=False)
        self._settle_words()

    def follows(self, tokens: list[int], prompt_length: int) -> bool:
        """Whether what was read is how these tokens begin."""
        return prompt_length == self._prompt_length and tokens[: len(self._read)] == self._read

    def read_on(self, tokens: list[int]) -> None:
        """Read the rest of the tokens, of which those before were read."""
        for token in tokens[len(self._read) :]:
            self._take(token, stays=self._both.method == "token")
            self._settle_words()
        self._read = list(tokens)

    def ids(self) -> list[int] | None:
        """All of the text; None if it ends within a character and the draft has no ids for a part of it."""
        text, unfinished = cut_unfinished(self._loose)
        half = self._both.draft.spell_bytes(unfinished)
        if unfinished and not half:
            return None
        return [*self._settled, *self._both.draft.spell(text, begins=self._begins), *half]

    def _take(self, token: int, stays: bool) -> None:
        """Settle a token that has an id in the draft, if it `stays` one or is special; all else is loose text."""
        piece, shared = self._both.target.piece(token), self._both.shared.get(token)
        if piece and not self._heard:
            self._heard = True
            piece = piece.removeprefix(b" ") if self._both.target.puts_space else piece
        if shared is not None and (piece is None or (stays and _is_text(piece) and not cut_unfinished(self._loose)[1])):
            self._settle(len(self._loose))
            self._settled.append(shared)
            self._begins = self._begins and piece is None
        else:
            self._loose += self._both.target.name(token) if piece is None else piece

    def _settle_words(self) -> None:
        """Settle all words but the last: it may not be finished."""
        if cuts := [found.start() for found in _BETWEEN_WORDS.finditer(self._loose)]:
            self._settle(cuts[-1])

    def _settle(self, end: int) -> None:
        """Settle the loose text up to `end`."""
        if end > 0:
            self._settled += self._both.draft.spell(self._loose[:end], begins=self._begins)
            self._loose, self._begins = self._loose[end:], False


def _is_text(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True
