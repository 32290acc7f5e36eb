"""The laws that the engine verifies with, against transformers' own: its model without a cache, its own processors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from checkpoints import tiny_model
from engine_runs import RepeatsTheLastToken, toy_engine
from outrider.certifying.running import Decided, Request, Wish, texts
from outrider.models.transformers import TransformersModel
from outrider.options import Sampling
from outrider.rules import RULES

PROMPT = (5, 9, 5, 17, 5, 9)
STOPS = frozenset({2})
SETTINGS: dict[str, dict[str, Any]] = {
    "temperature 1": {"temperature": 1.0},
    "temperature 0.7": {"temperature": 0.7},
    "top-k": {"temperature": 1.0, "top_k": 20},
    "top-p": {"temperature": 0.8, "top_p": 0.9},
    "min-p": {"temperature": 1.2, "min_p": 0.2},
    "repetition penalty": {"temperature": 1.0, "repetition_penalty": 1.3},
    "bias": {"temperature": 1.0, "logit_bias": {4: 3.0, 9: -2.0}},
    "bans": {"temperature": 1.0, "banned_ids": frozenset({5, 9})},
    "minimum": {"temperature": 1.0, "min_new_tokens": 6},
    "greedy": {"temperature": 0.0, "repetition_penalty": 1.3},
    "all": {
        "temperature": 0.8,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.02,
        "repetition_penalty": 1.2,
        "logit_bias": {4: 2.0},
        "banned_ids": frozenset({9}),
        "min_new_tokens": 4,
    },
}


@pytest.fixture(scope="module")
def model() -> Any:
    made = tiny_model("llama").double()  # so that a model with a cache and one without differ by 1e-7 at most
    for parameter in made.parameters():
        parameter.data.mul_(3)  # laws that are not flat
    return made


def of_transformers(model: Any, sampling: Sampling, ids: list[int]) -> np.ndarray:
    """[V] float64 law after the tokens, as `generate` with `do_sample` would draw from it."""
    size = model.config.vocab_size
    made: list[Any] = [RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)]
    if sampling.logit_bias:
        made.append(SequenceBiasLogitsProcessor({(i,): float(by) for i, by in sampling.logit_bias.items()}))
    if sampling.banned_ids:
        made.append(SuppressTokensLogitsProcessor(sorted(sampling.banned_ids)))
    made.append(MinNewTokensLengthLogitsProcessor(len(PROMPT), sampling.min_new_tokens, sorted(STOPS)))
    if sampling.temperature > 0:
        made += [TemperatureLogitsWarper(sampling.temperature), TopKLogitsWarper(sampling.top_k or size)]
        made += [TopPLogitsWarper(sampling.top_p), MinPLogitsWarper(sampling.min_p)]
    with torch.inference_mode():
        logits = model(torch.tensor([ids]), use_cache=False).logits[:, -1].float()
        scores = LogitsProcessorList(made)(torch.tensor([ids]), logits).double()
    if sampling.temperature == 0:
        return np.eye(size)[int(scores.argmax())]
    return scores.softmax(-1)[0].numpy()


def rows(model: Any, sampling: Sampling) -> list[tuple[list[int], np.ndarray]]:
    """Histories and the laws that the rule was given there, of every drafted row, kept or not."""
    found: list[tuple[list[int], np.ndarray]] = []

    def saw(each: Decided) -> None:
        before = [*PROMPT, *each.sequence.tokens[len(PROMPT) :][: each.start]]
        for i, row in enumerate(each.target_probs):
            if STOPS.isdisjoint(each.draft.tokens[:i]):
                found.append(([*before, *each.draft.tokens[:i]], row))

    engine = toy_engine(TransformersModel(model), RepeatsTheLastToken(), RULES["point-mass"], 3, slots=2)
    requests = [Request(0, PROMPT, seed) for seed in range(2)]
    texts(engine, requests, Wish(sampling, STOPS, 10), saw=saw)
    return found


@pytest.mark.parametrize("name", SETTINGS)
def test_the_laws_are_those_of_transformers(model: Any, name: str) -> None:
    sampling = Sampling(**SETTINGS[name])
    found = rows(model, sampling)
    assert len(found) > 10
    for ids, row in found:
        np.testing.assert_allclose(row, of_transformers(model, sampling, ids), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["temperature 0.7", "top-p", "repetition penalty", "bias", "bans", "all"])
def test_a_setting_that_was_lost_would_be_noticed(model: Any, name: str) -> None:
    lost = Sampling(temperature=1.0)
    sampling = Sampling(**SETTINGS[name])
    apart = [abs(row - of_transformers(model, lost, ids)).max() for ids, row in rows(model, sampling)]
    assert max(apart) > 1e-3
