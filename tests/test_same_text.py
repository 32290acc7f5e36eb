"""The embedded model decodes the same text with and without speculation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from checkpoints import save_folder, tiny_model
from outrider.core import Block, Drafter
from outrider.drafters import NgramDrafter, NoDrafter, SuffixDrafter
from outrider.drafters.model import ModelDrafter
from outrider.engine import Engine
from outrider.models.checkpoint import open_checkpoint
from outrider.models.decoder import Decoder
from outrider.models.load import load_decoder
from outrider.models.tokenizer import Tokenizer
from outrider.options import Sampling
from outrider.planning.pace import FixedPace
from outrider.rules import choose_rule
from prompts import PROMPTS

DRAFTERS = ("ngram", "suffix", "model")
TIE = 2e-3
"""Largest gap between the two best logits at which float32 forwards of other widths may choose the other token."""

Texts = list[list[int]]
Decode = Callable[..., Texts]


@pytest.fixture(scope="module")
def tiny_draft(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    """A small random model with the vocabulary of the embedded one; its drafts are nearly always wrong."""
    shape: dict[str, Any] = {"vocab_size": 49152, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
    model = tiny_model("llama", **shape, num_attention_heads=2, num_key_value_heads=1, head_dim=32)
    folder: Path = save_folder(model, tmp_path_factory.mktemp("draft"))
    return load_decoder(open_checkpoint(folder), "float32")


@pytest.fixture(scope="module")
def decode(smollm2: Callable[[str], Decoder], smollm2_tokenizer: Tokenizer, tiny_draft: Decoder) -> Decode:
    """Token ids of some prompts, decoded together; plain runs are remembered."""
    plain_runs: dict[tuple[Any, ...], Texts] = {}

    def run(
        precision: str,
        name: str,
        k: int,
        *,
        kinds: tuple[str, ...],
        tokens: int,
        rule: str = "auto",
        temperature: float = 0.0,
        invariant: bool = False,
        slots: int | None = None,
    ) -> Texts:
        key = (precision, kinds, tokens, rule, temperature, invariant)
        if name == "none" and key in plain_runs:
            return plain_runs[key]
        num_slots = len(kinds) if slots is None else slots
        made: dict[str, Callable[[], Drafter]] = {
            "none": NoDrafter,
            "ngram": NgramDrafter,
            "suffix": SuffixDrafter,
            "model": lambda: ModelDrafter(tiny_draft, num_slots, capacity=512),
        }
        drafter = made[name]()
        engine = Engine(
            smollm2(precision),
            drafter,
            choose_rule(rule, drafter.proposal),
            FixedPace(k),
            slots=num_slots,
            context_length=512,
            invariant=invariant,
        )
        sequences = [
            engine.add(
                smollm2_tokenizer.encode_chat([{"role": "user", "content": PROMPTS[kind]}]),
                sampling=Sampling(temperature=temperature),
                seed=index,
                stop_ids=smollm2_tokenizer.stop_ids,
                max_new_tokens=tokens,
            )
            for index, kind in enumerate(kinds)
        ]
        while engine.num_unfinished:
            for r in engine.step():
                assert r.broken is None
        texts = [s.tokens[s.prompt_length :] for s in sequences]
        if name == "none":
            plain_runs[key] = texts
        return texts

    return run


FEW = ("edit", "unicode", "repeat", "story")
ALL = tuple(PROMPTS)


@pytest.mark.parametrize("precision", ["float16", "q4"])
@pytest.mark.parametrize(("name", "k"), [("ngram", 3), ("suffix", 8), ("model", 1)])
def test_greedy_text_equals_plain_decoding(decode: Decode, precision: str, name: str, k: int) -> None:
    wanted = decode(precision, "none", 0, kinds=FEW, tokens=40)
    assert decode(precision, name, k, kinds=FEW, tokens=40) == wanted


def test_batch_and_solo_runs_give_the_same_text(decode: Decode) -> None:
    wanted = decode("q4", "none", 0, kinds=FEW, tokens=40)
    assert decode("q4", "suffix", 8, kinds=FEW, tokens=40, slots=1) == wanted


@pytest.mark.parametrize(("name", "k"), [("ngram", 8), ("suffix", 3), ("model", 3)])
def test_coupled_text_equals_plain_decoding_at_any_temperature(decode: Decode, name: str, k: int) -> None:
    settings: dict[str, Any] = {"kinds": FEW, "tokens": 40, "rule": "coupled", "temperature": 0.8}
    assert decode("q4", name, k, **settings) == decode("q4", "none", 0, **settings)


def test_float32_is_invariant_in_fixed_width_forwards(decode: Decode) -> None:
    settings: dict[str, Any] = {"kinds": ("edit", "repeat"), "tokens": 32, "invariant": True}
    assert decode("float32", "suffix", 8, **settings) == decode("float32", "none", 0, **settings)


def test_float32_differs_from_plain_decoding_at_near_ties_only(
    decode: Decode, smollm2: Callable[[str], Decoder], smollm2_tokenizer: Tokenizer
) -> None:
    wanted = decode("float32", "none", 0, kinds=FEW, tokens=40)
    found = decode("float32", "suffix", 8, kinds=FEW, tokens=40)
    check_ties(FEW, wanted, found, smollm2("float32"), smollm2_tokenizer)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float16", "q4"])
@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("name", DRAFTERS)
def test_all_greedy_texts_equal_plain_decoding(decode: Decode, precision: str, name: str, k: int) -> None:
    wanted = decode(precision, "none", 0, kinds=ALL, tokens=96)
    assert decode(precision, name, k, kinds=ALL, tokens=96) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("name", DRAFTERS)
def test_all_coupled_texts_equal_plain_decoding(decode: Decode, name: str, k: int) -> None:
    settings: dict[str, Any] = {"kinds": ALL, "tokens": 96, "rule": "coupled", "temperature": 0.8}
    assert decode("q4", name, k, **settings) == decode("q4", "none", 0, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("name", DRAFTERS)
def test_all_float32_texts_equal_in_fixed_width_forwards(decode: Decode, name: str, k: int) -> None:
    settings: dict[str, Any] = {"kinds": ALL, "tokens": 96, "invariant": True}
    assert decode("float32", name, k, **settings) == decode("float32", "none", 0, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("name", DRAFTERS)
def test_all_float32_texts_differ_at_near_ties_only(
    decode: Decode, name: str, k: int, smollm2: Callable[[str], Decoder], smollm2_tokenizer: Tokenizer
) -> None:
    wanted = decode("float32", "none", 0, kinds=ALL, tokens=96)
    check_ties(ALL, wanted, decode("float32", name, k, kinds=ALL, tokens=96), smollm2("float32"), smollm2_tokenizer)


def check_ties(kinds: tuple[str, ...], wanted: Texts, found: Texts, model: Decoder, tokenizer: Tokenizer) -> None:
    """Every first difference is reported, and is one between two logits that are nearly equal."""
    for kind, plain, speculative in zip(kinds, wanted, found, strict=True):
        if plain != speculative:
            at = next(i for i, (a, b) in enumerate(zip(plain, speculative, strict=False)) if a != b)
            prompt = tokenizer.encode_chat([{"role": "user", "content": PROMPTS[kind]}])
            gap = logit_gap(model, prompt + plain[:at], plain[at], speculative[at])
            print(f"{kind}: tie at token {at}, logits differ by {gap:.2g}")  # noqa: T201 - the report, with pytest -rP
            assert gap < TIE


def logit_gap(model: Decoder, tokens: list[int], first: int, second: int) -> float:
    block = Block(torch.tensor([tokens]), torch.arange(len(tokens))[None], (0,), (len(tokens),))
    logits = model.forward(block, model.new_cache(1, len(tokens))).logits
    assert logits is not None
    return abs(float(logits[0, -1, first] - logits[0, -1, second]))


def test_the_tie_check_would_catch_a_wrong_token(
    smollm2: Callable[[str], Decoder], smollm2_tokenizer: Tokenizer
) -> None:
    with pytest.raises(AssertionError):
        check_ties(("question",), [[504, 100]], [[260, 100]], smollm2("float32"), smollm2_tokenizer)
