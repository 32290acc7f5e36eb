"""Which precision a target runs in, and how far each is from float32: mean KL per token on a built-in text."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from importlib import resources

import torch

from outrider.core import Block, Model
from outrider.errors import InvalidOption
from outrider.memory import physical_memory
from outrider.models.checkpoint import Checkpoint
from outrider.models.decoder import Decoder
from outrider.models.load import Progress, available_precisions, load_decoder

MAX_KL = 1e-3
"""Nats per token that `auto` allows between a precision and float32."""

SAMPLE_TEXT = """\
The tide tables for the northern harbour were printed on thin blue paper, and every captain kept a copy \
folded in his coat. Twice a day the sea climbed the stone steps; twice a day it left them green and slick. \
"If you measure it," said the harbour master, "you will find 4.2 metres between low and high water in March, \
but only 3.1 in June." The reason is simple: the Sun and the Moon pull together when they stand in line.

def height(t, mean=2.1, amplitude=1.9, period=12.42):
    return mean + amplitude * math.cos(2 * math.pi * t / period)

Nobody in the village had read Newton, yet everyone knew when to bring the boats in."""


def choose_precision(
    checkpoint: Checkpoint, tokens: Callable[[], list[int]], device: torch.device, progress: Progress | None = None
) -> Decoder:
    """What `auto` means: the fastest precision whose mean KL to float32 is at most `MAX_KL`, loaded.

    Precisions are tried fastest first: q4, float16 on a CPU; float16, bfloat16 elsewhere. Distances that were
    measured before and ship with the package (by the checkpoint's fingerprint) are not measured again.

    Args:
        checkpoint: the target.
        tokens: gives the ids of `SAMPLE_TEXT` in its own vocabulary; called only to measure.
        device: where it will run.
        progress: called with (layers done, layers in all).

    Raises:
        InvalidOption: the float32 weights needed for measuring do not fit in memory; asks for a choice.
    """
    candidates = [p for p in _fastest_first(device) if p in available_precisions(checkpoint, device)]
    known = known_distances().get(checkpoint.fingerprint, {}) if device.type == "cpu" else {}
    reference: Decoder | None = None
    for precision in candidates:
        if precision in known and known[precision] <= MAX_KL:
            return load_decoder(checkpoint, precision, device=device, progress=progress)
        if precision not in known:
            reference = reference or _reference(checkpoint, device, progress)
            model = load_decoder(checkpoint, precision, device=device, progress=progress)
            if mean_kl(reference, model, tokens()[: model.context_length]) <= MAX_KL:
                return model
    return reference or load_decoder(checkpoint, "float32", device=device, progress=progress)


def mean_kl(reference: Model, model: Model, tokens: list[int]) -> float:
    """Mean KL(reference || model) in nats per token, teacher-forced.

    Args:
        reference: usually the float32 target.
        model: the same target in another precision.
        tokens: [n] ids of a text, fewer than the context.
    """
    wanted, found = (_log_laws(each, tokens) for each in (reference, model))
    return float((wanted.exp() * (wanted - found)).sum(-1).mean())


def known_distances() -> dict[str, dict[str, float]]:
    """Measured distances by checkpoint fingerprint and precision; benchmarks/precision.py makes the file."""
    text = resources.files("outrider").joinpath("data/precisions.json").read_text(encoding="utf-8")
    distances: dict[str, dict[str, float]] = json.loads(text)
    return distances


def _fastest_first(device: torch.device) -> tuple[str, ...]:
    return ("q4", "float16") if device.type == "cpu" else ("float16", "bfloat16")


def _reference(checkpoint: Checkpoint, device: torch.device, progress: Progress | None) -> Decoder:
    size = 4 * sum(math.prod(shape) for shape in checkpoint.weights.shapes.values())
    if size > physical_memory():
        raise InvalidOption(
            "precision",
            "auto",
            ", ".join(available_precisions(checkpoint, device)),
            f"Measuring the distance to float32 takes {size / 2**30:.0f} GiB, more than this machine has; choose one.",
        )
    return load_decoder(checkpoint, "float32", device=device, progress=progress)


def _log_laws(model: Model, tokens: list[int]) -> torch.Tensor:
    cache = model.new_cache(1, len(tokens))
    block = Block(torch.tensor([tokens]), torch.arange(len(tokens))[None], (0,), (len(tokens),))
    logits = model.forward(block, cache).logits
    assert logits is not None
    return logits[0].double().log_softmax(-1)
