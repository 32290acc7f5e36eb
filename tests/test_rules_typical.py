"""The lossy rule's distance from the target's law: as reported, against enumeration of the rule and whole runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from fractions import Fraction
from math import log, sqrt

import numpy as np
import pytest

from engine_runs import LIMIT, DrawsFromOneLaw, all_drafters, finish, toy_engine
from enumeration import (
    Propose,
    ToyModel,
    every_string,
    fixed_chain,
    law_error,
    one_round,
    random_model,
    sampled_chain,
)
from outrider.core import Draft, Rule
from outrider.options import Sampling
from outrider.rounds import Round
from outrider.rules import RULES
from outrider.rules import typical as module
from outrider.rules.typical import TypicalRule
from outrider.stats import collect
from toy import TableModel, random_laws

TYPICAL, STRICT = RULES["typical"], TypicalRule(epsilon=0.3, delta=0.9)
CHOOSY = TypicalRule(epsilon=0.25, delta=9)
rules = pytest.mark.parametrize("rule", [TYPICAL, STRICT], ids=["typical", "strict"])

# ---------------------------------------------------------------- every draft and every coin


def places(rule: Rule, propose: Propose, target: ToyModel) -> list[tuple[float, float]]:
    """Per place that a round may reach: the distance by enumeration of what is emitted there, and as reported."""
    laws: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    said: dict[tuple[int, ...], set[float]] = defaultdict(set)
    for draft, verdict, probability in one_round(rule, propose, target):
        emitted = (*(draft.tokens[node] for node in verdict.path), verdict.next_token)
        for i, (token, distance) in enumerate(zip(emitted, verdict.distance, strict=True)):
            laws[emitted[:i]][token] += probability  # type: ignore[assignment]
            said[emitted[:i]].add(distance)
    assert all(len(distances) == 1 for distances in said.values()), "it depends on what was drawn at the place itself"
    return [(total_variation(law, target(prefix)), *said[prefix]) for prefix, law in laws.items()]


def total_variation(law: Counter[int], target_row: np.ndarray) -> float:
    whole = Fraction(sum(law.values()))
    return float(sum(abs(law[token] / whole - q) for token, q in enumerate(target_row)) / 2)


def is_measured_right(rule: Rule, propose: Propose, target: ToyModel) -> bool:
    try:
        return all(said == pytest.approx(true, abs=1e-12) for true, said in places(rule, propose, target))
    except AssertionError:
        return False


def pairs(vocab: int) -> list[tuple[ToyModel, ToyModel]]:
    kinds = [("dense", "dense"), ("zeros", "zeros"), ("zeros", "dense"), ("dense", "one-hot"), ("even", "odd")]
    return [(random_model(q, vocab, seed), random_model(p, vocab, seed + 1000)) for q, p in kinds for seed in range(3)]


@rules
@pytest.mark.parametrize(("vocab", "length"), [(2, 3), (3, 2), (4, 1), (5, 2)])
def test_the_distance_is_that_of_the_emitted_tokens_law_at_every_place_of_a_drawn_draft(
    rule: Rule, vocab: int, length: int
) -> None:
    found = []
    for target, draft in pairs(vocab):
        assert is_measured_right(rule, sampled_chain(draft, length), target)
        found += [said for _, said in places(rule, sampled_chain(draft, length), target)]
    assert min(found) == 0 < 0.3 < max(found) <= 1


@rules
def test_the_distance_is_that_of_the_emitted_tokens_law_at_every_place_of_a_chosen_draft(rule: Rule) -> None:
    for kind in ("dense", "zeros"):
        target = random_model(kind, vocab=3, seed=5)
        for tokens in every_string(3, 2):
            assert is_measured_right(rule, fixed_chain(tokens), target)


@rules
def test_a_drawn_draft_of_a_certain_law_is_a_chosen_one(rule: Rule) -> None:
    target, draft = random_model("dense", 3, 1), random_model("one-hot", 3, 2)
    (tokens,) = {d.tokens for d, _, _ in one_round(rule, sampled_chain(draft, 2), target)}
    drawn, chosen = (places(rule, propose, target) for propose in (sampled_chain(draft, 2), fixed_chain(tokens)))
    assert np.array(drawn) == pytest.approx(np.array(chosen))


@rules
def test_no_distance_from_a_greedy_target(rule: Rule) -> None:
    for target, draft in ((random_model("one-hot", 3, seed), random_model("dense", 3, seed)) for seed in range(4)):
        assert all(said == 0 for _, said in places(rule, sampled_chain(draft, 3), target))


@rules
@pytest.mark.parametrize("length", [1, 2, 3])
def test_the_texts_law_is_no_farther_than_the_distances_add_up_to_on_average(rule: Rule, length: int) -> None:
    for target, draft in pairs(3):
        propose = sampled_chain(draft, length)
        total = sum(float(p) * sum(verdict.distance) for _, verdict, p in one_round(rule, propose, target))
        assert law_error(rule, propose, target) <= total + 1e-12


def test_lossless_rules_report_none() -> None:
    target, draft = pairs(3)[0]
    for rule in (rule for rule in RULES.values() if rule.lossless and "sampled" in rule.proposals):
        assert {verdict.distance for _, verdict, _ in one_round(rule, sampled_chain(draft, 2), target)} == {()}


# ---------------------------------------------------------------- planted bugs


def without_the_part_drawn_from_the_target(token, draft_row, target_row, keeps):
    return float(abs(np.where(keeps, draft_row.astype(float), 0) - target_row).sum()) / 2


def of_the_drafters_law(token, draft_row, target_row, keeps):
    return float(abs(draft_row.astype(float) - target_row).sum()) / 2


def as_if_the_token_had_been_chosen(token, draft_row, target_row, keeps):
    return 1 - float(target_row[token]) if keeps[token] else 0.0


def twice(token, draft_row, target_row, keeps):
    return 2 * SHIPPED(token, draft_row, target_row, keeps)


SHIPPED = module.distance_from_target


@pytest.mark.parametrize(
    "bug", [without_the_part_drawn_from_the_target, of_the_drafters_law, as_if_the_token_had_been_chosen, twice]
)
def test_a_distance_that_is_measured_wrong_is_caught(bug, monkeypatch) -> None:
    monkeypatch.setattr(module, "distance_from_target", bug)
    dense = [(random_model("dense", 3, seed), random_model("dense", 3, seed + 1000)) for seed in range(4)]
    assert not any(is_measured_right(STRICT, sampled_chain(draft, 2), target) for target, draft in dense)


# ---------------------------------------------------------------- whole runs

V, PROMPT, NUM_SAMPLES = 5, [0, 1, 2], 3000
TARGET = TableModel(V, order=2, law=random_laws(V, seed=1, sharpness=2))
WARM = Sampling(temperature=0.8)
BOUND = sqrt(V / NUM_SAMPLES) / 2 + sqrt(log(1 / LIMIT) / (2 * NUM_SAMPLES))
"""Of the total variation between a law and as many draws from it, up to a chance of LIMIT.

