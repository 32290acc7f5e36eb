"""Plans: acceptance that is known by construction, prices that equal the formulas, what is kept and what is advised."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from scipy.optimize import isotonic_regression
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine_runs import DrawsFromOneLaw, toy_engine
from outrider.drafters import build
from outrider.drafters.sharing import straight
from outrider.errors import InvalidOption
from outrider.models.opening import open_model
from outrider.planning import kept, pricing
from outrider.planning.job import Job, check_lengths, sampled
from outrider.planning.kept import Asked, find, keep
from outrider.planning.measure import LENGTHS, SHORTEST, chain_to_walk, measure
from outrider.planning.pace import AutoPace, FixedPace
from outrider.planning.plan import (
    AUTO,
    TREE,
    Cell,
    DraftCost,
    Interval,
    Plan,
    TargetCost,
    from_json,
    recommend,
    stops_paying,
    to_json,
)
from outrider.planning.pricing import DRAWS, DRIFT, Place, Sample, Steps, cell, drawn, played
from outrider.planning.speedup import RoundCost, emitted, speedup
from outrider.planning.timing import (
    Timed,
    draft_cost,
    few_wishes,
    interpolated,
    isotonic,
    noise,
    other_cost,
    target_cost,
    wishes,
)
from outrider.planning.walked import Guess, InCrowd, Text, acceptance, paced, replay, shortened, walk
from plan_runs import (
    OTHER_ROW,
    Always,
    RightAt,
    conditionals,
    constant,
    counting,
    job,
    prices,
    rounds,
    timed,
    true_forward,
    wish,
    written,
)
from toy import ScriptedDrafter, TableModel
from training_runs import toy_target


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))


def tokens_per_round(traces):
    guesses = [guess for trace in traces for guess in trace]
    return sum(guess.accepted + 1 for guess in guesses) / len(guesses)


def fixed(k):
    return InCrowd(FixedPace(k), 1)


# ---------------------------------------------------------------- walked


def both_ways(target, drafter, asked, k):
    """The rounds of a drafter, decoded and replayed."""
    walked = walk(toy_engine(target, drafter, k=k, slots=3), asked)
    found = replay(drafter, fixed(k), written(target, asked).written[0.0], asked, 0.0)
    return walked.traces[0.0], found.traces


@pytest.mark.parametrize("right", [0, 2, 4])
def test_a_drafter_of_known_acceptance_shows_it(right):
    target, prompt = counting(), [1, 2, 3]
    drafter = ScriptedDrafter([prompt + target.greedy(prompt, 60)], target.vocab_size, right=right)
    for traces in both_ways(target, drafter, wish([prompt], 31), 4):
        assert {guess.accepted for guess in traces[0]} == {right}
        found = acceptance(traces, "scripted", 4, 0.0, None)
        assert found.conditional == (1.0,) * right + ((0.0,) if right < 4 else ())
        assert tokens_per_round(traces) == 1 + right


WRONG_EVERY = 3
"""Places at which the drafter is wrong: every third."""


def judged_at_every_place(is_right, places, k):
    """Planted bug: expected tokens from drafts that are judged at all places of a text, as if rounds began anywhere."""
    accepted = [next((j for j in range(k) if not is_right(place + j)), k) for place in places]
    return 1 + sum(accepted) / len(accepted)


def test_rounds_are_walked_and_not_judged_at_every_place():
    target, prompt, k = counting(), [0, 1, 2], 2
    text = prompt + target.greedy(prompt, 80)
    drafter = RightAt(text, lambda place: place % WRONG_EVERY != 0, target.vocab_size)
    # The first draft fails at once, and every later round begins right behind a wrong place: it keeps both tokens.
    exact = [0] + [2] * 19
    for traces in both_ways(target, drafter, wish([prompt], 60), k):
        assert [guess.accepted for guess in traces[0]][:19] == exact[:19]
    teacher_forced = judged_at_every_place(drafter.is_right, range(3, 63), k)
    assert tokens_per_round(traces) == pytest.approx(3, abs=0.2)
    assert abs(teacher_forced - 3) > 0.9


def test_drawn_tokens_are_kept_as_often_as_both_laws_overlap():
    target_law, draft_law = np.array([0.5, 0.3, 0.1, 0.1]), np.array([0.1, 0.3, 0.5, 0.1])
    asked = wish([[0]] * 12, 150, [1.0])
    engine = toy_engine(constant(target_law), DrawsFromOneLaw(draft_law), rule="token", k=3, slots=12)
    found = acceptance(walk(engine, asked).traces[1.0], "one-law", 3, 1.0, None)
    alpha = np.minimum(target_law, draft_law).sum()
    for chance, tried in zip(found.conditional, found.tried, strict=True):
        assert abs(chance - alpha) < 4 * (alpha * (1 - alpha) / tried) ** 0.5


def test_a_replayed_point_mass_is_kept_with_the_targets_own_probability():
    target, asked = constant([0.6, 0.3, 0.1]), wish([[0]] * 12, 200, [1.0])
    texts = written(target, asked, slots=12).written[1.0]
    found = acceptance(replay(Always(0), fixed(3), texts, asked, 1.0).traces, "always", 3, 1.0, None)
    for chance, tried in zip(found.conditional, found.tried, strict=True):
        assert abs(chance - 0.6) < 4 * (0.24 / tried) ** 0.5
    greedy = written(target, wish([[0]], 50)).written[0.0]  # planted bug: texts of another temperature
    wrong = acceptance(replay(Always(0), fixed(3), greedy, wish([[0]], 50), 1.0).traces, "always", 3, 1.0, None)
    assert abs(wrong.conditional[0] - 0.6) > 0.3


LOOK_UPS = ("suffix:min_match=1,offset=1", "ngram", "suffix:branches=3,min_match=1,offset=1")


@pytest.mark.parametrize("typed", LOOK_UPS)
@pytest.mark.parametrize("k", [1, 3, None])
def test_replayed_rounds_are_those_that_the_engine_decodes(typed, k):
    target = TableModel(7, order=2, seed=3)
    asked = wish([[i, i + 1, i + 2, i + 1, i] for i in range(3)], 40)

    def pace():
        return InCrowd(AutoPace(verify=straight(0.08)), 4) if k is None else fixed(k)

    engine = toy_engine(target, build(typed), k=0, slots=3)
    engine.pace = pace()
    live = walk(engine, asked).traces[0.0]
    texts = written(target, asked).written[0.0]
    assert [[g._replace(source="") for g in t] for t in live] == replay(build(typed), pace(), texts, asked, 0.0).traces
    assert sum(guess.accepted for trace in live for guess in trace) > 5


def test_a_stop_ends_replayed_texts_as_it_ends_decoded_ones():
    target, prompt = counting(), [1, 2]
    asked = replace(wish([prompt], 40), stop_ids=frozenset({20}))
    text = prompt + target.greedy(prompt, 60)
    drafter = ScriptedDrafter([text], target.vocab_size)
    live = walk(toy_engine(target, drafter, k=4), asked)
    assert live.written[0.0] == [list(range(1, 21))]
    replayed = replay(drafter, fixed(4), live.written[0.0], asked, 0.0).traces
    assert tokens_per_round(live.traces[0.0]) == tokens_per_round(replayed) == 5


def test_one_long_chain_tells_of_shorter_ones():
    target, prompt = counting(), [1, 2, 3]
    drafter = ScriptedDrafter([prompt + target.greedy(prompt, 99)], target.vocab_size, right=3)
    (long,) = walk(toy_engine(target, drafter, k=6), wish([prompt], 41)).traces[0.0]
    for k in (1, 2, 4):
        (short,) = walk(toy_engine(target, drafter, k=k), wish([prompt], 41)).traces[0.0]
        assert {shortened(guess, k) for guess in long} == set(short[:-1])


def test_a_pace_is_asked_as_in_the_batch_that_is_planned():
    asked, costs = wish([[1]], 40), {1: 0.02, 16: 0.9}
    trace = [rounds(6, [1, 1, 2, 1] * 10)]

    def lengths(batch):
        verify = straight(costs[batch])
        pace = InCrowd(AutoPace(8, (0.5,), lambda sequences: 0.05, verify), batch)
        return [guess.depth for guess in paced(trace, pace, asked, 0.0)[0]]

    assert min(lengths(1)) > 0
    assert sum(lengths(16)) <= 8


@pytest.mark.parametrize(("per_token", "row", "longest"), [(0.0, 0.0, 8), (0.05, 0.0, 8), (0.3, 0.2, SHORTEST)])
def test_long_chains_are_walked_where_they_could_pay(per_token, row, longest):
    target = TargetCost(1, (1, 17), (1.0, 1.0 + 16 * row), 0.0, 10, 0.0)
    draft = DraftCost("x", 0.0, 1, (0, 1, 3), (0.0, per_token, 3 * per_token))
    assert chain_to_walk(a_plan(targets=(target,)), [draft]) == longest


# ---------------------------------------------------------------- priced


@pytest.mark.parametrize(("k", "accepted"), [(1, [0, 1, 1]), (2, [0, 1, 2, 2]), (2, [2]), (1, [0])])
@pytest.mark.parametrize("per_token", [0.0, 0.1])
def test_a_priced_walk_equals_the_formula(k, accepted, per_token):
    costs = prices(per_token=per_token, source="x")
    made = sum(accepted) + len(accepted)
    found = cell(Place("x", k, 0.0, 1), [rounds(k, accepted, "x")], costs, Sample(("a",), 10 * made))
    cost = RoundCost(
        verify=[true_forward(1, 0) + OTHER_ROW, true_forward(2, 1) + 2 * OTHER_ROW, true_forward(3, 1) + 3 * OTHER_ROW],
        per_token=per_token,
    )
    alphas = [float(chance) for chance in conditionals(k, accepted)]
    alphas += [0.0] * (k - len(alphas))
    assert found.tokens.mid == pytest.approx(emitted(alphas, k))
    assert found.speedup.mid == pytest.approx(speedup(alphas, cost, k))
    wrong = prices(per_token=per_token, source="x", shifted=1)  # planted bug
    shifted = cell(Place("x", k, 0.0, 1), [rounds(k, accepted, "x")], wrong, Sample(("a",), 10 * made))
    assert abs(shifted.speedup.mid - found.speedup.mid) > 0.01


def brute_force(traces, num_tokens, batch, per_token, look_up):
    """Seconds of one batch that is begun at once, step by step."""
    left, places, total = [num_tokens] * len(batch), [0] * len(batch), 0.0
    while max(left) > 0:
        alive = [i for i, rest in enumerate(left) if rest > 0]
        now = {i: traces[batch[i]][places[i] % len(traces[batch[i]])] for i in alive}
        drafting = [guess for guess in now.values() if guess.nodes > 0]
        rows = len(alive) + sum(guess.nodes for guess in drafting)
        costly = [guess.depth for guess in drafting if guess.source == "x"]
        total += true_forward(rows, len(drafting)) + OTHER_ROW * rows
        total += look_up * len(alive) + per_token * max(costly, default=0)
        for i in alive:
            left[i], places[i] = left[i] - now[i].accepted - 1, places[i] + 1
    return total


def test_a_ragged_batch_costs_what_its_steps_cost_one_by_one():
    rng = np.random.default_rng(0)
    traces = [
        [Guess(k := int(rng.integers(0, 3)), k, int(rng.integers(0, k + 1)), ("x", "")[i % 2]) for _ in range(15)]
        for i in range(4)
    ]
    batches = rng.integers(4, size=(5, 3))
    costs = prices(batches=(1, 2, 3), per_token=0.25, look_up=0.0625, source="x")
    found = costs.seconds(played(traces, 20, ["x"]).together(batches)).sum(-1)
    assert found == pytest.approx([brute_force(traces, 20, list(batch), 0.25, 0.0625) for batch in batches])


def test_plain_decoding_is_a_row_for_each_sequence():
    costs = prices(batches=(1, 4), look_up=1.0, per_token=1.0, source="x")
    for batch in (1, 2, 4):
        assert costs.plain(batch) == pytest.approx(true_forward(batch, 0) + OTHER_ROW * batch)


def test_samples_have_batches_of_one_kind_in_which_all_texts_of_a_draw_are_as_often():
    kinds = ("a", "b", "a", "b", "b")
    found = drawn(Sample(kinds, 10), 4)
    assert found.shape[0] == DRAWS
    assert all(len({kinds[text] for text in batch}) == 1 for sample in found for batch in sample)
    assert {len({kinds[batch[0]] for batch in sample}) for sample in found} == {2}
    alone = drawn(Sample(("a",) * 6, 10), 1)
    assert alone.shape == (DRAWS, 6, 1)
    assert {tuple(sorted(sample[:, 0])) for sample in alone} != {tuple(range(6))}
    each_its_own = drawn(Sample(tuple("abc"), 10), 2)  # nothing to draw among, unless they count as one kind
    assert set(each_its_own.flat) == {0, 1, 2}


def test_intervals_widen_with_what_prompts_differ_in_and_with_noise():
    alike, apart = [rounds(2, [1])] * 6, [rounds(2, [0]), rounds(2, [2])] * 3
    costs = prices()
    noisy = replace(costs, targets=tuple(replace(target, noise=0.1) for target in costs.targets))
    widths = [
        (found := cell(Place("x", 2, 0.0, 1), traces, with_costs, Sample(("a",) * 6, 60)).speedup).high / found.low
        for traces, with_costs in ((alike, costs), (alike, noisy), (apart, costs))
    ]
    assert widths[0] == pytest.approx(np.exp(2 * 1.959964 * DRIFT))
    assert widths[1] == pytest.approx(np.exp(2 * 1.959964 * (DRIFT**2 + 2 * 0.1**2) ** 0.5))
    assert widths[2] > widths[0]


# ---------------------------------------------------------------- timed


@pytest.mark.parametrize("batch", [1, 2, 4, 5])
def test_costs_are_recovered_from_steps(batch):
    steps = [timed(wanted) for wanted in wishes(batch) for _ in range(5)]
    target = target_cost(steps, batch, 10)
    other = other_cost([timed(wanted) for wanted in few_wishes(batch)], 0.0, batch)
    costs = pricing.Prices((target,), (other,), {})
    for drafting, k in product(range(batch + 1), (1, 2, 3)):
        rows = batch + drafting * k
        step = Steps(np.array(batch), np.array(rows), np.array(drafting), {})
        wanted = true_forward(rows, drafting) + OTHER_ROW * rows
        assert float(costs.seconds(step)) == pytest.approx(wanted), (drafting, k)


@pytest.mark.parametrize("slower", [1.0, 1.5])
def test_drafting_is_timed_relative_to_the_target(slower):
    """The machine may be slower when drafts are timed than it was when the target was."""
    batch = 4
    target = target_cost([timed(wanted) for wanted in wishes(batch)], batch, 10)
    other = other_cost([timed(wanted) for wanted in wishes(batch)], 0.0, batch)
    steps = [timed((k,) * batch, draft=0.5 * k, slower=slower, extra=0.0625) for k in (0, 1, 4)]
    found = draft_cost(steps, "x", target, other)
    assert (found.depths, found.seconds) == ((0, 1, 4), pytest.approx((0, 0.5, 2.0)))
    trees = [replace(steps[2], depth=depth, draft=slower * (0.25 + 0.5 * depth)) for depth in (1, 2, 2, 5)]
    by_depth = draft_cost([steps[0], *trees], "x", target, other)
    assert (by_depth.depths, by_depth.seconds) == ((0, 1, 5), pytest.approx((0, 0.75, 2.75)))
    alike = draft_cost([steps[0], trees[1]], "x", target, other)
    assert (alike.depths, alike.seconds) == ((0, 1, 2), pytest.approx((0, 0.625, 1.25)))
    assert draft_cost(steps[:1], "x", target, other).depths == (0,)
    assert found.rows == (4, 8, 20)
    assert found.extra == pytest.approx([0.0625 * rows for rows in found.rows])


def test_a_forward_that_a_drafter_shortens_is_told():
    target = target_cost([timed(wanted) for wanted in wishes(1)], 1, 10)
    other = other_cost([timed(wanted) for wanted in wishes(1)], 0.0, 1)
    steps = [replace(timed((k,)), target=0.5 * timed((k,)).target) for k in (0, 1, 4)]
    found = draft_cost(steps, "early-exit:1", target, other, own_forward=True)
    assert found.extra == pytest.approx([-0.5 * timed((k,)).target for k in (0, 1, 4)])


def test_isotonic_is_the_regression_of_the_same_name():
    rng = np.random.default_rng(0)
    for size in (1, 2, 9):
        values = rng.normal(size=size).tolist()
        assert isotonic(values) == pytest.approx(isotonic_regression(values).x)


def test_interpolation_goes_on_straight_beyond_what_was_measured():
    assert [interpolated((1, 2, 4), (1.0, 3.0, 4.0), at) for at in (0, 1.5, 3, 8)] == [-1.0, 2.0, 3.5, 6.0]
    assert interpolated((5,), (2.0,), 99) == 2.0


def test_noise_is_the_error_of_a_median():
    rng = np.random.default_rng(0)
    steps = [Timed((k,), 1 + k, k, 0.0, 1 + 0.05 * float(rng.normal()), 0.0) for k in range(60) for _ in range(5)]
    medians = [np.median([1 + 0.05 * rng.normal() for _ in range(5)]) for _ in range(4000)]
    assert noise(steps) == pytest.approx(float(np.std(medians)), rel=0.35)


# ---------------------------------------------------------------- what is kept


def a_cell(drafter="x", k=2, temperature=0.0, batch=1, speedup=1.5, tokens=2.0):
    around = Interval(0.9 * speedup, speedup, 1.1 * speedup)
    return Cell(drafter, k, temperature, batch, Interval(tokens, tokens, tokens), around)


ASKED = Asked("toy", ("x",), (0.0,), (1,))


def a_plan(*cells, **changes):
    return Plan(ASKED.as_dict(), kept.this_machine(), kept.this_model("toy"), "float32", 3, cells=cells, **changes)


def test_a_plan_is_the_same_after_json():
    *_, plan = measure(job(["suffix", "suffix:branches=2"]))
    assert from_json(to_json(plan)) == plan
    assert json.loads(to_json(plan))["partial"] is False
    assert plan.cells


@pytest.mark.parametrize("text", ["", "{}", "[]", "3", '{"version": 0}', to_json(a_plan()).replace("asked", "x")])
def test_what_is_no_plan_is_refused(text):
    with pytest.raises(ValueError):
        from_json(text)


def test_a_kept_plan_is_found_again():
    assert find(ASKED) == kept.Found(None)
    plan = a_plan(a_cell())
    keep(plan, ASKED)
    assert find(ASKED) == kept.Found(plan)
    assert find(replace(ASKED, batches=(2,))).plan is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"machine": {**kept.this_machine(), "processor": "Other"}}, "another machine (processor Other, here "),
        ({"machine": {**kept.this_machine(), "threads": "77"}}, "another machine (threads 77, here "),
        ({"model": {"model.safetensors": [1, 2]}}, "another model (model.safetensors is another one)"),
    ],
)
def test_a_plan_of_another_machine_or_model_is_not_used(changes, reason):
    keep(replace(a_plan(a_cell()), **changes), ASKED)
    found = find(ASKED)
    assert found.plan is None
    assert reason in found.note
    assert "it is measured again" in found.note


def test_a_damaged_plan_is_not_used():
    keep(a_plan(), ASKED)
    ASKED.path.write_text("{", encoding="utf-8")
    assert find(ASKED).plan is None
    assert "cannot be read" in find(ASKED).note


def test_where_nothing_can_be_kept_plans_are_measured_each_time(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "file"))
    keep(a_plan(), ASKED)
    assert find(ASKED) == kept.Found(None)


def test_another_file_of_the_same_name_is_another_model(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    before = kept.this_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{ }")
    assert before != kept.this_model(str(tmp_path)) != {}
    assert kept.this_model("owner/name", ("suffix", "eagle:owner/head")) == {}


def test_another_head_or_draft_model_of_the_same_name_is_another_one(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    drafters = (f"suffix+eagle:{tmp_path},tree=auto", f"model:{tmp_path}")
    before = kept.this_model("owner/name", drafters)
    assert len(before) == 2
    (tmp_path / "config.json").write_text("{ }")
    assert before != kept.this_model("owner/name", drafters)
    shipped = kept.this_model("smollm2", ("eagle:smollm2",))
    assert len(shipped) == 3
    assert kept.this_model("smollm2", ("auto",)) == shipped


# ---------------------------------------------------------------- what to do


def test_the_fastest_is_recommended():
    plan = a_plan(a_cell(speedup=1.2), a_cell("y", AUTO, speedup=1.4), a_cell("y", 1, speedup=1.3))
    found = recommend(plan, 0.0, 1)
    assert found.cell.drafter == "y"
    assert found.reason == "y: 1.40 (1.26 to 1.54) of plain decoding's speed."


def test_what_may_also_lose_is_not_recommended():
    found = recommend(a_plan(a_cell(speedup=1.05)), 0.0, 1)
    assert found.cell is None
    assert found.reason.startswith("do not speculate: the best may also lose. That is x, k = 2: 1.05 (0.95 to 1.16)")


def test_what_does_not_pay_is_not_recommended_and_why():
    found = recommend(a_plan(a_cell(batch=16, speedup=0.8, tokens=1.2), a_cell("y", batch=16, speedup=0.5)), 0.0, 16)
    assert found.cell is None
    assert found.reason.startswith("do not speculate: the best, x, k = 2, would run at 0.80 (0.72 to 0.88)")
    assert "takes 1.50 plain rounds in a batch of 16" in found.reason
    assert "it would have to emit more than 1.50 tokens; it emits 1.20" in found.reason
    assert "nothing was measured" in recommend(a_plan(), 0.0, 1).reason


@pytest.mark.parametrize(
    ("speedups", "batch", "words"),
    [
        ({1: 1.5, 4: 1.2, 16: 1.1}, None, "up to a batch of 16"),
        ({1: 0.9, 4: 0.8}, 1, "in a batch of 1 or more"),
        ({1: 1.5, 4: 1.2, 16: 0.8}, 11, "at a batch of about 11"),
        ({1: 1.5, 4: 1.0}, 4, "at a batch of 4"),
    ],
)
def test_the_batch_at_which_it_stops_paying(speedups, batch, words):
    cells = [a_cell(batch=size, speedup=found) for size, found in speedups.items()]
    cells += [a_cell("y", batch=size, speedup=0.1) for size in speedups]
    found = stops_paying(a_plan(*cells), 0.0)
    assert found.batch == batch
    assert words in found.in_words


# ---------------------------------------------------------------- all of it


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(toy_target(tmp_path_factory.mktemp("target")))


@pytest.fixture(scope="module")
def native(folder):
    return open_model(folder, "float32", torch.device("cpu"), None)


@pytest.fixture(scope="module")
def adapted(folder):
    """The same by transformers."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return open_model(model, "auto", torch.device("cpu"), None, AutoTokenizer.from_pretrained(folder))


