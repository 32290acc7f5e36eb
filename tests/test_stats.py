"""Acceptance and usage figures, against counts made by hand."""

from __future__ import annotations

import math

import pytest

from engine_runs import all_drafters, finish, toy_engine
from outrider.core import Draft
from outrider.drafters import NgramDrafter
from outrider.errors import DrafterWarning
from outrider.generation import TextEngine
from outrider.rounds import Round, Seconds
from outrider.stats import collect
from toy import BrokenDrafter, ByteTokenizer, TableModel, make_sequence, random_laws, rule_law

V, PROMPT = 6, [1, 2]
TARGET = TableModel(V, order=3, law=random_laws(V, seed=12, sharpness=2))


def stats_of(rounds):
    settings = {"drafter": "d", "rule": "r", "lossless": True, "precision": "float32", "prefill_seconds": 0.5}
    return collect(rounds, **settings)


class Accepts:
    """Drafts five tokens a round, of which the first few are right: as many as the script says, round by round."""

    name, proposal = "scripted", "point_mass"

    def __init__(self, script):
        self.script = list(script)

    def propose(self, sequences, budgets):
        right = self.script.pop(0) if self.script else 0
        return [self._propose(s, budget, right) for s, budget in zip(sequences, budgets, strict=True)]

    def _propose(self, sequence, budget, right):
        text = TARGET.greedy(sequence.tokens, budget)
        return Draft.chain([t if i < right else (t + 1) % V for i, t in enumerate(text)])


def test_the_figures_of_three_rounds_counted_by_hand():
    # Known fault 61: accepted lengths [3, 0, 5] with k = 5.
    engine = toy_engine(TARGET, Accepts([3, 0, 5]), k=5)
    sequence = engine.add(PROMPT, max_new_tokens=100)
    rounds = [r for _ in range(3) for r in engine.step()]
    assert [(r.num_drafted, r.num_accepted) for r in rounds] == [(5, 3), (5, 0), (5, 5)]
    assert sequence.num_new_tokens == 11
    stats = stats_of(rounds)
    assert (stats.num_rounds, stats.num_new_tokens) == (3, 11)
    assert (stats.num_draft_tokens, stats.num_accepted_tokens) == (15, 8)
    assert stats.acceptance_rate == pytest.approx(8 / 15)
    assert stats.mean_acceptance_length == pytest.approx(11 / 3)
    table = [(p.position, p.cumulative, p.conditional) for p in stats.acceptance]
    two, half = pytest.approx(2 / 3), pytest.approx(1 / 2)
    third = pytest.approx(1 / 3)
    assert table == [(1, two, two), (2, two, 1.0), (3, two, 1.0), (4, third, half), (5, third, 1.0)]


def test_drafts_of_different_lengths_count_where_they_reached():
    sequence = make_sequence(PROMPT)
    rounds = [Round(sequence, (0,) * (a + 1), d, a, depth=d) for d, a in [(4, 4), (2, 1), (1, 0), (0, 0), (3, 2)]]
    stats = stats_of(rounds)
    assert (stats.num_draft_tokens, stats.num_accepted_tokens, stats.num_new_tokens) == (10, 7, 12)
    table = [(p.cumulative, p.conditional) for p in stats.acceptance]
    assert table == [(3 / 4, 3 / 4), (2 / 3, 2 / 3), (1 / 2, 1 / 2), (1.0, 1.0)]


def test_a_position_that_was_never_reached_has_no_conditional_rate():
    rounds = [Round(make_sequence(PROMPT), (0,), 3, 0, depth=3)] * 2
    table = [(p.cumulative, p.conditional) for p in stats_of(rounds).acceptance]
    assert table == [(0.0, 0.0), (0.0, None), (0.0, None)]


def test_what_a_stop_cut_away_is_not_accepted():
    baseline = TARGET.greedy(PROMPT, 20)
    place = next(i for i in (2, 3, 4) if baseline[i] not in baseline[:i])
    engine = toy_engine(TARGET, Accepts([5]), k=5)
    engine.add(PROMPT, stop_ids=[baseline[place]], max_new_tokens=20)
    (rounds,) = finish(engine).values()
    stats = stats_of(rounds)
    assert stats.num_new_tokens == stats.num_accepted_tokens == stats.num_draft_tokens == place + 1
    assert stats.mean_acceptance_length == place + 1


