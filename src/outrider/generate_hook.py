"""The hook for people who hold a `transformers` model: `model.generate(**inputs, custom_generate=custom_generate)`.

`generate` prepares a call as always, and this hook decodes instead of it: what was prepared (processors, criteria,
padding) becomes requests of one engine, and the emitted tokens become the tensor that `generate` returns. Greedy ids
are those of `generate` itself, sampled ones have the same law. What has no exact translation is refused by name.

What cannot be mended here, because `generate` keeps it to itself:

- `streamer`, `synced_gpus`, `tokenizer` and `assistant_model` are dropped before the hook is called. Use `stream=`
  instead of `streamer=`, and `drafter=` instead of `assistant_model=`.
- `stop_strings` needs the dropped tokenizer and raises. Pass a `StopStringCriteria` in `stopping_criteria`.

Three things differ from `generate` on purpose. Each row is decoded alone: processors and criteria see one row at a
time, must answer from what they are given, and processors are asked about tokens that are then rejected. A row that
has ended holds padding from there on, whatever ended it (`generate` lets it run on if there is no end-of-text token).
A row that reaches the model's context ends there, with a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers.generation import logits_process as hf
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria
from transformers.generation.utils import GenerateDecoderOnlyOutput

from outrider.core import Drafter
from outrider.drafters import ModelDrafter, build, check_drafter
from outrider.drafting import Built
from outrider.engine import Engine
from outrider.errors import InvalidOption
from outrider.loading import check_options, check_trees, default_drafter, pace_of, parse_drafter
from outrider.models.transformers import TransformersModel
from outrider.options import Sampling
from outrider.rounds import Round
from outrider.rules import choose_rule

MAX_SLOTS = 8
"""Rows decoded together; more wait in line."""

_OWN_DRAFTERS = "Choose a drafter with drafter=... instead."
_OWN_CACHE = "outrider makes a cache of its own, which it can roll back; leave the setting out."
_ONLY_IDS = "Only token ids come back."
_ONE_TEXT = "outrider decodes one text per row; sample, or leave the setting out."
_OTHER_LAW = "This is another way of decoding than drawing from the model's law; leave the setting out."

_UNSUPPORTED: dict[str, tuple[tuple[Any, ...], str]] = {
    "num_beams": ((1,), _ONE_TEXT),
    "num_beam_groups": ((1,), _ONE_TEXT),
    "constraints": ((), _ONE_TEXT),
    "force_words_ids": ((), _ONE_TEXT),
    "penalty_alpha": ((0,), _OTHER_LAW),
    "dola_layers": ((), _OTHER_LAW),
    "prompt_lookup_num_tokens": ((), _OWN_DRAFTERS),
    "assistant_early_exit": ((), _OWN_DRAFTERS),
    "assistant_ensemble_weight": ((), _OWN_DRAFTERS),
    "speculation_type": ((), _OWN_DRAFTERS),
    "use_mtp": ((False,), _OWN_DRAFTERS),
    "output_scores": ((False,), _ONLY_IDS),
    "output_logits": ((False,), _ONLY_IDS),
    "output_attentions": ((False,), _ONLY_IDS),
    "output_hidden_states": ((False,), _ONLY_IDS),
    "cache_implementation": (("dynamic",), _OWN_CACHE),
    "use_cache": ((True,), _OWN_CACHE),
    "remove_invalid_values": ((False,), "outrider reports NaN and infinite logits as errors; leave the setting out."),
}
"""Settings of a generation config: their values, besides None, that change nothing, and why others are refused."""

_MODEL_INPUTS = {"attention_mask", "position_ids", "logits_to_keep", "use_cache", "cache", "past_key_values"}
"""What `generate` passes on for the model and is understood here; the rest would change its logits."""

_STATEFUL = (hf.UnbatchedClassifierFreeGuidanceLogitsProcessor, hf.SynthIDTextWatermarkLogitsProcessor)
"""Processors that remember earlier calls: those about rejected tokens would lead them astray."""

_ROW_BOUND = (
    hf.PrefixConstrainedLogitsProcessor,
    hf.EncoderRepetitionPenaltyLogitsProcessor,
    hf.EncoderNoRepeatNGramLogitsProcessor,
)
"""Processors that hold something for each row of the batch and know a row by its number in it."""

_Penalty = hf.RepetitionPenaltyLogitsProcessor

_WARPERS = {
    "min_p": hf.MinPLogitsWarper,
    "top_p": hf.TopPLogitsWarper,
    "top_k": hf.TopKLogitsWarper,
    "temperature": hf.TemperatureLogitsWarper,
}
"""Fields of `Sampling` and their warpers, from the one that works last backwards."""


@dataclass(frozen=True)
class _Call:
    """What `generate` has prepared."""

    input_ids: torch.Tensor
    processors: Any
    criteria: Any
    config: Any


@dataclass
class _Row:
    """One row of the batch: `ids` are its padding, its prompt and what was emitted so far."""

    ids: list[int]
    num_padding: int


def custom_generate(
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    *,
    drafter: str | Drafter = "auto",
    num_draft_tokens: int | str = "auto",
    rule: str = "auto",
    allow_lossy: bool = False,
    context_length: int | None = None,
    target: TransformersModel | None = None,
    stream: Any = None,
    seed: int | None = None,
    **model_kwargs: Any,
) -> Any:
    """Decode for `generate`, which fills in the first five and `model_kwargs`; give it the others by name.

    Args:
        drafter: "none", "ngram", "suffix", "auto", or an object with the methods of `outrider.Drafter`, such as
            `ModelDrafter(TransformersModel(draft_model), slots=8)`.
        num_draft_tokens: see `outrider.load`, as for `rule` and `allow_lossy`.
        context_length: tokens per row, fewer than the model allows; None for all of them.
        target: `TransformersModel(model)`, made once, saves the trial run of the model in each call.
        stream: takes the prompt and then each token, like `transformers`' streamers: put(ids), end(). One row only.
        seed: of the first row; row i has seed + i. None draws them from torch's generator (`torch.manual_seed`).

    Returns:
        [B, L + longest] int64, prompts included, padded on the right; with `return_dict_in_generate` a
        `GenerateDecoderOnlyOutput` that holds them as `sequences` and nothing else.

    Raises:
        OutriderError: an option, a processor or a model that cannot be decoded exactly here; the message names it.
    """
    check_options(num_draft_tokens=num_draft_tokens, rule=rule, precision="auto", invariant=False)
    call = _Call(input_ids, logits_processor, stopping_criteria, generation_config)
    _refuse_settings(model, generation_config, model_kwargs)
    rows = _rows(input_ids, model_kwargs)
    _refuse_processors(logits_processor, len(rows))
    _refuse_stream(stream, len(rows))
    target = _target(model, target, context_length)
    made, slots = _drafter(drafter, target.vocab_size, len(rows))
    chosen = choose_rule(rule, made.proposal, allow_lossy=allow_lossy)
    choices = parse_drafter(drafter)
    check_trees(choices, chosen, target)
    pace = pace_of(num_draft_tokens, choices, Built(made))
    engine = Engine(target, made, chosen, pace, slots=slots, context_length=context_length)
    _decode(engine, _add(engine, call, rows, seed), call, stream)
    return _packed(rows, call)


# --- what is refused


def _refuse_settings(model: Any, config: Any, model_kwargs: dict[str, Any]) -> None:
    if model.training:
        raise InvalidOption("model.training", True, "False", "Call model.eval(): dropout draws a new law each time.")
    for name, (harmless, why) in _UNSUPPORTED.items():
        value = getattr(config, name, None)
        if value is not None and value not in harmless:
            raise InvalidOption(name, value, " or ".join(map(repr, (*harmless, None))), why)
    for name, value in model_kwargs.items():
        if name not in _MODEL_INPUTS and value is not None:
            raise InvalidOption(name, type(value).__name__, "None", "The model is given token ids and nothing else.")
    cache = model_kwargs.get("cache", model_kwargs.get("past_key_values"))
    if cache is not None and (getattr(cache, "_is_user_defined", False) or cache.get_seq_length() > 0):
        raise InvalidOption("cache", f"a {type(cache).__name__}", "None", _OWN_CACHE)


def _refuse_processors(processors: Any, num_rows: int) -> None:
    """Refuse processors that cannot follow one row through speculation."""
    for processor in processors:
        kind = type(processor).__name__
        if isinstance(processor, _STATEFUL):
            fix = "It remembers earlier calls, and would remember those about tokens that were then rejected."
            raise InvalidOption("logits_processor", kind, "functions of the token ids and logits alone", fix)
        if isinstance(processor, _ROW_BOUND) and num_rows > 1:
            fix = "It goes by the number of a row in the batch; decode the rows one by one."
            raise InvalidOption("logits_processor", kind, f"others for {num_rows} rows", fix)


def _refuse_stream(stream: Any, num_rows: int) -> None:
    if stream is not None and num_rows > 1:
        fix = "Rows get their tokens at different times; decode them one by one."
        raise InvalidOption("stream", type(stream).__name__, f"None for {num_rows} rows", fix)


def _rows(input_ids: torch.Tensor, model_kwargs: dict[str, Any]) -> list[_Row]:
    """The rows, whose padding must be on the left and whose positions must count from the first real token."""
    mask, positions = model_kwargs.get("attention_mask"), model_kwargs.get("position_ids")
    mask = torch.ones_like(input_ids) if mask is None else mask
    if mask.shape != input_ids.shape:
        raise InvalidOption("attention_mask", f"a tensor {list(mask.shape)}", f"one of shape {list(input_ids.shape)}")
    real = mask != 0
    num_padding = (~real).sum(-1)
    places = torch.arange(input_ids.shape[1], device=input_ids.device) - num_padding[:, None]
    if not torch.equal(real, places >= 0) or not real[:, -1].all():
        fix = "Pad on the left (padding_side), and pass the tokenizer's mask."
        raise InvalidOption("attention_mask", mask.tolist(), "zeros first and then ones, at least one per row", fix)
    if positions is not None and not torch.equal(positions * real, places * real):
        allowed = "0, 1, 2, ... from the first token that is not padding"
        raise InvalidOption("position_ids", positions.tolist(), allowed, "Leave them out.")
    return [_Row(ids, count) for ids, count in zip(input_ids.tolist(), num_padding.tolist(), strict=True)]


# --- the parts of the engine


def _target(model: Any, prepared: TransformersModel | None, context_length: int | None) -> TransformersModel:
    if prepared is None:
        return TransformersModel(model, context_length=context_length)
    if not isinstance(prepared, TransformersModel) or prepared.model is not model:
        fix = "It must wrap the model whose generate is called."
        raise InvalidOption("target", type(prepared).__name__, "TransformersModel(model)", fix)
    return prepared


def _drafter(wanted: str | Drafter, vocab_size: int, num_rows: int) -> tuple[Drafter, int]:
    """The drafter, and how many rows it and the engine take at a time."""
    slots = min(num_rows, MAX_SLOTS)
    if isinstance(wanted, str):
        if wanted.startswith("model:"):
            fix = "Not to load it in every call, make ModelDrafter(TransformersModel(draft_model), slots=8) once."
            raise InvalidOption("drafter", wanted, "none, ngram, suffix, auto, or an object", fix)
        return build(default_drafter() if wanted == "auto" else wanted), slots
    check_drafter(wanted)
    if isinstance(wanted, ModelDrafter):
        if wanted.vocab_size != vocab_size:
            fix = f"If both models mean the same by their ids, make it with vocab_size={vocab_size}."
            raise InvalidOption("drafter.vocab_size", wanted.vocab_size, f"{vocab_size}, the target's", fix)
        slots = min(slots, len(wanted.cache.lengths))
    return wanted, slots


# --- from what generate has prepared to requests


def _add(engine: Engine, call: _Call, rows: list[_Row], seed: int | None) -> dict[int, _Row]:
    """Queue all rows; which sequence id is which row."""
    criteria, seeds = call.criteria, _seeds(seed, len(rows), call.config.do_sample)
    ends = {int(i) for each in criteria if type(each) is EosTokenCriteria for i in each.eos_token_id}
    limits = [each.max_length for each in criteria if type(each) is MaxLengthCriteria]
    # transformers looks at its criteria after a token, so there is always one
    room = max(1, min(limits) - call.input_ids.shape[1]) if limits else None
    sequences = [
        engine.add(
            row.ids[row.num_padding :],
            sampling=_sampling(call, index, row, engine.target.vocab_size),
            seed=seeds[index],
            stop_ids=ends,
            max_new_tokens=room,
        )
        for index, row in enumerate(rows)
    ]
    return {sequence.id: row for sequence, row in zip(sequences, rows, strict=True)}


def _seeds(seed: int | None, count: int, do_sample: bool) -> list[int]:
    if seed is None:
        return torch.randint(2**62, (count,)).tolist() if do_sample else [0] * count
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise InvalidOption("seed", seed, "a whole number from 0 to 2^63 - 1, or None to draw one")
    return [seed + i for i in range(count)]


def _sampling(call: _Call, index: int, row: _Row, vocab_size: int) -> Sampling:
    """The law of a row: what `Sampling` has fields for, at either end of the processors, and the rest as they are."""
    rest = list(call.processors)
    while rest and type(rest[-1]) is hf.LogitNormalization:
        rest.pop()  # it takes the same number off every logit
    settings: dict[str, Any] = {"temperature": 1.0, **_warpers(rest)} if call.config.do_sample else {}
    if "top_k" in settings:
        settings["top_k"] = min(settings["top_k"], vocab_size)
    rest = [_penalty_of_row(each, index) if type(each) is _Penalty else each for each in rest]
    if rest and type(rest[0]) is _Penalty and rest[0].prompt_ignore_length == row.num_padding:
        settings["repetition_penalty"] = rest.pop(0).penalty
    if rest:
        settings["processor"] = _joined(rest, row.ids[: row.num_padding], call.input_ids.device)
    return Sampling(**settings)


def _penalty_of_row(penalty: Any, index: int) -> Any:
    """A repetition penalty that ignores a number of tokens, where the one of the batch may hold a number per row."""
    ignored = penalty.prompt_ignore_length
    return _Penalty(penalty.penalty, int(ignored[index]) if isinstance(ignored, torch.Tensor) else ignored or 0)


def _warpers(rest: list[Any]) -> dict[str, Any]:
    """Take warpers off the end of `rest`, as far as `Sampling` applies them in the same order."""
    settings = {}
    for name, kind in _WARPERS.items():
        if rest and type(rest[-1]) is kind:
            value = getattr(rest[-1], name)
            # as plain as its one argument makes it; and transformers allows top_p=0, `Sampling` does not
            if value > 0 and vars(rest[-1]) == vars(kind(value)):
                settings[name] = value
                rest.pop()
    return settings


def _joined(processors: list[Any], padding: list[int], device: torch.device) -> Callable[..., torch.Tensor]:
    """One processor of a row's own ids and logits [V]; those in it see the padded row, as they do in `generate`."""
    chain = hf.LogitsProcessorList(processors)

    def process(token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = chain(torch.tensor([padding + token_ids], device=device), logits[None].to(device))
        return made[0]

    return process


# --- decoding


def _decode(engine: Engine, rows: dict[int, _Row], call: _Call, stream: Any) -> None:
    """Run all rows to their end."""
    criteria = [each for each in call.criteria if type(each) not in (EosTokenCriteria, MaxLengthCriteria)]
    broken = None
    if stream is not None:
        stream.put(call.input_ids.cpu())
    try:
        while engine.num_unfinished:
            for r in engine.step():
                if r.error is not None:
                    raise r.error
                _take(engine, r, rows[r.sequence.id], criteria, call.input_ids.device, stream)
                broken = r.broken or broken
    finally:
        if stream is not None:
            stream.end()
    if broken is not None:
        warnings.warn(f"The drafter failed, so rounds went without a draft: {broken}", stacklevel=2)


def _take(engine: Engine, r: Round, row: _Row, criteria: list[Any], device: torch.device, stream: Any) -> None:
    """Append the tokens of a round up to the first after which a criterion holds."""
    for token in r.token_ids:
        row.ids.append(token)
        if stream is not None:
            stream.put(torch.tensor([token]))
        if criteria and _holds(criteria, torch.tensor([row.ids], device=device)):
            engine.cancel(r.sequence)
            return
    if r.finish_reason == "length" and r.sequence.num_new_tokens != r.sequence.max_new_tokens:
        end = f"A row ended at the context of {engine.context_length} tokens, before the length that was asked for."
        warnings.warn(end, stacklevel=2)


def _holds(criteria: list[Any], ids: torch.Tensor) -> bool:
    return any(bool(torch.as_tensor(criterion(ids, None)).all()) for criterion in criteria)


def _packed(rows: list[_Row], call: _Call) -> Any:
    longest = max(len(row.ids) for row in rows)
    pad = call.config._pad_token_tensor
    if pad is None and any(len(row.ids) < longest for row in rows):
        raise InvalidOption("pad_token_id", None, "a token id", "The rows ended at different lengths.")
    filling = [] if pad is None else [int(pad)]
    filled = [row.ids + filling * (longest - len(row.ids)) for row in rows]
    ids = torch.tensor(filled, device=call.input_ids.device)
    return GenerateDecoderOnlyOutput(sequences=ids) if call.config.return_dict_in_generate else ids
