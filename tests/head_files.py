"""Folders of heads for tests: written, changed by hand, compared.

folder = edited(tmp_path, written(tmp_path, head, "medusa"), lambda settings, tensors: tensors.pop("0.0.linear.weight"))
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from outrider.drafters.heads.files import write_head
from outrider.drafters.heads.stored import StoredHead

Change = Callable[[dict[str, Any], dict[str, torch.Tensor]], Any]


def written(place: Path, head: StoredHead, kind: str, target: str = "owner/target") -> Path:
    """A folder that `write_head` wrote."""
    write_head(head, place / kind, kind, target=target)
    return place / kind


def edited(folder: Path, change: Change) -> Path:
    """The folder with its config and its tensors changed."""
    file = next(folder.glob("*.safetensors"))
    settings, tensors = json.loads((folder / "config.json").read_text()), load_file(file)
    change(settings, tensors)
    return save(folder, settings, tensors, file.name)


def save(folder: Path, settings: dict[str, Any], tensors: dict[str, torch.Tensor], file: str = "x.safetensors") -> Path:
    """A folder with these files."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings))
    save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, folder / file)
    return folder


def differences(one: StoredHead, other: StoredHead) -> list[str]:
    """Where two heads differ, to the bit."""
    found = [] if one.config == other.config else [f"{one.config} and {other.config}"]
    found += sorted(one.weights.keys() ^ other.weights.keys())
    for name in one.weights.keys() & other.weights.keys():
        a, b = one.weights[name], other.weights[name]
        if a.dtype != b.dtype or not torch.equal(a, b):
            found.append(name)
    ids = [None if head.draft_ids is None else head.draft_ids.tolist() for head in (one, other)]
    return found + ([] if ids[0] == ids[1] else ["draft_ids"])
