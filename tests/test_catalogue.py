"""What users may type after --drafter, and what it means."""

from __future__ import annotations

import inspect

import pytest

from outrider.drafters.catalogue import CATALOGUE, ENTRIES, READERS, TREE_NODES, names, parse
from outrider.errors import InvalidOption


def test_names_arguments_and_options_are_read():
    (one,) = parse("suffix:branches=3,min_match=2,factor=1.5")
    assert (one.entry.name, one.argument) == ("suffix", "")
    assert one.options == {"branches": 3, "min_match": 2, "factor": 1.5}
    first, second, third = parse("suffix+model:some/where,tree=2.1+early-exit:10")
    assert [c.entry.name for c in (first, second, third)] == ["suffix", "model", "early-exit"]
    assert (second.argument, second.options, third.argument) == ("some/where", {"tree": "2.1"}, "10")
    assert parse("quantised")[0].argument == ""
    assert parse("quantised:q4")[0].argument == "q4"


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("", "drafter is ''; allowed: none, ngram, suffix"),
        ("medusa-9000", "drafter is 'medusa-9000'.*outrider drafters"),
        ("SUFFIX", "allowed: none, ngram"),
        ("suffix+nonsense", "The part 'nonsense' is unknown"),
        ("suffix+", "The part '' is unknown"),
        ("model", "model:ID"),
        ("model:", "model:ID"),
        ("early-exit", "early-exit:LAYERS"),
        ("model:a,b", "model:ID"),
        ("suffix:5", "allowed: suffix, with options such as min_match=2"),
        ("none:3", "allowed: none"),
        ("suffix:mim_match=3", "mim_match.*allowed: min_match"),
        ("suffix:min_match=x", "min_match is 'x'; allowed: a whole number"),
        ("suffix:factor=", "factor is ''; allowed: a number"),
        ("none:k=3", "no options"),
        ("suffix+none", "different drafters that draft"),
        ("suffix+suffix", "different drafters that draft"),
        ("suffix+suffix:branches=3", "different drafters that draft"),
        ("early-exit:5+early-exit:6", "different drafters that draft"),
        ("suffix:branches=3,branches=4", "each option once"),
        ("auto+suffix", '"auto" stands alone'),
        ("early-exit:x", "early-exit:N"),
        ("early-exit:²", "early-exit:N"),
        ("early-exit:-1", "early-exit:N"),
        ("quantised:nonsense", "quantised:float32, quantised:bfloat16"),
        ("model:x,tree=0", "tree"),
        ("model:x,depth=0", "depth is 0"),
        ("model:x,row_cost=-3", "row_cost is -3"),
        ("eagle:a+medusa:b", "one head"),
        ("early-exit:3+eagle:a", "one head"),
        ("lookahead+suffix", "without lookahead"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(typed, message):
    with pytest.raises(InvalidOption, match=message):
        parse(typed)


def test_all_names_are_listed_for_the_user():
    models = "early-exit:LAYERS, quantised, model:ID, eagle:PATH, medusa:PATH, mlp:PATH"
    assert names() == f"none, ngram, suffix, lookahead, recycling, {models}, A+B, auto"
    assert list(CATALOGUE) == [entry.name for entry in ENTRIES]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_entry_says_what_it_needs_costs_and_is_for_and_its_options_can_be_typed(entry):
    assert all((entry.needs, entry.cost, entry.helps))
    signature = inspect.signature(entry.make).parameters
    for name, default in entry.defaults.items():
        kind = str(signature[name].annotation).split(" | ")[0]
        assert READERS[kind](str(default)) == default
        argument = {"early-exit": "3,", "quantised": "q4,"}.get(entry.name, "x," if entry.argument else "")
        (choice,) = parse(f"{entry.name}:{argument}{name}={default}")
        assert choice.options == {name: default}


def test_which_choices_draft_trees_and_of_what_kind():
    kinds = {
        "suffix": (False, "point_mass", 0),
        "suffix:branches=2": (True, "point_mass", TREE_NODES),
        "recycling": (True, "point_mass", TREE_NODES),
        "lookahead:window=4,candidates=3,ngram=3": (True, "point_mass", 14),
        "model:x": (False, "sampled", 0),
        "model:x,tree=auto": (True, "hybrid", TREE_NODES),
        "quantised:q4,tree=2.1": (True, "hybrid", TREE_NODES),
        "early-exit:3": (False, "sampled", 0),
        "eagle:x": (False, "sampled", 0),
        "eagle:x,tree=auto": (True, "hybrid", TREE_NODES),
    }
    for typed, expected in kinds.items():
        (choice,) = parse(typed)
        assert (choice.drafts_trees, choice.proposal, choice.nodes) == expected, typed


def test_what_a_row_costs_is_measured_only_for_trees_that_ask_for_it():
    wanting = ["recycling", "suffix:branches=2", "model:x,tree=auto"]
    content = ["suffix", "model:x", "recycling:row_cost=0.2", "lookahead", "ngram"]
    assert [parse(typed)[0].wants_row_cost for typed in wanting] == [True] * len(wanting)
    assert [parse(typed)[0].wants_row_cost for typed in content] == [False] * len(content)
