"""The suffix automaton finds the longest earlier suffix, and its drafter never lives on stale state."""

import random

import pytest

from outrider.drafters.lookup import IndexPerSlot
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.suffix import SuffixAutomaton, SuffixDrafter
from outrider.errors import InvalidOption
from toy import make_sequence


def earlier_ends(text, length):
    """Positions after the earlier occurrences of the last `length` tokens, the latest first."""
    return [end for end in range(len(text) - 1, length - 1, -1) if text[end - length : end] == text[-length:]]


def longest_match(text):
    return max((length for length in range(1, len(text)) if earlier_ends(text, length)), default=0)


def random_texts(num_texts, length):
    rng = random.Random(5)
    for number in range(num_texts):
        alphabet = (1, 2, 2, 3, 4, 8)[number % 6]
        yield [rng.randrange(alphabet) for _ in range(length)]


def count_differences(automaton_type, texts, **options):
    """How many match lengths and match places differ from brute force, over every prefix of every text."""
    lengths = places = 0
    for text in texts:
        automaton = automaton_type(**options)
        for position, token in enumerate(text):
            automaton.push(token)
            prefix = text[: position + 1]
            expected = longest_match(prefix)
            lengths += automaton.match_length != expected
            places += expected > 0 and automaton.match_end != earlier_ends(prefix, expected)[0]
    return lengths, places


def test_match_length_and_most_recent_place_equal_brute_force():
    assert count_differences(SuffixAutomaton, random_texts(60, 40), refreshed_links=1000) == (0, 0)


def test_the_bound_on_refreshing_costs_no_match_and_always_leaves_an_occurrence():
    stale = 0
    for text in random_texts(60, 60):
        automaton = SuffixAutomaton()
        for position, token in enumerate(text):
            automaton.push(token)
            prefix = text[: position + 1]
            length = longest_match(prefix)
            assert automaton.match_length == length
            if length:
                places = earlier_ends(prefix, length)
                assert automaton.match_end in places
                stale += automaton.match_end != places[0]
    assert stale < 0.02 * 60 * 60


class NeverSplits(SuffixAutomaton):
    """Planted bug: a state that stands for longer strings too is taken as it is."""

    def _step(self, state, token):
        return self._edges[state][token]


class NeverRefreshes(SuffixAutomaton):
    """Planted bug: the first occurrence is kept for ever."""

    def _refresh(self):
        pass


def test_the_brute_force_comparison_catches_planted_bugs():
    assert count_differences(NeverSplits, random_texts(60, 40))[0] > 0
    assert count_differences(NeverRefreshes, random_texts(60, 40))[1] > 0


def test_memory_and_work_stay_linear_in_a_loop_and_in_random_text():
    for text in ([7] * 4000, [1, 2, 3] * 1300, *random_texts(6, 4000)):
        automaton = SuffixAutomaton()
        for token in text:
            automaton.push(token)
        assert len(automaton._lengths) <= 2 * len(text)


def test_the_draft_grows_with_the_match():
    text = [1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 2, 3]
    drafts = {
        (factor, offset): SuffixDrafter(factor=factor, offset=offset).propose([make_sequence(text)], [8])[0].tokens
        for factor, offset in [(1, 0), (2, 0), (1, -1), (0.5, 0), (1, -5)]
    }
    assert drafts == {(1, 0): (4, 5, 6), (2, 0): (4, 5, 6, 7, 8, 0), (1, -1): (4, 5), (0.5, 0): (4,), (1, -5): ()}


def test_a_match_below_the_minimum_drafts_nothing():
    text = [1, 2, 9, 8, 1]
    assert SuffixDrafter(min_match=2).propose([make_sequence(text)], [8])[0].tokens == ()
    assert SuffixDrafter(min_match=1).propose([make_sequence(text)], [8])[0].tokens == (2,)


def test_the_budget_binds():
    assert SuffixDrafter(factor=10).propose([make_sequence([1, 2, 3] * 5)], [4])[0].tokens == (1, 2, 3, 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("min_match", 0),
        ("factor", 0.0),
        ("factor", float("inf")),
        ("offset", float("nan")),
        ("branches", 0),
        ("min_probability", 1.5),
        ("row_cost", -0.1),
        ("row_cost", float("inf")),
    ],
)
def test_options_outside_their_range_are_refused(name, value):
    with pytest.raises(InvalidOption, match=name):
        SuffixDrafter(**{name: value})


def count_stale_proposals(new_drafter, drafter, new_prediction=lambda rng, prompt: ()):
    """Joins, leaves, reused slots and repeated ids at random; how often a fresh drafter proposes something else."""
    rng = random.Random(11)
    live, next_id, stale = {}, 0, 0
    for _ in range(300):
        for slot in range(3):
            if slot not in live and rng.random() < 0.5:
                prompt = [rng.randrange(3) for _ in range(rng.randrange(1, 30))]
                live[slot] = make_sequence(prompt, id=next_id % 2, slot=slot)
                live[slot].prediction = new_prediction(rng, prompt)
                next_id += 1
        sequences = rng.sample(list(live.values()), k=rng.randrange(len(live) + 1))
        budgets = [rng.randrange(6) for _ in sequences]
        drafts = drafter.propose(sequences, budgets)
        stale += drafts != new_drafter().propose(sequences, budgets)
        for sequence, draft in zip(sequences, drafts, strict=True):
            kept = rng.randrange(len(draft) + 1)
            sequence.tokens += [*draft.tokens[:kept], rng.randrange(3)]
            if rng.random() < 0.1:
                del live[sequence.slot]
    return stale


class TrustsIds(IndexPerSlot):
    """Planted bug: the tokens are not compared, though ids come again."""

    def caught_up(self, sequence):
        owner, index = self._held.get(sequence.slot, (None, None))
        if owner != sequence.id or len(index.tokens) > len(sequence.tokens):
            return super().caught_up(sequence)
        for token in sequence.tokens[len(index.tokens) :]:
            index.push(token)
        return index


class MissesFirstUnseen(IndexPerSlot):
    """Planted bug: catching up starts one token late."""

    def caught_up(self, sequence):
        _, index = self._held.get(sequence.slot, (None, None))
        if index is not None and len(index.tokens) < len(sequence.tokens) - 1:
            index.tokens.append(sequence.tokens[len(index.tokens)])
        return super().caught_up(sequence)


@pytest.mark.parametrize("new_drafter", [SuffixDrafter, NgramDrafter])
def test_proposals_equal_those_of_a_fresh_drafter_through_joins_leaves_and_slot_reuse(new_drafter):
    assert count_stale_proposals(new_drafter, new_drafter()) == 0


@pytest.mark.parametrize("planted_bug", [TrustsIds, MissesFirstUnseen])
def test_the_fresh_drafter_comparison_catches_stale_state(planted_bug):
    drafter = SuffixDrafter()
    drafter._automata = planted_bug(SuffixAutomaton)
    assert count_stale_proposals(SuffixDrafter, drafter) > 0
