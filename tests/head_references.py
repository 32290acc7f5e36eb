"""What heads give, written plainly: whole texts, one row after another, no cache; and whole runs compared with that."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from engine_runs import toy_engine
from heads import TinyTarget, feature_layers, shared_output
from outrider.core import Draft, Sequence
from outrider.drafters.feeding import Text
from outrider.drafters.headed import HeadDrafter
from outrider.drafters.heads.config import EagleConfig, MedusaConfig
from outrider.drafters.heads.stored import StoredHead
from outrider.drafters.levels import grow
from outrider.tree import paths


def reference_eagle(
    target: TinyTarget, stored: StoredHead, features: torch.Tensor, tokens: list[int], path: tuple[int, ...]
) -> torch.Tensor:
    """[1 + len(path), Vd]: the drafted path runs on what the head itself made of it.

    Args:
        target: that the head may share matrices with.
        stored: the head.
        features: [n, A * Ht] of the first n tokens.
        tokens: n + 1 of them.
        path: drafted after them.
    """
    c, w = stored.config, stored.weights
    embedding = w.get("embed_tokens.weight", target.embedding)
    output = w.get("lm_head.weight", shared_output(target, stored))
    states, read, found = _entering(c, w, features), list(tokens[1:]), []
    for token in (*path, None):
        made = _eagle_layer(c, w, embedding[torch.tensor(read)], states)[-1:]
        normed = made if c.version == 1 else reference_norm(made, w["norm.weight"], c.rms_norm_eps)
        found.append(normed @ output.T)
        states = torch.cat([states, normed if c.norm_output else made])
        read.append(token)
    return torch.cat(found)


def _entering(c: EagleConfig, w: dict[str, torch.Tensor], features: torch.Tensor) -> torch.Tensor:
    if c.version == 1:
        return features
    if c.norm_before_fc:
        features = reference_norm(features, w["input_norm.weight"], c.rms_norm_eps)
    if c.fc_norm:
        parts = features.split(c.target_hidden_size, -1)
        features = torch.cat(
            [reference_norm(part, w[f"fc_norm.{i}.weight"], c.rms_norm_eps) for i, part in enumerate(parts)], -1
        )
    return features @ w["fc.weight"].T + w.get("fc.bias", 0)


def _eagle_layer(
    c: EagleConfig, w: dict[str, torch.Tensor], embedded: torch.Tensor, states: torch.Tensor
) -> torch.Tensor:
    """[n, H] what comes out of the layer, each row seeing those before it."""
    at = "layers.0."
    if c.version == 1:
        x = residual = torch.cat([embedded, states], -1) @ w["fc.weight"].T + w.get("fc.bias", 0)
    else:
        normed = reference_norm(states, w[f"{at}hidden_norm.weight"], c.rms_norm_eps)
        x = torch.cat([reference_norm(embedded, w[f"{at}input_layernorm.weight"], c.rms_norm_eps), normed], -1)
        residual = normed if c.norm_before_residual else states
    y = residual + _attention(c, w, x)
    n = reference_norm(y, w[f"{at}post_attention_layernorm.weight"], c.rms_norm_eps)
    gate, up = n @ w[f"{at}mlp.gate_proj.weight"].T, n @ w[f"{at}mlp.up_proj.weight"].T
    return y + (gate * gate.sigmoid() * up) @ w[f"{at}mlp.down_proj.weight"].T


def _attention(c: EagleConfig, w: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    at, heads = "layers.0.self_attn.", []
    q, k, v = (
        (x @ w[f"{at}{part}_proj.weight"].T + w.get(f"{at}{part}_proj.bias", 0)).view(len(x), -1, c.head_dim)
        for part in "qkv"
    )
    if f"{at}q_norm.weight" in w:
        q, k = (reference_norm(y, w[f"{at}{n}_norm.weight"], c.rms_norm_eps) for y, n in ((q, "q"), (k, "k")))
    q, k = turned(q, c.rope_theta), turned(k, c.rope_theta)
    hidden = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
    for head in range(c.num_heads):
        group = head * c.num_kv_heads // c.num_heads
        scores = q[:, head] @ k[:, group].T / c.head_dim**0.5
        heads.append(scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v[:, group])
    return torch.cat(heads, -1) @ w[f"{at}o_proj.weight"].T


def turned(x: torch.Tensor, theta: float) -> torch.Tensor:
    """[n, heads, D] as complex numbers of a half each, row i turned i times."""
    n, _, dim = x.shape
    speeds = theta ** -(torch.arange(dim // 2) * 2 / dim)
    turn = torch.polar(torch.ones(n, dim // 2), torch.arange(n)[:, None] * speeds)
    both = torch.complex(x[..., : dim // 2], x[..., dim // 2 :]) * turn[:, None]
    return torch.cat([both.real, both.imag], -1)


def reference_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return weight * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def reference_medusa(target: TinyTarget, stored: StoredHead, state: torch.Tensor) -> torch.Tensor:
    """[K, Vd]."""
    c, w, found = stored.config, stored.weights, []
    for k in range(c.num_heads):
        x = state
        for block in range(c.num_layers):
            y = w[f"{k}.{block}.linear.weight"] @ x + w.get(f"{k}.{block}.linear.bias", 0)
            x = x + y * y.sigmoid()
        found.append(w.get(f"{k}.{c.num_layers}.weight", shared_output(target, stored)) @ x)
    return torch.stack(found)


def reference_mlp(stored: StoredHead, state: torch.Tensor, tokens: tuple[int, ...]) -> torch.Tensor:
    """[n, V] after each of the tokens, of which the first is the text's last."""
    c, w, found = stored.config, stored.weights, []
    weight = 0.5 ** (0.5 / c.num_steps)
    for i, token in enumerate(tokens):
        if i == 0 and c.scale_input:
            state = state / (state.square().mean() + 1e-6).sqrt() / 2**0.5
        x = weight * w[f"proj.{i}.weight"] @ state
        x = x + ((1 - weight**2) * c.inner_size / 2) ** 0.5 * w[f"emb.{i}.weight"][token]
        x = w[f"ln.{i}.weight"] * x / (x.square().mean() + 1e-6).sqrt() + w[f"ln.{i}.bias"]
        state = x * (1 + torch.erf(x / 2**0.5)) / 2
        found.append(w[f"head.{i}.weight"] @ state)
    return torch.stack(found)


