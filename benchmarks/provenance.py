"""Where a figure comes from: kept beside every committed result."""

from __future__ import annotations

import platform
import subprocess
import sys
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from outrider.planning.machine import processor

PACKAGES = ("outrider", "torch", "transformers", "tokenizers", "numpy", "gguf")
RESULTS = Path(__file__).parent / "results"


def provenance() -> dict[str, Any]:
    """Command, commit, versions and machine."""
    return {
        "command": " ".join(["python", *sys.argv]),
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(
            _git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":!/benchmarks/results")
        ),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        "machine": {
            "processor": processor(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "threads": torch.get_num_threads(),
            "system": platform.platform(),
        },
    }


def _git(*arguments: str) -> str:
    found = subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=Path(__file__).parent, check=False)
    return found.stdout.strip()
