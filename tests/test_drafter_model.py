"""The draft model: its laws are the ones drawn from, and its cache is always what a fresh drafter would hold."""

import random

import numpy as np
import pytest
import torch

from outrider.core import Block
from outrider.drafters import check_drafter
from outrider.drafters.feeding import PREFILL_WIDTH, Feeder
from outrider.drafters.model import ModelDrafter
from outrider.options import Sampling
from outrider.sampling import laws
from outrider.tree import paths
from toy import KeyedDice, TableModel, blend, make_sequence, random_laws

V = 7
SAMPLED = Sampling(temperature=1.0)
WHOLE_TEXT = TableModel(V, order=None, law=random_laws(V, seed=1, sharpness=3))
"""Its law depends on every row of the cache."""


def law_after(model, sequence, drafted=()):
    """The processed law after the sequence and the drafted tokens, without any cache."""
    return laws(model.logits([*sequence.tokens, *drafted])[None], sequence, [tuple(drafted)])[0]


def favour_the_sum(ids, logits):
    """A logits processor that depends on the whole history."""
    logits[sum(ids) % V] += 2
    return logits


def rising(size):
    """The last id is the likeliest."""
    return np.arange(1, size + 1) / np.arange(size + 1).sum()


class RecordingDice(KeyedDice):
    """Keeps what each token was drawn from, and where."""

    def __init__(self, seed):
        super().__init__(seed)
        self.draws = []

    def categorical(self, weights, position):
        self.draws.append((weights.copy(), position))
        return super().categorical(weights, position)


def test_it_is_a_drafter():
    check_drafter(ModelDrafter(WHOLE_TEXT, 1))


# ---------------------------------------------------------------- the law


def test_draft_probs_are_the_laws_that_the_tokens_were_drawn_from_at_their_absolute_positions():
    coins = RecordingDice(3)
    sequence = make_sequence([1, 2, 3], sampling=SAMPLED, draft_coins=coins)
    (draft,) = ModelDrafter(WHOLE_TEXT, 1).propose([sequence], [5])
    assert draft.proposal == "sampled"
    assert len(draft) == 5
    assert draft.draft_probs.dtype == np.float32
    assert np.array_equal(draft.draft_probs, [weights for weights, _ in coins.draws])
    assert [position for _, position in coins.draws] == [3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.7, top_k=3),
        Sampling(temperature=1.3, top_p=0.8, min_p=0.1),
        Sampling(temperature=1.0, repetition_penalty=1.5, presence_penalty=0.3, frequency_penalty=0.4),
        Sampling(temperature=1.0, logit_bias={2: 1.5}, banned_ids=frozenset({0}), min_new_tokens=4),
        Sampling(
            temperature=1.0, processor=lambda ids, logits: logits - 0.5 * logits.new_tensor([*ids, *range(V)])[:V]
        ),
    ],
)
def test_each_row_is_the_processed_law_with_the_drafted_tokens_as_history(sampling):
    sequence = make_sequence([1, 2, 3, 2], prompt_length=2, sampling=sampling, stop_ids=[5])
    (draft,) = ModelDrafter(WHOLE_TEXT, 1).propose([sequence], [4])
    assert len(draft) > 1
    for count, row in enumerate(draft.draft_probs):
        grown = make_sequence(
            [*sequence.tokens, *draft.tokens[:count]], prompt_length=2, sampling=sampling, stop_ids=[5]
        )
        np.testing.assert_allclose(row, law_after(WHOLE_TEXT, grown), atol=1e-7)
    if sampling.temperature == 0:
        assert list(draft.tokens) == WHOLE_TEXT.greedy(sequence.tokens, 4)


@pytest.mark.parametrize("draft_size", [60, 64, 72])
def test_a_padded_vocabulary_gives_a_law_over_the_targets_ids(draft_size):
    # Known fault 23: the same tokenizer, embeddings of different sizes. The favourites are ids one side lacks.
    shared = min(draft_size, 64)
    draft_model = TableModel(
        draft_size, law=lambda context: np.arange(1, draft_size + 1) / np.arange(draft_size + 1).sum()
    )
    for sampling in (Sampling(), SAMPLED, Sampling(temperature=1.0, top_k=5), Sampling(temperature=1.0, top_p=0.5)):
        sequence = make_sequence([63, 0, 63], sampling=sampling)
        (draft,) = ModelDrafter(draft_model, 1, vocab_size=64).propose([sequence], [6])
        assert draft.draft_probs.shape == (6, 64)
        np.testing.assert_allclose(draft.draft_probs.sum(1), 1, atol=1e-6)
        assert max(draft.tokens) < shared
        for row in draft.draft_probs:
            assert not row[shared:].any()
            alone = laws(draft_model.logits([0])[None, :shared], sequence, [()])[0]
            np.testing.assert_allclose(row[:shared], alone, atol=1e-7)


