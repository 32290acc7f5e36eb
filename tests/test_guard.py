"""What is let into the engine of what a drafter returns: sound drafts pass as they are, all else is an empty draft."""

from __future__ import annotations

import gc
import re

import numpy as np
import pytest

from outrider.core import Draft
from outrider.errors import DrafterWarning
from outrider.guard import PATIENCE, Guard, why_chains_only
from outrider.rounds import Verified
from outrider.rules import RULES
from toy import TableModel, make_sequence

pytestmark = pytest.mark.filterwarnings("error")

V = 4
TARGET = TableModel(V)
FLAT = np.full(V, 1 / V, dtype=np.float32)
WITHOUT_3 = np.array([1, 1, 1, 0]) / 3


class Says:
    """Answers with what `answer(sequence, budget)` returns or raises; notes what it was asked and told."""

    name = "says"

    def __init__(self, answer, proposal="point_mass"):
        self.answer, self.proposal = answer, proposal
        self.asked, self.told = [], []

    def propose(self, sequences, budgets):
        self.asked.append([(s.id, budget) for s, budget in zip(sequences, budgets, strict=True)])
        return [self.answer(s, budget) for s, budget in zip(sequences, budgets, strict=True)]


class Learns(Says):
    def observe(self, verified):
        self.told.append([v.sequence.id for v in verified])
        raise ValueError("cannot learn")


def guard_of(answer, rule="auto", target=TARGET, kind=Says):
    drafter = kind(answer)
    return Guard(drafter, RULES[rule], target), drafter


def fault_of(draft, rule="auto", budget=4, target=TARGET):
    guard, _ = guard_of(lambda sequence, budget: draft, rule, target)
    (got,), (fault,) = guard.proposals([make_sequence([1, 2])], [budget])
    assert fault is None or len(got) == 0
    return fault


def tree_of(tokens, parents, proposal="point_mass", draft_probs=None):
    return Draft(tokens, parents, proposal, draft_probs)


class Chains:
    """A target without attention masks for trees."""

    vocab_size, takes_trees = V, False


# ---------------------------------------------------------------- what passes

SOUND = {
    "nothing": Draft(),
    "a chain": Draft.chain((0, 1, 2)),
    "a chain of the whole budget": Draft.chain((0, 1, 2, 3)),
    "a drawn chain": Draft.chain((0, 1), np.stack([FLAT, FLAT])),
    "a tree": tree_of((0, 1, 1, 0), (-1, -1, 0, 0)),
    "equal tokens that are no siblings": tree_of((0, 1, 0, 1), (-1, -1, 0, 1)),
    "equal siblings that were drawn": tree_of((2, 2), (-1, -1), "sampled", (FLAT, FLAT)),
    "a drawn sibling and an equal chosen one before it": tree_of((2, 2), (-1, -1), "hybrid", (None, FLAT)),
    "some drawn": tree_of((0, 1, 2), (-1, -1, 0), "hybrid", (FLAT, None, WITHOUT_3)),
    "a hybrid of which nothing was drawn": tree_of((0, 1), (-1, -1), "hybrid"),
}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_draft_passes_as_it_is(name):
    draft = SOUND[name]
    guard, _ = guard_of(lambda sequence, budget: draft)
    (got,), faults = guard.proposals([make_sequence([1, 2])], [4])
    assert faults == [None]
    assert (got.tokens, got.parents, got.proposal) == (draft.tokens, draft.parents, draft.proposal)
    rows = [(got.law(node), draft.law(node)) for node in range(len(draft))]
    assert all((a is None and b is None) or np.array_equal(a, b) for a, b in rows)


def test_ids_of_numpy_become_plain_ones():
    guard, _ = guard_of(lambda sequence, budget: tree_of(tuple(np.array([1, 2])), tuple(np.array([-1, 0]))))
    (got,), _ = guard.proposals([make_sequence([1])], [4])
    assert [type(each) for each in (*got.tokens, *got.parents)] == [int] * 4


# ---------------------------------------------------------------- what does not

