"""From tokens to text, one token at a time: what has been shown is never taken back.

It knows a `decode` function and stop strings; it knows nothing of models or engines.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from outrider.errors import InvalidOption

REPLACEMENT = "\ufffd"
"""What decoders show for bytes that are no character, or not yet one."""
WINDOW = 8
"""Earlier tokens that are decoded again with each new one, at least, for its text depends on those before it."""
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but newline and tab, marks that override or isolate the direction, and halves of surrogates."""


class TextStream:
    """The text of a growing list of tokens, in final pieces that add up to `decode` of them all.

    It needs a `decode` whose text for more tokens begins with its text for fewer, but for an unfinished character
    at the end. Byte-level, byte-fallback and SentencePiece tokenizers have it when clean-up of spaces is off.
    (Byte fallback has one exception: after bytes that never become a character it takes back whole characters in
    front of them. Those stay delivered here.) A decoded U+FFFD may be an unfinished character, so up to three of
    them are held back while they are last.

    The text ends just before the first stop string, which counts from the very token that completes it. If one token
    completes several, the one that begins earliest wins, and of those the shortest.

    Args:
        decode: token ids to text; special tokens may be "".
        stop_strings: non-empty strings that end the text.

    Attributes:
        text: everything delivered so far.
        stopped: the stop string that ended the text, or None.

    Raises:
        InvalidOption: `stop_strings` is not a tuple or list of non-empty strings.
    """

    def __init__(self, decode: Callable[[list[int]], str], stop_strings: tuple[str, ...] = ()) -> None:
        if isinstance(stop_strings, str) or not all(isinstance(stop, str) and stop for stop in stop_strings):
            raise InvalidOption("stop_strings", stop_strings, "a tuple of non-empty strings")
        self.text = ""
        self.stopped: str | None = None
        self._decode = decode
        self._stop_strings = tuple(stop_strings)
        self._window: list[int] = []  # the latest tokens
        self._settled = ""  # the part of decode(window) that is final
        self._held = ""  # final text that may be the first part of a stop string

    def push(self, token_id: int) -> str:
        """Take the next token; returns the text that is now final, often "", and always "" after a stop."""
        return "" if self.stopped is not None else self._deliver(self._settle(token_id), last=False)

    def finish(self) -> str:
        """The rest of the text, unfinished character and all, when no token will follow."""
        if self.stopped is not None:
            return ""
        fresh = self._decode(self._window)[len(self._settled) :]
        self._settled += fresh
        return self._deliver(fresh, last=True)

    def _settle(self, token_id: int) -> str:
        """The characters that this token makes final, whatever follows."""
        self._window.append(token_id)
        decoded = self._decode(self._window)
        if decoded == self._settled != "":
            self._window.pop()  # a token without text: a long run of them would only grow the window
            return ""
        num_unfinished = min(3, len(decoded) - len(decoded.rstrip(REPLACEMENT)))
        settled = decoded[: len(decoded) - num_unfinished]
        if num_unfinished and not settled.startswith(self._settled):
            return ""  # byte fallback shows finished characters as U+FFFD too, until the last one is finished
        fresh, self._settled = settled[len(self._settled) :], settled
        self._shorten_window(decoded, num_unfinished)
        return fresh

    def _shorten_window(self, decoded: str, num_unfinished: int) -> None:
        """Drop old tokens, unless that changes what the others mean (a cut inside a character does)."""
        if len(self._window) > 2 * WINDOW:
            tail = self._decode(self._window[-WINDOW:])
            if len(tail) > num_unfinished and decoded.endswith(tail):
                self._window, self._settled = self._window[-WINDOW:], tail[: len(tail) - num_unfinished]

    def _deliver(self, fresh: str, last: bool) -> str:
        """Cut at a stop string, hold back what may become one, and hand out the rest."""
        text = self._held + fresh
        matches = [(text.find(stop), len(stop), stop) for stop in self._stop_strings if stop in text]
        if matches:
            begin, _, self.stopped = min(matches)
            piece, self._held = text[:begin], ""
        else:
            num_held = 0 if last else max((_overlap(text, stop) for stop in self._stop_strings), default=0)
            piece, self._held = text[: len(text) - num_held], text[len(text) - num_held :]
        self.text += piece
        return piece


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of `text` could be the beginning of `stop`, at most."""
    return next((n for n in range(len(stop) - 1, 0, -1) if text.endswith(stop[:n])), 0)


def visible(text: str) -> str:
    r"""Model text made safe for a terminal: control characters, escape sequences and such are shown as `\x1b`."""
    return UNSAFE.sub(lambda found: f"\\x{ord(found[0]):02x}" if found[0] < "\xff" else f"\\u{ord(found[0]):04x}", text)