@pytest.mark.parametrize(
    ("drafter", "k", "limit"), [("none", 4, 10), ("ngram", 0, 10), ("ngram", 4, 1), ("model", 0, 10), ("model", 4, 1)]
)
def test_without_drafts_there_is_no_acceptance_rate(drafter, k, limit):
    # Known fault 17.
    engine = toy_engine(TARGET, all_drafters(TARGET, 1, [])[drafter](), k=k)
    engine.add(PROMPT, max_new_tokens=limit)
    (rounds,) = finish(engine).values()
    stats = stats_of(rounds)
    assert (stats.num_draft_tokens, stats.num_accepted_tokens, stats.acceptance) == (0, 0, ())
    assert stats.acceptance_rate is None
    assert stats.mean_acceptance_length == 1.0


def test_prompt_lookup_on_a_text_without_repeats_drafts_nothing():
    counting = TableModel(64, order=1, law=rule_law(64, lambda context: (context[-1] + 1) % 64))
    engine = toy_engine(counting, NgramDrafter())
    engine.add([0], max_new_tokens=40)
    (rounds,) = finish(engine).values()
    assert stats_of(rounds).acceptance_rate is None


def test_rounds_without_a_draft_do_not_lower_the_rate_of_the_others():
    sequence = make_sequence(PROMPT)
    drafted = [Round(sequence, (0, 0, 0), 2, 2, depth=2)] * 3
    assert stats_of([*drafted, *[Round(sequence, (0,))] * 5]).acceptance_rate == stats_of(drafted).acceptance_rate == 1


def test_no_rounds_at_all_give_no_figures_and_no_error():
    stats = stats_of([])
    assert (stats.num_rounds, stats.num_new_tokens, stats.acceptance) == (0, 0, ())
    assert stats.acceptance_rate is stats.mean_acceptance_length is stats.tokens_per_second is None


def test_seconds_add_up_by_part_and_tokens_per_second_leave_the_prefill_out():
    sequence = make_sequence(PROMPT)
    rounds = [Round(sequence, (0, 0), 1, 1, depth=1, seconds=Seconds(0.25, 0.5, 0.125, 0.125))] * 2
    stats = stats_of(rounds)
    assert stats.seconds == Seconds(0.5, 1.0, 0.25, 0.25)
    assert stats.seconds.total == 2.0
    assert stats.tokens_per_second == 2.0
    assert stats.prefill_seconds == 0.5


def test_real_rounds_take_time_in_every_part():
    engine = toy_engine(TARGET, all_drafters(TARGET, 1, [])["model"](), k=3)
    sequence = engine.add([1] * 50, max_new_tokens=10)
    (rounds,) = finish(engine).values()
    seconds = stats_of(rounds).seconds
    assert min(seconds.draft, seconds.target, seconds.verify, seconds.other) > 0
    assert math.isclose(seconds.total, seconds.draft + seconds.target + seconds.verify + seconds.other)
    assert sequence.prefill_seconds > 0


def test_broken_drafts_are_counted_with_the_last_reason():
    engine = toy_engine(TARGET, BrokenDrafter("raises", V), k=3)
    engine.add(PROMPT, max_new_tokens=5)
    with pytest.warns(DrafterWarning):
        (rounds,) = finish(engine).values()
    stats = stats_of(rounds)
    assert (stats.num_broken_drafts, stats.num_rounds) == (3, 5)
    assert stats.broken_draft == "RuntimeError: the drafter failed"
    assert stats.acceptance_rate is None


def test_a_sound_run_has_no_broken_drafts():
    stats = stats_of([Round(make_sequence(PROMPT), (0,), 2, 0, depth=2)])
    assert (stats.num_broken_drafts, stats.broken_draft) == (0, None)


@pytest.mark.parametrize("slots", [1, 3])
def test_the_text_engine_reports_the_rounds_of_each_request_alone(slots):
    target = TableModel(ByteTokenizer.vocab_size, order=1, law=rule_law(ByteTokenizer.vocab_size, lambda c: c[-1]))
    engine = TextEngine(toy_engine(target, NgramDrafter(), k=3, slots=slots), ByteTokenizer())
    limits = [4, 9, 17]
    results = [engine.generate("aaa", raw=True, max_new_tokens=limit) for limit in limits]
    together = [engine.add("aaa", raw=True, max_new_tokens=limit) for limit in limits]
    rounds = finish(engine.engine)
    for result, sequence in zip(results, together, strict=True):
        stats = engine.result(sequence, rounds[sequence]).stats
        for counts in (result.stats, stats):
            assert counts.num_new_tokens == len(result.token_ids) == sequence.max_new_tokens
            assert counts.num_rounds == -(-sequence.max_new_tokens // 4)
            assert counts.num_accepted_tokens == counts.num_draft_tokens == counts.num_new_tokens - counts.num_rounds
