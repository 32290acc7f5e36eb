"""Where figures come from: the command, the source, the versions and the machine. Kept with every report."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence as Ordered
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from outrider.core import Model
from outrider.planning.costs import fingerprint
from outrider.planning.machine import processor

EXCEPT_RESULTS = ":(top,exclude)benchmarks/results"
PACKAGES = ("outrider", "torch", "transformers", "tokenizers", "safetensors", "gguf", "numpy")


def provenance(typed: Ordered[str] = (), model: Model | None = None) -> dict[str, Any]:
    """Everything that is needed to measure the same again.

    Args:
        typed: the words of the command; without them, the script that runs and its arguments.
        model: the target, if it may be on another device than the CPU.
    """
    return {
        "command": shlex.join(typed or ["python", *sys.argv]),
        "commit": commit_of(Path(__file__)),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "machine": {
            "processor": processor() if model is None else fingerprint(model)["processor"],
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "memory_bytes": _memory(),
            "system": platform.platform(),
        },
    }


def commit_of(file: Path) -> str | None:
    """The commit of the checkout that a file belongs to; None outside of any.

    "+changes" stands behind it if anything but the results of benchmarks was changed.
    A file that git does not track may lie in a checkout of something else, such as a virtual environment in there.
    """
    if _git(file.parent, "ls-files", "--error-unmatch", file.name) is None:
        return None
    commit = _git(file.parent, "rev-parse", "HEAD")
    changed = _git(file.parent, "status", "--porcelain", "--untracked-files=no", "--", ":/", EXCEPT_RESULTS)
    return None if commit is None else commit + ("+changes" if changed else "")


def _git(folder: Path, *arguments: str) -> str | None:
    """What git prints, or None if it refuses or is not there."""
    try:
        found = subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=folder, check=False)
    except OSError:
        return None
    return found.stdout.strip() if found.returncode == 0 else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