def test_masking_after_the_law_would_give_another_law():
    # Negative control of the test above: top-k first, mask second.
    draft_model = TableModel(72, law=lambda context: rising(72))
    sequence = make_sequence([0], sampling=Sampling(temperature=1.0, top_k=10))
    (draft,) = ModelDrafter(draft_model, 1, vocab_size=64).propose([sequence], [1])
    late = laws(draft_model.logits([0])[None], sequence, [()])[0][:64]
    assert np.count_nonzero(draft.draft_probs[0]) == 10
    assert np.count_nonzero(late) == 2


def test_a_sequence_whose_law_cannot_be_made_ends_its_own_draft_only():
    def fail_on_long_text(ids, logits):
        if len(ids) > 4:
            raise ValueError("too long for me")
        return logits

    broken = make_sequence([1, 2, 3], slot=0, sampling=Sampling(temperature=1.0, processor=fail_on_long_text))
    sound = make_sequence([1, 2, 3], slot=1, sampling=SAMPLED)
    drafter = ModelDrafter(WHOLE_TEXT, 2)
    short, full = drafter.propose([broken, sound], [5, 5])
    assert (len(short), len(full)) == (2, 5)
    assert short.tokens == full.tokens[:2]
    assert drafter.num_failed == 1


# ---------------------------------------------------------------- length


def test_budgets_bind_and_nothing_runs_without_one():
    model = TableModel(V)
    drafter = ModelDrafter(model, 3)
    sequences = [make_sequence([1, 2], id=slot, slot=slot) for slot in range(3)]
    assert [len(draft) for draft in drafter.propose(sequences, [0, 3, 1])] == [0, 3, 1]
    assert model.num_forwards == 3
    drafts = drafter.propose(sequences, [0, 0, 0])
    assert model.num_forwards == 3
    assert [draft.proposal for draft in drafts] == ["sampled"] * 3


def test_a_drafted_stop_id_is_kept_and_ends_the_draft():
    tokens = [1, 2, 3]
    greedy = WHOLE_TEXT.greedy(tokens, 6)
    place = next(i for i in range(6) if greedy[i] not in greedy[:i] and i > 1)
    (draft,) = ModelDrafter(WHOLE_TEXT, 1).propose([make_sequence(tokens, stop_ids=[greedy[place]])], [6])
    assert list(draft.tokens) == greedy[: place + 1]


@pytest.mark.parametrize("prompt_length", [20, 31, 32, 33, 60])
def test_drafting_ends_where_the_drafts_context_ends(prompt_length):
    # Known faults 20 and 52: draft limit 32, the target goes on to 100 without drafts and without forwards.
    model = TableModel(V, order=None, context_length=32, law=random_laws(V, seed=4))
    drafter, sequence = ModelDrafter(model, 1), make_sequence([1] * prompt_length, sampling=SAMPLED)
    drafted = rounds_past = 0
    while len(sequence.tokens) < 100:
        forwards = model.num_forwards
        (draft,) = drafter.propose([sequence], [5])
        assert len(draft) == max(0, min(5, 33 - len(sequence.tokens)))
        if len(draft) == 0:
            rounds_past += 1
            assert model.num_forwards == forwards
        drafted += len(draft)
        sequence.tokens += [*draft.tokens, 0]
    assert (drafted > 0) == (prompt_length <= 32)
    assert drafter.num_past_context == rounds_past > 0


def test_a_smaller_cache_ends_drafting_as_the_context_does():
    drafter = ModelDrafter(WHOLE_TEXT, 1, capacity=8)
    assert drafter.cache.capacity == 8
    assert [len(drafter.propose([make_sequence([1] * n)], [3])[0]) for n in (5, 7, 8, 9)] == [3, 2, 1, 0]


# ---------------------------------------------------------------- the cache


def accepts_everything(drafter, model, rounds, k):
    """Rounds in which the target accepts all, until one in which it might not; cache and law are audited each time."""
    sequence = make_sequence([1, 2, 3], sampling=SAMPLED)
    for done in range(rounds):
        forwards = model.num_forwards
        (draft,) = drafter.propose([sequence], [k])
        assert model.num_forwards - forwards == k
        for count in range(k):
            if not np.array_equal(draft.draft_probs[count], law_after(model, sequence, draft.tokens[:count])):
                return done
        assert drafter.cache.committed(0) == [*sequence.tokens, *draft.tokens[:-1]]
        next_law = law_after(model, sequence, draft.tokens)
        sequence.tokens += [*draft.tokens, sequence.verify_coins.categorical(next_law, 0)]
    assert len(sequence.tokens) == 3 + rounds * (k + 1)
    return rounds


