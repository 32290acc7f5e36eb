"""Predictions: proposed from the start, found again after every edit, and never a reason for stale state."""

import random

import pytest

from engine_runs import finish, new_tokens, plain, toy_engine
from outrider.drafters.lookup import IndexPerSlot
from outrider.drafters.prediction import TRUST, PredictionIndex
from outrider.drafters.suffix import SuffixDrafter
from outrider.tree import paths
from test_drafter_suffix import count_stale_proposals
from toy import TableModel, make_sequence, random_laws


def propose(prompt, output, prediction, budget=8, stop_ids=(), drafter=None, **options):
    sequence = make_sequence([*prompt, *output], prompt_length=len(prompt), stop_ids=stop_ids)
    sequence.prediction = tuple(prediction)
    drafter = SuffixDrafter(**options) if drafter is None else drafter
    return drafter.propose([sequence], [budget])[0]


# ---------------------------------------------------------------- the index


def longest_agreement(prediction, output, min_match):
    """Most tokens before a place in the prediction, where something follows, that are also the output's last."""
    most = 0
    for end in range(min_match, len(prediction)):
        size = min(end, len(output))
        same = [prediction[end - back] == output[-back] for back in range(1, size + 1)]
        most = max(most, (*same, False).index(False))
    return most if most >= min_match else 0


def count_wrong_matches(index_type):
    """Random outputs, half of them made of pieces of the prediction; against brute force, at every token."""
    rng, wrong, compared = random.Random(2), 0, 0
    for number in range(200):
        alphabet, min_match = (2, 3, 5)[number % 3], number % 2 + 1
        prediction = tuple(rng.randrange(alphabet) for _ in range(rng.randrange(1, 16)))
        index, output, on_trust = index_type(min_match), [], True
        prompt = [rng.randrange(alphabet) for _ in range(3)]
        for token in prompt:
            index.push(token)
        while len(output) < 30:
            start, size = rng.randrange(len(prediction)), rng.randrange(6)
            for token in (*prediction[start : start + size], rng.randrange(alphabet)):
                matched, place = index.find(prediction, len(prompt))
                if on_trust:
                    wrong += (matched, place) != (TRUST + len(output), len(output))
                else:
                    wrong += matched != longest_agreement(prediction, output, min_match)
                    wrong += prediction[place - matched : place] != tuple(output[len(output) - matched :])
                    compared += matched > 0
                index.push(token)
                output.append(token)
                on_trust = on_trust and len(output) < len(prediction) and token == prediction[len(output) - 1]
    assert compared > 1000
    return wrong


def test_the_match_is_the_longest_one_at_every_token():
    assert count_wrong_matches(PredictionIndex) == 0


class TakesTheNearest(PredictionIndex):
    """Planted bug: where the match is found again, it is not compared any further."""

    def _agreeing(self, end):
        return self._min_match


class RunsPastTheEnd(PredictionIndex):
    """Planted bug: the prediction's end counts as a place to go on from."""

    def _follow(self):
        if self._place == len(self._prediction):
            self._place = self._matched = 0
        if self._matched and self._prediction[self._place] == self.tokens[self._seen - 1]:
            self._place, self._matched = self._place + 1, self._matched + 1
        else:
            super()._follow()


@pytest.mark.parametrize("planted_bug", [TakesTheNearest, RunsPastTheEnd])
def test_the_comparison_of_matches_catches_planted_bugs(planted_bug):
    assert count_wrong_matches(planted_bug) > 0


def test_of_equal_matches_the_next_after_the_lost_one_is_taken():
    prediction = (1, 2, 10, 1, 2, 20, 1, 2, 30)
    index = PredictionIndex(2)
    for token in (1, 2, 10, 9, 1, 2):  # 9 was put in after 10
        index.push(token)
    assert index.find(prediction, 0) == (2, 5)
    backwards = PredictionIndex(2)
    for token in (1, 2, 10, 1, 2, 20, 1, 2, 9, 1, 2):
        backwards.push(token)
    assert backwards.find(prediction, 0) == (2, 8)


# ---------------------------------------------------------------- the drafter


def test_the_start_is_proposed_before_any_output():
    assert propose([1, 2, 3], [], range(10, 40)).tokens == tuple(range(10, 18))
    assert propose([1, 2, 3], [10, 11], range(10, 40)).tokens == tuple(range(12, 20))


def test_an_output_that_starts_otherwise_drafts_nothing_until_it_comes_to_the_prediction():
    assert propose([1, 2, 3], [5], range(10, 40)).tokens == ()
    assert propose([1, 2, 3], [5, 10], range(10, 40)).tokens == ()
    assert propose([1, 2, 3], [5, 10, 11], range(10, 40)).tokens == (12, 13)


