"""What speculation is worth, in formulas: tokens per round, cost of a round, speed-up. No model and no clock.

In this order: acceptance of a token, tokens per round, cost, speed-up, break-even points, batch and context. Numbers
may be floats or `fractions.Fraction`s, and fractions stay exact. An `acceptance` is one probability for every drafted
token, or one for each: the i-th is the chance that token i is accepted *given* that all before it were. It must be that
of rounds as they come, not of all places of a text, which is higher (docs/method.md, section 10).

A value outside the range that is told for it raises `errors.InvalidOption`, which names it.

Sources: tokens per round and speed-up, 2211.17192 (theorem 3.8, for one alpha and a flat c); the sum over a tree,
2402.12374; batch and context, 2406.14066 and 2408.11049. All are checked by enumeration or simulation in the tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from itertools import accumulate
from numbers import Integral, Real
from operator import mul
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from outrider.errors import InvalidOption

if TYPE_CHECKING:
    from fractions import Fraction

Number: TypeAlias = "float | Fraction"
Acceptance: TypeAlias = "Number | Ordered[Number]"
"""In [0, 1]: of every drafted token, or [k] of each, given that those before it were accepted."""
Curve: TypeAlias = "Callable[[int], Number] | Ordered[Number]"
"""c(m), the time of a target forward of m rows: a function of m >= 1, or the values c(1), c(2), ..."""

LONGEST = 1024
"""Longest chain that is reckoned with."""

SLACK = 1e-3
"""How far laws and acceptances in low precision may be from a sum of 1."""


# --- acceptance of one token --------------------------------------------------------------------------------------


def acceptance_of_law(target_probs: Ordered[Number], draft_probs: Ordered[Number]) -> Number:
    """Probability that a *drawn* token is accepted by the token rule: 1 - TV(p, q) = sum of min(p, q).

    Args:
        target_probs: [V] the target's law q.
        draft_probs: [V] the law p that the token is drawn from.
    """
    target, draft = _law("target_probs", target_probs), _law("draft_probs", draft_probs)
    if len(target) != len(draft):
        raise InvalidOption("draft_probs", f"a law of {len(draft)}", f"a law of {len(target)} tokens, as target_probs")
    return min(1, sum(map(min, target, draft)))


def acceptance_of_token(target_probs: Ordered[Number], token: int) -> Number:
    """Probability that a *chosen* token is accepted by the point-mass rule: q(token).

    Args:
        target_probs: [V] the target's law q.
        token: in [0, V).
    """
    target = _law("target_probs", target_probs)
    return target[_whole("token", token, 0, len(target) - 1)]


# --- tokens per round ---------------------------------------------------------------------------------------------


def emitted(acceptance: Acceptance, k: int) -> Number:
    """Expected tokens per round of a k-token chain, the target's next token included: 1 + a_1 + a_1 a_2 + ...

    With one alpha for all that is (1 - alpha^(k+1)) / (1 - alpha). Of a chosen chain the acceptances are the target's
    own probabilities along it. The block rule emits at least as many as the token rule, for which this is.

    Args:
        acceptance: in [0, 1]; if a list, of k entries or more.
        k: in [0, 1024].
    """
    return sum(_reached(acceptance, k))


def hit_or_miss(start: Number, continuation: Number, k: int) -> list[Number]:
    """[k] acceptances of drafts that hit or miss, as look-ups do: `start` of the first token, then `continuation`.

    `emitted` makes 1 + start (1 - continuation^k) / (1 - continuation) of them.
    """
    k = _whole("k", k, 0, LONGEST)
    start, continuation = _conditionals([start, continuation], 2)
    return [start, *[continuation] * (k - 1)][:k]


def emitted_by_tree(acceptances: Ordered[Number], parents: Ordered[int]) -> Number:
    """Expected tokens per round of a tree: 1 + the sum over nodes of the product of acceptances on the way to them.

    Args:
        acceptances: [n] P(node kept | its parent kept). One sibling is kept at most, so those of siblings sum to 1 at
            most: a node that is judged after others has their (1 - a_1) (1 - a_2) ... as factors.
        parents: [n] as in `core.Draft`: -1 for children of the pending token, else an earlier node.
    """
    chances = _conditionals(acceptances, len(acceptances))
    if len(parents) != len(chances):
        raise InvalidOption("parents", parents, f"{len(chances)} of them, one per acceptance")
    reached: list[Number] = [1]  # the pending token, then the nodes: a parent of -1 is entry 0
    kept: list[Number] = [0] * (1 + len(parents))
    for node, (parent, chance) in enumerate(zip(parents, chances, strict=True)):
        place = _whole("parents", parent, -1, node - 1) + 1
        kept[place] += chance
        if kept[place] > 1 + SLACK:
            raise InvalidOption("acceptances", chances, "at most 1 in sum over siblings", "One of them is kept.")
        reached.append(reached[place] * chance)
    return sum(reached)


# --- cost of a round ----------------------------------------------------------------------------------------------


def flat(rows: int) -> Number:
    """The curve of a target whose time is reading its weights: more rows are free."""
    return 1


@dataclass(frozen=True)
class RoundCost:
    """What a round costs. All in one unit of time; with c(1) = 1 it is that of a plain round.

    Args:
        verify: the curve c, above 0; c(1) is all that a plain round takes.
        per_token: 0 or more: one step of a drafter that drafts token by token.
        per_round: 0 or more: drafting, by a drafter that drafts any number of tokens at once.
        other: 0 or more: what else a round with a draft takes that a plain one does not.
    """

    verify: Curve = flat
    per_token: Number = 0
    per_round: Number = 0
    other: Number = 0

    def __post_init__(self) -> None:
        for name in ("per_token", "per_round", "other"):
            _positive(name, getattr(self, name), or_zero=True)
        known = 1 if callable(self.verify) else max(1, len(self.verify))
        for rows in range(1, known + 1):
            self.forward(rows)

    def forward(self, rows: int) -> Number:
        """c(rows), rows in [1, as many as the curve has]."""
        if callable(self.verify):
            return _positive(f"verify({rows})", self.verify(_whole("rows", rows, 1)))
        if _whole("rows", rows, 1) > len(self.verify):
            known = f"1 to {len(self.verify)}, whose costs are known"
            raise InvalidOption("rows", rows, known, "Draft fewer tokens or give the cost of more rows.")
        return _positive(f"verify[{rows - 1}]", self.verify[rows - 1])

    def of(self, steps: int, rows: int) -> Number:
        """A round with a draft. Of a chain: k steps, k + 1 rows; of a tree: its depth, and 1 + its nodes."""
        return _whole("steps", steps, 0) * self.per_token + self.per_round + self.forward(rows) + self.other


# --- speed-up -----------------------------------------------------------------------------------------------------


def round_speedup(tokens: Number, cost: RoundCost, steps: int, rows: int) -> Number:
    """How much faster than plain decoding rounds with a draft are that emit so many `tokens` each: tokens c(1) / cost.

    For tokens that were measured, and for trees with `emitted_by_tree`. Ranges are those of `RoundCost.of`.
    """
    return _positive("tokens", tokens, or_zero=True) * cost.forward(1) / cost.of(steps, rows)


def speedup(acceptance: Acceptance, cost: RoundCost, k: int) -> Number:
    """S(k) = E(k) c(1) / (k per_token + per_round + c(k + 1) + other). S(0) is 1: plain decoding pays for no draft.

    Args:
        acceptance: as in `emitted`.
        cost: of a round; its curve must reach k + 1 rows.
        k: in [0, 1024].
    """
    return speedups(acceptance, cost, k)[-1]


def speedups(acceptance: Acceptance, cost: RoundCost, longest: int = 16) -> list[Number]:
    """[longest + 1] S(0), S(1), ..., S(longest); ranges as in `speedup`."""
    tokens = _totals(acceptance, longest)[1:]
    return [1, *(round_speedup(total, cost, k, k + 1) for k, total in enumerate(tokens, start=1))]


def best_k(acceptance: Acceptance, cost: RoundCost, longest: int = 16) -> int:
    """The k in [0, longest] of the highest S(k), the smallest of equals. All are tried: measured curves have steps."""
    found = speedups(acceptance, cost, longest)
    return found.index(max(found))


def perfect_drafts(cost: RoundCost, k: int) -> Number:
    """The ceiling that cost sets to S(k), attained when all is accepted: (k + 1) c(1) / cost.

    With rows free and drafts made token by token it grows with k towards c(1) / per_token.
    """
    return speedup(1, cost, k)


def free_drafts(alpha: Number) -> Number:
    """The ceiling that acceptance sets to any S(k), approached by endless drafts that cost nothing: 1 / (1 - alpha)."""
    (chance,) = _conditionals(alpha, 1)
    return 1 / (1 - chance) if chance < 1 else math.inf


# --- break-even points --------------------------------------------------------------------------------------------


def break_even_alpha(cost: RoundCost, longest: int = 16) -> float | None:
    """The alpha above which some k in [1, longest] pays, to 1e-15; None if none pays even when all is accepted.

    On a convex curve it is (per_token + c(2)) / c(1) - 1, where k = 1 starts to pay, unless there are costs per round
    (`per_round`, `other`), which longer drafts bear better.
    """
    _whole("longest", longest, 1, LONGEST)
    needed = [float(cost.of(k, k + 1) / cost.forward(1)) for k in range(1, longest + 1)]

    def pays(alpha: float) -> bool:
        return any(tokens > least for tokens, least in zip(_totals(alpha, longest)[1:], needed, strict=True))

    low, high = 0.0, 1.0
    if not pays(high):
        return None
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high


def break_even_cost(
    acceptance: Acceptance, cost: RoundCost, longest: int = 16, per: Literal["token", "round"] = "token"
) -> Number | None:
    """The `per_token` (or `per_round`) below which some k in [1, longest] pays; None if not even a free draft does.

    The largest of E(k) c(1) - c(k + 1) - other costs, divided by k if per token. `cost`'s own value of it is ignored.
    """
    if per not in ("token", "round"):
        raise InvalidOption("per", per, "'token' or 'round'")
    left: list[Number] = []
    for k in range(1, _whole("longest", longest, 1, LONGEST) + 1):
        spare = emitted(acceptance, k) * cost.forward(1) - cost.forward(k + 1) - cost.other
        left.append((spare - cost.per_round) / k if per == "token" else spare - k * cost.per_token)
    return max(left) if max(left) > 0 else None


# --- batch and context --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ForwardTime:
    """Time of a target forward, in any unit, from its rows and the cached tokens it reads, over the whole batch.

    base + per_row * rows + per_kv * kv_tokens, as fitted to measurements; or, of ideal hardware, the *roofline*
    max(base, per_row * rows) + per_kv * kv_tokens, where rows are computed while weights are read. There `base` is
    weight bytes / bandwidth, `per_row` 2 parameters / (FLOP/s), `per_kv` a cached token's bytes / bandwidth.

    Args:
        base: above 0.
        per_row: 0 or more.
        per_kv: 0 or more.
        roofline: whether base and rows overlap.
    """

    base: Number
    per_row: Number
    per_kv: Number = 0
    roofline: bool = False

    def __post_init__(self) -> None:
        _positive("base", self.base)
        _positive("per_row", self.per_row, or_zero=True)
        _positive("per_kv", self.per_kv, or_zero=True)

    def __call__(self, rows: int, kv_tokens: int) -> Number:
        """The time; rows and kv_tokens are sums over the batch."""
        linear = self.per_row * rows
        return (max(self.base, linear) if self.roofline else self.base + linear) + self.per_kv * kv_tokens


def batch_curve(time: Callable[[int, int], Number], batch: int, context: int) -> Callable[[int], Number]:
    """c(m) where each of `batch` sequences submits m rows to one forward and has `context` cached tokens, on average.

    A cache is read once for all m rows of its sequence, but once for each sequence.

    Args:
        time: of a forward, from the rows and cached tokens of the batch: a `ForwardTime` or any function.
        batch: at least 1.
        context: at least 0.
    """
    _whole("batch", batch, 1)
    _whole("context", context, 0)
    return lambda rows: time(batch * rows, batch * context)


def stops_paying(
    acceptance: Acceptance, cost_at: Callable[[int], RoundCost], batches: Iterable[int], longest: int = 16
) -> int | None:
    """The first of these batch sizes at which no k in [1, longest] pays; None if some k pays at each of them.

    Args:
        acceptance: of every sequence, as in `emitted`.
        cost_at: from a batch size to the cost of a round of the whole batch.
        batches: sizes to try, in order. The answer for one says nothing of larger ones, as curves have steps.
        longest: in [0, 1024].
    """
    return next((batch for batch in batches if best_k(acceptance, cost_at(batch), longest) == 0), None)


def critical_context(time: ForwardTime, rows: int) -> float:
    """Cached tokens per sequence from which reading them takes longer than computing `rows` rows per sequence.

    rows * per_row / per_kv (2408.11049): the same at every batch size, since both grow with it.
    """
    return float(_whole("rows", rows, 1) * time.per_row / time.per_kv) if time.per_kv else math.inf


def paying_context(acceptance: Acceptance, time: ForwardTime, k: int, per_token: Number = 0) -> float:
    """Cached tokens per sequence from which k-token drafts pay at *every* large batch; 0 if always, inf if never.

    S(k) = 1 in the limit of large batches at ((k + 1 - E) per_row + k per_token) / ((E - 1) per_kv), with E = E(k).

    Args:
        acceptance: of every sequence, as in `emitted`.
        time: of a forward.
        k: in [1, 1024].
        per_token: 0 or more: time of drafting one token more for one sequence more, in a large batch.
    """
    tokens = emitted(acceptance, _whole("k", k, 1, LONGEST))
    lost = (k + 1 - tokens) * time.per_row + k * _positive("per_token", per_token, or_zero=True)
    gained = (tokens - 1) * time.per_kv
    return 0.0 if lost == 0 else float(lost / gained) if gained > 0 else math.inf


# --- what is let in -----------------------------------------------------------------------------------------------


def _reached(acceptance: Acceptance, k: int) -> list[Number]:
    """[k + 1] P(at least i tokens accepted), i = 0 ... k."""
    return list(accumulate(_conditionals(acceptance, k), mul, initial=1))


def _totals(acceptance: Acceptance, k: int) -> list[Number]:
    """[k + 1] E(0), E(1), ..., E(k)."""
    return list(accumulate(_reached(acceptance, k)))


def _conditionals(acceptance: Any, k: int) -> list[Number]:
    """[k] the acceptance of each drafted token, all checked, also those past k."""
    k = _whole("k", k, 0, LONGEST)
    given = _numbers(acceptance)
    chances: list[Any] = given if isinstance(given, list) else [given] * max(1, k)
    for chance in chances:
        if not isinstance(chance, Real) or isinstance(chance, bool) or not 0 <= float(chance) <= 1:
            raise InvalidOption("acceptance", chance, "0 to 1", "It is the probability that a drafted token is kept.")
    if len(chances) < k:
        raise InvalidOption("k", k, f"0 to {len(chances)}, the number of acceptances", "Draft less or give more.")
    return chances[:k]


def _law(name: str, probs: Any) -> list[Number]:
    law: Any = _numbers(probs)
    if not isinstance(law, list) or not all(chance >= 0 for chance in law) or not abs(sum(law) - 1) <= SLACK:
        raise InvalidOption(name, probs, "probabilities that sum to 1", "Give the law after all logit processing.")
    return law


def _numbers(values: Any) -> Any:
    """A list or a number, in Python's own numbers: float32 ones would add up in float32."""
    plain = values.tolist() if hasattr(values, "tolist") else values
    return list(plain) if hasattr(plain, "__iter__") else plain


def _positive(name: str, value: Any, or_zero: bool = False) -> Number:
    number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value < 0 or (value == 0 and not or_zero):
        raise InvalidOption(name, value, "a finite number, 0 or more" if or_zero else "a finite number above 0")
    return value  # type: ignore[no-any-return]


def _whole(name: str, value: Any, smallest: int, largest: float = math.inf) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool) or not smallest <= int(value) <= largest:
        upward = "" if largest == math.inf else f" to {largest}"
        raise InvalidOption(name, value, f"a whole number from {smallest}{upward}" + ("" if upward else " up"))
    return int(value)
