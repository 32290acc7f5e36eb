"""What caches and drafters hold after every round of random runs: exactly what fresh ones would.

The toy target's law depends on all its rows, so that a row lost, kept or moved by mistake shows in the text as well.
"""

from __future__ import annotations

import random
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest

from engine_runs import all_drafters, draft_model, finish, plain, toy_engine
from outrider import engine as engine_module
from outrider.core import Draft
from outrider.drafters import ModelDrafter, NgramDrafter
from outrider.drafters.lookup import copy_from
from outrider.drafters.ngram import NgramIndex
from outrider.options import Sampling
from outrider.rules import KeyedCoins
from test_drafter_model import MissesItsLastToken, TrimsOneTooFew, TrustsIds
from toy import TableModel, ToyCache, random_laws

V = 4
LAW = random_laws(V, seed=5, sharpness=2)
TARGET = TableModel(V, order=None, law=LAW)
MAX_SLOTS, NUM_ROUNDS = 3, 15
SAMPLINGS = [Sampling(), Sampling(temperature=1.0), Sampling(temperature=0.8, top_k=3, repetition_penalty=1.2)]
TREES = ("lookahead", "recycling", "random-trees")
RULES_OF = {
    "point_mass": ["point-mass", "coupled"],
    "sampled": ["token", "block", "point-mass", "coupled"],
    "hybrid": ["auto", "recursive", "point-mass", "coupled"],
}


class Audited:
    """A drafter whose every proposal is compared with a fresh one's, on the same tokens and a copy of the stream."""

    def __init__(self, make, drafter=None):
        self.make, self.drafter = make, make() if drafter is None else drafter
        self.name, self.proposal = self.drafter.name, self.drafter.proposal
        self.findings = []

    def propose(self, sequences, budgets):
        copies = [replace(s, tokens=list(s.tokens), draft_coins=deepcopy(s.draft_coins)) for s in sequences]
        drafts = self.drafter.propose(sequences, budgets)
        for copy, budget, draft in zip(copies, budgets, drafts, strict=True):
            (fresh,) = self.make().propose([copy], [budget])
            if not same(fresh, draft):
                self.findings.append(f"stale proposal {draft.tokens}, a fresh drafter: {fresh.tokens}")
        return drafts


def same(one, other):
    rows = [(one.law(node), other.law(node)) for node in range(min(len(one), len(other)))]
    same_rows = all(a is b or np.array_equal(a, b) for a, b in rows)
    return same_rows and (one.tokens, tuple(one.parents)) == (other.tokens, tuple(other.parents))


def audit(seed, drafter, target=TARGET):
    """One random run: joins, leaves, cancels, slots used again; the list of everything that is not as it should be."""
    rng = random.Random(seed)
    slots, rule = (
        rng.randint(1, MAX_SLOTS),
        rng.choice(RULES_OF["hybrid" if drafter.name in TREES else drafter.proposal]),
    )
    engine = toy_engine(target, drafter, rule, rng.choice([1, 2, 3, 5, None]), slots=slots, context_length=24)
    live, findings, seed_of = [], drafter.findings, {}
    try:
        for number in range(NUM_ROUNDS):
            if number == 0 or rng.random() < 0.5:
                request = random_request(rng)
                live.append(engine.add(**request))
                seed_of[live[-1]] = request["seed"]
            if rng.random() < 0.1 and live:
                engine.cancel(live.pop(rng.randrange(len(live))))
            for r in engine.step():
                if r.broken:
                    findings.append(r.broken)
                if r.finish_reason is not None:
                    live.remove(r.sequence)
                    findings += text_findings(r.sequence, rule, seed_of[r.sequence])
            findings += [finding for s in live if s.slot >= 0 for finding in cache_findings(engine.cache, s)]
    except (AssertionError, IndexError) as error:
        findings.append(f"{type(error).__name__}: {error}")
    return findings


def random_request(rng):
    prompt = [rng.randrange(V) for _ in range(rng.choice([1, 2, 4, 7]))]
    return {
        "prompt": rng.choice([prompt, [1, 2, 0, 1, 2]]),
        "sampling": rng.choice(SAMPLINGS),
        "stop_ids": rng.choice([(), (), (3,)]),
        "max_new_tokens": rng.choice([1, 4, 12, None]),
        "seed": rng.randrange(1000),
    }


def cache_findings(cache, sequence):
    """Rows are the tokens, at their positions; all but the pending token once the prefill is done."""
    rows = cache.committed(sequence.slot)
    prefilling = len(rows) < sequence.prompt_length - 1
    expected = sequence.tokens[: len(rows)] if prefilling else sequence.tokens[:-1]
    return [] if rows == expected else [f"rows {rows} of the tokens {sequence.tokens}"]


def text_findings(sequence, rule, seed):
    """Where the text is fixed (greedy or coupled), it is that of decoding without caches or drafts."""
    greedy = sequence.sampling.temperature == 0
    if not greedy and rule != "coupled":
        return []
    expected = plain(
        TARGET,
        sequence.tokens[: sequence.prompt_length],
        sequence.num_new_tokens,
        sampling=sequence.sampling,
        stop_ids=sequence.stop_ids,
        coins=None if greedy else KeyedCoins(seed),
    )
    return [] if sequence.tokens[sequence.prompt_length :] == expected else [f"{sequence.tokens}, not {expected}"]


