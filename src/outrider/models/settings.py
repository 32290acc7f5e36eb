"""Single values of a model's config, checked as they are read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from outrider.errors import CheckpointError

ADAPTER_HINT = "The transformers adapter may run this model."


def integer(settings: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """The whole number `name`, or the default where it is absent or null.

    Raises:
        CheckpointError: it is anything else.
    """
    value = settings.get(name)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool):
        raise CheckpointError(f"The model's config has {name} = {value!r}; it must be a whole number.")
    return value


def positive(settings: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """The finite number over 0 `name`, or the default where it is absent or null.

    Raises:
        CheckpointError: it is anything else.
    """
    value = settings.get(name)
    value = default if value is None else value
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
        raise CheckpointError(f"The model's config has {name} = {value!r}; it must be a number over 0.")
    return float(value)


def record(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The dictionary `name`, empty where it is absent or null.

    Raises:
        CheckpointError: it is anything else.
    """
    value = settings.get(name) or {}
    if not isinstance(value, dict):
        raise CheckpointError(f"The model's config has {name} = {value!r}; it must be a dictionary.")
    return value
