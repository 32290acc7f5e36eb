"""Drafts from a model with another tokenizer keep the target's law, by token and by text: proofs by enumeration.

The target has the tokens {a, b, ab} and the draft {b, ba, a}, each beside one that ends the text.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from engine_runs import LIMIT, decode, p_value, sample, toy_engine
from enumeration import law_error, one_round, random_model
from outrider.core import Coins, Draft
from outrider.drafters import check_drafter, translated
from outrider.drafters.translated import TranslatedDrafter
from outrider.options import Sampling
from outrider.rules import RULES
from outrider.sampling import laws
from toy import TableModel, exact_string_law, make_sequence, random_laws


class Letters:
    """A tokenizer of a few strings that takes the longest that fits and passes over what it does not know."""

    prefix_ids = ()

    def __init__(self, *pieces: str, end: str = "<end>") -> None:
        self._strings = [end, *pieces]
        self.stop_ids = self.special_ids = frozenset({0})
        self.eos_id: int | None = 0

    def strings(self) -> list[str | None]:
        return list(self._strings)

    def pieces(self) -> list[bytes | None]:
        return [None, *(piece.encode() for piece in self._strings[1:])]

    def encode(self, text: str) -> list[int]:
        ids = []
        while text:
            fitting = [piece for piece in self._strings[1:] if text.startswith(piece)]
            best = max(fitting, key=len, default="")
            ids += [self._strings.index(best)] if fitting else []
            text = text[max(1, len(best)) :]
        return ids


TARGET_TOKENS, DRAFT_TOKENS = Letters("a", "b", "ab"), Letters("b", "ba", "a", end="<stop>")
A, B, AB = 1, 2, 3
DRAFT = TableModel(4, order=3, law=random_laws(4, seed=6, sharpness=2))
PROMPT = [A, AB, B]
DRAWN = Sampling(temperature=1.0)


def make(method: str = "auto", slots: int = 1, **options: Any) -> TranslatedDrafter:
    return TranslatedDrafter(DRAFT, DRAFT_TOKENS, TARGET_TOKENS, slots, method=method, **options)  # type: ignore[arg-type]


def exact(draft: Draft) -> Draft:
    """The same draft with its laws as the fractions that branching coins take them for."""
    rows = [np.array([Fraction(float(p)) for p in draft.law(node)]) for node in range(len(draft))]  # type: ignore[union-attr]
    return Draft.chain(draft.tokens, np.stack([row / row.sum() for row in rows]) if rows else ())


def proposes(
    method: str, *, sampling: Sampling = DRAWN, prompt: list[int] = PROMPT, k: int = 2
) -> Callable[[Coins], Draft]:
    """The shipped drafter, drawing from branching coins."""

    def propose(coins: Coins) -> Draft:
        sequence = make_sequence(prompt, sampling=sampling, draft_coins=coins, stop_ids=[0])
        (draft,) = make(method).propose([sequence], [k])
        return exact(draft) if method == "token" else draft

    return propose


def test_it_is_a_drafter() -> None:
    check_drafter(make())


SAMPLINGS = [
    DRAWN,
    Sampling(temperature=0.7, top_k=2, repetition_penalty=1.5),
    Sampling(temperature=1.3, top_p=0.7, logit_bias={A: 0.5}),
    Sampling(),
]


# ---------------------------------------------------------------- by token


@pytest.mark.parametrize("rule", ["token", "block", "traversal"])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["plain", "top-k", "top-p", "greedy"])
def test_by_token_the_emitted_law_is_exactly_the_targets(rule: str, sampling: Sampling) -> None:
    for seed, kind in enumerate(["dense", "zeros"]):
        assert law_error(RULES[rule], proposes("token", sampling=sampling), random_model(kind, 4, seed)) == 0


def test_only_shared_tokens_are_drawn_and_each_can_be() -> None:
    drafts = [draft for draft, *_ in one_round(RULES["token"], proposes("token"), random_model("dense", 4, 0))]
    assert {token for draft in drafts for token in draft.tokens} == {0, A, B}


class _SuppressesLate(translated._Drawn):  # type: ignore[misc]
    """Draws from what top-p leaves of the whole law, and declares the law of the shared tokens."""

    def grow(self, logits: torch.Tensor) -> bool:
        goes_on = super().grow(logits)
        whole = laws(logits[None], self.sequence, [()])[0]
        late = np.zeros(4, np.float32)
        late[list(self._both.shared)] = whole[list(self._both.shared.values())]
        drawn = self.sequence.draft_coins.categorical(late, 0)
        self._tokens[-1], self.text[-1] = drawn, self._both.shared[drawn]
        return goes_on and drawn != 0


def test_suppressing_tokens_after_top_p_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = Sampling(temperature=1.0, top_p=0.85)
    target = random_model("dense", 4, 0)
    assert law_error(RULES["token"], proposes("token", sampling=sampling, k=1), target) == 0
    monkeypatch.setattr(translated, "_Drawn", _SuppressesLate)
    assert law_error(RULES["token"], proposes("token", sampling=sampling, k=1), target) > 0.1


def test_the_declared_law_is_that_of_the_shared_tokens_with_the_targets_own_history() -> None:
    sampling = Sampling(temperature=0.8, top_p=0.9, presence_penalty=0.7, banned_ids=frozenset({0}))
    sequence = make_sequence([B, A, B, A], prompt_length=2, sampling=sampling, seed=2)
    (draft,) = make("token").propose([sequence], [3])
    context = [2, 1, 3]  # the prompt is the draft's own ba
    for node, token in enumerate(draft.tokens):
        row = torch.full((4,), -torch.inf)
        row[[0, A, B]] = DRAFT.logits(context)[[0, 3, 1]]
        expected = laws(row[None], sequence, [draft.tokens[:node]])[0]
        np.testing.assert_array_equal(draft.law(node), expected)
        context.append({A: 3, B: 1}[token])


# ---------------------------------------------------------------- by string


@pytest.mark.parametrize("prompt", [[A, AB, B], [B], [A, A]])
def test_by_string_the_emitted_law_is_exactly_the_targets(prompt: list[int]) -> None:
    for seed, kind in enumerate(["dense", "zeros", "one-hot"]):
        propose = proposes("string", prompt=prompt, k=3)
        assert law_error(RULES["point-mass"], propose, random_model(kind, 4, seed)) == 0


def writes(*ids: int) -> TableModel:
    """A draft model that writes these ids over and over, whatever stands before."""

    def law(context: tuple[int, ...]) -> np.ndarray:
        probs = np.full(4, 0.01)
        probs[ids[len(context) % len(ids)]] = 0.97
        return probs

    return TableModel(4, order=None, law=law)


def spelled_by(model: TableModel, tokens: list[int], k: int) -> tuple[int, ...]:
    drafter = TranslatedDrafter(model, DRAFT_TOKENS, TARGET_TOKENS, 1, method="string")
    (draft,) = drafter.propose([make_sequence(tokens, prompt_length=1)], [k])
    assert draft.proposal == "point_mass"
    return draft.tokens


def test_text_is_proposed_as_the_target_spells_it() -> None:
    assert spelled_by(writes(2), [B], 3) == (B, AB, A)  # baba
    assert spelled_by(writes(3, 1), [B, B], 2) == (AB, A)  # aba


def test_a_spelling_that_would_move_the_end_of_the_text_is_the_texts_own() -> None:
    assert spelled_by(writes(1), [A], 2) == (B, B)  # not ab, of which a is emitted


def test_the_end_of_the_drafts_text_is_the_end_of_the_targets() -> None:
    assert spelled_by(writes(3, 0), [A, B], 4) == (A, 0)
    assert spelled_by(writes(0), [B], 4) == (0,)


def test_text_declared_as_drawn_is_caught() -> None:
    def lies(coins: Coins) -> Draft:
        draft = proposes("string")(coins)
        law = np.full(4, Fraction(1, 4))
        return Draft.chain(draft.tokens, np.stack([law] * len(draft)))

    assert law_error(RULES["token"], lies, random_model("dense", 4, 0)) > 0.01


# ---------------------------------------------------------------- through the engine


TARGET = TableModel(4, order=2, law=random_laws(4, seed=5))


@pytest.mark.parametrize("method", ["token", "string"])
def test_greedy_text_is_that_of_plain_decoding(method: str) -> None:
    for k in (1, 3, None):
        found = decode(toy_engine(TARGET, make(method), "auto", k), PROMPT, max_new_tokens=24)
        assert found == TARGET.greedy(PROMPT, 24)


@pytest.mark.parametrize(("method", "rule"), [("token", "auto"), ("string", "auto")])
def test_the_engine_emits_the_targets_law(method: str, rule: str) -> None:
    engine = toy_engine(TARGET, make(method, slots=4), rule, 3, slots=4)
    strings, rounds = sample(engine, PROMPT, 400, sampling=DRAWN, max_new_tokens=4)
    assert p_value(strings, exact_string_law(TARGET, PROMPT, 4, DRAWN)) > LIMIT
    assert 0 < sum(r.num_accepted for r in rounds) < sum(r.num_drafted for r in rounds)
    assert not any(r.broken for r in rounds)
