"""What is let into the engine of what a drafter returns, which may be the user's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from warnings import warn
from weakref import WeakKeyDictionary

import numpy as np
import torch

from outrider.core import Draft, Drafter, Model, Rule, Sequence
from outrider.errors import DrafterWarning
from outrider.rounds import Verified
from outrider.tree import check, is_chain

SUM_TOLERANCE = 1e-4
"""How far the sum of a law in float32 may be from 1."""

PATIENCE = 3
"""Failures in a row after which a sequence is decoded without its drafter."""


class Guard:
    """Asks a drafter, which may raise or return anything at all, and lets only drafts pass that can be verified.

    What fails is an empty draft with a reason. A sequence for which the drafter failed `PATIENCE` times in a row gets
    no more drafts, with a warning.

    Args:
        drafter: may not touch the sequences.
        rule: must accept the drafts.
        target: whose vocabulary bounds the ids; it may take trees or not.
    """

    def __init__(self, drafter: Drafter, rule: Rule, target: Model) -> None:
        self._drafter, self._rule, self._target, self._vocab_size = drafter, rule, target, target.vocab_size
        self._failures: WeakKeyDictionary[Sequence, int] = WeakKeyDictionary()  # in a row
        self._unlearned: WeakKeyDictionary[Sequence, str] = WeakKeyDictionary()  # why, since the last round

    def proposals(self, sequences: list[Sequence], budgets: list[int]) -> tuple[list[Draft], list[str | None]]:
        """One draft per sequence, empty where there is none to verify, and why the drafter's own was thrown away.

        Args:
            sequences: that are ready for a round.
            budgets: most nodes of each draft.
        """
        drafts: list[Draft] = [Draft()] * len(sequences)
        faults = [self._unlearned.pop(sequence, None) for sequence in sequences]
        asked = [i for i, s in enumerate(sequences) if faults[i] is None and self._failures.get(s, 0) < PATIENCE]
        answers = self._ask([sequences[i] for i in asked], [budgets[i] for i in asked]) if asked else []
        for i, answer in zip(asked, answers, strict=True):
            faults[i] = answer if isinstance(answer, str) else self._fault_of_anything(answer, budgets[i])
            if faults[i] is None:
                drafts[i] = _until_stop(answer, sequences[i])
                self._failures[sequences[i]] = 0
        for sequence, fault in zip(sequences, faults, strict=True):
            if fault is not None:
                self._count(sequence, fault)
        return drafts, faults

    def observe(self, verified: Iterable[Verified]) -> None:
        """Tell the drafter what became of its drafts, if it wants to know (see `rounds.Learner`)."""
        if hasattr(self._drafter, "observe"):
            seen = [v for v in verified if self._failures.get(v.sequence, 0) < PATIENCE]
            self._tell("observe", [v.sequence for v in seen], seen)

    def read(self, sequence: Sequence, hidden: torch.Tensor | None) -> None:
        """Tell the drafter of the features [n, F] of the next n tokens of a prompt (see `rounds.Reader`)."""
        if hidden is not None and hasattr(self._drafter, "read"):
            self._tell("read", [sequence], sequence, hidden)

    def share(self, source: Sequence, sequence: Sequence) -> None:
        """Tell the drafter that a prompt was copied from another sequence's (see `rounds.Reader`)."""
        if hasattr(self._drafter, "share"):
            self._tell("share", [sequence], source, sequence)

    def _tell(self, method: str, concerned: list[Sequence], *arguments: Any) -> None:
        try:
            getattr(self._drafter, method)(*arguments)
        except Exception as error:  # a drafter's failure is never the sequence's: it costs the next draft
            for sequence in concerned:
                self._unlearned[sequence] = f"{method} failed with {type(error).__name__}: {error}"

    def _ask(self, sequences: list[Sequence], budgets: list[int]) -> list[Any]:
        """What the drafter says to each; a string is its failure. A batch that fails is asked again one by one."""
        held = [list(sequence.tokens) for sequence in sequences]
        try:
            drafts = self._drafter.propose(list(sequences), list(budgets))
            assert len(drafts) == len(sequences), f"{len(drafts)} drafts for {len(sequences)} sequences"
            assert all(s.tokens == tokens for s, tokens in zip(sequences, held, strict=True)), "it changed a sequence"
            return list(drafts)
        except Exception as error:  # it must never end the sequences, only be counted
            for sequence, tokens in zip(sequences, held, strict=True):
                sequence.tokens = tokens
            if len(sequences) == 1:
                return [f"{type(error).__name__}: {error}"]
        return [self._ask([s], [k])[0] for s, k in zip(sequences, budgets, strict=True)]

    def _count(self, sequence: Sequence, fault: str) -> None:
        self._failures[sequence] = self._failures.get(sequence, 0) + 1
        if self._failures[sequence] == PATIENCE:
            name, times = self._drafter.name, f"failed {PATIENCE} times in a row"
            warn(f"Drafter {name!r} {times}; this sequence goes on without. The last: {fault}", DrafterWarning, 2)

    def _fault_of_anything(self, draft: Any, budget: int) -> str | None:
        """Why a draft cannot be verified, or None."""
        try:
            return self._fault(draft, budget)
        except Exception as error:  # its parts may be anything at all, too
            return f"{type(error).__name__}: {error}"

    def _fault(self, draft: Any, budget: int) -> str | None:
        if not isinstance(draft, Draft) or not len(draft.tokens) == len(draft.parents) <= max(budget, 0):
            return f"not a draft of at most {budget} tokens with one parent each: {str(draft)[:80]}"
        if not all(isinstance(i, int | np.integer) for i in (*draft.tokens, *draft.parents)):
            return f"tokens {draft.tokens}, parents {draft.parents}: they must be whole numbers"
        if not all(0 <= t < self._vocab_size for t in draft.tokens):
            return f"tokens {draft.tokens}: ids must be whole numbers from 0 to {self._vocab_size - 1}"
        if len(draft) > 0 and draft.proposal not in self._rule.proposals:
            return f"a {draft.proposal} draft, which rule {self._rule.name!r} does not accept"
        fault = _fault_of_probs(draft, self._vocab_size)
        if fault is None:
            check(draft)
        if fault is None and not is_chain(draft.parents) and (reason := why_chains_only(self._rule, self._target)):
            return f"a tree, with parents {draft.parents}: {reason}"
        return fault


