"""Laws against transformers' warpers, against a slow reference, and against plain decoding bit for bit."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from outrider.errors import InvalidOption, OutriderError, ProcessorError
from outrider.options import Sampling, validate
from outrider.sampling import laws, token_logprobs
from outrider.tree import paths as paths_of
from toy import make_sequence

PROMPT, OUTPUT, DRAFT = [3, 5, 3, 9], [5, 7, 7], (7, 1, 5, 1, 2)
CHAIN = [DRAFT[:i] for i in range(len(DRAFT) + 1)]
STOPS = (0, 4)
SIZE = 32


def random_logits(rows=6, size=SIZE, seed=0, scale=3.0):
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)) * scale


def sequence_with(output=OUTPUT, **options):
    tokens = [*PROMPT, *output]
    return make_sequence(tokens, prompt_length=len(PROMPT), sampling=Sampling(**options), stop_ids=STOPS)


def law_of(logits, **options):
    """Law of one row [V] of logits with no history to speak of."""
    return laws(torch.as_tensor(logits, dtype=torch.float32)[None], sequence_with(**options), [()])[0]


def forbid_even_and_like_the_last(token_ids, logits):
    """A processor that depends on the history and writes into what it is given."""
    assert all(isinstance(token, int) for token in token_ids)
    logits[::2] -= 2.0
    logits[token_ids[-1]] += 1.5
    token_ids.clear()
    return logits


HISTORIES = {
    "repetition": {"repetition_penalty": 1.3},
    "repetition below 1": {"repetition_penalty": 0.7},
    "presence": {"presence_penalty": 0.5},
    "frequency": {"frequency_penalty": 0.5},
    "all penalties": {"repetition_penalty": 1.3, "presence_penalty": -0.4, "frequency_penalty": 0.9},
    "bias": {"logit_bias": {1: -100.0, 6: 4.0, 9: -math.inf}},
    "bans": {"banned_ids": frozenset({7, 8, 30})},
    "minimum": {"min_new_tokens": 5},
    "processor": {"processor": forbid_even_and_like_the_last},
    "all": {
        "repetition_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.2,
        "logit_bias": {6: 4.0},
        "banned_ids": frozenset({8}),
        "min_new_tokens": 6,
        "processor": forbid_even_and_like_the_last,
    },
}
FILTERS = {
    "greedy": {"temperature": 0.0},
    "plain": {"temperature": 1.0},
    "cold": {"temperature": 0.7},
    "tiny": {"temperature": 1e-8},
    "hot": {"temperature": 3.0},
    "top_k": {"temperature": 1.0, "top_k": 3},
    "top_k all": {"temperature": 0.8, "top_k": SIZE},
    "top_p": {"temperature": 1.0, "top_p": 0.8},
    "top_p small": {"temperature": 1.0, "top_p": 1e-6},
    "top_p large": {"temperature": 2.0, "top_p": 0.999},
    "min_p": {"temperature": 1.0, "min_p": 0.1},
    "min_p one": {"temperature": 1.0, "min_p": 1.0},
    "all filters": {"temperature": 1.5, "top_k": 12, "top_p": 0.8, "min_p": 0.06},
}


# Filters: what transformers' warpers mean


def warped(logits, sampling, order="tkpm"):
    """[n, V] law by transformers' warpers, in float64."""
    scores, size = logits.double(), logits.shape[-1]
    made = {
        "t": TemperatureLogitsWarper(sampling.temperature),
        "k": TopKLogitsWarper(sampling.top_k or size),
        "p": TopPLogitsWarper(sampling.top_p),
        "m": MinPLogitsWarper(sampling.min_p),
    }
    for name in order:
        scores = made[name](None, scores)
    return scores.softmax(-1).numpy()


def assert_equals_warpers(sampling, logits, order="tkpm"):
    law = laws(logits, sequence_with(**vars(sampling)), [()] * len(logits))
    np.testing.assert_allclose(law, warped(logits, sampling, order), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in FILTERS if name != "greedy"])
@pytest.mark.parametrize("size", [SIZE, 3000])
def test_filters_equal_transformers_warpers(name, size):
    sampling = Sampling(**FILTERS[name])
    for seed in range(5):
        assert_equals_warpers(sampling, random_logits(4, size, seed))