@pytest.mark.parametrize("kind", ["native", "adapted"])
def test_a_draft_model_that_is_the_target_is_always_right(kind, folder, request):
    opened, same = request.getfixturevalue(kind), f"model:{folder}"
    asked = Asked(folder, (same, f"suffix+{same}"), (0.0, 1.0), (2,), max_new_tokens=24)
    texts = tuple(
        Text(text[:3], tuple(opened.tokenizer.encode_chat([{"role": "user", "content": text}])))
        for text in ("the river carries", "seven letters and", "under the stone")
    )
    *_, plan = measure(Job(asked, opened, texts, {}, {}, lambda *_: None))
    found = [a for a in plan.acceptances if a.drafter == same]
    assert {a.temperature for a in found} == {0.0, 1.0}
    assert min(sum(a.kept) / sum(a.tried) for a in found if sum(a.tried) > 0) > 0.995  # rounding may tip a near tie
    tokens = {cell.k: cell.tokens.mid for cell in plan.at(0.0, 2) if cell.drafter == same}
    assert [tokens[k] for k in (1, 2, 3)] == pytest.approx([2, 3, 4], rel=0.1)
    assert {cell.k for cell in plan.cells if cell.drafter == f"suffix+{same}"} == {AUTO}
    assert {cost.batch for cost in plan.drafts} == {1, 2, 8}


