"""All tiers on one engine."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, replace
from itertools import count
from time import perf_counter
from typing import Any

from outrider.certifying.certificate import Certificate, Tier
from outrider.certifying.law import Harvest, tier_of
from outrider.certifying.reference import Drift, Reference
from outrider.certifying.running import Decided, Request, Urged, Wish, changed, decode
from outrider.certifying.same_text import Setting
from outrider.certifying.same_text import tier as same_text_tier
from outrider.certifying.state import Audit
from outrider.certifying.statistics import needed
from outrider.certifying.stream import Spot, Stream, spots_of
from outrider.core import Sequence
from outrider.engine import Engine
from outrider.errors import InvalidOption
from outrider.generation import TextEngine
from outrider.options import Sampling, check_seed, token_ids, validate, whole
from outrider.planning.pace import FixedPace

Told = Callable[[str, int, int], None]
FEWEST_SAMPLES = 100
URGED = 6
"""Nodes that every second text drafts at least, whatever an adaptive pace makes of it."""

RATIO_FREE = ("point-mass", "coupled")
"""Rules that keep the law whatever the law of the drafts."""


@dataclass(frozen=True)
class Effort:
    """How much is looked at.

    Args:
        samples: emitted tokens of the long run, at least.
        new_tokens: of each text.
        problems: rounds whose exact law is computed.
        whole: first tokens on the whole vocabulary.
        off_path: rows of tokens that were not kept.
        texts: prompts of the tier "same text".
        seeds: of each of them.
        lengths: draft lengths beside the engine's own pace.
        distance: that the tier "small" must not exceed, total variation.
        confidence: of its bound.
    """

    samples: int = 8000
    new_tokens: int = 32
    problems: int = 200
    whole: int = 6
    off_path: int = 60
    texts: int = 6
    seeds: int = 3
    lengths: tuple[int, ...] = (1, 4)
    distance: float = 0.08
    confidence: float = 0.9999


QUICK = Effort(1600, 24, 60, 2, 16, 3, 2, (2,), 0.15)
"""About a minute on the embedded model."""


def certify(
    engine: Engine | TextEngine,
    prompts: Ordered[str | Ordered[int]],
    *,
    sampling: Sampling | None = None,
    seed: int = 0,
    quick: bool = False,
    samples: int | None = None,
    distance: float | None = None,
    confidence: float | None = None,
    stop_ids: Ordered[int] | frozenset[int] | None = None,
    told: Told = lambda what, done, total: None,
    provenance: dict[str, Any] | None = None,
) -> Certificate:
    """Test whether an engine keeps its target's law, as it stands: its drafter, its rule, its pace.

    Args:
        engine: what `outrider.load` returns, or an `Engine`, with nothing else in it.
        prompts: texts (for a `TextEngine`; chat messages if the model has a template) or lists of token ids.
        sampling: the settings of the law; temperature 1 if left out. At temperature 0 nothing is drawn, so that the
            tiers "stream" and "small" have nothing to test.
        seed: of everything that is drawn.
        quick: look at less.
        samples: emitted tokens of the long run.
        distance: total variation that the tier "small" must be able to exclude, in (0, 1).
        confidence: of its bound, in (0, 1).
        stop_ids: tokens that end a text; the model's own if left out.
        told: called with (what is being done, done, in all).
        provenance: for the certificate.

    Raises:
        InvalidOption: a value outside its range, too few samples for the asked confidence (it says how many are
            needed), a prompt that does not fit, an engine that is busy.
        OutriderError: what failed while texts were decoded.
    """
    core, ids = _unpacked(engine, prompts)
    sampling = Sampling(temperature=1.0) if sampling is None else sampling
    validate(sampling, core.target.vocab_size)
    check_seed(seed)
    effort = effort_of(quick, samples, distance, confidence, temperature=sampling.temperature)
    if stop_ids is None:
        stop_ids = engine.tokenizer.stop_ids if isinstance(engine, TextEngine) else frozenset()
    wish = Wish(sampling, frozenset(stop_ids), effort.new_tokens)
    _check_room(core, ids, wish)
    job = _Job(core, ids, wish, effort, seed, told)
    return job.certificate(provenance or {"python": platform.python_version()})


def effort_of(
    quick: bool, samples: int | None, distance: float | None, confidence: float | None, *, temperature: float
) -> Effort:
    """How much to look at, by what was asked.

    Raises:
        InvalidOption: a value outside its range, or too few samples for the asked confidence.
    """
    effort = QUICK if quick else Effort()
    for name, value in (("distance", distance), ("confidence", confidence)):
        if value is not None and not (isinstance(value, int | float) and 0 < value < 1):
            raise InvalidOption(name, value, "a number between 0 and 1")
    if samples is not None and not whole(samples, FEWEST_SAMPLES):
        raise InvalidOption("samples", samples, f"a whole number, {FEWEST_SAMPLES} or more")
    asked = {"samples": samples, "distance": distance, "confidence": confidence}
    effort = replace(effort, **{name: value for name, value in asked.items() if value is not None})  # type: ignore[arg-type]
    wanted = needed(effort.distance, effort.confidence)
    if temperature > 0 and effort.samples < wanted:
        if samples is None:
            return replace(effort, samples=wanted)
        allowed = f"at least {wanted:,} to exclude a distance of {effort.distance:g} at {effort.confidence:g}"
        raise InvalidOption("samples", effort.samples, allowed, "Take more samples, or ask for less.")
    return effort


def _unpacked(engine: Any, prompts: Any) -> tuple[Engine, list[tuple[int, ...]]]:
    if not isinstance(engine, Engine | TextEngine):
        raise InvalidOption("engine", type(engine).__name__, "what outrider.load returns, or an Engine")
    core = engine.engine if isinstance(engine, TextEngine) else engine
    if core.num_unfinished:
        raise InvalidOption("engine", f"{core.num_unfinished} requests in it", "one with nothing else in it")
    if isinstance(prompts, str) or not isinstance(prompts, Ordered) or not prompts:
        raise InvalidOption("prompts", prompts, "a list of at least one text or list of token ids")
    return core, [tuple(_ids(engine, core, prompt)) for prompt in prompts]


def _ids(engine: Engine | TextEngine, core: Engine, prompt: Any) -> list[int]:
    if not isinstance(prompt, str):
        ids = token_ids("prompt", prompt, core.target.vocab_size)
        if not ids:
            raise InvalidOption("prompts", prompt, "prompts of at least one token")
        return ids
    if not isinstance(engine, TextEngine) or not prompt:
        raise InvalidOption("prompts", prompt, "lists of token ids for an Engine, or texts that are not empty")
    if engine.tokenizer.chat_template is None:
        return engine.tokenizer.encode_prompt(prompt)
    return engine.tokenizer.encode_chat([{"role": "user", "content": prompt}])


def _check_room(core: Engine, prompts: list[tuple[int, ...]], wish: Wish) -> None:
    room = core.context_length - wish.max_new_tokens - 1
    for number, prompt in enumerate(prompts, start=1):
        if len(prompt) > room:
            value = f"{len(prompt)} tokens in prompt {number}"
            allowed = f"at most {room}: a context of {core.context_length} less {wish.max_new_tokens} new tokens"
            raise InvalidOption("prompts", value, allowed)


class _Job:
    """One certification under way."""

    def __init__(
        self, engine: Engine, prompts: list[tuple[int, ...]], wish: Wish, effort: Effort, seed: int, told: Told
    ) -> None:
        self.engine, self.prompts, self.wish, self.effort, self.seed = engine, prompts, wish, effort, seed
        self.told, self.done = told, 0
        self.samples = effort.samples if wish.sampling.temperature > 0 else min(effort.samples, 800)
        longest = max(map(len, prompts)) + wish.max_new_tokens + 64
        capacity = min(longest, engine.target.context_length)
        self.reference = Reference(engine.target, prompts, wish.sampling, wish.stop_ids, capacity)
        self.harvest = Harvest(engine.rule, self._every(), effort.problems, effort.whole)
        ratios = engine.rule.name not in RATIO_FREE
        self.stream = Stream(seed, ratios=ratios, confidence=effort.confidence, distance=effort.distance)
        self.audit = Audit(self.reference, Drift(0.0, 0.0), effort.off_path, seed)
        self.spots: dict[Request, list[Spot]] = {}
        self.starts: dict[Request, set[int]] = {}
        self.distances: list[float] = []
        self.num_broken, self.first_coins = 0, list[Any]()
        self.drafts = engine.drafter.name != "none"

    def _every(self) -> int:
        """Of so many drafts one becomes a problem, so that they come from the whole run."""
        return max(1, self.samples // (3 * self.effort.problems))

    def certificate(self, provenance: dict[str, Any]) -> Certificate:
        started = perf_counter()
        self._decode()
        decoded = perf_counter() - started
        made = [
            _timed(self._law),
            _timed(lambda: self._drawn(self.stream.tier(drafts=self.drafts)), decoded),
            _timed(lambda: self._drawn(self.stream.small())),
            _timed(self._same_text),
            _timed(self.audit.tier),
        ]
        rule = self.engine.rule
        return Certificate(
            rule.lossless, tuple(made), self._settings(), self._lossy_distance(), tuple(self._notes()), provenance
        )

    # ------------------------------------------------------------ the long run

    def _decode(self) -> None:
        own = self.engine.pace
        pace = own if isinstance(own, FixedPace) else Urged(own, URGED)
        with changed(self.engine, pace=pace):
            decode(self.engine, self._requests(), self.wish, self._saw, self._ended, self._began)

    def _requests(self) -> Iterator[Request]:
        """Texts of one prompt stand together, so that its prefill is shared, but every prompt gets its turn."""
        in_all = max(1, self.samples // self.wish.max_new_tokens)
        together = max(1, min(self.engine.slots, in_all // len(self.prompts)))
        for i in count():
            place = i // together % len(self.prompts)
            yield Request(place, self.prompts[place], self.seed + i)

    def _began(self, sequence: Sequence) -> None:
        if not self.first_coins:
            self.first_coins.append(sequence.verify_coins)
        self.stream.add_coins(sequence)

    def _saw(self, decided: Decided) -> None:
        request, emitted = decided.request, decided.round.token_ids
        made = spots_of(decided.draft, decided.target_probs, decided.verdict, emitted)
        self.spots.setdefault(request, []).extend(made)
        self.starts.setdefault(request, set()).add(decided.start)
        self.harvest.add(decided.draft, decided.target_probs, request.at(decided.start))
        if self.wish.sampling.temperature > 0:
            self.stream.add_draft(decided.draft)
        self.audit.note(decided)
        self.distances += decided.round.distance
        self.num_broken += decided.round.broken is not None

    def _ended(self, request: Request, sequence: Sequence) -> bool:
        """Look at a whole text in the light of plain decoding."""
        new = sequence.tokens[sequence.prompt_length :]
        if self.done == 0:
            self.audit.drift = self.reference.drift(request.place, new)
        spots, starts = self.spots.pop(request), self.starts.pop(request)
        logits = self.reference.logits(request.place, new)
        self.audit.add(request, new, logits, [spot.row for spot in spots], starts)
        if self.wish.sampling.temperature > 0:
            for i, spot in enumerate(spots):
                law = self.reference.law(request.place, new[:i], logits[i])
                self.stream.add(spot, law, starts=i in starts, position=request.at(i))
        self.done += len(new)
        self.told("decoding", min(self.done, self.samples), self.samples)
        return self.done < self.samples

    # ------------------------------------------------------------ tiers

    def _law(self) -> Tier:
        self.told("exact laws", 0, len(self.harvest.problems))
        checks, controls = self.harvest.checks(self.first_coins[0])
        rows = self.audit.rows_check()
        checks += [] if rows is None else [rows]
        tier = tier_of(checks, controls, f"{len(self.harvest.problems)} rounds with a draft")
        return tier if self.drafts else replace(tier, not_applicable="nothing is drafted")

    def _drawn(self, tier: Tier) -> Tier:
        """A tier that needs chance."""
        if self.wish.sampling.temperature > 0:
            return tier
        return Tier(tier.name, tier.claim, not_applicable="at temperature 0 nothing is drawn")

    def _same_text(self) -> Tier:
        places, seeds = range(min(len(self.prompts), self.effort.texts)), range(self.effort.seeds)
        self.told("same text", 0, len(places) * len(seeds))
        wanted = tuple(Request(p, self.prompts[p], self.seed + 1_000_003 + s) for p in places for s in seeds)
        setting = Setting(
            self.engine, self.wish, wanted, self.effort.lengths if self.drafts else (), self.reference, self.audit.drift
        )
        return same_text_tier(setting)

    # ------------------------------------------------------------ about it

    def _lossy_distance(self) -> float | None:
        if self.engine.rule.lossless:
            return None
        return sum(self.distances) / len(self.distances) if self.distances else self.harvest.mean_error()

    def _settings(self) -> dict[str, Any]:
        engine, sampling = self.engine, self.wish.sampling
        return {
            "drafter": engine.drafter.name,
            "rule": engine.rule.name,
            "precision": engine.target.precision,
            "invariant": engine.invariant,
            "slots": engine.slots,
            **{name: getattr(sampling, name) for name in Sampling.__dataclass_fields__ if name != "logprobs"},
            "prompts": len(self.prompts),
            "seed": self.seed,
            "samples": self.done,
            "confidence": self.effort.confidence,
            "distance": self.effort.distance,
        }

    def _notes(self) -> Iterator[str]:
        if self.num_broken:
            yield f"{self.num_broken} drafts could not be verified and were thrown away."
        if self.audit.drift.law > 0:
            yield (
                "The target's own laws depend on the shape of a forward, by rounding: up to "
                f"{self.audit.drift.law:.2g} in total variation. The certificate is about what is left beside it."
            )


def _timed(made: Callable[[], Tier], more: float = 0.0) -> Tier:
    started = perf_counter()
    tier = made()
    return replace(tier, seconds=perf_counter() - started + more)
