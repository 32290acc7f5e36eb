"""What the user sees while text is made: streamed tokens, their colours, progress, messages. Knows no engine.

The text goes to standard output and everything else to standard error, so that `> file` keeps the text alone. Model
text is data: it passes `text.visible` and is never read as markup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from rich.console import Console, RenderableType
from rich.segment import Segment, Segments
from rich.style import Style
from rich.text import Text

from outrider.text import visible

Origin = Literal["accepted", "next"]

STYLES: dict[Origin, Style] = {"accepted": Style(color="green", bold=True), "next": Style(color="yellow")}
"""By a token's origin; they differ without colours too."""
PLAIN = Style(dim=True)
"""The text of a plain run beside a speculative one."""


class Screen:
    """Where text and notes go.

    Args:
        text: for generated text; None shows it nowhere.
        notes: for everything else.
        quiet: no notes but errors.
    """

    def __init__(self, text: Console | None, notes: Console, *, quiet: bool = False) -> None:
        self._text, self._notes, self.quiet = text, notes, quiet
        self._coloured = False
        self._open_line: Console | None = None  # whose cursor is not at the start of a line

    def token(self, text: str, origin: Origin = "next") -> None:
        """A piece of the text, in the colour of its origin once there is a legend."""
        if self._text is not None:
            self._write(self._text, text, STYLES[origin] if self._coloured else None)

    def plain_token(self, text: str, origin: Origin = "next") -> None:
        """A piece of a text that is made for comparison only, so it is a note; always in the same style."""
        if not self.quiet:
            self._write(self._notes, text, PLAIN)

    def end_text(self) -> None:
        """Finish the line that the text ended on."""
        if self._open_line is not None:
            self._write(self._open_line, "\n", None)

    def legend(self) -> None:
        """On a terminal, colour the tokens from here on, and say what the colours mean."""
        if self._text is not None and self._text.is_terminal and not self.quiet:
            self._coloured = True
            accepted, following = ("accepted draft", STYLES["accepted"]), ("next token", STYLES["next"])
            self.note(Text.assemble("Colours: ", accepted, ", ", following, " of the target"))

    def note(self, content: RenderableType) -> None:
        """A line, a table: anything that is not the text."""
        if not self.quiet:
            self.end_text()
            shown = Text(visible(content)) if isinstance(content, str) else content
            self._notes.print(shown, soft_wrap=isinstance(shown, Text))

    def warn(self, message: str) -> None:
        """A note that should not be overlooked."""
        self.note(Text.assemble(("Warning: ", "bold yellow"), visible(message)))

    def error(self, message: str) -> None:
        """Why the command failed; shown even when quiet."""
        self.end_text()
        self._notes.print(Text.assemble(("Error: ", "bold red"), visible(message)), soft_wrap=True)

    @contextmanager
    def loading(self) -> Iterator[Callable[[str, int, int], None]]:
        """A progress bar on a terminal, gone at the end; yields what `outrider.load` calls with its progress."""
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        disabled = self.quiet or not self._notes.is_terminal
        with Progress(*columns, console=self._notes, transient=True, disable=disabled) as bar:
            task = bar.add_task("Starting", total=None)

            def report(name: str, done: int, total: int) -> None:
                bar.update(task, description=f"Loading {visible(name)}", completed=done, total=total)

            yield report

    def _write(self, console: Console, text: str, style: Style | None) -> None:
        if text:
            # A segment is printed as it is: no wrapping, no markup, tabs stay tabs.
            console.print(Segments([Segment(visible(text), style)]), end="", soft_wrap=True)
            self._open_line = None if text.endswith("\n") else console


def open_screen(*, quiet: bool = False, json: bool = False) -> Screen:
    """The screen of this process.

    Args:
        quiet: text or JSON alone.
        json: standard output is kept for a JSON object: the text goes with the notes, or nowhere if quiet.
    """
    out = Console(markup=False, emoji=False, highlight=False)
    err = Console(stderr=True, markup=False, emoji=False, highlight=False)
    text = out if not json else None if quiet else err
    return Screen(text, err, quiet=quiet)