@pytest.mark.parametrize("k", [1, 2, 5])
def test_a_draft_equal_to_the_target_is_accepted_whole_to_the_end(k):
    # Known faults 9 and 10, and 60: the draft is the target object.
    assert accepts_everything(ModelDrafter(WHOLE_TEXT, 1), WHOLE_TEXT, 100, k) == 100


def count_stale_proposals(drafter, rounds=150, seed=0, vocab_size=V, **options):
    """Random joins, leaves, accepted paths, budgets and repeated ids; how often a fresh drafter differs."""
    rng, live, joined, stale = random.Random(seed), {}, 0, 0
    samplings = [SAMPLED, Sampling(), Sampling(temperature=0.8, top_k=3, repetition_penalty=1.2)]
    for _ in range(rounds):
        for slot in set(range(3)) - set(live):
            prompt = [rng.randrange(vocab_size) for _ in range(rng.choice([1, 2, 5, 30]))]
            live[slot] = make_sequence(
                prompt, id=joined % 2, slot=slot, seed=joined, sampling=rng.choice(samplings), stop_ids=[4]
            )
            joined += 1
        sequences = rng.sample(list(live.values()), k=rng.randrange(1, 4))
        budgets = [rng.choice([0, 1, 2, 5]) for _ in sequences]
        drafts = drafter.propose(sequences, budgets)
        for sequence, budget, draft in zip(sequences, budgets, drafts, strict=True):
            stale += differs_from_fresh(drafter, sequence, budget, draft, **options)
            kept = paths(draft.tokens, draft.parents)[rng.randrange(len(draft) + 1)]
            sequence.tokens += [*kept, rng.randrange(vocab_size)]
            if rng.random() < 0.1:
                del live[sequence.slot]
    return stale


def differs_from_fresh(drafter, sequence, budget, draft, **options):
    """A fresh drafter sees this sequence alone: tokens, laws and cache must be the same."""
    fresh = ModelDrafter(drafter.model, 3, vocab_size=drafter.vocab_size, **options)
    (expected,) = fresh.propose([sequence], [budget])
    if (draft.tokens, draft.parents, draft.proposal) != (expected.tokens, expected.parents, expected.proposal):
        return True
    if any(not same_law(draft.law(node), expected.law(node)) for node in range(len(draft))):
        return True
    return budget > 0 and held(drafter, sequence.slot) != held(fresh, sequence.slot)


def same_law(one, other):
    return one is other if one is None or other is None else np.array_equal(one, other)


def held(drafter, slot):
    length = drafter.cache.lengths[slot]
    return drafter.cache.tokens[slot, :length].tolist(), drafter.cache.positions[slot, :length].tolist()


@pytest.mark.parametrize("sizes", [(V, V), (V - 2, V), (V + 2, V)])
def test_proposals_laws_and_cache_equal_a_fresh_drafters_whatever_was_accepted(sizes):
    # Known faults 25, 43, 49 and 58: every accepted length, stops proposed and refused, slots and ids used again.
    draft_size, target_size = sizes
    model = TableModel(draft_size, order=None, law=random_laws(draft_size, seed=2, sharpness=2))
    assert count_stale_proposals(ModelDrafter(model, 3, vocab_size=target_size)) == 0


class KeepsARow(Feeder):
    """Planted bug, known fault 9: one rejected row stays."""

    def _forget_disagreement(self, text):
        before, length = list(self._held[text.slot]), self.cache.lengths[text.slot]
        super()._forget_disagreement(text)
        kept = len(self._held[text.slot]) + 1
        if kept <= min(length, len(text.tokens) - 1):
            self.cache.lengths[text.slot] = kept
            self._held[text.slot][:] = before[:kept]


class BelievesWhatItHolds(Feeder):
    """Planted bug, known fault 43: what is held is taken for a prefix of the text."""

    def _forget_disagreement(self, text):
        agreed = min(len(self._held[text.slot]), len(text.tokens) - 1)
        self.cache.truncate(text.slot, agreed)
        del self._held[text.slot][agreed:]


class MissesItsLastToken(ModelDrafter):
    """Planted bug, known fault 10: after full acceptance the last drafted token is taken for fed."""

    def propose(self, sequences, budgets):
        drafts = super().propose(sequences, budgets)
        for sequence, draft in zip(sequences, drafts, strict=True):
            if len(draft):
                self.cache.lengths[sequence.slot] += 1
                self.feeder._held[sequence.slot].append(draft.tokens[-1])
        return drafts


class TrimsOneTooFew(ModelDrafter):
    def __init__(self, model, slots):
        super().__init__(model, slots)
        self.feeder.__class__ = KeepsARow