MAKERS = all_drafters(TARGET, MAX_SLOTS, [1, 2, 0, 1, 2, *TARGET.greedy([1, 2, 0, 1, 2], 20)])


@pytest.fixture
def short_chunks(monkeypatch):
    """Prompts of a few tokens take several rounds to prefill."""
    monkeypatch.setattr(engine_module, "PREFILL_CHUNK", 2)


@pytest.mark.usefixtures("short_chunks")
@pytest.mark.parametrize("first_seed", range(0, 200, 20))
def test_caches_and_drafters_hold_what_fresh_ones_would_after_every_round(first_seed):
    names = list(MAKERS)
    for seed in range(first_seed, first_seed + 20):
        assert audit(seed, Audited(MAKERS[names[seed % len(names)]])) == []


# ---------------------------------------------------------------- planted faults


class KeepsOneRowMore(ToyCache):
    def commit(self, slot, rows):
        super().commit(slot, rows)
        self.lengths[slot] += 1


class KeepsOneRowLess(ToyCache):
    def commit(self, slot, rows):
        super().commit(slot, rows)
        self.lengths[slot] -= 1


class KeepsTheNextRows(ToyCache):
    """The right number, but each row one too late."""

    def commit(self, slot, rows):
        width = self.block_widths[slot]
        super().commit(slot, [min(row + 1, width - 1) for row in rows])


class ForgetsToTruncate(ToyCache):
    def truncate(self, slot, length):
        pass


class CopiesTheLengthOnly(ToyCache):
    def copy(self, source, target):
        self.lengths[target] = self.lengths[source]


class CommitsWhenWriting(TableModel):
    """Its forward moves the length, as many caches do; rejected rows stay."""

    def forward(self, block, cache):
        output = super().forward(block, cache)
        if not block.prefill:
            for slot, width in zip(block.slots, block.widths, strict=True):
                cache.lengths[slot] += width - 1
        return output


def with_cache(cache_class):
    target = TableModel(V, order=None, law=LAW)
    target.new_cache = cache_class
    return target


@pytest.mark.usefixtures("short_chunks")
@pytest.mark.parametrize(
    "target",
    [
        *map(
            with_cache,
            [KeepsOneRowMore, KeepsOneRowLess, KeepsTheNextRows, ForgetsToTruncate, CopiesTheLengthOnly],
        ),
        CommitsWhenWriting(V, order=None, law=LAW),
    ],
)
def test_the_same_audit_catches_a_cache_that_keeps_the_wrong_rows(target):
    assert any(audit(seed, Audited(MAKERS["scripted"]), target) for seed in range(20))


class NeverForgets(NgramDrafter):
    """Planted bug: what was indexed for a slot is taken for the beginning of whatever sequence is there now."""

    def __init__(self):
        super().__init__()
        self.by_slot = [NgramIndex(3, 1) for _ in range(MAX_SLOTS)]

    def _propose(self, sequence, budget):
        index = self.by_slot[sequence.slot]
        for token in sequence.tokens[len(index.tokens) :]:
            index.push(token)
        start = index.find()
        return Draft() if start is None or start >= len(sequence.tokens) else copy_from(start, budget, sequence)


@pytest.mark.usefixtures("short_chunks")
@pytest.mark.parametrize("planted_bug", [TrimsOneTooFew, TrustsIds, MissesItsLastToken])
def test_the_same_audit_catches_a_draft_model_that_trims_wrongly(planted_bug):
    model = draft_model(TARGET)
    runs = (Audited(lambda: ModelDrafter(model, MAX_SLOTS), planted_bug(model, MAX_SLOTS)) for _ in range(20))
    assert any(audit(seed, drafter) for seed, drafter in enumerate(runs))


@pytest.mark.usefixtures("short_chunks")
def test_the_same_audit_catches_an_index_that_outlives_its_sequence():
    assert any(audit(seed, Audited(NgramDrafter, NeverForgets())) for seed in range(20))


# ---------------------------------------------------------------- full acceptance


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("rule", ["token", "block", "coupled"])
def test_a_draft_model_equal_to_the_target_is_accepted_whole_for_a_hundred_rounds(rule, k):
    # Known faults 9, 10 and 60: the draft is the target object; rounds = ceil(n / (k + 1)).
    target = TableModel(V, order=6, law=LAW)
    assert rounds_of_an_equal_draft(ModelDrafter(target, 1), target, rule, k) == 100


def test_a_draft_model_that_misses_its_last_token_needs_more_rounds():
    target = TableModel(V, order=6, law=LAW)
    assert rounds_of_an_equal_draft(MissesItsLastToken(target, 1), target, "token", 2) > 110


def rounds_of_an_equal_draft(drafter, target, rule, k):
    engine = toy_engine(target, drafter, rule, k)
    engine.add([1, 2, 3], sampling=Sampling(temperature=1.0), seed=3, max_new_tokens=99 * (k + 1) + 1)
    (rounds,) = finish(engine).values()
    return len(rounds)
