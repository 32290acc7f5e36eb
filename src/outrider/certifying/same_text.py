"""Tier "same text": with coupled noise, and at temperature 0, speculation must write what plain decoding writes."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

import torch

from outrider.certifying.bugs import Alters
from outrider.certifying.certificate import Check, Tier
from outrider.certifying.reference import Drift, Reference, apart
from outrider.certifying.running import Decided, Request, Wish, changed, texts
from outrider.core import Law, Rule
from outrider.drafters import NoDrafter
from outrider.engine import INVARIANT_WIDTH, Engine
from outrider.planning.pace import FixedPace
from outrider.rules import RULES, KeyedCoins
from outrider.tree import is_chain


@dataclass
class Listener:
    """A logits processor that remembers the bits that it was shown, by the tokens before them.

    Args:
        inner: the user's own processor.
    """

    inner: Any = None
    seen: dict[tuple[int, ...], int] = field(default_factory=dict)

    def __call__(self, token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        """See `Sampling.processor`."""
        self.seen[tuple(token_ids)] = hash(logits.cpu().numpy().tobytes())
        return logits if self.inner is None else self.inner(token_ids, logits)


@dataclass(frozen=True)
class Setting:
    """What is compared.

    Args:
        engine: that is certified.
        wish: of the texts.
        requests: some, each prompt with several seeds.
        lengths: draft lengths beside the engine's own pace.
        reference: plain decoding, for ties.
        drift: how far rounding reaches.
    """

    engine: Engine
    wish: Wish
    requests: tuple[Request, ...]
    lengths: tuple[int, ...]
    reference: Reference
    drift: Drift


@dataclass
class _Tally:
    """What the comparisons found."""

    compared: int = 0
    equal: int = 0
    ties: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    bits: int = 0
    unequal_bits: list[str] = field(default_factory=list)
    trees: bool = False
    unresolved: list[tuple[Rule, Wish, Request]] = field(default_factory=list)


def tier(setting: Setting) -> Tier:
    """Compare, and compare once more with a planted fault."""
    tally, wish, parts = _Tally(), setting.wish, list[str]()
    greedy = replace(wish, sampling=replace(wish.sampling, temperature=0.0))
    first = {request.place: request for request in reversed(setting.requests)}  # greedy texts have no seed
    chosen = tuple(first.values())[::-1]
    plain = _compare(setting, setting.engine.rule, greedy, chosen, tally)
    parts.append("temperature 0")
    if wish.sampling.temperature > 0:
        _compare(setting, RULES["coupled"], wish, setting.requests, tally)
        parts.append(f"coupled at {wish.sampling.temperature:g}, {len({r.seed for r in setting.requests})} seeds")
    strict = getattr(setting.engine.target, "row_invariant", False) and not tally.trees
    control = _control(setting, greedy, chosen, plain)
    lengths = ", ".join(["its own", *map(str, setting.lengths)])
    samples = f"{tally.compared} texts: {'; '.join(parts)}; draft lengths: {lengths}"
    claim = "with the same noise, and greedily, speculation writes what plain decoding writes"
    return Tier("same text", claim, tuple(_checks(setting, tally, strict)), (control,), samples)


def _checks(setting: Setting, tally: _Tally, strict: bool) -> list[Check]:
    wrong = tally.wrong + (tally.ties if strict else [])
    words = f"{tally.equal} of {tally.compared} equal"
    if strict:
        words += "; the target gives equal bits in any block, so ties are no excuse"
    if tally.ties:
        words += f"; near ties: {'; '.join(tally.ties[:3])}{_invariant(setting, tally)}"
    checks = [Check("texts that differ", float(len(wrong)), 0.0, not wrong, words, wrong[0] if wrong else "")]
    if strict and tally.bits:
        bad = tally.unequal_bits
        bits = f"{tally.bits:,} rows of logits compared bit by bit"
        checks.append(Check("logits with other bits", float(len(bad)), 0.0, not bad, bits, bad[0] if bad else ""))
    return checks


def _compare(setting: Setting, rule: Rule, wish: Wish, requests: Ordered[Request], tally: _Tally) -> list[list[int]]:
    """Every text with every draft length; the plain texts."""
    plain_ear = Listener(wish.sampling.processor)
    plain = texts(_twin(setting.engine, rule), requests, _heard(wish, plain_ear))
    for pace in (setting.engine.pace, *map(FixedPace, setting.lengths)):
        ear, rows = Listener(wish.sampling.processor), dict[tuple[Request, int], Law]()

        def saw(decided: Decided, rows: dict[tuple[Request, int], Law] = rows) -> None:
            tally.trees |= not is_chain(decided.draft.parents)
            for i, node in enumerate((-1, *decided.verdict.path)):
                rows[decided.request, decided.start + i] = decided.target_probs[node + 1].copy()

        with changed(setting.engine, rule=rule, pace=pace):
            ours = texts(setting.engine, requests, _heard(wish, ear), saw=saw)
        for request, one, other in zip(requests, plain, ours, strict=True):
            _judge(setting, rule, wish, request, (one, other), rows, tally)
        for history in plain_ear.seen.keys() & ear.seen.keys():
            tally.bits += 1
            if plain_ear.seen[history] != ear.seen[history]:
                tally.unequal_bits.append(f"{len(history)} tokens of the text that begins with {history[:4]}")
    return plain


def _judge(
    setting: Setting,
    rule: Rule,
    wish: Wish,
    request: Request,
    pair: tuple[list[int], list[int]],
    rows: dict[tuple[Request, int], Law],
    tally: _Tally,
) -> None:
    """One text and its plain twin: equal, a near tie at the first difference, or wrong."""
    tally.compared += 1
    place = next((i for i, (a, b) in enumerate(zip_longest(*pair)) if a != b), None)
    if place is None:
        tally.equal += 1
        return
    new, where = pair[0][:place], request.at(place)
    if place >= min(map(len, pair)):
        tally.wrong.append(f"{where}: one text ends")
        return
    first, second = pair[0][place], pair[1][place]
    logits = setting.reference.logits(request.place, new)[-1]
    gap = setting.reference.gap(request.place, new, logits, first, second)
    words = f"{where}: tokens {first} and {second}, logits {gap:.2g} apart"
    if wish.sampling.temperature == 0:
        tied = gap <= setting.drift.gap_limit
    else:
        row, law = rows[request, place], setting.reference.law(request.place, new, logits)
        drawn = KeyedCoins(request.seed).categorical(row, len(request.prompt) + place)
        tied = drawn == second and apart(row, law) <= setting.drift.law_limit
    (tally.ties if tied else tally.wrong).append(words)
    if tied:
        tally.unresolved.append((rule, wish, request))


def _invariant(setting: Setting, tally: _Tally) -> str:
    """What `--invariant` makes of the texts that differ at a tie."""
    engine = setting.engine
    room = engine.cache.capacity - max(len(r.prompt) for r in setting.requests) - setting.wish.max_new_tokens
    if engine.invariant:
        return "; in spite of --invariant"
    if not getattr(engine.target, "pads_to_same_bits", False) or room < INVARIANT_WIDTH:
        return "; --invariant is not to be had here"
    removed = 0
    for rule, wish, request in tally.unresolved:
        with changed(engine, rule=rule, invariant=True):
            ours = texts(engine, [request], wish)
        removed += ours == texts(_twin(engine, rule, invariant=True), [request], wish)
    return f"; --invariant removes {removed} of {len(tally.unresolved)}"


def _control(setting: Setting, wish: Wish, requests: Ordered[Request], plain: list[list[int]]) -> Check:
    """Another token at every fifth position."""
    with changed(setting.engine, rule=Alters(setting.engine.rule)):
        ours = texts(setting.engine, requests, wish)
    differ = sum(one != other for one, other in zip(plain, ours, strict=True))
    words = f"{differ} of {len(plain)} texts differ"
    return Check("alters a token at every fifth place", float(differ), 0.0, differ > 0, words)


def _heard(wish: Wish, ear: Listener) -> Wish:
    return replace(wish, sampling=replace(wish.sampling, processor=ear))


def _twin(engine: Engine, rule: Rule, *, invariant: bool | None = None) -> Engine:
    """The same target without drafts, with the same noise."""
    chosen, fixed = RULES["coupled" if rule.name == "coupled" else "auto"], engine.invariant
    return Engine(
        engine.target,
        NoDrafter(),
        chosen,
        FixedPace(0),
        slots=engine.slots,
        context_length=engine.context_length,
        invariant=fixed if invariant is None else invariant,
    )
