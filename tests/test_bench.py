"""`outrider bench`: what is decoded and in which order, what is counted, and the figures that are made of it."""

from __future__ import annotations

import runpy
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from checkpoints import byte_level_tokenizer, save_folder, save_tokenizer, tiny_model
from outrider.benching.asked import Prompt, built_in, check_built_in, check_lengths, from_file
from outrider.benching.figures import ALL, Interval, cells, expected, paired, predicted_seconds, quotient, totals
from outrider.benching.foretelling import check_here, check_precision, read_plan, with_plan
from outrider.benching.peers import Source, open_peers
from outrider.benching.prompts import PROMPTS
from outrider.benching.run import Grid, Job, Run, asked_of, first_difference, groups, in_turn, jobs, measure
from outrider.benching.ways import (
    PLAIN,
    Asked,
    EngineWay,
    Measured,
    Rounds,
    Strategy,
    WayFailed,
    engine_of,
    strategies,
)
from outrider.core import Verdict
from outrider.drafters import NoDrafter, SuffixDrafter
from outrider.engine import Engine
from outrider.errors import DrafterWarning, InvalidOption
from outrider.models.opening import open_model
from outrider.planning import plan as planning
from outrider.planning.kept import this_machine, this_model
from outrider.planning.pace import FixedPace
from outrider.rounds import Seconds
from outrider.rules import RULES
from toy import BrokenDrafter, ByteTokenizer, TableModel, rule_law

ROOT = Path(__file__).parent.parent
RHYME = b"row the boat, row the boat, "


def target(certainty=0.9):
    """Writes a rhyme over and over, whatever the prompt."""
    law = rule_law(ByteTokenizer.vocab_size, lambda context: RHYME[len(context) % len(RHYME)], certainty)
    return TableModel(ByteTokenizer.vocab_size, order=None, law=law)


def way(name, drafter=None, *, rule="point-mass", slots=3, model=None):
    drafter = NoDrafter() if drafter is None else drafter
    rule = RULES[rule] if isinstance(rule, str) else rule
    pace = FixedPace(0 if name == PLAIN else 4)
    engine = Engine(target() if model is None else model, drafter, rule, pace, slots=slots, context_length=400)
    return EngineWay(name, engine)


def prompts_of(**texts):
    return {kind: [Prompt(text, tuple(text.encode())) for text in own] for kind, own in texts.items()}


TWO_KINDS = prompts_of(chat=["Hi there!", "Sing.", "And again."], code=["def f(x):", "for i in"])


def quiet(*_):
    """Watches nothing."""


# ---------------------------------------------------------------- prompts


def words(text):
    return frozenset(text.lower().split())


def too_close(asked, known):
    """Prompts that share three quarters of their words with one that is known."""
    known = [words(text) for text in known]
    both = [(text, words(text)) for text in asked]
    return [text for text, own in both if any(len(own & k) > 0.75 * len(own | k) for k in known)]


def test_there_are_sixteen_different_prompts_of_each_of_six_kinds():
    assert list(PROMPTS) == ["chat", "summarise", "edit", "question", "maths", "code"]
    assert {kind: len(own) for kind, own in PROMPTS.items()} == dict.fromkeys(PROMPTS, 16)
    assert len({text for own in PROMPTS.values() for text in own}) == 96


def test_no_prompt_is_one_that_the_shipped_head_learnt_from_or_is_judged_on():
    learnt = runpy.run_path(str(ROOT / "tools" / "training_prompts.py"))["prompts"](6000, 0)
    judged = runpy.run_path(str(ROOT / "benchmarks" / "held_out.py"))["HELD_OUT"]
    asked = [text for own in PROMPTS.values() for text in own]
    known = [*learnt, *(text for own in judged.values() for text in own)]
    assert too_close(asked, known) == []
    assert too_close(["Why do cats really purr?"], known) == ["Why do cats really purr?"]


@pytest.mark.parametrize(
    ("typed", "batches", "count"),
    [(None, (1,), 10), (None, (1, 10), 10), (None, (12, 4), 12), (None, (16,), 16), (16, (1,), 16)],
)
def test_ten_prompts_of_each_kind_are_decoded_or_as_many_as_the_largest_batch_takes(typed, batches, count):
    assert check_built_in(PROMPTS, typed, batches) == count


