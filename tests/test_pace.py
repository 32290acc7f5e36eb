"""Paces: fixed, and the rule that follows what was accepted."""

import gc
from itertools import pairwise

import pytest

from outrider.errors import InvalidOption
from outrider.planning.pace import AutoPace, FixedPace
from outrider.rounds import Round
from toy import make_sequence


def play(pace, sequence, accepted, rounds, drafted=lambda budget: budget):
    """Let `accepted(round number, num_drafted)` decide; the budgets of all rounds."""
    budgets = []
    for number in range(rounds):
        (budget,) = pace.budgets([sequence])
        num_drafted = drafted(budget)
        num_accepted = min(num_drafted, accepted(number, num_drafted))
        budgets.append(budget)
        pace.observe([Round(sequence, (0,) * (num_accepted + 1), num_drafted, num_accepted, depth=num_drafted)])
    return budgets


def test_a_fixed_pace_is_fixed():
    pace = FixedPace(3)
    sequence = make_sequence([1])
    assert play(pace, sequence, lambda number, n: 0, 5) == [3] * 5
    assert FixedPace(0).budgets([sequence, sequence]) == [0, 0]


@pytest.mark.parametrize("k", [-1, 65, 10**9, 1.5, "4", True, None])
def test_an_absurd_draft_length_is_refused(k):
    with pytest.raises(InvalidOption, match="k is"):
        FixedPace(k)


@pytest.mark.parametrize("cap", [0, -1, 65])
def test_an_absurd_cap_is_refused(cap):
    with pytest.raises(InvalidOption, match="cap is"):
        AutoPace(cap)


def test_it_climbs_to_the_cap_while_everything_is_accepted():
    budgets = play(AutoPace(cap=12), make_sequence([1]), lambda number, n: n, 40)
    assert budgets[0] == 4
    assert budgets == sorted(budgets)
    assert budgets[-1] == 12


def test_it_reaches_zero_where_drafts_keep_failing_and_then_only_probes():
    budgets = play(AutoPace(cap=8), make_sequence([1]), lambda number, n: 0, 100)
    assert budgets.index(0) <= 20
    tail = budgets[budgets.index(0) :]
    assert set(tail) == {0, 1}
    probes = [place for place, budget in enumerate(tail) if budget == 1]
    assert {later - earlier for earlier, later in pairwise(probes)} == {AutoPace.PROBE_EVERY}


def test_it_climbs_from_its_floor_when_acceptance_returns():
    # Known fault 41: acceptance 0 for 50 rounds, then 1.0.
    budgets = play(AutoPace(cap=8), make_sequence([1]), lambda number, n: 0 if number < 50 else n, 100)
    assert budgets[49] == 0
    assert budgets[-1] == 8


@pytest.mark.parametrize("pattern", [(2, 3), (0, 1), (1, 4), (3, 3, 2)])
def test_it_settles_where_accepted_lengths_alternate(pattern):
    # Known fault 41: lengths 2, 3, 2, 3, ...
    budgets = play(AutoPace(cap=16), make_sequence([1]), lambda number, n: pattern[number % len(pattern)], 200)
    settled = budgets[100:]
    switches = sum(earlier != later for earlier, later in pairwise(settled))
    assert switches <= 10
    assert min(settled) > 0


def test_sequences_do_not_share_their_state():
    # Known fault 41: two requests at once with opposite acceptance.
    pace, lucky, unlucky = AutoPace(cap=8), make_sequence([1], id=0), make_sequence([1], id=1)
    for _ in range(30):
        budgets = pace.budgets([lucky, unlucky])
        pace.observe(
            [
                Round(lucky, (0,), budgets[0], budgets[0], depth=budgets[0]),
                Round(unlucky, (0,), budgets[1], 0, depth=budgets[1]),
            ]
        )
    assert pace.budgets([unlucky, lucky]) == [0, 8]


def test_the_cap_is_left_soon_when_acceptance_falls():
    budgets = play(AutoPace(cap=8), make_sequence([1]), lambda number, n: n if number < 100 else 0, 130)
    assert budgets[99] == 8
    assert budgets[-1] == 0


def test_a_new_request_starts_afresh_even_under_an_old_id():
    # Known fault 41: k carried into the next call.
    pace, first = AutoPace(cap=8), make_sequence([1], id=0)
    play(pace, first, lambda number, n: 0, 30)
    assert pace.budgets([first]) == [0]
    assert pace.budgets([make_sequence([1], id=0)]) == [4]


def test_a_sequence_that_ended_is_forgotten():
    pace, finished, dropped = AutoPace(), make_sequence([1]), make_sequence([1])
    pace.budgets([finished, dropped])
    assert len(pace._habits) == 2
    pace.observe([Round(finished, (0,), 4, 4, depth=4, finish_reason="stop")])
    del dropped
    gc.collect()
    assert len(pace._habits) == 0


def test_rounds_without_a_draft_teach_nothing():
    pace, sequence = AutoPace(cap=8), make_sequence([1])
    assert play(pace, sequence, lambda number, n: 0, 50, drafted=lambda budget: 0) == [4] * 50


def test_a_probe_waits_until_the_drafter_has_something_to_draft():
    pace, sequence = AutoPace(cap=8), make_sequence([1])
    play(pace, sequence, lambda number, n: 0, 20)
    waiting = play(pace, sequence, lambda number, n: 0, 40, drafted=lambda budget: 0)
    assert waiting[-20:] == [1] * 20
    assert play(pace, sequence, lambda number, n: n, 30)[-1] == 8


def test_short_drafts_that_are_accepted_whole_do_not_lower_the_budget():
    pace, sequence = AutoPace(cap=8), make_sequence([1])
    play(pace, sequence, lambda number, n: n, 30)
    assert play(pace, sequence, lambda number, n: n, 30, drafted=lambda budget: min(budget, 2)) == [8] * 30
