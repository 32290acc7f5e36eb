"""Trees through `transformers` models: the logits of their chains, or a refusal by name."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf

from checkpoints import byte_level_tokenizer, tiny_model
from engine_runs import TREE_KINDS, RandomTrees, decode, finish, new_tokens, toy_engine
from outrider import tree
from outrider.core import Block
from outrider.drafters import SuffixDrafter
from outrider.errors import DrafterWarning, InvalidOption, UnsupportedModel
from outrider.loading import load
from outrider.models import transformers as adapter
from outrider.models.transformers import TransformersModel
from outrider.models.transformers_cache import TransformersCache
from outrider.options import Sampling
from test_transformers_adapter import (
    CONFIGS,
    CONTEXT,
    VOCAB,
    build,
    copy_error,
    fill,
    random_tokens,
    run,
    uncached_logits,
)

FAMILIES = ["Llama", "GPT2", "Qwen2", "Mistral with a window as long as its context", "GPTNeoX", "Qwen3Moe"]


@pytest.fixture(params=FAMILIES, scope="module")
def model(request: pytest.FixtureRequest) -> TransformersModel:
    return that_takes_trees(CONFIGS[request.param]())


@pytest.fixture(scope="module")
def llama() -> TransformersModel:
    return that_takes_trees(CONFIGS["Llama"]())


def that_takes_trees(config: Any) -> TransformersModel:
    """The trial is over before a test plants a fault."""
    adapter = TransformersModel(build(config))
    assert adapter.takes_trees
    return adapter


def block_of(cache: TransformersCache, drafts: dict[int, tuple[list[int], list[int]]]) -> Block:
    """Tokens (the pending one first) and parents per slot, padded with id 3 to a common width."""
    widths = tuple(len(tokens) for tokens, _ in drafts.values())
    size = max(widths)
    tokens = torch.tensor([tokens + [3] * (size - len(tokens)) for tokens, _ in drafts.values()])
    depths = [tree.depths(parents) for _, parents in drafts.values()]
    places = [[cache.lengths[s] + d for d in each] for s, each in zip(drafts, depths, strict=True)]
    positions = torch.tensor([each + [0] * (size - len(each)) for each in places])
    masks = torch.stack([tree.ancestors(parents, size) for _, parents in drafts.values()])
    return Block(tokens, positions, tuple(drafts), widths, masks)


def random_tree(dice: random.Random, most: int) -> list[int]:
    return [dice.randint(max(-1, node - 4), node - 1) for node in range(dice.randint(0, most))]


def tree_error(model: TransformersModel, seed: int = 0, rounds: int = 8) -> float:
    """Decode three texts by random trees, of which a random path is kept each time.

    Returns:
        The largest difference of any row's logits from those of its own path without a cache, over their scale.
    """
    dice, worst = random.Random(seed), 0.0
    cache, texts = model.new_cache(3, CONTEXT), {slot: random_tokens(4, slot) for slot in range(3)}
    for slot, text in texts.items():
        fill(model, cache, slot, text[:-1])
    for _ in range(rounds):
        drafts = {}
        for slot in dice.sample(range(3), dice.randint(1, 3)):
            parents = random_tree(dice, 7)
            drafts[slot] = ([texts[slot][-1], *(dice.randrange(3, VOCAB) for _ in parents)], parents)
        logits = model.forward(block_of(cache, drafts), cache).logits
        assert logits is not None
        for row, (slot, (tokens, parents)) in enumerate(drafts.items()):
            paths = tree.paths(tokens[1:], parents)
            for node, path in enumerate(paths):
                wanted = uncached_logits(model, [*texts[slot], *path])[-1]
                worst = max(worst, float((logits[row, node] - wanted).abs().max() / wanted.abs().max()))
            kept = dice.randrange(len(paths))
            line = [node for node in range(len(paths)) if tree.ancestors(parents, len(paths))[kept, node]]
            cache.commit(slot, line)
            texts[slot] += [*paths[kept], dice.randrange(3, VOCAB)]
    return worst


def test_the_logits_of_a_tree_are_those_of_its_paths_alone(model: TransformersModel) -> None:
    assert model.takes_trees
    assert tree_error(model) < 1e-4


def test_half_precision_too() -> None:
    model = TransformersModel(build(CONFIGS["Llama"](), torch.bfloat16))
    assert model.takes_trees
    assert tree_error(model) < 0.08


def index_positions(right: Any) -> Any:
    return lambda self, tokens, positions, *rest, **named: right(
        self, tokens, positions[0] + torch.arange(len(tokens)), *rest, **named
    )


def without_mask(right: Any) -> Any:
    return lambda self, tokens, positions, cache, ancestors=None, **named: right(
        self, tokens, positions, cache, None, **named
    )


def siblings_seen(right: Any) -> Any:
    def run(self: Any, tokens: Any, positions: Any, cache: Any, ancestors: Any = None, **named: Any) -> Any:
        if ancestors is not None:
            ancestors = ancestors.clone()
            ancestors[-1] = True
        return right(self, tokens, positions, cache, ancestors, **named)

    return run


@pytest.mark.parametrize("mutant", [index_positions, without_mask, siblings_seen])
def test_the_same_check_catches_wrong_positions_and_masks(
    llama: TransformersModel, mutant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TransformersModel, "_call", mutant(TransformersModel._call))
    assert tree_error(llama) > 1e-2


@pytest.mark.parametrize("shift", [lambda rows: range(len(rows)), lambda rows: [0, *(row - 1 for row in rows[1:])]])
def test_the_same_check_catches_a_commit_of_other_rows(
    llama: TransformersModel, shift: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = TransformersCache.commit
    monkeypatch.setattr(TransformersCache, "commit", lambda self, slot, rows: commit(self, slot, shift(list(rows))))
    assert tree_error(llama) > 1e-2


def test_a_copy_and_a_chain_go_on_from_a_committed_branch(llama: TransformersModel) -> None:
    assert copy_error(llama) < 1e-4
    cache, text = llama.new_cache(2, CONTEXT), random_tokens(5, 0)
    fill(llama, cache, 0, text)
    llama.forward(block_of(cache, {0: ([7, 8, 9, 10, 11], [-1, -1, 1, 0])}), cache)
    cache.commit(0, [0, 2, 3])
    cache.copy(0, 1)
    wanted = uncached_logits(llama, [*text, 7, 9, 10, 5, 6])[-2:]
    for slot in (0, 1):
        assert torch.allclose(run(llama, cache, {slot: [5, 6]})[0], wanted, rtol=0, atol=1e-4)


def test_chains_get_no_mask_beside_a_tree_and_are_the_bits_of_a_chain_alone(llama: TransformersModel) -> None:
    masks: list[Any] = []
    hook = llama.model.register_forward_pre_hook(
        lambda module, args, kwargs: masks.append(kwargs.get("attention_mask")), with_kwargs=True
    )
    try:
        cache, alone = llama.new_cache(2, CONTEXT), llama.new_cache(1, CONTEXT)
        logits = llama.forward(block_of(cache, {0: ([7, 8, 9], [-1, -1]), 1: ([4, 5, 6], [-1, 0])}), cache).logits
        assert logits is not None
        assert torch.equal(logits[1], run(llama, alone, {0: [4, 5, 6]})[0])
    finally:
        hook.remove()
    assert [None if mask is None else tuple(mask.shape) for mask in masks] == [(1, 1, 3, 3), None, None]


def test_positions_that_are_not_the_depths_are_an_assertion(llama: TransformersModel) -> None:
    mask = tree.ancestors((-1, -1), 3)[None]
    block = Block(torch.tensor([[4, 5, 6]]), torch.tensor([[0, 1, 2]]), (0,), (3,), mask)
    with pytest.raises(AssertionError, match="positions"):
        llama.forward(block, llama.new_cache(1, CONTEXT))


# --- end to end


def likely(model: TransformersModel) -> np.ndarray:
    """A draft law for random trees: the target's own, somewhere."""
    return uncached_logits(model, [5])[-1].softmax(-1).double().numpy()


