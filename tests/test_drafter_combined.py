"""Several drafters as one: the right one at the right time, the target's law, and no memory of anything else."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from engine_runs import LIMIT, decode, draft_model, finish, p_value, plain, sample, toy_engine, writer
from outrider.core import Draft, Verdict
from outrider.drafters import ModelDrafter, NgramDrafter, SuffixDrafter, combined
from outrider.drafters.combined import LOOK_AHEAD, CombinedDrafter
from outrider.drafters.records import LOOK_UP, PROBE_EVERY, Outcome, Record
from outrider.drafters.recycling import RecyclingDrafter
from outrider.errors import InvalidOption
from outrider.options import Sampling
from outrider.rounds import Verified
from toy import TableModel, exact_string_law, make_sequence, random_laws

V = 11
PROMPT = [1, 2, 3]


# ---------------------------------------------------------------- who is right when


class KnowsAPart:
    """Drafts the next `depth` tokens of `text`: all right inside `part`, all wrong outside."""

    proposal = "point_mass"

    def __init__(self, name, text, part, depth=64):
        self.name, self.text, self.part, self.depth = name, text, part, depth

    def propose(self, sequences, budgets):
        return [self._propose(s, min(budget, self.depth)) for s, budget in zip(sequences, budgets, strict=True)]

    def _propose(self, sequence, budget):
        start = len(sequence.tokens)
        wrong = 0 if start in self.part else 1
        return Draft.chain([(token + wrong) % V for token in self.text[start : start + budget]])


class DrawsAPart(KnowsAPart):
    """The same as a sampling drafter that is certain of each token."""

    proposal = "sampled"

    def _propose(self, sequence, budget):
        draft = super()._propose(sequence, budget)
        law = np.eye(V)[list(draft.tokens)]
        drawn = [sequence.draft_coins.categorical(row, 0) for row in law]
        return Draft.chain(drawn, law)


PHASE = 400
TEXT = PROMPT + [random.Random(3).randrange(V) for _ in range(2 * PHASE)]
HALVES = [range(len(PROMPT), len(PROMPT) + PHASE), range(len(PROMPT) + PHASE, len(TEXT))]


def lengths_by_half(drafter, k=4):
    """Mean acceptance length of the rounds that begin in each half of TEXT."""
    target = writer(PROMPT, TEXT[len(PROMPT) :], V)
    engine = toy_engine(target, drafter, "auto", k, context_length=len(TEXT))
    engine.add(PROMPT)
    lengths, position = ([], []), len(PROMPT)
    for rounds in finish(engine).values():
        for r in rounds:
            lengths[position >= HALVES[1].start].append(len(r.token_ids))
            position += len(r.token_ids)
    assert position == len(TEXT)
    return [sum(half) / len(half) for half in lengths]


def sources(kinds, depths=(64, 64)):
    return [kind(name, TEXT, half, depth) for kind, name, half, depth in zip(kinds, "ab", HALVES, depths, strict=True)]


KINDS = [(KnowsAPart, KnowsAPart), (KnowsAPart, DrawsAPart), (DrawsAPart, KnowsAPart), (DrawsAPart, DrawsAPart)]


@cache
def lengths_alone(kind, number):
    return lengths_by_half(kind("alone", TEXT, HALVES[number]))


def costs_of(kinds):
    return [0.3 if kind is DrawsAPart else 0.0 for kind in kinds]


@pytest.mark.parametrize("kinds", KINDS)
def test_the_combination_is_nearly_as_good_as_the_better_source_in_both_halves(kinds):
    alone = [lengths_alone(kind, number) for number, kind in enumerate(kinds)]
    together = lengths_by_half(CombinedDrafter(sources(kinds), costs_of(kinds)))
    share = 0.85 if kinds == (DrawsAPart, DrawsAPart) else 0.9  # neither is seen unless it is tried
    for half in (0, 1):
        assert together[half] >= share * max(a[half] for a in alone)
    assert sum(together) > max(map(sum, alone))


def test_a_source_that_costs_is_not_tried_where_even_a_perfect_draft_would_be_worth_less():
    drafter = CombinedDrafter(sources((KnowsAPart, DrawsAPart)), [0.0, 1.0])
    assert lengths_by_half(drafter)[0] == 5
    first, second = drafter.num_uses
    assert first > PHASE // 5
    assert second == 0


def test_a_source_that_costs_is_tried_again_on_schedule():
    good = KnowsAPart("good", TEXT, range(len(TEXT)), depth=1)
    bad = DrawsAPart("bad", TEXT, range(0))
    drafter = CombinedDrafter([good, bad], [0.0, 0.1])
    lengths_by_half(drafter)
    rounds = sum(drafter.num_uses)
    assert rounds // PROBE_EVERY <= drafter.num_uses[1] <= rounds // PROBE_EVERY + 4


class NeverWorried(CombinedDrafter):
    """Planted bug: what is known of a source is never doubted."""

    def _learn(self, v):
        pass


def test_the_halves_tell_a_drafter_that_does_not_learn():
    assert lengths_by_half(NeverWorried(sources((KnowsAPart, KnowsAPart)), [0.0, 0.0]))[1] < 0.9 * 5


def slowest_change():
    """Tokens from the end of the first source's part until the second is first drafted from; the worst of 5 places."""
    found = []
    for end in range(200, 300, 20):
        both = [DrawsAPart("a", TEXT, range(end)), DrawsAPart("b", TEXT, range(end, len(TEXT)))]
        drafter = CombinedDrafter(both, [0.4, 0.4])
        engine = toy_engine(writer(PROMPT, TEXT[len(PROMPT) :], V), drafter, "auto", 4, context_length=len(TEXT))
        sequence, uses = engine.add(PROMPT), 0
        while len(sequence.tokens) <= end or drafter.num_uses[1] == uses:
            uses = drafter.num_uses[1]
            engine.step()
        found.append(len(sequence.tokens) - end)
    return max(found)


