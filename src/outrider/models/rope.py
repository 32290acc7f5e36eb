"""Rotary frequencies: how far each pair of dimensions turns per position, plain or stretched for long contexts.

Sources: RoPE, arXiv 2104.09864; linear interpolation, arXiv 2306.15595; YaRN, arXiv 2309.00071; "llama3": the
reference code of Llama 3.1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from outrider.errors import CheckpointError, UnsupportedModel
from outrider.models.settings import ADAPTER_HINT, integer, positive, record

RopeKind = Literal["default", "linear", "llama3", "yarn", "factors"]


@dataclass(frozen=True)
class RopeScaling:
    """How frequencies differ from the plain theta ** (-2i / head_dim); fields unused by `kind` stay at default.

    Args:
        kind: "default", "linear" (divide all), "llama3" (divide the low ones), "yarn" (blend by dimension) or
            "factors" (divide each by its own factor, as GGUF files of Llama 3 store it).
        factor: by how much the context is stretched.
        original_context: tokens that the model was first trained on ("llama3", "yarn").
        low_frequency_factor: "llama3": wavelengths over original_context / this are divided by `factor`.
        high_frequency_factor: "llama3": wavelengths under original_context / this are kept.
        beta_fast: "yarn": dimensions that turn more often than this over the original context are kept.
        beta_slow: "yarn": dimensions that turn less often than this are divided by `factor`.
        truncate: "yarn": round the blend's ends to whole dimensions.
        attention_scaling: multiplies cos and sin ("yarn").
        frequency_factors: [head_dim / 2] for "factors".
    """

    kind: RopeKind = "default"
    factor: float = 1.0
    original_context: int = 0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_scaling: float = 1.0
    frequency_factors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Check what a damaged config can get wrong.

        Raises:
            CheckpointError: the numbers do not describe a scaling.
        """
        if self.kind in ("llama3", "yarn") and self.original_context <= 0:
            raise CheckpointError(f"Rope type {self.kind!r} needs an original context over 0.")
        if self.kind == "llama3" and self.high_frequency_factor <= self.low_frequency_factor:
            raise CheckpointError("Rope type 'llama3' needs high_freq_factor over low_freq_factor.")


PLAIN_ROPE = RopeScaling()


def frequencies(rope: RopeScaling, theta: float, head_dim: int) -> torch.Tensor:
    """Angle per position of each pair of dimensions, [head_dim / 2] float32; the same bits as transformers 5."""
    powers = theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
    plain = 1.0 / powers
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind == "llama3":
        return _llama3(plain, rope)
    if rope.kind == "yarn":
        return _yarn(powers, rope, theta)
    if rope.kind == "factors":
        return plain / torch.tensor(rope.frequency_factors, dtype=torch.float32)
    assert rope.kind == "default"
    return plain


def _llama3(plain: torch.Tensor, rope: RopeScaling) -> torch.Tensor:
    low, high = rope.low_frequency_factor, rope.high_frequency_factor
    wavelengths = 2 * math.pi / plain
    divided = torch.where(wavelengths > rope.original_context / low, plain / rope.factor, plain)
    smooth = (rope.original_context / wavelengths - low) / (high - low)
    blended = (1 - smooth) * divided / rope.factor + smooth * divided
    outside = (wavelengths < rope.original_context / high) | (wavelengths > rope.original_context / low)
    return torch.where(outside, divided, blended)


