"""Whatever a drafter returns, it costs at most a draft: it is counted, and not one token changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from engine_runs import DrawsFromOneLaw, decode, finish, new_tokens, toy_engine
from outrider.core import Draft
from outrider.drafters import NgramDrafter, NoDrafter
from outrider.errors import DrafterWarning, InvalidOption
from outrider.options import Sampling
from outrider.rules import RULES
from toy import BrokenDrafter, ScriptedDrafter, TableModel, random_laws

V = 6
LAW = random_laws(V, seed=9, sharpness=2)
TARGET = TableModel(V, order=3, law=LAW)
WARM = Sampling(temperature=1.0)

pytestmark = pytest.mark.filterwarnings("ignore::outrider.errors.DrafterWarning")


@pytest.mark.parametrize("fault", BrokenDrafter.faults)
@pytest.mark.parametrize("rule", ["point-mass", "coupled"])
def test_a_broken_draft_is_counted_and_changes_no_token(fault, rule):
    # Known fault 39.
    check_broken(lambda: BrokenDrafter(fault, V), rule)


@pytest.mark.parametrize("fault", BrokenDrafter.faults_of_sampled)
@pytest.mark.parametrize("rule", ["token", "block"])
def test_a_broken_sampled_draft_is_counted_and_changes_no_token(fault, rule):
    check_broken(lambda: BrokenDrafter(fault, V, "sampled"), rule)


def check_broken(make, rule):
    """Broken in three rounds, then the drafter is asked no more; the text is that without drafts."""
    for sampling in (Sampling(), WARM):
        options = {"sampling": sampling, "seed": 4, "max_new_tokens": 8}
        expected = decode(toy_engine(TARGET, NoDrafter(), rule if rule == "coupled" else "auto"), [1, 2], **options)
        engine = toy_engine(TARGET, make(), rule, k=3, slots=2)
        for _ in range(2):
            sequences = [engine.add([1, 2], **options), engine.add([1, 2], **options)]
            rounds = finish(engine)
            for sequence in sequences:
                assert new_tokens(sequence) == expected
                assert [r.broken is not None for r in rounds[sequence]] == [True] * 3 + [False] * 5
                assert sum(r.num_drafted for r in rounds[sequence]) == 0


PROBS = np.full((2, V), 1 / V, dtype=np.float32)
ODD_DRAFTS = {
    "a number for tokens": Draft(tokens=5, parents=()),  # type: ignore[arg-type]
    "numbers for both": Draft(tokens=5, parents=5),  # type: ignore[arg-type]
    "None for tokens": Draft(tokens=None, parents=(-1,)),  # type: ignore[arg-type]
    "strings": Draft.chain(["a", "b"]),  # type: ignore[list-item]
    "NaN": Draft.chain([float("nan")]),  # type: ignore[list-item]
    "tensors": Draft.chain(torch.tensor([1, 2])),  # type: ignore[arg-type]
    "an unknown proposal": replace(Draft.chain([1, 2]), proposal="guess"),  # type: ignore[arg-type]
    "an unhashable proposal": replace(Draft.chain([1, 2]), proposal=["sampled"]),  # type: ignore[arg-type]
    "a circle": Draft((1, 2), (1, 0)),
    "a parent after its child": Draft((1, 2), (1, -1)),
    "equal siblings": Draft((1, 1), (-1, -1)),
    "a law beside a point mass": Draft((1, 2), (-1, 0), "point_mass", (None, np.full(V, 1 / V))),
    "parents of strings": Draft((1, 2), ("a", "b")),  # type: ignore[arg-type]
}
ODD_SAMPLED_DRAFTS = {
    "a list of laws": Draft.chain([1, 2], PROBS.tolist()),  # type: ignore[arg-type]
    "a tensor of laws": Draft.chain([1, 2], torch.from_numpy(PROBS)),  # type: ignore[arg-type]
    "one law for two tokens": Draft.chain([1, 2], PROBS[0]),
    "laws of strings": Draft.chain([1, 2], np.full((2, V), "a")),
    "NaN in a law": Draft.chain([1, 2], np.where(np.arange(V) == 3, np.nan, PROBS)),
    "infinity in a law": Draft.chain([1, 2], np.where(np.arange(V) == 3, np.inf, PROBS)),
    "a negative probability": Draft.chain(
        [1, 2], np.where(np.arange(V) == 3, -0.5, np.where(np.arange(V) == 4, 1, PROBS))
    ),
    "laws that do not add up to 1": Draft.chain([1, 2], PROBS * 0.5),
    "weights for probabilities": Draft.chain([1, 2], PROBS * V),
}


class Always:
    """Proposes the same draft, whatever it is, wherever two tokens fit."""

    name = "always"

    def __init__(self, draft, proposal):
        self.draft, self.proposal = draft, proposal

    def propose(self, sequences, budgets):
        return [self.draft if budget >= 2 else Draft() for budget in budgets]


@pytest.mark.parametrize("name", ODD_DRAFTS)
def test_an_odd_draft_is_broken_and_changes_no_token(name):
    check_odd(ODD_DRAFTS[name], "point_mass", "point-mass")


@pytest.mark.parametrize("name", ODD_SAMPLED_DRAFTS)
@pytest.mark.parametrize("rule", ["token", "block"])
def test_an_odd_law_is_broken_and_changes_no_token(name, rule):
    check_odd(ODD_SAMPLED_DRAFTS[name], "sampled", rule)


def check_odd(draft, proposal, rule):
    engine = toy_engine(TARGET, Always(draft, proposal), rule, k=3)
    for sampling in (Sampling(), WARM):
        options = {"sampling": sampling, "seed": 4, "max_new_tokens": 6}
        sequence = engine.add([1, 2], **options)
        (rounds,) = finish(engine).values()
        assert new_tokens(sequence) == decode(toy_engine(TARGET), [1, 2], **options)
        assert [r.broken is not None for r in rounds] == [True] * 3 + [False] * 3


def test_a_point_mass_draft_is_refused_by_a_ratio_rule():
    # Known fault 5: the type decides, not a comment.
    class Slips(DrawsFromOneLaw):
        def _propose(self, sequence, budget):
            return Draft.chain([1] * budget)

    engine = toy_engine(TARGET, Slips(PROBS[0]), "token", k=3)
    engine.add([1, 2], max_new_tokens=5)
    (rounds,) = finish(engine).values()
    assert "point_mass draft" in rounds[0].broken
    with pytest.raises(InvalidOption, match="rule"):
        toy_engine(TARGET, NgramDrafter(), RULES["token"])


@pytest.mark.parametrize("make", [tuple, np.array], ids=["tuple", "numpy"])
def test_numpy_ids_are_as_good_as_ints_and_come_out_as_ints(make):
    reference = TARGET.greedy([1, 2], 9)

    class Numpy(ScriptedDrafter):
        def _propose(self, tokens, budget):
            draft = super()._propose(tokens, budget)
            return replace(draft, tokens=make([np.int64(token) for token in draft.tokens]))

    engine = toy_engine(TARGET, Numpy([[1, 2, *reference]], V), k=3)
    sequence = engine.add(np.array([1, 2]), max_new_tokens=9)
    (rounds,) = finish(engine).values()
    assert new_tokens(sequence) == reference
    assert [(r.broken, r.num_accepted) for r in rounds] == [(None, 3), (None, 3), (None, 0)]
    assert {type(token) for token in sequence.tokens} == {int}
    assert {type(token) for r in rounds for token in r.token_ids} == {int}


def test_a_bad_draft_costs_the_others_nothing():
    good = TARGET.greedy([1, 2], 9)

    class OneBad(ScriptedDrafter):
        def propose(self, sequences, budgets):
            drafts = super().propose(sequences, budgets)
            return [
                Draft.chain([V] * b) if s.tokens[0] == 5 else d
                for s, b, d in zip(sequences, budgets, drafts, strict=True)
            ]

    engine = toy_engine(TARGET, OneBad([[1, 2, *good]], V), k=2, slots=2)
    bad, sound = engine.add([5], max_new_tokens=9), engine.add([1, 2], max_new_tokens=9)
    rounds = finish(engine)
    assert new_tokens(sound) == good
    assert new_tokens(bad) == TARGET.greedy([5], 9)
    assert not any(r.broken for r in rounds[sound])
    assert [r.broken is not None for r in rounds[bad]] == [True] * 3 + [False] * 6


class Meddles(ScriptedDrafter):
    """Uses the lists that it is given for its own book-keeping."""

    def propose(self, sequences, budgets):
        drafts = super().propose(sequences, budgets)
        while budgets:
            budgets.pop()
            sequences.pop()
        return drafts


def test_a_drafter_may_use_up_the_lists_that_it_is_given():
    reference = TARGET.greedy([1, 2], 9)
    engine = toy_engine(TARGET, Meddles([[1, 2, *reference]], V), k=3)
    sequence = engine.add([1, 2], max_new_tokens=9)
    (rounds,) = finish(engine).values()
    assert new_tokens(sequence) == reference
    assert [r.num_accepted for r in rounds] == [3, 3, 0]


class Meddler:
    """Writes into a sequence, which belongs to the engine."""

    name, proposal = "meddler", "point_mass"

    def propose(self, sequences, budgets):
        sequences[0].tokens.append(3)
        return [Draft.chain([1] * max(k, 0)) for k in budgets]


def test_a_drafter_that_writes_into_a_sequence_is_counted_and_changes_no_token():
    engine = toy_engine(TARGET, Meddler(), k=2, slots=2)
    sequences = [engine.add([1, 2], max_new_tokens=6), engine.add([3], max_new_tokens=6)]
    rounds = finish(engine)
    assert [new_tokens(s) for s in sequences] == [TARGET.greedy([1, 2], 6), TARGET.greedy([3], 6)]
    for each in rounds.values():
        assert all("it changed a sequence" in r.broken for r in each[:3])
        assert all(r.broken is None for r in each[3:])


class RaisesFor:
    """Fails whenever a sequence that begins with `first` is asked about, in its first `times` rounds."""

    name, proposal = "raises-for", "point_mass"

    def __init__(self, first, times=100):
        self.first, self.times = first, times

    def propose(self, sequences, budgets):
        if any(s.tokens[0] == self.first and s.num_new_tokens < self.times for s in sequences):
            raise RuntimeError("no idea")
        return [Draft.chain(TARGET.greedy(s.tokens, k)) for s, k in zip(sequences, budgets, strict=True)]


def test_a_sequence_that_makes_the_drafter_fail_costs_the_others_no_draft():
    engine = toy_engine(TARGET, RaisesFor(5), k=2, slots=3)
    bad, one, two = (engine.add(prompt, max_new_tokens=9) for prompt in ([5], [1, 2], [3]))
    rounds = finish(engine)
    assert [r.num_accepted for r in rounds[one]] == [r.num_accepted for r in rounds[two]] == [2, 2, 2]
    assert ["no idea" in (r.broken or "") for r in rounds[bad]] == [True] * 3 + [False] * 6
    assert new_tokens(bad) == TARGET.greedy([5], 9)


@pytest.mark.filterwarnings("error")
def test_after_three_failures_in_a_row_a_warning_says_that_the_sequence_goes_on_without():
    engine = toy_engine(TARGET, RaisesFor(5), k=2)
    engine.add([5], max_new_tokens=9)
    with pytest.warns(
        DrafterWarning, match=r"'raises-for' failed 3 times in a row.*without.*RuntimeError: no idea"
    ) as seen:
        finish(engine)
    assert len(seen) == 1
    engine.add([5], max_new_tokens=9)
    with pytest.warns(DrafterWarning):  # the next request gets its own three tries
        finish(engine)


@pytest.mark.filterwarnings("error")
def test_two_failures_in_a_row_are_forgiven():
    engine = toy_engine(TARGET, RaisesFor(5, times=2), k=2)
    sequence = engine.add([5], max_new_tokens=9)
    (rounds,) = finish(engine).values()
    assert [r.num_accepted for r in rounds] == [0, 0, 2, 2, 0]
    assert new_tokens(sequence) == TARGET.greedy([5], 9)


class FailsToLearn(ScriptedDrafter):
    def observe(self, verified):
        raise ValueError("cannot learn")


def test_a_drafter_that_fails_to_learn_is_counted_and_changes_no_token():
    reference = TARGET.greedy([1, 2], 9)
    engine = toy_engine(TARGET, FailsToLearn([[1, 2, *reference]], V), k=1)
    sequence = engine.add([1, 2], max_new_tokens=9)
    (rounds,) = finish(engine).values()
    assert new_tokens(sequence) == reference
    assert all("cannot learn" in r.broken for r in rounds[1:4])
    assert all(r.num_drafted == 0 for r in rounds[4:])