def test_when_the_source_in_use_ceases_to_fit_another_that_costs_is_tried_soon(monkeypatch):
    assert slowest_change() < 12
    monkeypatch.setattr(combined, "CHANGE", 1000)
    assert slowest_change() > 12


def test_nothing_is_drafted_where_plain_decoding_is_better():
    never = DrawsAPart("never", TEXT, range(0))
    drafter = CombinedDrafter([never], [0.5])
    lengths_by_half(drafter)
    assert drafter.num_uses[0] < 2 * len(TEXT) / PROBE_EVERY


def test_a_chain_is_cut_where_another_row_is_not_worth_its_cost():
    nodes = {}
    for row_cost in (0.0, 0.2, 3.0):
        drafter = CombinedDrafter([KnowsAPart("a", TEXT, range(len(TEXT)))], [0.0], row_cost)
        nodes[row_cost] = len(drafter.propose([make_sequence(PROMPT)], [40])[0])
    assert nodes[0.0] == 40
    assert 0 < nodes[0.2] < 12
    assert nodes[3.0] == 0


class EndsItself(DrawsAPart):
    """Knows where its drafts are no longer worth it, at temperature 0."""

    def __init__(self, name, text, part):
        super().__init__(name, text, part)
        self.asked = []

    def ends_itself(self, sequence):
        return sequence.sampling.temperature == 0

    def propose(self, sequences, budgets):
        self.asked += budgets
        return super().propose(sequences, [min(budget, 2) for budget in budgets])


@pytest.mark.parametrize(("temperature", "asked"), [(0.0, {9}), (1.0, {1, 2})])
def test_a_source_that_ends_its_drafts_itself_gets_the_whole_budget(temperature, asked):
    source = EndsItself("a", TEXT, range(len(TEXT)))
    drafter = CombinedDrafter([source], [0.2], 0.05)
    for length in range(20, 60, 3):
        sequence = make_sequence(TEXT[:length], sampling=Sampling(temperature=temperature))
        (draft,) = drafter.propose([sequence], [9])
        assert len(draft) <= 2
    assert set(source.asked) <= asked
    assert source.asked


