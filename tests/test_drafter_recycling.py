"""The recycling drafter: rows, trust and trees by hand, and what it is worth on a text that repeats itself."""

from __future__ import annotations

import math

import pytest
import torch

from engine_runs import finish, toy_engine
from outrider.core import Draft, Verdict
from outrider.drafters.learned import StatePerRequest
from outrider.drafters.recycling import DECAY, TRUST, Adjacency, RecyclingDrafter
from outrider.errors import InvalidOption
from outrider.options import Sampling
from outrider.rounds import Verified
from toy import TableModel, make_sequence, rule_law


def observed(sequence, draft, path, next_token, probs):
    """A round: `probs` are the target's laws after the pending token and each node."""
    sequence.tokens += [*(draft.tokens[node] for node in path), next_token]
    return Verified(sequence, draft, Verdict(path, next_token), torch.tensor(probs).log(), None)


def near(row):
    return [(token, pytest.approx(p, abs=1e-6)) for token, p in row]


def test_the_prompt_gives_the_first_rows_the_latest_followers_first():
    state = Adjacency(make_sequence([1, 2, 1, 3, 1, 2, 1]), candidates=2)
    assert list(state.children(1)) == near([(2, 0.4), (3, 0.24)])
    assert list(state.children(2)) == near([(1, 0.4)])
    assert list(state.children(9)) == []


def test_the_seeded_tree_grows_while_a_row_is_worth_its_cost():
    """After 1 come 2 (0.4) and 3 (0.24); after 2 comes 1 (0.16); after 3 comes 1 (0.096)."""
    sequence = make_sequence([1, 2, 1, 3, 1, 2, 1])
    drafts = {
        cost: RecyclingDrafter(row_cost=cost, max_depth=2).propose([sequence], [8])[0] for cost in (0.0, 0.18, 0.3, 0.5)
    }
    assert drafts[0.0] == Draft((2, 3, 1, 1), (-1, -1, 0, 1))
    assert drafts[0.18] == Draft((2, 3), (-1, -1))
    assert drafts[0.3] == Draft((2,), (-1,))
    assert drafts[0.5] == Draft()


def test_every_row_of_a_block_renews_its_token_with_the_likeliest_that_follow():
    drafter = RecyclingDrafter(candidates=2)
    sequence = make_sequence([0, 3])
    laws = [[0.1, 0.2, 0.4, 0.3], [0.6, 0.2, 0.15, 0.05], [0.0, 0.0, 1.0, 0.0]]  # after 3, after 2, after 1 (rejected)
    drafter.observe([observed(sequence, Draft((2, 1), (-1, -1)), (0,), 0, laws)])
    state = drafter._states.of(sequence)
    assert state._rows[3] == tuple(near([(2, 0.4), (3, 0.3)]))
    assert state._rows[2] == tuple(near([(0, 0.6), (1, 0.2)]))
    assert state._rows[1] == tuple(near([(2, 1.0)]))  # what is impossible is not kept
    assert state._rows[0] == tuple(near([(3, 0.4)]))  # from the prompt; the next token has no row yet


def test_of_several_rows_of_a_token_the_last_in_the_text_counts():
    """Pending 1, accepted 1, rejected 1 below a rejected 0: three rows of token 1."""
    draft = Draft((1, 0, 1), (-1, -1, 1))
    laws = [[0.9, 0.1], [0.8, 0.2], [0.5, 0.5], [0.3, 0.7]]
    for path, first in [((0,), 0.8), ((), 0.9)]:
        sequence = make_sequence([1])
        state = Adjacency(sequence, 1)
        state.learn(observed(sequence, draft, path, 0, laws))
        assert state._rows[1] == tuple(near([(0, first)]))


def test_trust_compares_accepted_with_expected_at_the_nodes_that_were_reached():
    """After 1 come 2 (0.4) and 3 (0.24), after 2 comes 1 (0.4): 2 was kept, 1 was not, the child of 3 never asked."""
    sequence = make_sequence([1, 2, 1, 3, 1, 2, 1])
    state = Adjacency(sequence, candidates=2)
    draft = Draft((2, 3, 1, 1), (-1, -1, 0, 1))
    state.learn(observed(sequence, draft, (0,), 0, [[0.25] * 4] * 5))
    assert state.trust == pytest.approx((DECAY + 1) / (DECAY + 0.4 + 0.24 + 0.4))
    assert state.children(1) == tuple((t, pytest.approx(0.25 * state.trust)) for t, _ in state._rows[1])


def test_trust_keeps_its_bounds_and_comes_back():
    state = Adjacency(make_sequence([0]), candidates=1)
    draft = Draft((1,), (-1,))
    sequence = make_sequence([0])
    for _ in range(100):
        state.learn(observed(sequence, draft, (), 0, [[0.1, 0.9]] * 2))
    assert state.trust == TRUST[0]
    for _ in range(100):
        sequence.tokens[-1] = 0
        state.learn(observed(sequence, draft, (0,), 0, [[0.4, 0.6]] * 2))
    assert state.trust == TRUST[1]


def test_a_stop_id_ends_a_path_but_not_a_prompt():
    sequence = make_sequence([5, 1, 5], stop_ids=[5])
    assert RecyclingDrafter(row_cost=0).propose([sequence], [8]) == [Draft((1, 5), (-1, 0))]


def test_banned_ids_are_left_out():
    sequence = make_sequence([1, 2, 1, 3, 1], sampling=Sampling(banned_ids=frozenset({3})))
    assert set(RecyclingDrafter(row_cost=0).propose([sequence], [8])[0].tokens) == {1, 2}


@pytest.mark.parametrize(
    "options",
    [
        {"candidates": 0},
        {"candidates": 65},
        {"max_depth": 0},
        {"max_depth": True},
        {"row_cost": -0.1},
        {"row_cost": math.nan},
        {"row_cost": math.inf},
    ],
)
def test_options_outside_their_range_are_refused(options):
    with pytest.raises(InvalidOption, match=next(iter(options))):
        RecyclingDrafter(**options)


# ---------------------------------------------------------------- what it is worth

V, PERIOD = 30, 20
CYCLE = TableModel(V, order=1, law=rule_law(V, lambda context: (context[-1] + 1) % PERIOD))


def acceptance_length(adjacency):
    """Tokens per round from the second time round the cycle on."""
    drafter = RecyclingDrafter()
    drafter._states = StatePerRequest(lambda s: adjacency(s, 8))
    engine = toy_engine(CYCLE, drafter, k=16)
    engine.add([0], max_new_tokens=8 * PERIOD)
    emitted = [len(r.token_ids) for each in finish(engine).values() for r in each]
    later = [count for i, count in enumerate(emitted) if sum(emitted[:i]) >= PERIOD]
    return sum(later) / len(later)


class OffByOne(Adjacency):
    """Planted bug: a token gets the row of the token before it."""

    def _newest_rows(self, verified, block):
        return {token: max(row - 1, 0) for token, row in super()._newest_rows(verified, block).items()}


def test_a_text_that_repeats_itself_is_accepted_far_ahead():
    assert acceptance_length(Adjacency) > 5


def test_the_acceptance_length_catches_rows_that_belong_to_other_tokens():
    assert acceptance_length(OffByOne) < 3
