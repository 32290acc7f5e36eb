"""Trees through the embedded model: each node's logits are its chain's up to rounding, and so greedy text is plain."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from engine_runs import ScriptedTrees, decode, finish, new_tokens, toy_engine
from outrider import tree
from outrider.cache import KVCache
from outrider.core import Block
from outrider.models.decoder import Decoder
from outrider.models.tokenizer import Tokenizer
from prompts import PROMPTS
from test_decoder import advance, logits_of

ROUNDING = {"float16": 2e-3, "q4": 0.5}
"""Largest difference of a logit: rows of a branch do not lie side by side, so that attention adds in another order, and
q4 rounds its activations to bfloat16."""
KINDS = ("edit", "story")
PARENTS = (-1, -1, 0, 1, 2, 3, 0)
PRECISIONS = pytest.mark.parametrize("precision", ["float16", "q4"])


def ids_of(tokenizer: Tokenizer, kind: str) -> list[int]:
    return tokenizer.encode_chat([{"role": "user", "content": PROMPTS[kind]}])


def node_errors(model: Decoder, prompt: list[int], tokens: list[int], mask: torch.Tensor) -> list[float]:
    """Per node from the third on, the largest difference of its logits from those of its own chain."""
    cache = model.new_cache(2, 512)
    advance(model, prompt[:-1], cache)
    cache.copy(0, 1)
    start = len(prompt) - 1
    depths = torch.tensor([tree.depths(PARENTS)])
    block = Block(torch.tensor([[prompt[-1], *tokens]]), start + depths, (0,), (len(tokens) + 1,), mask[None])
    logits = model.forward(block, cache).logits
    assert logits is not None
    return [
        float((logits[0, node] - alone(model, cache, [prompt[-1], *path])).abs().max())
        for node, path in list(enumerate(tree.paths(tokens, PARENTS)))[3:]  # the first stand as in a chain
    ]


def alone(model: Decoder, cache: KVCache, tokens: list[int]) -> torch.Tensor:
    return logits_of(model, [tokens], cache, [1])[0, -1]


@PRECISIONS
def test_logits_of_a_tree_are_those_of_its_chains_up_to_rounding(
    smollm2: Callable[[str], Decoder], smollm2_tokenizer: Tokenizer, precision: str
) -> None:
    model, prompt = smollm2(precision), ids_of(smollm2_tokenizer, "story")
    tokens, size = list(range(500, 500 + len(PARENTS))), len(PARENTS) + 1
    assert max(node_errors(model, prompt, tokens, tree.ancestors(PARENTS, size))) < ROUNDING[precision]
    blind = torch.ones(size, size, dtype=torch.bool).tril()  # negative control: siblings are seen
    assert max(node_errors(model, prompt, tokens, blind)) > 6 * ROUNDING[precision]


def gap_at_first_difference(model: Decoder, prompt: list[int], wanted: list[int], found: list[int]) -> float:
    """Between the logits of the two tokens where the texts part; 0 if they do not."""
    place = next((i for i, (a, b) in enumerate(zip(wanted, found, strict=True)) if a != b), None)
    if place is None:
        return 0.0
    cache = model.new_cache(1, 512)
    advance(model, [*prompt, *wanted[:place]][:-1], cache)
    logits = logits_of(model, [[*prompt, *wanted[:place]][-1:]], cache)[0, 0]
    return float((logits[wanted[place]] - logits[found[place]]).abs())


@PRECISIONS
def test_greedy_text_with_trees_is_the_plain_text_but_for_ties(
    smollm2: Callable[[str], Decoder], smollm2_tokenizer: Tokenizer, precision: str
) -> None:
    model = smollm2(precision)
    prompts = [ids_of(smollm2_tokenizer, kind) for kind in KINDS]
    wanted = [decode(toy_engine(model, context_length=512), prompt, max_new_tokens=16) for prompt in prompts]
    references = [[*prompt, *text] for prompt, text in zip(prompts, wanted, strict=True)]
    engine = toy_engine(model, ScriptedTrees(references, model.vocab_size), k=10, slots=2, context_length=512)
    sequences = [engine.add(prompt, max_new_tokens=16) for prompt in prompts]
    rounds = [r for each in finish(engine).values() for r in each]
    assert any(r.depth < r.num_drafted and r.num_accepted > 1 for r in rounds)
    for prompt, text, sequence in zip(prompts, wanted, sequences, strict=True):
        gap = gap_at_first_difference(model, prompt, text, new_tokens(sequence))
        assert gap < 2 * ROUNDING[precision], f"{new_tokens(sequence)} differs from {text}, and it is no tie"


def test_a_difference_that_is_no_tie_would_be_seen(
    smollm2: Callable[[str], Decoder], smollm2_tokenizer: Tokenizer
) -> None:
    model, prompt = smollm2("float16"), ids_of(smollm2_tokenizer, "story")
    wanted = decode(toy_engine(model, context_length=512), prompt, max_new_tokens=4)
    gap = gap_at_first_difference(model, prompt, wanted, [*wanted[:3], 500])
    assert gap > 10 * ROUNDING["float16"]
