"""Tier "law": the exact output law of the shipped rule on real rows, the coins at their edges, the rows themselves."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np

from outrider.certifying.bugs import Favours
from outrider.certifying.certificate import Check, Tier
from outrider.certifying.enumerating import ROUNDING_OF_LAWS, first_token_error, law_error
from outrider.certifying.problems import Problem, problem_of
from outrider.core import Coins, Draft, Law, Proposal, Rule
from outrider.errors import InvalidOption

LIMIT = ROUNDING_OF_LAWS
FAVOUR = 0.05
NEXT_TO_1 = float(np.nextafter(1.0, 0.0))


class Harvest:
    """Drafts and rows of a run, some of them, for the exact law.

    Args:
        rule: that is certified.
        every: a problem is made of every so many drafts.
        most: problems.
        whole: drafts that are kept with the whole vocabulary.
    """

    def __init__(self, rule: Rule, every: int, most: int, whole: int) -> None:
        self.rule, self._every, self._most, self._whole = rule, every, most, whole
        self.problems: list[Problem] = []
        self.firsts: list[tuple[str, tuple[Proposal, Law, Law | None, int]]] = []
        self._seen = 0

    def add(self, draft: Draft, target_probs: Law, position: str) -> None:
        """A draft, if it is one of those that are taken."""
        if len(draft) == 0:
            return
        self._seen += 1
        if self._seen % self._every == 0 and len(self.problems) < self._most:
            self.problems.append(problem_of(draft, target_probs, position))
        if self._seen % self._every == 0 and len(self.firsts) < self._whole:
            self.firsts.append((position, (draft.proposal, target_probs[:2].copy(), draft.law(0), draft.tokens[0])))

    def checks(self, coins: Coins) -> tuple[list[Check], list[Check]]:
        """Checks and controls; none without a draft, but for the coins."""
        if not self.problems:
            return [edges(coins)], []
        errors = [law_error(self.rule, problem) for problem in self.problems]
        worst = int(np.argmax(errors))
        mean = f"all outcomes of {len(errors)} rounds, in float64, on small vocabularies; mean {np.mean(errors):.2g}"
        checks = [_within("total variation of a round", errors[worst], mean, self.problems[worst].position)]
        firsts = [first_token_error(self.rule, *first) for _, first in self.firsts]
        if firsts:
            words = f"{len(firsts)} first tokens, as shipped, on the whole vocabulary"
            place = self.firsts[int(np.argmax(firsts))][0]
            checks.append(_within("total variation of a token", max(firsts), words, place))
        favouring = Favours(self.rule, FAVOUR)
        found = max(law_error(favouring, problem) for problem in self.problems)
        name = "keeps the first drafted token one time in twenty"
        return [*checks, edges(coins)], [Check(name, found, LIMIT, found > LIMIT, f"total variation {found:.2g}")]

    def mean_error(self) -> float:
        """Of a lossy rule: mean total variation of a round."""
        return float(np.mean([law_error(self.rule, problem) for problem in self.problems])) if self.problems else 0.0


def _within(name: str, figure: float, words: str, position: str) -> Check:
    return Check(name, figure, LIMIT, figure <= LIMIT, words, position)


# ---------------------------------------------------------------- coins at their edges


class _Always:
    """A stream that gives one number for ever."""

    def __init__(self, value: float) -> None:
        self.value = value

    def random(self) -> float:
        return self.value


def edges(coins: Coins) -> Check:
    """Whether coins of this kind fall rightly where it is closest: u = 0, u = a, u next to 1, weights of 0.

    Args:
        coins: of a sequence; copies are used.
    """
    wrong = [*_wrong_chances(coins), *_wrong_tokens(coins)]
    words = wrong[0] if wrong else "u = 0, u at the chance itself, u next to 1, tokens of weight 0"
    return Check("coins at their edges", float(len(wrong)), 0.0, not wrong, words)


def _wrong_chances(coins: Coins) -> list[str]:
    found = []
    for u, chance, wanted in (
        (0.0, 0.0, False),
        (0.5, 0.5, False),
        (0.25, 0.25, False),
        (0.0, 5e-324, True),
        (NEXT_TO_1, 1.0, True),
        (NEXT_TO_1, NEXT_TO_1, False),
        (0.3, 0.2, False),
        (0.2, 0.3, True),
    ):
        try:
            if with_uniform(coins, u).bernoulli(chance) is not wanted:
                found.append(f"u = {u:.3g} with a chance of {chance:.3g} is {'kept' if not wanted else 'refused'}")
        except InvalidOption:  # coupled coins throw none
            return []
    return found


def _wrong_tokens(coins: Coins) -> list[str]:
    found = []
    for dtype in (np.float32, np.float64):
        for u in (0.0, 0.5, NEXT_TO_1):
            for weights in ((0, 1, 0), (0, 0.25, 0.75, 0), (0, 1e-30, 0, 1e-30, 0), (0,) * 600 + (1,) + (0,) * 600):
                law = np.array(weights, dtype=dtype)
                token = with_uniform(coins, u).categorical(law, 3)
                if not law[token] > 0:
                    found.append(f"u = {u:.3g} draws a token of weight 0 from {weights[:5]}")
    return found


def with_uniform(coins: Coins, value: float) -> Coins:
    """A copy of the coins whose uniform draws are all this number; coins without streams stay as they are."""
    made: Any = copy(coins)
    for name in ("accept", "next_token"):
        if hasattr(made, name):
            setattr(made, name, _Always(value))
    copied: Coins = made
    return copied


def tier_of(checks: list[Check], controls: list[Check], samples: str) -> Tier:
    """The tier "law"."""
    claim = "on real rows the shipped rule has the target's law exactly, and the rows are the target's"
    return Tier("law", claim, tuple(checks), tuple(controls), samples)
