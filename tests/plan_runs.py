"""Toys for plans: walks whose outcome is known beforehand, costs that follow a formula, a job that takes a second."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Ordered
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np

from engine_runs import toy_engine
from outrider.core import Draft, Proposal, Sequence
from outrider.drafters.none import NoDrafter
from outrider.models.opening import Opened
from outrider.planning.job import Job
from outrider.planning.kept import Asked
from outrider.planning.plan import DraftCost, OtherCost, TargetCost
from outrider.planning.pricing import Prices
from outrider.planning.timing import Timed
from outrider.planning.walked import Guess, Text, Walk, Wish, walk
from toy import ByteTokenizer, TableModel, rule_law


class RightAt:
    """Drafts the next tokens of a known text, right or wrong at each place of the text as `is_right` says."""

    name = "right-at"
    proposal: Proposal = "point_mass"

    def __init__(self, text: Ordered[int], is_right: Callable[[int], bool], vocab_size: int) -> None:
        self.text, self.is_right, self.vocab_size = list(text), is_right, vocab_size

    def propose(self, sequences: list[Sequence], budgets: list[int]) -> list[Draft]:
        return [self._propose(len(s.tokens), k) for s, k in zip(sequences, budgets, strict=True)]

    def _propose(self, start: int, budget: int) -> Draft:
        places = range(start, min(start + budget, len(self.text)))
        return Draft.chain([(self.text[i] + (not self.is_right(i))) % self.vocab_size for i in places])


class Always:
    """Drafts one token again and again."""

    name = "always"
    proposal: Proposal = "point_mass"

    def __init__(self, token: int) -> None:
        self.token = token

    def propose(self, sequences: list[Sequence], budgets: list[int]) -> list[Draft]:
        return [Draft.chain([self.token] * k) for k in budgets]


def constant(law: Ordered[float]) -> TableModel:
    """A target that draws every token from one law."""
    return TableModel(len(law), order=1, law=lambda context: np.asarray(law))


def counting(vocab_size: int = 50, certainty: float = 0.9) -> TableModel:
    """A target that counts on, modulo V."""
    law = rule_law(vocab_size, lambda context: (context[-1] + 1) % vocab_size, certainty)
    return TableModel(vocab_size, order=1, law=law)


def wish(prompts: Ordered[Ordered[int]], max_new_tokens: int, temperatures: Ordered[float] = (0.0,)) -> Wish:
    return Wish(tuple(Text("a", tuple(prompt)) for prompt in prompts), tuple(temperatures), max_new_tokens)


def written(target: TableModel, asked: Wish, slots: int = 4) -> Walk:
    """What the target writes by itself."""
    return walk(toy_engine(target, NoDrafter(), k=0, slots=slots), asked)


# ---------------------------------------------------------------- costs


BASE, ROW, SPAN, OTHER_ROW = 1.0, 0.125, 0.25, 0.03125
"""Of a forward, of a row, of a sequence with more than one row, and of a row beside the forward: exact in floats."""


def true_forward(rows: int, drafting: int) -> float:
    return BASE + ROW * rows + SPAN * drafting


def timed(wanted: tuple[int, ...], *, draft: float = 0.0, slower: float = 1.0, extra: float = 0.0) -> Timed:
    """A step as it should have been timed."""
    rows, drafting = len(wanted) + sum(wanted), sum(k > 0 for k in wanted)
    forward, other = true_forward(rows, drafting), OTHER_ROW * rows + extra * rows
    return Timed(wanted, rows, max(wanted), draft * slower, forward * slower, other * slower)


def prices(
    *, batches: Ordered[int] = (1,), per_token: float = 0.0, look_up: float = 0.0, shifted: int = 0, source: str = ""
) -> Prices:
    """The same costs as a plan has them; `shifted` plants a curve that is off by so many rows."""
    widths = (1, 2, 4, 7)
    targets = tuple(
        TargetCost(b, tuple(b * w for w in widths), tuple(_upper(b, w + shifted) for w in widths), SPAN, 10, 0.0)
        for b in batches
    )
    others = tuple(OtherCost(0.0, b, (b, 2 * b), (OTHER_ROW * b, OTHER_ROW * 2 * b)) for b in batches)
    drafts = tuple(DraftCost("x", 0.0, b, (0, 1, 2), (0.0, per_token, 2 * per_token)) for b in batches)
    return Prices(targets, others, {source: drafts} if source else {}, look_up)


def _upper(batch: int, width: int) -> float:
    """As if all sequences had more than one row."""
    return true_forward(batch * width, batch)


def rounds(k: int, accepted: Ordered[int], source: str = "") -> list[Guess]:
    return [Guess(k, k, a, source) for a in accepted]


def conditionals(k: int, accepted: Ordered[int]) -> list[Fraction]:
    """By place, exactly."""
    reached = [sum(a >= place for a in accepted) for place in range(k + 1)]
    return [Fraction(kept, tried) for tried, kept in pairwise(reached)]


# ---------------------------------------------------------------- a job


LOOP = 6
"""Tokens after which the target of a job repeats itself."""


def job(drafters: Ordered[str], told: Callable[[str, int, int], None] = lambda *_: None, **changes: object) -> Job:
    """Of a table model that counts in bytes; it takes about a second."""
    target = TableModel(ByteTokenizer.vocab_size, order=1, law=_loop(), context_length=200)
    settings: dict[str, Any] = {"temperatures": (0.0,), "batches": (1, 2), "max_new_tokens": 12, **changes}
    asked, tokenizer = Asked("toy", tuple(drafters), **settings), ByteTokenizer()
    texts = tuple(Text("count", tuple(10 + (start + i) % LOOP for i in range(12))) for start in range(3))
    return Job(asked, Opened(target, tokenizer), texts, {"processor": "p"}, {"m": [1]}, told)  # type: ignore[arg-type]


def _loop() -> Callable[[tuple[int, ...]], np.ndarray]:
    """Counts from 10 on and begins again, so that look-ups find something."""
    return rule_law(ByteTokenizer.vocab_size, lambda context: 10 + (context[-1] - 9) % LOOP, 0.9)
