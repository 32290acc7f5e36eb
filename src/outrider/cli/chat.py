"""A conversation at the terminal, or line by line from a pipe. Every turn sends the whole conversation again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any

from outrider.cli.report import ending, problems, tables
from outrider.cli.runs import Run, decode
from outrider.cli.screen import Screen
from outrider.errors import InvalidOption, OutriderError
from outrider.generation import Result, TextEngine
from outrider.rounds import Round
from outrider.stats import collect

HELP = "/reset forgets the conversation, /stats shows the counts so far, /exit or Ctrl-D ends; Ctrl-C stops an answer."
PROMPT = "> "

Messages = list[dict[str, str]]


class Chat:
    """One conversation.

    Args:
        engine: answers.
        screen: shows.
        request: options of `TextEngine.add` for every answer, a seed among them; answer i uses seed + i.
        opening: messages that come first and that /reset keeps.
    """

    def __init__(self, engine: TextEngine, screen: Screen, request: dict[str, Any], opening: Messages) -> None:
        self._engine, self._screen, self._request = engine, screen, request
        self._opening, self.messages = opening, list(opening)
        self.rounds: list[Round] = []
        self._prefill_seconds = 0.0
        self._num_answers = 0

    def run(self) -> None:
        """Read lines and answer them until /exit or the end of input."""
        self._screen.note(HELP)
        for line in _lines():
            if line.strip() == "/exit":
                break
            self.take(line)
        self.show_stats()

    def take(self, line: str) -> None:
        """Obey a command, or answer."""
        command = line.strip()
        if command == "/reset":
            self.messages = list(self._opening)
            self._screen.note("The conversation is forgotten.")
        elif command == "/stats":
            self.show_stats()
        elif line.startswith("/"):
            self._screen.note(f"There is no command {command!r}. {HELP} Begin with a space to send it as text.")
        elif command:
            self._answer(command)

    def show_stats(self) -> None:
        """The closing table, over all answers so far."""
        if not self.rounds:
            return
        engine = self._engine.engine
        stats = collect(
            self.rounds,
            drafter=engine.drafter.name,
            note=getattr(engine.drafter, "note", ""),
            rule=engine.rule.name,
            lossless=engine.rule.lossless,
            precision=engine.target.precision,
            prefill_seconds=self._prefill_seconds,
        )
        for table in tables(stats):
            self._screen.note(table)

    def _answer(self, text: str) -> None:
        asked = [*self.messages, {"role": "user", "content": text}]
        seed = (self._request["seed"] + self._num_answers) % 2**63
        try:
            sequence = self._engine.add(messages=asked, **{**self._request, "seed": seed})
        except OutriderError as error:
            self._screen.error(f"{error} The message was not sent; /reset starts a new conversation.")
            return
        run = decode(self._engine, sequence, self._screen.token)
        self._screen.end_text()
        self._keep(asked, run)
        self._report(run.result)

    def _keep(self, asked: Messages, run: Run) -> None:
        """The turn becomes part of the conversation, unless nothing came of it."""
        self._num_answers += 1
        self.rounds += run.rounds
        self._prefill_seconds += run.result.stats.prefill_seconds
        if run.result.text:
            self.messages = [*asked, {"role": "assistant", "content": run.result.text}]

    def _report(self, result: Result) -> None:
        if ending(result):
            self._screen.note(ending(result))
        for problem in problems(result.stats):
            self._screen.warn(problem)
        if result.error is not None:
            self._screen.error(str(result.error))


def _lines() -> Iterator[str]:
    """Lines typed or piped in; Ctrl-C while typing drops the line."""
    if sys.stdin is None:
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        for line in sys.stdin.buffer:
            yield _decoded(line)
        return
    with suppress(ImportError):
        import_module("readline")  # gives input() its line editing
    while True:
        try:
            line = input(PROMPT)
        except KeyboardInterrupt:
            sys.stderr.write("\n")
            continue
        except EOFError:
            sys.stderr.write("\n")
            return
        yield line


def _decoded(line: bytes) -> str:
    try:
        return line.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InvalidOption("message", line, "UTF-8 text") from error
