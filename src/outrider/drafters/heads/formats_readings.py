"""All the ways in which a head may be misread without an error: each plausible reading as a head of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from outrider.drafters.heads.config import EagleConfig, MlpConfig
from outrider.drafters.heads.eagle import LAYER
from outrider.drafters.heads.graph import Weights
from outrider.drafters.heads.stored import StoredHead


@dataclass(frozen=True)
class Variant:
    """One way to read a head, and the states of the target that it reads in that way."""

    name: str
    head: StoredHead
    layers: tuple[int, ...]


def readings(head: StoredHead, num_layers: int, target_theta: float | None) -> Iterator[Variant]:
    """The reading of the file, then all others that are plausible, each different in one thing.

    Args:
        head: as read.
        num_layers: N of the target.
        target_theta: base of the target's rotary angles, which a head's may have been left out for.
    """
    config = head.config
    layers = config.feature_layers if isinstance(config, EagleConfig) else (num_layers,)
    yield Variant("as read", head, layers)
    for step in (-1, 1):
        moved = tuple(layer + step for layer in layers)
        if all(0 <= layer <= num_layers for layer in moved):
            yield Variant(f"layer ids {step:+d}: {', '.join(map(str, moved))}", _at(head, moved), moved)
    for name, other in _other_graphs(head, target_theta) if isinstance(config, EagleConfig) else _other_mlp(head):
        yield Variant(name, other, layers)
    if head.draft_ids is not None:
        steps = torch.arange(len(head.draft_ids))
        for name, ids in {"ids": head.draft_ids - steps, "offsets": head.draft_ids + steps}.items():
            if 0 <= int(ids.min()) <= int(ids.max()) < config.vocab_size:
                yield Variant(f"d2t holds {name}", replace(head, draft_ids=ids), layers)


def _at(head: StoredHead, layers: tuple[int, ...]) -> StoredHead:
    config = head.config
    return replace(head, config=replace(config, feature_layers=layers)) if isinstance(config, EagleConfig) else head


def _other_graphs(head: StoredHead, target_theta: float | None) -> Iterator[tuple[str, StoredHead]]:
    config = head.config
    assert isinstance(config, EagleConfig)
    for theta in dict.fromkeys((10_000.0, target_theta)):
        if theta is not None and theta != config.rope_theta:
            yield f"rope_theta = {theta:g}", replace(head, config=replace(config, rope_theta=theta))
    yield "hidden before embedding", replace(head, weights=_swapped(head.weights, config))
    if config.version == 1:
        return
    for flag in ("norm_before_residual", "norm_output", "norm_before_fc", "fc_norm"):
        on = not getattr(config, flag)
        changes: dict[str, Any] = (
            {"norm_before_fc": False, "fc_norm": False} if on and flag in ("norm_before_fc", "fc_norm") else {}
        )
        flipped = replace(config, **{**changes, flag: on})
        yield f"{flag} = {str(on).lower()}", StoredHead(flipped, _with_norms(head.weights, flipped), head.draft_ids)


def _other_mlp(head: StoredHead) -> Iterator[tuple[str, StoredHead]]:
    if isinstance(head.config, MlpConfig):
        on = not head.config.scale_input
        yield f"scale_input = {str(on).lower()}", replace(head, config=replace(head.config, scale_input=on))


def _swapped(weights: Weights, config: EagleConfig) -> dict[str, torch.Tensor]:
    """The matrices that read embedding and state, their halves changed."""
    joined = ["fc"] if config.version == 1 else [f"{LAYER}self_attn.{part}_proj" for part in "qkv"]
    names = [f"{name}.weight" for name in joined]
    return {**weights, **{name: weights[name].roll(config.hidden_size, dims=1) for name in names}}


def _with_norms(weights: Weights, config: EagleConfig) -> dict[str, torch.Tensor]:
    """With norms of ones where the flags ask for some that the file does not have."""
    width, count, ones = config.target_hidden_size, len(config.feature_layers), dict[str, torch.Tensor]()
    if config.norm_before_fc:
        ones["input_norm.weight"] = torch.ones(width * count)
    if config.fc_norm:
        ones |= {f"fc_norm.{i}.weight": torch.ones(width) for i in range(count)}
    return ones | dict(weights)