class TrustsIds(ModelDrafter):
    def __init__(self, model, slots):
        super().__init__(model, slots)
        self.feeder.__class__ = BelievesWhatItHolds


@pytest.mark.parametrize("planted_bug", [TrimsOneTooFew, TrustsIds, MissesItsLastToken])
def test_the_fresh_drafter_comparison_catches_planted_bugs(planted_bug):
    assert count_stale_proposals(planted_bug(WHOLE_TEXT, 3)) > 0


def test_the_law_alone_catches_a_missing_entry_after_full_acceptance():
    model = TableModel(V, order=None, law=random_laws(V, seed=1, sharpness=3))
    drafter = MissesItsLastToken(model, 1)
    sequence = make_sequence([1, 2, 3], sampling=SAMPLED)
    for _ in range(2):
        (draft,) = drafter.propose([sequence], [2])
        exact = np.array_equal(draft.draft_probs[0], law_after(model, sequence))
        sequence.tokens += [*draft.tokens, 0]
    assert not exact


@pytest.mark.parametrize("shared", [0, 3, 27, 30])
def test_a_second_turn_drafts_as_if_cold(shared):
    # Known fault 49: turn 2 shares 0, 10, 90 or 100 % of turn 1's ids.
    first = [token % V for token in range(30)]
    second = first[:shared] + [(token + 1) % V for token in first[shared:]]
    drafter, cold = ModelDrafter(WHOLE_TEXT, 1), ModelDrafter(WHOLE_TEXT, 1)
    for id_of_second in (0, 1):
        drafter.propose([make_sequence(first, id=0, sampling=SAMPLED)], [4])
        again = make_sequence(second, id=id_of_second, sampling=SAMPLED)
        (warm,), (expected,) = drafter.propose([again], [4]), cold.propose([again], [4])
        assert warm.tokens == expected.tokens
        assert np.array_equal(warm.draft_probs, expected.draft_probs)


def test_a_long_catch_up_runs_in_chunks_without_logits():
    model = TableModel(V, context_length=3000)
    drafter, prompt = ModelDrafter(model, 2), [token % V for token in range(2 * PREFILL_WIDTH + 100)]
    short, long = make_sequence([1, 2], slot=0, sampling=SAMPLED), make_sequence(prompt, slot=1, sampling=SAMPLED)
    drafts = drafter.propose([short, long], [2, 2])
    assert model.num_forwards == 3 + 2
    assert drafter.cache.committed(1) == [*prompt, drafts[1].tokens[0]]
    assert drafter.cache.committed(0) == [1, 2, drafts[0].tokens[0]]


def test_the_same_object_serves_as_target_and_draft_with_separate_caches():
    # Known fault 60.
    model = TableModel(V, order=None, law=random_laws(V, seed=8))
    drafter, cache, sequence = ModelDrafter(model, 1), model.new_cache(1, 100), make_sequence([1], sampling=SAMPLED)
    for kept in (4, 0, 2, 3, 4, 1):
        (draft,) = drafter.propose([sequence], [4])
        start, width = cache.lengths[0], 1 + len(draft)
        tokens = torch.tensor([[sequence.tokens[-1], *draft.tokens]])
        logits = model.forward(Block(tokens, torch.arange(start, start + width)[None], (0,), (width,)), cache).logits
        for node in range(width):
            assert torch.equal(logits[0, node], model.logits([*sequence.tokens, *draft.tokens[:node]]))
        cache.commit(0, range(kept + 1))
        sequence.tokens += [*draft.tokens[:kept], 0]
        assert cache.committed(0) == sequence.tokens[:-1]


def test_acceptance_does_not_decay_with_a_noisy_draft():
    # Known fault 9, on the figure it was seen in: the overlap of the two laws, early and late.
    exact, noise = random_laws(V, seed=1, sharpness=3), random_laws(V, seed=9)
    target, draft_model = (TableModel(V, order=None, law=law) for law in (exact, blend(exact, noise, 0.3)))
    drafter, sequence = ModelDrafter(draft_model, 1), make_sequence([1], sampling=SAMPLED)
    rng, overlaps = random.Random(6), []
    for _ in range(80):
        (draft,) = drafter.propose([sequence], [4])
        overlaps += [
            np.minimum(row, law_after(target, sequence, draft.tokens[:count])).sum()
            for count, row in enumerate(draft.draft_probs)
        ]
        sequence.tokens += [*draft.tokens[: rng.randrange(5)], rng.randrange(V)]
    early, late = np.mean(overlaps[:80]), np.mean(overlaps[-80:])
    assert early > 0.8
    assert abs(early - late) < 0.05