def test_a_plan_grows_drafter_by_drafter_and_is_gone_on_with():
    drafters, stages = ("suffix", "ngram", "recycling", "suffix+recycling"), list[str]()
    plans = list(measure(job(drafters)))
    assert [plan.missing for plan in plans] == [drafters[done:] for done in range(5)]
    assert [plan.partial for plan in plans] == [True] * 4 + [False]
    whole = plans[-1]
    ks = {name: {cell.k for cell in whole.cells if cell.drafter == name} for name in drafters}
    assert ks == {
        "suffix": {*LENGTHS, AUTO},
        "ngram": {*LENGTHS, AUTO},
        "recycling": {TREE},
        "suffix+recycling": {AUTO},
    }
    assert {(cell.temperature, cell.batch) for cell in whole.cells} == {(0.0, 1), (0.0, 2)}
    *_, again = measure(job(drafters, lambda what, *_: stages.append(what)), plans[2])
    assert again.targets == whole.targets
    assert again.cells[: len(plans[2].cells)] == plans[2].cells
    assert not any(stage.startswith("timing") and "drafts" not in stage for stage in stages)
    assert again.missing == ()


def test_walks_repeat_though_clocks_do_not():
    first, second = ([c for c in list(measure(job(["suffix"])))[-1].cells if c.k != AUTO] for _ in range(2))
    assert [cell.tokens for cell in first] == [cell.tokens for cell in second]
    assert max(cell.tokens.mid for cell in first) > 1.5


def test_ctrl_c_leaves_what_was_measured():
    def told(what, done, total):
        if what.startswith("walking"):
            raise KeyboardInterrupt

    found = list[Plan]()
    with pytest.raises(KeyboardInterrupt):
        found.extend(measure(job(["suffix", "recycling"], told)))
    assert found[-1].missing == ("recycling",)
    assert found[-1].cells


def test_prompts_that_do_not_fit_are_refused_by_number():
    wanted = job(["suffix"])
    long = replace(wanted, texts=(*wanted.texts, Text("count", (1,) * 189)))
    with pytest.raises(InvalidOption, match=r"189 tokens in prompt 4'; allowed: at most 188: the target's context"):
        check_lengths(long)
    check_lengths(replace(wanted, texts=(Text("count", (1,) * 188),)))


def test_a_sample_is_spread_evenly():
    texts = [Text("a", (i,)) for i in range(10)]
    assert [text.prompt[0] for text in sampled(texts, 4)] == [0, 2, 5, 7]
    assert sampled(texts, 12) == tuple(texts)
