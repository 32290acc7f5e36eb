"""The graphs of trained heads against plain references, and against transformers' own modules."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch.nn import functional as F
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from head_references import References, count_wrong, reference_eagle, reference_medusa, reference_mlp, run
from heads import eagle_graph, eagle_head, head_drafter, medusa_head, mlp_head, noise, shared_output, tiny_target
from outrider.core import Draft
from outrider.drafters.heads.medusa import MedusaHeads
from outrider.drafters.heads.mlp import MlpSpeculator
from outrider.drafters.heads.stored import StoredHead
from outrider.errors import InvalidOption
from outrider.models.transformers import TransformersModel
from outrider.options import Sampling
from outrider.tree import paths

TARGET = tiny_target()
TOKENS = torch.randint(0, TARGET.vocab_size, (20,), generator=torch.Generator().manual_seed(5)).tolist()
TREE = Draft((4, 7, 4, 1, 4, 0, 9), (-1, -1, 0, 0, 2, 1, 4))
REDUCED = (0, 2, 3, 7, 11)

FLAGS = {
    " ".join(["residual"] * residual + ["output"] * output + [features] * (features != "")) or "none": {
        "norm_before_residual": residual,
        "norm_output": output,
        **({features: True} if features else {}),
    }
    for residual, output, features in product((False, True), (False, True), ("", "norm_before_fc", "fc_norm"))
}

KINDS = {
    **{
        f"eagle-3, {name}": eagle_head(
            TARGET,
            qk_norm=place % 2 == 0,
            biased=place % 3 == 0,
            own_embedding=place % 4 == 0,
            own_output=place % 3 != 1,
            draft_ids=REDUCED if place % 3 < 2 else None,
            **flags,
        )
        for place, (name, flags) in enumerate(FLAGS.items())
    },
    "eagle-3, two states": eagle_head(TARGET, feature_layers=(0, 3), fc_norm=True),
    "eagle-1": eagle_head(TARGET, 1),
    "eagle-1, biased": eagle_head(TARGET, 1, biased=True, own_embedding=True),
}


def features_of(stored: StoredHead) -> torch.Tensor:
    """States of all but the last token."""
    return noise(7, len(TOKENS) - 1, len(stored.config.feature_layers) * TARGET.hidden_size)


def run_graph(stored: StoredHead, features: torch.Tensor, draft: Draft) -> torch.Tensor:
    """[1 + n, Vd] by the graph, everything anew for every node."""
    head, states, read = eagle_graph(TARGET, stored), None, list(TOKENS[1:])
    states = head.fuse(features)
    count = len(states)
    seen, places = torch.ones(count, count, dtype=torch.bool).tril(), list(range(count))

    def attend(q, k, v):
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, seen, enable_gqa=True)[0].transpose(0, 1).flatten(1)

    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        made = head.step(torch.tensor(read), states, torch.tensor(places), attend)
        before = count + parent  # the row of the parent; of the text's last token for -1
        states = torch.cat([states, head.feedback(made[before])[None]])
        read.append(token)
        places.append(places[before] + 1)
        seen = F.pad(seen, (0, 1, 0, 1))
        seen[-1, :-1] = seen[before, :-1]
        seen[-1, -1] = True
    made = head.step(torch.tensor(read), states, torch.tensor(places), attend)
    return head.logits(made[count - 1 :])


def are_close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Within 1e-5 of the largest logit."""
    assert found.shape == expected.shape
    return bool((found - expected).abs().max() < 1e-5 * max(1, expected.abs().max()))


@pytest.mark.parametrize("kind", KINDS)
def test_the_eagle_graph_equals_a_plain_reference_on_every_path_of_a_tree(kind):
    stored = KINDS[kind]
    features = features_of(stored)
    logits = run_graph(stored, features, TREE)
    for row, path in enumerate(paths(TREE.tokens, TREE.parents)):
        assert are_close(logits[row], reference_eagle(TARGET, stored, features, TOKENS, path)[-1])


@pytest.mark.parametrize("flag", ["norm_before_residual", "norm_output", "norm_before_fc", "fc_norm"])
def test_a_wrong_flag_gives_other_logits(flag):
    with_all = {**eagle_head(TARGET, fc_norm=True).weights, **eagle_head(TARGET, norm_before_fc=True).weights}
    stored = StoredHead(eagle_head(TARGET).config, with_all)
    wrong = StoredHead(replace(stored.config, **{flag: True}), with_all)
    features = features_of(stored)
    right, other = (reference_eagle(TARGET, head, features, TOKENS, (4, 7)) for head in (stored, wrong))
    for head, expected, unexpected in ((stored, right, other), (wrong, other, right)):
        found = run_graph(head, features, Draft.chain((4, 7)))
        assert are_close(found, expected)
        assert (found - unexpected).abs().amax(-1)[-1] > 0.05


