"""Trees of the most frequent continuations: counted rightly, around the copy, and no larger than they are worth."""

import random
from collections import Counter

import pytest

from engine_runs import decode, plain, toy_engine
from outrider.drafters.suffix import SuffixAutomaton, SuffixDrafter
from outrider.options import Sampling
from outrider.tree import check, depths, paths
from test_drafter_suffix import count_stale_proposals, longest_match, random_texts
from toy import TableModel, make_sequence, random_laws


def followers(text, string):
    """What followed each occurrence of a string, as far as something did."""
    size = len(string)
    return Counter(text[i + size] for i in range(len(text) - size) if text[i : i + size] == string)


def shares(counts):
    return {token: count / counts.total() for token, count in counts.items()} if counts else {}


def count_wrong_shares(automaton_type, texts, **options):
    """Over every prefix, at the match and on a random way from it: how many shares differ from brute force."""
    rng, wrong, compared = random.Random(3), 0, 0
    for text in texts:
        automaton = automaton_type(**options)
        for position, token in enumerate(text):
            automaton.push(token)
            prefix = text[: position + 1]
            length = longest_match(prefix)
            string, match = prefix[len(prefix) - length :], automaton.match
            while string and (expected := shares(followers(prefix, string))):
                found = automaton.continuations(match)
                wrong += match.length != len(string)
                wrong += dict(found) != pytest.approx(expected)
                wrong += [p for _, p in found] != sorted(expected.values(), reverse=True)
                compared += 1
                step = rng.choice(sorted(expected))
                string, match = [*string, step], automaton.step(match, step)
    assert compared > 1000
    return wrong


def test_shares_of_continuations_equal_brute_force_where_no_count_is_cut_short():
    assert count_wrong_shares(SuffixAutomaton, random_texts(40, 30), refreshed_links=1000) == 0


def test_the_bound_on_counting_changes_no_share_of_random_texts_but_a_tight_one_would():
    assert count_wrong_shares(SuffixAutomaton, random_texts(12, 60)) == 0
    assert count_wrong_shares(SuffixAutomaton, random_texts(12, 60), refreshed_links=1) > 0


class ForgetsWhenItSplits(SuffixAutomaton):
    """Planted bug: the state that is split off starts to count at 0."""

    def _add_state(self, length, edges, end, count=0):
        return super()._add_state(length, edges, end)


class CountsOnlyTheWhole(SuffixAutomaton):
    """Planted bug: a suffix that ends at the new place too is not counted."""

    def _count(self):
        self._counts[self._last] += 1


@pytest.mark.parametrize("planted_bug", [ForgetsWhenItSplits, CountsOnlyTheWhole])
def test_the_comparison_of_shares_catches_planted_bugs(planted_bug):
    assert count_wrong_shares(planted_bug, random_texts(40, 30), refreshed_links=1000) > 0


def test_of_equally_frequent_continuations_the_most_recent_comes_first():
    automaton = SuffixAutomaton()
    for token in [1, 2, 8, 1, 2, 7, 1, 2, 9, 1, 2]:
        automaton.push(token)
    assert automaton.continuations(automaton.match) == [(token, pytest.approx(1 / 3)) for token in (9, 7, 8)]


def test_at_the_end_of_the_text_the_longest_suffix_that_went_on_goes_on():
    automaton = SuffixAutomaton()
    for token in [1, 2, 3, 1, 2, 3]:
        automaton.push(token)
    at_end = automaton.step(automaton.step(automaton.step(automaton.match, 1), 2), 3)
    assert at_end.length == 3
    assert automaton.continuations(at_end) == [(1, 1.0)]
    assert automaton.continuations(automaton.step(automaton.match, 99)) == []


# ---------------------------------------------------------------- the tree


def propose(text, budget=16, stop_ids=(), **options):
    return SuffixDrafter(**options).propose([make_sequence(text, stop_ids=stop_ids)], [budget])[0]


def first_path(draft):
    """Down the first child of each node."""
    path, node = [], -1
    while node in draft.parents:
        node = draft.parents.index(node)
        path.append(draft.tokens[node])
    return tuple(path)


FORK = [9, 1, 2, 3, 4, 9, 1, 2, 5, 6, 9, 1, 2, 5, 7, 9, 1, 2]
"""After 9 1 2 came 3 once and 5 twice; after 5 came 6, then 7. The copy is 5 7 9."""


