"""Which other programs run a written head, and which compute something else with it.

By their sources of August 2026; each reason names the setting or tensor that it is about.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from outrider.drafters.heads.config import EagleConfig, MedusaConfig
from outrider.drafters.heads.formats_eagle import BIASES, QK_NORMS
from outrider.drafters.heads.formats_layers import default_layers
from outrider.drafters.heads.stored import StoredHead

PROGRAMS = ("vLLM", "SGLang", "llama.cpp", "EAGLE reference", "TGI")

Outcome = Literal["runs", "runs wrong", "does not run"]


@dataclass(frozen=True)
class Fate:
    """What becomes of a head in another program.

    Args:
        program: one of `PROGRAMS`.
        outcome: whether it runs, and computes what it was trained for.
        reasons: why not; of one that runs, what to heed.
    """

    program: str
    outcome: Outcome
    reasons: tuple[str, ...] = ()


def fates(head: StoredHead, format: str, num_target_layers: int | None = None) -> tuple[Fate, ...]:  # noqa: A002
    """What becomes of a head that `files.write_head` wrote.

    Args:
        head: the head.
        format: one of `files.FORMATS`.
        num_target_layers: N of the target, where it is known: one reader has built in what follows from it.

    Returns:
        One for each of `PROGRAMS`.
    """
    if isinstance(head.config, MedusaConfig):
        found = _medusa(head, format)
    elif format == "safeailab-eagle1":
        found = _eagle1(head)
    else:
        found = _eagle3(head, format == "speculators-eagle3", num_target_layers)
    return tuple(found.get(name, Fate(name, "does not run", ("it knows no such heads",))) for name in PROGRAMS)


def _fate(program: str, breaks: list[str], bends: list[str], hints: list[str] | None = None) -> Fate:
    if breaks:
        return Fate(program, "does not run", tuple(breaks))
    return Fate(program, "runs wrong", tuple(bends)) if bends else Fate(program, "runs", tuple(hints or ()))


def _medusa(head: StoredHead, format: str) -> dict[str, Fate]:  # noqa: A002
    method = ['give it method "medusa", for it guesses by the config'] if format != "vllm-medusa" else []
    shares = not any(name.endswith(f".{head.config.num_layers}.weight") for name in head.weights)  # type: ignore[union-attr]
    vllm = _fate("vLLM", ["the heads have no output of their own"] if shares else [], [], [*method, "chains only"])
    named = ["it wants the names and the config of tgi-medusa"] if format == "vllm-medusa" else []
    return {"vLLM": vllm, "TGI": _fate("TGI", named, [])}


def _eagle1(head: StoredHead) -> dict[str, Fate]:
    bias = ["fc.bias: it has no place for one"] if "fc.bias" in head.weights else []
    biased = _attention_biases(head)
    drops = [f"{name}: it is dropped" for name in biased]
    return {
        "vLLM": _fate("vLLM", bias, [], ['give it method "eagle"', "chains only"]),
        "SGLang": _fate("SGLang", ["it wants the class name LlamaForCausalLMEagle and an fc.bias"], []),
        "EAGLE reference": _fate("EAGLE reference", [], drops),
    }


def _eagle3(head: StoredHead, speculators: bool, depth: int | None) -> dict[str, Fate]:
    config = head.config
    assert isinstance(config, EagleConfig)
    return {
        "vLLM": _fate("vLLM", _fc_bias(head), [], ['give it method "eagle3"']),
        "SGLang": _sglang(head, config, speculators),
        "llama.cpp": _llama_cpp(head, config),
        "EAGLE reference": _reference(head, config, speculators, depth),
    }


def _sglang(head: StoredHead, config: EagleConfig, speculators: bool) -> Fate:
    breaks = ["it does not read the speculators format"] if speculators else []
    bends = ["norm_before_residual: it takes it as false"] if config.norm_before_residual else []
    bends += [f"{name}: it is dropped" for name in _attention_biases(head)] + _skipped_fc(config)
    hints = []
    if "embed_tokens.weight" in head.weights and config.target_hidden_size == config.hidden_size:
        hints.append("it takes the target's embedding instead of embed_tokens: wrong if that was trained")
    return _fate("SGLang", breaks, bends, hints)


def _llama_cpp(head: StoredHead, config: EagleConfig) -> Fate:
    breaks = [f"{name}: it is not supported" for name in ("fc_norm", "norm_output") if getattr(config, name)]
    breaks += [f"{name}: it has no place for one" for name in _attention_biases(head)] + _fc_bias(head)
    breaks += [f"{QK_NORMS[0]}: it has no place for one"] if QK_NORMS[0] in head.weights else []
    if len(config.feature_layers) != 3:
        breaks.append(f"{len(config.feature_layers)} layer ids: it wants exactly 3")
    return _fate("llama.cpp", breaks, [], ["after its own conversion to GGUF"])


def _reference(head: StoredHead, config: EagleConfig, speculators: bool, depth: int | None) -> Fate:
    breaks = ["it reads only the format safeailab-eagle3"] if speculators else []
    if len(config.feature_layers) != 3:
        breaks.append(f"{len(config.feature_layers)} layer ids: it has 3")
    if config.num_heads * config.head_dim != config.hidden_size:
        breaks.append("head_dim: it takes hidden_size / heads")
    flags = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    bends = [f"{name}: it takes it as false" for name in flags if getattr(config, name)]
    dropped = [*_attention_biases(head), *(name for name in ("fc.bias", QK_NORMS[0]) if name in head.weights)]
    bends += [f"{name}: it is dropped" for name in dropped] + _skipped_fc(config)
    hints = ["it reads states 2, N / 2 and N - 3 of a target with N layers, whatever the config says"]
    if depth is not None and len(config.feature_layers) == 3 and config.feature_layers != default_layers(depth):
        bends.append(f"layer ids: it reads states {', '.join(map(str, default_layers(depth)))}")
    return _fate("EAGLE reference", breaks, bends, hints if depth is None else [])


def _attention_biases(head: StoredHead) -> list[str]:
    return [name for name in (*BIASES["attention_bias"], *BIASES["mlp_bias"]) if name in head.weights][:1]


def _fc_bias(head: StoredHead) -> list[str]:
    return ["fc.bias: it has no place for one"] if "fc.bias" in head.weights else []


def _skipped_fc(config: EagleConfig) -> list[str]:
    same = len(config.feature_layers) * config.target_hidden_size == config.hidden_size
    return ["fc: it is left out where the features are as wide as the head"] if same else []