def why_chains_only(rule: Rule, target: Model) -> str | None:
    """Why trees cannot be verified, or None if they can."""
    if not target.takes_trees:
        return "this target takes no attention mask for trees, only chains"
    return None if rule.trees else f"rule {rule.name!r} takes chains only"


def _fault_of_probs(draft: Draft, vocab_size: int) -> str | None:
    """What is wrong with the laws, or with which nodes have one."""
    if draft.draft_probs is not None and len(draft.draft_probs) != len(draft):
        return f"draft_probs has {len(draft.draft_probs)} rows for {len(draft)} tokens"
    laws = [draft.law(node) for node in range(len(draft))]
    if draft.proposal != "hybrid" and any((law is None) == (draft.proposal == "sampled") for law in laws):
        return f"draft_probs must have a law for every token of a sampled draft and none for a point mass: {laws}"
    faults = (_fault_of_law(law, token, vocab_size) for token, law in zip(draft.tokens, laws, strict=True))
    return next((fault for fault in faults if fault is not None), None)


def _fault_of_law(law: Any, token: int, vocab_size: int) -> str | None:
    if law is None:
        return None
    if not isinstance(law, np.ndarray) or law.shape != (vocab_size,):
        return f"draft_probs must be numpy arrays with {vocab_size} entries, not {getattr(law, 'shape', type(law))}"
    if law.dtype.kind != "f":
        return f"draft_probs must be of a float type, not {law.dtype}"
    if not (law.min() >= 0 and abs(law.sum(dtype=np.result_type(law, np.float32)) - 1) < SUM_TOLERANCE):
        return "draft_probs must be probabilities that add up to 1 in each row"
    return None if law[token] > 0 else "draft_probs gives probability 0 to a drafted token"


def _until_stop(draft: Draft, sequence: Sequence) -> Draft:
    """The draft without what stands behind a stop token, which cannot be emitted; its ids as plain ints."""
    place = {-1: -1}  # node -> where it stands afterwards
    for node, parent in enumerate(draft.parents):
        if parent in place and (parent == -1 or draft.tokens[parent] not in sequence.stop_ids):
            place[node] = len(place) - 1
    kept = list(place)[1:]
    return replace(
        draft,
        tokens=tuple(int(draft.tokens[node]) for node in kept),
        parents=tuple(place[draft.parents[node]] for node in kept),
        draft_probs=None if draft.draft_probs is None else tuple(draft.law(node) for node in kept),
    )