def test_a_source_that_ends_its_drafts_itself_is_left_where_they_are_not_worth_their_cost():
    source = EndsItself("a", TEXT, range(0))
    drafter = CombinedDrafter([source], [0.2], 0.05)
    lengths_by_half(drafter, 9)
    assert drafter.num_uses[0] < 2 * len(TEXT) / PROBE_EVERY


# ---------------------------------------------------------------- full information


def verified(sequence, draft, emitted):
    """The round that emitted these tokens after the draft, and the sequence with them."""
    path, node = [], -1
    for token in emitted[:-1]:
        node = next(
            i for i, (t, p) in enumerate(zip(draft.tokens, draft.parents, strict=True)) if (t, p) == (token, node)
        )
        path.append(node)
    sequence.tokens += emitted
    return Verified(sequence, draft, Verdict(tuple(path), emitted[-1]), torch.zeros(1 + len(draft), V), None)


class Says:
    """Drafts what stands in `script` for the length of the text."""

    proposal = "point_mass"

    def __init__(self, name, script):
        self.name, self.script = name, script

    def propose(self, sequences, budgets):
        return [self._cut(self.script.get(len(s.tokens), Draft()), b) for s, b in zip(sequences, budgets, strict=True)]

    def _cut(self, draft, budget):
        return replace(draft, tokens=draft.tokens[:budget], parents=draft.parents[:budget])


def records(drafter, sequence):
    """What is known of each source, and nothing of how often it was used."""
    return [(r.overall, r.by_class) for r in drafter._state(sequence).records]


A_FITS = Says("a", {3: Draft.chain([5, 6, 7, 0]), 7: Draft.chain([1, 0]), 9: Draft.chain([4, 4])})
B_FITS_LESS = Says("b", {3: Draft((5, 4, 6), (-1, -1, 1)), 7: Draft.chain([1, 1, 1]), 9: Draft.chain([0])})
ROUNDS = [[5, 6, 7, 8], [1, 2], [3]]


def after_rounds(drafter, used):
    """The drafter's records after ROUNDS, in which only the draft of the source `used` was verified."""
    sequence = make_sequence(PROMPT)
    for emitted in ROUNDS:
        drafter.propose([sequence], [4])
        draft = drafter.sources[used].propose([sequence], [4])[0]
        kept = emitted if used == 0 else [*b_keeps(draft, emitted), emitted[len(b_keeps(draft, emitted))]]
        drafter.observe([verified(sequence, draft, kept)])
        sequence.tokens += emitted[len(kept) :]
    return records(drafter, sequence)


def b_keeps(draft, emitted):
    first = emitted[:1]
    return first if draft.tokens[:1] == tuple(first) and len(emitted) > 1 else []


def test_a_free_source_is_judged_alike_whether_its_draft_was_verified_or_not():
    pair = [CombinedDrafter([A_FITS, B_FITS_LESS], [0, 0]) for _ in range(2)]
    assert after_rounds(pair[0], used=0)[1] == after_rounds(pair[1], used=1)[1]


class LearnsFromUseAlone(CombinedDrafter):
    """Planted bug: a draft that was not verified teaches nothing."""

    def _judged(self, plan, source, emitted):
        plan.drafts = {i: d if i == self.used else Draft() for i, d in plan.drafts.items()}
        return super()._judged(plan, source, emitted)


def test_the_same_comparison_catches_a_drafter_that_learns_from_use_alone():
    pair = [LearnsFromUseAlone([A_FITS, B_FITS_LESS], [0, 0]) for _ in range(2)]
    pair[0].used, pair[1].used = 0, 1
    assert after_rounds(pair[0], used=0)[1] != after_rounds(pair[1], used=1)[1]


