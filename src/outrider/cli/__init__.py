"""The command line. Nothing here imports torch before a command has read its options, so that help comes at once."""

from outrider.cli.app import main

__all__ = ["main"]