@settings(deadline=None, derandomize=True)
@given(
    st.floats(0.05, 4.0),
    st.one_of(st.none(), st.integers(1, SIZE)),
    st.floats(0.01, 1.0),
    st.floats(0.0, 1.0),
    st.integers(0, 2**32),
)
def test_any_combination_of_filters_equals_transformers_warpers(temperature, top_k, top_p, min_p, seed):
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    assert_equals_warpers(sampling, random_logits(3, seed=seed))


@pytest.mark.parametrize("order", ["mpkt", "pktm", "pkmt", "kpm", "tpm", "tkm", "tkp"])
def test_another_order_or_a_missing_filter_would_be_noticed(order):
    sampling = Sampling(temperature=1.7, top_k=12, top_p=0.7, min_p=0.2)
    with pytest.raises(AssertionError):
        assert_equals_warpers(sampling, random_logits(40), order)


def test_top_p_of_a_flat_law_over_a_large_vocabulary():
    logits = random_logits(2, 40_000, scale=0.01)
    assert_equals_warpers(Sampling(temperature=1.0, top_p=0.95), logits)
    assert (law_of(logits[0], temperature=1.0, top_p=0.95) > 0).sum() > 37_000


def test_top_k_keeps_ties_with_the_kth():
    law = law_of([2.0, 1.0, 3.0, 2.0, 2.0, 0.0], temperature=1.0, top_k=2)
    assert np.flatnonzero(law).tolist() == [0, 2, 3, 4]
    assert law[0] == law[3] == law[4]


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.2, [0]), (0.26, [0, 1]), (0.5, [0, 1]), (0.51, [0, 1, 2]), (1 - 1e-9, [0, 1, 2, 3])]
)
def test_top_p_takes_equal_tokens_from_the_lowest_id(top_p, kept):
    law = law_of([1.0, 1.0, 1.0, 1.0], temperature=1.0, top_p=top_p)
    assert np.flatnonzero(law).tolist() == kept
    np.testing.assert_allclose(law[kept], 1 / len(kept))


def test_top_p_takes_the_lowest_ids_of_the_last_level_only():
    law = law_of(np.log([0.1, 0.3, 0.1, 0.1, 0.3, 0.1]), temperature=1.0, top_p=0.75)
    assert np.flatnonzero(law).tolist() == [0, 1, 2, 4]


def test_top_p_counts_mass_after_top_k():
    probs = np.log([0.4, 0.3, 0.2, 0.1])
    assert np.flatnonzero(law_of(probs, temperature=1.0, top_p=0.55)).tolist() == [0, 1]
    assert np.flatnonzero(law_of(probs, temperature=1.0, top_p=0.55, top_k=2)).tolist() == [0]


@settings(deadline=None, derandomize=True)
@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0]), min_size=1, max_size=12), st.floats(0.01, 0.99))
def test_top_p_is_the_smallest_set_with_the_mass_and_prefers_low_ids(logits, top_p):
    probs = torch.tensor(logits, dtype=torch.float64).softmax(-1).numpy()
    order = sorted(range(len(probs)), key=lambda i: (-probs[i], i))
    masses = [math.fsum(probs[order[:n]]) for n in range(1, len(probs) + 1)]
    if min(abs(mass - top_p) for mass in masses) < 1e-6:
        return  # float32 and float64 may differ on which side it is
    size = 1 + sum(mass < top_p for mass in masses)
    kept = np.flatnonzero(law_of(logits, temperature=1.0, top_p=top_p))
    assert kept.tolist() == sorted(order[:size])


# Temperature


@pytest.mark.parametrize("size", [2, 7, 64, 1000, 49152])
def test_greedy_is_one_hot_at_the_lowest_of_equal_largest_logits(size):
    logits = random_logits(3, size).clamp(max=2.0)
    expected = [int(np.flatnonzero(row == row.max())[0]) for row in logits.numpy()]
    law = laws(logits, sequence_with(), [()] * 3)
    assert law.argmax(-1).tolist() == expected
    assert np.array_equal(np.sort(law, axis=-1), np.eye(1, size, size - 1, dtype=np.float32).repeat(3, axis=0))


def test_negative_zero_ties_with_zero():
    assert law_of([-1.0, -0.0, 0.0]).argmax() == 1
    assert law_of([-1.0, 0.0, -0.0]).argmax() == 1