def test_the_layer_of_eagle_1_is_transformers_llama_layer_without_its_first_norm():
    stored = KINDS["eagle-1, biased"]
    c, weights = stored.config, dict(stored.weights)
    config = LlamaConfig(
        hidden_size=c.hidden_size,
        intermediate_size=c.intermediate_size,
        num_attention_heads=c.num_heads,
        num_key_value_heads=c.num_kv_heads,
        head_dim=c.head_dim,
        rms_norm_eps=c.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta},
        attn_implementation="eager",
    )
    layer = LlamaDecoderLayer(config, 0).eval()
    layer.input_layernorm = torch.nn.Identity()
    layer.load_state_dict({n.removeprefix("layers.0."): w for n, w in weights.items() if n.startswith("layers.0.")})
    features = features_of(stored)
    embedded = weights["embed_tokens.weight"][TOKENS[1:]]
    x = F.linear(torch.cat([embedded, features], -1), weights["fc.weight"], weights["fc.bias"])[None]
    places = torch.arange(len(features))[None]
    mask = torch.full((1, 1, len(features), len(features)), -torch.inf).triu(1)
    with torch.inference_mode():
        turns = LlamaRotaryEmbedding(config)(x, places)
        made = layer(x, attention_mask=mask, position_ids=places, position_embeddings=turns)
    expected = (made[0] if made.ndim == 3 else made)[-1] @ TARGET.output.T
    assert are_close(run_graph(stored, features, Draft())[0], expected)


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(("num_layers", "own_outputs", "draft_ids"), [(1, True, None), (2, False, REDUCED)])
def test_medusa_heads_equal_a_plain_reference(num_layers, biased, own_outputs, draft_ids):
    stored = medusa_head(TARGET, 4, num_layers, biased=biased, own_outputs=own_outputs, draft_ids=draft_ids)
    heads, state = MedusaHeads(stored.config, stored.weights, shared_output(TARGET, stored)), noise(8, 48)
    expected = reference_medusa(TARGET, stored, state)
    for head in range(4):
        assert are_close(heads.logits(state, head), expected[head])
    assert (expected[0] - expected[1]).abs().max() > 0.1


@pytest.mark.parametrize("scale_input", [True, False])
def test_an_mlp_speculator_equals_a_plain_reference(scale_input):
    stored = mlp_head(TARGET, 4, scale_input=scale_input)
    speculator, state = MlpSpeculator(stored.config, stored.weights), noise(8, 48)
    tokens, expected = (3, 1, 4, 1), reference_mlp(stored, state, (3, 1, 4, 1))
    for i, token in enumerate(tokens):
        state = speculator.step(torch.tensor(token), state, i)
        assert are_close(speculator.logits(state, i), expected[i])
    other = StoredHead(replace(stored.config, scale_input=not scale_input), stored.weights)
    assert (reference_mlp(other, noise(8, 48), tokens)[0] - expected[0]).abs().max() > 0.01


# ---------------------------------------------------------------- which states

REQUESTS = [{"prompt": TOKENS, "seed": 1, "max_new_tokens": 8, "sampling": Sampling(temperature=0.8)}]


@pytest.mark.parametrize("layers", [(1, 2, 3), (0, 4), (4, 2, 1)])
def test_features_are_the_states_that_the_head_names_and_no_others(layers):
    stored = eagle_head(TARGET, feature_layers=layers)
    drafter = head_drafter(TARGET, stored)
    assert count_wrong(TARGET, stored, run(TARGET, drafter, REQUESTS, 1)) == 0
    for wrong in (tuple(min(i + 1, 4) for i in layers), layers[::-1]):
        drafter = head_drafter(TARGET, stored)
        drafter.feature_layers = wrong
        recorder = run(TARGET, drafter, REQUESTS, 1)
        assert count_wrong(TARGET, stored, recorder) == sum(len(asked.draft) > 0 for asked in recorder.asked) > 2


def test_the_last_state_is_after_the_final_norm():
    stored = medusa_head(TARGET)
    right, before = References(TARGET, stored, TOKENS).features, TARGET.states(TOKENS[:-1])
    logits = TARGET.reference(torch.tensor([TOKENS[:-1]])).logits[0].detach()
    torch.testing.assert_close(right @ TARGET.output.T, logits)
    assert count_wrong(TARGET, stored, run(TARGET, head_drafter(TARGET, stored), REQUESTS, 1)) == 0
    assert (before[-2] - right).abs().max() > 0.1


@pytest.mark.parametrize("tree", ["chain", "2.1"])
def test_a_model_of_transformers_shows_the_same_states(tree):
    stored = eagle_head(TARGET)
    target = replace(TARGET, model=TransformersModel(TARGET.reference))
    recorder = run(target, head_drafter(TARGET, stored, 2, tree=tree), [*REQUESTS, *REQUESTS], 2)
    assert count_wrong(TARGET, stored, recorder) == 0
    assert sum(len(asked.draft) > 0 for asked in recorder.asked) > 5


def test_forwards_of_a_fixed_width_show_the_same_states():
    stored = eagle_head(TARGET)
    recorder = run(TARGET, head_drafter(TARGET, stored, 2), [*REQUESTS, *REQUESTS], 2, invariant=True)
    assert count_wrong(TARGET, stored, recorder) == 0
    assert sum(len(asked.draft) > 0 for asked in recorder.asked) > 5


def test_states_that_the_target_lacks_are_refused():
    drafter = head_drafter(TARGET, eagle_head(TARGET, feature_layers=(1, 2, 5)))
    with pytest.raises(InvalidOption, match="5"):
        TARGET.showing(drafter)
