"""A target's own checkpoint in a narrower precision, to draft for it.

Weights that are not stored in 4 bits are rounded to 4-bit groups here. How far that takes a model from float32 is
not measured, so it makes drafts and never a target: `load.load_decoder` refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from outrider.errors import InvalidOption
from outrider.models.checkpoint import Checkpoint, Groups4, Weights
from outrider.models.config import DecoderConfig
from outrider.models.decoder import Decoder
from outrider.models.gguf_weights import GROUP_SIZE
from outrider.models.linear import has_packed_half
from outrider.models.load import Progress, available_precisions, load_decoder

OUT_SIZE = 16
"""The 4-bit kernel takes rows in multiples of this."""

WIDTHS = {"float32": 32, "bfloat16": 16, "float16": 16, "q4": 4}
"""Bits per weight."""


def load_quantised(
    checkpoint: Checkpoint,
    target_precision: str,
    precision: str = "",
    *,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> Decoder:
    """The target once more, narrower.

    Args:
        checkpoint: the target's.
        target_precision: what the target runs in.
        precision: of the draft; "" for the narrowest.
        device: where to run.
        progress: called with (layers done, layers in all).

    Raises:
        InvalidOption: a precision that is not narrower than the target's, or that cannot be had here.
        CheckpointError: a tensor that cannot be read.
    """
    device = torch.device(device)
    allowed = narrower_precisions(checkpoint, target_precision, device)
    if not allowed or precision not in ("", *allowed):
        typed = f"quantised:{precision}" if precision else "quantised"
        choices = ", ".join(f"quantised:{name}" for name in allowed) or "another drafter"
        raise InvalidOption("drafter", typed, choices, _reason(target_precision, allowed))
    chosen = precision or allowed[-1]
    if chosen == "q4" and not checkpoint.is_q4:
        checkpoint = replace(checkpoint, weights=RoundedWeights(checkpoint.weights))
    return load_decoder(checkpoint, chosen, device=device, progress=progress)


def narrower_precisions(checkpoint: Checkpoint, target_precision: str, device: torch.device) -> tuple[str, ...]:
    """What may draft for this target on this device, the narrowest last."""
    names = available_precisions(checkpoint, device)
    if "q4" not in names and device.type == "cpu" and has_packed_half() and _mostly_fits(checkpoint.weights.shapes):
        names = (*names, "q4")
    return tuple(name for name in names if WIDTHS[name] < WIDTHS[target_precision])


class RoundedWeights:
    """The tensors of a checkpoint, as they are and as 4-bit groups (a `checkpoint.Weights`).

    Args:
        weights: where they are read from.
    """

    is_q4 = True

    def __init__(self, weights: Weights) -> None:
        self.config: DecoderConfig = weights.config
        self.shapes: Mapping[str, tuple[int, ...]] = weights.shapes
        self._weights = weights

    def read(self, name: str) -> torch.Tensor:
        """A tensor as float32, not rounded."""
        return self._weights.read(name)

    def groups4(self, name: str) -> Groups4 | None:
        """The groups that are stored, or else rounded ones; None for shapes that the kernel does not take."""
        stored = self._weights.groups4(name)
        if stored is not None or not fits_groups4(self.shapes[name]):
            return stored
        return rounded(self.read(name))


def rounded(weight: torch.Tensor) -> Groups4:
    """Each group of 32 on 16 even steps from its smallest to its largest weight, every weight on the nearest step.

    Scale and middle are bfloat16 numbers, as `linear.Grouped4` will hold them, before the weights are placed: what
    they lose is then made up for by the codes.

    Args:
        weight: [out, in] float32, in a multiple of 32.
    """
    grouped = weight.view(len(weight), -1, GROUP_SIZE)
    low, high = grouped.amin(-1, keepdim=True), grouped.amax(-1, keepdim=True)
    scales = ((high - low) / 15).bfloat16().float()
    middles = (low + 8 * scales).bfloat16().float()  # of the 16 codes, 8 stands for it
    steps = (grouped - middles) / scales.clamp(min=torch.finfo(torch.float32).tiny)
    codes = (steps.round_() + 8).clamp_(0, 15).to(torch.uint8).view(weight.shape)
    return Groups4(codes, scales[..., 0], (middles - 8 * scales)[..., 0])


def fits_groups4(shape: tuple[int, ...]) -> bool:
    """Whether the 4-bit kernel takes a matrix [out, in] of this shape."""
    return len(shape) == 2 and shape[0] % OUT_SIZE == 0 and shape[1] % GROUP_SIZE == 0


def _mostly_fits(shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Of the layers' matrices; the embedding and the head stay in half precision."""
    matrices = [shape for name, shape in shapes.items() if ".layers." in name and len(shape) == 2]
    return 2 * sum(map(fits_groups4, matrices)) > len(matrices)


def _reason(target_precision: str, allowed: tuple[str, ...]) -> str:
    if target_precision == "q4":
        return "The target runs in q4, and there is nothing narrower."
    reason = f"The draft must be narrower than the target, which runs in {target_precision}."
    if "q4" in allowed:
        return reason
    return f"{reason} q4 takes an x86 CPU, and a model whose matrices mostly have a multiple of {GROUP_SIZE} columns."
