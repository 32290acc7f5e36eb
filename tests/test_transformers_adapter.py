"""The adapter for `transformers` models: exact under rollback, and refusals that name what cannot be rolled back.

The models are real architectures, tiny and random. Their weights are large, so that every logit depends on its whole
history: a stale or missing row shows.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from transformers import cache_utils

from outrider.core import Block, Model, Output
from outrider.errors import CheckpointError, InvalidOption, OutriderError, UnsupportedModel
from outrider.models import declared
from outrider.models import transformers as adapter
from outrider.models import transformers_cache as caches
from outrider.models.transformers import TransformersModel, load_transformers
from outrider.models.transformers_cache import TransformersCache

VOCAB, CONTEXT = 61, 64
SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def config(kind: str, **changes: Any) -> Any:
    if not hasattr(hf, f"{kind}Config"):
        pytest.skip(f"this transformers has no {kind}")
    return getattr(hf, f"{kind}Config")(**{**SMALL, **changes})


CONFIGS: dict[str, Callable[[], Any]] = {
    "Llama": lambda: config("Llama"),
    "GPT2": lambda: hf.GPT2Config(
        vocab_size=VOCAB, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=4, initializer_range=0.3, eos_token_id=2
    ),
    "Qwen2": lambda: config("Qwen2"),
    "Qwen3": lambda: config("Qwen3", head_dim=8),
    "Mistral without window": lambda: config("Mistral", sliding_window=None),
    "Mistral with a window as long as its context": lambda: config("Mistral", sliding_window=CONTEXT),
    "Phi": lambda: config("Phi"),
    "Gemma": lambda: config("Gemma", head_dim=8),
    "GPTNeoX": lambda: config("GPTNeoX"),
    "Qwen3Moe": lambda: config("Qwen3Moe", head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24),
    "Bloom (no positions)": lambda: hf.BloomConfig(
        vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4, initializer_range=0.3
    ),
}


def longrope() -> Any:
    factors = [1.0, 1.5, 2.0, 2.5]
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": factors, "long_factor": factors[::-1]}
    return config("Phi3", rope_parameters=rope, original_max_position_embeddings=16, sliding_window=None)


def build(made: Any, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    model = hf.AutoModelForCausalLM.from_config(made, dtype=dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):  # zero at the start, and then a forgotten bias would not show
                parameter.normal_(std=0.3)
    return model


@pytest.fixture(params=CONFIGS, scope="module")
def model(request: pytest.FixtureRequest) -> TransformersModel:
    return TransformersModel(build(CONFIGS[request.param]()))


@pytest.fixture(scope="module")
def llama() -> TransformersModel:
    return TransformersModel(build(CONFIGS["Llama"]()))


def uncached_logits(model: TransformersModel, tokens: list[int]) -> torch.Tensor:
    """The law that every cached forward must give: [L, V] from one forward without a cache."""
    with torch.no_grad():
        logits: torch.Tensor = model.model(input_ids=torch.tensor([tokens]), use_cache=False).logits
    return logits[0].float()


def chains(cache: TransformersCache, rows: dict[int, list[int]], prefill: bool = False) -> Block:
    """A block of these tokens per slot, padded with id 3."""
    widths = tuple(map(len, rows.values()))
    tokens = torch.tensor([row + [3] * (max(widths) - len(row)) for row in rows.values()])
    positions = torch.tensor([[cache.lengths[slot]] for slot in rows]) + torch.arange(max(widths))
    return Block(tokens, positions, tuple(rows), widths, prefill=prefill)


def run(model: TransformersModel, cache: TransformersCache, rows: dict[int, list[int]]) -> torch.Tensor:
    logits = model.forward(chains(cache, rows), cache).logits
    assert logits is not None
    return logits


def fill(model: TransformersModel, cache: TransformersCache, slot: int, tokens: list[int]) -> None:
    output = model.forward(chains(cache, {slot: tokens}, prefill=True), cache)
    assert output == Output(None)
    cache.commit(slot, range(len(tokens)))


def random_tokens(length: int, seed: int) -> list[int]:
    dice = random.Random(seed)
    return [dice.randrange(3, VOCAB) for _ in range(length)]


def ragged_error(model: TransformersModel, length: int = 24, slots: int = 3, seed: int = 0) -> float:
    """Decode known texts in ragged blocks with wrong drafts, random commits and truncations.

    Returns:
        The largest difference of any true row's logits from those of the uncached forward, over their scale.
    """
    dice = random.Random(seed)
    texts = [random_tokens(length, seed + slot) for slot in range(slots)]
    wanted = [uncached_logits(model, text) for text in texts]
    cache = model.new_cache(slots, length)
    worst = 0.0
    while live := [slot for slot in range(slots) if cache.lengths[slot] < length]:
        rows, right = {}, {}
        for slot in dice.sample(live, dice.randint(1, len(live))):
            start = cache.lengths[slot]
            width = dice.randint(1, min(6, length - start))
            right[slot] = dice.randint(1, width)
            wrong = [(token + 1) % VOCAB for token in texts[slot][start + right[slot] : start + width]]
            rows[slot] = texts[slot][start : start + right[slot]] + wrong
        logits = run(model, cache, rows)
        for row, slot in enumerate(rows):
            start, count = cache.lengths[slot], right[slot]
            difference = logits[row, :count] - wanted[slot][start : start + count]
            worst = max(worst, float(difference.abs().max() / wanted[slot].abs().max()))
            cache.commit(slot, range(dice.randint(1, count)))
            if dice.random() < 0.15:
                cache.truncate(slot, dice.randint(0, cache.lengths[slot]))
    return worst


# --- exactness


def test_ragged_blocks_with_rollbacks_equal_one_forward_without_cache(model: TransformersModel) -> None:
    assert ragged_error(model) < 1e-4


@pytest.mark.parametrize("kept", ["everything", "one row too many"])
def test_the_same_check_catches_an_adapter_that_forgets_to_crop(
    model: TransformersModel, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    crop = caches.crop
    mutants = {"everything": lambda cache, length: None, "one row too many": lambda cache, n: crop(cache, n + 1)}
    monkeypatch.setattr(caches, "crop", mutants[kept])
    assert ragged_error(model) > 1e-2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rolls_back_too_and_gives_float32_logits(dtype: torch.dtype) -> None:
    model = TransformersModel(build(CONFIGS["Llama"](), dtype))
    assert model.precision == str(dtype).removeprefix("torch.")
    cache = model.new_cache(1, 8)
    assert run(model, cache, {0: [5, 6]}).dtype == torch.float32
    assert ragged_error(model) < 0.05


def test_half_precision_check_catches_a_forgotten_crop(monkeypatch: pytest.MonkeyPatch) -> None:
    model = TransformersModel(build(CONFIGS["Llama"](), torch.bfloat16))
    monkeypatch.setattr(caches, "crop", lambda cache, length: None)
    assert ragged_error(model) > 0.2


def batch_equals_each_alone(model: TransformersModel) -> bool:
    texts = {slot: random_tokens(length, slot) for slot, length in enumerate((3, 7, 12))}
    together = model.new_cache(3, CONTEXT)
    for slot, text in texts.items():
        fill(model, together, slot, text[:-2])
    batch = run(model, together, {slot: text[-2:] + [9] * slot for slot, text in texts.items()})
    equal = []
    for slot, text in texts.items():
        alone = model.new_cache(1, CONTEXT)
        fill(model, alone, 0, text[:-2])
        equal.append(torch.equal(run(model, alone, {0: text[-2:] + [9] * slot})[0], batch[slot, : 2 + slot]))
    return all(equal)


def test_rows_of_a_batch_are_the_bits_of_each_row_alone(model: TransformersModel) -> None:
    assert batch_equals_each_alone(model)


def test_the_same_check_catches_slots_that_are_mixed_up(
    llama: TransformersModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = TransformersCache.open
    mixed = lambda cache, slot, width: (right(cache, slot, width), cache._caches[slot // 2])[1]  # noqa: E731
    monkeypatch.setattr(TransformersCache, "open", mixed)
    assert not batch_equals_each_alone(llama)


def test_every_block_reaches_the_model_at_contiguous_positions(llama: TransformersModel) -> None:
    seen: list[tuple[int, list[int]]] = []

    def record(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        if kwargs["use_cache"]:
            cache = kwargs.get("cache", kwargs.get("past_key_values"))
            seen.append((cache.get_seq_length(), kwargs["position_ids"][0].tolist()))

    hook = llama.model.register_forward_pre_hook(record, with_kwargs=True)
    try:
        ragged_error(llama)
    finally:
        hook.remove()
    assert len(seen) > 10
    assert all(positions == list(range(rows, rows + len(positions))) for rows, positions in seen)


def test_a_forward_moves_no_length_and_only_the_next_one_crops(llama: TransformersModel) -> None:
    cache = llama.new_cache(2, CONTEXT)
    fill(llama, cache, 0, random_tokens(5, 0))
    first = run(llama, cache, {0: [7, 8, 9]})
    assert cache.lengths == [5, 0]
    assert torch.equal(run(llama, cache, {0: [7, 8, 9]}), first)


@pytest.mark.parametrize("made", [CONFIGS["Llama"], CONFIGS["GPT2"], longrope])
def test_padding_past_the_context_leaves_the_rows_before_it_alone(made: Callable[[], Any]) -> None:
    model = TransformersModel(build(made()))
    text = random_tokens(model.context_length, 0)
    cache = model.new_cache(1, model.context_length + 16)
    fill(model, cache, 0, text[:-3])
    got, wanted = run(model, cache, {0: text[-3:] + [7] * 13})[0, :3], uncached_logits(model, text)[-3:]
    assert torch.allclose(got, wanted, rtol=0, atol=1e-4 * float(wanted.abs().max()))


def test_a_prefill_block_computes_the_logits_of_one_row(llama: TransformersModel) -> None:
    shapes: list[torch.Size] = []
    hook = llama.model.register_forward_hook(lambda module, args, output: shapes.append(output.logits.shape))
    try:
        fill(llama, llama.new_cache(1, CONTEXT), 0, random_tokens(9, 0))
    finally:
        hook.remove()
    assert shapes == [(1, 1, VOCAB)]


def test_a_forward_that_failed_half_way_leaves_the_committed_rows_intact(llama: TransformersModel) -> None:
    cache, untouched = llama.new_cache(1, CONTEXT), llama.new_cache(1, CONTEXT)
    for each in (cache, untouched):
        fill(llama, each, 0, random_tokens(6, 0))

    def fail(*args: Any) -> None:
        raise RuntimeError("planted")

    hook = llama.model.model.layers[1].register_forward_pre_hook(fail)
    try:
        with pytest.raises(RuntimeError, match="planted"):
            run(llama, cache, {0: [4, 5]})
    finally:
        hook.remove()
    assert torch.equal(run(llama, cache, {0: [8, 9]}), run(llama, untouched, {0: [8, 9]}))


# --- slots


def reused_slot_equals_fresh_slot(model: TransformersModel) -> bool:
    used, fresh = model.new_cache(2, CONTEXT), model.new_cache(1, CONTEXT)
    fill(model, used, 1, random_tokens(20, 0))
    used.truncate(1, 0)
    for cache, slot in ((used, 1), (fresh, 0)):
        fill(model, cache, slot, random_tokens(4, 1))
    return torch.equal(run(model, used, {1: [5, 6]}), run(model, fresh, {0: [5, 6]}))


def test_a_reused_slot_is_a_fresh_slot(model: TransformersModel) -> None:
    assert reused_slot_equals_fresh_slot(model)


def test_the_same_check_catches_a_slot_that_is_not_emptied(
    llama: TransformersModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caches, "crop", lambda cache, length: None)
    monkeypatch.setattr(
        TransformersCache, "truncate", lambda cache, slot, length: cache.lengths.__setitem__(slot, length)
    )
    assert not reused_slot_equals_fresh_slot(llama)


def copy_error(model: TransformersModel) -> float:
    """Prefill one slot, copy it, let both go their own way; the largest error of their logits over their scale."""
    shared, left, right = random_tokens(6, 0), random_tokens(5, 1), random_tokens(5, 2)
    cache = model.new_cache(2, CONTEXT)
    fill(model, cache, 0, shared)
    run(model, cache, {0: left[:2]})  # uncommitted rows, which the copy must not take over
    cache.copy(0, 1)
    assert cache.lengths == [6, 6]
    fill(model, cache, 0, left[:3])
    fill(model, cache, 1, right[:1])
    logits, worst = run(model, cache, {1: right[1:], 0: left[3:]}), 0.0
    for got, text, count in ((logits[0], shared + right, 4), (logits[1], shared + left, 2)):
        wanted = uncached_logits(model, text)[-count:]
        worst = max(worst, float((got[:count] - wanted).abs().max() / wanted.abs().max()))
    return worst


def test_a_copy_lives_on_its_own(model: TransformersModel) -> None:
    assert copy_error(model) < 1e-4


def test_the_same_check_catches_a_copy_that_shares_its_rows(
    llama: TransformersModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caches.copy, "deepcopy", lambda cache: cache)
    assert copy_error(llama) > 1e-2


def test_a_copy_between_forward_and_commit_does_not_disturb_its_source(llama: TransformersModel) -> None:
    cache, plain = llama.new_cache(2, CONTEXT), llama.new_cache(1, CONTEXT)
    for each in (cache, plain):
        fill(llama, each, 0, random_tokens(6, 0))
        run(llama, each, {0: [4, 5, 6]})
    cache.copy(0, 1)
    for each in (cache, plain):
        each.commit(0, (0, 1))
    assert torch.equal(run(llama, cache, {0: [9]}), run(llama, plain, {0: [9]}))


def test_picked_rows_are_the_rows_that_stay(llama: TransformersModel) -> None:
    cache = llama.new_cache(1, CONTEXT)
    fill(llama, cache, 0, random_tokens(4, 0))
    run(llama, cache, {0: random_tokens(5, 1)})
    before = [(layer.keys, layer.values) for layer in cache._caches[0].layers]
    cache.commit(0, (0, 2, 3))
    assert cache.lengths == [7]
    wanted = [0, 1, 2, 3, 4, 6, 7]
    for layer, (keys, values) in zip(cache.open(0, 1).layers, before, strict=True):
        assert torch.equal(layer.keys, keys[:, :, wanted])
        assert torch.equal(layer.values, values[:, :, wanted])


MISUSES: dict[str, Callable[[TransformersModel, TransformersCache], Any]] = {
    "a row that was not written": lambda model, cache: cache.commit(0, (0, 1, 2, 3)),
    "the same block twice": lambda model, cache: (cache.commit(0, (0,)), cache.commit(0, (0,))),
    "a block from before a truncation": lambda model, cache: (cache.truncate(0, 0), cache.commit(0, (0,))),
    "a truncation that lengthens": lambda model, cache: cache.truncate(0, 1),
    "more rows than the capacity": lambda model, cache: fill(model, cache, 0, [4] * 9),
    "a gap in the positions": lambda model, cache: model.forward(
        Block(torch.tensor([[4]]), torch.tensor([[1]]), (0,), (1,)), cache
    ),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_broken_invariants_are_assertions(llama: TransformersModel, misuse: str) -> None:
    cache = llama.new_cache(1, 8)
    run(llama, cache, {0: [4, 5, 6]})
    with pytest.raises(AssertionError):
        MISUSES[misuse](llama, cache)


# --- the model's own facts


def test_it_is_a_model_of_the_core(llama: TransformersModel) -> None:
    typed: Model = llama
    assert (typed.vocab_size, typed.context_length, typed.precision) == (VOCAB, CONTEXT, "float32")


def test_capacity_stops_at_the_context(llama: TransformersModel) -> None:
    assert llama.new_cache(1, 10).capacity == 10
    assert llama.new_cache(1, 10**9).capacity == CONTEXT


@pytest.mark.parametrize("bad", [{"slots": 0, "capacity": 8}, {"slots": 1, "capacity": 0}])
def test_an_empty_cache_is_refused(llama: TransformersModel, bad: dict[str, int]) -> None:
    with pytest.raises(InvalidOption, match="at least 1"):
        llama.new_cache(**bad)


def test_a_config_without_a_limit_has_the_documented_one() -> None:
    assert TransformersModel(build(CONFIGS["Bloom (no positions)"]())).context_length == adapter.UNBOUNDED_CONTEXT


def test_longrope_is_used_up_to_where_its_angles_change() -> None:
    model = TransformersModel(build(longrope()))
    assert model.context_length == 16
    assert ragged_error(model, length=16) < 1e-4
    with pytest.raises(InvalidOption, match="1 to 16"):
        TransformersModel(build(longrope()), context_length=17)


def test_longrope_beyond_that_length_would_not_be_exact() -> None:
    model = TransformersModel(build(longrope()))
    model.context_length = CONTEXT
    assert ragged_error(model, length=24) > 1e-2


def test_a_window_model_is_exact_up_to_its_window() -> None:
    made = config("Mistral", sliding_window=8)
    model = TransformersModel(build(made), context_length=8)
    assert model.new_cache(1, CONTEXT).capacity == 8
    assert ragged_error(model, length=8) < 1e-4


@pytest.mark.parametrize("made", [CONFIGS["Llama"], longrope])
def test_the_users_model_is_only_put_into_eval_mode_and_can_still_be_trained(made: Callable[[], Any]) -> None:
    inner = build(made()).train()
    before = (
        inner.generation_config.to_dict(),
        inner.config.to_dict(),
        {k: v.clone() for k, v in inner.state_dict().items()},
    )
    model = TransformersModel(inner)
    logits = run(model, model.new_cache(1, CONTEXT), {0: [5, 6]})
    assert not inner.training
    assert not logits.requires_grad
    assert not logits.is_inference()
    assert (inner.generation_config.to_dict(), inner.config.to_dict()) == before[:2]
    assert all(torch.equal(value, before[2][name]) for name, value in inner.state_dict().items())
    tokens = torch.tensor([[5, 6, 7]])
    inner.train()(input_ids=tokens, labels=tokens).loss.backward()
    assert all(parameter.grad is not None for parameter in inner.parameters())


# --- refusals

HYBRID = {"num_hidden_layers": 4, "head_dim": 8, "layer_types": ["linear_attention", "full_attention"] * 2}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "sliding window": (
        lambda: build(config("Mistral", sliding_window=8)),
        r"Layer 0 of MistralForCausalLM.*8 tokens.*DynamicSlidingWindowLayer.*context_length=8",
    ),
    "a window in some layers": (
        lambda: build(config("Gemma2", head_dim=8, sliding_window=8)),
        r"Gemma2ForCausalLM \(sliding_attention\)",
    ),
    "Mamba": (
        lambda: build(hf.MambaConfig(vocab_size=VOCAB, hidden_size=16, num_hidden_layers=2, state_size=4)),
        r"MambaForCausalLM",
    ),
    "Jamba": (
        lambda: build(
            config("Jamba", num_hidden_layers=4, attn_layer_period=2, attn_layer_offset=1, use_mamba_kernels=False)
        ),
        r"JambaForCausalLM \(.*(linear_attention|mamba)",
    ),
    "Qwen3-Next": (
        lambda: build(config("Qwen3Next", **HYBRID, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)),
        r"Qwen3NextForCausalLM \((full_attention, )?linear_attention",
    ),
    "DeepSeek V3.2": (
        lambda: build(
            config("DeepseekV32", **LATENT, num_key_value_heads=4, index_topk=8, index_n_heads=2, index_head_dim=16)
        ),
        r"DeepseekV32ForCausalLM.*DynamicIndexedLayer",
    ),
    "RecurrentGemma": (
        lambda: build(config("RecurrentGemma", num_hidden_layers=3, attention_window_size=2048)),
        r"RecurrentGemmaForCausalLM",
    ),
    "RWKV": (
        lambda: build(hf.RwkvConfig(vocab_size=VOCAB, hidden_size=32, attention_hidden_size=32, num_hidden_layers=2)),
        r"RwkvForCausalLM\.forward takes no key/value cache",
    ),
    "T5": (
        lambda: hf.T5ForConditionalGeneration(
            hf.T5Config(vocab_size=VOCAB, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
        ),
        r"T5ForConditionalGeneration is an encoder-decoder",
    ),
    "no head": (lambda: hf.LlamaModel(config("Llama")), r"LlamaModel has no language modelling head"),
    "attention to later tokens": (
        lambda: hf.BertLMHeadModel(config("Bert", is_decoder=False)),
        r"BertLMHeadModel gives other logits",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_rolled_back_is_refused_by_name(case: str) -> None:
    make, message = REFUSED[case]
    with pytest.raises(UnsupportedModel, match=message):
        TransformersModel(make())


class StuckLayer(cache_utils.DynamicLayer):
    """Keeps more than keys and values, and cannot be cropped."""

    is_croppable = False
    crop = None  # type: ignore[assignment]


class StuckCache(hf.DynamicCache):
    def __init__(self, config: Any = None) -> None:
        super().__init__(config=config)
        self.layers = [StuckLayer() for _ in self.layers]


def test_a_cache_that_says_it_cannot_crop_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declared, "DynamicCache", StuckCache)
    with pytest.raises(UnsupportedModel, match="Layer 0 of LlamaForCausalLM keeps its past in a StuckLayer"):
        TransformersModel(build(CONFIGS["Llama"]()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cache_whose_crop_does_nothing_is_found_by_the_trial_run(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_utils.DynamicLayer, "crop", lambda self, *args: None)
    with pytest.raises(UnsupportedModel, match="remembers rows that were cropped from its cache of DynamicLayer"):
        TransformersModel(build(CONFIGS["Llama"](), dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_hidden_running_state_is_found_by_the_trial_run(dtype: torch.dtype) -> None:
    model = build(CONFIGS["Llama"](), dtype)

    def blend_all_tokens_ever_seen(module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
        module.total = getattr(module, "total", 0) + output.detach().mean(dim=1, keepdim=True)
        return output + module.total

    model.get_input_embeddings().register_forward_hook(blend_all_tokens_ever_seen)
    with pytest.raises(UnsupportedModel, match="LlamaForCausalLM"):
        TransformersModel(model)


def test_weights_that_give_nan_are_refused() -> None:
    model = build(CONFIGS["Llama"]())
    model.lm_head.weight.data.fill_(float("nan"))
    with pytest.raises(UnsupportedModel, match="NaN"):
        TransformersModel(model)


def test_what_is_no_transformers_model_is_refused() -> None:
    with pytest.raises(InvalidOption, match="load_transformers"):
        TransformersModel(torch.nn.Linear(2, 2))  # type: ignore[arg-type]


# --- loading


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    build(CONFIGS["Llama"]()).save_pretrained(tmp_path)
    return tmp_path


def edit_config(folder: Path, **changes: Any) -> None:
    stored = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**stored, **changes}))


def test_a_loaded_model_gives_the_saved_models_logits(checkpoint: Path, llama: TransformersModel) -> None:
    loaded = load_transformers(str(checkpoint))
    assert loaded.precision == "float32"
    assert torch.equal(run(loaded, loaded.new_cache(1, 8), {0: [5, 6]}), run(llama, llama.new_cache(1, 8), {0: [5, 6]}))
    other = load_transformers(str(checkpoint), torch.bfloat16, context_length=9)
    assert (other.precision, other.context_length) == ("bfloat16", 9)


def empty(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


def truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def pickle_only(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")


def own_code(folder: Path) -> None:
    (folder / "evil.py").write_text("raise SystemExit('ran the code of a checkpoint')")
    edit_config(folder, model_type="evil", auto_map={"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"})


BROKEN: dict[str, tuple[Callable[[Path], Any], type[OutriderError], str]] = {
    "empty folder": (empty, CheckpointError, "has no config.json; give the folder"),
    "damaged config": (
        lambda folder: (folder / "config.json").write_text("{"),
        CheckpointError,
        "No model could be read.*Give a folder",
    ),
    "truncated weights": (truncate, CheckpointError, "cannot be loaded.*again"),
    "no safetensors": (pickle_only, CheckpointError, "safetensors"),
    "too few weights": (lambda folder: edit_config(folder, num_hidden_layers=3), CheckpointError, "missing keys"),
    "too many weights": (lambda folder: edit_config(folder, num_hidden_layers=1), CheckpointError, "unexpected keys"),
    "other shapes": (lambda folder: edit_config(folder, intermediate_size=44), CheckpointError, "cannot be loaded"),
    "unknown architecture": (lambda folder: edit_config(folder, model_type="nonesuch"), UnsupportedModel, "nonesuch"),
    "code of its own": (own_code, UnsupportedModel, "not run"),
    "no causal language model": (lambda folder: edit_config(folder, model_type="vit"), UnsupportedModel, "causal"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_checkpoint_is_named_with_its_fix(case: str, checkpoint: Path) -> None:
    damage, kind, message = BROKEN[case]
    damage(checkpoint)
    with pytest.raises(kind, match=message) as caught:
        load_transformers(str(checkpoint))
    assert str(checkpoint) in str(caught.value)


def test_a_path_that_does_not_exist_is_named() -> None:
    with pytest.raises(CheckpointError, match="'/nowhere/at/all'"):
        load_transformers("/nowhere/at/all")


@pytest.mark.parametrize(
    "bad", [{"dtype": torch.int8}, {"dtype": "fast"}, {"device": "nonesuch"}, {"device": "cuda:99"}]
)
def test_a_dtype_or_device_that_cannot_be_used_is_refused_before_anything_is_read(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match=next(iter(bad))):
        load_transformers("/nowhere/at/all", **bad)


def test_features_are_the_models_hidden_states(llama: TransformersModel) -> None:
    num_layers = llama.model.config.num_hidden_layers
    shown = llama.showing((num_layers, 1))
    block = chains(shown.new_cache(2, 20), {0: [1, 2, 3], 1: [4]})
    hidden = shown.forward(block, shown.new_cache(2, 20)).hidden
    with torch.inference_mode():
        states = llama.model(torch.tensor([[1, 2, 3]]), output_hidden_states=True).hidden_states
    assert hidden is not None
    torch.testing.assert_close(hidden[0], torch.cat([states[num_layers][0], states[1][0]], -1), atol=1e-5, rtol=1e-4)
    assert llama.forward(block, llama.new_cache(2, 20)).hidden is None
    with pytest.raises(InvalidOption, match="feature layer is 99"):
        llama.showing((99,))
