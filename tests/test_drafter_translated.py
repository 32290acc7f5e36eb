"""Drafts from a model with another tokenizer: exact by token and by string, and in step with the text."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest

from checkpoints import byte_level_tokenizer
from engine_runs import LIMIT, decode, p_value, sample, toy_engine
from enumeration import law_error, random_model
from outrider.core import Draft
from outrider.drafters.translated import TranslatedDrafter
from outrider.drafters.vocabularies import Vocabularies
from outrider.errors import InvalidOption, VocabularyMismatch
from outrider.models.tokenizer import wrap_tokenizer
from outrider.options import Sampling
from outrider.rules import RULES
from toy import TableModel, exact_string_law, make_sequence, random_laws


class Letters:
    """A tokenizer of a few strings; it takes the longest that fits. Id 0 ends a text."""

    def __init__(self, *pieces):
        self.pieces = ["<end>", *pieces]
        self.stop_ids = self.special_ids = frozenset({0})

    def strings(self):
        return list(self.pieces)

    def encode(self, text):
        ids = []
        while text:
            best = max((p for p in self.pieces[1:] if text.startswith(p)), key=len)
            ids.append(self.pieces.index(best))
            text = text[len(best) :]
        return ids

    def decode(self, ids):
        return "".join(self.pieces[i] for i in ids if i)


TARGET_TOKENS, DRAFT_TOKENS = Letters("a", "b", "ab"), Letters("b", "ba", "a")
TARGET = TableModel(4, order=2, law=random_laws(4, seed=5))
DRAFT = TableModel(4, order=2, law=random_laws(4, seed=6))
PROMPT = [1, 3, 2]


def drafter(method="auto", slots=1):
    return TranslatedDrafter(DRAFT, DRAFT_TOKENS, TARGET_TOKENS, slots, vocab_size=4, method=method)


def test_shared_tokens_are_those_of_the_same_text():
    both = Vocabularies(TARGET_TOKENS, DRAFT_TOKENS)
    assert both.pairs == ((0, 0), (1, 3), (2, 1))
    assert (both.num_shared, both.num_ordinary) == (2, 3)
    assert both.in_draft_ids([1, 3, 2, 0, 3], whole_words=False) == [3, 3, 1, 1, 0, 3, 1]
    assert both.in_draft_ids([1, 3, 2, 0, 3], whole_words=True) == [3, 3, 1, 1, 0, 3, 1]
    assert both.in_draft_ids([2, 1, 2], whole_words=True) == [2, 1]


@pytest.mark.parametrize("rule", ["token", "block", "auto", "coupled"])
@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=1.0), Sampling(temperature=0.7, top_k=2, repetition_penalty=1.3)]
)
def test_by_token_the_engine_keeps_the_targets_law(rule, sampling):
    engine = toy_engine(TARGET, drafter("token", 4), rule, 3, slots=4)
    strings, rounds = sample(engine, PROMPT, 4000, sampling=sampling, max_new_tokens=3)
    assert p_value(strings, exact_string_law(TARGET, PROMPT, 3, sampling)) > LIMIT
    assert 0 < sum(r.num_accepted for r in rounds) < sum(r.num_drafted for r in rounds)
    assert not any(r.broken for r in rounds)


def test_by_string_the_engine_keeps_the_targets_law():
    engine = toy_engine(TARGET, drafter("string", 4), "auto", 4, slots=4)
    sampling = Sampling(temperature=1.0)
    strings, rounds = sample(engine, PROMPT, 4000, sampling=sampling, max_new_tokens=5)
    assert p_value(strings, exact_string_law(TARGET, PROMPT, 5, sampling)) > LIMIT
    assert 0 < sum(r.num_accepted for r in rounds) < sum(r.num_drafted for r in rounds)


@pytest.mark.parametrize("method", ["token", "string"])
def test_greedy_text_is_that_of_plain_decoding(method):
    assert decode(toy_engine(TARGET, drafter(method), "auto", 4), PROMPT, max_new_tokens=20) == TARGET.greedy(
        PROMPT, 20
    )


class ClaimsTheWholeLaw(TranslatedDrafter):
    """Draws from the shared tokens, and declares the law before the restriction."""

    def _drawn(self, growth):
        rows = []
        for row in growth.rows:
            claimed = row + 0.2
            rows.append((claimed / claimed.sum()).astype(np.float32))
        return Draft.chain(growth.drawn, tuple(rows))


class ClaimsThatItsSpellingWasDrawn(TranslatedDrafter):
    def _spelled(self, growth):
        draft = super()._spelled(growth)
        return Draft.chain(draft.tokens, tuple(np.full(4, 0.25, dtype=np.float32) for _ in draft.tokens))


@pytest.mark.parametrize(("kind", "method"), [(ClaimsTheWholeLaw, "token"), (ClaimsThatItsSpellingWasDrawn, "string")])
def test_a_law_that_was_not_drawn_from_is_caught(kind, method):
    lying = kind(DRAFT, DRAFT_TOKENS, TARGET_TOKENS, 4, vocab_size=4, method=method)
    lying.proposal = "sampled"
    engine = toy_engine(TARGET, lying, "token", 4, slots=4)
    sampling = Sampling(temperature=1.0)
    strings, _ = sample(engine, PROMPT, 4000, sampling=sampling, max_new_tokens=5)
    assert p_value(strings, exact_string_law(TARGET, PROMPT, 5, sampling)) < LIMIT


def test_the_restricted_law_is_exact_by_enumeration():
    """p restricted to two of three tokens, drawn and declared; the third comes from the residual."""
    for name in ("token", "block", "traversal"):
        for seed in range(4):
            target, law = random_model("zeros", 3, seed), random_model("dense", 3, seed + 50)

            def propose(coins, law=law):
                tokens, rows = (), []
                for _ in range(2):
                    row = law(tokens).copy()
                    row[2] = Fraction(0)
                    rows.append(row / row.sum())
                    tokens = (*tokens, coins.categorical(rows[-1], 7))
                return Draft.chain(tokens, np.stack(rows))

            assert law_error(RULES[name], propose, target) == 0


@pytest.mark.parametrize("method", ["token", "string"])
def test_a_used_drafter_proposes_what_a_fresh_one_does(method):
    rng, used = random.Random(3), drafter(method, 2)
    sequences = [make_sequence([1, 2], id=i, slot=i, sampling=Sampling(temperature=0.9)) for i in range(2)]
    for _ in range(60):
        for sequence in sequences:
            sequence.tokens += [rng.randrange(1, 4) for _ in range(rng.randint(1, 3))]
        if rng.random() < 0.1:
            sequences[0] = make_sequence([3, 1], id=rng.randrange(100, 999), slot=0, sampling=Sampling(temperature=0.9))
        mine, fresh = (d.propose(sequences, [3, 2]) for d in (used, drafter(method, 2)))
        assert [d.tokens for d in mine] == [d.tokens for d in fresh]
        for one, other in zip(mine, fresh, strict=True):
            assert all(np.array_equal(one.law(n), other.law(n)) for n in range(len(one)))


def real(vocab_size):
    from transformers import PreTrainedTokenizerFast

    inner = PreTrainedTokenizerFast(
        tokenizer_object=byte_level_tokenizer(vocab_size=vocab_size), eos_token="<|endoftext|>"
    )
    return wrap_tokenizer(inner)


def test_real_byte_level_vocabularies_are_read_alike_and_half_characters_wait():
    target, draft = real(320), real(280)
    both = Vocabularies(target, draft)
    assert both.num_shared >= 256
    text = "naïve café 東京 🎉 isn't it\n  ok"
    ids = target.encode(text)
    for whole_words in (False, True):
        assert draft.decode(both.in_draft_ids(ids, whole_words=whole_words)) == text
    assert both.in_draft_ids(ids, whole_words=True) == draft.encode(text)
    for cut in range(len(ids)):
        read = draft.decode(both.in_draft_ids(ids[:cut], whole_words=True))
        assert text.startswith(read)


def test_stop_tokens_meet_only_stop_tokens():
    target, draft = Letters("a"), Letters("a")
    draft.stop_ids = frozenset()
    assert Vocabularies(target, draft).pairs == ((1, 1),)
    draft.stop_ids = frozenset({0})
    assert Vocabularies(target, draft).pairs == ((0, 0), (1, 1))


def test_the_method_follows_from_what_is_shared_and_is_said():
    assert drafter().method == "token"
    assert drafter().note == "token level, 2 of 3 tokens shared"
    many = Letters(*(f"a{'b' * n}" for n in range(30)), "b")
    few = TranslatedDrafter(DRAFT, DRAFT_TOKENS, many, 1, vocab_size=32)
    assert (few.method, few.proposal) == ("string", "point_mass")
    with pytest.raises(VocabularyMismatch, match="share none of the target's 1 tokens"):
        TranslatedDrafter(DRAFT, DRAFT_TOKENS, Letters("x"), 1, vocab_size=2)
    with pytest.raises(InvalidOption, match="method"):
        drafter("letter")


def test_budgets_contexts_and_laws_without_a_shared_token_end_a_draft():
    sequence = make_sequence(PROMPT, sampling=Sampling(temperature=1.0, banned_ids=frozenset({0, 1, 2})))
    by_token = drafter("token")
    assert len(by_token.propose([sequence], [3])[0]) == 0
    assert by_token.num_failed == 1
    small = TranslatedDrafter(DRAFT, DRAFT_TOKENS, TARGET_TOKENS, 1, vocab_size=4, capacity=5)
    free = make_sequence([1, 2, 1, 2], sampling=Sampling(temperature=1.0))
    assert len(small.propose([free], [9])[0]) <= 2
    free.tokens += [1] * 9
    assert len(small.propose([free], [9])[0]) == 0
    assert small.num_past_context == 1
    assert len(by_token.propose([free], [0])[0]) == 0
