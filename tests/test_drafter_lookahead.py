"""The lookahead drafter: its window moves as worked out by hand, and pays before the text repeats itself."""

from __future__ import annotations

import pytest
import torch

from engine_runs import finish, toy_engine
from outrider.core import Draft, Verdict
from outrider.drafters.learned import StatePerRequest
from outrider.drafters.lookahead import LookaheadDrafter, Trajectories
from outrider.errors import InvalidOption
from outrider.options import Sampling
from outrider.rounds import Verified
from toy import TableModel, make_sequence, rule_law


def rows_that_say(tokens, vocab_size=100):
    """[n, V] logits whose likeliest tokens are these."""
    return torch.nn.functional.one_hot(torch.tensor(tokens), vocab_size).float()


def test_the_first_window_is_phrases_of_the_prompt_without_barred_ids():
    sequence = make_sequence([1, 2, 99, 3, 4, 98, 5, 6], stop_ids=[99], sampling=Sampling(banned_ids=frozenset({98})))
    assert Trajectories(sequence, 3, 4, 5).columns == [[1, 2, 3], [3, 4, 5], [5, 6, 1]]


def test_the_window_is_a_draft_tree():
    """Columns 10 11 12, 20 21 22, 30 31 32 behind pending token 7; the tree, by hand:

    7 ─┬─ 11 ── 12
       └─ 20 ─┬─ 21 ── 22
              └─ 30 ── 31 ── 32
    """
    drafter = LookaheadDrafter(window=3, ngram=4, candidates=0)
    sequence = make_sequence([7])
    drafter._states.of(sequence).columns = [[10, 11, 12], [20, 21, 22], [30, 31, 32]]
    draft = drafter.propose([sequence], [64])[0]
    assert draft == Draft((11, 12, 20, 21, 22, 30, 31, 32), (-1, 0, -1, 2, 3, 2, 5, 6))


@pytest.mark.parametrize(("budget", "nodes"), [(0, 0), (1, 1), (5, 5), (6, 6), (7, 7), (8, 7), (9, 9), (64, 9)])
def test_candidates_come_first_and_columns_only_as_a_whole_and_equal_siblings_are_one(budget, nodes):
    """Candidates 40 41 42 and 41 42 43, columns 7 41 11 and 40 40 40, all of it:

    7 ─┬─ 40 ─┬─ 41 ── 42
       │      └─ 40 ── 40
       └─ 41 ─┬─ 42 ── 43
              └─ 11
    """
    drafter = LookaheadDrafter(window=2, ngram=4, candidates=2)
    sequence = make_sequence([7])
    state = drafter._states.of(sequence)
    state.columns = [[7, 41, 11], [40, 40, 40]]
    state.pool[7] = [(40, 41, 42), (41, 42, 43)]
    tokens, parents = (40, 41, 42, 41, 42, 43, 11, 40, 40), (-1, 0, 1, -1, 3, 4, 3, 0, 7)
    assert drafter.propose([sequence], [budget])[0] == Draft(tokens[:nodes], parents[:nodes])


def learned(path, next_token, says):
    """State after one round with the tree above: each node's row says `says[node]`, the pending token's `says[-1]`."""
    drafter = LookaheadDrafter(window=3, ngram=4, candidates=2)
    sequence = make_sequence([7])
    state = drafter._states.of(sequence)
    state.columns = [[10, 11, 12], [20, 21, 22], [30, 31, 32]]
    draft = drafter.propose([sequence], [64])[0]
    sequence.tokens += [*(draft.tokens[node] for node in path), next_token]
    logits = rows_that_say([says[-1], *says[:-1]])
    drafter.observe([Verified(sequence, draft, Verdict(path, next_token), logits, None)])
    return state, drafter, sequence


SAYS = [1, 13, 2, 3, 23, 4, 5, 33, 50]
"""After 12 comes 13, after 22 comes 23, after 32 comes 33."""


def test_columns_grow_by_what_the_target_says_and_the_finished_ngrams_go_to_the_pool():
    state, _, _ = learned((), 50, SAYS)
    assert state.pool == {7: [(11, 12, 13)], 20: [(21, 22, 23)], 30: [(31, 32, 33)]}


def test_after_one_token_each_column_drops_its_oldest():
    state, drafter, sequence = learned((), 50, SAYS)
    assert state.columns == [[11, 12, 13], [21, 22, 23], [31, 32, 33]]
    # The pending token stands for the oldest of column 0.
    assert drafter.propose([sequence], [64])[0].tokens == (12, 13, 21, 22, 23, 31, 32, 33)


def test_after_several_tokens_the_window_moves_right_and_goes_on_from_its_neighbour():
    state, _, _ = learned((0, 1), 13, SAYS)  # 11, 12 and 13 were emitted
    assert state.columns == [[31, 32, 33], [32, 33, 31], [33, 31, 32]]


