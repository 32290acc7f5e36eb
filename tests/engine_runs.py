"""Toy engines, run to the end; plain decoding written apart from the engine; and the test of a law by counting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Ordered
from dataclasses import replace

import numpy as np
from scipy.stats import chi2

from heads import ShownTable, eagle_head, head_drafter, medusa_head, table_target
from outrider.core import Coins, Draft, Drafter, Model, Proposal, Rule, Sequence
from outrider.drafters import ModelDrafter, NgramDrafter, NoDrafter, SuffixDrafter
from outrider.drafters.combined import CombinedDrafter
from outrider.drafters.lookahead import LookaheadDrafter
from outrider.drafters.recycling import RecyclingDrafter
from outrider.engine import Engine
from outrider.options import Sampling
from outrider.planning.pace import AutoPace, FixedPace
from outrider.rounds import Round
from outrider.rules import choose_rule
from outrider.sampling import laws
from toy import ScriptedDrafter, TableModel, blend, make_sequence, random_laws, rule_law

LIMIT = 1e-5
"""A p-value below this is a wrong law; seeds are fixed, so a test that passes once passes always."""


def toy_engine(
    target: Model, drafter: Drafter | None = None, rule: str | Rule = "auto", k: int | None = 4, **options: object
) -> Engine:
    """An engine; `k` None adapts. A table model shows the states that the drafter reads."""
    drafter = NoDrafter() if drafter is None else drafter
    if isinstance(target, TableModel) and hasattr(drafter, "feature_layers"):
        target = ShownTable(target, drafter.feature_layers)
    chosen = choose_rule(rule, drafter.proposal) if isinstance(rule, str) else rule
    return Engine(target, drafter, chosen, AutoPace() if k is None else FixedPace(k), **options)  # type: ignore[arg-type]


def finish(engine: Engine) -> dict[Sequence, list[Round]]:
    """Step until nothing is left; each sequence's rounds in order."""
    rounds: dict[Sequence, list[Round]] = {}
    while engine.num_unfinished:
        for r in engine.step():
            rounds.setdefault(r.sequence, []).append(r)
    return rounds


def decode(engine: Engine, prompt: Ordered[int], **request: object) -> list[int]:
    """The new tokens of one request."""
    sequence = engine.add(prompt, **request)  # type: ignore[arg-type]
    finish(engine)
    return new_tokens(sequence)


def new_tokens(sequence: Sequence) -> list[int]:
    return sequence.tokens[sequence.prompt_length :]


def plain(
    model: TableModel,
    prompt: Ordered[int],
    count: int,
    *,
    sampling: Sampling | None = None,
    stop_ids: Ordered[int] = (),
    coins: Coins | None = None,
) -> list[int]:
    """One token at a time, without cache, draft or engine: the likeliest, or what the coins draw."""
    sequence = make_sequence(prompt, sampling=sampling, stop_ids=stop_ids)
    for _ in range(count):
        law = laws(model.logits(sequence.tokens)[None], sequence, [()])[0]
        token = int(law.argmax()) if coins is None else coins.categorical(law, len(sequence.tokens))
        sequence.tokens.append(token)
        if token in stop_ids:
            break
    return new_tokens(sequence)


# ---------------------------------------------------------------- drafters


class RepeatsTheLastToken:
    """A user's own drafter, as simple as can be."""

    name = "repeats"
    proposal: Proposal = "point_mass"

    def propose(self, sequences: list[Sequence], budgets: list[int]) -> list[Draft]:
        return [Draft.chain([s.tokens[-1]] * budget) for s, budget in zip(sequences, budgets, strict=True)]


class DrawsFromOneLaw:
    """A user's own sampling drafter: every token from one fixed law, whatever the text."""

    name = "one-law"
    proposal: Proposal = "sampled"

    def __init__(self, law: np.ndarray) -> None:
        self.law = law

    def propose(self, sequences: list[Sequence], budgets: list[int]) -> list[Draft]:
        return [self._propose(s, budget) for s, budget in zip(sequences, budgets, strict=True)]

    def _propose(self, sequence: Sequence, budget: int) -> Draft:
        places = range(len(sequence.tokens), len(sequence.tokens) + budget)
        tokens = [sequence.draft_coins.categorical(self.law, place) for place in places]
        return Draft.chain(tokens, np.tile(self.law, (budget, 1)))


