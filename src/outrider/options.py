"""What a request may ask for: the settings that shape its law, and which values have a meaning."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from outrider.errors import InvalidOption

LARGEST = 1e30
"""No option is larger, so that all are finite in float32; temperatures below 1 / LARGEST count as 1 / LARGEST."""

MAX_SLOTS = 1024
"""Sequences decoded together."""


@dataclass(frozen=True)
class Sampling:
    """How logits become the law q (see `sampling.laws`); the defaults leave the law as the model gives it.

    Args:
        temperature: 0 for greedy (a one-hot law), else > 0.
        top_k: keep the k likeliest tokens (ties with the k-th are kept); None keeps all.
        top_p: in (0, 1], keep the smallest set of likeliest tokens with at least this mass.
        min_p: in [0, 1], drop tokens below min_p times the largest probability.
        repetition_penalty: > 0; divides positive and multiplies negative logits of tokens in prompt or output.
        presence_penalty: subtracted once from the logit of every token in the output.
        frequency_penalty: subtracted per occurrence in the output.
        logit_bias: added to the logits, {token id: bias}.
        banned_ids: tokens that must not be produced.
        min_new_tokens: no stop id before so many new tokens.
        processor: `(token_ids, logits) -> logits`, called last before the temperature with the sequence's own
            token ids (list of int) and its logits [V]; must return [V].
        logprobs: how many likeliest tokens to report beside the chosen one; None reports nothing.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    banned_ids: frozenset[int] = frozenset()
    min_new_tokens: int = 0
    processor: Any | None = None
    logprobs: int | None = None


def validate(sampling: Sampling, vocab_size: int) -> None:
    """Refuse settings that have no meaning for a vocabulary of this size.

    A bias of -inf is allowed and bans its token; a bias of +inf is not, since it would leave no law.

    Raises:
        InvalidOption: naming the first option that is wrong, its value (of a collection, the wrong items) and what
            is allowed.
    """
    if not isinstance(sampling, Sampling):
        raise InvalidOption("sampling", sampling, "an outrider.Sampling")
    s, last = sampling, vocab_size - 1
    biases: Any = s.logit_bias
    banned: Any = s.banned_ids
    if isinstance(biases, Mapping):
        biases = {i: by for i, by in biases.items() if not (whole(i, 0, last) and _real(by, -math.inf))}
    if isinstance(banned, Collection):
        banned = [i for i in banned if not whole(i, 0, last)]
    size, finite, ids = f"{vocab_size}, the vocabulary", f"a number up to +-{LARGEST:g}", f"ids from 0 to {last}"
    checks = (
        ("temperature", s.temperature, _real(s.temperature, 0), f"0 (greedy) or a number up to {LARGEST:g}"),
        ("top_k", s.top_k, s.top_k is None or whole(s.top_k, 1, vocab_size), f"None or 1 to {size}"),
        ("top_p", s.top_p, _real(s.top_p, 0, 1) and s.top_p > 0, "a number above 0, at most 1"),
        ("min_p", s.min_p, _real(s.min_p, 0, 1), "a number from 0 to 1"),
        ("repetition_penalty", s.repetition_penalty, _real(s.repetition_penalty, 1 / LARGEST), "a number above 0"),
        ("presence_penalty", s.presence_penalty, _real(s.presence_penalty), finite),
        ("frequency_penalty", s.frequency_penalty, _real(s.frequency_penalty), finite),
        ("logit_bias", biases, isinstance(biases, dict) and not biases, f"a dict of token {ids} to -inf or {finite}"),
        ("banned_ids", banned, isinstance(banned, list) and not banned, f"a set of token {ids}"),
        ("min_new_tokens", s.min_new_tokens, whole(s.min_new_tokens, 0), "a whole number, at least 0"),
        ("processor", s.processor, s.processor is None or callable(s.processor), "None or a function"),
        ("logprobs", s.logprobs, s.logprobs is None or whole(s.logprobs, 0, vocab_size), f"None or 0 to {size}"),
    )
    for name, value, sound, allowed in checks:
        if not sound:
            raise InvalidOption(name, value, allowed)
    gone = len({*s.banned_ids, *(i for i, by in s.logit_bias.items() if by == -math.inf)})
    if gone == vocab_size:
        raise InvalidOption("banned_ids", f"{gone} ids", f"fewer than {size}", "At least one token must be left.")


def token_ids(name: str, ids: Any, vocab_size: int | None = None) -> list[int]:
    """What was given as token ids, as a list of plain ints.

    Raises:
        InvalidOption: it is no collection, or one of them is not a whole number in [0, vocab_size).
    """
    last, to = (math.inf, "") if vocab_size is None else (vocab_size - 1, f" to {vocab_size - 1}")
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise InvalidOption(f"{name} ids", ids, "a list of token ids")
    given = list(ids)
    for token in given:
        if not whole(token, 0, last):
            raise InvalidOption(f"{name} token", token, f"whole numbers from 0{to}")
    return [int(token) for token in given]


def check_request(tokens: list[int], max_new_tokens: Any, min_new_tokens: int, seed: Any, context_length: int) -> None:
    """Refuse a request that cannot be decoded.

    Raises:
        InvalidOption: naming the value, what is allowed and what to do.
    """
    if not tokens:
        raise InvalidOption("prompt", tokens, "at least one token", "Give some text, or a chat message.")
    if len(tokens) >= context_length:
        fix = "Shorten it or load with a larger context."
        raise InvalidOption(
            "prompt", f"{len(tokens)} tokens", f"fewer than the context of {context_length} tokens", fix
        )
    if max_new_tokens is not None and not whole(max_new_tokens, 1):
        raise InvalidOption("max_new_tokens", max_new_tokens, "1 or more, or None for no limit")
    if max_new_tokens is not None and min_new_tokens > max_new_tokens:
        raise InvalidOption("min_new_tokens", min_new_tokens, f"0 to {max_new_tokens}, which is max_new_tokens")
    check_seed(seed)


def check_seed(seed: Any) -> None:
    """Refuse a seed that is neither None nor a whole number in [0, 2^63).

    Raises:
        InvalidOption: naming it.
    """
    if seed is not None and not whole(seed, 0, 2**63 - 1):
        raise InvalidOption("seed", seed, "a whole number from 0 to 2^63 - 1, or None for a fresh one")


def check_slots(slots: int) -> None:
    """Refuse a number of slots that no engine has.

    Raises:
        InvalidOption: naming it.
    """
    if not whole(slots, 1, MAX_SLOTS):
        raise InvalidOption("slots", slots, f"1 to {MAX_SLOTS}")


def whole(value: Any, low: float, high: float = math.inf) -> bool:
    """Whether it is a whole number from `low` to `high`, numpy's among them; True and False are none."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(low <= value <= high)


def _real(value: Any, low: float = -LARGEST, high: float = LARGEST) -> bool:
    return whole(value, low, high) or (isinstance(value, float | np.floating) and bool(low <= value <= high))