@pytest.mark.parametrize("temperature", [1e-3, 1e-8, 1e-30, 1e-300, 5e-324])
@pytest.mark.parametrize("filters", [{}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.5}])
def test_a_tiny_temperature_is_greedy_without_overflow(temperature, filters):
    logits = torch.tensor([1e9, -3e38, 2e9, 3e9, -math.inf, 2.9e9])
    assert law_of(logits, temperature=temperature, **filters).tolist() == law_of(logits).tolist()


def test_a_tiny_temperature_shares_the_mass_of_exact_ties():
    assert law_of([4.0, 9.0, 9.0], temperature=1e-8).tolist() == [0.0, 0.5, 0.5]


def test_a_huge_temperature_is_uniform_over_what_is_not_forbidden():
    law = law_of([4.0, -math.inf, 9.0], temperature=1e30)
    np.testing.assert_allclose(law, [0.5, 0, 0.5])


def test_the_law_decides_at_temperature_0_and_not_the_ratio_of_probabilities():
    assert law_of(np.log([0.3, 0.5, 0.2]), temperature=0.0).tolist() == [0.0, 1.0, 0.0]


# Each row's own history


def reference_law(logits, tokens, prompt_length, sampling, stop_ids):
    """The law of one row, one step after the other, in float64 and plain loops."""
    scores = logits.double()
    output = tokens[prompt_length:]
    for token in set(tokens):
        scores[token] *= sampling.repetition_penalty if scores[token] < 0 else 1 / sampling.repetition_penalty
    for token in set(output):
        scores[token] -= sampling.presence_penalty + sampling.frequency_penalty * output.count(token)
    for token, bias in sampling.logit_bias.items():
        scores[token] += bias
    for token in sampling.banned_ids | (stop_ids if len(output) < sampling.min_new_tokens else set()):
        scores[token] = -math.inf
    if sampling.processor is not None:
        scores = sampling.processor(list(tokens), scores)
    if sampling.temperature == 0:
        return np.eye(len(scores))[int(scores.argmax())]
    return warped(scores[None], sampling)[0]


def assert_each_row_has_its_own_history(history, laws=laws):
    """Rows of a draft equal the slow reference, and bit for bit what plain decoding gets at the same place."""
    logits = random_logits()
    for filters in FILTERS.values():
        sequence = sequence_with(**history, **filters)
        verified = laws(logits, sequence, CHAIN)
        for row, path in enumerate(CHAIN):
            tokens = [*sequence.tokens, *path]
            expected = reference_law(logits[row], tokens, len(PROMPT), sequence.sampling, sequence.stop_ids)
            np.testing.assert_allclose(verified[row], expected, rtol=0, atol=1e-6)
            plain = laws(logits[row : row + 1], sequence_with([*OUTPUT, *path], **history, **filters), [()])
            assert np.array_equal(verified[row], plain[0])


@pytest.mark.parametrize("name", HISTORIES)
def test_drafted_rows_equal_plain_decoding(name):
    assert_each_row_has_its_own_history(HISTORIES[name])


@pytest.mark.parametrize("name", [name for name in HISTORIES if name not in ("bias", "bans")])
def test_one_history_for_the_whole_block_would_be_noticed(name):
    def careless(logits, sequence, paths):
        return laws(logits, sequence, [()] * len(paths))

    with pytest.raises(AssertionError):
        assert_each_row_has_its_own_history(HISTORIES[name], careless)


@pytest.mark.parametrize("off", [{"logit_bias": {}}, {"banned_ids": frozenset()}, {"min_new_tokens": 0}])
def test_a_dropped_option_would_be_noticed(off):
    def careless(logits, sequence, paths):
        return laws(logits, replace(sequence, sampling=replace(sequence.sampling, **off)), paths)

    with pytest.raises(AssertionError):
        assert_each_row_has_its_own_history(HISTORIES["all"], careless)


def test_penalties_that_include_the_drafts_of_other_branches_would_be_noticed():
    tokens, parents = (7, 1, 6), (-1, -1, 1)
    tree = paths_of(tokens, parents)
    sequence = sequence_with(temperature=1.0, frequency_penalty=1.0)
    logits = random_logits(4)
    by_path = laws(logits, sequence, tree)
    for row, path in enumerate(tree):
        alone = laws(
            logits[row : row + 1], sequence_with([*OUTPUT, *path], temperature=1.0, frequency_penalty=1.0), [()]
        )
        assert np.array_equal(by_path[row], alone[0])
    as_chain = laws(logits, sequence, [tokens[:i] for i in range(4)])
    assert not np.array_equal(by_path, as_chain)