@pytest.mark.parametrize("kind", TREE_KINDS)
def test_greedy_text_with_random_trees_is_the_plain_text(model: TransformersModel, kind: str) -> None:
    prompts = [random_tokens(length, length) for length in (1, 6, 9)]
    wanted = [decode(toy_engine(model), prompt, max_new_tokens=20) for prompt in prompts]
    engine = toy_engine(model, RandomTrees(likely(model), kind), k=8, slots=2)
    sequences = [engine.add(prompt, seed=1, max_new_tokens=20) for prompt in prompts]
    rounds = [r for each in finish(engine).values() for r in each]
    assert [new_tokens(s) for s in sequences] == wanted
    assert not any(r.broken for r in rounds)
    assert any(r.depth < r.num_drafted for r in rounds)


def test_coupled_text_with_trees_is_the_plain_text(model: TransformersModel) -> None:
    options = {"sampling": Sampling(temperature=0.7), "seed": 3, "max_new_tokens": 40}
    wanted = decode(toy_engine(model, rule="coupled"), [5, 6, 5], **options)
    engine = toy_engine(model, SuffixDrafter(min_match=1, offset=1, branches=3), "coupled", k=8)
    assert decode(engine, [5, 6, 5], **options) == wanted


# --- refusals

REFUSED = {
    "Bloom, whose positions come from a mask of two dimensions": lambda: build(CONFIGS["Bloom (no positions)"]()),
    "MPT, whose positions are counted by row": lambda: build(
        hf.MptConfig(vocab_size=VOCAB, d_model=32, n_layers=2, n_heads=4, max_seq_len=CONTEXT)
    ),
    "GPT-Neo, whose window counts rows": lambda: build(
        hf.GPTNeoConfig(
            vocab_size=VOCAB,
            hidden_size=32,
            num_layers=2,
            num_heads=4,
            attention_types=[[["global", "local"], 1]],
            window_size=16,
            max_position_embeddings=CONTEXT,
            bos_token_id=1,
            eos_token_id=2,
        )
    ),
    "a llama that ignores the mask": lambda: masked_by(lambda mask: None),
    "a llama that fails on the mask": lambda: masked_by(lambda mask: mask.no_such_attribute),
}


