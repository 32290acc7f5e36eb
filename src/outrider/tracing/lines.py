"""The lines of a trace, as docs/traces.md describes them."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from collections.abc import Sequence as Ordered
from importlib.metadata import version
from math import isfinite
from typing import Any, Protocol

from outrider.core import Draft, Sequence
from outrider.engine import Engine
from outrider.options import Sampling
from outrider.rounds import Round
from outrider.tracing.attributing import Thrown, attributed
from outrider.tracing.noting import Decided

FORMAT, VERSION = "outrider trace", 1
"""Of the first line; the version goes up when the meaning of a key changes or a key goes away."""

TARGET = "target"
"""Origin of the next token, which nobody drafted."""

PARTS = ("draft", "target", "verify", "other")
"""Of a round's seconds."""

LONGEST_PROMPT = 100_000
"""Characters of a prompt that are kept, its last ones."""


class TextOf(Protocol):
    """Token ids to text."""

    def __call__(self, ids: list[int]) -> str:
        """The text of these tokens."""


def header(
    engine: Engine,
    *,
    target: str | None = None,
    drafter: str | None = None,
    sampling: Mapping[str, Any] | None = None,
    seed: int | None = None,
) -> dict[str, Any]:
    """The first line.

    Args:
        engine: the first one that is traced.
        target: as typed.
        drafter: as typed; the engine's own name for it if left out.
        sampling: what was asked for; each text has all of its own.
        seed: likewise.
    """
    versions = {name: version(name) for name in ("outrider", "torch", "transformers", "numpy")}
    return {
        "format": FORMAT,
        "version": VERSION,
        "target": target,
        "precision": engine.target.precision,
        "drafter": drafter or engine.drafter.name,
        "rule": engine.rule.name,
        "sampling": dict(sampling or {}),
        "seed": seed,
        "versions": {"python": platform.python_version(), **versions},
    }


def text_line(sequence: Sequence, engine: Engine, text_of: TextOf, **names: str) -> dict[str, Any]:
    """Of a sequence, before its first round; its number is the tracer's.

    Args:
        sequence: any time after its prompt.
        engine: that decodes it.
        text_of: token ids to text.
        **names: `name` of what decodes, `kind` of the prompt.
    """
    return {
        **names,
        "drafter": engine.drafter.name,
        "rule": engine.rule.name,
        "lossless": engine.rule.lossless,
        "sampling": _settings(sequence.sampling),
        "prompt": text_of(sequence.tokens[: sequence.prompt_length])[-LONGEST_PROMPT:],
        "prompt_tokens": sequence.prompt_length,
        "prefill_seconds": sequence.prefill_seconds,
    }


def round_line(r: Round, decided: Decided | None, source: str, pieces: Ordered[str], text_of: TextOf) -> dict[str, Any]:
    """Of a round of a sequence; its numbers are the tracer's.

    Args:
        r: what came of it.
        decided: what the rule saw and said; None if it was not asked, for the target's law failed.
        source: who drafted.
        pieces: per emitted token the text that became final with it.
        text_of: token ids to text, of one token.
    """
    path = () if decided is None else decided.verdict.path
    emitted = zip(r.token_ids, pieces, (*path, None)[: len(r.token_ids)], strict=True)
    return {
        "place": r.sequence.num_new_tokens - len(r.token_ids),
        "seconds": {part: getattr(r.seconds, part) for part in PARTS},
        "rule": r.rule,
        "nodes": [] if decided is None else nodes_of(decided, source, text_of),
        "next": None if decided is None else _next(decided, text_of),
        "tokens": [
            {"token": token, "text": text, "origin": TARGET if node is None else source, "node": node}
            for token, text, node in emitted
        ],
        "finish": r.finish_reason,
        "broken": None if r.broken is None else r.broken.partition(":")[0],  # what follows may name files
        "error": None if r.error is None else type(r.error).__name__,
    }


def nodes_of(decided: Decided, source: str, text_of: TextOf) -> list[dict[str, Any]]:
    """The nodes of a draft and what became of them."""
    draft, path = decided.draft, set(decided.verdict.path)
    acceptance, coins = attributed(decided.rule, draft, decided.verdict, decided.thrown)
    return [
        {
            "token": token,
            "text": text_of([token]),
            "origin": source,
            "parent": draft.parents[node],
            "p": _drawn_with(draft, node),
            "q": _number(decided.target_probs[node]),
            "acceptance": _number(acceptance.get(node)),
            "coin": _coin(coins.get(node)),
            "accepted": node in path,
        }
        for node, token in enumerate(draft.tokens)
    ]


def _next(decided: Decided, text_of: TextOf) -> dict[str, Any]:
    token = decided.verdict.next_token
    return {"token": token, "text": text_of([token]), "q": _number(decided.target_probs[-1])}


def _settings(sampling: Sampling) -> dict[str, Any]:
    """The sampler's settings; of a processor only that there is one."""
    found = {name: getattr(sampling, name) for name in Sampling.__dataclass_fields__}
    biases = {str(token): _number(bias) for token, bias in sampling.logit_bias.items()}
    return found | {
        "logit_bias": biases,
        "banned_ids": sorted(sampling.banned_ids),
        "processor": sampling.processor is not None,
    }


def _drawn_with(draft: Draft, node: int) -> float | None:
    """p of a node's token; None if it was not drawn."""
    law = draft.law(node)
    return None if law is None else _number(float(law.item(draft.tokens[node])))


def _coin(thrown: Thrown | None) -> dict[str, Any] | None:
    if thrown is None:
        return None
    return {"chance": _number(thrown.chance), "uniform": thrown.uniform, "fell": thrown.fell}


def _number(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None
