"""Exact end to end: what whole runs of the engine emit, counted, against the enumerated law of the target."""

from __future__ import annotations

import pytest

from engine_runs import DRAFTERS_AND_RULES, LIMIT, TREE_DRAFTERS, all_drafters, p_value, sample, toy_engine
from outrider.drafters import ModelDrafter
from outrider.errors import InvalidOption
from outrider.generation import TextEngine
from outrider.options import Sampling
from outrider.rules import choose_rule
from outrider.rules.typical import TypicalRule
from toy import ByteTokenizer, TableModel, exact_string_law, random_laws

V, LENGTH, NUM_SAMPLES = 3, 3, 600
PROMPT = [0, 1, 2, 0, 1]
TARGET = TableModel(V, order=2, law=random_laws(V, seed=1, sharpness=3))

SETTINGS = {
    "temperature 1": (Sampling(temperature=1.0), []),
    "temperature 0.6": (Sampling(temperature=0.6), []),
    "top-k": (Sampling(temperature=1.5, top_k=2), []),
    "top-p": (Sampling(temperature=1.0, top_p=0.8), []),
    "min-p": (Sampling(temperature=1.2, min_p=0.3), []),
    "penalties": (
        Sampling(temperature=1.0, repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=0.7),
        [],
    ),
    "bias": (Sampling(temperature=1.0, logit_bias={0: 1.0, 2: -0.7}), []),
    "minimum and stop": (Sampling(temperature=1.0, min_new_tokens=2), [2]),
    "all together": (
        Sampling(temperature=1.3, top_p=0.95, min_p=0.05, presence_penalty=0.4, logit_bias={1: 0.5}, min_new_tokens=1),
        [0],
    ),
}

RUNS = [
    (drafter, rule, slots, list(SETTINGS)[(2 * place + (slots == 5)) % len(SETTINGS)])
    for place, (drafter, rule) in enumerate(DRAFTERS_AND_RULES)
    for slots in (1, 5)
    if slots == 5 or (rule != "coupled" and place % 3 == 0)  # a coupled text is the same whatever the batch
]
"""Every drafter with every rule in a batch, a third of them alone too; the settings take turns."""


BEYOND = 2
"""Tokens that texts with trees go on for after those that are counted, so that there is room for trees."""


def count(drafter, rule, slots, setting, num_samples=NUM_SAMPLES, engine_of=toy_engine, beyond=0):
    """Seeded runs of LENGTH tokens and `beyond`: the p-value of their first LENGTH tokens, and their rounds."""
    sampling, stop_ids = SETTINGS[setting]
    engine = engine_of(TARGET, drafter, rule, 3 + beyond, slots=slots, context_length=16)
    options = {"sampling": sampling, "stop_ids": stop_ids, "max_new_tokens": LENGTH + beyond}
    strings, rounds = sample(engine, PROMPT, num_samples, LENGTH, **options)
    return p_value(strings, exact_string_law(TARGET, PROMPT, LENGTH, sampling, stop_ids)), rounds


def make(name, slots):
    return all_drafters(TARGET, slots, [*PROMPT, *TARGET.greedy(PROMPT, LENGTH)])[name]()


@pytest.mark.parametrize(("drafter", "rule", "slots", "setting"), RUNS)
def test_the_emitted_strings_have_the_targets_law(drafter, rule, slots, setting):
    num_samples, beyond = NUM_SAMPLES if slots > 1 else NUM_SAMPLES // 2, BEYOND if drafter in TREE_DRAFTERS else 0
    p, rounds = count(make(drafter, slots), rule, slots, setting, num_samples, beyond=beyond)
    assert p > LIMIT
    if "trees" in drafter:
        assert sum(r.depth < r.num_drafted for r in rounds) > num_samples / 2
    if drafter != "none":
        assert 0 < sum(r.num_accepted for r in rounds) < sum(r.num_drafted for r in rounds)


@pytest.mark.parametrize("size", [V - 1, V + 2])
@pytest.mark.parametrize("rule", ["token", "block"])
def test_a_draft_model_with_fewer_or_more_ids_keeps_the_targets_law(rule, size):
    # Known fault 23.
    model = TableModel(size, order=2, law=random_laws(size, seed=3, sharpness=2))
    p, rounds = count(ModelDrafter(model, 5, vocab_size=V), rule, 5, "top-p")
    assert p > LIMIT
    assert 0 < sum(r.num_accepted for r in rounds) < sum(r.num_drafted for r in rounds)


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(("drafter", "rule"), DRAFTERS_AND_RULES)
def test_every_drafter_with_every_rule_and_setting_has_the_targets_law(drafter, rule, setting):
    p, _ = count(make(drafter, 5), rule, 5, setting, 3000, beyond=BEYOND if drafter in TREE_DRAFTERS else 0)
    assert p > LIMIT


def test_typical_acceptance_changes_the_law_as_it_says():
    assert not TypicalRule.lossless
    p, _ = count(make("model", 5), TypicalRule(), 5, "temperature 1")
    assert p < LIMIT


@pytest.mark.parametrize("proposal", ["sampled", "point_mass"])
def test_typical_acceptance_is_refused_unless_lossy_rules_are_allowed(proposal):
    with pytest.raises(InvalidOption, match="lossless"):
        choose_rule("typical", proposal)
    assert choose_rule("typical", proposal, allow_lossy=True).name == "typical"


def test_the_statistics_say_that_typical_acceptance_is_lossy():
    target = TableModel(ByteTokenizer.vocab_size)
    for rule, lossless in ((TypicalRule(), False), ("token", True)):
        engine = TextEngine(toy_engine(target, all_drafters(target, 1, [])["model"](), rule), ByteTokenizer())
        assert engine.generate("a", max_new_tokens=3).stats.lossless is lossless
