"""The same tokens whatever drafts, draft lengths, rules and batches: at temperature 0, and with coupled sampling."""

from __future__ import annotations

import pytest

from engine_runs import DRAFTERS_AND_RULES, TREE_DRAFTERS, all_drafters, decode, finish, new_tokens, plain, toy_engine
from outrider.core import Draft
from outrider.options import Sampling
from outrider.rules import RULES, KeyedCoins
from toy import ScriptedDrafter, TableModel, random_laws

V, LENGTH = 5, 16
TARGET = TableModel(V, order=3, law=random_laws(V, seed=2, sharpness=2))
PROMPTS = [[0], [1, 2], [3, 1, 2], [0, 1, 2, 3, 4], [4, 0, 1, 4, 0, 1, 4]]  # 1, 2, 3, k + 1 and more tokens
DRAFTERS = list(all_drafters(TARGET, 1, []))
RUNS = [(drafter, rule) for drafter in DRAFTERS for rule in sorted(RULES)]
RUNS_OF_EACH = [(0, 1), (1, 3), (4, 5), (16, 1), (None, 2)]
"""Draft lengths and slots."""
WARM = Sampling(temperature=0.8)
PENALISED = Sampling(
    temperature=0.8, top_p=0.9, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.5, logit_bias={2: 1.0}
)


def decode_all(drafter, rule, k, slots, sampling, seed=7):
    """All prompts in an engine of so many slots; scripted drafts follow the greedy text of the first prompt."""
    reference = [*PROMPTS[0], *TARGET.greedy(PROMPTS[0], LENGTH)]
    engine = toy_engine(TARGET, all_drafters(TARGET, slots, reference)[drafter](), RULES[rule], k, slots=slots)
    sequences = [engine.add(p, sampling=sampling, seed=seed, max_new_tokens=LENGTH) for p in PROMPTS]
    rounds = finish(engine)
    assert not any(r.broken for each in rounds.values() for r in each)
    return [new_tokens(s) for s in sequences]


def fits(drafter, rule):
    shape_fits = RULES[rule].trees or drafter not in TREE_DRAFTERS
    return shape_fits and all_drafters(TARGET, 1, [])[drafter]().proposal in RULES[rule].proposals


@pytest.mark.parametrize(("drafter", "rule"), [run for run in RUNS if fits(*run)])
def test_greedy_text_equals_plain_decoding_for_every_drafter_rule_draft_length_and_batch(drafter, rule):
    expected = [TARGET.greedy(prompt, LENGTH) for prompt in PROMPTS]
    for k, slots in RUNS_OF_EACH:
        assert decode_all(drafter, rule, k, slots, Sampling()) == expected


@pytest.mark.parametrize("sampling", [WARM, PENALISED], ids=["warm", "penalised"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_coupled_text_is_a_function_of_the_seed_alone(drafter, sampling):
    seed = 7
    expected = [plain(TARGET, p, LENGTH, sampling=sampling, coins=KeyedCoins(seed)) for p in PROMPTS]
    for k, slots in RUNS_OF_EACH:
        assert decode_all(drafter, "coupled", k, slots, sampling, seed) == expected
    assert decode_all(drafter, "coupled", 4, 5, sampling, seed + 1) != expected


def test_other_rules_give_other_text_for_another_draft_length():
    # Negative control: only coupling makes a sampled text independent of the drafts.
    assert decode_all("model", "token", 1, 1, WARM) != decode_all("model", "token", 4, 1, WARM)


processed = pytest.mark.parametrize(
    "sampling",
    [
        Sampling(repetition_penalty=1.3),
        Sampling(presence_penalty=0.5, frequency_penalty=0.5),
        Sampling(logit_bias={0: -100.0, 3: 2.0}),
        Sampling(logit_bias={1: 100.0}, banned_ids=frozenset({1})),
        Sampling(processor=lambda ids, logits: logits.index_fill(0, logits.new_tensor([ids[-1]]).long(), -9.0)),
    ],
    ids=["repetition", "presence and frequency", "bias", "ban", "processor"],
)


@processed
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_penalties_biases_bans_and_processors_act_at_drafted_positions_too(drafter, sampling):
    # Known faults 13 and 14: each position has its own history.
    expected = [plain(TARGET, p, LENGTH, sampling=sampling) for p in PROMPTS]
    assert expected != [TARGET.greedy(p, LENGTH) for p in PROMPTS]
    assert decode_all(drafter, "point-mass", 4, 2, sampling) == expected


@processed
@pytest.mark.parametrize("right", [None, 0, 2])
def test_processed_laws_are_right_for_every_accepted_length(right, sampling):
    expected = [plain(TARGET, p, LENGTH, sampling=sampling) for p in PROMPTS]
    script = [[*prompt, *text] for prompt, text in zip(PROMPTS, expected, strict=True)]
    engine = toy_engine(TARGET, ScriptedDrafter(script, V, right), k=4)
    assert [decode(engine, p, sampling=sampling, max_new_tokens=LENGTH) for p in PROMPTS] == expected


class AcceptedLengths:
    """Scripted per sequence: how many drafted tokens are right, by the length of the prompt."""

    name, proposal = "scripted", "point_mass"

    def __init__(self, references, right_of):
        self.drafters = {n: ScriptedDrafter(references, V, right) for n, right in right_of.items()}

    def propose(self, sequences, budgets) -> list[Draft]:
        each = zip(sequences, budgets, strict=True)
        return [self.drafters[s.prompt_length].propose([s], [budget])[0] for s, budget in each]


@pytest.mark.parametrize("order", [3, None])
def test_rows_that_accept_different_lengths_do_not_mix(order):
    # Known fault 28: a batch of 3, prompts of 3, 7 and 12 tokens, of which 0, 2 and 5 drafted tokens are accepted.
    target = TableModel(V, order=order, law=random_laws(V, seed=3, sharpness=2))
    prompts = [[token % V for token in range(n)] for n in (3, 7, 12)]
    expected = [target.greedy(prompt, 24) for prompt in prompts]
    references = [[*p, *text] for p, text in zip(prompts, expected, strict=True)]
    engine = toy_engine(target, AcceptedLengths(references, {3: 0, 7: 2, 12: 5}), k=5, slots=3)
    sequences = [engine.add(prompt, max_new_tokens=24) for prompt in prompts]
    rounds = finish(engine)
    assert [new_tokens(s) for s in sequences] == expected
    assert [max(r.num_accepted for r in rounds[s]) for s in sequences] == [0, 2, 5]


@pytest.mark.parametrize("right", [0, 1, 2, 3, 4, None])
def test_every_accepted_length_for_a_hundred_rounds(right):
    # Known fault 25: roll-back for every accepted length.
    target = TableModel(V, order=4, law=random_laws(V, seed=4, sharpness=2))
    per_round = 5 if right is None else right + 1
    count = 100 * per_round
    expected = target.greedy([1, 2], count)
    engine = toy_engine(target, ScriptedDrafter([[1, 2, *expected]], V, right), k=4)
    sequence = engine.add([1, 2], max_new_tokens=count)
    (rounds,) = finish(engine).values()
    assert new_tokens(sequence) == expected
    assert len(rounds) == 100


@pytest.mark.parametrize(("drafter", "rule"), DRAFTERS_AND_RULES)
def test_a_very_low_temperature_decides_as_zero_does(drafter, rule):
    # Known fault 26: no ratio of raw probabilities, no division by zero.
    expected = [TARGET.greedy(prompt, LENGTH) for prompt in PROMPTS]
    for temperature in (1e-8, 1e-3):
        assert decode_all(drafter, rule, 3, 5, Sampling(temperature=temperature)) == expected