@pytest.mark.parametrize("penalty", [1.3, 0.6])
def test_the_repetition_penalty_is_that_of_transformers(penalty):
    logits = random_logits(1, seed=3)
    tokens = torch.tensor([[*PROMPT, *OUTPUT]])
    expected = RepetitionPenaltyLogitsProcessor(penalty)(tokens, logits).softmax(-1).numpy()
    law = laws(logits, sequence_with(temperature=1.0, repetition_penalty=penalty), [()])
    np.testing.assert_allclose(law, expected, rtol=0, atol=1e-7)


def test_presence_and_frequency_count_the_output_and_not_the_prompt():
    law = laws(torch.zeros(1, SIZE), sequence_with(temperature=1.0, presence_penalty=0.5, frequency_penalty=0.25), [()])
    relative = np.log(law[0] / law[0][9])  # 9 and 3 are in the prompt alone; 5 is once and 7 twice in the output
    assert relative[[3, 5, 7, 20]] == pytest.approx([0.0, -0.75, -1.0, 0.0], abs=1e-6)


def test_a_bias_of_minus_100_forbids_and_of_100_forces():
    logits = random_logits(1)
    favourite = int(logits.argmax())
    for temperature in (0.0, 1.0):
        law = laws(logits, sequence_with(temperature=temperature, logit_bias={favourite: -100.0}), [()])
        assert law[0, favourite] < 1e-30
        law = laws(logits, sequence_with(temperature=temperature, logit_bias={11: 100.0}), [()])
        assert law[0, 11] == pytest.approx(1.0)


@pytest.mark.parametrize("minimum", range(12))
def test_no_stop_id_before_the_minimum_and_any_after_it(minimum):
    logits = torch.zeros(len(CHAIN), SIZE)
    logits[:, list(STOPS)] = 10.0
    law = laws(logits, sequence_with(temperature=1.0, min_new_tokens=minimum), CHAIN)
    allowed = [bool(row[list(STOPS)].all()) for row in law]
    assert allowed == [len(OUTPUT) + len(path) >= minimum for path in CHAIN]
    assert (law[:, [i for i in range(SIZE) if i not in STOPS]] > 0).all()


@pytest.mark.parametrize("name", [name for name in HISTORIES if "processor" not in HISTORIES[name]])
def test_ids_outside_the_vocabulary_of_the_logits_are_passed_over(name):
    history = {**HISTORIES[name], "logit_bias": {**HISTORIES[name].get("logit_bias", {}), 31: 1.0}}
    narrow = random_logits()[:, :8]
    law = laws(narrow, sequence_with(temperature=1.0, top_k=20, **history), CHAIN)
    wide = torch.cat([narrow, torch.full((len(narrow), SIZE - 8), -math.inf)], dim=1)
    same = laws(wide, sequence_with(temperature=1.0, top_k=20, **history), CHAIN)
    np.testing.assert_allclose(law, same[:, :8], rtol=0, atol=1e-7)


# Rows do not touch each other, nothing is written into the logits


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("size", [5, 1000, 49152])
def test_a_row_is_the_same_bits_alone_and_beside_others(name, size):
    logits = random_logits(9, size)
    logits[3] *= 0.01  # a flat row among peaked ones
    filters = {**FILTERS[name], "top_k": min(FILTERS[name].get("top_k") or size, size)}
    sequence = sequence_with(**(filters if "top_k" in FILTERS[name] else FILTERS[name]))
    together = laws(logits, sequence, [()] * 9)
    for row in range(9):
        assert np.array_equal(together[row], laws(logits[row : row + 1], sequence, [()])[0])


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
@pytest.mark.parametrize("filters", FILTERS.values(), ids=FILTERS)
def test_every_law_sums_to_one_and_its_inputs_are_left_alone(history, filters):
    logits = random_logits()
    before, sequence = logits.clone(), sequence_with(**history, **filters)
    twin = copy.deepcopy(sequence)
    law = laws(logits, sequence, CHAIN)
    law[:] = 0.5  # the law is the caller's own as well
    assert torch.equal(logits, before)
    assert (sequence.tokens, sequence.sampling) == (twin.tokens, twin.sampling)
    law = laws(logits, sequence, CHAIN)
    assert law.shape == logits.shape
    assert law.dtype == np.float32
    assert (law >= 0).all()
    np.testing.assert_allclose(law.sum(-1, dtype=np.float64), 1.0, atol=2e-6)


