"""How much several sequences draft that share a forward: against all that they could, and where sharing matters."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from outrider.drafters.sharing import Costs, Offer, companies, due, free, promise, repays, shared, straight
from outrider.options import Sampling
from toy import make_sequence


def in_steps(rows, sequences):
    """A kernel that takes rows by four."""
    return 1 + 0.3 * math.ceil(rows / 4)


def costs_of(sequences, verify=in_steps, levels=(free,)):
    return [Costs(verify, level, sequences) for level in levels]


def chain(*gains, **more):
    return Offer(gains, float(len(gains)), **more)


def value(offers, taken, costs):
    """Expected tokens per cost, written once more."""
    tokens = len(offers) + sum(sum(o.gains[:n]) for o, n in zip(offers, taken, strict=True))
    cost = costs[0].forward(sum(taken))
    for source, own in enumerate(costs):
        deep = [o.depth * n / len(o.gains) for o, n in zip(offers, taken, strict=True) if n and o.source == source]
        cost += own.drafting(len(deep), max(deep, default=0.0))
    return tokens / cost


def random_offers(rng, sequences, sources=1):
    chances = rng.uniform(0.1, 0.95, sequences)
    lengths = rng.integers(0, 5, sequences)
    return [
        chain(*(c ** (k + 1) for k in range(n)), source=int(rng.integers(sources)))
        for c, n in zip(chances, lengths, strict=True)
    ]


def shortfall(share=shared):
    """The most by which the best of all choices is better, over random offers whose drafts cost nothing."""
    rng, worst = np.random.default_rng(0), 0.0
    for _ in range(150):
        offers = random_offers(rng, 3)
        costs = costs_of(3, straight(rng.uniform(0.05, 0.6)) if rng.random() < 0.5 else in_steps)
        every = itertools.product(*(range(len(offer.gains) + 1) for offer in offers))
        best = max(value(offers, taken, costs) for taken in every)
        worst = max(worst, best - value(offers, share(offers, costs), costs))
    return worst


def test_where_drafting_is_free_no_choice_of_lengths_has_more_tokens_per_cost():
    assert shortfall() < 1e-9


def test_the_same_comparison_catches_lengths_that_are_each_best_alone():
    def each_alone(offers, costs):
        return [shared([offer], [Costs(costs[0]._verify, free, 1)])[0] for offer in offers]

    assert shortfall(each_alone) > 0.02


def test_with_drafts_that_cost_the_loss_is_small():
    rng, lost = np.random.default_rng(1), []
    for _ in range(150):
        offers = random_offers(rng, 3, sources=2)
        costs = costs_of(3, straight(rng.uniform(0.05, 0.4)), (free, lambda n: 0.1))
        every = itertools.product(*(range(len(offer.gains) + 1) for offer in offers))
        best = max(value(offers, taken, costs) for taken in every)
        lost.append(1 - value(offers, shared(offers, costs), costs) / best)
    assert np.mean(lost) < 0.01
    assert max(lost) < 0.1


def test_one_sequence_does_not_pay_alone_for_a_step_of_the_kernel_that_all_could_use():
    hopeful, doubtful = chain(0.6), chain(0.1)
    assert shared([hopeful, doubtful, doubtful, doubtful], costs_of(4)) == [0, 0, 0, 0]
    assert shared([hopeful] * 4, costs_of(4)) == [1, 1, 1, 1]
    assert shared([hopeful, doubtful, doubtful], costs_of(3)) == [1, 0, 0]  # the fourth row is free


def test_a_whole_draft_is_taken_or_left():
    tree = chain(0.9, 0.5, 0.01, whole=True)
    assert shared([tree], costs_of(1, straight(0.1))) == [3]
    assert shared([tree], costs_of(1, straight(0.6))) == [0]
    assert shared([replace(tree, whole=False)], costs_of(1, straight(0.1))) == [2]


def test_what_is_tried_is_drafted_whatever_it_costs():
    assert shared([chain(0.1, 0.01, least=1), chain(0.9)], costs_of(2, straight(3.0))) == [1, 0]


def test_a_length_that_is_nearly_as_good_stays():
    swinging = chain(0.9, 0.8, 0.17)
    assert shared([swinging], costs_of(1, straight(0.1))) == [2]
    assert shared([replace(swinging, last=3)], costs_of(1, straight(0.1))) == [3]
    assert shared([replace(swinging, last=1)], costs_of(1, straight(0.1))) == [2]


def test_nothing_is_offered_and_nothing_is_drafted():
    assert shared([Offer(), Offer()], costs_of(2)) == [0, 0]
    assert promise(Offer(), costs_of(1)[0]) == 0.0


def test_the_promise_of_a_draft_is_that_of_its_best_part():
    (cost,) = costs_of(1, straight(0.1))
    assert promise(chain(0.9, 0.01), cost) == pytest.approx(1.9 / 1.1)
    assert promise(chain(0.9, 0.01, whole=True), cost) == pytest.approx(1.91 / 1.2)


def test_drafts_of_few_cost_less_than_those_of_all():
    (cost,) = costs_of(4, lambda rows, sequences: float(rows), (lambda n: 0.5,))
    assert cost.drafting(0, 3) == 0.0
    assert cost.drafting(1, 1) == pytest.approx(0.125)
    assert cost.drafting(4, 2) == pytest.approx(1.0)


def test_who_waited_half_as_long_joins_one_who_is_due():
    assert due([10, 19, 3], [20, 20, 20]) == [False] * 3
    assert due([10, 20, 3], [20, 20, 20]) == [True, True, False]
    assert due([5], [math.inf]) == [False]


def test_what_is_to_be_taken_in_must_be_repaid():
    (alone,) = costs_of(1, straight(0.1), (lambda n: 0.1,))
    (many,) = costs_of(16, straight(0.1), (lambda n: 0.1,))
    offer = chain(0.5)
    assert repays(offer, many, 0)
    assert repays(offer, alone, 100)
    assert not repays(offer, many, 100)
    assert not repays(chain(0.1), many, 1)


def members(*kinds):
    made = [make_sequence([1], id=i, sampling=Sampling(temperature=t)) for i, (t, _) in enumerate(kinds)]
    for sequence, (_, seeded) in zip(made, kinds, strict=True):
        sequence.seeded = seeded
    return made


def test_a_seeded_text_at_a_temperature_is_decided_upon_alone():
    crowd = members((0.0, True), (0.8, True), (0.8, False), (0.8, True))
    assert companies(crowd) == [[1], [3], [0, 2]]
    assert companies(crowd[:1]) == [[0]]
    assert companies([]) == []


def test_as_if_in_batches_of_another_size():
    crowd = members(*[(0.0, False)] * 5)
    assert companies(crowd, 2) == [[0, 1], [2, 3], [4, 4]]
    assert companies(crowd, 8) == [[0, 1, 2, 3, 4, 0, 1, 2]]
