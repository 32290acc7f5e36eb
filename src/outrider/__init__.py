"""outrider: exact speculative decoding. The same text law as the target alone, with fewer target forwards."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outrider.certifying import Certificate, certify
    from outrider.core import Block, Draft, Drafter, Model, Output, Sequence
    from outrider.engine import Engine
    from outrider.errors import OutriderError
    from outrider.generate_hook import custom_generate
    from outrider.generation import Piece, Result, TextEngine
    from outrider.loading import load
    from outrider.options import Sampling
    from outrider.stats import Stats
    from outrider.tracing.recording import trace

__version__ = "0.1.0"

_HOMES = {
    "Block": "core",
    "Certificate": "certifying",
    "Draft": "core",
    "Drafter": "core",
    "Engine": "engine",
    "Model": "core",
    "Output": "core",
    "OutriderError": "errors",
    "Piece": "generation",
    "Result": "generation",
    "Sampling": "options",
    "Sequence": "core",
    "Stats": "stats",
    "TextEngine": "generation",
    "certify": "certifying",
    "custom_generate": "generate_hook",
    "load": "loading",
    "trace": "tracing.recording",
}

__all__ = [
    "Block",
    "Certificate",
    "Draft",
    "Drafter",
    "Engine",
    "Model",
    "Output",
    "OutriderError",
    "Piece",
    "Result",
    "Sampling",
    "Sequence",
    "Stats",
    "TextEngine",
    "certify",
    "custom_generate",
    "load",
    "trace",
]


def __getattr__(name: str) -> Any:
    # Importing outrider stays quick: torch is imported with the first name that needs it.
    if name not in _HOMES:
        raise AttributeError(f"module 'outrider' has no attribute {name!r}")
    return getattr(import_module(f"outrider.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