@pytest.mark.parametrize("filters", FILTERS.values(), ids=FILTERS)
def test_logits_of_any_float_type_and_with_gradients_give_laws(filters):
    sequence = sequence_with(repetition_penalty=1.2, **filters)
    for dtype in (torch.bfloat16, torch.float16):
        half = random_logits().to(dtype)
        assert np.array_equal(laws(half, sequence, CHAIN), laws(half.float(), sequence, CHAIN))
    double = random_logits().double()
    assert laws(double, sequence, CHAIN).dtype == np.float64
    np.testing.assert_allclose(laws(double, sequence, CHAIN), laws(double.float(), sequence, CHAIN), atol=1e-6)
    with_gradient = random_logits().requires_grad_()
    assert np.array_equal(laws(with_gradient, sequence, CHAIN), laws(random_logits(), sequence, CHAIN))


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
def test_logits_made_in_inference_mode_can_be_used_outside_it(history):
    with torch.inference_mode():
        logits = random_logits() * 1.0
    sequence = sequence_with(temperature=0.7, top_p=0.9, **history)
    outside = laws(logits, sequence, CHAIN)
    with torch.inference_mode():
        assert np.array_equal(outside, laws(logits, sequence, CHAIN))


def test_logits_that_are_a_view_of_a_batch_can_be_used():
    batch = random_logits(12, 2 * SIZE).view(4, 3, 2 * SIZE).transpose(0, 1)
    for filters in FILTERS.values():
        sequence = sequence_with(frequency_penalty=0.3, **filters)
        view = batch[1, :, ::2]
        assert np.array_equal(laws(view, sequence, CHAIN[:4]), laws(view.contiguous(), sequence, CHAIN[:4]))


def test_no_rows_give_no_laws():
    for filters in FILTERS.values():
        assert laws(torch.zeros(0, SIZE), sequence_with(**filters), []).shape == (0, SIZE)


def test_a_path_per_row_is_an_invariant():
    with pytest.raises(AssertionError, match="one path per row"):
        laws(random_logits(2), sequence_with(), [()])


# Failures


