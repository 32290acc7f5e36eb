"""The drafter with another tokenizer forgets nothing and remembers nothing false, and keeps to its limits."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from outrider.drafters.translated import TranslatedDrafter
from outrider.drafters.translation import Translation
from outrider.drafters.vocabularies import translate
from outrider.models.tokenizer import Tokenizer
from outrider.options import Sampling
from test_drafter_translated_text import METHODS, byte_level, random_texts
from toy import TableModel, make_sequence, random_laws

DRAWN = Sampling(temperature=1.0)


def drafter(method: str, model: TableModel, slots: int = 3, **options: Any) -> TranslatedDrafter:
    return TranslatedDrafter(model, byte_level(290), byte_level(320), slots, method=method, **options)  # type: ignore[arg-type]


def count_stale(used: TranslatedDrafter, rounds: int = 60) -> int:
    """Random texts with parts of characters, joins, leaves, ids and slots used again; how often a fresh one differs."""
    rng, live, stale = random.Random(3), {}, 0
    pool = byte_level(320).encode(" ".join(random_texts(20)))
    for turn in range(rounds):
        for slot in set(range(3)) - set(live):
            prompt = rng.choices(pool, k=rng.randrange(1, 12))
            length = rng.randrange(1, len(prompt) + 1)
            live[slot] = make_sequence(prompt, id=turn % 2, slot=slot, seed=turn, sampling=DRAWN, prompt_length=length)
        sequences = rng.sample(list(live.values()), k=rng.randrange(1, 4))
        budgets = [rng.choice([0, 1, 2, 5]) for _ in sequences]
        drafts = used.propose(sequences, budgets)
        for sequence, budget, draft in zip(sequences, budgets, drafts, strict=True):
            fresh = drafter(used.method, used.feeder.model)  # type: ignore[arg-type]
            (expected,) = fresh.propose([sequence], [budget])
            same_laws = all(np.array_equal(draft.law(i), expected.law(i)) for i in range(len(expected)))
            held = [each.feeder.cache.committed(sequence.slot) for each in (used, fresh)] if budget else [0, 0]
            stale += draft.tokens != expected.tokens or not same_laws or held[0] != held[1]
            start = rng.randrange(len(pool) - 4)
            sequence.tokens += [
                *draft.tokens[: rng.randrange(len(draft) + 1)],
                *pool[start : start + rng.randrange(1, 4)],
            ]
            if rng.random() < 0.1:
                del live[sequence.slot]
    return stale


MODEL = TableModel(290, order=None, law=random_laws(290, seed=2, sharpness=3))


@pytest.mark.parametrize("method", METHODS)
def test_proposals_laws_and_cache_equal_a_fresh_drafters_whatever_was_accepted(method: str) -> None:
    assert count_stale(drafter(method, MODEL)) == 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bug", ["trusts ids", "settles each round"])
def test_the_fresh_drafter_comparison_catches_planted_bugs(
    method: str, bug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if bug == "trusts ids":
        monkeypatch.setattr(Translation, "follows", lambda self, tokens, prompt_length: True)
    else:
        ids = Translation.ids

        def settles(self: Translation) -> list[int] | None:
            found = ids(self)
            self._settle(len(self._loose))
            return found

        monkeypatch.setattr(Translation, "ids", settles)
    assert count_stale(drafter(method, MODEL)) > 0


# ---------------------------------------------------------------- limits


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("draft_size", "target_size"), [(270, 300), (310, 340), (290, 320)])
def test_ids_without_a_row_or_without_a_name_are_never_proposed(method: str, draft_size: int, target_size: int) -> None:
    model = TableModel(draft_size, order=1, law=random_laws(draft_size, seed=4))
    used = drafter(method, model, 1, vocab_size=target_size)
    for seed in range(10):
        sequence = make_sequence(byte_level(320).encode("the fox"), sampling=DRAWN, seed=seed)
        (draft,) = used.propose([sequence], [4])
        assert all(0 <= token < min(target_size, 320) for token in draft.tokens)
        if method == "token":
            assert len(draft) > 0
            assert all(draft.law(node).shape == (target_size,) for node in range(len(draft)))  # type: ignore[union-attr]


@pytest.mark.parametrize("method", METHODS)
def test_budgets_and_contexts_end_drafts(method: str) -> None:
    used = drafter(method, MODEL, 1, capacity=12)
    sequence = make_sequence(byte_level().encode("ab"), sampling=DRAWN)
    assert [len(used.propose([sequence], [k])[0]) <= k for k in (0, 1, 2, 5)] == [True] * 4
    while len(sequence.tokens) <= used.feeder.capacity:
        sequence.tokens += byte_level().encode("z")
        assert len(used.propose([sequence], [3])[0]) <= used.feeder.capacity + 1 - len(sequence.tokens)
    assert used.num_past_context == 1


def test_the_cache_has_room_for_a_text_of_the_targets_in_the_drafts_tokens(smollm2_tokenizer: Tokenizer) -> None:
    used = TranslatedDrafter(TableModel(290), byte_level(290), smollm2_tokenizer, 1, capacity=100)
    assert 250 < used.feeder.capacity < 700
    short = TranslatedDrafter(TableModel(290, context_length=50), byte_level(290), smollm2_tokenizer, 1, capacity=100)
    assert short.feeder.capacity == 50


def test_a_law_without_a_shared_token_ends_the_draft_and_is_counted() -> None:
    used = drafter("token", MODEL, 1)
    allowed = max(set(range(320)) - set(translate(byte_level(320), byte_level(290)).shared))
    banned = frozenset(range(320)) - {allowed}
    sequence = make_sequence([60], sampling=Sampling(temperature=1.0, banned_ids=banned))
    assert len(used.propose([sequence], [3])[0]) == 0
    assert used.num_failed == 1


def test_a_drafted_stop_token_ends_the_draft() -> None:
    def law(context: tuple[int, ...]) -> np.ndarray:
        probs = np.full(290, 1e-6)
        probs[2 if len(context) > 4 else 70] = 1
        return probs / probs.sum()

    for method in METHODS:
        used = drafter(method, TableModel(290, order=None, law=law), 1)
        (draft,) = used.propose([make_sequence(byte_level().encode("th"), stop_ids=[2])], [9])
        assert draft.tokens[-1] == 2
        assert draft.tokens.index(2) == len(draft) - 1
