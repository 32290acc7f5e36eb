"""Unrolled training sees what decoding sees."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch

from heads import CPU, eagle_graph, eagle_head, feature_layers, tiny_target
from outrider.core import Draft
from outrider.drafters.eagle import EagleFeeder
from outrider.drafters.feeding import Text
from outrider.training import unroll
from outrider.training.unroll import unrolled
from toy import make_sequence

TARGET = tiny_target()
STEPS = 4
HEADS = {
    "eagle-1": eagle_head(TARGET, 1, biased=True),
    "eagle-3": eagle_head(TARGET, qk_norm=True, norm_before_residual=True, fc_norm=True),
    "eagle-3.1": eagle_head(TARGET, norm_before_fc=True, norm_output=True, own_output=False, draft_ids=(0, 1, 3, 7, 9)),
}
TOKENS = torch.randint(0, TARGET.vocab_size, (24,), generator=torch.Generator().manual_seed(3)).tolist()


@lru_cache
def features(name):
    """[n, F] of the text."""
    states = TARGET.states(TOKENS)
    return torch.cat([states[layer] for layer in feature_layers(TARGET, HEADS[name])], dim=-1).clone()


def decoded(name, end):
    """[STEPS, Vd] logits of a draft that follows the text, from a text of `end` tokens."""
    stored = HEADS[name]
    feeder = EagleFeeder(eagle_graph(TARGET, stored), stored.draft_ids, 1, 64, CPU)
    sequence = make_sequence(TOKENS[:end])
    feeder.read(sequence, features(name)[: end - 1])
    logits = feeder.feed([Text(0, 0, TOKENS[:end])], [Draft.chain(TOKENS[end : end + STEPS - 1])])[0]
    return logits if stored.draft_ids is None else logits[:, stored.draft_ids]


def largest_difference(name):
    """Between what unrolled columns and drafts guess, over all columns and steps."""
    head, size = eagle_graph(TARGET, HEADS[name]), len(TOKENS) - STEPS
    steps = unrolled(head, torch.tensor([TOKENS]), features(name)[None, :size], STEPS)
    found = torch.stack([head.logits(states)[0] for states in steps])
    wanted = torch.stack([decoded(name, column + 2) for column in range(size - 1)], dim=1)
    return float((found[:, : size - 1] - wanted).abs().max())


@pytest.mark.parametrize("name", HEADS)
def test_every_unrolled_step_is_what_decoding_gives(name):
    assert largest_difference(name) < 1e-4


class SeesOnlyTheTruth(unroll._Attention):
    """Forgets what the head made of its own drafts."""

    def __call__(self, q, k, v):
        found = super().__call__(q, k, v)
        del self._keys[1:], self._values[1:]
        return found


class SeesTheFuture(unroll._Attention):
    """Looks at all columns, those behind its own as well."""

    def __call__(self, q, k, v):
        return super().__call__(q.flip(1), k.flip(1), v.flip(1)).flip(1)


@pytest.mark.parametrize("fault", [SeesOnlyTheTruth, SeesTheFuture])
def test_columns_that_see_something_else_are_caught(fault, monkeypatch):
    monkeypatch.setattr(unroll, "_Attention", fault)
    assert all(largest_difference(name) > 1e-2 for name in HEADS)


def test_padding_behind_a_text_changes_nothing_of_it():
    head, size = eagle_graph(TARGET, HEADS["eagle-3"]), 10
    tokens, states = torch.tensor([TOKENS[: size + STEPS]]), features("eagle-3")[None, :size]
    padded = torch.cat([tokens, torch.zeros(1, 5, dtype=torch.int64)], 1)
    wide = torch.cat([states, 9 * torch.ones(1, 5, states.shape[2])], 1)
    pairs = zip(unrolled(head, tokens, states, STEPS), unrolled(head, padded, wide, STEPS), strict=True)
    assert all(torch.allclose(alone, beside[:, :size], atol=1e-5) for alone, beside in pairs)