FAULTS = {
    "a circle": (tree_of((0, 1), (1, 0)), r"draft.parents\[0\].*-1 \(the pending token\) to -1"),
    "its own parent": (tree_of((0, 1), (-1, 1)), r"draft.parents\[1\]"),
    "a parent after its child": (tree_of((0, 1, 2), (-1, 2, -1)), r"draft.parents\[1\]"),
    "a parent below -1": (tree_of((0,), (-2,)), r"draft.parents\[0\]"),
    "equal chosen siblings": (tree_of((0, 1, 0), (-1, -1, -1)), r"draft.tokens\[2\].*earlier child of node -1"),
    "an equal chosen sibling of a drawn one": (
        tree_of((2, 2), (-1, -1), "hybrid", (FLAT, None)),
        r"draft.tokens\[1\]",
    ),
    "too many nodes": (tree_of((0, 1, 2, 3, 0), (-1,) * 5), "at most 4 tokens"),
    "more tokens than parents": (tree_of((0, 1), (-1,)), "one parent each"),
    "parents that are no whole numbers": (tree_of((0, 1), (-1.0, 0.0)), "whole numbers"),
    "tokens that are no whole numbers": (tree_of((0.0, 1), (-1, 0)), "whole numbers"),
    "an id beyond the vocabulary": (tree_of((0, V), (-1, -1)), f"from 0 to {V - 1}"),
    "a negative id": (tree_of((-1,), (-1,)), f"from 0 to {V - 1}"),
    "no draft": ([0, 1], "not a draft"),
    "fewer laws than nodes": (tree_of((0, 1), (-1, -1), "sampled", (FLAT,)), "1 rows for 2 tokens"),
    "a sampled node without a law": (tree_of((0, 1), (-1, -1), "sampled", (FLAT, None)), "law for every token"),
    "a point mass with a law": (tree_of((0, 1), (-1, -1), "point_mass", (FLAT, None)), "none for a point mass"),
    "a law of another vocabulary": (tree_of((0,), (-1,), "sampled", (np.ones(V + 1) / (V + 1),)), f"{V} entries"),
    "a law that is a list": (tree_of((0,), (-1,), "sampled", ([1.0, 0, 0, 0],)), "numpy arrays"),
    "a law that does not add up": (tree_of((0,), (-1,), "sampled", (FLAT / 2,)), "add up to 1"),
    "a law with a negative entry": (tree_of((0,), (-1,), "sampled", (np.array([1.5, -0.5, 0, 0]),)), "add up to 1"),
    "a law of NaN": (tree_of((0,), (-1,), "sampled", (np.full(V, np.nan),)), "add up to 1"),
    "complex laws": (tree_of((0,), (-1,), "sampled", (FLAT.astype(complex),)), "float type, not complex"),
    "laws of objects": (tree_of((0, 1), (-1, -1), "sampled", (FLAT, FLAT.astype(object))), "float type, not object"),
    "a token of probability 0": (tree_of((3,), (-1,), "sampled", (WITHOUT_3,)), "probability 0"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_draft_that_cannot_be_verified_is_empty_and_its_fault_is_named(name):
    draft, words = FAULTS[name]
    guard, _ = guard_of(lambda sequence, budget: draft)
    drafts, (fault,) = guard.proposals([make_sequence([1, 2])], [4])
    assert drafts == [Draft()]
    assert re.search(words, fault)


def test_trees_are_refused_where_the_target_or_the_rule_takes_chains_only():
    tree, chain = tree_of((0, 1), (-1, -1)), Draft.chain((0, 1))
    assert "a tree, with parents (-1, -1): this target takes no attention mask" in fault_of(tree, target=Chains())
    assert fault_of(chain, target=Chains()) is None
    sampled = tree_of((0, 1), (-1, -1), "sampled", (FLAT, FLAT))
    assert "rule 'block' takes chains only" in fault_of(sampled, "block")
    assert fault_of(Draft.chain((0, 1), (FLAT, FLAT)), "block") is None
    assert fault_of(sampled, "traversal") is None


@pytest.mark.parametrize("rule", sorted(RULES))
def test_why_chains_only_names_the_reason(rule):
    assert "target" in why_chains_only(RULES[rule], Chains())
    reason = why_chains_only(RULES[rule], TARGET)
    assert reason is None if RULES[rule].trees else rule in reason


def test_a_point_mass_is_refused_by_a_rule_for_sampled_drafts_but_an_empty_draft_is_not():
    assert "which rule 'token' does not accept" in fault_of(Draft.chain((0,)), "token")
    assert fault_of(Draft(), "token") is None


# ---------------------------------------------------------------- stops


def test_what_stands_behind_a_stop_is_cut_off_with_its_laws_and_the_others_are_numbered_anew():
    #  -1 ── 0:3 ── 1:0 ── 2:1
    #     ├─ 3:1 ── 4:3 ── 6:2
    #     │      └─ 5:2
    laws = tuple(np.eye(V)[token] * 0.4 + 0.15 for token in (3, 0, 1, 1, 3, 2, 2))
    draft = tree_of((3, 0, 1, 1, 3, 2, 2), (-1, 0, 1, -1, 3, 3, 4), "sampled", laws)
    guard, _ = guard_of(lambda sequence, budget: draft)
    (got,), (fault,) = guard.proposals([make_sequence([1], stop_ids=[3])], [9])
    assert fault is None
    assert (got.tokens, got.parents) == ((3, 1, 3, 2), (-1, -1, 1, 1))
    for node, before in enumerate((0, 3, 4, 5)):
        assert np.array_equal(got.law(node), laws[before])


# ---------------------------------------------------------------- a drafter that fails


def picky(sequence, budget):
    if sequence.tokens[0] == 3:
        raise KeyError("no idea")
    return Draft.chain((0,) * min(budget, 1))


def test_a_batch_that_fails_is_asked_one_by_one_and_the_sound_ones_get_their_drafts():
    guard, drafter = guard_of(picky)
    sequences = [make_sequence([first], id=i, slot=i) for i, first in enumerate((1, 3, 2))]
    drafts, faults = guard.proposals(sequences, [4, 5, 6])
    assert [len(draft) for draft in drafts] == [1, 0, 1]
    assert faults == [None, "KeyError: 'no idea'", None]
    assert drafter.asked == [[(0, 4), (1, 5), (2, 6)], [(0, 4)], [(1, 5)], [(2, 6)]]


def test_after_three_failures_in_a_row_the_sequence_is_not_asked_for_again():
    guard, drafter = guard_of(picky)
    bad, sound = make_sequence([3], id=0), make_sequence([1], id=1)
    for _ in range(PATIENCE - 1):
        assert guard.proposals([bad, sound], [2, 2])[1][0] is not None
    with pytest.warns(DrafterWarning, match="'says' failed 3 times in a row; this sequence goes on without.*no idea"):
        guard.proposals([bad, sound], [2, 2])
    drafter.asked.clear()
    for _ in range(3):
        drafts, faults = guard.proposals([bad, sound], [2, 2])
        assert [len(draft) for draft in drafts] == [0, 1]
        assert faults == [None, None]
    assert drafter.asked == [[(1, 2)]] * 3
    assert guard.proposals([bad], [2]) == ([Draft()], [None])
    assert len(drafter.asked) == 3
    other = make_sequence([3], id=2)
    assert guard.proposals([other], [2])[1] != [None]


def test_a_sound_draft_in_between_forgives_what_was_before():
    failing = iter([True, True, False] * 5)

    def answer(sequence, budget):
        return [0] if next(failing) else Draft.chain((0,))

    guard, _ = guard_of(answer)
    sequence = make_sequence([1])
    faults = [guard.proposals([sequence], [2])[1][0] is not None for _ in range(15)]
    assert faults == [True, True, False] * 5


def test_unsound_drafts_count_as_failures_too():
    guard, _ = guard_of(lambda sequence, budget: Draft.chain((V,)))
    sequence = make_sequence([1])
    with pytest.warns(DrafterWarning, match="ids must be whole numbers"):
        faults = [guard.proposals([sequence], [2])[1][0] for _ in range(5)]
    assert [fault is not None for fault in faults] == [True] * 3 + [False] * 2


def test_tokens_that_the_drafter_wrote_are_taken_back():
    def meddles(sequence, budget):
        sequence.tokens.append(0)
        return Draft.chain((0,))

    guard, _ = guard_of(meddles)
    sequence = make_sequence([1, 2])
    _, (fault,) = guard.proposals([sequence], [2])
    assert "it changed a sequence" in fault
    assert sequence.tokens == [1, 2]


def test_lists_that_the_drafter_empties_are_its_own_copies():
    def clears(sequences, budgets):
        sequences.clear()
        budgets.clear()
        return [Draft()]

    guard, drafter = guard_of(None)
    drafter.propose = clears
    sequences, budgets = [make_sequence([1])], [2]
    assert guard.proposals(sequences, budgets) == ([Draft()], [None])
    assert (len(sequences), budgets) == (1, [2])


# ---------------------------------------------------------------- a drafter that learns


def told(sequences):
    return [Verified(s, Draft(), None, None, None) for s in sequences]


def test_a_failure_to_learn_costs_the_next_draft_of_all_who_were_told_of_and_is_counted():
    guard, drafter = guard_of(lambda sequence, budget: Draft.chain((0,)), kind=Learns)
    one, two, late = (make_sequence([1], id=i) for i in range(3))
    guard.observe(told([one, two]))
    drafts, faults = guard.proposals([one, two, late], [2, 2, 2])
    assert [len(draft) for draft in drafts] == [0, 0, 1]
    assert faults[:2] == ["observe failed with ValueError: cannot learn"] * 2
    assert faults[2] is None
    assert drafter.asked == [[(2, 2)]]
    assert guard.proposals([one], [2])[1] == [None]


def test_a_drafter_that_never_learns_is_neither_asked_nor_told_after_three_rounds():
    guard, drafter = guard_of(lambda sequence, budget: Draft.chain((0,)), kind=Learns)
    sequence = make_sequence([1])
    for _ in range(PATIENCE - 1):
        guard.observe(told([sequence]))
        assert guard.proposals([sequence], [2])[1] != [None]
    guard.observe(told([sequence]))
    with pytest.warns(DrafterWarning, match="observe failed"):
        guard.proposals([sequence], [2])
    guard.observe(told([sequence]))
    assert guard.proposals([sequence], [2]) == ([Draft()], [None])
    assert drafter.told == [[0]] * PATIENCE + [[]]


def test_a_drafter_without_observe_is_told_nothing():
    guard, drafter = guard_of(lambda sequence, budget: Draft())
    guard.observe(told([make_sequence([1])]))
    assert drafter.told == []


def test_what_failed_is_forgotten_with_its_sequence():
    guard, _ = guard_of(lambda sequence, budget: [0])
    sequence = make_sequence([1])
    guard.proposals([sequence], [2])
    assert len(guard._failures) == 1
    del sequence
    gc.collect()
    assert len(guard._failures) == 0
