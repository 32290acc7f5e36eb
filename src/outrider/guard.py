"""What is let into the engine of what a drafter returns, which may be the user's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from outrider.core import Draft, Rule, Sequence
from outrider.tree import is_chain


def fault(draft: Any, budget: int, rule: Rule, vocab_size: int) -> str | None:
    """Why a draft cannot be verified, or None.

    Args:
        draft: what the drafter returned, anything at all.
        budget: most tokens it may have.
        rule: must accept drafts of its proposal.
        vocab_size: of the target.
    """
    if not isinstance(draft, Draft) or not len(draft.tokens) == len(draft.parents) <= max(budget, 0):
        return f"not a draft of at most {budget} tokens with one parent each: {str(draft)[:80]}"
    if not is_chain(draft.parents):
        return f"parents {draft.parents}: only chains are supported"
    if not all(isinstance(t, int | np.integer) and 0 <= t < vocab_size for t in draft.tokens):
        return f"tokens {draft.tokens}: ids must be whole numbers from 0 to {vocab_size - 1}"
    if draft.tokens and draft.proposal not in rule.proposals:
        return f"a {draft.proposal} draft, which rule {rule.name!r} does not accept"
    return _fault_of_probs(draft, vocab_size) if draft.tokens and draft.proposal == "sampled" else None


def _fault_of_probs(draft: Draft, vocab_size: int) -> str | None:
    probs, shape = draft.draft_probs, (len(draft), vocab_size)
    if not isinstance(probs, np.ndarray) or probs.shape != shape:
        return f"draft_probs must be a numpy array of shape {shape}, not {getattr(probs, 'shape', type(probs))}"
    if not all(probs[i, t] > 0 for i, t in enumerate(draft.tokens)):
        return "draft_probs gives probability 0 to a drafted token"
    return None


def until_stop(draft: Draft, sequence: Sequence) -> Draft:
    """The draft up to its first stop token: nothing after it can be emitted, so it is not worth verifying."""
    for count, token in enumerate(draft.tokens, start=1):
        if token in sequence.stop_ids and count < len(draft):
            probs = None if draft.draft_probs is None else draft.draft_probs[:count]
            return replace(draft, tokens=draft.tokens[:count], parents=draft.parents[:count], draft_probs=probs)
    return draft