class RandomTrees:
    """Trees of random shape, empty ones and chains among them; all that is random comes from the drafting stream.

    Args:
        law: what drawn tokens are drawn from, wherever they stand.
        kind: "chosen", without saying from which law; drawn "with" or "without" replacement; "hybrid": one drawn, then
            chosen ones.
    """

    name = "random-trees"

    def __init__(self, law: np.ndarray, kind: str) -> None:
        self.law, self.kind = law, kind
        self.proposal: Proposal = {"chosen": "point_mass", "hybrid": "hybrid"}.get(kind, "sampled")  # type: ignore[assignment]

    def propose(self, sequences: list[Sequence], budgets: list[int]) -> list[Draft]:
        return [self._propose(s, max(budget, 0)) for s, budget in zip(sequences, budgets, strict=True)]

    def _propose(self, sequence: Sequence, budget: int) -> Draft:
        coins, place = sequence.draft_coins, 1000 * len(sequence.tokens)  # where coupled noise is nobody else's
        tokens: list[int] = []
        parents: list[int] = []
        rows: list[np.ndarray | None] = []
        for _ in range(coins.categorical(np.ones(2 * budget + 1), place)):
            parent = coins.categorical(np.ones(len(tokens) + 1), place + 2 * len(tokens) + 1) - 1  # before its token
            siblings = [tokens[i] for i, p in enumerate(parents) if p == parent]
            row = self._row(siblings)
            if len(tokens) == budget or row is None or (self.kind == "hybrid" and len(siblings) == len(self.law)):
                break
            drawn = self.kind in ("with", "without") or (self.kind == "hybrid" and not siblings)
            tokens.append(coins.categorical(row, place + 2 * len(tokens) + 2))
            parents.append(parent)
            rows.append(row if drawn else None)
        return Draft(tuple(tokens), tuple(parents), *self._declared(rows))

    def _row(self, siblings: list[int]) -> np.ndarray | None:
        if self.kind == "with":
            return self.law
        rest = self.law.copy()
        rest[siblings] = 0
        return rest / rest.sum() if rest.any() else None

    def _declared(self, rows: list[np.ndarray | None]) -> tuple[Proposal, tuple[np.ndarray | None, ...] | None]:
        return self.proposal, None if self.kind == "chosen" else tuple(rows)


class ScriptedTrees(ScriptedDrafter):
    """What a scripted drafter drafts, hidden in a tree: wrong siblings before and after its tokens, with children."""

    name = "scripted-trees"

    def _propose(self, tokens: list[int], budget: int) -> Draft:
        dice = np.random.default_rng([len(tokens), *tokens[-3:]])
        grown: list[int] = []
        parents: list[int] = []
        tip = -1
        for token in super()._propose(tokens, budget).tokens:
            family = [*((token + 1 + i) % self.vocab_size for i in range(dice.integers(0, 3)))]
            family.insert(int(dice.integers(0, len(family) + 1)), token)
            places = {child: len(grown) + place for place, child in enumerate(family)}
            grown += family
            parents += [tip] * len(family)
            if len(family) > 1 and dice.random() < 0.5:
                wrong = next(child for child in family if child != token)
                grown.append(token)
                parents.append(places[wrong])
            tip = places[token]
        return Draft(tuple(grown[:budget]), tuple(parents[:budget]))


def draft_model(target: TableModel, amount: float = 0.5, seed: int = 100) -> TableModel:
    """A model that resembles the target: 1 - `amount` of its law and the rest at random."""
    noise = random_laws(target.vocab_size, seed, sharpness=3)
    law = blend(lambda context: target.law(context), noise, amount)
    return TableModel(target.vocab_size, order=target.order, law=law, context_length=target.context_length)


