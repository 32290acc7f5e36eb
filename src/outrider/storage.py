"""Where what was built or measured is kept from one run to the next."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """The folder of this name in OUTRIDER_CACHE, or in ~/.cache/outrider; it may not exist yet."""
    root = os.environ.get("OUTRIDER_CACHE")
    return (Path(root) if root else Path.home() / ".cache" / "outrider") / name
