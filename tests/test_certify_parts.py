"""The parts of a certificate: exact laws of small problems, statistics against scipy, edges of coins, ties."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import kstwo

from certify_runs import PROMPTS, TARGET, certificate, engine_of
from outrider.certifying.bugs import Favours
from outrider.certifying.enumerating import first_token_error, law_error
from outrider.certifying.law import edges
from outrider.certifying.planted import _NotStrict
from outrider.certifying.problems import SIZE, problem_of
from outrider.certifying.reference import Reference, apart, total_variation
from outrider.certifying.running import Decided, Request, Wish, texts
from outrider.certifying.statistics import Shift, Uniforms, needed, rank, slack
from outrider.core import Draft
from outrider.options import Sampling
from outrider.rules import RULES, RandomCoins, streams

TREES = [("hybrid-trees", "traversal"), ("with-trees", "recursive"), ("without-trees", "traversal"), ("model", "block")]


def decided(drafter: str, rule: str) -> list[Decided]:
    found: list[Decided] = []
    requests = [Request(0, tuple(PROMPTS[0]), seed) for seed in range(3)]
    wish = Wish(Sampling(temperature=1.0), frozenset(), 16)
    texts(engine_of(drafter, rule, 5), requests, wish, saw=lambda each: found.append(each) if len(each.draft) else None)
    return found


@pytest.mark.parametrize(("drafter", "rule"), TREES)
def test_the_law_of_a_problem_is_exact_and_that_of_a_faulty_rule_is_not(drafter: str, rule: str) -> None:
    problems = [problem_of(each.draft, each.target_probs, "here") for each in decided(drafter, rule)][:8]
    assert max(law_error(RULES[rule], problem) for problem in problems) < 1e-12
    assert max(law_error(Favours(RULES[rule], 0.05), problem) for problem in problems) > 1e-3


def test_a_problem_of_a_large_vocabulary_keeps_the_probabilities_of_its_tokens() -> None:
    dice = np.random.default_rng(0)
    q, p = (dice.dirichlet(np.full(500, 0.1), 3).astype(np.float32) for _ in range(2))
    tokens = tuple(int(row.argmax()) for row in p[:2])
    problem = problem_of(Draft.chain(tokens, p[:2]), q, "here")
    assert problem.target.shape == (3, SIZE)
    assert np.allclose(problem.target.sum(-1), 1)
    assert problem.target[0][problem.nodes[0].token] == pytest.approx(q[0][tokens[0]], rel=1e-5)
    assert problem.nodes[0].law is not None
    assert problem.nodes[0].law[problem.nodes[0].token] == pytest.approx(p[0].max(), rel=1e-5)


@pytest.mark.parametrize("rule", ["token", "block", "traversal", "recursive", "point-mass", "coupled"])
def test_the_first_tokens_law_on_the_whole_vocabulary(rule: str) -> None:
    dice = np.random.default_rng(1)
    q, p = dice.dirichlet(np.full(300, 0.2), 2).astype(np.float32), dice.dirichlet(np.full(300, 0.2)).astype(np.float32)
    token = int(p.argmax())
    assert first_token_error(RULES[rule], "sampled", q, p, token) < 1e-6
    assert first_token_error(Favours(RULES[rule], 0.05), "sampled", q, p, token) > 1e-3


def test_ranks_are_uniform_and_kolmogorovs_p_value_is_scipys() -> None:
    dice = np.random.default_rng(2)
    law, scores, found = dice.dirichlet(np.ones(7)), dice.integers(0, 3, 7), Uniforms()
    for token in dice.choice(7, size=400, p=law):
        found.add(rank(scores, law, int(token), dice.random()))
    assert found.p_value() == pytest.approx(kstwo.sf(found.distance(), 400), abs=0.01)
    assert found.p_value() > 0.01
    assert found.p_value_of_order() > 0.01
    skewed = Uniforms([value**1.5 for value in found.values])
    assert skewed.p_value() < 1e-6
    assert Uniforms(sorted(found.values)).p_value_of_order() < 1e-6


def test_a_shift_is_seen_and_none_is_not() -> None:
    dice = np.random.default_rng(3)
    masses = dice.random(2000)
    fair, biased = Shift(), Shift()
    for mass in masses.tolist():
        fair.add(bool(dice.random() < mass), mass)
        biased.add(bool(dice.random() < min(1, mass + 0.1)), mass)
    assert fair.p_value > 0.01
    assert fair.peak < 100
    assert biased.p_value < 1e-6
    assert biased.peak > 1e6
    assert biased.z > 5


def test_the_bound_needs_as_many_samples_as_it_says() -> None:
    assert slack(needed(0.1, 0.999), 0.999) <= 0.05 < slack(needed(0.1, 0.999) - 1, 0.999)


def test_coins_that_keep_at_equality_are_found() -> None:
    dice = np.random.default_rng(0)
    assert edges(RandomCoins(dice, dice)).passed
    assert edges(streams(3, coupled=True)[1]).passed
    found = edges(_NotStrict(dice, dice))
    assert not found.passed
    assert "u = 0 with a chance of 0 is kept" in found.detail


def test_tokens_at_the_edge_of_a_filter_do_not_part_laws() -> None:
    one, other = np.array([0.6, 0.3, 0.1, 0]), np.array([0.6, 0.3, 0, 0.1])
    wider = np.array([0.6, 0.3, 0.0999, 0.0001])
    assert apart(one / one.sum(), wider) < 1e-3
    assert apart(one, other) == 0  # either of two equal tokens may be the last one in
    moved = np.array([0, 0.3, 0.1, 0.6])
    assert apart(one, moved) == total_variation(one, moved) > 0.5


def test_the_reference_has_the_tables_laws_and_no_drift() -> None:
    prompts = [tuple(prompt) for prompt in PROMPTS]
    reference = Reference(TARGET, prompts, Sampling(temperature=1.0), frozenset(), 64)
    new = [1, 2, 3, 4, 5, 6, 7, 0]
    logits = reference.logits(1, new, 3)
    for i in range(len(new) + 1):
        wanted = TARGET.law([*prompts[1], *new[:i]])
        assert np.allclose(reference.law(1, new[:i], logits[i]), wanted, atol=1e-6)
    assert reference.drift(1, new).law == 0


def test_equal_texts_are_counted_and_an_altered_one_is_found() -> None:
    tier = next(tier for tier in certificate(engine_of()).tiers if tier.name == "same text")
    assert tier.state == "passed"
    assert "12 of 12 equal" in tier.checks[0].detail