def all_drafters(target: TableModel, slots: int, reference: Ordered[int]) -> dict[str, Callable[[], Drafter]]:
    """Makers of every kind of drafter for this target; `reference` is what the scripted one believes in."""
    rising = np.arange(1, target.vocab_size + 1) / np.arange(target.vocab_size + 1).sum()
    read = table_target(target)
    return {
        "none": NoDrafter,
        "ngram": NgramDrafter,
        "suffix": lambda: SuffixDrafter(min_match=1, offset=1),
        "suffix-tree": lambda: SuffixDrafter(min_match=1, offset=1, branches=3),
        "lookahead": lambda: LookaheadDrafter(window=2, ngram=3, candidates=2),
        "recycling": RecyclingDrafter,
        "model": lambda: ModelDrafter(draft_model(target), slots),
        "model-tree": lambda: ModelDrafter(draft_model(target), slots, tree="auto", row_cost=0),
        "model-shape": lambda: ModelDrafter(draft_model(target), slots, tree="2.2.1"),
        "medusa": lambda: head_drafter(read, medusa_head(read), slots),
        "eagle-tree": lambda: head_drafter(read, eagle_head(read), slots, tree="auto", row_cost=0),
        "suffix+model": lambda: CombinedDrafter(
            [SuffixDrafter(min_match=1, offset=1), ModelDrafter(draft_model(target), slots)], [0.0, 0.1]
        ),
        "scripted": lambda: ScriptedDrafter([reference], target.vocab_size),
        "scripted-trees": lambda: ScriptedTrees([reference], target.vocab_size),
        "repeats": RepeatsTheLastToken,
        "one-law": lambda: DrawsFromOneLaw(rising),
        **{f"{kind}-trees": lambda kind=kind: RandomTrees(rising, kind) for kind in TREE_KINDS},
    }


TREE_KINDS = ("chosen", "with", "without", "hybrid")
TREE_DRAFTERS = (
    "suffix-tree",
    "model-tree",
    "model-shape",
    "eagle-tree",
    "lookahead",
    "recycling",
    "scripted-trees",
    *(f"{kind}-trees" for kind in TREE_KINDS),
)


def lossless_rules(proposal: str) -> list[str]:
    return ["point-mass", "coupled"] + (["token", "block"] if proposal == "sampled" else [])


DRAFTERS_AND_RULES = [
    *(
        (name, rule)
        for name in ("none", "ngram", "suffix", "lookahead", "recycling", "scripted", "repeats", "model", "one-law")
        for rule in lossless_rules("sampled" if name in ("model", "one-law") else "point_mass")
    ),
    *(
        (name, rule)
        for name in ("suffix+model", "model-tree", "model-shape", "medusa", "eagle-tree", "scripted-trees")
        for rule in ("auto", "coupled")
    ),
    *((f"{kind}-trees", rule) for kind in TREE_KINDS for rule in ("recursive", "traversal", "coupled", "auto")),
]
"""Every drafter of `all_drafters` with every lossless rule that fits it."""


# ---------------------------------------------------------------- laws by counting


def p_value(counts: Mapping[tuple[int, ...], int], law: Mapping[tuple[int, ...], float]) -> float:
    """Of the G-test that the counted strings have this law; 0 if one of them is impossible.

    Strings that are expected fewer than five times are counted together.
    """
    if set(counts) - set(law):
        return 0.0
    total, rare = sum(counts.values()), [0.0, 0.0]
    cells = []
    for string, probability in law.items():
        seen, expected = counts.get(string, 0), total * probability
        if expected >= 5:
            cells.append((seen, expected))
        else:
            rare = [rare[0] + seen, rare[1] + expected]
    if rare[1] > 0:
        cells.append((int(rare[0]), rare[1]))
    statistic = 2 * sum(seen * np.log(seen / expected) for seen, expected in cells if seen > 0)
    return float(chi2.sf(statistic, len(cells) - 1))


def sample(
    engine: Engine, prompt: Ordered[int], num_samples: int, length: int | None = None, **request: object
) -> tuple[Counter, list[Round]]:
    """The first `length` tokens of as many requests, seeded 0, 1, 2, ..., counted; and all rounds."""
    for seed in range(num_samples):
        engine.add(prompt, seed=seed, **request)  # type: ignore[arg-type]
    rounds = finish(engine)
    return Counter(tuple(new_tokens(s)[:length]) for s in rounds), [r for each in rounds.values() for r in each]


def sampled(sampling: Sampling | None, temperature: float = 1.0) -> Sampling:
    """The same settings at a temperature above 0."""
    return replace(sampling or Sampling(), temperature=temperature)


# ---------------------------------------------------------------- text


def writer(prompt: Ordered[int], reply: Ordered[int], vocab_size: int) -> TableModel:
    """A target that writes `reply` after a prompt of this length, and its last token for ever after."""

    def next_token(context: tuple[int, ...]) -> int:
        return reply[min(max(len(context) - len(prompt), 0), len(reply) - 1)]

    return TableModel(vocab_size, order=None, law=rule_law(vocab_size, next_token))
