"""Vocabularies of heads: `d2t` and `t2d` on one side, ascending ids of the target on ours."""

from __future__ import annotations

from typing import Literal

import torch

from outrider.drafters.heads.formats import HeadFolder
from outrider.errors import CheckpointError


def read_draft_ids(folder: HeadFolder, vocab_size: int, draft_vocab_size: int) -> torch.Tensor | None:
    """[Vd] int64 ascending ids of the target, None where the head speaks the target's whole vocabulary.

    The shapes of the maps have been compared with the config.

    Raises:
        CheckpointError: the maps are missing, damaged, contradict each other or could be read in two ways.
    """
    d2t, t2d = (folder.read(name) if name in folder.entries else None for name in ("d2t", "t2d"))
    if d2t is None and t2d is None:
        if draft_vocab_size != vocab_size:
            raise CheckpointError(
                f"{folder.path}: the head speaks {draft_vocab_size} of {vocab_size} tokens, but neither d2t nor t2d "
                "says which."
            )
        return None
    ids = draft_ids(d2t, t2d, vocab_size, folder.hints.d2t)
    if len(ids) != draft_vocab_size:
        raise CheckpointError(f"{folder.path}: t2d has {len(ids)} ids, draft_vocab_size is {draft_vocab_size}.")
    return None if draft_vocab_size == vocab_size else ids


def draft_ids(
    d2t: torch.Tensor | None,
    t2d: torch.Tensor | None,
    vocab_size: int,
    reading: Literal["offset", "absolute"] | None = None,
) -> torch.Tensor:
    """Ids of the target from either map, or from both.

    Args:
        d2t: [Vd] integers: id of the target minus id of the head (checkpoints), or the target's ids (GGUF, mistakes).
        t2d: [Vt] bool: which ids the head speaks.
        vocab_size: Vt.
        reading: what `d2t` is, where that is known.

    Raises:
        CheckpointError: neither reading of `d2t` is a vocabulary, or both are.
    """
    if d2t is None:
        assert t2d is not None, "one of the two"
        return t2d.nonzero()[:, 0]
    readings = {"offset": torch.arange(len(d2t)) + d2t.long(), "absolute": d2t.long()}
    if t2d is not None:
        masked = t2d.nonzero()[:, 0]
        if not any(torch.equal(masked, ids) for ids in readings.values()):
            why = fault(readings["offset"], vocab_size) or "they name different tokens"
            raise CheckpointError(f"d2t and t2d contradict each other: {why}.")
        return masked
    if reading is not None:
        readings = {reading: readings[reading]}
    sound = [ids for ids in readings.values() if not fault(ids, vocab_size)]
    if not sound:
        faults = "; ".join(f"read as {name}: {fault(ids, vocab_size)}" for name, ids in readings.items())
        raise CheckpointError(f"d2t is no vocabulary. {faults}.")
    if len(sound) == 2 and not torch.equal(*sound):
        raise CheckpointError(
            "d2t can be read as offsets and as ids of the target, and there is no t2d to tell. Say which it is "
            "(d2t, offset or absolute), and try both with `outrider convert --check`."
        )
    return sound[0]


def fault(ids: torch.Tensor, vocab_size: int) -> str:
    """Why these are not ascending ids of a vocabulary; empty if they are."""
    if len(ids) == 0:
        return "it is empty"
    outside = ids[(ids < 0) | (ids >= vocab_size)]
    if len(outside):
        return f"id {int(outside[0])} is out of range, 0 to {vocab_size - 1}"
    steps = ids.diff()
    if (steps < 0).any():
        return f"the ids do not ascend, from place {int((steps < 0).nonzero()[0, 0])} on"
    if (steps == 0).any():
        return f"two ids are both {int(ids[int((steps == 0).nonzero()[0, 0])])}"
    return ""


def map_shapes(vocab_size: int, draft_vocab_size: int) -> dict[str, tuple[int, ...]]:
    """The shapes of both maps."""
    return {"d2t": (draft_vocab_size,), "t2d": (vocab_size,)}


def maps(ids: torch.Tensor, vocab_size: int) -> dict[str, torch.Tensor]:
    """`d2t`, offsets, and `t2d`, a mask, as checkpoints hold them."""
    mask = torch.zeros(vocab_size, dtype=torch.bool)
    mask[ids] = True
    return {"d2t": ids - torch.arange(len(ids)), "t2d": mask}