class References:
    """Gives the logits after one text and whatever is drafted behind it, from transformers' states of that text.

    Args:
        target: the head's.
        stored: the head.
        tokens: the text; what stands behind it in a `Text` is drafted.
    """

    def __init__(self, target: TinyTarget, stored: StoredHead, tokens: list[int]) -> None:
        self.target, self.stored, self.tokens = target, stored, list(tokens)
        states = target.states(tokens[:-1])
        self.features = torch.cat([states[layer] for layer in feature_layers(target, stored)], -1)
        self._known: dict[tuple[int, ...], torch.Tensor] = {}

    def feed(self, texts: list[Text], trees: list[Draft]) -> list[torch.Tensor]:
        """See `levels.Feeds`; one text."""
        ((text, draft),) = zip(texts, trees, strict=True)
        prefix = tuple(text.tokens[len(self.tokens) :])
        return [torch.stack([self.after((*prefix, *path)) for path in paths(draft.tokens, draft.parents)])]

    def after(self, path: tuple[int, ...]) -> torch.Tensor:
        """[V], -inf where the head has no token."""
        if path not in self._known:
            found, ids = self._logits(path), self.stored.draft_ids
            if ids is not None:
                found = torch.full((self.target.vocab_size,), -torch.inf).index_copy(0, ids, found)
            self._known[path] = found
        return self._known[path]

    def _logits(self, path: tuple[int, ...]) -> torch.Tensor:
        config = self.stored.config
        if isinstance(config, EagleConfig):
            return reference_eagle(self.target, self.stored, self.features, self.tokens, path)[-1]
        if isinstance(config, MedusaConfig):
            return reference_medusa(self.target, self.stored, self.features[-1])[len(path)]
        return reference_mlp(self.stored, self.features[-1], (self.tokens[-1], *path))[-1]


# ---------------------------------------------------------------- whole runs


@dataclass(frozen=True)
class Asked:
    """A draft, and what it was asked with.

    Args:
        sequence: as it was, with its coins.
        budget: most nodes.
        draft: the answer.
        told: how much the drafter had been told of the sequence by then.
    """

    sequence: Sequence
    budget: int
    draft: Draft
    told: int


