"""Tiers "stream" and "small": do the emitted tokens have the target's law, and the drafted ones theirs?

Every token is looked at in the light of the law that plain decoding has there, and of what was drafted. Nothing is ever
selected by what was accepted: whether there is a draft at a place is settled before its token is.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from math import sqrt

import numpy as np

from outrider.certifying.certificate import Check, Tier
from outrider.certifying.statistics import CELLS, Shift, Uniforms, rank, slack, two_sided
from outrider.core import Coins, Draft, Law, Sequence, Verdict

FALSE_ALARMS = 2.5e-4
"""How often all statistics together may say that a right engine is wrong."""

NUM_TESTS = 10
ALPHA = FALSE_ALARMS / NUM_TESTS

FEWEST_DRAFTED = 30
COIN_BITS = 64
SHARED = 1e-9
"""Streams that are one and the same agree in every bit, so this check can afford to raise no false alarm at all."""

SPOILT = "takes the token that the draft favours least"
VISIBLE = 6.0
"""Standard deviations by which a planted fault must be expected to move a figure, or its figure is not asked for."""


@dataclass(frozen=True)
class Spot:
    """One emitted token.

    Args:
        token: it.
        row: [V] the law that the engine verified with.
        law: [V] that the first drafted token was drawn from, None if none was.
        chosen: the drafted tokens, if none of them was drawn.
    """

    token: int
    row: Law
    law: Law | None
    chosen: tuple[int, ...]


def spots_of(draft: Draft, target_probs: Law, verdict: Verdict, emitted: tuple[int, ...]) -> list[Spot]:
    """The emitted tokens of one round, each with what was drafted at its place."""
    spots = []
    for node, token in zip((-1, *verdict.path), emitted, strict=False):
        children = [i for i, parent in enumerate(draft.parents) if parent == node]
        drawn = next((draft.law(i) for i in children if draft.law(i) is not None), None)
        chosen = tuple(draft.tokens[i] for i in children) if drawn is None else ()
        # A copy: the rest of the block would be kept alive by a view.
        spots.append(Spot(token, target_probs[node + 1].copy(), drawn, chosen))
    return spots


@dataclass
class Figures:
    """The statistics of emitted tokens; `shift` and `ratio` of places with a draft, `likely` of all."""

    shift: Shift = field(default_factory=Shift)
    ratio: Uniforms = field(default_factory=Uniforms)
    likely: Uniforms = field(default_factory=Uniforms)
    ordered: Uniforms = field(default_factory=Uniforms)
    distance: float = 0.0
    impossible: int = 0

    def add(self, spot: Spot, token: int, target_row: Law, dice: np.random.Generator) -> None:
        """A token at a spot whose law is `target_row` [V]."""
        q = target_row.astype(np.float64)
        q /= q.sum()
        self.impossible += int(q[token] == 0)
        self.likely.add(rank(q, q, token, dice.random()))
        scores = _scores(spot, q)
        if scores is None:
            self.ordered.add(rank(q, q, token, dice.random()))
            return
        favoured = scores > 1
        place = rank(scores, q, token, dice.random())
        self.shift.add(bool(favoured[token]), min(1.0, float(q[favoured].sum())))
        self.ratio.add(place)
        self.ordered.add(place)
        self.distance += _furthest(spot, q)


def _scores(spot: Spot, q: Law) -> Law | None:
    """[V] p / q, above 1 for what the draft favours; for a draft that was chosen, 2 and q; None without a draft."""
    if spot.law is not None:
        p = spot.law.astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.where(p > 0, (p / p.sum()) / q, 0.0))
    if not spot.chosen:
        return None
    scores: Law = q.copy()
    scores[list(spot.chosen)] = 2.0
    return scores


def _last(spot: Spot, target_row: Law) -> int:
    """The possible token that stands last in the order of the ranks; the least likely one without a draft."""
    q = target_row.astype(np.float64)
    scores = _scores(spot, q)
    return int(np.where(q > 0, q if scores is None else scores, np.inf).argmin())


def _furthest(spot: Spot, q: Law) -> float:
    """How far from the target's law a token's would be if the first drafted one were kept whatever it is."""
    if spot.law is None:
        return 1 - float(q[spot.chosen[0]])
    p = spot.law.astype(np.float64)
    return float(abs(p / p.sum() - q).sum()) / 2


class Stream:
    """Gathers a run's statistics.

    Args:
        seed: of the noise that makes ranks uniform.
        ratios: whether the rule relies on the laws that drafts declare.
        confidence: of the bound of the tier "small".
        distance: that the bound must not exceed.
    """

    def __init__(self, seed: int, *, ratios: bool, confidence: float, distance: float) -> None:
        self._dice, self._ratios = np.random.default_rng([seed, 9]), ratios
        self._confidence, self._distance = confidence, distance
        self.found, self.favouring, self.spoilt = Figures(), Figures(), Figures()
        self.drawn, self.agreements, self.num_bits = Uniforms(), dict[str, int](), dict[str, int]()
        self.first_impossible = ""
        self._before: list[bool] = []

    def add_coins(self, sequence: Sequence) -> None:
        """Bits of the sequence's streams, of copies of them, which must have nothing to do with each other."""
        if sequence.draft_coins is sequence.verify_coins:
            return  # coupled: one noise, on purpose
        accept, draws = _bits(sequence.verify_coins), _tokens(sequence.verify_coins)
        drafts = _tokens(sequence.draft_coins)
        self._agree("drafting and acceptance", drafts, accept)
        self._agree("drafting and next token", drafts, draws)
        self._agree("acceptance and next token", accept, draws)
        if self._before:
            self._agree("two texts", accept, self._before)
        self._before = accept

    def _agree(self, name: str, one: list[bool], other: list[bool]) -> None:
        self.num_bits[name] = self.num_bits.get(name, 0) + len(one)
        self.agreements[name] = self.agreements.get(name, 0) + sum(a == b for a, b in zip(one, other, strict=True))

    def add_draft(self, draft: Draft) -> None:
        """Where each drawn token stands in the law that it was drawn from."""
        for node, token in enumerate(draft.tokens if self._ratios else ()):
            law = draft.law(node)
            if law is not None:
                p = law.astype(np.float64)
                self.drawn.add(rank(p, p / p.sum(), token, self._dice.random()))

    def add(self, spot: Spot, target_row: Law, *, starts: bool, position: str) -> None:
        """An emitted token, and what two planted faults would have emitted.

        Args:
            spot: it.
            target_row: [V] plain decoding's law there.
            starts: whether it is the first of its round.
            position: for the report.
        """
        self.found.add(spot, spot.token, target_row, self._dice)
        if self.found.impossible and not self.first_impossible:
            self.first_impossible = position
        self.spoilt.add(spot, _last(spot, target_row), target_row, self._dice)
        if starts and (spot.law is not None or spot.chosen):
            self.favouring.add(spot, self._kept_anyway(spot), target_row, self._dice)

    def _kept_anyway(self, spot: Spot) -> int:
        if spot.law is None:
            return spot.chosen[0]
        p = spot.law.astype(np.float64)
        return int(self._dice.choice(len(p), p=p / p.sum()))

    # ------------------------------------------------------------ what came of it

    def tier(self, *, drafts: bool) -> Tier:
        """The tier "stream"; `drafts` says whether there is a drafter at all."""
        found = self.found
        checks = [
            Check(
                "impossible tokens",
                float(found.impossible),
                0.0,
                found.impossible == 0,
                "tokens that plain decoding would never have drawn",
                self.first_impossible,
            ),
            *(_tests(found, drafts=drafts)),
            *self._coins(),
        ]
        if self.drawn.values:
            p = self.drawn.p_value()
            far = self.drawn.distance()
            words = (
                f"{len(self.drawn.values):,} drawn tokens against the laws they are said to be drawn from: KS {far:.3f}"
            )
            checks.append(Check("drafted tokens", p, ALPHA, p >= ALPHA, words))
        if drafts:
            count, enough = found.shift.count, found.shift.count >= FEWEST_DRAFTED
            words = "places with a draft; take prompts on which the drafter drafts, or more samples"
            checks.append(Check("evidence", float(count), float(FEWEST_DRAFTED), enough, words))
        claim = "the tokens of a long run have the target's law, and the drafted ones theirs"
        samples = f"{len(found.likely.values):,} tokens, {found.shift.count:,} at places with a draft"
        return Tier("stream", claim, tuple(checks), tuple(self._controls()), samples)

    def small(self) -> Tier:
        """The tier "small"."""
        count, far = len(self.found.ordered.values), self.found.ordered.distance_in_cells()
        room = slack(count, self._confidence)
        bound, most = far + room, self._distance
        words = f"total variation on {CELLS} cells: {far:.4f} counted, at most {bound:.4f} at {self._confidence:.2%}"
        check = Check("bound on the total variation", bound, most, bound <= most, words)
        control = self.spoilt.ordered
        seen = control.distance_in_cells() - slack(len(control.values), self._confidence)
        planted = Check(SPOILT, seen, 0.0, seen > 0, f"total variation at least {seen:.3f}")
        claim = "put into a vocabulary of four, the tokens' average law is the target's up to the bound"
        return Tier("small", claim, (check,), (planted,), f"{count:,} tokens")

    def _coins(self) -> list[Check]:
        if not self.num_bits:
            return []
        worst = max(self.num_bits, key=lambda name: abs(self._z(name)))
        p = min(1.0, len(self.num_bits) * two_sided(self._z(worst)))
        words = f"{worst}: {self.agreements[worst]:,} of {self.num_bits[worst]:,} bits agree"
        return [Check("random streams", p, SHARED, p >= SHARED, words)]

    def _z(self, name: str) -> float:
        return (2 * self.agreements[name] - self.num_bits[name]) / sqrt(self.num_bits[name])

    def _controls(self) -> list[Check]:
        controls, name = [_control(SPOILT, self.spoilt)], "keeps every drafted token"
        expected = self.favouring.distance / sqrt(self.favouring.shift.variance) if self.favouring.shift.variance else 0
        if expected >= VISIBLE:
            controls.append(_control(name, self.favouring))
        return controls