On average it is at most sqrt(V / n) / 2 (Cauchy-Schwarz), and each draw moves it by at most 1 / n (McDiarmid).
"""


class Likeliest:
    """Chooses the target's likeliest tokens."""

    name, proposal = "likeliest", "point_mass"

    def propose(self, sequences, budgets):
        return [Draft.chain(TARGET.greedy(s.tokens, budget)) for s, budget in zip(sequences, budgets, strict=True)]


DRAFTERS = {"chosen": Likeliest, "drawn": lambda: DrawsFromOneLaw(np.array([0.6, 0.05, 0.05, 0.25, 0.05]))}


def measured(drafter, sampling, num_samples=1, rule=TYPICAL, target=TARGET, length=4, **request):
    """The rounds of each of some texts, seeded 0, 1, 2, ..."""
    engine = toy_engine(target, drafter, rule, 3, slots=5, context_length=16)
    for seed in range(num_samples):
        engine.add(PROMPT, sampling=sampling, seed=seed, max_new_tokens=length, **request)
    return list(finish(engine).values())


def stats_of(rounds: list[Round]):
    settings = {"drafter": "d", "rule": "typical", "lossless": False, "precision": "float32", "prefill_seconds": 0.5}
    return collect(rounds, **settings)


@pytest.mark.parametrize("kind", DRAFTERS)
def test_a_greedy_run_has_no_distance(kind):
    (rounds,) = measured(DRAFTERS[kind](), Sampling(), length=10)
    assert sum(r.num_drafted for r in rounds) > 0
    assert stats_of(rounds).distance == 0.0


