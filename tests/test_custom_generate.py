"""The hook for `model.generate`: greedy ids equal transformers' own, sampled ones have its law, the rest is refused.

The models are real architectures, tiny and random; transformers is the reference for everything it can do itself.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import random
import string
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from scipy.stats import chisquare
from tokenizers import Tokenizer, decoders, models
from transformers.generation import logits_process as lp
from transformers.generation import stopping_criteria as sc
from transformers.generation.utils import GenerateDecoderOnlyOutput

import outrider
from outrider import Draft, Sampling
from outrider import generate_hook as hook
from outrider.core import Verdict
from outrider.drafters import ModelDrafter
from outrider.errors import InvalidOption, ProcessorError, UnsupportedModel
from outrider.models.transformers import TransformersModel

VOCAB, CONTEXT, PAD = 61, 64, 0
SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.3,
    "pad_token_id": PAD,
    "bos_token_id": 1,
    "eos_token_id": None,
}
CONFIGS: dict[str, Callable[[], Any]] = {
    "Llama": lambda: hf.LlamaConfig(**SMALL),
    "GPT2": lambda: hf.GPT2Config(
        vocab_size=VOCAB,
        n_positions=CONTEXT,
        n_embd=32,
        n_layer=2,
        n_head=4,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=PAD,
    ),
    "Qwen2": lambda: hf.Qwen2Config(**SMALL),
    "GPTNeoX": lambda: hf.GPTNeoXConfig(**SMALL),
    "Bloom": lambda: hf.BloomConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        n_layer=2,
        n_head=4,
        initializer_range=0.3,
        pad_token_id=PAD,
        eos_token_id=None,
    ),
}


def build(config: Any, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return hf.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


@functools.cache
def model_of(kind: str) -> Any:
    return build(CONFIGS[kind]())


@pytest.fixture(scope="module")
def llama() -> Any:
    return model_of("Llama")


def tokens(length: int, seed: int) -> list[int]:
    dice = random.Random(seed)
    return [dice.randrange(3, VOCAB) for _ in range(length)]


def padded(*rows: list[int]) -> dict[str, torch.Tensor]:
    """What a tokenizer with padding on the left makes of these rows."""
    longest = max(map(len, rows))
    ids = torch.tensor([[PAD] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    return {"input_ids": ids, "attention_mask": mask}


ONE = padded(tokens(4, 1) * 2)
THREE = padded(tokens(2, 2), tokens(6, 3), tokens(3, 4) * 2)
ENDS = list(range(20, 24))


def drafter_of(name: str) -> Any:
    """A drafter by name; "model" is another random model, whose drafts are mostly wrong, "self" is always right."""
    if name not in ("model", "self"):
        return name
    other = model_of("Llama") if name == "self" else build(CONFIGS["Llama"](), seed=1)
    return ModelDrafter(TransformersModel(other), slots=8)


def decode(model: Any, drafter: Any = "suffix", **settings: Any) -> Any:
    return model.generate(**settings, custom_generate=outrider.custom_generate, drafter=drafter)


# --- greedy: the ids of transformers


class EndsInThree(hf.StoppingCriteria):
    def __call__(self, ids: torch.Tensor, scores: Any, **_: Any) -> Any:
        return ids[:, -1] % 7 == 3


class LongEnough:
    """A criterion that is a plain callable and says plain True or False."""

    def __call__(self, ids: torch.Tensor, scores: Any, **_: Any) -> Any:
        return ids.shape[1] >= 13


LETTERS = (string.ascii_letters + string.digits)[:VOCAB]


@functools.cache
def spoken() -> Any:
    """A tokenizer whose tokens are letters and digits."""
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(LETTERS)}, merges=[]))
    tokenizer.decoder = decoders.Fuse()
    return hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def by_length(ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """A processor that counts the tokens in front, padding included, as transformers gives them."""
    return logits + 9.0 * ((torch.arange(logits.shape[-1]) + ids.shape[1]) % 7 == 0)


def processors(*listed: Any) -> dict[str, Any]:
    return {"logits_processor": hf.LogitsProcessorList(listed)}


def criteria(*listed: Any) -> dict[str, Any]:
    return {"stopping_criteria": hf.StoppingCriteriaList(listed)}


@functools.cache
def said() -> list[int]:
    """What the Llama says to ONE if left alone."""
    return model_of("Llama").generate(**ONE, max_new_tokens=12, do_sample=False)[0, 8:].tolist()


GREEDY: dict[str, Callable[[], dict[str, Any]]] = {
    "one row": lambda: {**ONE, "max_new_tokens": 40},
    "padded rows": lambda: {**THREE, "max_new_tokens": 40},
    "a prompt of one token": lambda: {**padded([5]), "max_new_tokens": 20},
    "no prompt": lambda: {"max_new_tokens": 12},
    "more rows than slots": lambda: {**padded(*(tokens(n, n) for n in range(2, 11))), "max_new_tokens": 8},
    "end tokens": lambda: {**ONE, "max_new_tokens": 40, "eos_token_id": ENDS},
    "end tokens in padded rows": lambda: {**THREE, "max_new_tokens": 40, "eos_token_id": ENDS},
    "max_length": lambda: {**THREE, "max_length": 20},
    "a criterion of length below the prompt's": lambda: {
        **ONE,
        "max_new_tokens": 9,
        **criteria(sc.MaxLengthCriteria(3)),
    },
    "repetition penalty": lambda: {**ONE, "max_new_tokens": 30, "repetition_penalty": 1.5},
    "repetition penalty in padded rows": lambda: {
        **THREE,
        "max_new_tokens": 30,
        "repetition_penalty": 1.5,
        "eos_token_id": ENDS,
    },
    "repetition penalty after a bias": lambda: {
        **THREE,
        "max_new_tokens": 30,
        "repetition_penalty": 1.5,
        "sequence_bias": {(30,): 5.0, (31, 32): 9.0, (PAD,): 3.0},
    },
    "repetition penalty that counts padding": lambda: {
        **THREE,
        "max_new_tokens": 20,
        **processors(lp.RepetitionPenaltyLogitsProcessor(0.2)),
    },
    "repetition penalty of the output alone": lambda: {
        **THREE,
        "max_new_tokens": 20,
        **processors(lp.RepetitionPenaltyLogitsProcessor(3.0, 6)),
    },
    "no n-gram twice": lambda: {**THREE, "max_new_tokens": 40, "no_repeat_ngram_size": 2},
    "bad words": lambda: {**ONE, "max_new_tokens": 40, "bad_words_ids": [said()[2:3], said()[4:6]]},
    "min_new_tokens": lambda: {**THREE, "max_new_tokens": 20, "min_new_tokens": 6, "eos_token_id": list(range(15, 40))},
    "min_length": lambda: {**THREE, "max_new_tokens": 20, "min_length": 11, "eos_token_id": list(range(15, 40))},
    "suppressed tokens": lambda: {**THREE, "max_new_tokens": 20, "suppress_tokens": list(range(30, 50))},
    "suppressed at the beginning": lambda: {
        **THREE,
        "max_new_tokens": 20,
        "begin_suppress_tokens": list(range(15, 60)),
    },
    "forced first token": lambda: {**padded([1]), "max_new_tokens": 20, "forced_bos_token_id": 9},
    "forced last token": lambda: {**THREE, "max_new_tokens": 9, "forced_eos_token_id": 50, "eos_token_id": 50},
    "decaying length": lambda: {
        **ONE,
        "max_new_tokens": 30,
        "exponential_decay_length_penalty": (3, 1.3),
        "eos_token_id": 20,
    },
    "prefix function": lambda: {
        **ONE,
        "max_new_tokens": 20,
        "prefix_allowed_tokens_fn": lambda row, ids: [int(ids[-1]) % 50 + 3, 7 + row],
    },
    "penalty of the prompt": lambda: {**ONE, "max_new_tokens": 20, "encoder_repetition_penalty": 5.0},
    "no n-gram of the prompt": lambda: {
        **padded(tokens(4, 1) * 2 + said()),
        "max_new_tokens": 20,
        "encoder_no_repeat_ngram_size": 1,
    },
    "green-list watermark": lambda: {
        **THREE,
        "max_new_tokens": 20,
        "watermarking_config": hf.WatermarkingConfig(bias=5.0, seeding_scheme="selfhash"),
    },
    "normalised logits": lambda: {**ONE, "max_new_tokens": 20, "renormalize_logits": True},
    "a custom processor": lambda: {**THREE, "max_new_tokens": 20, **processors(by_length)},
    "warpers without sampling": lambda: {
        **ONE,
        "max_new_tokens": 20,
        **processors(lp.TemperatureLogitsWarper(0.5), lp.TopKLogitsWarper(3)),
    },
    "a custom criterion": lambda: {**THREE, "max_new_tokens": 30, "eos_token_id": 60, **criteria(EndsInThree())},
    "a criterion that is a function": lambda: {**ONE, "max_new_tokens": 30, **criteria(LongEnough())},
    "stop strings": lambda: {
        **ONE,
        "max_new_tokens": 40,
        **criteria(sc.StopStringCriteria(spoken(), [LETTERS[i] for i in ENDS])),
    },
    "no time": lambda: {**ONE, "max_new_tokens": 30, "max_time": 1e-9},
}


@functools.cache
def greedy_ids(kind: str, case: str) -> Any:
    """What transformers itself decodes; a list, so that a difference is shown whole."""
    return model_of(kind).generate(**GREEDY[case](), do_sample=False).tolist()


def equals_transformers(kind: str, case: str, drafter: str) -> bool:
    ids = decode(model_of(kind), drafter_of(drafter), **GREEDY[case](), do_sample=False)
    return bool(ids.tolist() == greedy_ids(kind, case))


@pytest.mark.parametrize("drafter", ["suffix", "self"])
@pytest.mark.parametrize("case", GREEDY)
def test_greedy_ids_are_those_of_transformers(case: str, drafter: str) -> None:
    assert equals_transformers("Llama", case, drafter)


@pytest.mark.parametrize("drafter", ["none", "ngram", "model"])
@pytest.mark.parametrize("case", ["padded rows", "end tokens", "repetition penalty after a bias", "a custom criterion"])
def test_so_they_are_with_every_other_drafter(case: str, drafter: str) -> None:
    assert equals_transformers("Llama", case, drafter)


@pytest.mark.parametrize(("case", "drafter"), [("one row", "suffix"), ("repetition penalty in padded rows", "model")])
@pytest.mark.parametrize("kind", [kind for kind in CONFIGS if kind != "Llama"])
def test_so_they_are_for_other_architectures(kind: str, case: str, drafter: str) -> None:
    assert equals_transformers(kind, case, drafter)


BARE = {"input_ids", "attention_mask", "max_new_tokens", "max_length", "eos_token_id"}
IDLE = {"normalised logits", "warpers without sampling", "a criterion of length below the prompt's"}
"""These change nothing for greedy decoding, and must not."""


@pytest.mark.parametrize("case", GREEDY)
def test_every_setting_counts(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook, "_sampling", lambda *args: Sampling())
    monkeypatch.setattr(hook, "_holds", lambda *args: False)
    assert equals_transformers("Llama", case, "none") == (set(GREEDY[case]()) <= BARE or case in IDLE)


def prepared(model: Any, **settings: Any) -> Any:
    """The processors and criteria that `generate` makes of its arguments."""
    found: list[Any] = []

    def keep(model: Any, input_ids: Any, logits_processor: Any, stopping_criteria: Any, **_: Any) -> Any:
        found.extend((logits_processor, stopping_criteria))
        return input_ids

    model.generate(**settings, custom_generate=keep)
    return found


class AcceptAll:
    """A rule that keeps every draft: the planted bug behind all speculation."""

    name, lossless, trees, proposals = "accept-all", True, False, frozenset({"sampled", "point_mass"})

    def verify(self, draft: Draft, target_probs: Any, coins: Any, position: int) -> Verdict:
        last = coins.categorical(target_probs[len(draft)], position + len(draft))
        return Verdict(tuple(range(len(draft))), last)


def accept_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(hook, "choose_rule", lambda *args, **options: AcceptAll())


def forget_padding(patch: pytest.MonkeyPatch) -> None:
    joined = hook._joined
    patch.setattr(hook, "_joined", lambda chain, padding, device: joined(chain, [], device))


def mix_up_rows(patch: pytest.MonkeyPatch) -> None:
    of_row = hook._penalty_of_row
    patch.setattr(hook, "_penalty_of_row", lambda penalty, index: of_row(penalty, 1))


def ignore_padding_of_penalties(patch: pytest.MonkeyPatch) -> None:
    of_row = hook._penalty_of_row

    def never_counts_padding(penalty: Any, index: int) -> Any:
        made = of_row(penalty, index)
        made.prompt_ignore_length = [4, 0, 0][index]
        return made

    patch.setattr(hook, "_penalty_of_row", never_counts_padding)


def end_rows_too_late(patch: pytest.MonkeyPatch) -> None:
    holds = hook._holds
    patch.setattr(hook, "_holds", lambda listed, ids: holds(listed, ids[:, :-1]))


PLANTED = {
    "every draft is kept": (accept_all, "one row", "model"),
    "processors do not see the padding": (forget_padding, "a custom processor", "none"),
    "a minimum length leaves the padding out": (forget_padding, "min_length", "none"),
    "a penalty takes another row's padding": (mix_up_rows, "repetition penalty after a bias", "none"),
    "a penalty never counts padding": (
        ignore_padding_of_penalties,
        "repetition penalty that counts padding",
        "none",
    ),
    "a criterion is asked too late": (end_rows_too_late, "a custom criterion", "suffix"),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_the_same_check_catches_a_planted_bug(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, case, drafter = PLANTED[bug]
    if plant is mix_up_rows:
        penalty = next(each for each in prepared(model_of("Llama"), **GREEDY[case]())[0] if type(each) is hook._Penalty)
        if not isinstance(penalty.prompt_ignore_length, torch.Tensor):
            pytest.skip("in this transformers a penalty holds nothing per row")
    plant(monkeypatch)
    assert not equals_transformers("Llama", case, drafter)


@pytest.mark.parametrize("ending", ["end token", "criterion"])
@pytest.mark.parametrize("drafter", ["suffix", "self"])
def test_a_row_ends_at_any_place_of_an_accepted_draft(drafter: str, ending: str, llama: Any) -> None:
    whole = llama.generate(**ONE, max_new_tokens=16, do_sample=False)[0].tolist()
    made = drafter_of(drafter)
    for place in range(ONE["input_ids"].shape[1], len(whole)):
        settings: dict[str, Any] = {"eos_token_id": whole[place]}
        if ending == "criterion":
            settings = criteria(functools.partial(lambda n, ids, _: ids.shape[1] == n, place + 1))
        ids = decode(llama, made, **ONE, max_new_tokens=16, do_sample=False, **settings)[0].tolist()
        wanted = whole[: place + 1] if ending == "criterion" else whole[: whole.index(whole[place], 8) + 1]
        assert ids == wanted


@contextmanager
def forwards(model: Any) -> Iterator[list[int]]:
    """The widths of all forwards of a model."""
    widths: list[int] = []
    handle = model.register_forward_pre_hook(
        lambda module, args, kwargs: widths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    try:
        yield widths
    finally:
        handle.remove()


def test_it_speculates(llama: Any) -> None:
    target = TransformersModel(llama)
    counts = {}
    for drafter in ("none", "self"):
        made = drafter_of(drafter)
        made = ModelDrafter(TransformersModel(build(CONFIGS["Llama"]())), slots=1) if drafter == "self" else made
        with forwards(llama) as widths:
            decode(llama, made, **ONE, max_new_tokens=40, do_sample=False, target=target, num_draft_tokens=4)
        counts[drafter] = len(widths)
    assert counts == {"none": 1 + 40, "self": 1 + 8}  # one for the prompt; a round emits 1 or up to 5 tokens


# --- sampled: the law of transformers

TINY_PROMPT = [3, 4, 5, 3, 4, 5, 3, 4]
NUM_NEW = 3
SAMPLED: dict[str, dict[str, Any]] = {
    "as the model gives it": {"top_k": 0},
    "warpers": {"temperature": 0.8, "top_k": 5, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.4},
    "warpers in the processor": {"temperature": 1.5, "top_k": 6, "typical_p": 0.8, "renormalize_logits": True},
    "end tokens": {"top_k": 0, "eos_token_id": [4, 6], "min_new_tokens": 2, "sequence_bias": {(4,): 1.0}},
}


@functools.cache
def tiny(seed: int = 0) -> Any:
    small = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16, "initializer_range": 0.5}
    return build(hf.GPT2Config(vocab_size=8, **small, bos_token_id=1, eos_token_id=None, pad_token_id=PAD), seed)


@torch.no_grad()
def law_of_texts(model: Any, prompt: list[int], **settings: Any) -> dict[tuple[int, ...], float]:
    """Every text that transformers can sample, with its probability: enumerated with its own processors."""
    process, ends = prepared(model, **padded(prompt), do_sample=True, max_new_tokens=NUM_NEW, **settings)
    growing, finished = {(): 1.0}, {}
    while growing:
        text, mass = growing.popitem()
        ids = torch.tensor([[*prompt, *text]])
        if text and bool(ends(ids, None).all()):
            finished[text] = mass
            continue
        probs = process(ids, model(input_ids=ids).logits[:, -1])[0].double().softmax(-1)
        growing.update({(*text, i): mass * float(p) for i, p in enumerate(probs) if p > 0})
    return finished


def p_value(counts: Counter[tuple[int, ...]], law: dict[tuple[int, ...], float]) -> float:
    """Of the chi-square test, with texts that are expected less than 5 times put together."""
    if set(counts) - set(law):
        return 0.0
    total = counts.total()
    common = [text for text, mass in law.items() if mass * total >= 5]
    seen = [counts[text] for text in common]
    expected = [law[text] * total for text in common]
    rest = total - sum(expected)
    if rest > 1e-6 * total:
        seen.append(total - sum(seen))
        expected.append(rest)
    return float(chisquare(seen, np.array(expected) * (total / sum(expected))).pvalue)


def sampled_p_value(settings: dict[str, Any], drafter: str, n: int = 140) -> float:
    made = ModelDrafter(TransformersModel(tiny(1)), slots=8) if drafter == "model" else drafter
    ids = decode(
        tiny(),
        made,
        **padded(TINY_PROMPT),
        **settings,
        do_sample=True,
        max_new_tokens=NUM_NEW,
        num_return_sequences=n,
        seed=0,
    )
    ends = set(settings.get("eos_token_id", []))
    counts = Counter(cut(row, ends) for row in ids[:, len(TINY_PROMPT) :].tolist())
    return p_value(counts, law_of_texts(tiny(), TINY_PROMPT, **settings))


def cut(row: list[int], ends: set[int]) -> tuple[int, ...]:
    length = next((i for i, token in enumerate(row) if token in ends), len(row) - 1) + 1
    return tuple(row[:length])


@pytest.mark.parametrize(("case", "drafter"), [*((case, "ngram") for case in SAMPLED), ("warpers", "model")])
def test_sampled_texts_have_the_law_of_transformers(case: str, drafter: str) -> None:
    assert sampled_p_value(SAMPLED[case], drafter) > 1e-5


def drop_a_warper(name: str) -> Callable[[pytest.MonkeyPatch], None]:
    def plant(patch: pytest.MonkeyPatch) -> None:
        warpers = hook._warpers
        patch.setattr(hook, "_warpers", lambda rest: {k: v for k, v in warpers(rest).items() if k != name})

    return plant


def swap_the_order(patch: pytest.MonkeyPatch) -> None:
    def take_all(rest: list[Any]) -> dict[str, Any]:
        found = {n: getattr(each, n) for each in rest for n, kind in hook._WARPERS.items() if type(each) is kind}
        rest[:] = [each for each in rest if type(each) not in hook._WARPERS.values()]
        return found

    patch.setattr(hook, "_warpers", take_all)


BENT = {
    "every draft of a model is kept": (accept_all, "as the model gives it", "model"),
    "every copied draft is kept": (accept_all, "warpers", "ngram"),
    "the temperature is lost": (drop_a_warper("temperature"), "warpers", "ngram"),
    "top-k is lost": (drop_a_warper("top_k"), "warpers", "ngram"),
    "warpers change their order": (swap_the_order, "warpers in the processor", "ngram"),
}


@pytest.mark.parametrize("bug", BENT)
def test_the_same_test_of_laws_catches_a_planted_bug(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, case, drafter = BENT[bug]
    plant(monkeypatch)
    assert sampled_p_value(SAMPLED[case], drafter) < 1e-5


def test_the_rule_can_be_chosen() -> None:
    made = ModelDrafter(TransformersModel(tiny(1)), slots=8)
    settings = {**padded(TINY_PROMPT), "do_sample": True, "max_new_tokens": NUM_NEW, "num_return_sequences": 80}
    texts = {}
    for rule in ("token", "coupled"):
        ids = decode(tiny(), made, **settings, seed=0, rule=rule)[:, len(TINY_PROMPT) :].tolist()
        texts[rule] = [tuple(row) for row in ids]
        assert p_value(Counter(texts[rule]), law_of_texts(tiny(), TINY_PROMPT)) > 1e-5
    assert texts["token"] != texts["coupled"]


def test_a_lossy_rule_must_be_allowed(llama: Any) -> None:
    settings = {**ONE, "max_new_tokens": 5, "do_sample": True, "rule": "typical"}
    with pytest.raises(InvalidOption, match="allow_lossy"):
        decode(llama, **settings)
    assert decode(llama, **settings, allow_lossy=True).shape == (1, 13)


# --- chance


def test_manual_seed_makes_sampling_repeatable(llama: Any) -> None:
    def draw(seed: int) -> Any:
        torch.manual_seed(seed)
        first = decode(llama, **THREE, do_sample=True, max_new_tokens=6).tolist()
        return first, decode(llama, **THREE, do_sample=True, max_new_tokens=6).tolist()

    assert draw(3) == draw(3)
    assert draw(3) != draw(4)
    assert draw(3)[0] != draw(3)[1]


def test_greedy_decoding_leaves_the_random_state_of_torch_alone(llama: Any) -> None:
    before = torch.get_rng_state()
    decode(llama, **ONE, max_new_tokens=3, do_sample=False)
    assert torch.equal(torch.get_rng_state(), before)
    decode(llama, **ONE, max_new_tokens=3, do_sample=True, seed=1)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("drafter", ["ngram", "model"])
def test_a_row_of_a_batch_is_the_row_alone_with_its_own_seed(drafter: str, llama: Any) -> None:
    settings = {"max_new_tokens": 12, "do_sample": True, "temperature": 0.7, "num_draft_tokens": 3}
    together = decode(llama, drafter_of(drafter), **THREE, **settings, seed=5)
    for row in range(3):
        first = int(THREE["attention_mask"][row].argmax())
        alone = decode(
            llama, drafter_of(drafter), input_ids=THREE["input_ids"][row : row + 1, first:], **settings, seed=5 + row
        )
        length = alone.shape[1]
        assert together[row, first : first + length].tolist() == alone[0].tolist()
        assert set(together[row, first + length :].tolist()) <= {PAD}


def test_return_sequences_lie_side_by_side_and_differ(llama: Any) -> None:
    ids = decode(llama, **THREE, do_sample=True, temperature=2.0, max_new_tokens=10, num_return_sequences=4, seed=0)
    longest = THREE["input_ids"].shape[1]
    assert torch.equal(ids[:, :longest], THREE["input_ids"].repeat_interleave(4, dim=0))
    assert len({tuple(row) for row in ids.tolist()}) == 12


# --- what comes back


@pytest.mark.parametrize("settings", [{"return_dict_in_generate": True}, {}])
def test_the_result_has_the_type_of_transformers(settings: dict[str, Any], llama: Any) -> None:
    wanted = llama.generate(**THREE, do_sample=False, max_new_tokens=4, **settings)
    got = decode(llama, **THREE, do_sample=False, max_new_tokens=4, **settings)
    assert type(got) is type(wanted)
    if settings:
        assert isinstance(got, GenerateDecoderOnlyOutput)
        wanted, got = wanted.sequences, got.sequences
    assert torch.equal(got, wanted)
    assert (got.dtype, got.device) == (wanted.dtype, wanted.device)


def unequal_ends() -> dict[str, Any]:
    return {**THREE, "max_new_tokens": 30, "do_sample": False, **criteria(EndsInThree())}


def test_a_row_that_has_ended_is_padding_from_there_on(llama: Any) -> None:
    ids = decode(llama, **unequal_ends())
    prompt = THREE["input_ids"].shape[1]
    for row in ids[:, prompt:].tolist():
        end = next(i for i, token in enumerate(row) if token % 7 == 3)
        assert set(row[end + 1 :]) <= {PAD}
    assert (ids[:, -1] == PAD).any()


def test_rows_that_end_unequally_need_a_padding_token() -> None:
    model = build(CONFIGS["Llama"]())
    model.generation_config.pad_token_id = model.config.pad_token_id = None
    assert decode(model, **THREE, max_new_tokens=5, do_sample=False).shape == (3, 11)
    with pytest.raises(InvalidOption, match="pad_token_id is None"):
        decode(model, **unequal_ends())


def test_a_row_ends_at_the_context_with_a_warning(llama: Any) -> None:
    with pytest.warns(UserWarning, match=f"context of {CONTEXT} tokens"):
        ids = decode(llama, **ONE, max_new_tokens=90, do_sample=False)
    assert ids.tolist() == llama.generate(**ONE, max_length=CONTEXT, do_sample=False).tolist()


def test_the_function_stays_what_the_package_shows() -> None:
    for _ in range(2):  # a module of the same name would take its place at the first import
        assert outrider.custom_generate is hook.custom_generate
    assert [name for name in outrider.__all__ if importlib.util.find_spec(f"outrider.{name}") is not None] == []


def test_options_can_be_bound_beforehand(llama: Any) -> None:
    bound = functools.partial(outrider.custom_generate, drafter="ngram", num_draft_tokens=2)
    ids = llama.generate(**ONE, max_new_tokens=40, do_sample=False, custom_generate=bound)
    assert ids.tolist() == greedy_ids("Llama", "one row")


# --- streams


class Recorder:
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def put(self, ids: torch.Tensor) -> None:
        self.heard.append(ids.tolist())

    def end(self) -> None:
        self.heard.append("end")


def test_a_stream_hears_what_a_streamer_of_transformers_hears(llama: Any) -> None:
    ours, theirs = Recorder(), Recorder()
    settings = {**ONE, "max_new_tokens": 20, "do_sample": False, **criteria(LongEnough())}
    llama.generate(**settings, streamer=theirs)
    decode(llama, **settings, stream=ours)
    assert ours.heard == theirs.heard
    assert len(ours.heard) == 1 + 5 + 1


def test_text_streamers_work(llama: Any) -> None:
    streamer = hf.TextIteratorStreamer(spoken(), skip_prompt=True)
    ids = decode(llama, **ONE, max_new_tokens=20, do_sample=False, stream=streamer)
    assert "".join(streamer) == spoken().decode(ids[0, 8:])


def test_a_stream_ends_when_decoding_fails(llama: Any) -> None:
    stream = Recorder()
    with pytest.raises(ProcessorError, match="planted"):
        decode(llama, **ONE, max_new_tokens=20, do_sample=False, stream=stream, **processors(fail_after(12)))
    assert stream.heard[-1] == "end"


def test_a_stream_is_for_one_row(llama: Any) -> None:
    with pytest.raises(InvalidOption, match="stream is 'Recorder'; allowed: None for 3 rows"):
        decode(llama, **THREE, max_new_tokens=4, stream=Recorder())


# --- models and drafters


def test_a_prepared_target_saves_the_trial_run(llama: Any) -> None:
    target = TransformersModel(llama)
    with forwards(llama) as widths:
        ids = decode(llama, "none", **ONE, max_new_tokens=6, do_sample=False, target=target)
    assert widths == [7] + [1] * 6  # the prompt without its last token, then token by token
    assert ids.tolist() == [row[:14] for row in greedy_ids("Llama", "one row")]


def test_a_target_of_another_model_is_refused(llama: Any) -> None:
    for other in (TransformersModel(build(CONFIGS["Llama"]())), llama):
        with pytest.raises(InvalidOption, match=r"target is .*TransformersModel\(model\)"):
            decode(llama, **ONE, max_new_tokens=4, target=other)


def test_a_windowed_model_is_decoded_up_to_its_window() -> None:
    model = build(hf.MistralConfig(**SMALL, sliding_window=24))
    settings = {**ONE, "max_new_tokens": 16, "do_sample": False}
    with pytest.raises(UnsupportedModel, match="Pass context_length=24"):
        decode(model, **settings)
    assert decode(model, **settings, context_length=24).tolist() == model.generate(**settings).tolist()


def test_a_model_in_training_mode_is_refused() -> None:
    with pytest.raises(InvalidOption, match=r"Call model.eval\(\)"):
        decode(build(CONFIGS["GPT2"]()).train(), **ONE, max_new_tokens=4)


def test_an_encoder_decoder_is_refused() -> None:
    config = hf.T5Config(
        vocab_size=VOCAB, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=1
    )
    with pytest.raises(InvalidOption, match="encoder_outputs is"):
        decode(hf.T5ForConditionalGeneration(config).eval(), **ONE, max_new_tokens=4)


def test_a_draft_model_serves_more_rows_than_it_has_slots_call_after_call(llama: Any) -> None:
    drafter = ModelDrafter(TransformersModel(llama), slots=2)
    for case in ("padded rows", "more rows than slots", "padded rows"):
        with forwards(llama) as widths:
            assert decode(llama, drafter, **GREEDY[case](), do_sample=False).tolist() == greedy_ids("Llama", case)
        assert max(widths) > 1
    assert drafter.num_failed == 0


def test_a_draft_model_of_another_vocabulary_size_is_refused_until_it_says_which(llama: Any) -> None:
    other = TransformersModel(build(hf.LlamaConfig(**{**SMALL, "vocab_size": VOCAB + 3})))
    with pytest.raises(InvalidOption, match=f"drafter.vocab_size is {VOCAB + 3}; .*vocab_size={VOCAB}"):
        decode(llama, ModelDrafter(other, slots=1), **ONE, max_new_tokens=4)
    fitted = ModelDrafter(other, slots=1, vocab_size=VOCAB)
    assert decode(llama, fitted, **ONE, max_new_tokens=40, do_sample=False).tolist() == greedy_ids("Llama", "one row")


class Raises:
    name, proposal = "raises", "point_mass"

    def propose(self, sequences: Any, budgets: Any) -> Any:
        raise RuntimeError("planted")


@pytest.mark.filterwarnings("ignore::outrider.errors.DrafterWarning")
def test_a_drafter_that_fails_costs_speed_and_is_reported(llama: Any) -> None:
    with pytest.warns(UserWarning, match="The drafter failed.*RuntimeError: planted"):
        ids = decode(llama, Raises(), **ONE, max_new_tokens=40, do_sample=False)
    assert ids.tolist() == greedy_ids("Llama", "one row")


def fail_after(length: int) -> Any:
    def process(ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        if ids.shape[1] > length:
            raise ValueError("planted")
        return logits

    return process


def test_a_processor_that_fails_ends_the_call_with_its_message(llama: Any) -> None:
    with pytest.raises(ProcessorError, match="ValueError: planted"):
        decode(llama, **ONE, max_new_tokens=20, **processors(fail_after(10)))


# --- refusals


def filled_cache() -> dict[str, Any]:
    model = model_of("Llama")
    cache = hf.DynamicCache(config=model.config)
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    with torch.no_grad():
        model(input_ids=ONE["input_ids"][:, :-1], use_cache=True, **{name: cache})
    return {name: cache}


def mask(*row: int) -> dict[str, Any]:
    return {"attention_mask": torch.tensor([row])}


TOLD: dict[str, Callable[[], tuple[dict[str, Any], str]]] = {
    "beams": lambda: ({"num_beams": 3}, "num_beams is 3; allowed: 1"),
    "constraints": lambda: ({"constraints": [1]}, "constraints is"),
    "forced words": lambda: ({"force_words_ids": [[5]]}, "force_words_ids is"),
    "contrastive search": lambda: ({"penalty_alpha": 0.6}, "penalty_alpha is 0.6"),
    "DoLa": lambda: ({"dola_layers": "low"}, "dola_layers is 'low'"),
    "prompt look-up": lambda: ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens is 3.*drafter="),
    "early exit": lambda: ({"assistant_early_exit": 1}, "assistant_early_exit is 1.*drafter="),
    "ensemble": lambda: ({"assistant_ensemble_weight": 0.5}, "assistant_ensemble_weight is 0.5.*drafter="),
    "another speculation": lambda: ({"speculation_type": "x"}, "speculation_type is 'x'.*drafter="),
    "multi-token prediction": lambda: ({"use_mtp": True}, "use_mtp is True.*drafter="),
    "scores": lambda: ({"output_scores": True, "return_dict_in_generate": True}, "output_scores is True.*Only token"),
    "logits": lambda: ({"output_logits": True, "return_dict_in_generate": True}, "output_logits is True"),
    "attentions": lambda: ({"output_attentions": True, "return_dict_in_generate": True}, "output_attentions is True"),
    "hidden states": lambda: (
        {"output_hidden_states": True, "return_dict_in_generate": True},
        "output_hidden_states is True",
    ),
    "static cache": lambda: ({"cache_implementation": "static"}, "cache_implementation is 'static'.*of its own"),
    "no cache": lambda: ({"use_cache": False}, "use_cache is False"),
    "a cache with a past": lambda: (filled_cache(), "cache is 'a DynamicCache'"),
    "removed NaN": lambda: ({"remove_invalid_values": True}, "remove_invalid_values is True"),
    "guidance": lambda: ({"guidance_scale": 1.5}, "'UnbatchedClassifierFreeGuidanceLogitsProcessor'.*rejected"),
    "SynthID": lambda: (
        {"watermarking_config": hf.SynthIDTextWatermarkingConfig(keys=[1, 2], ngram_len=2)},
        "'SynthIDTextWatermarkLogitsProcessor'.*rejected",
    ),
    "shifted positions": lambda: ({"position_ids": torch.arange(8)[None] + 3}, r"position_ids is \[\[3, 4"),
    "a hole in the mask": lambda: (mask(1, 1, 1, 0, 1, 1, 1, 1), "attention_mask is .*Pad on the left"),
    "padding on the right": lambda: (mask(1, 1, 1, 1, 1, 1, 1, 0), "attention_mask is .*Pad on the left"),
    "nothing but padding": lambda: (mask(0, 0, 0, 0, 0, 0, 0, 0), "attention_mask is .*Pad on the left"),
    "an unknown drafter": lambda: ({"drafter": "falcon"}, "drafter is 'falcon'; allowed: none, ngram, suffix"),
    "a model by its name": lambda: ({"drafter": "model:gpt2"}, "drafter is 'model:gpt2'.*make ModelDrafter"),
    "no drafter at all": lambda: ({"drafter": 3}, "drafter is 3; allowed: an object"),
    "long drafts": lambda: ({"num_draft_tokens": 65}, "is 65; allowed: a whole number from 0 to 64"),
    "an unknown rule": lambda: ({"rule": "best"}, "rule is 'best'"),
    "a rule for other drafts": lambda: ({"rule": "block"}, "rule is 'block'"),
    "a negative seed": lambda: ({"seed": -1}, "seed is -1"),
    "a seed that is no number": lambda: ({"seed": True}, "seed is True"),
    "a longer context": lambda: ({"context_length": CONTEXT + 1}, f"context_length is {CONTEXT + 1}; allowed: 1 to"),
}
NEW_SETTINGS = {"ensemble", "another speculation", "multi-token prediction"}


@pytest.mark.parametrize("case", TOLD)
def test_what_has_no_exact_translation_is_refused_by_name(case: str, llama: Any) -> None:
    settings, message = TOLD[case]()
    if case in NEW_SETTINGS and not hasattr(hf.GenerationConfig(), next(iter(settings))):
        pytest.skip(f"this transformers has no {next(iter(settings))}")
    with pytest.raises(InvalidOption, match=message):
        decode(llama, settings.pop("drafter", "suffix"), **{**ONE, **settings}, max_new_tokens=4)


def test_other_inputs_of_the_model_are_refused() -> None:
    gpt2 = model_of("GPT2")
    with pytest.raises(InvalidOption, match="token_type_ids is 'Tensor'"):
        decode(gpt2, **ONE, token_type_ids=torch.zeros(1, 8, dtype=torch.int64), max_new_tokens=4)
    with pytest.raises(InvalidOption, match="inputs_embeds is 'Tensor'"):
        decode(gpt2, inputs_embeds=torch.zeros(1, 8, 32), max_new_tokens=4)


ROW_BOUND: dict[str, dict[str, Any]] = {
    "PrefixConstrainedLogitsProcessor": {"prefix_allowed_tokens_fn": lambda row, ids: [5, 6]},
    "EncoderRepetitionPenaltyLogitsProcessor": {"encoder_repetition_penalty": 1.5},
    "EncoderNoRepeatNGramLogitsProcessor": {"encoder_no_repeat_ngram_size": 2},
}


@pytest.mark.parametrize("kind", ROW_BOUND)
def test_processors_that_know_a_row_by_its_number_are_for_one_row(kind: str, llama: Any) -> None:
    with pytest.raises(InvalidOption, match=f"logits_processor is '{kind}'; allowed: others for 3 rows"):
        decode(llama, **THREE, max_new_tokens=4, **ROW_BOUND[kind])


def test_a_setting_that_changes_nothing_is_not_refused(llama: Any) -> None:
    harmless = {"num_beams": 1, "use_cache": True, "guidance_scale": 1.0, "output_scores": False, "position_ids": None}
    ids = decode(llama, **{**ONE, **harmless}, max_new_tokens=40, do_sample=False, cache_implementation="dynamic")
    assert ids.tolist() == greedy_ids("Llama", "one row")
