"""Configuration files of a model and their single values, checked as they are read."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
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


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds a dictionary.

    Raises:
        CheckpointError: missing, not JSON, or something else.
    """
    try:
        settings = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent} has no {path.name}, so it is not a Hugging Face model folder.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}.") from error
    if not isinstance(settings, dict):
        raise CheckpointError(f"{path} holds a {type(settings).__name__}, not a dictionary.")
    return settings
