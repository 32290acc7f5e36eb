"""HTML pages that need nothing else: no network; what may run and what may style is named, and all else is refused."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from importlib.resources import files

from outrider.text import visible

INLINE_STYLES = "style-src 'unsafe-inline'"
"""Policy of a page without a script."""


def safe(text: object) -> str:
    """Any text as text of a page: no markup, no control characters, no marks that turn its direction."""
    return escape(visible(str(text)), quote=True)


def resource(name: str) -> str:
    """A file of the package's data."""
    return files("outrider").joinpath(f"data/{name}").read_text(encoding="utf-8")


def page(
    title: str, style: str, main: Iterable[str], *, policy: str = INLINE_STYLES, behind: Iterable[str] = ()
) -> str:
    """A whole page.

    Args:
        title: any text.
        style: CSS.
        main: lines of HTML whose texts are `safe`.
        policy: what the page may do; beyond that a browser loads and runs nothing, even of text that became markup.
        behind: lines of HTML after the main part, such as scripts.
    """
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; {policy}">',
            f"<title>{safe(title)}</title>",
            f"<style>{style}</style>",
            "</head>",
            "<body>",
            "<main>",
            f"<h1>{safe(title)}</h1>",
            *main,
            "</main>",
            *behind,
            "</body>",
            "</html>",
            "",
        ]
    )
