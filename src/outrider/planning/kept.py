"""Plans that are kept: which question a plan answers, on which machine and of which model it holds. No torch here."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import outrider
from outrider.errors import CheckpointError
from outrider.models.locate import EMBEDDED_NAME, SHIPPED_HEAD, embedded_path
from outrider.planning.emit import parts_of
from outrider.planning.machine import processor
from outrider.planning.plan import Plan, from_json, to_json
from outrider.storage import cache_folder

HEADS = ("eagle", "medusa", "mlp")
"""Drafters whose argument is a head."""

BUILT_IN = "built-in"
"""Stands for the prompts that come with the package."""


@dataclass(frozen=True)
class Asked:
    """What a plan was asked for; another question has another plan.

    Args:
        target: as users type it.
        drafters: as users type them.
        temperatures: of the texts.
        batches: sequences decoded together.
        precision: as users type it.
        prompts: a digest of the user's prompts, or `BUILT_IN`.
        max_new_tokens: of each text.
    """

    target: str
    drafters: tuple[str, ...]
    temperatures: tuple[float, ...]
    batches: tuple[int, ...]
    precision: str = "auto"
    prompts: str = BUILT_IN
    max_new_tokens: int = 48

    @property
    def path(self) -> Path:
        """Where its plan is kept."""
        text = json.dumps(asdict(self), sort_keys=True)
        return cache_folder("plans") / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        found: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return found


def digest(path: Path) -> str:
    """Of a file of prompts; "" if it cannot be read, which is refused later and in words."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def this_machine(threads: int | None = None) -> dict[str, Any]:
    """What costs depend on, but for the model, without asking torch.

    Args:
        threads: as set by the user; None for what torch takes by itself.
    """
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "processor": processor(),
        "cores": usable,
        "threads": str(threads or os.environ.get("OMP_NUM_THREADS") or "torch's choice"),
        "torch": _version("torch"),
        "outrider": outrider.__version__,
    }


def this_model(target: str, drafters: Iterable[str] = ()) -> dict[str, Any]:
    """What tells a target, and draft models and heads, from others of the same names: files, sizes and times.

    Args:
        target: as users type it.
        drafters: likewise; of what is no file here, such as an id, nothing is known.
    """
    found, auto = _files(_place(target, None), ""), f"eagle:{EMBEDDED_NAME}" if target == EMBEDDED_NAME else ""
    for drafter in drafters:
        for part in parts_of(auto if drafter == "auto" else drafter):
            if part.argument:
                embedded = SHIPPED_HEAD if part.name in HEADS else None
                found |= _files(_place(part.argument, embedded), f"{part.typed}: ")
    return found


def _place(name: str, embedded: Path | None) -> Path:
    """Where a name is, if it is a file or folder here; the embedded one is a head, or the model."""
    if name != EMBEDDED_NAME:
        return Path(name).expanduser()
    try:
        return embedded or embedded_path()
    except CheckpointError:
        return Path(name)  # said where it is loaded


def _files(path: Path, prefix: str) -> dict[str, Any]:
    found = {}
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        with contextlib.suppress(OSError):
            if file.suffix in (".gguf", ".safetensors") or file.name == "config.json":
                found[prefix + file.name] = [file.stat().st_size, file.stat().st_mtime_ns]
    return found


@dataclass(frozen=True)
class Found:
    """What is kept for a question.

    Args:
        plan: whole or partial; None if nothing can be used.
        note: why something that is there cannot be used, or "".
    """

    plan: Plan | None
    note: str = ""


def find(asked: Asked, threads: int | None = None) -> Found:
    """The kept plan, if it is of this machine and this model.

    Args:
        asked: the question.
        threads: see `this_machine`.
    """
    try:
        plan = from_json(asked.path.read_text(encoding="utf-8"))
    except OSError:
        return Found(None)
    except ValueError:
        return Found(None, "The plan that was kept cannot be read; it is measured again.")
    other = of_another(plan, asked.target, asked.drafters, threads)
    if other:
        return Found(None, f"The plan that was kept is of {other}; it is measured again.")
    if plan.asked != asked.as_dict():
        return Found(None, "The plan that was kept is of another question; it is measured again.")
    return Found(plan)


def of_another(plan: Plan, target: str, drafters: Iterable[str], threads: int | None = None) -> str:
    """What a plan was measured on that is not here: another machine or model, and how it differs; "" for neither.

    Args:
        plan: kept, or from a file.
        target: as users type it.
        drafters: likewise.
        threads: see `this_machine`.
    """
    here = {"machine": this_machine(threads), "model": this_model(target, drafters)}
    for what, held in (("machine", plan.machine), ("model", plan.model)):
        changed = _changed(held, here[what])
        if changed:
            return f"another {what} ({changed})"
    return ""


def keep(plan: Plan, asked: Asked) -> None:
    """Write it where `find` looks; without a place it is measured in every run."""
    with contextlib.suppress(OSError):
        asked.path.parent.mkdir(parents=True, exist_ok=True)
        new = asked.path.with_suffix(f".{os.getpid()}")
        new.write_text(to_json(plan), encoding="utf-8")
        new.replace(asked.path)


def _changed(held: dict[str, Any], here: dict[str, Any]) -> str:
    """The first thing in which both differ, in words; "" for nothing."""
    for name in {**held, **here}:
        if held.get(name) != here.get(name):
            if isinstance(held.get(name, ""), str) and isinstance(here.get(name, ""), str):
                return f"{name} {held.get(name, 'unknown')}, here {here.get(name, 'unknown')}"
            return f"{name} is another one"
    return ""


def _version(package: str) -> str:
    """Of a package that is installed, from the name of the folder beside it that describes it; "" if there is none.

    `importlib.metadata` would say the same, but it reads and parses whole files for it: a plan is to be shown at once.
    """
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return ""
    described = Path(spec.origin).parents[1].glob(f"{package}-*.dist-info")
    return next((folder.name.removesuffix(".dist-info").partition("-")[2] for folder in described), "")