@pytest.mark.parametrize(("option", "typed", "batches"), [("batch", None, (1, 17)), ("prompts_per_kind", 17, (1,))])
def test_more_prompts_than_there_are_of_a_kind_are_refused(option, typed, batches):
    with pytest.raises(InvalidOption, match=rf"{option} is 17; allowed: 1 to 16\. 16 prompts .* --prompts FILE"):
        check_built_in(PROMPTS, typed, batches)


def test_prompts_are_encoded_with_the_chat_template():
    (found,) = built_in(["maths"], 1, ByteTokenizer())["maths"]
    assert list(found.ids) == ByteTokenizer().encode_chat([{"role": "user", "content": PROMPTS["maths"][0]}])
    assert found.text == PROMPTS["maths"][0]


def test_own_prompts_are_one_kind_and_errors_name_the_option(tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text('{"prompt": "one"}\n{"messages": [{"role": "user", "content": "two"}]}\n{"prompt": "three"}\n')
    found = from_file(path, 2, ByteTokenizer())
    assert [len(own) for own in found.values()] == [2]
    path.write_text('{"prompt": "one"}\n{"text": "two"}\n')
    with pytest.raises(InvalidOption, match=r"prompts is .*line 2"):
        from_file(path, None, ByteTokenizer())


def test_a_prompt_that_does_not_fit_is_named_with_what_fits():
    prompts = prompts_of(chat=["short"], code=["fits", "x" * 41])
    check_lengths(prompts, 59, 100)
    with pytest.raises(
        InvalidOption, match=r"41 tokens in prompt 2 of kind code.*at most 40: a context of 100 less 60"
    ):
        check_lengths(prompts, 60, 100)
    with pytest.raises(InvalidOption, match=r"max_new_tokens is 100; allowed: 1 to 99"):
        check_lengths(prompts, 100, 100)


# ---------------------------------------------------------------- order


def test_groups_hold_every_prompt_and_fill_up_with_the_first_ones():
    assert groups(5, 1) == [(0,), (1,), (2,), (3,), (4,)]
    assert groups(5, 2) == [(0, 1), (2, 3), (4, 0)]
    assert groups(4, 4) == [(0, 1, 2, 3)]


GRID = Grid(temperatures=(0.0, 0.8), batches=(1, 2), max_new_tokens=8, repeats=2, seed=5)


def test_every_prompt_is_decoded_at_every_temperature_and_batch_as_often_as_asked():
    done = Counter(
        (job.kind, job.temperature, job.batch, place) for job in jobs(TWO_KINDS, GRID) for place in job.places
    )
    once = {key: count for key, count in done.items() if key[2] == 1}
    assert set(once.values()) == {2}
    assert len(once) == 5 * 2
    assert all(count >= 2 for count in done.values())


def test_a_run_that_is_stopped_early_has_seen_every_kind_temperature_and_batch():
    early = jobs(TWO_KINDS, GRID)[: len(TWO_KINDS) * 4]
    assert {(job.kind, job.temperature, job.batch) for job in early} == {
        (kind, temperature, batch) for kind in TWO_KINDS for temperature in (0.0, 0.8) for batch in (1, 2)
    }
    assert all(job.repeat == 0 and job.places[0] == 0 for job in early)


def test_a_batch_larger_than_a_kind_is_refused():
    with pytest.raises(InvalidOption, match="batch is 3; allowed: 1 to 2, the number of prompts of kind code"):
        jobs(TWO_KINDS, Grid(batches=(3,)))


def test_ways_take_turns_and_every_one_begins_as_often_as_the_others_in_every_cell():
    ways = [way(name) for name in (PLAIN, "a", "b")]
    prompts = prompts_of(**{kind: ["x", "y", "z"] for kind in ("k1", "k2", "k3", "k4", "k5", "k6")})
    first, pairs = Counter(), Counter()
    for job in jobs(prompts, Grid(temperatures=(0.0, 0.8))):
        order = [each.name for each in in_turn(ways, job)]
        assert sorted(order) == sorted([PLAIN, "a", "b"])
        first[job.kind, job.temperature, order[0]] += 1
        pairs[order[0]] += 1
    assert set(first.values()) == {1}
    assert len(first) == 6 * 2 * 3
    assert set(pairs.values()) == {12}


def test_a_way_that_takes_no_batch_is_left_out_of_it():
    ways = [way(PLAIN), way("single", slots=1)]
    assert [each.name for each in in_turn(ways, Job("chat", (0, 1), 0.0, 0, 0))] == [PLAIN]
    assert len(in_turn(ways, Job("chat", (0,), 0.0, 0, 0))) == 2


def test_all_ways_get_the_same_seeds_and_repeats_get_others():
    one, two = (asked_of(Job("chat", (0, 1), 0.8, repeat, 0), TWO_KINDS, GRID) for repeat in (0, 1))
    assert one.seeds == (5, 6)
    assert two.seeds == (1005, 1006)
    assert one.prompts == two.prompts == tuple(p.ids for p in TWO_KINDS["chat"][:2])


# ---------------------------------------------------------------- what is measured


def test_a_run_makes_exactly_the_tokens_that_are_asked_for_and_counts_its_rounds():
    prompts = tuple(p.ids for p in TWO_KINDS["chat"])
    found = way("suffix", SuffixDrafter()).run(Asked(prompts, (0, 1, 2), 0.0, 40))
    assert [len(ids) for ids in found.token_ids] == [40, 40, 40]
    rounds = found.rounds
    assert found.decoded == 120 == rounds.rounds + rounds.accepted
    assert sum(rows * count for rows, count in rounds.rows.items()) == rounds.rounds + rounds.drafted
    assert sum(rounds.rows.values()) == rounds.steps < 40
    assert 0 < found.first_token_seconds < found.seconds
    assert found.decoding_seconds == rounds.seconds.total < found.seconds


def test_stop_tokens_do_not_end_a_text():
    law = rule_law(ByteTokenizer.vocab_size, lambda context: ByteTokenizer.eos_id)
    model = TableModel(ByteTokenizer.vocab_size, order=None, law=law)
    found = way(PLAIN, model=model).run(Asked((tuple(b"hi"),), (0,), 0.0, 9))
    assert found.token_ids == ((ByteTokenizer.eos_id,) * 9,)


def test_drafts_that_cannot_be_used_are_counted_with_the_reason():
    broken = way("broken", BrokenDrafter("raises", ByteTokenizer.vocab_size))
    with pytest.warns(DrafterWarning):
        found = broken.run(Asked((tuple(b"hi"),), (0,), 0.0, 9)).rounds
    assert found.broken > 0
    assert "the drafter failed" in found.reason


def test_what_is_drafted_may_suit_the_batch_although_seeds_are_given():
    seen = []

    class Watching(SuffixDrafter):
        def propose(self, sequences, budgets):
            seen.extend(sequence.seeded for sequence in sequences)
            return super().propose(sequences, budgets)

    prompts = tuple(p.ids for p in TWO_KINDS["chat"])
    texts = [way("suffix", Watching()).run(Asked(prompts, (4, 5, 6), 0.8, 20)).token_ids for _ in range(2)]
    assert set(seen) == {False}
    assert texts[0] == texts[1]


def test_strategies_are_named_once_and_auto_is_written_out():
    assert [s.name for s in strategies(["auto", "suffix", "ngram"], "some/model")] == ["suffix", "ngram"]
    assert [s.name for s in strategies(["ngram"], "some/model", 3)] == ["ngram, k=3"]
    assert strategies(["auto"], "smollm2")[0].drafter.startswith("suffix+eagle:smollm2")


# ---------------------------------------------------------------- equality


class KeepsEverything:
    """A planted fault: every drafted token is accepted."""

    name, lossless, proposals, trees = "keeps-everything", True, frozenset({"point_mass"}), False

    def verify(self, draft, target_probs, coins, position):
        return Verdict(tuple(range(len(draft))), int(target_probs[len(draft)].argmax()))


def greedy_cells(rule):
    """Of a suffix drafter whose guesses are often wrong."""
    model = target()
    fast = way("suffix", SuffixDrafter(min_match=1, offset=1), rule=rule, model=model)
    outcome = measure([way(PLAIN, model=model), fast], TWO_KINDS, Grid(max_new_tokens=40, batches=(1, 2)), quiet)
    return [cell for cell in cells(outcome.runs) if cell.way == "suffix"]


def test_greedy_texts_are_compared_with_plain_decoding_and_sampled_ones_are_not():
    for cell in greedy_cells("point-mass"):
        if cell.temperature == 0:
            assert cell.equality.equal == cell.equality.compared == cell.runs
            assert cell.equality.first_difference is None
        else:
            assert cell.equality is None


def test_a_rule_that_keeps_wrong_tokens_is_caught():
    greedy = [cell for cell in greedy_cells(KeepsEverything()) if cell.temperature == 0]
    assert len(greedy) == 2 * 3
    assert all(cell.equality.equal == 0 < cell.equality.compared for cell in greedy)
    assert all(1 < cell.equality.first_difference <= 40 for cell in greedy)


@pytest.mark.parametrize(("plain", "other", "place"), [("abc", "abc", None), ("abc", "axc", 2), ("abc", "ab", 3)])
def test_the_first_difference_is_counted_from_1(plain, other, place):
    assert first_difference(plain.encode(), other.encode()) == place


# ---------------------------------------------------------------- interrupts and failures


def press_before(count):
    """Presses Ctrl-C before a run."""
    calls = []

    def told(what, done, in_all):
        calls.append((what, done, in_all))
        if what.startswith("measuring") and done == count:
            signal.raise_signal(signal.SIGINT)

    return told, calls


def test_ctrl_c_keeps_what_was_measured_and_marks_it():
    ways = [way(PLAIN), way("suffix", SuffixDrafter())]
    told, calls = press_before(5)
    outcome = measure(ways, TWO_KINDS, Grid(temperatures=(0.0,), max_new_tokens=12), told)
    assert outcome.partial
    assert len(outcome.runs) == 5
    assert calls[-1][1:] == (5, 10)
    assert all(each.engine.num_unfinished == 0 for each in ways)
    assert {cell.kind for cell in cells(outcome.runs)} == {"chat", "code", ALL}


def test_ctrl_c_in_the_middle_of_a_round_leaves_no_request_behind():
    class Pressing(SuffixDrafter):
        def propose(self, sequences, budgets):
            if len(sequences[0].tokens) > 30:
                raise KeyboardInterrupt
            return super().propose(sequences, budgets)

    ways = [way(PLAIN), way("suffix", Pressing())]
    outcome = measure(ways, TWO_KINDS, Grid(temperatures=(0.0,), max_new_tokens=40), quiet)
    assert outcome.partial
    assert all(each.engine.num_unfinished == 0 for each in ways)
    assert {run.way for run in outcome.runs} <= {PLAIN}


class Failing:
    """A way of another engine that fails in its third run."""

    name, most = "peer", 1

    def __init__(self):
        self.runs = 0

    def run(self, asked):
        self.runs += 1
        if self.runs == 3:
            raise WayFailed("it is tired")
        ids = (tuple(range(asked.max_new_tokens)),)
        return Measured(ids, 1.0, 0.1, asked.max_new_tokens - 1, 0.9)


def test_a_way_that_fails_is_left_out_from_then_on_and_named():
    peer = Failing()
    outcome = measure([way(PLAIN), peer], TWO_KINDS, Grid(temperatures=(0.0,), max_new_tokens=12), quiet)
    assert outcome.failed == {"peer": "it is tired"}
    assert not outcome.partial
    assert peer.runs == 3
    assert Counter(run.way for run in outcome.runs) == {PLAIN: 5, "peer": 1}  # one run of the peer warmed it up


def test_our_own_faults_are_not_hidden():
    class Faulty:
        name, most = "ours", 1

        def run(self, asked):
            raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        measure([way(PLAIN), Faulty()], TWO_KINDS, Grid(max_new_tokens=4), quiet)


# ---------------------------------------------------------------- figures


def made(name, kind, place, seconds, *, tokens=10, repeat=0, rounds=None, temperature=0.0):
    """A run of one prompt."""
    measured = Measured((tuple(range(tokens)),), seconds + 1, 0.5 + place, tokens, seconds, rounds)
    return Run(name, Job(kind, (place,), temperature, repeat, 0), measured)


def cell_of(runs, name, kind):
    return next(cell for cell in cells(runs) if (cell.way, cell.kind) == (name, kind))


RUNS = [
    *(made(PLAIN, "chat", place, seconds) for place, seconds in enumerate((1.0, 2.0, 4.0))),
    *(made("fast", "chat", place, seconds) for place, seconds in enumerate((0.5, 2.0, 1.0))),
    made(PLAIN, "code", 0, 3.0),
    made("fast", "code", 0, 1.0),
]


def test_speeds_are_totals_over_totals_and_medians_over_runs():
    plain, fast = (cell_of(RUNS, name, "chat") for name in (PLAIN, "fast"))
    assert plain.tokens_per_second == pytest.approx(30 / 7)
    assert plain.median_tokens_per_second == 5.0
    assert plain.whole_tokens_per_second == pytest.approx(30 / 10)
    assert plain.first_token_seconds == 1.5
    assert fast.speedup.mid == pytest.approx(7 / 3.5)
    assert fast.speedup_of_medians == 2.0
    assert plain.speedup is None
    assert cell_of(RUNS, "fast", ALL).speedup.mid == pytest.approx(10 / 4.5)


def test_a_speed_up_counts_only_what_both_did():
    runs = [*RUNS, made(PLAIN, "chat", 3, 100.0)]
    assert cell_of(runs, "fast", "chat").speedup.mid == pytest.approx(7 / 3.5)
    alone = [run for run in RUNS if run.way == "fast"]
    assert cell_of(alone, "fast", "chat").speedup is None


def test_repeats_of_a_prompt_are_one_group():
    runs = [*RUNS, made(PLAIN, "code", 0, 1.0, repeat=1), made("fast", "code", 0, 1.0, repeat=1)]
    cell = cell_of(runs, "fast", "code")
    assert (cell.groups, cell.runs) == (1, 2)
    assert cell.speedup == Interval(2.0)


def pairs_of(kinds):
    """Pairs of a way and plain decoding from kind -> speed-ups of its prompts."""
    runs = [
        made(name, kind, place, 1.0 if name == "fast" else ratio)
        for kind, ratios in kinds.items()
        for place, ratio in enumerate(ratios)
        for name in ("fast", PLAIN)
    ]
    own, plain = (totals(run for run in runs if run.way == name) for name in ("fast", PLAIN))
    return paired(own, plain)


def test_the_interval_of_prompts_that_do_not_differ_has_no_width():
    found = quotient(pairs_of({"chat": [2.0] * 5}))
    assert (found.low, found.mid, found.high) == pytest.approx((2.0, 2.0, 2.0))


def test_kinds_are_not_drawn_against_each_other():
    found = quotient(pairs_of({"chat": [1.0] * 5, "edit": [4.0] * 5}))
    assert (found.low, found.mid, found.high) == pytest.approx((2.5, 2.5, 2.5))
    mixed = quotient(pairs_of({"one": [1.0] * 5 + [4.0] * 5}))
    assert mixed.low < 2.0
    assert mixed.high > 3.0


def test_the_interval_narrows_with_the_root_of_the_number_of_prompts():
    few, many = (quotient(pairs_of({"chat": [1.0, 3.0] * count})) for count in (8, 128))
    assert (few.high - few.low) / (many.high - many.low) == pytest.approx(4, rel=0.15)
    assert few == quotient(pairs_of({"chat": [1.0, 3.0] * 8}))
    # The mean of 16 coins of 1 and 3 has a standard deviation of 1 / 4.
    assert few.high - few.low == pytest.approx(2 * 1.96 / 4, rel=0.15)


def test_a_single_prompt_has_no_interval():
    assert quotient(pairs_of({"chat": [2.0], "code": [3.0]})) == Interval(2.5)
    assert quotient([]) is None


def rounds_of(rows, *, unit=0.01, verify=0.001, other=0.002, draft=0.0):
    """Rounds of one sequence whose forwards cost 1 + rows / 10 units, by the number of rows of each."""
    seconds = Seconds(draft, sum(unit * (1 + n / 10) for n in rows), verify * sum(rows), other * len(rows))
    counted = dict(Counter(rows))
    return Rounds(len(rows), len(rows), sum(rows) - len(rows), 0, counted, seconds)


def test_rounds_that_cost_what_the_costs_say_are_predicted_exactly():
    plain, fast = rounds_of([1] * 40), rounds_of([1, 5, 5, 3] * 3, draft=0.05)
    cost = lambda rows: 7 * (1 + rows / 10)  # noqa: E731 - in any unit
    assert predicted_seconds(fast, plain, cost) == pytest.approx(fast.seconds.total)
    assert predicted_seconds(fast, plain, lambda rows: 1.0) < fast.seconds.total
    runs = [
        made(name, "chat", place, rounds.seconds.total, rounds=rounds)
        for place in range(3)
        for name, rounds in ((PLAIN, plain), ("fast", fast))
    ]
    (cell,) = (cell for cell in cells(runs, lambda rows, sequences: cost(rows)) if cell.way == "fast")
    assert cell.predicted.mid == pytest.approx(cell.speedup.mid)
    assert (cell.acceptance_length, cell.rows_per_round) == (pytest.approx(10 / 12), pytest.approx(42 / 12))


def test_without_rounds_nothing_is_predicted():
    runs = [made(PLAIN, "chat", 0, 2.0, rounds=rounds_of([1] * 10)), made("peer", "chat", 0, 1.0)]
    (cell,) = (cell for cell in cells(runs, lambda rows: 1.0) if cell.way == "peer")
    assert cell.speedup.mid == 2.0
    assert cell.predicted is None
    assert cell.acceptance_length is None
    assert expected(paired(totals(runs[1:]), totals(runs[:1])), lambda rows: 1.0) == []


# ---------------------------------------------------------------- plans


def a_plan(tmp_path, *found, target="toy"):
    plan = planning.Plan({"target": target}, this_machine(), this_model(target), "float32", 3, cells=found)
    path = tmp_path / "plan.json"
    path.write_text(planning.to_json(plan))
    return read_plan(path)


def foretold(drafter, k, mid, temperature=0.0):
    interval = planning.Interval(mid - 0.1, mid, mid + 0.1)
    return planning.Cell(drafter, k, temperature, 1, interval, interval)


def test_what_a_plan_foretold_stands_beside_all_kinds(tmp_path):
    plan = a_plan(tmp_path, foretold("fast", 2, 1.1), foretold("fast", "auto", 1.5), foretold("slow", "auto", 0.5))
    found = with_plan(cells(RUNS), plan, [Strategy("fast")], ["chat", "code"], "toy")
    assert {(cell.way, cell.kind): cell.planned for cell in found if cell.planned} == {
        ("fast", ALL): Interval(1.5, 1.4, 1.6)
    }
    fixed = with_plan(cells(RUNS), plan, [Strategy("fast", 3)], ["chat", "code"], "toy")
    assert all(cell.planned is None for cell in fixed)


def test_a_plan_of_something_else_is_refused(tmp_path):
    plan = a_plan(tmp_path)
    check_here(plan, "toy", None)
    check_precision(plan, "float32")
    with pytest.raises(InvalidOption, match=r"plan is 'for target toy'; allowed: one for target other\. Make one"):
        check_here(plan, "other", None)
    with pytest.raises(InvalidOption, match="one for precision q4"):
        check_precision(plan, "q4")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"machine": {**this_machine(), "processor": "Other"}}, r"of another machine \(processor Other, here "),
        ({"machine": {**this_machine(), "outrider": "0.0.1"}}, r"of another machine \(outrider 0\.0\.1, here "),
        ({"machine": {**this_machine(), "threads": "77"}}, r"of another machine \(threads 77, here "),
        ({"model": {"model.safetensors": [1, 2]}}, r"of another model \(model\.safetensors is another one\)"),
    ],
)
def test_a_plan_of_another_machine_version_or_model_is_refused(changes, message, tmp_path):
    with pytest.raises(InvalidOption, match=rf"plan is .{message}.*; allowed: one of this machine.* Make one"):
        check_here(replace(a_plan(tmp_path), **changes), "toy", None)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", '{"version": 0}', "\udcff", 100_000 * "[", '{"version": 1, "machine": 3}']
)
def test_what_is_no_plan_is_refused(text, tmp_path):
    (tmp_path / "plan.json").write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(InvalidOption, match=r"plan is .*; allowed: a plan as JSON\..*Make one"):
        read_plan(tmp_path / "plan.json")


