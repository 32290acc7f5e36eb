"""What is let into the engine of what a drafter returns, which may be the user's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from outrider.core import Draft, Drafter, Rule, Sequence
from outrider.tree import is_chain

SUM_TOLERANCE = 1e-4
"""How far the sum of a law in float32 may be from 1."""


def proposals(
    drafter: Drafter, sequences: list[Sequence], budgets: list[int], rule: Rule, vocab_size: int
) -> tuple[list[Draft], list[str | None]]:
    """What the drafter proposes, with empty drafts in place of those that cannot be verified, and why they cannot.

    Args:
        drafter: may raise or return anything at all, and may not touch the sequences.
        sequences: that are ready for a round.
        budgets: most tokens of each draft.
        rule: must accept the drafts.
        vocab_size: of the target.
    """
    held = [list(sequence.tokens) for sequence in sequences]
    try:
        drafts = drafter.propose(list(sequences), list(budgets))
        assert len(drafts) == len(sequences), f"{len(drafts)} drafts for {len(sequences)} sequences"
        assert all(s.tokens == tokens for s, tokens in zip(sequences, held, strict=True)), "it changed a sequence"
    except Exception as error:  # it must never end the sequences, only be counted
        for sequence, tokens in zip(sequences, held, strict=True):
            sequence.tokens = tokens
        return [Draft()] * len(sequences), [f"{type(error).__name__}: {error}"] * len(sequences)
    faults = [_fault_of_anything(d, k, rule, vocab_size) for d, k in zip(drafts, budgets, strict=True)]
    return [Draft() if f else _until_stop(d, s) for d, s, f in zip(drafts, sequences, faults, strict=True)], faults


def _fault_of_anything(draft: Any, budget: int, rule: Rule, vocab_size: int) -> str | None:
    """Why a draft cannot be verified, or None."""
    try:
        return _fault(draft, budget, rule, vocab_size)
    except Exception as error:  # its parts may be anything at all, too
        return f"{type(error).__name__}: {error}"


def _fault(draft: Any, budget: int, rule: Rule, vocab_size: int) -> str | None:
    if not isinstance(draft, Draft) or not len(draft.tokens) == len(draft.parents) <= max(budget, 0):
        return f"not a draft of at most {budget} tokens with one parent each: {str(draft)[:80]}"
    if not is_chain(draft.parents):
        return f"parents {draft.parents}: only chains are supported"
    if not all(isinstance(t, int | np.integer) and 0 <= t < vocab_size for t in draft.tokens):
        return f"tokens {draft.tokens}: ids must be whole numbers from 0 to {vocab_size - 1}"
    if len(draft) > 0 and draft.proposal not in rule.proposals:
        return f"a {draft.proposal} draft, which rule {rule.name!r} does not accept"
    return _fault_of_probs(draft, vocab_size) if len(draft) > 0 and draft.proposal == "sampled" else None


def _fault_of_probs(draft: Draft, vocab_size: int) -> str | None:
    probs, shape = draft.draft_probs, (len(draft), vocab_size)
    if not isinstance(probs, np.ndarray) or probs.shape != shape:
        return f"draft_probs must be a numpy array of shape {shape}, not {getattr(probs, 'shape', type(probs))}"
    if not (probs.min() >= 0 and np.abs(probs.sum(-1, dtype=np.float64) - 1).max() < SUM_TOLERANCE):
        return "draft_probs must be probabilities that add up to 1 in each row"
    if not all(probs[i, t] > 0 for i, t in enumerate(draft.tokens)):
        return "draft_probs gives probability 0 to a drafted token"
    return None


def _until_stop(draft: Draft, sequence: Sequence) -> Draft:
    """The draft up to its first stop token, its ids as plain ints: nothing after a stop can be emitted."""
    tokens = tuple(int(token) for token in draft.tokens)
    count = next((i for i, token in enumerate(tokens, start=1) if token in sequence.stop_ids), len(tokens))
    probs = None if draft.draft_probs is None else draft.draft_probs[:count]
    return replace(draft, tokens=tokens[:count], parents=tuple(range(-1, count - 1)), draft_probs=probs)