@dataclass
class Recorder:
    """Passes everything on to a head's drafter and keeps what was said, as it was then.

    Attributes:
        asked: all drafts, in order.
        told: by sequence id, ("read", hidden) and ("observe", verified), those of a shared prompt included.
        num_shared: prompts that were copied, and how many of them from a sequence that had rounds by then.
        num_accepted: drafted tokens that were kept.
        sequences: all of them, in the order in which they were added.
    """

    drafter: HeadDrafter
    asked: list[Asked] = field(default_factory=list)
    told: dict[int, list[tuple[str, Any]]] = field(default_factory=dict)
    num_shared: int = 0
    num_shared_late: int = 0
    num_accepted: int = 0
    sequences: list[Sequence] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.name, self.proposal = self.drafter.name, self.drafter.proposal
        self.feature_layers = self.drafter.feature_layers

    def propose(self, sequences: list[Sequence], budgets: list[int]) -> list[Draft]:
        then = [as_it_is(s) for s in sequences]
        drafts = self.drafter.propose(sequences, budgets)
        for s, budget, draft in zip(then, budgets, drafts, strict=True):
            self.asked.append(Asked(s, budget, draft, len(self.told.get(s.id, []))))
        return drafts

    def read(self, sequence: Sequence, hidden: torch.Tensor) -> None:
        self.told.setdefault(sequence.id, []).append(("read", hidden.clone()))
        self.drafter.read(sequence, hidden)

    def share(self, source: Sequence, sequence: Sequence) -> None:
        self.num_shared += 1
        self.num_shared_late += source.num_new_tokens > 0
        self.told[sequence.id] = [event for event in self.told[source.id] if event[0] == "read"]
        self.drafter.share(source, sequence)

    def observe(self, verified: list[Any]) -> None:
        for v in verified:
            then = replace(v, sequence=as_it_is(v.sequence), hidden=None if v.hidden is None else v.hidden.clone())
            self.told.setdefault(v.sequence.id, []).append(("observe", then))
        self.drafter.observe(verified)


def as_it_is(sequence: Sequence) -> Sequence:
    """A copy that stays as it is."""
    return replace(sequence, tokens=list(sequence.tokens), draft_coins=deepcopy(sequence.draft_coins))


def run(
    target: TinyTarget, drafter: HeadDrafter, requests: list[dict[str, Any]], slots: int, *, k: int = 4, **options: Any
) -> Recorder:
    """Requests to their end, two of them at first and one more after every step."""
    recorder, waiting = Recorder(drafter), list(requests)
    engine = toy_engine(target.showing(drafter), recorder, options.pop("rule", "auto"), k, slots=slots, **options)
    while waiting or engine.num_unfinished:
        for request in waiting[: 1 if recorder.asked else 2]:
            recorder.sequences.append(engine.add(**request))
            waiting.remove(request)
        rounds = engine.step()
        assert all(r.broken is None for r in rounds), [r.broken for r in rounds]
        recorder.num_accepted += sum(r.num_accepted for r in rounds)
    return recorder


def reference_draft(target: TinyTarget, stored: StoredHead, drafter: HeadDrafter, asked: Asked) -> Draft:
    """What the answer should have been."""
    sequence = as_it_is(asked.sequence)
    if len(sequence.tokens) == 1:
        return Draft.chain((), ())  # nothing was read yet
    most = asked.budget if drafter.form else min(asked.budget, longest_path(stored))
    feeds = References(target, stored, sequence.tokens)
    return grow(feeds, [sequence], [most], drafter.form, target.vocab_size).drafts[0]


def longest_path(stored: StoredHead) -> int:
    """Of a draft."""
    config = stored.config
    if isinstance(config, EagleConfig):
        return 64
    return config.num_heads if isinstance(config, MedusaConfig) else config.num_steps


def fresh_draft(drafter: HeadDrafter, asked: Asked, told: list[tuple[str, Any]]) -> Draft:
    """What a drafter says that knows nothing but what was told of this one sequence."""
    sequence = replace(as_it_is(asked.sequence), slot=0)
    sequence.tokens = sequence.tokens[: sequence.prompt_length]
    for kind, what in told[: asked.told]:
        if kind == "read":
            drafter.read(sequence, what)
        else:
            sequence.tokens = list(what.sequence.tokens)
            drafter.observe([replace(what, sequence=sequence)])
    assert sequence.tokens == asked.sequence.tokens
    return drafter.propose([sequence], [asked.budget])[0]


def are_same(first: Draft, second: Draft) -> bool:
    """The same tokens in the same places, from the same laws."""
    if (first.tokens, first.parents, len(first) and first.proposal) != (
        second.tokens,
        second.parents,
        len(second) and second.proposal,
    ):
        return False
    for node in range(len(first)):
        law, other = first.law(node), second.law(node)
        if (law is None) != (other is None) or (law is not None and not np.allclose(law, other, atol=1e-4)):
            return False
    return True


def count_wrong(target: TinyTarget, stored: StoredHead, recorder: Recorder) -> int:
    """Drafts of a run that are not what a full recompute gives."""
    return sum(_are_wrong(target, stored, recorder))


def any_wrong(target: TinyTarget, stored: StoredHead, recorder: Recorder) -> bool:
    """Whether there is one."""
    return any(_are_wrong(target, stored, recorder))


def _are_wrong(target: TinyTarget, stored: StoredHead, recorder: Recorder) -> Iterator[bool]:
    for asked in recorder.asked:
        yield not are_same(asked.draft, reference_draft(target, stored, recorder.drafter, asked))
