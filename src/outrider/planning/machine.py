"""The name of this machine's processor. No torch here: plans that are kept are shown without it."""

from __future__ import annotations

import contextlib
import platform
from functools import cache
from pathlib import Path


@cache
def processor() -> str:
    """As the system names it."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        if names:
            return names[0]
    return platform.processor() or platform.machine()