def test_a_tree_by_hand():
    assert propose(FORK, branches=1).tokens == (5, 7, 9)
    draft = propose(FORK, branches=2)
    #  5 (2/3) - 7 (1/3) - 9 (1/3)
    #          - 6 (1/3) - 9 (1/3)
    #  3 (1/3) - 4 (1/3) - 9 (1/3)
    grown = {(5,), (5, 7), (5, 7, 9), (5, 6), (5, 6, 9), (3,), (3, 4), (3, 4, 9)}
    assert set(paths(draft.tokens, draft.parents)[1:]) == grown
    assert draft.tokens[0] == 5
    assert first_path(draft) == (5, 7, 9)
    assert propose(FORK, 1, branches=2).tokens == (5,)


def test_nodes_that_are_reached_too_rarely_are_left_out_but_for_the_copy():
    text = [1, 2, 3, 9] * 4 + [1, 2, 4, 8, 1, 2]  # 3 four times, then 4: the copy is 4
    children = {
        least: set(propose(text, branches=2, min_probability=least, factor=0.5).tokens) for least in (0.1, 0.7, 0.9)
    }
    assert children == {0.1: {3, 4}, 0.7: {3, 4}, 0.9: {4}}


def test_the_copy_is_the_first_path_of_the_tree():
    cut_short = 0
    for text in random_texts(60, 40):
        for branches, budget in [(2, 400), (3, 400), (3, 6)]:
            copy = propose(text, budget, offset=1).tokens
            path = first_path(propose(text, budget, offset=1, branches=branches, min_probability=0.2))
            assert path == copy[: len(path)]
            cut_short += len(path) < len(copy)
            if budget > 100 and len(copy) < 10:
                assert path == copy
    assert cut_short > 0


def test_trees_keep_their_bounds():
    widest = 0
    for text in random_texts(60, 60):
        draft = propose(text, 7, branches=2, offset=1, min_match=1)
        check(draft)
        children = Counter(draft.parents)
        assert len(draft) <= 7
        assert max(children.values()) <= 2
        assert max(depths(draft.parents)) <= longest_match(text) + 1
        widest = max(widest, *children.values())
    assert widest == 2


def test_no_node_has_a_banned_token_or_follows_a_stop():
    drafts = []
    for banned, stop_ids in [((), ()), ((5,), ()), ((), (5,))]:
        sequence = make_sequence(FORK, sampling=Sampling(banned_ids=frozenset(banned)), stop_ids=stop_ids)
        drafts += SuffixDrafter(branches=3, factor=1).propose([sequence], [16])
    free, without, stopped = ({path for path in paths(d.tokens, d.parents) if path} for d in drafts)
    assert {(5,), (5, 7), (3,)} <= free
    assert without == {path for path in free if 5 not in path}
    assert stopped == {path for path in free if 5 not in path[:-1]}


def test_rows_that_are_not_worth_their_cost_are_left_out():
    sizes = [len(propose(FORK, branches=3, row_cost=cost)) for cost in (0.0, 0.2, 0.3, 1.0)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1] == 0


def accepted(text, start, budget, **options):
    """Tokens of the drafts that fit when the text after `start` is what the target writes."""
    drafter, total = SuffixDrafter(**options), 0
    while start < len(text):
        draft = drafter.propose([make_sequence(text[:start])], [budget])[0]
        fitting = [path for path in paths(draft.tokens, draft.parents) if list(path) == text[start : start + len(path)]]
        total += max(map(len, fitting))
        start += max(map(len, fitting)) + 1
    return total


def test_a_tree_is_accepted_further_than_the_copy_alone():
    rng, chain, tree = random.Random(4), 0, 0
    for _ in range(10):
        follower = [rng.sample(range(12), 3) for _ in range(12)]
        text = [0]
        while len(text) < 300:
            text.append(rng.choices(follower[text[-1]], weights=[6, 3, 1])[0])
        chain += accepted(text, 60, 8)
        tree += accepted(text, 60, 8, branches=3)
    assert tree > 1.1 * chain


def test_trees_equal_those_of_a_fresh_drafter_through_joins_leaves_and_slot_reuse():
    def new_drafter():
        return SuffixDrafter(branches=3, min_match=1, offset=1)

    assert count_stale_proposals(new_drafter, new_drafter()) == 0
    assert count_stale_proposals(new_drafter, SuffixDrafter(min_match=1, offset=1)) > 0


def test_the_engine_writes_the_same_text_with_trees():
    target = TableModel(6, order=2, law=random_laws(6, 3, sharpness=4))
    engine = toy_engine(target, SuffixDrafter(branches=3, min_match=1, offset=2), k=8)
    assert decode(engine, [1, 2, 3], max_new_tokens=60) == plain(target, [1, 2, 3], 60)
