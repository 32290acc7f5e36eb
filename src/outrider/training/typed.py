"""Options of `outrider train` as users know them: names and ranges. No torch here: the help reads them too."""

from __future__ import annotations

from outrider.errors import InvalidOption

RANGES: dict[str, tuple[float, float]] = {
    "steps": (1, 10**7),
    "num_tokens": (1000, 10**10),
    "seed": (0, 2**31 - 1),
    "minutes": (1, 10**5),
    "memory": (0.5, 10**5),
    "learning_rate": (0, 1),
    "tokens_per_batch": (64, 10**7),
    "recipe.steps": (1, 8),
    "num_heads": (1, 16),
}
"""Smallest and largest, by field of `run.Options` or of a kind."""

OPEN = {"learning_rate"}
"""Whose smallest is itself not allowed."""

FEWEST_DRAFTED = 16
"""Tokens of a draft vocabulary."""

MOST_LAYERS = 8
"""States that an EAGLE-3 head reads."""

NAMES = {
    "num_tokens": "tokens",
    "draft_vocab_size": "draft-vocabulary",
    "num_heads": "heads",
    "tokens_per_batch": "batch-tokens",
    "recipe.steps": "unroll",
}
"""Fields whose option has another name."""


def typed(field: str) -> str:
    """The option of a field, without its dashes."""
    return NAMES.get(field, field).replace("_", "-")


def allowed(field: str) -> str:
    """The range of a field in words."""
    low, high = RANGES[field]
    return f"{'above ' if field in OPEN else ''}{low:,} to {high:,}"


def check_range(field: str, value: float) -> None:
    """Refuse what is out of range, or no number.

    Raises:
        InvalidOption: naming the option.
    """
    low, high = RANGES[field]
    if not low <= value <= high or (field in OPEN and value == low):
        raise InvalidOption(typed(field), value, allowed(field))
