"""Ten public mistakes of speculative decoding, planted in an engine for as long as one wishes.

They are what shows that a certificate means something: `certify` must refuse an engine with any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import outrider.tree as tree
from outrider.certifying.bugs import Faulty
from outrider.certifying.running import changed
from outrider.core import Coins, Draft, Drafter, Law, Output, Sequence, Verdict
from outrider.engine import Engine
from outrider.rules.chain import or_target, residual
from outrider.rules.coins import RandomCoins


@contextmanager
def planted(engine: Engine, fault: str) -> Iterator[None]:
    """The engine with a fault.

    Args:
        engine: with a drafter that draws chains, and a rule for them that tests ratios; for "stale penalty history"
            its texts need penalties.
        fault: a key of `FAULTS`.
    """
    with ExitStack() as stack:
        FAULTS[fault](engine, stack)
        yield


# ---------------------------------------------------------------- in the drafter


class _Redrawn:
    """A drafter whose first token is drawn once more, and said to be drawn from the law as it was.

    Args:
        drafter: draws chains.
        how: from the law p [V] to the one that is drawn from in truth.
        keeps: whether a token of this probability is submitted.
    """

    def __init__(
        self,
        drafter: Drafter,
        how: Callable[[Law], Law] = lambda law: law,
        keeps: Callable[[float], bool] = lambda probability: True,
    ) -> None:
        self._drafter, self._how, self._keeps = drafter, how, keeps
        self.name, self.proposal = drafter.name, drafter.proposal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)  # what drafters may have beside: observe, read, ...

    def propose(self, sequences: list[Sequence], budgets: list[int]) -> list[Draft]:
        """See `core.Drafter`."""
        drafts = self._drafter.propose(sequences, budgets)
        return [self._spoilt(s, draft) for s, draft in zip(sequences, drafts, strict=True)]

    def _spoilt(self, sequence: Sequence, draft: Draft) -> Draft:
        law = draft.law(0) if len(draft) else None
        if law is None:
            return draft
        token = sequence.draft_coins.categorical(self._how(law), len(sequence.tokens))
        if not self._keeps(float(law[token])):
            return Draft()
        return Draft((token,), (-1,), draft.proposal, (law,))


def _with_drafter(made: Callable[[Drafter], Any]) -> Callable[[Engine, ExitStack], None]:
    def plant(engine: Engine, stack: ExitStack) -> None:
        drafter = made(engine.drafter)
        stack.enter_context(changed(engine._guard, _drafter=drafter))
        stack.enter_context(changed(engine, drafter=drafter))

    return plant


def _nucleus(law: Law, mass: float = 0.8) -> Law:
    """The likeliest tokens with this mass."""
    order = np.argsort(-law, kind="stable")
    kept = order[: int(np.searchsorted(np.cumsum(law[order], dtype=np.float64), mass)) + 1]
    cut = np.zeros_like(law)
    cut[kept] = law[kept]
    return cut


# ---------------------------------------------------------------- in the coins


class _NotStrict(RandomCoins):
    """Keeps at u <= a."""

    def bernoulli(self, probability: Any) -> bool:
        """See `core.Coins`."""
        return bool(self.accept.random() <= probability)


def _with_coins(made: Callable[[Sequence], Coins]) -> Callable[[Engine, ExitStack], None]:
    def plant(engine: Engine, stack: ExitStack) -> None:
        honest = engine.add

        def add(*args: Any, **options: Any) -> Sequence:
            sequence = honest(*args, **options)
            if hasattr(sequence.verify_coins, "accept"):  # coupled coins throw none
                sequence.verify_coins = made(sequence)
            return sequence

        stack.callback(engine.__dict__.pop, "add", None)
        engine.add = add  # type: ignore[method-assign]

    return plant


def _not_strict(sequence: Sequence) -> Coins:
    coins: Any = sequence.verify_coins
    return _NotStrict(coins.accept, coins.next_token)


def _shared(sequence: Sequence) -> Coins:
    drafts: Any = deepcopy(sequence.draft_coins)
    coins: Any = sequence.verify_coins
    return RandomCoins(drafts.accept, coins.next_token)


# ---------------------------------------------------------------- in the rule


class _Lenient(Faulty):
    """Keeps tokens with 1 / 0.95 of their chance."""

    def verify(self, draft: Draft, target_probs: Law, coins: Coins, position: int) -> Verdict:
        """See `core.Rule.verify`."""
        return self.rule.verify(draft, target_probs, _Changed(coins, chance=lambda a: min(1, a / 0.95)), position)


class _NotRenormalised(Faulty):
    """Draws from a residual as if it added up to 1: what is missing falls to its last token."""

    def verify(self, draft: Draft, target_probs: Law, coins: Coins, position: int) -> Verdict:
        """See `core.Rule.verify`."""
        return self.rule.verify(draft, target_probs, _Changed(coins, weights=_filled), position)


class _Changed:
    """Coins that are asked something else."""

    def __init__(
        self,
        coins: Coins,
        chance: Callable[[Any], Any] = lambda chance: chance,
        weights: Callable[[Law], Law] = lambda weights: weights,
    ) -> None:
        self._coins, self._chance, self._weights = coins, chance, weights

    def bernoulli(self, probability: Any) -> bool:
        return self._coins.bernoulli(self._chance(probability))

    def categorical(self, weights: Law, position: int) -> int:
        return self._coins.categorical(self._weights(weights), position)


def _filled(weights: Law) -> Law:
    whole = weights.copy()
    whole[np.flatnonzero(weights)[-1]] += max(0.0, 1 - float(weights.sum()))
    return np.asarray(whole)


class _TokenResidual(Faulty):
    """The block rule's choice of how much to keep, with the token rule's residual after it."""

    def verify(self, draft: Draft, target_probs: Law, coins: Coins, position: int) -> Verdict:
        """See `core.Rule.verify`."""
        kept = len(self.rule.verify(draft, target_probs, _OnlyChances(coins), position).path)
        row, law = target_probs[kept], draft.law(kept) if kept < len(draft) else None
        rest = row if law is None else or_target(residual(row, law), row)
        return Verdict(tuple(range(kept)), coins.categorical(rest, position + kept))


class _OnlyChances(_Changed):
    """Coins that draw no token."""

    def categorical(self, weights: Law, position: int) -> int:
        return 0


def _with_rule(made: Callable[[Any], Any]) -> Callable[[Engine, ExitStack], None]:
    def plant(engine: Engine, stack: ExitStack) -> None:
        stack.enter_context(changed(engine, rule=made(engine.rule)))

    return plant


# ---------------------------------------------------------------- in the engine


def _off_by_one(engine: Engine, stack: ExitStack) -> None:
    honest = engine._forward

    def forward(ready: list[Sequence], drafts: list[Draft]) -> list[Output]:
        return [replace(o, logits=_shifted(o.logits)) for o in honest(ready, drafts)]

    stack.callback(engine.__dict__.pop, "_forward", None)
    engine._forward = forward  # type: ignore[method-assign]


def _shifted(logits: torch.Tensor | None) -> torch.Tensor:
    assert logits is not None
    return torch.cat([logits[:1], logits[:-1]])


def _stale(engine: Engine, stack: ExitStack) -> None:
    def paths(tokens: Any, parents: Any) -> list[tuple[int, ...]]:
        return [()] * (len(tokens) + 1)

    stack.enter_context(changed(tree, paths=paths))


FAULTS: dict[str, Callable[[Engine, ExitStack], None]] = {
    "draft law before top-p": _with_drafter(lambda drafter: _Redrawn(drafter, _nucleus)),
    "u <= p": _with_coins(_not_strict),
    "token residual in block": _with_rule(_TokenResidual),
    "residual not renormalised": _with_rule(_NotRenormalised),
    "shared random stream": _with_coins(_shared),
    "leniency 0.95": _with_rule(_Lenient),
    "dropped low-confidence token": _with_drafter(lambda drafter: _Redrawn(drafter, keeps=lambda p: p > 0.2)),
    "wrong temperature on the draft": _with_drafter(lambda drafter: _Redrawn(drafter, lambda law: law**2)),
    "off-by-one target row": _off_by_one,
    "stale penalty history": _stale,
}
"""What can be planted, by name."""