# ---------------------------------------------------------------- one target, and other engines on it


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("target")
    save_folder(tiny_model("llama", eos_token_id=9), path)
    return save_tokenizer(byte_level_tokenizer(), path)


@pytest.fixture(scope="module")
def opened(folder):
    return open_model(str(folder), "float32", torch.device("cpu"), None)


PROMPT = (5, 6, 7, 8, 5, 6, 7)


def test_all_strategies_share_one_target(opened, monkeypatch, tmp_path):
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    plain, suffix, early = (
        engine_of(each, opened, 2, 60)
        for each in (Strategy("none"), Strategy("suffix+ngram"), Strategy("early-exit:1", 3))
    )
    assert plain.target is suffix.target is opened.model
    assert early.target.decoder is opened.model
    texts = [EngineWay("x", each).run(Asked((PROMPT,), (0,), 0.0, 30)).token_ids for each in (plain, suffix, early)]
    assert texts[0] == texts[1] == texts[2]
    assert EngineWay("x", plain).run(Asked((PROMPT,), (0,), 0.0, 30)).rounds.drafted == 0


def source(folder, opened, draft=None):
    return Source(folder, opened, 60, 1, draft)


def test_transformers_makes_plain_decodings_text_of_the_same_weights(folder, opened):
    plain = EngineWay(PLAIN, engine_of(Strategy("none"), opened, 1, 60))
    asked = Asked((PROMPT,), (0,), 0.0, 30)
    wanted = plain.run(asked).token_ids
    peers = {peer.name: peer for peer in open_peers(source(folder, opened, str(folder)))}
    for name in ("transformers", "transformers prompt lookup", "transformers assistant"):
        found = peers[name].way.run(asked)
        assert found.token_ids == wanted, name
        assert 0 < found.first_token_seconds < found.seconds
        assert found.decoded < 30
        sampled = peers[name].way.run(Asked((PROMPT,), (1,), 1.0, 30)).token_ids
        assert sampled == peers[name].way.run(Asked((PROMPT,), (1,), 1.0, 30)).token_ids != wanted


