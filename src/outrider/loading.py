"""One door from what a user names to an engine that runs: target, drafter, rule, pace, tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from outrider.core import Drafter, Model
from outrider.drafters import build, check_drafter
from outrider.drafters.model import ModelDrafter
from outrider.engine import INVARIANT_WIDTH, Engine
from outrider.errors import InvalidOption, UnsupportedModel
from outrider.generation import TextEngine
from outrider.models.checkpoint import open_checkpoint
from outrider.models.load import PRECISIONS, load_decoder
from outrider.models.locate import locate
from outrider.models.precision import SAMPLE_TEXT, choose_precision
from outrider.models.tokenizer import Tokenizer, compare_vocabularies, load_tokenizer
from outrider.options import whole
from outrider.planning.pace import MAX_K, AutoPace, FixedPace
from outrider.rounds import Pace
from outrider.rules import RULES, choose_rule

Progress = Callable[[str, int, int], None]
"""Called with (what is being loaded, layers done, layers in all)."""

DEFAULT_DRAFTER = "suffix"
"""What drafter="auto" means: needs no model, costs next to nothing, and stays silent where it has nothing to copy."""

DEFAULT_CONTEXT = 8192
"""Tokens per sequence unless more are asked for: caches of very long contexts are large."""

MAX_THREADS = 1024


@dataclass(frozen=True)
class _Loaded:
    model: Model
    tokenizer: Tokenizer


def load(
    target: Any = "smollm2",
    *,
    drafter: str | Drafter = "auto",
    num_draft_tokens: int | str = "auto",
    rule: str = "auto",
    precision: str = "auto",
    slots: int = 8,
    context_length: int | None = None,
    invariant: bool = False,
    allow_lossy: bool = False,
    device: str = "cpu",
    threads: int | None = None,
    tokenizer: Any = None,
    progress: Progress | None = None,
) -> TextEngine:
    """Load a target and a drafter and put them into an engine.

    Args:
        target: "smollm2" (the embedded model), a folder, a .gguf file, a Hugging Face id, or a loaded transformers
            model.
        drafter: "none", "ngram", "suffix", "model:ID" (ID as for target), "auto", or an object with the methods of
            `outrider.Drafter`.
        num_draft_tokens: most tokens to draft per round, 0 to 64, or "auto": from what was accepted lately.
        rule: "auto", "token", "block", "point-mass", "coupled", or "typical" (lossy).
        precision: "float32", "bfloat16", "float16", "q4", or "auto": the fastest within 1e-3 nats of float32.
        slots: sequences decoded together; more wait in line.
        context_length: tokens per sequence, prompt and output; None for the target's own limit, at most 8,192. A
            target with a sliding window needs one, at most the window's length.
        invariant: fixed-width forwards, for equal bits where the kernels alone do not give them.
        allow_lossy: accept rules that change the output law.
        device: "cpu" or a CUDA device.
        threads: CPU threads of this whole process; None leaves torch's setting.
        tokenizer: only with a loaded transformers model: its transformers tokenizer; None for the one saved with it.
        progress: called while layers load.

    Raises:
        InvalidOption: an option outside its range.
        CheckpointError, UnsupportedModel, VocabularyMismatch, CacheTooLarge: see `outrider.errors`.
    """
    check_options(
        drafter=drafter, num_draft_tokens=num_draft_tokens, rule=rule, precision=precision, invariant=invariant
    )
    _set_threads(threads)
    place = _device(device)
    loaded = _load_model(target, precision, place, progress, tokenizer, context_length)
    if invariant and not getattr(loaded.model, "pads_to_same_bits", False):
        raise InvalidOption("invariant", True, "False for this target", "It needs the native decoder on a CPU.")
    length = min(loaded.model.context_length, DEFAULT_CONTEXT) if context_length is None else context_length
    built = _drafter(drafter, loaded, slots, length, place, progress)
    chosen = _rule(rule, built, allow_lossy)
    pace: Pace = AutoPace() if num_draft_tokens == "auto" else FixedPace(int(num_draft_tokens))
    engine = Engine(loaded.model, built, chosen, pace, slots=slots, context_length=length, invariant=invariant)
    return TextEngine(engine, loaded.tokenizer)


def check_options(
    *, num_draft_tokens: int | str, rule: str, precision: str, invariant: bool, drafter: str | Drafter = "auto"
) -> None:
    """Refuse what can be refused before a model is loaded.

    Raises:
        InvalidOption: naming the option.
    """
    if not isinstance(drafter, str):
        check_drafter(drafter)
    elif drafter != "auto" and not drafter.startswith("model:"):
        build(drafter)
    if num_draft_tokens != "auto":
        if not whole(num_draft_tokens, 0, MAX_K):
            raise InvalidOption("num_draft_tokens", num_draft_tokens, f'a whole number from 0 to {MAX_K}, or "auto"')
        if invariant and int(num_draft_tokens) >= INVARIANT_WIDTH:
            raise InvalidOption("num_draft_tokens", num_draft_tokens, f"0 to {INVARIANT_WIDTH - 1} in invariant mode")
    if rule != "auto" and (not isinstance(rule, str) or rule not in RULES):
        raise InvalidOption("rule", rule, ", ".join(["auto", *RULES]))
    if precision != "auto" and precision not in PRECISIONS:
        raise InvalidOption("precision", precision, ", ".join(["auto", *PRECISIONS]))


def _set_threads(threads: int | None) -> None:
    if threads is None:
        return
    if not whole(threads, 1, MAX_THREADS):
        raise InvalidOption("threads", threads, f"1 to {MAX_THREADS}", "As many as there are cores is a good choice.")
    torch.set_num_threads(threads)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise InvalidOption("device", name, "cpu, or a device this torch can use", str(error).split("\n")[0]) from error
    return device


def _load_model(
    target: Any,
    precision: str,
    device: torch.device,
    progress: Progress | None,
    tokenizer: Any = None,
    context_length: int | None = None,
) -> _Loaded:
    if not isinstance(target, str | Path):
        if not hasattr(target, "config"):
            forms = "smollm2, a folder, a .gguf file, a Hugging Face id, or a loaded transformers model"
            raise InvalidOption("target", target, forms)
        return _wrap(target, precision, tokenizer, context_length)
    if tokenizer is not None:
        raise InvalidOption("tokenizer", tokenizer, "None for a target that is named", "Its own tokenizer is loaded.")
    path = locate(str(target))
    try:
        checkpoint = open_checkpoint(path)
    except UnsupportedModel:
        if not path.is_dir():
            raise
        return _adapt(path, precision, device, context_length)
    report = None if progress is None else lambda done, total: progress(str(target), done, total)
    with ThreadPoolExecutor(max_workers=1) as aside:  # importing transformers takes as long as reading the weights
        spoken = aside.submit(load_tokenizer, path)
        if precision == "auto":
            model = choose_precision(checkpoint, lambda: spoken.result().encode(SAMPLE_TEXT), device, report)
        else:
            model = load_decoder(checkpoint, precision, device=device, progress=report)
        return _Loaded(model, spoken.result())


def _adapt(path: Path, precision: str, device: torch.device, context_length: int | None) -> _Loaded:
    from outrider.models.transformers import load_transformers

    if precision == "q4":
        raise InvalidOption("precision", precision, "float32, bfloat16, float16", "q4 needs a 4-bit GGUF file.")
    dtype = torch.float32 if precision == "auto" else getattr(torch, precision)
    model = load_transformers(str(path), dtype, device, context_length=context_length)
    return _Loaded(model, load_tokenizer(path))


def _wrap(model: Any, precision: str, tokenizer: Any, context_length: int | None) -> _Loaded:
    """A transformers model that the user holds already."""
    from transformers import AutoTokenizer

    from outrider.models.tokenizer import wrap_tokenizer
    from outrider.models.transformers import TransformersModel

    adapter = TransformersModel(model, context_length=context_length)
    if precision not in ("auto", adapter.precision):
        fix = "A loaded model keeps its own precision; cast it before."
        raise InvalidOption("precision", precision, f"auto, {adapter.precision}", fix)
    if tokenizer is None:
        name = model.config.name_or_path
        if not name:
            raise InvalidOption("tokenizer", None, "the model's transformers tokenizer", "Pass tokenizer=... .")
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    return _Loaded(adapter, wrap_tokenizer(tokenizer, model.generation_config))


def _drafter(
    wanted: str | Drafter,
    target: _Loaded,
    slots: int,
    context_length: int,
    device: torch.device,
    progress: Progress | None,
) -> Drafter:
    if not isinstance(wanted, str):
        return wanted
    name, _, argument = wanted.partition(":")
    if name == "model" and argument:
        draft = _load_model(argument, "auto", device, progress)
        compare_vocabularies(target.tokenizer, draft.tokenizer)
        return ModelDrafter(draft.model, slots, vocab_size=target.model.vocab_size, capacity=context_length)
    return build(DEFAULT_DRAFTER if wanted == "auto" else wanted)


def _rule(name: str, drafter: Drafter, allow_lossy: bool) -> Any:
    if drafter.name == "none" and name in ("token", "block"):
        name = "auto"  # nothing is drafted, so there is no ratio to test
    return choose_rule(name, drafter.proposal, allow_lossy=allow_lossy)