def _bits(coins: Coins) -> list[bool]:
    copied = deepcopy(coins)
    return [copied.bernoulli(0.5) for _ in range(COIN_BITS)]


def _tokens(coins: Coins) -> list[bool]:
    copied, even = deepcopy(coins), np.ones(2)
    return [copied.categorical(even, place) == 0 for place in range(COIN_BITS)]


def _tests(found: Figures, *, drafts: bool) -> list[Check]:
    """The statistics of emitted tokens, each by its p-value; the e-value by its inverse."""
    shift, checks = found.shift, list[Check]()
    if drafts:
        words = f"z {shift.z:+.2f}, {shift.mean:+.2%} of the tokens towards the draft, over {shift.count:,}"
        checks.append(_tested("shift towards the draft", shift.p_value, words))
        checks.append(_tested("shift, at any time", min(1.0, 1 / shift.peak), f"largest e-value {shift.peak:.3g}"))
        checks.append(_tested("ranks by p / q", found.ratio.p_value(), _ks(found.ratio)))
    checks.append(_tested("ranks by q", found.likely.p_value(), _ks(found.likely)))
    checks.append(_tested("order of the ranks", found.likely.p_value_of_order(), "correlation of neighbours"))
    return checks


def _ks(ranks: Uniforms) -> str:
    if not ranks.values:
        return "none"
    return f"KS {sqrt(len(ranks.values)) * ranks.distance():.2f} over {len(ranks.values):,} tokens"


def _tested(name: str, p: float, words: str) -> Check:
    return Check(name, p, ALPHA, p >= ALPHA, f"{words}, p {p:.2g}")


def _control(name: str, figures: Figures) -> Check:
    found = [check for check in _tests(figures, drafts=True) if not check.passed]
    least = min((check.figure for check in _tests(figures, drafts=True)), default=1.0)
    return Check(name, least, ALPHA, bool(found), found[0].detail if found else "no statistic moved")
