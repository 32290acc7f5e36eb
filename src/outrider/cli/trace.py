"""The command `outrider trace`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outrider.cli.leaving import leaving_cleanly
from outrider.cli.screen import open_screen

File = Annotated[
    str, typer.Argument(help="A trace that `outrider generate` or `outrider bench` wrote with --trace.", metavar="FILE")
]
Html = Annotated[
    str | None,
    typer.Option(help="Write it as one page that needs nothing else, and print no summary.", metavar="FILE"),
]


def show_trace(file: File, html: Html = None) -> None:
    """Show what speculation did: a summary of a trace, or a page with every token, tree and round.

    A trace that ends early, such as that of a run that was killed, is shown as far as it goes.
    """
    with leaving_cleanly(open_screen(), lambda name: "--html" if name == "html" else name):
        if html is None:
            _print_summary(file)
        else:
            _write_page(file, html)


def _print_summary(file: str) -> None:
    from rich.console import Console
    from rich.text import Text

    from outrider.text import visible
    from outrider.tracing.reading import read_trace
    from outrider.tracing.summary import summary

    console = Console(markup=False, emoji=False, highlight=False)
    for content in summary(read_trace(file, "file")):
        shown = Text(visible(content)) if isinstance(content, str) else content
        console.print(shown, soft_wrap=isinstance(shown, Text))


def _write_page(file: str, html: str) -> None:
    from outrider.benching.report import check_place, write
    from outrider.errors import InvalidOption
    from outrider.tracing.page import as_page
    from outrider.tracing.reading import read_trace

    if Path(html).exists() and Path(file).exists() and Path(html).samefile(file):
        raise InvalidOption("html", html, "another file than the trace", "It would overwrite it.")
    check_place("html", Path(html))
    write("html", Path(html), as_page(read_trace(file, "file")))
