"""Writes what engines do to a file (docs/traces.md). Nothing of this is in an engine that is not traced."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Ordered
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from outrider.core import Coins, Sequence
from outrider.engine import Engine
from outrider.errors import InvalidOption
from outrider.generation import TextEngine
from outrider.rounds import Round
from outrider.text import TextStream
from outrider.tracing.lines import header, round_line, text_line
from outrider.tracing.noting import Decided, TracedPace, TracedRule

Decode = Callable[[list[int]], str]


@contextmanager
def trace(engine: TextEngine | Engine, path: str | Path, **about: Any) -> Iterator[Tracer]:
    """Write everything that an engine decodes in this context to a file, which `outrider trace` shows.

    Args:
        engine: what `outrider.load` returned, or an engine of your own (then without texts).
        path: of the file, which is overwritten.
        **about: `target`, `drafter`, `sampling` and `seed` for the first line, see `lines.header`.

    Raises:
        InvalidOption: the file cannot be written: at once, or at the end if the disk is full.
    """
    inner, decode = (engine.engine, engine.tokenizer.decode) if isinstance(engine, TextEngine) else (engine, None)
    with Tracer(path, header(inner, **about)) as tracer, tracer.following(inner, decode):
        yield tracer


class Tracer:
    """A trace that is being written; use it as a context. A disk that is full ends the trace, not the decoding.

    Args:
        path: of the file, which is overwritten.
        first: the first line, see `lines.header`.

    Attributes:
        recording: False while nothing is to be written down.
        stopped: True if more was to be decoded.

    Raises:
        InvalidOption: the file cannot be written; at the end, if it could not be written to its end.
    """

    def __init__(self, path: str | Path, first: Mapping[str, Any]) -> None:
        self.recording, self.stopped = True, False
        self._path = str(path)
        self._failed: OSError | None = None
        self._num_texts = self._num_steps = self._num_rounds = self._num_tokens = 0
        self._followed: dict[Sequence, _Followed] = {}
        try:
            self._file = Path(path).open("w", encoding="ascii")  # noqa: SIM115 - closed on exit
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            raise self._not_written(error) from error
        self._write(first)

    def __enter__(self) -> Tracer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        how = "failed" if kind else "stopped" if self.stopped or self._followed else "finished"
        counts = {"texts": self._num_texts, "rounds": self._num_rounds, "tokens": self._num_tokens}
        self._write({"end": "stopped" if kind is KeyboardInterrupt else how, **counts})
        try:
            self._file.close()
        except OSError as full:
            self._failed = self._failed or full
        if self._failed is not None and kind is None:
            raise self._not_written(self._failed) from self._failed

    @contextmanager
    def following(
        self,
        engine: Engine,
        decode: Decode | None = None,
        *,
        name: str = "",
        kind_of: Callable[[Sequence], str] = lambda sequence: "",
    ) -> Iterator[None]:
        """Write down what an engine does in this context.

        Args:
            engine: may have sequences already.
            decode: token ids to text; None for ids only.
            name: what the engine is called in the trace; its drafter's name if empty.
            kind_of: the kind of a sequence's prompt.
        """
        recorder = _Recorder(self, engine, decode, name or engine.drafter.name, kind_of)
        rule, pace = engine.rule, engine.pace
        engine.rule = TracedRule(rule, recorder.decided)
        engine.pace = TracedPace(pace, recorder.begins, recorder.ended)
        try:
            yield
        finally:
            engine.rule, engine.pace = rule, pace

    def text_follows(self, sequence: Sequence, decode: Decode | None) -> _Followed:
        """What is remembered of a sequence from round to round."""
        if sequence not in self._followed:
            self._followed[sequence] = _Followed(None if decode is None else TextStream(decode))
        return self._followed[sequence]

    def text_begins(self, followed: _Followed, line: Mapping[str, Any]) -> None:
        """Write the line of a sequence."""
        followed.number = self._num_texts
        self._num_texts += 1
        self._write({"text": followed.number, **line})

    def round_ends(self, r: Round, followed: _Followed, line: Mapping[str, Any]) -> None:
        """Write the line of a round."""
        numbers = {"round": followed.rounds, "text": followed.number, "step": self._num_steps}
        self._write({**numbers, **line})
        followed.rounds += 1
        self._num_rounds += 1
        self._num_tokens += len(r.token_ids)
        if r.finish_reason is not None:
            del self._followed[r.sequence]

    def step_ends(self) -> None:
        """All rounds of a step were written."""
        self._num_steps += 1

    def _write(self, record: Mapping[str, Any]) -> None:
        if self._failed is None:
            try:
                self._file.write(json.dumps(record, allow_nan=False, separators=(",", ":")) + "\n")
            except OSError as error:
                self._failed = error

    def _not_written(self, error: Exception) -> InvalidOption:
        reason = getattr(error, "strerror", None) or error
        return InvalidOption("trace", self._path, "a file that can be written", f"{reason}.")


@dataclass
class _Followed:
    """A sequence that is being traced."""

    stream: TextStream | None  # makes the text where the engine makes none
    number: int = -1  # in the trace, from its first round on
    rounds: int = 0
    uses: dict[str, int] = field(default_factory=dict)  # of a combination's sources, before the round


class _Recorder:
    """Turns what one engine does into lines of a tracer."""

    def __init__(
        self, tracer: Tracer, engine: Engine, decode: Decode | None, name: str, kind_of: Callable[[Sequence], str]
    ) -> None:
        self._tracer, self._engine, self._decode, self._name, self._kind_of = tracer, engine, decode, name, kind_of
        self._decisions: dict[int, Decided] = {}  # by the coins of the sequence, which are its own
        self._texts: dict[int, str] = {}  # of single tokens
        self._uses: Callable[[Sequence], dict[str, int]] | None = getattr(engine.drafter, "uses", None)

    def begins(self, sequences: list[Sequence]) -> None:
        """Before a step."""
        if self._tracer.recording and self._uses is not None:
            for sequence in sequences:
                self._tracer.text_follows(sequence, self._decode).uses = self._uses(sequence)

    def decided(self, coins: Coins, decided: Decided) -> None:
        """While a step verifies."""
        self._decisions[id(coins)] = decided

    def ended(self, rounds: list[Round]) -> None:
        """After a step."""
        if self._tracer.recording:
            for r in rounds:
                self._write(r)
            self._tracer.step_ends()
        self._decisions.clear()

    def _write(self, r: Round) -> None:
        sequence, followed = r.sequence, self._tracer.text_follows(r.sequence, self._decode)
        if followed.rounds == 0:
            names = {"name": self._name, "kind": self._kind_of(sequence)}
            self._tracer.text_begins(followed, text_line(sequence, self._engine, self._text_of, **names))
        decided = self._decisions.get(id(sequence.verify_coins))
        source = self._source(sequence, followed) if r.num_drafted else ""
        line = round_line(r, decided, source, _pieces(r, followed), self._text_of_one)
        self._tracer.round_ends(r, followed, line)

    def _source(self, sequence: Sequence, followed: _Followed) -> str:
        """Who drafted: of a combination, the part whose uses grew."""
        if self._uses is None:
            return self._engine.drafter.name
        grown = [name for name, uses in self._uses(sequence).items() if uses > followed.uses.get(name, 0)]
        return grown[0] if len(grown) == 1 else self._engine.drafter.name

    def _text_of(self, ids: list[int]) -> str:
        return "" if self._decode is None else self._decode(ids)

    def _text_of_one(self, ids: list[int]) -> str:
        (token,) = ids
        if token not in self._texts:
            self._texts[token] = self._text_of(ids)
        return self._texts[token]


def _pieces(r: Round, followed: _Followed) -> Ordered[str]:
    """The text that became final with each emitted token."""
    if r.pieces or followed.stream is None:
        return r.pieces or [""] * len(r.token_ids)
    stream, stops = followed.stream, r.sequence.stop_ids
    pieces = [stream.push(token) if token not in stops else "" for token in r.token_ids]
    if pieces and r.finish_reason is not None:
        pieces[-1] += stream.finish()
    return pieces