def learnt_by(draft, emitted):
    """What a source's record holds after a round in which another draft was verified."""
    sequence, used = make_sequence(PROMPT), Draft.chain(emitted[:-1])
    drafter = CombinedDrafter([Says("judged", {3: draft}), Says("used", {3: used})], [0, 0])
    drafter.propose([sequence], [4])
    drafter.observe([verified(sequence, used, emitted)])
    return drafter._state(sequence).records[0].overall


def told_of(matched, tried):
    record = Record(LOOK_UP)
    record.learn(Outcome(0, matched, tried))
    return record.overall


@pytest.mark.parametrize(
    ("draft", "emitted", "matched", "tried"),
    [
        (Draft.chain([5, 6, 7]), [5, 6, 9], 2, 3),
        (Draft.chain([5, 6, 7]), [4], 0, 1),
        (Draft.chain([5, 6, 7]), [5], 1, 1),  # it may go on to fit: not known
        (Draft.chain([5, 6, 7]), [5, 6, 7, 8], 3, 3),
        (Draft((4, 5, 6, 7), (-1, -1, 1, 1)), [5, 7, 1], 2, 2),
        (Draft(), [5, 6], 0, 0),
    ],
)
def test_a_draft_is_judged_as_far_as_the_emitted_tokens_go(draft, emitted, matched, tried):
    assert learnt_by(draft, emitted) == told_of(matched, tried)
    assert learnt_by(draft, emitted) != told_of(matched + 1, tried + 1)


# ---------------------------------------------------------------- exact


V3, LENGTH = 3, 4
PROMPT3 = [0, 1, 2, 0, 1]
TARGET = TableModel(V3, order=2, law=random_laws(V3, seed=1, sharpness=3))
WARM = Sampling(temperature=1.0)


def lookup_and_model(slots, kind=CombinedDrafter, target=TARGET):
    return kind([SuffixDrafter(min_match=1, offset=1), ModelDrafter(draft_model(target), slots)], [0.0, 0.1])


def three(slots, target=TARGET):
    model = ModelDrafter(draft_model(target), slots)
    return CombinedDrafter([SuffixDrafter(min_match=1, offset=1), model, NgramDrafter()], [0.0, 0.1, 0.0])


def trees_and_model(slots):
    return CombinedDrafter([RecyclingDrafter(row_cost=0), ModelDrafter(draft_model(TARGET), slots)], [0.0, 0.1], 0.05)


def p_of(drafter, rule="auto", slots=5, num_samples=800):
    engine = toy_engine(TARGET, drafter, rule, 3, slots=slots, context_length=16)
    strings, rounds = sample(engine, PROMPT3, num_samples, sampling=WARM, max_new_tokens=LENGTH)
    assert 0 < sum(r.num_accepted for r in rounds) < sum(r.num_drafted for r in rounds)
    return p_value(strings, exact_string_law(TARGET, PROMPT3, LENGTH, WARM))


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        *((lookup_and_model, rule) for rule in ("auto", "recursive", "point-mass", "coupled")),
        *((make, rule) for make in (three, trees_and_model) for rule in ("auto", "recursive")),
    ],
)
def test_the_emitted_strings_have_the_targets_law(make, rule):
    drafter = make(5)
    assert drafter.proposal == "hybrid"
    assert p_of(drafter, rule) > LIMIT
    assert min(drafter.num_uses[:2]) > 100


class LooksAtTheDraw(CombinedDrafter):
    """Planted bug: the model's draft is taken only if the model thought well of what it drew."""

    def propose(self, sequences, budgets):
        found, drawn = (source.propose(sequences, budgets) for source in self.sources)
        return [d if len(d) and d.draft_probs[0][d.tokens[0]] > 0.4 else f for d, f in zip(drawn, found, strict=True)]