def test_new_columns_take_what_the_pool_knows_to_follow():
    state, _, _ = learned((0,), 20, [1, 13, 2, 3, 23, 4, 5, 20, 50])  # the last column says 20, which 21 follows
    assert state.columns == [[21, 22, 23], [31, 32, 20], [32, 20, 21]]


def test_columns_that_were_not_drafted_stay_where_they_are():
    drafter = LookaheadDrafter(window=3, ngram=4, candidates=2)
    sequence = make_sequence([7])
    state = drafter._states.of(sequence)
    state.columns = [[10, 11, 12], [20, 21, 22], [30, 31, 32]]
    sequence.tokens.append(9)
    drafter.observe([Verified(sequence, Draft(), Verdict((), 9), rows_that_say([9]), None)])
    assert state.columns == [[20, 21, 22], [30, 31, 32], [31, 32, 30]]
    assert state.pool == {}


def test_barred_ids_are_passed_over():
    sequence = make_sequence([7], stop_ids=[5], sampling=Sampling(banned_ids=frozenset({6})))
    drafter = LookaheadDrafter(window=1, ngram=2, candidates=1)
    logits = torch.zeros(1, 10)
    logits[0, [5, 6, 8]] = torch.tensor([3.0, 2.0, 1.0])
    sequence.tokens.append(9)
    drafter.observe([Verified(sequence, Draft(), Verdict((), 9), logits, None)])
    assert drafter._states.of(sequence).pool == {7: [(8,)]}
    assert logits[0, 5] == 3  # the caller's logits are as they were


def test_the_pool_holds_the_latest_ngrams_of_the_text_and_no_more_than_asked():
    drafter = LookaheadDrafter(window=1, ngram=3, candidates=2)
    sequence = make_sequence([1, 2, 3, 1, 4, 5, 1, 2, 3, 1, 6, 7, 1])
    drafts = drafter.propose([sequence], [4])
    assert drafter._states.of(sequence).pool[1] == [(6, 7), (2, 3)]
    assert drafts == [Draft((6, 7, 2, 3), (-1, 0, -1, 2))]


@pytest.mark.parametrize(
    "options",
    [
        {"window": 0},
        {"window": 33},
        {"ngram": 1},
        {"ngram": 9},
        {"candidates": -1},
        {"candidates": 2.5},
        {"window": 32, "ngram": 4, "candidates": 0},
    ],
)
def test_options_outside_their_range_are_refused(options):
    with pytest.raises(InvalidOption, match=next(iter(options))):
        LookaheadDrafter(**options)


# ---------------------------------------------------------------- what it is worth

V = 101
CYCLE = TableModel(V, order=1, law=rule_law(V, lambda context: (2 * context[-1]) % V or 1))
"""Doubling modulo 101 goes through 1 to 100 in some order before it repeats."""

LENGTH = 100


def acceptance_length(trajectories, new_tokens):
    """Tokens per round while no text has come twice, if `new_tokens` is at most a cycle."""
    drafter = LookaheadDrafter(window=8, ngram=4, candidates=4)
    drafter._states = StatePerRequest(lambda s: trajectories(s, 8, 4, 4))
    engine = toy_engine(CYCLE, drafter, k=48)
    engine.add([1, 50, 9, 77, 31, 64, 12, 3], max_new_tokens=new_tokens)
    rounds = [r for each in finish(engine).values() for r in each]
    return new_tokens / len(rounds)


class OffByOne(Trajectories):
    """Planted bug: a column takes what its neighbour should get."""

    def _next_tokens(self, verified):
        found = super()._next_tokens(verified)
        return {j: found.get(j + 1, token) for j, token in found.items()}


class ReadsTheRowBefore(Trajectories):
    """Planted bug: the logits before a column's last token instead of those after it."""

    def _next_tokens(self, verified):
        logits = torch.cat([verified.logits[:1], verified.logits[:-1]])
        return super()._next_tokens(Verified(verified.sequence, verified.draft, verified.verdict, logits, None))


def test_trajectories_are_accepted_before_the_text_repeats_itself():
    assert acceptance_length(Trajectories, LENGTH) > 2


@pytest.mark.parametrize("planted_bug", [OffByOne, ReadsTheRowBefore])
def test_the_acceptance_length_catches_wrong_columns(planted_bug):
    assert acceptance_length(planted_bug, LENGTH) < 1.5


def test_a_text_that_repeats_itself_is_accepted_nearly_whole():
    first_cycle = 100 / acceptance_length(Trajectories, 100)
    assert 200 / (300 / acceptance_length(Trajectories, 300) - first_cycle) > 3.5