def masked_by(change: Any, llama: Any = None) -> Any:
    """A llama that does something to the mask it is given."""
    llama = build(CONFIGS["Llama"]()) if llama is None else llama

    def changed(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if kwargs.get("attention_mask") is not None:
            kwargs["attention_mask"] = change(kwargs["attention_mask"])
        return args, kwargs

    llama.model.register_forward_pre_hook(changed, with_kwargs=True)
    return llama


@pytest.mark.parametrize("case", REFUSED)
def test_a_model_that_would_verify_trees_wrongly_takes_chains_only(case: str) -> None:
    model = TransformersModel(REFUSED[case]())
    assert not model.takes_trees
    cache = model.new_cache(1, CONTEXT)
    forked = block_of(cache, {0: ([4, 5, 6], [-1, -1])})
    with pytest.raises(UnsupportedModel, match=rf"{type(model.model).__name__} takes no attention mask for trees"):
        model.forward(forked, cache)
    chain = block_of(cache, {0: ([4, 5, 6], [-1, 0])})
    assert model.forward(chain, cache).logits is not None


def test_the_engine_counts_trees_for_such_a_model_and_decodes_on_without_them() -> None:
    model = TransformersModel(REFUSED["a llama that ignores the mask"]())
    wanted = decode(toy_engine(model), [5, 6], max_new_tokens=20)
    engine = toy_engine(model, RandomTrees(likely(model), "chosen"), k=8)
    sequence = engine.add([5, 6], max_new_tokens=20)
    with pytest.warns(DrafterWarning, match="no attention mask for trees"):
        (rounds,) = finish(engine).values()
    assert new_tokens(sequence) == wanted
    assert any("a tree, with parents" in (r.broken or "") for r in rounds)


def test_loading_a_tree_drafter_for_such_a_model_is_refused_by_name() -> None:
    spoken = hf.PreTrainedTokenizerFast(tokenizer_object=byte_level_tokenizer(), eos_token="<|im_end|>")
    for target, fine in ((tiny_model("llama"), True), (masked_by(lambda mask: None, tiny_model("llama")), False)):
        if fine:
            load(target, tokenizer=spoken, drafter="suffix:branches=3")
        else:
            with pytest.raises(InvalidOption, match="but this target takes no attention mask for trees"):
                load(target, tokenizer=spoken, drafter="suffix:branches=3")


@pytest.mark.parametrize("kind", ["sdpa", "eager"])
def test_both_attentions_with_masks_take_trees(kind: str) -> None:
    model = build(CONFIGS["Llama"]())
    model.set_attn_implementation(kind)
    assert TransformersModel(model).takes_trees


def test_attention_without_such_masks_is_not_even_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    model = TransformersModel(build(CONFIGS["Llama"]()))
    assert adapter._takes_trees(model)
    monkeypatch.setattr(model.model.config, "_attn_implementation_internal", "flex_attention")
    assert model.model.config._attn_implementation == "flex_attention"
    assert not adapter._takes_trees(model)


def test_the_trial_is_not_won_by_a_model_in_which_nothing_shows() -> None:
    # All logits equal: the tree's are right, but so would those without a mask be.
    flat = build(CONFIGS["Llama"]())
    with torch.no_grad():
        flat.model.norm.weight.zero_()
    assert not TransformersModel(flat).takes_trees