def _yarn(powers: torch.Tensor, rope: RopeScaling, theta: float) -> torch.Tensor:
    dim = 2 * len(powers)

    def dimension_of(turns: float) -> float:
        return (dim * math.log(rope.original_context / (turns * 2 * math.pi))) / (2 * math.log(theta))

    first, last = dimension_of(rope.beta_fast), dimension_of(rope.beta_slow)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    span = last - first if last != first else 0.001
    kept = 1 - torch.clamp((torch.arange(dim // 2, dtype=torch.float32) - first) / span, 0, 1)
    return 1.0 / (rope.factor * powers) * (1 - kept) + 1.0 / powers * kept


def rope_from_json(settings: Mapping[str, Any]) -> tuple[float, RopeScaling]:
    """Theta and scaling of a config.json: rope_parameters (transformers 5), or rope_theta and rope_scaling (before).

    Raises:
        UnsupportedModel: a partial rotation or another rope type; named.
        CheckpointError: a number is missing or wrong.
    """
    values = record(settings, "rope_scaling") | record(settings, "rope_parameters")
    theta = positive(values, "rope_theta", positive(settings, "rope_theta", 10_000.0))
    rotated = values.get("partial_rotary_factor", settings.get("partial_rotary_factor"))
    if rotated not in (None, 1):
        raise UnsupportedModel(f"partial_rotary_factor = {rotated} is not decoded here, only 1. {ADAPTER_HINT}")
    kind = values.get("rope_type", values.get("type", "default"))
    if kind == "default":
        return theta, PLAIN_ROPE
    if kind == "linear":
        return theta, RopeScaling("linear", factor=positive(values, "factor"))
    if kind == "llama3":
        return theta, RopeScaling(
            "llama3",
            factor=positive(values, "factor"),
            original_context=_original_context(values, settings),
            low_frequency_factor=positive(values, "low_freq_factor"),
            high_frequency_factor=positive(values, "high_freq_factor"),
        )
    if kind == "yarn":
        return theta, _yarn_from_json(values, settings)
    raise UnsupportedModel(f"Rope type {kind!r} is not decoded here (default, linear, llama3, yarn). {ADAPTER_HINT}")


def _original_context(values: Mapping[str, Any], settings: Mapping[str, Any]) -> int:
    name = "original_max_position_embeddings"
    within = integer(values, name, integer(settings, "max_position_embeddings"))
    return integer(settings, name, within)  # the one outside the rope record wins, as in transformers


def _yarn_from_json(values: Mapping[str, Any], settings: Mapping[str, Any]) -> RopeScaling:
    original = _original_context(values, settings)
    factor = positive(values, "factor", integer(settings, "max_position_embeddings") / max(original, 1))
    scaling = _yarn_magnitude(factor, 1.0)
    if values.get("mscale") and values.get("mscale_all_dim"):
        scaling = _yarn_magnitude(factor, positive(values, "mscale"))
        scaling /= _yarn_magnitude(factor, positive(values, "mscale_all_dim"))
    return RopeScaling(
        "yarn",
        factor=factor,
        original_context=original,
        beta_fast=positive(values, "beta_fast", 32.0),
        beta_slow=positive(values, "beta_slow", 1.0),
        truncate=bool(values.get("truncate", True)),
        attention_scaling=positive(values, "attention_factor", scaling),
    )


def _yarn_magnitude(factor: float, weight: float) -> float:
    """Section 3.4 of the YaRN paper: sqrt(1/t) = 0.1 ln(s) + 1."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def rope_from_gguf(values: Mapping[str, Any], factors: tuple[float, ...], head_dim: int) -> RopeScaling:
    """Scaling of a GGUF file.

    Args:
        values: metadata of the architecture, without its prefix.
        factors: contents of the tensor rope_freqs.weight, () if the file has none.
        head_dim: width of a head.

    Raises:
        UnsupportedModel: another kind of scaling; named.
        CheckpointError: a number is missing or wrong.
    """
    factor = positive(values, "rope.scaling.factor", positive(values, "rope.scale_linear", 1.0))
    kind = str(values.get("rope.scaling.type", "linear" if factor != 1.0 else "none"))
    if factors:
        return _factors_from_gguf(factors, kind, head_dim)
    if kind == "none":
        return PLAIN_ROPE
    if kind == "linear":
        return RopeScaling("linear", factor=factor)
    if kind == "yarn":
        return RopeScaling(
            "yarn",
            factor=factor,
            original_context=integer(values, "rope.scaling.original_context_length"),
            beta_fast=positive(values, "rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=positive(values, "rope.scaling.yarn_beta_slow", 1.0),
            attention_scaling=_yarn_magnitude(factor, 1.0),
        )
    raise UnsupportedModel(f"Rope scaling {kind!r} is not decoded here (none, linear, yarn). {ADAPTER_HINT}")


def _factors_from_gguf(factors: tuple[float, ...], kind: str, head_dim: int) -> RopeScaling:
    if kind != "none":
        raise UnsupportedModel(f"rope_freqs.weight together with rope scaling {kind!r} is not decoded here.")
    if len(factors) != head_dim // 2 or not all(0 < factor < math.inf for factor in factors):
        raise CheckpointError(
            f"rope_freqs.weight holds {len(factors)} factors; expected {head_dim // 2} finite ones, all over 0."
        )
    return RopeScaling("factors", frequency_factors=factors)
