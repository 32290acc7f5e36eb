"""Drafters by name, and what is refused at the door."""

import pytest

import outrider.drafters
from outrider.core import Draft
from outrider.drafters import CATALOGUE, NoDrafter, build, check_drafter
from outrider.errors import InvalidOption
from toy import BrokenDrafter, ScriptedDrafter, make_sequence


@pytest.mark.parametrize("name", [name for name, entry in CATALOGUE.items() if entry.is_free])
def test_each_name_builds_a_new_drafter_of_that_name(name):
    drafter = build(name)
    check_drafter(drafter)
    assert drafter.name == name
    assert build(name) is not drafter


@pytest.mark.parametrize("name", ["medusa-9000", "", "NGRAM"])
def test_an_unknown_name_is_refused_with_the_known_ones(name):
    with pytest.raises(InvalidOption, match=r"none, ngram, suffix, .*model:ID, .*A\+B, auto"):
        build(name)


@pytest.mark.parametrize("name", ["model:some/where", "early-exit:3", "quantised", "suffix+quantised"])
def test_a_drafter_that_needs_a_model_is_built_where_models_are_loaded(name):
    with pytest.raises(InvalidOption, match=r"needs no model.*outrider.load"):
        build(name)


def test_drafters_without_a_model_combine():
    drafter = build("suffix:min_match=3+recycling")
    assert drafter.name == "suffix+recycling"
    assert drafter.proposal == "point_mass"
    check_drafter(drafter)


def test_no_drafter_drafts_nothing():
    sequences = [make_sequence([1, 1, 1], slot=slot) for slot in range(2)]
    assert NoDrafter().propose(sequences, [5, 5]) == [Draft(), Draft()]


def test_a_users_own_class_is_a_drafter():
    check_drafter(ScriptedDrafter([], 4))
    check_drafter(BrokenDrafter("raises", 4))


class Complete:
    name, proposal = "mine", "point_mass"

    def propose(self, sequences, budgets):
        return [Draft() for _ in sequences]


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("propose", None, r"propose\(sequences, budgets\)"),
        ("name", 7, "drafter.name is 7"),
        ("proposal", "topk", "sampled, point_mass, hybrid"),
        ("proposal", ["sampled"], "drafter.proposal"),
    ],
)
def test_an_object_that_is_no_drafter_is_refused_with_the_reason(attribute, value, message):
    drafter = Complete()
    check_drafter(drafter)
    setattr(drafter, attribute, value)
    with pytest.raises(InvalidOption, match=message):
        check_drafter(drafter)


@pytest.mark.parametrize("drafter", [None, "ngram", object(), 3])
def test_other_objects_are_refused(drafter):
    with pytest.raises(InvalidOption, match="drafter is"):
        check_drafter(drafter)


def test_exported_names_are_sorted_and_real():
    names = outrider.drafters.__all__
    assert names == sorted(names)
    assert all(hasattr(outrider.drafters, name) for name in names)