def test_the_same_check_catches_a_choice_that_looks_at_what_was_drawn():
    assert p_of(lookup_and_model(5), num_samples=2000) > LIMIT
    assert p_of(lookup_and_model(5, LooksAtTheDraw), num_samples=2000) < LIMIT


TARGET7 = TableModel(7, order=2, law=random_laws(7, seed=4, sharpness=3))


@pytest.mark.parametrize("make", [lookup_and_model, three])
def test_greedy_and_coupled_texts_are_those_of_plain_decoding(make):
    drafter = make(1, target=TARGET7)
    engine = toy_engine(TARGET7, drafter, "auto", 4)
    assert decode(engine, [1, 2, 3], max_new_tokens=60) == plain(TARGET7, [1, 2, 3], 60)
    engine = toy_engine(TARGET7, make(1, target=TARGET7), "coupled", 4)
    alone = toy_engine(TARGET7, None, "coupled")
    request = {"sampling": WARM, "seed": 5, "max_new_tokens": 60}
    assert decode(engine, [1, 2, 3], **request) == decode(alone, [1, 2, 3], **request)


# ---------------------------------------------------------------- a function of the sequence alone


def texts_in_batches(slots):
    """Texts and uses per seed under a rule whose text depends on every draft."""
    drafter = three(slots, TARGET7)
    engine = toy_engine(TARGET7, drafter, "auto", None, slots=slots)
    live = [engine.add([1, 2, seed % 7], seed=seed, sampling=WARM, max_new_tokens=40 + seed) for seed in range(6)]
    finish(engine)
    return [(s.tokens, drafter.uses(s)) for s in live]


def test_texts_and_uses_are_the_same_in_any_batch():
    alone = texts_in_batches(1)
    assert alone == texts_in_batches(3) == texts_in_batches(6)
    assert all(sum(uses[name] for _, uses in alone) > 0 for name in ("suffix", "model", "ngram"))


class RemembersOthers(CombinedDrafter):
    """Planted bug: one record for all sequences."""

    def _state(self, sequence):
        self.one = getattr(self, "one", None) or super()._state(sequence)
        return self.one


def count_stale_proposals(kind):
    """Sequences join, leave and reuse slots and ids at random; how often a drafter that saw one alone differs."""
    rng = random.Random(2)

    def make():
        drafter = kind([SuffixDrafter(), NgramDrafter(2), Says("c", {})], [0, 0, 0], 0.05)
        drafter.together = 1  # else how much is drafted follows from the others too
        return drafter

    together, live, next_id, stale = make(), {}, 0, 0
    for _ in range(200):
        for slot in range(3):
            if slot not in live and rng.random() < 0.5:
                prompt = [rng.randrange(3) for _ in range(rng.randrange(1, 20))]
                live[slot] = make_sequence(prompt, id=next_id % 2, slot=slot), make()
                next_id += 1
        chosen = rng.sample(list(live.values()), k=rng.randrange(len(live) + 1))
        budgets = [rng.randrange(6) for _ in chosen]
        drafts = together.propose([s for s, _ in chosen], budgets)
        told = []
        for (sequence, alone), budget, draft in zip(chosen, budgets, drafts, strict=True):
            stale += alone.propose([sequence], [budget]) != [draft]
            told.append(verified(sequence, draft, [*draft.tokens[: rng.randrange(len(draft) + 1)], rng.randrange(3)]))
            alone.observe(told[-1:])
            if rng.random() < 0.05:
                del live[sequence.slot]
        together.observe(told)
    return stale


def test_proposals_equal_those_of_a_drafter_that_saw_this_sequence_alone():
    assert count_stale_proposals(CombinedDrafter) == 0


def test_the_same_comparison_catches_a_record_shared_by_all_sequences():
    assert count_stale_proposals(RemembersOthers) > 0


# ---------------------------------------------------------------- edges


