"""Prompt lookup proposes what a brute-force search would, whatever joined, left or came back before."""

import random

import pytest

from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.errors import InvalidOption
from outrider.options import Sampling
from toy import make_sequence


def propose(drafter, tokens, budget, **options):
    return list(drafter.propose([make_sequence(tokens, **options)], [budget])[0].tokens)


def brute_force(tokens, budget, max_ngram, min_ngram):
    """The definition: longest suffix first, latest earlier place first, copy on, into the copy itself if need be."""
    for length in range(min(max_ngram, len(tokens) - 1), min_ngram - 1, -1):
        for end in range(len(tokens) - 1, length - 1, -1):
            if tokens[end - length : end] == tokens[-length:]:
                grown = list(tokens)
                for offset in range(budget):
                    grown.append(grown[end + offset])
                return grown[len(tokens) :]
    return []


@pytest.mark.parametrize(("max_ngram", "min_ngram"), [(1, 1), (2, 1), (3, 1), (3, 2), (5, 3)])
def test_proposals_equal_brute_force_while_the_text_grows(max_ngram, min_ngram):
    rng = random.Random(max_ngram)
    for alphabet in (2, 3, 5):
        drafter = NgramDrafter(max_ngram=max_ngram, min_ngram=min_ngram)
        sequence = make_sequence([rng.randrange(alphabet)])
        for _ in range(60):
            budget = rng.randrange(1, 6)
            expected = brute_force(sequence.tokens, budget, max_ngram, min_ngram)
            assert list(drafter.propose([sequence], [budget])[0].tokens) == expected
            sequence.tokens += [rng.randrange(alphabet) for _ in range(rng.randrange(1, 4))]


def test_the_most_recent_occurrence_is_copied():
    assert propose(NgramDrafter(), [1, 2, 7, 1, 2, 8, 1, 2], 1) == [8]


def test_a_longer_match_beats_a_more_recent_one():
    assert propose(NgramDrafter(), [5, 1, 2, 7, 1, 2, 8, 9, 1, 2, 3, 5, 1, 2], 1) == [7]


def test_the_longest_ngram_is_an_option_that_counts():
    text = [5, 1, 2, 7, 6, 1, 2, 8, 5, 1, 2]
    assert propose(NgramDrafter(max_ngram=3), text, 1) == [7]
    assert propose(NgramDrafter(max_ngram=2), text, 1) == [8]
    assert propose(NgramDrafter(max_ngram=4, min_ngram=4), text, 1) == []


def test_a_loop_fills_the_budget():
    assert propose(NgramDrafter(), [9, 4, 4, 4], 5) == [4] * 5
    assert propose(NgramDrafter(), [1, 2, 3, 1, 2, 3, 1], 5) == [2, 3, 1, 2, 3]


@pytest.mark.parametrize("drafter", [NgramDrafter(), SuffixDrafter(min_match=1, factor=9)], ids=lambda d: d.name)
def test_a_copy_ends_at_a_stop_id(drafter):
    # Known fault 12: "a b EOS c a" continues "b EOS c ..." after its 1-gram.
    stop = 9
    assert propose(drafter, [1, 2, stop, 3, 1], 4, stop_ids=[stop]) == [2, stop]
    assert propose(drafter, [1, stop, 3, 1], 4, stop_ids=[stop]) == [stop]
    assert propose(drafter, [1, 2, stop, 3, 1], 4, stop_ids=[]) == [2, stop, 3, 1]


@pytest.mark.parametrize("drafter", [NgramDrafter(), SuffixDrafter(min_match=1, factor=9)], ids=lambda d: d.name)
def test_a_copy_ends_before_a_banned_id(drafter):
    banned = Sampling(banned_ids=frozenset({3}))
    assert propose(drafter, [1, 2, 3, 4, 1], 4, sampling=banned) == [2]
    assert propose(drafter, [1, 3, 4, 1], 4, sampling=banned) == []


@pytest.mark.parametrize("drafter", [NgramDrafter(), SuffixDrafter()], ids=lambda d: d.name)
def test_nothing_is_proposed_without_a_match_or_a_budget(drafter):
    assert propose(drafter, [1, 2, 3, 4], 5) == []
    assert propose(drafter, [1], 5) == []
    assert propose(drafter, [1, 2, 1, 2, 1, 2], 0) == []


@pytest.mark.parametrize("drafter", [NgramDrafter(), SuffixDrafter()], ids=lambda d: d.name)
def test_a_drafter_serves_long_short_and_long_prompts_again(drafter):
    # Known fault 43: state that outlives its request. The ids start again, as they do with a new engine.
    long, short = [1, 2, 3, 4, 5] * 20, [7, 8, 7]
    first = propose(drafter, long, 8, id=0)
    propose(drafter, short, 8, id=1)
    assert propose(drafter, long, 8, id=0) == first == [1, 2, 3, 4, 5, 1, 2, 3]
    assert propose(drafter, [6, 5, 6, 5, 6], 3, id=0) == [5, 6, 5]


@pytest.mark.parametrize(("options", "name"), [({"min_ngram": 0}, "min_ngram"), ({"max_ngram": 0}, "max_ngram")])
def test_lengths_that_leave_nothing_to_look_for_are_refused(options, name):
    with pytest.raises(InvalidOption, match=name):
        NgramDrafter(**options)