def test_what_is_not_there_is_named_and_is_no_error(folder, opened, tmp_path, monkeypatch):
    (tmp_path / "llama_cpp.py").write_text("raise ImportError('libllama.so: cannot open\\nshared object file')")
    (tmp_path / "openvino_genai.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    peers = {peer.name: peer for peer in open_peers(source(folder, opened))}
    assert {name: peer.state for name, peer in peers.items() if peer.state != "ready"} == {
        "transformers assistant": "missing",
        "llama.cpp": "missing",
        "llama.cpp prompt lookup": "missing",
        "openvino": "missing",
        "openvino prompt lookup": "missing",
    }
    assert "add --drafter model:ID" in peers["transformers assistant"].reason
    assert peers["openvino"].reason == "It reads .gguf files, and this target is none."
    gguf = Source(tmp_path / "model.gguf", opened, 60, 1)
    peers = {peer.name: peer for peer in open_peers(gguf)}
    assert peers["llama.cpp"].state == "failed"
    assert peers["llama.cpp"].reason == "ImportError: libllama.so: cannot open shared object file"


LLAMA = """
import itertools
made = []
class Llama:
    def __init__(self, path, n_ctx, draft_model, verbose, n_threads, n_threads_batch):
        self.calls = [(n_ctx, draft_model is not None, verbose, n_threads, n_threads_batch)]
        made.append(self)
    def reset(self): self.calls.append("reset")
    def set_seed(self, seed): self.calls.append(seed)
    def generate(self, tokens, **law):
        self.calls.append((tokens, law))
        yield from itertools.count(100)
"""


def test_llama_cpp_is_driven_token_by_token_from_an_empty_cache(opened, tmp_path, monkeypatch):
    (tmp_path / "llama_cpp").mkdir()
    (tmp_path / "llama_cpp" / "__init__.py").write_text(LLAMA)
    lookup = "class LlamaPromptLookupDecoding:\n    def __init__(self, num_pred_tokens, max_ngram_size): pass\n"
    (tmp_path / "llama_cpp" / "llama_speculative.py").write_text(lookup)
    monkeypatch.syspath_prepend(tmp_path)
    peers = {peer.name: peer for peer in open_peers(Source(tmp_path / "model.gguf", opened, 60, 2))}
    found = peers["llama.cpp prompt lookup"].way.run(Asked((PROMPT,), (2**40 + 3,), 0.5, 4))
    assert found.token_ids == ((100, 101, 102, 103),)
    assert found.decoded == 3
    import llama_cpp

    settings, reset, seed, (tokens, law) = llama_cpp.made[-1].calls
    assert settings == (63, True, False, 2, 2)
    assert (reset, seed, tokens) == ("reset", 3, list(PROMPT))
    assert law == {"temp": 0.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0}


def test_a_peer_that_ends_early_has_failed():
    from outrider.benching.peers import PeerWay

    def decode(asked, read):
        read(1)
        return [1, 2]

    with pytest.raises(WayFailed, match="it made 2 tokens where 5 were asked for"):
        PeerWay("peer", decode).run(Asked((PROMPT,), (0,), 0.0, 5))
