"""Commands whose modules are imported when they are called or listed, so that the others need not wait for them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

LATER = {
    "plan": ("plan", "plan"),
    "bench": ("bench", "bench"),
    "train": ("train", "train"),
    "convert": ("convert", "convert"),
    "certify": ("certify", "certify"),
    "trace": ("trace", "show_trace"),
}
"""Name -> module in here, and what it has under which name: a function, or a `typer.Typer` of several commands."""


class Commands(TyperGroup):
    """The commands of the app, then those of `LATER`."""

    def list_commands(self, ctx: Any) -> list[str]:
        """All names."""
        return list(dict.fromkeys([*super().list_commands(ctx), *LATER]))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """That of a name; for a name that there is not, all are imported, so that similar ones can be suggested."""
        for name in (cmd_name,) if cmd_name in (*self.commands, *LATER) else LATER:
            if name not in self.commands:
                self.commands[name] = _command(name)
        return super().get_command(ctx, cmd_name)


def _command(name: str) -> Any:
    module, attribute = LATER[name]
    found, home = getattr(import_module(f"outrider.cli.{module}"), attribute), typer.Typer()
    if isinstance(found, typer.Typer):
        home.add_typer(found, name=name)
    else:
        home.command(name)(found)
    return get_group(home).commands[name]