def first_tokens(kind, rule):
    """How often each token came first, over the target's law of it: the total variation; and what was reported."""
    texts = measured(DRAFTERS[kind](), WARM, NUM_SAMPLES, rule, length=2)
    (said,) = {rounds[0].distance[0] for rounds in texts}
    counts = np.bincount([rounds[0].token_ids[0] for rounds in texts], minlength=V)
    target_row = TARGET.law(PROMPT) ** (1 / 0.8)
    return float(abs(counts / NUM_SAMPLES - target_row / target_row.sum()).sum()) / 2, said


@pytest.mark.parametrize(("kind", "rule"), [("chosen", TYPICAL), ("drawn", TYPICAL), ("drawn", CHOOSY)])
def test_the_distance_of_the_first_token_agrees_with_counts_over_many_seeds(kind, rule):
    counted, said = first_tokens(kind, rule)
    assert said > 2 * BOUND
    assert abs(counted - said) < BOUND


def test_the_counts_catch_a_distance_that_is_measured_wrong(monkeypatch):
    monkeypatch.setattr(module, "distance_from_target", without_the_part_drawn_from_the_target)
    counted, said = first_tokens("drawn", CHOOSY)
    assert abs(counted - said) > BOUND


def test_the_figure_is_the_mean_over_the_emitted_tokens_of_all_rounds():
    for rounds in measured(Likeliest(), WARM, 20, length=9):
        assert all(len(r.distance) == len(r.token_ids) for r in rounds)
        distances = [distance for r in rounds for distance in r.distance]
        assert stats_of(rounds).distance == pytest.approx(sum(distances) / 9)
        assert 0 < stats_of(rounds).distance < 1


def test_tokens_that_a_stop_or_the_limit_cut_away_do_not_count():
    stop = TARGET.greedy(PROMPT, 1)[0]
    texts = measured(Likeliest(), WARM, 20, length=2, stop_ids=[stop])
    rounds = [r for each in texts for r in each]
    assert {r.finish_reason for r in rounds} >= {"stop"}
    assert all(len(r.distance) == len(r.token_ids) for r in rounds)


def test_a_lossless_run_has_no_figure():
    (rounds,) = measured(DRAFTERS["drawn"](), WARM, rule="auto")
    assert sum(r.num_drafted for r in rounds) > 0
    assert stats_of(rounds).distance is None


# ---------------------------------------------------------------- Medusa


def medusa_engine_runs(sampling, rule):
    return measured(all_drafters(TARGET, 5, [])["medusa"](), sampling, 20, rule, length=12)


def test_medusa_heads_with_typical_acceptance_show_a_distance_when_sampling_and_none_when_greedy():
    warm, greedy = ([r for each in medusa_engine_runs(s, TYPICAL) for r in each] for s in (WARM, Sampling()))
    assert sum(r.num_accepted for r in warm) > 0 < sum(r.num_accepted for r in greedy)
    assert stats_of(warm).distance > 0.01
    assert stats_of(greedy).distance == 0.0


def test_medusa_heads_with_the_rule_that_fits_them_show_none():
    rounds = [r for each in medusa_engine_runs(WARM, "auto") for r in each]
    assert sum(r.num_accepted for r in rounds) > 0
    assert stats_of(rounds).distance is None