def test_with_a_budget_of_nothing_the_look_ups_are_judged_and_nothing_is_drafted():
    sequence = make_sequence([1, 2, 3, 4, 1, 2])
    drafter = lookup_and_model(1)
    assert drafter.propose([sequence], [0]) == [Draft()]
    drafter.observe([verified(sequence, Draft(), [3])])
    assert drafter._state(sequence).records[0].overall == told_of(1, 1)
    assert drafter.uses(sequence) == {"suffix": 0, "model": 0}


def test_a_round_that_someone_else_proposed_teaches_nothing():
    sequence = make_sequence(PROMPT)
    drafter = CombinedDrafter([A_FITS, B_FITS_LESS], [0, 0])
    fresh = records(drafter, sequence)
    drafter.observe([verified(sequence, Draft.chain([5, 6]), [5, 6, 7])])
    drafter.propose([sequence], [4])
    sequence.tokens.append(0)  # a token that no round emitted
    drafter.observe([verified(sequence, Draft.chain([5, 6]), [5, 6, 7])])
    assert records(drafter, sequence) == fresh == records(drafter, make_sequence(PROMPT))


def test_a_stop_ends_the_text_as_in_plain_decoding():
    for stop in range(7):
        engine = toy_engine(TARGET7, three(1, TARGET7), "auto", 4)
        request = {"sampling": WARM, "seed": 3, "stop_ids": [stop], "max_new_tokens": 40}
        text = decode(engine, [1, 2, 3, 1, 2], **request)
        assert text.count(stop) <= 1
        assert len(text) == 40 or text[-1] == stop


class Fails:
    """A source that fails in one way or another."""

    name = "fails"

    def __init__(self, proposal="point_mass", answer=None):
        self.proposal, self.answer = proposal, answer

    def propose(self, sequences, budgets):
        if self.answer is None:
            raise RuntimeError("no")
        return [self.answer for _ in sequences]

    def observe(self, verified):
        raise RuntimeError("no")


FAULTS = [None, "not a draft", Draft((1,), (5,)), Draft((1,) * (LOOK_AHEAD + 1), tuple(range(-1, LOOK_AHEAD)))]


@pytest.mark.parametrize("proposal", ["point_mass", "sampled"])
@pytest.mark.parametrize("answer", FAULTS)
def test_a_source_that_fails_does_not_silence_the_others(proposal, answer):
    good = KnowsAPart("good", TEXT, range(len(TEXT)), depth=1)
    drafter = CombinedDrafter([Fails(proposal, answer), good], [0.0, 0.0])
    assert lengths_by_half(drafter) == [2.0, 2.0]
    assert drafter.num_failures[0] > 0
    assert drafter.num_uses[0] == 0


def test_if_all_sources_fail_the_drafter_fails():
    drafter = CombinedDrafter([Fails(), Fails("sampled")], [0.0, 0.0])
    with pytest.raises(RuntimeError, match="no"):
        drafter.propose([make_sequence(PROMPT)], [3])


def test_name_proposal_and_note():
    suffix, ngram = SuffixDrafter(), NgramDrafter()
    model = ModelDrafter(draft_model(TARGET), 1)
    both = CombinedDrafter([suffix, model], [0, 0.4])
    assert (both.name, both.proposal, both.note) == ("suffix+model", "hybrid", "suffix in 0 rounds, model in 0 rounds")
    assert CombinedDrafter([suffix, ngram], [0, 0]).proposal == "point_mass"
    assert CombinedDrafter([model, model], [0.4, 0.4]).proposal == "sampled"


@pytest.mark.parametrize(
    ("makers", "costs", "row_cost"),
    [
        ([], [], 0.0),
        ([SuffixDrafter], [], 0.0),
        ([SuffixDrafter], [-0.1], 0.0),
        ([SuffixDrafter], [float("nan")], 0.0),
        ([SuffixDrafter], [0.0], float("inf")),
    ],
)
def test_what_makes_no_combination_is_refused(makers, costs, row_cost):
    with pytest.raises(InvalidOption):
        CombinedDrafter([make() for make in makers], costs, row_cost)
