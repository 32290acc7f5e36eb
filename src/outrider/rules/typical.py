"""Typical acceptance: a lossy rule that keeps plausible tokens, however the draft came about.

It changes the law of the output (towards the drafter's choices), so it runs only where the user allows lossy rules.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from outrider.core import Coins, Draft, Law, Verdict
from outrider.errors import InvalidOption
from outrider.rules.chain import check_chain


@dataclass(frozen=True)
class TypicalRule:
    """Keeps token x if q(x) > min(epsilon, delta exp(-H(q))), H the entropy in nats; then draws from q. Lossy.

    Source: Cai et al., Medusa (2401.10774), with the settings of its published evaluation. For a one-hot q (greedy) it
    keeps precisely the target's token. `Verdict.acceptance` holds the outcomes, 1.0 or 0.0: no coin is thrown.
    `Verdict.distance` holds `distance_from_target` of each place, and 0 behind the last drafted token.

    Args:
        epsilon: in (0, 1): a token this likely is always kept.
        delta: > 0: the flatter q, the less likely a token may be and still be kept.

    Raises:
        InvalidOption: if a value is outside its range.
    """

    name = "typical"
    lossless = False
    proposals = frozenset({"sampled", "point_mass"})
    trees = False

    epsilon: float = 0.09
    delta: float = 0.3

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < 1:
            raise InvalidOption("epsilon", self.epsilon, "a number between 0 and 1", "Medusa's value is 0.09.")
        if not self.delta > 0:
            raise InvalidOption("delta", self.delta, "a number > 0", "Medusa's value is 0.3.")

    def verify(self, draft: Draft, target_probs: Law, coins: Coins, position: int) -> Verdict:
        """See `core.Rule.verify`.

        Raises:
            InvalidOption: if the draft is not a chain.
        """
        check_chain(self, draft)
        outcomes, distances = list[float](), list[float]()
        for node, token in enumerate(draft.tokens):
            target_row = target_probs[node].astype(np.float64)
            keeps = target_row > self.threshold(target_row)
            outcomes.append(float(keeps[token]))
            distances.append(distance_from_target(token, draft.law(node), target_row, keeps))
            if not keeps[token]:
                break
        else:
            distances.append(0.0)
        kept = int(sum(outcomes))
        next_token = coins.categorical(target_probs[kept], position + kept)
        return Verdict(tuple(range(kept)), next_token, tuple(outcomes), distance=tuple(distances))

    def threshold(self, target_row: Law) -> float:
        """The probability that a token must exceed where the target's law is `target_row` [V]."""
        probs = target_row.astype(np.float64)
        entropy = -float((probs * np.log(np.where(probs > 0, probs, 1))).sum())
        return min(self.epsilon, self.delta * float(np.exp(-entropy)))


def distance_from_target(token: int, draft_row: Law | None, target_row: Law, keeps: Law) -> float:
    """Total variation between the target's law q of a token and its law under the rule, in [0, 1], exact.

    A token is drawn from p and emitted if it is kept, else one is drawn from q. With K the tokens that are kept, that
    is the law o(y) = p(y) [y in K] + (1 - p(K)) q(y), so that o(y) - q(y) = p(y) [y in K] - p(K) q(y).

    Args:
        token: that was drafted.
        draft_row: [V] p, or None if the token was not drawn: p is then certain of it.
        target_row: [V] q, float64.
        keeps: [V] bool, true in K.
    """
    if draft_row is None:
        return 1 - float(target_row[token]) if keeps[token] else 0.0
    kept = np.where(keeps, draft_row.astype(np.float64), 0)
    return float(abs(kept - kept.sum() * target_row).sum()) / 2
