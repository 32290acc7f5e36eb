"""Drafters that learn from the target's logits, in whole runs: exact, per request, never more than asked for."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from engine_runs import LIMIT, finish, new_tokens, p_value, plain, sample, toy_engine
from outrider import tree
from outrider.core import Verdict
from outrider.drafters.learned import StatePerRequest
from outrider.drafters.lookahead import LookaheadDrafter
from outrider.drafters.recycling import RecyclingDrafter
from outrider.options import Sampling
from outrider.rules import RULES
from toy import TableModel, exact_string_law, make_sequence, random_laws, rule_law

MAKERS = {
    "lookahead": lambda: LookaheadDrafter(window=3, ngram=3, candidates=3),
    "recycling": lambda: RecyclingDrafter(candidates=3, max_depth=3, row_cost=0.02),
}
both = pytest.mark.parametrize("name", MAKERS)

SHARP = TableModel(5, order=2, law=random_laws(5, seed=3, sharpness=6))
CYCLE = TableModel(12, order=1, law=rule_law(12, lambda context: (5 * context[-1] + 1) % 12))


class Recorder:
    """Passes everything on to a drafter, and keeps what was said: drafts, budgets, and rounds as they were."""

    name, proposal = "recorder", "point_mass"

    def __init__(self, drafter):
        self.drafter = drafter
        self.drafts, self.budgets, self.history = {}, {}, {}

    def propose(self, sequences, budgets):
        drafts = self.drafter.propose(sequences, budgets)
        for sequence, budget, draft in zip(sequences, budgets, drafts, strict=True):
            self.drafts.setdefault(sequence, []).append(draft)
            self.budgets.setdefault(sequence, []).append(budget)
        return drafts

    def observe(self, verified):
        for v in verified:
            then = replace(v.sequence, tokens=list(v.sequence.tokens))
            self.history.setdefault(v.sequence, []).append(replace(v, sequence=then))
        self.drafter.observe(verified)


class RandomPace:
    """Budgets from 0 to 64."""

    def __init__(self, seed):
        self.random = Random(seed)

    def budgets(self, sequences):
        return [self.random.choice([0, 1, 2, 3, 5, 8, 13, 64]) for _ in sequences]

    def observe(self, rounds):
        pass


REQUESTS = [
    {"prompt": [i % 5, 1, 4, 2, (3 * i) % 5, 0][: 2 + i % 5], "seed": i, "max_new_tokens": 4 + 5 * (i % 3)}
    for i in range(6)
]


def run(drafter, requests, slots, target=SHARP, k=6, sampling=None):
    """The recorder of a run, and its sequences in the order of the requests."""
    recorder = Recorder(drafter)
    engine = toy_engine(target, recorder, k=k, slots=slots)
    sequences = [engine.add(**request, sampling=sampling) for request in requests]
    rounds = finish(engine)
    assert all(r.broken is None for each in rounds.values() for r in each)
    return recorder, sequences


# ---------------------------------------------------------------- exact


@both
@pytest.mark.parametrize("k", [1, 4, 30])
def test_greedy_text_equals_plain_decoding(name, k):
    for target in (SHARP, CYCLE):
        _, sequences = run(MAKERS[name](), REQUESTS, 3, target, k)
        for sequence, request in zip(sequences, REQUESTS, strict=True):
            assert new_tokens(sequence) == plain(target, request["prompt"], request["max_new_tokens"])


class KeepsEldestChild:
    """A rule with a planted bug: the first sibling is always kept, as deep as the draft goes."""

    name, lossless, trees, proposals = "eldest", True, True, frozenset({"point_mass"})

    def verify(self, draft, target_probs, coins, position):
        path, node = [], -1
        while node in draft.parents:
            node = draft.parents.index(node)
            path.append(node)
        law = target_probs[node + 1]
        return Verdict(tuple(path), coins.categorical(law, position + len(path)))


PROMPT, LENGTH = [0, 1, 2, 0, 1, 2, 2, 0], 5
DRAWN = TableModel(3, order=2, law=random_laws(3, seed=1, sharpness=3))


def p_of(name, rule):
    sampling = Sampling(temperature=1.0)
    engine = toy_engine(DRAWN, MAKERS[name](), rule, 6, slots=3, context_length=16)
    strings, rounds = sample(engine, PROMPT, 500, sampling=sampling, max_new_tokens=LENGTH)
    assert sum(r.num_accepted for r in rounds) > 100
    return p_value(strings, exact_string_law(DRAWN, PROMPT, LENGTH, sampling))


@both
def test_sampled_text_has_the_targets_law(name):
    assert p_of(name, RULES["auto"]) > LIMIT


@both
def test_the_count_catches_a_rule_that_trusts_the_draft(name):
    assert p_of(name, KeepsEldestChild()) < LIMIT


# ---------------------------------------------------------------- what is proposed


@both
def test_drafts_are_trees_within_any_budget(name):
    recorder = Recorder(MAKERS[name]())
    engine = toy_engine(SHARP, recorder, slots=3)
    engine.pace = RandomPace(2)
    for request in REQUESTS:
        engine.add(**request)
    assert all(r.broken is None for rounds in finish(engine).values() for r in rounds)
    sizes = set()
    for sequence, drafts in recorder.drafts.items():
        for draft, budget in zip(drafts, recorder.budgets[sequence], strict=True):
            tree.check(draft)
            assert len(draft) <= budget
            sizes.add(len(draft))
    assert max(sizes) > 4


@both
@pytest.mark.parametrize("k", [3, 20])
def test_banned_ids_are_never_drafted_and_nothing_follows_a_stop_id(name, k):
    requests = [{**request, "stop_ids": [3]} for request in REQUESTS]
    recorder, sequences = run(MAKERS[name](), requests, 2, k=k, sampling=Sampling(banned_ids=frozenset({2})))
    drafts = [draft for each in recorder.drafts.values() for draft in each]
    assert sum(len(draft) for draft in drafts) > 20
    for draft in drafts:
        assert 2 not in draft.tokens
        assert all(parent == -1 or draft.tokens[parent] != 3 for parent in draft.parents)
    settings = Sampling(banned_ids=frozenset({2}))
    for s, r in zip(sequences, requests, strict=True):
        assert new_tokens(s) == plain(SHARP, r["prompt"], r["max_new_tokens"], sampling=settings, stop_ids=[3])


# ---------------------------------------------------------------- state


@both
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_sequence_gets_the_same_drafts_alone_and_beside_others_in_slots_used_before(name, temperature):
    sampling = Sampling(temperature=temperature)
    recorder, sequences = run(MAKERS[name](), REQUESTS, 2, sampling=sampling)
    assert sum(len(draft) for each in recorder.drafts.values() for draft in each) > 50
    for sequence, request in zip(sequences, REQUESTS, strict=True):
        alone, (same,) = run(MAKERS[name](), [request], 1, sampling=sampling)
        assert alone.drafts[same] == recorder.drafts[sequence]


def count_stale_proposals(make, drafter):
    """Rounds in which a fresh drafter that is told of the sequence's rounds would propose something else.

    One drafter serves two engines in turn; the second has the same ids, and the texts of the first as its prompts.
    """
    first, sequences = run(drafter, REQUESTS, 2)
    again = [{**request, "prompt": list(s.tokens)} for s, request in zip(sequences, REQUESTS, strict=True)]
    second, _ = run(drafter, again, 2)
    stale = 0
    for recorder in (first, second):
        for sequence, drafts in recorder.drafts.items():
            history = recorder.history.get(sequence, [])
            for place in range(1, len(history) + 1):
                fresh = make()
                for v in history[:place]:
                    fresh.observe([v])
                budget = recorder.budgets[sequence][place]
                stale += fresh.propose([history[place - 1].sequence], [budget]) != [drafts[place]]
    return stale


@both
def test_drafts_equal_those_of_a_fresh_drafter_that_is_told_of_the_same_rounds(name):
    assert count_stale_proposals(MAKERS[name], MAKERS[name]()) == 0


class NeverForgets(StatePerRequest):
    """Planted bug: the slot alone decides."""

    def of(self, sequence):
        if sequence.slot in self._held:
            return self._held[sequence.slot].state
        return super().of(sequence)


@both
def test_the_fresh_drafter_comparison_catches_stale_state(name):
    drafter = MAKERS[name]()
    drafter._states = NeverForgets(drafter._states._new_state)
    assert count_stale_proposals(MAKERS[name], drafter) > 0


def test_a_state_is_new_for_another_id_another_prompt_or_other_tokens_and_kept_otherwise():
    states = StatePerRequest(lambda sequence: object())
    first = make_sequence([1, 2, 3, 4], prompt_length=3)
    held = states.of(first)
    first.tokens.append(5)
    assert states.of(first) is held
    next_turn = make_sequence([1, 2, 3, 4, 5, 6])
    assert states.of(next_turn) is not held
    held = states.of(first)
    same_prompt_again = make_sequence([1, 2, 3])
    assert states.of(same_prompt_again) is not held
    held = states.of(first)
    assert states.of(make_sequence(first.tokens, prompt_length=3, id=1)) is not held
    held = states.of(first)
    assert states.of(make_sequence(first.tokens, prompt_length=3, id=1, slot=1)) is not held
    assert states.of(first) is held
