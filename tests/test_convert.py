"""The check that a head was read as it was trained, on heads that were made to agree with a tiny target."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from torch.nn import functional as F

from heads import HEADS, eagle_graph, eagle_head, medusa_head, mlp_head, noise, shared_output, tiny_target
from outrider.convert import Evidence, agreement, check_head, complete, eagle_logits, gather, missing
from outrider.drafters.heads.config import EagleConfig, MedusaConfig
from outrider.drafters.heads.formats_readings import Variant
from outrider.drafters.heads.medusa import MedusaHeads
from outrider.drafters.heads.mlp import MlpSpeculator
from outrider.drafters.heads.stored import StoredHead
from outrider.errors import CheckpointError, InvalidOption
from outrider.models.opening import Matrices

TARGET = tiny_target(vocab_size=24)
DEPTH = TARGET.num_layers
MATRICES = Matrices(TARGET.embedding, TARGET.output)
TOKENS = torch.randint(0, 24, (160,), generator=torch.Generator().manual_seed(3)).tolist()
EVEN, FIRST = tuple(range(0, 24, 2)), tuple(range(12))


def evidence_of(layers):
    """What the target shows, as tensors that gradients may pass."""
    found = gather(TARGET.model, TOKENS, layers)
    return Evidence(found.tokens, found.guesses.clone(), {layer: x.clone() for layer, x in found.states.items()})


def trained(head: StoredHead, num_steps: int = 60) -> StoredHead:
    """An EAGLE head that has learnt this text by heart, both steps."""
    config, ids = head.config, head.draft_ids
    evidence = evidence_of(config.feature_layers)
    features = torch.cat([evidence.states[layer] for layer in config.feature_layers], dim=-1)
    weights = {name: torch.nn.Parameter(w.clone()) for name, w in head.weights.items()}
    optimiser = torch.optim.Adam(weights.values(), lr=0.01)
    place = torch.full((TARGET.vocab_size,), -100)
    place[torch.arange(TARGET.vocab_size) if ids is None else ids] = torch.arange(config.draft_vocab_size)
    for _ in range(num_steps):
        logits = eagle_logits(replace(head, weights=weights), features, evidence.tokens, MATRICES)
        wanted = [place[evidence.guesses[step:]] for step in (1, 2)]
        loss = sum(F.cross_entropy(rows, ids, ignore_index=-100) for rows, ids in zip(logits, wanted, strict=True))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return replace(head, weights={name: w.detach() for name, w in weights.items()})


@lru_cache
def plain_head():
    return trained(eagle_head(TARGET, feature_layers=(1, 2, 3)))


@lru_cache
def head_of_10000():
    """Keys and queries are large, so that it matters where they point."""
    head = eagle_head(TARGET, feature_layers=(1, 2, 3))
    for part in "qk":
        head.weights[f"layers.0.self_attn.{part}_proj.weight"] *= 4
    return trained(replace(head, config=replace(head.config, rope_theta=10_000.0)))


@lru_cache
def head_with_flags():
    flags = {"norm_before_residual": True, "norm_before_fc": True, "norm_output": True}
    head = eagle_head(TARGET, feature_layers=(0, 2, 3), **flags)
    for place, name in enumerate(("input_norm", "layers.0.hidden_norm", "norm")):  # norms that cannot be left out
        head.weights[f"{name}.weight"] = 2 * noise(place, len(head.weights[f"{name}.weight"]))
    return trained(head)


@lru_cache
def reduced_head(ids):
    return trained(eagle_head(TARGET, feature_layers=(1, 2, 3), draft_ids=ids))


def check(head):
    return check_head(head, TARGET.model, TOKENS, MATRICES)


# ---------------------------------------------------------------- what the check finds


@pytest.mark.parametrize(
    ("head", "clear"),
    [
        (plain_head, "layer ids +1: 2, 3, 4"),
        (head_with_flags, "norm_output = false"),
        (lambda: reduced_head(EVEN), "d2t holds ids"),
        (lambda: reduced_head(FIRST), "d2t holds offsets"),
    ],
)
def test_nothing_is_wrong_with_a_head_that_is_read_as_it_was_trained(head, clear):
    found = check(head())
    assert found.is_as_read
    assert found.is_useful
    assert found.agreements[0].reading == "as read"
    assert clear in {each.reading for each in found.agreements} - set(found.undecided)


PLANTED = {
    "layer ids read one too low": (plain_head, {"feature_layers": (0, 1, 2)}, "layer ids +1: 1, 2, 3"),
    "layer ids read one too high": (plain_head, {"feature_layers": (2, 3, 4)}, "layer ids -1: 1, 2, 3"),
    "a residual that is not normed": (plain_head, {"norm_before_residual": True}, "norm_before_residual = false"),
    "a residual that is": (head_with_flags, {"norm_before_residual": False}, "norm_before_residual = true"),
    "a normed state fed back": (plain_head, {"norm_output": True}, "norm_output = false"),
    "a state fed back as it is": (head_with_flags, {"norm_output": False}, "norm_output = true"),
    "no norm of the features": (head_with_flags, {"norm_before_fc": False}, "norm_before_fc = true"),
    "the base of another": (head_of_10000, {"rope_theta": 2.0}, "rope_theta = 10000"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_misreading_is_found(name):
    head, changes, right = PLANTED[name]
    found = check(replace(head(), config=replace(head().config, **changes)))
    assert not found.is_as_read
    assert found.best.reading == right
    assert found.agreements[0].step2 < check(head()).agreements[0].step2


def test_a_misread_vocabulary_is_found():
    """Offsets taken for ids, and ids for offsets."""
    taken_for_ids = replace(reduced_head(EVEN), draft_ids=torch.tensor(FIRST))
    taken_for_offsets = replace(reduced_head(FIRST), draft_ids=torch.tensor(EVEN))
    assert check(taken_for_ids).best.reading == "d2t holds offsets"
    assert check(taken_for_offsets).best.reading == "d2t holds ids"


def test_swapped_halves_are_found():
    head = plain_head()
    names = [f"layers.0.self_attn.{x}_proj.weight" for x in "qkv"]
    width = head.config.hidden_size
    swapped = {name: torch.cat([head.weights[name][:, width:], head.weights[name][:, :width]], 1) for name in names}
    assert check(replace(head, weights=head.weights | swapped)).best.reading == "hidden before embedding"


def test_the_last_state_is_told_from_the_one_before():
    head = trained(eagle_head(TARGET, 1))
    assert check(head).is_as_read
    assert (
        check(replace(head, config=replace(head.config, feature_layers=(DEPTH - 1,)))).best.reading == "layer ids +1: 4"
    )


def test_an_untrained_head_is_of_no_use():
    """Of 24 tokens, chance finds one in ten at most."""
    big = tiny_target(vocab_size=320)
    tokens = [token * 13 % 320 for token in range(100)]
    assert not check_head(eagle_head(big), big.model, tokens, Matrices(big.embedding, big.output)).is_useful


def test_a_head_of_another_target_is_refused():
    other = tiny_target(vocab_size=320)
    with pytest.raises(CheckpointError, match="320 tokens, the target has 24"):
        check(eagle_head(other))
    config = replace(plain_head().config, target_hidden_size=24)
    with pytest.raises(CheckpointError, match="states of 24 numbers, the target's have 48"):
        check(replace(plain_head(), config=config))
    with pytest.raises(InvalidOption, match="3 to 1024"):
        check_head(plain_head(), TARGET.model, [1, 2])


# ---------------------------------------------------------------- what the check computes


def guesses_one_by_one(head: StoredHead, evidence: Evidence, place: int) -> list[int]:
    """What a drafter guesses after the token at `place + 1`: each step anew, over everything before it."""
    config, tokens = head.config, evidence.tokens
    if isinstance(config, MedusaConfig):
        heads = MedusaHeads(config, head.weights, shared_output(TARGET, head))
        guesses = [heads.logits(evidence.states[DEPTH][place], k) for k in (0, 1)]
    elif isinstance(config, EagleConfig):
        graph, guesses = eagle_graph(TARGET, head), []
        features = torch.cat([evidence.states[layer] for layer in config.feature_layers], dim=-1)
        states = graph.fuse(features[: place + 1])
        for _ in range(2):
            made = graph.step(tokens[1 : len(states) + 1], states, torch.arange(len(states)), causal)
            guesses.append(graph.logits(made[-1]))
            states = torch.cat([states, graph.feedback(made[-1:])])
    else:
        graph = MlpSpeculator(config, head.weights)
        first = graph.step(tokens[place + 1], evidence.states[DEPTH][place], 0)
        guesses = [graph.logits(first, 0), graph.logits(graph.step(tokens[place + 2], first, 1), 1)]
    found = [int(logits.argmax()) for logits in guesses]
    return found if head.draft_ids is None else [int(head.draft_ids[guess]) for guess in found]


def causal(q, k, v):
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1).flatten(1)


@pytest.mark.parametrize("name", HEADS)
def test_agreement_is_that_of_guesses_made_one_by_one(name):
    head = HEADS[name](TARGET)
    layers = head.config.feature_layers if isinstance(head.config, EagleConfig) else (DEPTH,)
    evidence, count = evidence_of(layers), 40
    found = agreement(Variant("", head, layers), evidence, MATRICES)
    first, second = found.hits[: len(TOKENS) - 1], found.hits[len(TOKENS) - 1 :]
    for place in range(count):
        guesses = guesses_one_by_one(head, evidence, place)
        wanted = evidence.guesses[place + 1 : place + 3].tolist()
        assert [first[place], second[place]] == [a == b for a, b in zip(guesses, wanted, strict=True)]
    assert (sum(first) / len(first), sum(second) / len(second)) == pytest.approx((found.step1, found.step2))


def test_evidence_is_what_the_target_computes_at_once():
    states = TARGET.states(TOKENS)
    found = gather(TARGET.model, TOKENS, (0, 2, DEPTH))
    for layer, shown in found.states.items():
        assert torch.allclose(shown, states[layer], atol=1e-3)
    logits = states[DEPTH] @ TARGET.output.T
    assert torch.equal(found.guesses, logits.argmax(-1))


# ---------------------------------------------------------------- completing


def test_a_head_gets_the_matrices_of_its_target():
    shared = eagle_head(TARGET, own_output=False, draft_ids=EVEN)
    assert missing(shared, "safeailab-eagle3") == ("lm_head.weight",)
    assert missing(shared, "safeailab-eagle1") == ()
    wanted = missing(shared, "speculators-eagle3")
    assert wanted == ("lm_head.weight", "embed_tokens.weight")
    whole = complete(shared, wanted, MATRICES)
    assert torch.equal(whole.weights["lm_head.weight"], TARGET.output[list(EVEN)])
    assert torch.equal(whole.weights["embed_tokens.weight"], TARGET.embedding)
    assert missing(whole, "speculators-eagle3") == ()
    medusa = medusa_head(TARGET, own_outputs=False)
    assert missing(medusa, "tgi-medusa") == missing(mlp_head(TARGET), "medusa") == ()
    assert missing(medusa, "medusa") == ("0.1.weight", "1.1.weight", "2.1.weight")
    half = replace(shared, weights={name: w.bfloat16() for name, w in shared.weights.items()})
    assert complete(half, wanted, MATRICES).weights["lm_head.weight"].dtype == torch.bfloat16
    with pytest.raises(CheckpointError, match="another target"):
        complete(shared, wanted, Matrices(torch.ones(24, 3), torch.ones(24, 3)))