@pytest.mark.parametrize("min_match", [1, 2, 3])
@pytest.mark.parametrize(
    ("edited", "place"),
    [([90], 11), ([90, 91, 92], 10), ([], 14)],
    ids=["one token replaced", "three tokens put in", "four tokens left out"],
)
def test_after_an_edit_it_is_found_again_as_soon_as_min_match_tokens_agree(min_match, edited, place):
    prediction = list(range(100, 150))
    before = [*prediction[:10], *edited]
    for agreeing in range(5):
        output = before + prediction[place : place + agreeing]
        tokens = propose([1, 2], output, prediction, min_match=min_match).tokens
        going = place + agreeing
        if agreeing >= min_match:
            assert tokens == tuple(prediction[going : going + agreeing])
        elif agreeing or edited:
            assert tokens == ()


def test_the_prediction_wins_ties_and_the_longer_match_wins_otherwise():
    prompt, prediction = [5, 6, 7, 71, 72, 9], (0, 6, 7, 81, 82)
    assert propose(prompt, [9, 6, 7], prediction).tokens == (81, 82)
    assert propose(prompt, [9, 5, 6, 7], prediction).tokens == (71, 72, 9)


def test_a_prediction_is_cut_at_a_stop_and_at_its_end():
    assert propose([1], [], [4, 5, 6, 7], stop_ids=[5]).tokens == (4, 5)
    assert propose([1], [4, 5], [4, 5, 6, 7]).tokens == (6, 7)
    assert propose([1], [4, 5, 6, 7], [4, 5, 6, 7]).tokens == ()


def test_a_tree_has_the_prediction_first_and_beside_it_what_about_as_much_of_the_text_says():
    prediction = range(30, 50)
    for known, beside in [(16, True), (2, True), (1, False)]:  # of TRUST tokens; below a tenth it is left out
        prompt = [*range(5, 5 + known), 60, 61, *range(5, 5 + known)]
        draft = propose(prompt, [], prediction, budget=40, branches=2, min_match=1)
        children = [draft.tokens[node] for node, parent in enumerate(draft.parents) if parent == -1]
        assert children == ([30, 60] if beside else [30])
        assert tuple(prediction[:4]) in paths(draft.tokens, draft.parents)


def test_without_a_prediction_nothing_is_indexed():
    drafter = SuffixDrafter()
    propose([1, 2, 1, 2], [], (), drafter=drafter)
    assert drafter._predictions._held == {}


def random_prediction(rng, prompt):
    """None, or the prompt's tokens with a few exchanged."""
    tokens = [rng.randrange(3) if rng.random() < 0.2 else token for token in prompt]
    return tuple(tokens) if rng.random() < 0.7 else ()


class KeepsTheFirstPrediction(PredictionIndex):
    """Planted bug: the tokens agree, so the prediction is taken to be the same."""

    def find(self, prediction, prompt_length):
        return super().find(self._prediction or prediction, prompt_length)


class FollowsOneTokenPerRound(PredictionIndex):
    """Planted bug: of the tokens that came together only the last moves the place."""

    def _follow(self):
        if self._seen == len(self.tokens):
            super()._follow()


@pytest.mark.parametrize("branches", [1, 3])
def test_proposals_with_predictions_equal_those_of_a_fresh_drafter(branches):
    def new_drafter():
        return SuffixDrafter(branches=branches)

    assert count_stale_proposals(new_drafter, new_drafter(), random_prediction) == 0


def test_the_fresh_drafter_comparison_catches_stale_predictions():
    drafter = SuffixDrafter()
    drafter._predictions = IndexPerSlot(lambda: FollowsOneTokenPerRound(2))
    assert count_stale_proposals(SuffixDrafter, drafter, random_prediction) > 0


def test_the_same_tokens_with_another_prediction_start_anew():
    for index_type, expected in [(PredictionIndex, (7, 8)), (KeepsTheFirstPrediction, ())]:
        drafter = SuffixDrafter()
        drafter._predictions = IndexPerSlot(lambda index_type=index_type: index_type(2))
        propose([1], [9, 3, 5], (4, 5, 6), drafter=drafter)
        assert propose([1], [9, 3, 5], (4, 3, 5, 7, 8), drafter=drafter).tokens == expected


def test_the_engine_writes_the_same_text_in_fewer_rounds_with_a_good_prediction():
    target = TableModel(30, order=2, law=random_laws(30, 3, sharpness=6))
    text = plain(target, [1, 2, 3], 60)
    edited = [token if place % 20 else 29 for place, token in enumerate(text)]
    rounds = {}
    for name, prediction in [("none", ()), ("good", edited), ("bad", [7] * 60)]:
        engine = toy_engine(target, SuffixDrafter(), k=8)
        sequence = engine.add([1, 2, 3], max_new_tokens=60, prediction=prediction)
        rounds[name] = len(finish(engine)[sequence])
        assert new_tokens(sequence) == text
    assert rounds["good"] < 0.6 * rounds["none"]
    assert rounds["bad"] <= rounds["none"]
