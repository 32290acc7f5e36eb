"""How every command ends that does not end well."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

from outrider.cli.screen import Screen
from outrider.errors import InvalidOption, OutriderError

USER_ERROR, INTERRUPTED = 2, 130


@contextmanager
def leaving_cleanly(
    screen: Screen, typed: Callable[[str], str] = str, interrupted: Callable[[], str] = lambda: "Interrupted."
) -> Iterator[None]:
    """A user's mistake becomes a message and exit code 2, Ctrl-C code 130; anything else is a bug and shows itself.

    Args:
        screen: shows the message.
        typed: from an option's name in the library to what users type.
        interrupted: what to say after Ctrl-C.
    """
    try:
        yield
    except OutriderError as error:
        if isinstance(error, InvalidOption):
            screen.error(str(InvalidOption(typed(error.name), error.value, error.allowed, error.fix)))
        else:
            screen.error(str(error))
        raise typer.Exit(USER_ERROR) from error
    except KeyboardInterrupt as interrupt:
        screen.error(interrupted())
        raise typer.Exit(INTERRUPTED) from interrupt
