"""Trained heads on disk: one door in, whatever wrote the file, and one door out.

Formats are told by their keys and tensors, never by a class name: the same name stands for different graphs. What a
file leaves open in a way that could change the graph is refused, and the error says what to add.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from outrider.drafters.heads.config import EagleConfig, MedusaConfig
from outrider.drafters.heads.formats import (
    HeadFolder,
    Hints,
    Shapes,
    check_new,
    compare,
    open_folder,
    save_folder,
    text,
)
from outrider.drafters.heads.formats_eagle import (
    Notes,
    eagle_shapes,
    read_eagle1,
    read_eagle3,
    read_speculators,
)
from outrider.drafters.heads.formats_eagle_write import write_eagle1, write_eagle3, write_speculators
from outrider.drafters.heads.formats_layers import NESTED
from outrider.drafters.heads.formats_medusa import medusa_shapes, read_medusa, write_medusa
from outrider.drafters.heads.formats_mlp import read_mlp
from outrider.drafters.heads.formats_vocabulary import fault
from outrider.drafters.heads.stored import StoredHead
from outrider.errors import CheckpointError, InvalidOption, UnsupportedModel
from outrider.models.settings import record

EAGLE_FORMATS = ("safeailab-eagle1", "safeailab-eagle3", "speculators-eagle3")
MEDUSA_FORMATS = ("medusa", "vllm-medusa", "tgi-medusa")
FORMATS = EAGLE_FORMATS + MEDUSA_FORMATS
"""What can be written."""


@dataclass(frozen=True)
class Reading:
    """What was read.

    Args:
        head: the head.
        format: one of `FORMATS`, "modelopt-eagle3" or "mlp-speculator".
        target: the target's name, where the file has it, else "".
        notes: what was taken one way and could have been meant in another.
    """

    head: StoredHead
    format: str
    target: str
    notes: tuple[str, ...]


def read_head(
    path: str | Path,
    num_target_layers: int | None = None,
    *,
    vocab_size: int | None = None,
    feature_layers: tuple[int, ...] | None = None,
    d2t: Literal["offset", "absolute"] | None = None,
) -> StoredHead:
    """Read a head, float32, in whatever format it is.

    Args:
        path: a folder with config.json and a safetensors file.
        num_target_layers: N of the target; EAGLE-1 heads need it, and EAGLE-3 heads that do not name their layers.
        vocab_size: Vt of the target; Medusa heads need it that have no output of their own and do not name it.
        feature_layers: ids of the target's states that an EAGLE head reads, as transformers counts `hidden_states`,
            instead of those that the file tells of.
        d2t: what a `d2t` holds, where that cannot be told.

    Raises:
        CheckpointError: missing, damaged or at odds with its own config; something is needed and neither in the file
            nor given; or what the file says contradicts itself. The message names it.
        UnsupportedModel: a head with parts that are not computed here; named.
    """
    return read(path, Hints(num_target_layers, vocab_size, feature_layers, d2t)).head


def read(path: str | Path, hints: Hints) -> Reading:
    """The same, with all that is to be known about it.

    Raises:
        CheckpointError, UnsupportedModel: see `read_head`.
    """
    folder = open_folder(path, hints)
    found = detect(folder)
    head, notes = READERS[found](folder)
    speculators = record(record(folder.settings, "speculators_config"), "verifier")
    target = text(folder.settings, "base_model_name_or_path") or text(speculators, "name_or_path")
    return Reading(head, found, target, notes)


READERS: Mapping[str, Callable[[HeadFolder], tuple[StoredHead, Notes]]] = {
    "safeailab-eagle1": read_eagle1,
    "safeailab-eagle3": read_eagle3,
    "modelopt-eagle3": read_eagle3,
    "speculators-eagle3": read_speculators,
    "medusa": read_medusa,
    "vllm-medusa": read_medusa,
    "tgi-medusa": read_medusa,
    "mlp-speculator": read_mlp,
}
"""By what `detect` finds."""


def detect(folder: HeadFolder) -> str:
    """The format by keys of the config and names of tensors.

    Raises:
        UnsupportedModel: a kind of head that is not read; named.
        CheckpointError: no head, or none that is known.
    """
    settings, names = folder.settings, {name.removeprefix("draft_model.") for name in folder.entries}
    if "speculators_model_type" in settings:
        return "speculators-eagle3"
    if settings.get("model_type") == "mlp_speculator":
        return "mlp-speculator"
    if "medusa_num_heads" in settings or settings.get("model_type") == "medusa":
        return _medusa_format(names)
    for key in ("dflash_config", "block_size"):
        if key in settings:
            raise UnsupportedModel(f"{folder.path} is a DFlash head ({key} in its config), which is not read.")
    nested = record(settings, NESTED)
    if nested.get("use_aux_hidden_state") is False:
        raise UnsupportedModel(f"{folder.path} has use_aux_hidden_state = false: EAGLE-3 without features is not read.")
    if names & {"midlayer.hidden_norm.weight", "layers.0.hidden_norm.weight"}:
        ours = any(name.startswith("midlayer.") for name in names) and "use_last_layernorm" not in nested
        return "modelopt-eagle3" if nested and "t2d" not in names and not ours else "safeailab-eagle3"
    if any(name.startswith("midlayer.") for name in names) or "d2t" in names:
        return "safeailab-eagle3"  # damaged: its reader names what is missing
    if "fc.weight" in names:
        return "safeailab-eagle1"
    raise CheckpointError(
        f"{folder.path} is no head that outrider knows: neither its keys nor its tensors are those of EAGLE, Medusa or "
        "an MLP speculator."
    )


def _medusa_format(names: set[str]) -> str:
    if any(name.removeprefix("medusa_heads.").startswith("blocks.") for name in names):
        return "vllm-medusa"
    return "medusa" if any(not name.endswith((".linear.weight", ".linear.bias")) for name in names) else "tgi-medusa"


def write_head(head: StoredHead, folder: str | Path, format: str, *, target: str) -> None:  # noqa: A002
    """Write a head so that other readers compute what it computes, as far as they can.

    Args:
        head: weights in the number formats in which they will be stored.
        folder: a new or an empty one; it appears when everything is written.
        format: one of `FORMATS`.
        target: name of the target, where the format has a place for it.

    Raises:
        InvalidOption: an unknown format, one for another kind of head or without a place for a part of it, a matrix of
            the target's that the format requires, or a folder that is not empty.
        CheckpointError: the weights do not fit the config.
    """
    check_new(folder)
    check_format(head, format)
    _check_head(head)
    settings, tensors, file = _written(head, format, target)
    save_folder(folder, settings, tensors, file)


def check_format(head: StoredHead, format: str) -> None:  # noqa: A002
    """Refuse a format that is none, or of another kind of head.

    Raises:
        InvalidOption: naming those for this head.
    """
    kinds: dict[type, tuple[str, ...]] = {EagleConfig: EAGLE_FORMATS, MedusaConfig: MEDUSA_FORMATS}
    allowed = kinds.get(type(head.config), ())
    if format not in allowed:
        raise InvalidOption("format", format, ", ".join(allowed) or "none: MLP speculators are only read")


def _written(head: StoredHead, format: str, target: str) -> tuple[dict[str, Any], dict[str, torch.Tensor], str]:  # noqa: A002
    if format in MEDUSA_FORMATS:
        return write_medusa(head, format, target)
    if format == "speculators-eagle3":
        return write_speculators(head, target)
    return write_eagle1(head) if format == "safeailab-eagle1" else write_eagle3(head)


def _check_head(head: StoredHead) -> None:
    config = head.config
    assert isinstance(config, EagleConfig | MedusaConfig)
    shapes: Shapes = eagle_shapes(config) if isinstance(config, EagleConfig) else medusa_shapes(config)
    own_output = {"lm_head.weight": (config.draft_vocab_size, config.hidden_size)}
    found = {name: tuple(tensor.shape) for name, tensor in head.weights.items()}
    compare(found, shapes.allowing(own_output), "The head")  # EAGLE-1 refuses an output by a better name
    ids = torch.arange(config.vocab_size) if head.draft_ids is None else head.draft_ids
    wrong = fault(ids, config.vocab_size) or (len(ids) != config.draft_vocab_size and f"there are {len(ids)}")
    if wrong:
        raise CheckpointError(f"The head's draft_ids are no vocabulary of {config.draft_vocab_size} ids: {wrong}.")