@pytest.mark.parametrize("filters", FILTERS.values(), ids=FILTERS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_or_infinite_logits_are_an_error_and_not_a_law(filters, bad):
    logits = random_logits()
    logits[2, 17] = bad
    with pytest.raises(OutriderError, match=str(bad)) as caught:
        laws(logits, sequence_with(**filters), CHAIN)
    assert not isinstance(caught.value, ProcessorError)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_token_left_is_an_error_and_not_nan(temperature):
    everything = frozenset(range(SIZE)) - set(STOPS)
    sequence = sequence_with(temperature=temperature, banned_ids=everything, min_new_tokens=len(OUTPUT) + 2)
    with pytest.raises(OutriderError, match="forbid every token"):
        laws(random_logits(), sequence, CHAIN)
    later = laws(random_logits()[2:], sequence, CHAIN[2:])
    assert np.flatnonzero(later.sum(0)).tolist() in ([0, 4], [0], [4])


@pytest.mark.parametrize(
    ("processor", "message"),
    [
        (lambda ids, logits: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda ids, logits: None, "returned NoneType"),
        (lambda ids, logits: logits.tolist(), "returned list"),
        (lambda ids, logits: logits.numpy(), "returned ndarray"),
        (lambda ids, logits: logits > 0, "torch.bool"),
        (lambda ids, logits: logits[None], r"torch.float32, 1, 32"),
        (lambda ids, logits: logits[:-1], r"torch.float32, 31"),
        (lambda ids, logits: logits.sum(), r"shape \(32,\)"),
        (lambda ids, logits: logits * math.nan, "nan"),
        (lambda ids, logits: logits.index_fill(0, torch.tensor([3]), math.nan), "nan"),
        (lambda ids, logits: logits.index_fill(0, torch.tensor([3]), math.inf), "inf"),
        (lambda ids, logits: logits - math.inf, "forbids every token"),
        (lambda ids, logits: logits.double() + 1e300, "inf"),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_processor_that_fails_is_named_in_the_error(processor, message, temperature):
    with pytest.raises(ProcessorError, match=message):
        laws(random_logits(), sequence_with(temperature=temperature, processor=processor), CHAIN)


def test_a_processor_that_raises_is_chained_to_its_own_error():
    def processor(ids, logits):
        raise KeyError("grammar")

    with pytest.raises(ProcessorError, match="KeyError: 'grammar'") as caught:
        laws(random_logits(), sequence_with(processor=processor), CHAIN)
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_interrupt_in_a_processor_is_not_swallowed():
    def processor(ids, logits):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        laws(random_logits(), sequence_with(processor=processor), CHAIN)


def test_a_processor_may_reuse_one_buffer_and_return_other_float_types():
    buffer = torch.empty(SIZE, dtype=torch.float64)

    def reusing(ids, logits):
        buffer.copy_(logits)
        buffer[ids[-1] + 10] = -math.inf
        return buffer

    law = laws(random_logits(), sequence_with(temperature=1.0, processor=reusing), CHAIN)
    forbidden = [(path[-1] if path else OUTPUT[-1]) + 10 for path in CHAIN]
    assert [np.flatnonzero(row == 0).tolist() for row in law] == [[token] for token in forbidden]


def test_a_processor_with_gradients_gives_a_law():
    weight = torch.ones(SIZE, requires_grad=True)
    law = laws(random_logits(), sequence_with(temperature=1.0, processor=lambda ids, x: x * weight), CHAIN)
    assert np.array_equal(law, laws(random_logits(), sequence_with(temperature=1.0), CHAIN))


def test_a_processor_never_sees_a_history_that_decoding_could_not_reach():
    """A grammar raises when it is fed what it has forbidden, or more after its end."""
    seen = []

    def ascending(ids, logits):
        after = ids[len(PROMPT) :]
        assert after == sorted(after), "the grammar was broken"
        assert not set(after) & set(STOPS), "the grammar had ended"
        seen.append(tuple(after))
        logits[: after[-1] if after else 0] = -math.inf
        logits[list(STOPS)] = 1.0
        return logits

    #         pending 7
    #        /    |    \
    #     8 ok  6 bad   stop 4
    #      |      |       |
    #     9 ok   8 bad    9 too late
    tree = paths_of((8, 6, 4, 9, 8, 9), (-1, -1, -1, 0, 1, 2))
    logits = random_logits(len(tree))
    law = laws(logits, sequence_with([7], temperature=1.0, processor=ascending), tree)
    assert seen == [(7,), (7, 8), (7, 8, 9)]
    np.testing.assert_allclose(law.sum(-1), 1.0, atol=1e-6)
    assert law[0, 6] == 0
    with pytest.raises(ProcessorError, match="the grammar was broken"):
        laws(logits[:1], sequence_with([7, 6], temperature=1.0, processor=ascending), [()])


# Log-probabilities


def test_logprobs_are_those_of_the_processed_law():
    logits = random_logits(scale=1.0)
    sequence = sequence_with(temperature=0.8, top_p=0.95, frequency_penalty=0.4, logprobs=5)
    for row, path in enumerate(CHAIN):
        law = laws(logits, sequence, CHAIN)[row]
        token = int(law.argmax())
        given_back = token_logprobs(logits[row], sequence, path, token)
        assert given_back.chosen == pytest.approx(math.log(law[token]), abs=1e-6)
        assert [i for i, _ in given_back.top] == np.argsort(-law, kind="stable")[:5].tolist()
        assert [value for _, value in given_back.top] == pytest.approx(np.sort(np.log(law[law > 0]))[::-1][:5].tolist())


def test_logprobs_of_a_draft_equal_those_of_plain_decoding():
    logits = random_logits()
    for temperature in (0.0, 0.8):
        options = {"temperature": temperature, "repetition_penalty": 1.3, "min_new_tokens": 5, "logprobs": 4}
        for row, path in enumerate(CHAIN):
            drafted = token_logprobs(logits[row], sequence_with(**options), path, 6)
            plain = token_logprobs(logits[row], sequence_with([*OUTPUT, *path], **options), (), 6)
            assert drafted == plain
        careless = token_logprobs(logits[-1], sequence_with(**options), (), 6)
        assert careless != drafted


def test_greedy_logprobs_are_of_the_processed_logits_at_temperature_1():
    logits = random_logits(1)[0]
    options = {"logit_bias": {3: 2.0}, "banned_ids": frozenset({int(logits.argmax())}), "logprobs": 3}
    law = laws(logits[None], sequence_with(temperature=1.0, **options), [()])[0]
    found = token_logprobs(logits, sequence_with(temperature=0.0, top_k=1, **options), (), int(law.argmax()))
    assert found.chosen == found.top[0][1] == pytest.approx(math.log(law.max()))
    assert found.chosen < 0
    assert len(found.top) == 3


@pytest.mark.parametrize("wanted", [None, 0])
def test_no_top_tokens_unless_asked(wanted):
    found = token_logprobs(random_logits(1)[0], sequence_with(temperature=1.0, logprobs=wanted), (), 2)
    assert found.top == ()
    assert -20 < found.chosen < 0


def test_equal_tokens_come_lowest_id_first_and_impossible_ones_not_at_all():
    logits = torch.tensor([1.0, 2.0, 1.0, 1.0, -math.inf])
    sequence = sequence_with([], temperature=1.0, logprobs=3)
    assert [i for i, _ in token_logprobs(logits, sequence, (), 0).top] == [1, 0, 2]
    narrow = sequence_with([], temperature=1.0, top_k=1, logprobs=5)
    found = token_logprobs(logits, narrow, (), 0)
    assert found.top == ((1, 0.0),)
    assert found.chosen == -math.inf
    everything = sequence_with([], temperature=1.0, logprobs=5)
    assert [i for i, _ in token_logprobs(logits, everything, (), 0).top] == [1, 0, 2, 3]


# Validation


def test_the_defaults_and_the_edges_of_every_range_are_valid():
    validate(Sampling(), SIZE)
    for options in (*FILTERS.values(), *HISTORIES.values()):
        validate(Sampling(**options), SIZE)
    validate(Sampling(temperature=1e30, top_k=1, top_p=1, min_p=0, repetition_penalty=1, logprobs=0), SIZE)
    validate(Sampling(temperature=np.float32(0.5), top_k=np.int64(SIZE), min_p=1, logprobs=SIZE), SIZE)
    validate(Sampling(logit_bias={0: -math.inf, SIZE - 1: 100}, banned_ids=frozenset(range(1, SIZE - 1))), SIZE)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", [-0.1, math.nan, math.inf, -math.inf, 1e31, "0", True, None, [1.0]]),
        ("top_k", [0, -1, SIZE + 1, 2.0, "3", True, math.nan]),
        ("top_p", [0, 0.0, -0.5, 1.0001, math.nan, "0.9", None, True]),
        ("min_p", [-0.1, 1.1, math.nan, "0.1", None, False]),
        ("repetition_penalty", [0, -1.0, math.nan, math.inf, "1.2", None, True]),
        ("presence_penalty", [math.nan, math.inf, -math.inf, "0", None, True]),
        ("frequency_penalty", [math.nan, math.inf, -math.inf, "0", None, True]),
        ("logit_bias", [{-1: 1.0}, {SIZE: 1.0}, {1: math.nan}, {1: math.inf}, {1: "1"}, {"1": 1.0}, {True: 1.0}, [1]]),
        ("banned_ids", [{-1}, {SIZE}, {1.0}, {"1"}, {True}, frozenset(range(SIZE)), 5, "12"]),
        ("min_new_tokens", [-1, 1.0, math.nan, "1", None, True]),
        ("processor", [5, "processor", torch.zeros(3)]),
        ("logprobs", [-1, SIZE + 1, 1.5, "2", True]),
    ],
)
def test_a_value_without_meaning_is_refused_by_name(name, values):
    for value in values:
        with pytest.raises(InvalidOption, match=f"^{name} is .*; allowed: ") as caught:
            validate(Sampling(**{name: value}), SIZE)
        assert caught.value.name == name


def test_bans_by_bias_count_among_the_bans():
    sampling = Sampling(banned_ids=frozenset(range(10)), logit_bias=dict.fromkeys(range(10, SIZE), -math.inf))
    with pytest.raises(InvalidOption, match="At least one token must be left"):
        validate(sampling, SIZE)


def test_only_the_wrong_items_of_a_collection_are_shown():
    with pytest.raises(InvalidOption, match=r"^banned_ids is \[40\]; allowed: a set of token ids from 0 to 31"):
        validate(Sampling(banned_ids=frozenset({*range(20), 40})), SIZE)
    with pytest.raises(InvalidOption, match=r"^logit_bias is {7: nan}; "):
        validate(Sampling(logit_bias={**dict.fromkeys(range(20), 1.0), 7: math.nan}), SIZE)
