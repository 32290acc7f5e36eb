"""Rows against plain decoding: the tier "state", round by round, and the rows within rounds for the tier "law"."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

import numpy as np
import torch

from outrider.certifying.certificate import Check, Tier
from outrider.certifying.reference import Drift, Reference, apart
from outrider.certifying.running import Decided, Request
from outrider.core import Law
from outrider.tree import paths

MOST_CONTROLS = 8


@dataclass(frozen=True)
class OffPath:
    """A row behind a drafted node that was not kept.

    Args:
        request: whose.
        new: new tokens before the row, drafted ones included.
        row: [V] that the engine made.
    """

    request: Request
    new: tuple[int, ...]
    row: Law


class Audit:
    """Compares the engine's rows with those of a fresh prefill.

    Args:
        reference: plain decoding.
        drift: how far plain decoding is from itself.
        most_off_path: rows of nodes that were not kept, each of which costs a forward.
        seed: of the choice of these.
    """

    def __init__(self, reference: Reference, drift: Drift, most_off_path: int, seed: int) -> None:
        self._reference, self.drift, self._most = reference, drift, most_off_path
        self._dice = np.random.default_rng([seed, 11])
        self.after_pending: list[tuple[float, str]] = []
        self.within: list[tuple[float, str]] = []
        self.spoilt: list[float] = []
        self._off_path: list[OffPath] = []
        self._num_off_path = 0

    def note(self, decided: Decided) -> None:
        """Keep one row of a node that was not kept, of some rounds."""
        left = sorted(set(range(len(decided.draft))) - set(decided.verdict.path))
        if not left or self._num_off_path >= self._most or self._dice.random() < 0.5:
            return
        node = int(self._dice.choice(left))
        sequence, path = decided.sequence, paths(decided.draft.tokens, decided.draft.parents)[node + 1]
        if not sequence.stop_ids.isdisjoint(path):
            return  # processors are not called there
        new = (*sequence.tokens[sequence.prompt_length :][: decided.start], *path)
        self._off_path.append(OffPath(decided.request, new, decided.target_probs[node + 1].copy()))
        self._num_off_path += 1

    def add(self, request: Request, new: list[int], logits: torch.Tensor, rows: list[Law], starts: set[int]) -> None:
        """A whole text.

        Args:
            request: its request.
            new: its tokens.
            logits: [len(new) + 1, V] of plain decoding.
            rows: the engine's row at each token.
            starts: places of tokens that began a round.
        """
        for i, row in enumerate(rows):
            found = self._distance(request, new[:i], logits[i], row), request.at(i)
            (self.after_pending if i in starts else self.within).append(found)
        if len(self.spoilt) < MOST_CONTROLS:
            self.spoilt += [self._spoilt(request, new, i, rows[i]) for i in sorted(starts)[-3:] if i >= 1]
        for each in self._off_path:
            if each.request == request:
                there = self._reference.logits(request.place, each.new)[-1]
                distance = self._distance(request, list(each.new), there, each.row)
                self.within.append((distance, f"{request.at(len(each.new))}, a token that was not kept"))
        self._off_path = [each for each in self._off_path if each.request != request]

    def _distance(self, request: Request, new: list[int], logits: torch.Tensor, row: Law) -> float:
        """Between the laws; two greedy choices that are tied, as far as rounding goes, are not apart."""
        mine = self._reference.law(request.place, new, logits)
        if self._reference.sampling.temperature == 0:
            first, second = int(mine.argmax()), int(row.argmax())
            tied = self._reference.gap(request.place, new, logits, first, second) <= self.drift.gap_limit
            return 0.0 if first == second or tied else 1.0
        return apart(mine, row)

    def _spoilt(self, request: Request, new: list[int], place: int, row: Law) -> float:
        """The control: how far the row is from that of a cache whose last two tokens are wrong."""
        wrong = list(new[:place])
        for at in range(max(place - 2, 0), place):
            wrong[at] = (wrong[at] + 1) % len(row)
        there = self._reference.logits(request.place, wrong)[-1]
        return apart(self._reference.law(request.place, new[:place], there), row)

    def rows_check(self) -> Check | None:
        """For the tier "law": rows within rounds, kept tokens and others."""
        return self._check("rows within rounds", self.within) if self.within else None

    def tier(self) -> Tier:
        """The tier "state"."""
        if not self.after_pending:
            return Tier("state", "", samples="no rounds")
        found, limit = max(self.spoilt, default=0.0), self.drift.law_limit
        control = Check("two wrong tokens in the cache", found, limit, found > limit, f"total variation {found:.2g}")
        claim = "before every round the cache is that of a fresh prefill, as far as the law after it tells"
        check = self._check("rows after the pending token", self.after_pending)
        return Tier("state", claim, (check,), (control,), f"{len(self.after_pending):,} rounds")

    def _check(self, name: str, found: list[tuple[float, str]]) -> Check:
        (worst, position), limit = max(found), self.drift.law_limit
        rounding = f"plain decoding is up to {self.drift.law:.2g} from itself"
        words = f"total variation from a fresh prefill, {len(found):,} rows, mean {fmean(d for d, _ in found):.2g}; "
        return Check(name, worst, limit, worst <= limit, words + rounding, position)
