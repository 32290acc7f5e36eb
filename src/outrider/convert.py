"""Trained heads between formats, and the check that a head was read as it was trained.

Most ways to misread a head give no error, only bad guesses: layer ids that count otherwise, a norm too many, another
base of the rotary angles. So the head is run on text of the target in the reading of its file and in each other one
that is plausible, and the guesses are compared (reference: head formats, section 1.4).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional as F

from outrider.core import Block, Model
from outrider.drafters import NoDrafter
from outrider.drafters.heads.config import EagleConfig, MedusaConfig, MlpConfig
from outrider.drafters.heads.eagle import Attend, EagleHead
from outrider.drafters.heads.formats_readings import Variant, readings
from outrider.drafters.heads.medusa import MedusaHeads
from outrider.drafters.heads.mlp import MlpSpeculator
from outrider.drafters.heads.stored import StoredHead
from outrider.engine import Engine
from outrider.errors import CheckpointError, InvalidOption, UnsupportedModel
from outrider.generation import TextEngine
from outrider.models.checkpoint import open_checkpoint
from outrider.models.locate import locate
from outrider.models.opening import Matrices, Opened, num_layers_of
from outrider.models.settings import integer, read_json, record
from outrider.planning.pace import FixedPace
from outrider.rules import RULES

PROMPT = "Write a short story about a lighthouse keeper, then explain how a lighthouse works."
CHUNK = 64
"""Tokens per forward of the target."""
CLEARLY = 3.0
"""Standard deviations by which another reading must win the rows that only one of two gets right (a sign test)."""
USEFUL = 0.1
"""Less agreement than this at step 1 says that no reading fits, or that the head is of another target."""


@dataclass(frozen=True)
class Facts:
    """What heads need to know of a target: N, Vt, and the base of its rotary angles if it has one."""

    num_layers: int
    vocab_size: int
    rope_theta: float | None


@dataclass(frozen=True)
class Evidence:
    """What a target did with a text.

    Args:
        tokens: [n] int64, the text.
        guesses: [n] int64, the likeliest token after each.
        states: by layer id, [n, Ht].
    """

    tokens: torch.Tensor
    guesses: torch.Tensor
    states: Mapping[int, torch.Tensor]


@dataclass(frozen=True)
class Agreement:
    """How often a reading's likeliest token is the target's.

    Args:
        reading: what is read otherwise than in the file; "as read" for nothing.
        step1: share of the rows at the first drafted token.
        step2: share at the second, whose state is the head's own; None where it drafts only one.
        hits: row by row, step 1 before step 2.
    """

    reading: str
    step1: float
    step2: float | None
    hits: tuple[bool, ...]


@dataclass(frozen=True)
class HeadCheck:
    """The readings of a head compared, the file's own first."""

    num_tokens: int
    agreements: tuple[Agreement, ...]

    @property
    def best(self) -> Agreement:
        """The file's own, unless another is clearly better; then the best of those."""
        own = self.agreements[0]
        better = [a for a in self.agreements[1:] if _sign_test(a, own) >= CLEARLY]
        return max(better, key=lambda a: sum(a.hits), default=own)

    @property
    def is_as_read(self) -> bool:
        """Whether no other reading is clearly better."""
        return self.best is self.agreements[0]

    @property
    def is_useful(self) -> bool:
        """Whether the best reading agrees with the target often enough to be the right one."""
        return self.best.step1 >= USEFUL

    @property
    def undecided(self) -> tuple[str, ...]:
        """Readings that this text does not tell from the best."""
        others = (a for a in self.agreements if a is not self.best)
        return tuple(a.reading for a in others if _sign_test(self.best, a) < CLEARLY)


def check_head(head: StoredHead, model: Model, ids: Ordered[int], borrowed: Matrices | None = None) -> HeadCheck:
    """Compare the readings of a head by its guesses on a text of its target.

    Args:
        head: as read.
        model: its target, which must be able to show its states (`showing`).
        ids: 3 tokens or more, best a few hundred that the target made itself.
        borrowed: the target's matrices, for a head without its own.

    Raises:
        CheckpointError: the head is of another target, by the sizes.
        InvalidOption: fewer than 3 tokens, or more than the target's context takes.
    """
    facts = model_facts(model)
    if not 3 <= len(ids) <= model.context_length:
        raise InvalidOption("ids", len(ids), f"3 to {model.context_length} tokens of text")
    if head.config.vocab_size > facts.vocab_size:
        found = f"The head is made for {head.config.vocab_size} tokens, the target has {facts.vocab_size}"
        raise CheckpointError(f"{found}: it is of another target.")
    head = replace(head, weights={name: weight.float() for name, weight in head.weights.items()})
    variants = list(readings(head, facts.num_layers, facts.rope_theta))
    evidence = gather(model, ids, tuple(sorted({layer for v in variants for layer in v.layers})))
    width = evidence.states[variants[0].layers[0]].shape[-1]
    wanted = head.config.target_hidden_size if isinstance(head.config, EagleConfig) else head.config.hidden_size
    if width != wanted:
        raise CheckpointError(f"The head reads states of {wanted} numbers, the target's have {width}.")
    return HeadCheck(len(ids), tuple(agreement(variant, evidence, borrowed) for variant in variants))


# ---------------------------------------------------------------- the target


def model_facts(model: Model) -> Facts:
    """Facts about a loaded target, native or adapted."""
    config: Any = getattr(model, "config", None)  # the native decoder's
    if config is None:
        config = model.model.config.get_text_config(decoder=True)  # type: ignore[attr-defined]
    ropes = getattr(config, "rope_parameters", None) or {}
    theta = getattr(config, "rope_theta", None) or ropes.get("rope_theta")
    return Facts(num_layers_of(model), model.vocab_size, theta)


def target_facts(name: str) -> Facts:
    """The same of a target that is not loaded.

    Raises:
        CheckpointError, UnsupportedModel: there is no such model, or none that can be opened.
    """
    path = locate(name)
    try:
        config = open_checkpoint(path).config
    except UnsupportedModel:
        if not path.is_dir():
            raise
        settings = read_json(path / "config.json")
        settings = record(settings, "text_config") or settings
        return Facts(integer(settings, "num_hidden_layers"), integer(settings, "vocab_size"), None)
    return Facts(config.num_layers, config.vocab_size, config.rope_theta)


def own_text(opened: Opened, num_tokens: int, seed: int = 0) -> list[int]:
    """Tokens that a target makes itself, prompt and all, at temperature 1.

    Raises:
        InvalidOption: the prompt alone has more.
    """
    length = min(opened.model.context_length, num_tokens)
    engine = Engine(opened.model, NoDrafter(), RULES["point-mass"], FixedPace(0), slots=1, context_length=length)
    text = TextEngine(engine, opened.tokenizer)
    made = text.generate(PROMPT, max_new_tokens=None, stop_ids=(), temperature=1.0, seed=seed)
    return [*made.prompt_token_ids, *made.token_ids]


@torch.inference_mode()
def gather(model: Model, ids: Ordered[int], layers: tuple[int, ...]) -> Evidence:
    """Run a text through the target, once.

    Args:
        model: has `showing`.
        ids: the text.
        layers: ids of the states to keep.
    """
    showing: Model = model.showing(layers)  # type: ignore[attr-defined]
    cache, tokens = showing.new_cache(1, len(ids)), torch.tensor(list(ids))
    guesses, shown = [], []
    for start in range(0, len(ids), CHUNK):
        part = tokens[start : start + CHUNK]
        places = torch.arange(start, start + len(part))
        output = showing.forward(Block(part[None], places[None], (0,), (len(part),)), cache)
        cache.commit(0, range(len(part)))
        assert output.logits is not None
        assert output.hidden is not None
        guesses.append(output.logits[0].argmax(-1).cpu())
        shown.append(output.hidden[0].float().cpu())
    states = torch.cat(shown).chunk(len(layers), dim=-1)
    return Evidence(tokens, torch.cat(guesses), dict(zip(layers, states, strict=True)))


# ---------------------------------------------------------------- guesses


@torch.inference_mode()
def agreement(variant: Variant, evidence: Evidence, borrowed: Matrices | None = None) -> Agreement:
    """Guess the second and the third token after every state, true tokens fed in, and compare with the target's."""
    config, head = variant.head.config, variant.head
    features = torch.cat([evidence.states[layer] for layer in variant.layers], dim=-1)
    if isinstance(config, EagleConfig):
        logits = eagle_logits(head, features, evidence.tokens, borrowed)
    elif isinstance(config, MedusaConfig):
        medusa = MedusaHeads(config, head.weights, _output(head, borrowed))
        logits = [medusa.logits(features[: -1 - k], k) for k in range(min(2, config.num_heads))]
    else:
        logits = _mlp_logits(head, config, features, evidence.tokens)
    hits = []
    for step, rows in enumerate(logits, 1):
        found = rows.argmax(-1)
        found = found if head.draft_ids is None else head.draft_ids[found]
        hits.append(found == evidence.guesses[step:])
    shares = [float(step.float().mean()) for step in hits]
    return Agreement(variant.name, shares[0], shares[1] if len(shares) > 1 else None, tuple(torch.cat(hits).tolist()))


def eagle_logits(
    head: StoredHead, features: torch.Tensor, tokens: torch.Tensor, borrowed: Matrices | None = None
) -> list[torch.Tensor]:
    """Logits of both steps of an EAGLE head, true tokens fed in.

    Args:
        head: with an `EagleConfig`.
        features: [n, A * Ht] the target's states, side by side.
        tokens: [n] int64.
        borrowed: the target's matrices, for a head without its own.

    Returns:
        [n - 1, Vd], row t for token t + 2 of the text, and [n - 2, Vd], row t for token t + 3.
    """
    config = head.config
    assert isinstance(config, EagleConfig)
    embedding = None if borrowed is None else borrowed.embedding
    graph = EagleHead(config, head.weights, embedding, _output(head, borrowed))
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    places = torch.arange(len(tokens))
    first = graph.step(tokens[1:], graph.fuse(features[:-1]), places[:-1], _attending(kept))
    second = graph.step(tokens[2:], graph.feedback(first)[:-1], places[1:-1], _attending(kept))
    return [graph.logits(first), graph.logits(second)]


def _attending(kept: list[tuple[torch.Tensor, torch.Tensor]]) -> Attend:
    """Row i sees the rows up to i of step 1, and in step 2 itself besides, as in decoding."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        kept.append((k, v))
        n = len(q)
        own = torch.eye(n, dtype=torch.bool)
        masks = [
            torch.ones(n, len(keys), dtype=torch.bool).tril() if i == 0 else own for i, (keys, _) in enumerate(kept)
        ]
        keys, values = (torch.cat([pair[part] for pair in kept]).transpose(0, 1)[None] for part in (0, 1))
        mask = torch.cat(masks, dim=1)
        out = F.scaled_dot_product_attention(q.transpose(0, 1)[None], keys, values, attn_mask=mask, enable_gqa=True)
        return out[0].transpose(0, 1).reshape(n, -1)

    return attend


def _mlp_logits(
    head: StoredHead, config: MlpConfig, features: torch.Tensor, tokens: torch.Tensor
) -> list[torch.Tensor]:
    graph = MlpSpeculator(config, head.weights)
    states, logits = features, []
    for step in range(min(2, config.num_steps)):
        states = graph.step(tokens[1 + step :], states[:-1], step)
        logits.append(graph.logits(states, step))
    return logits


def _output(head: StoredHead, borrowed: Matrices | None) -> torch.Tensor | None:
    """Rows of the target's output for the ids that the head speaks."""
    if borrowed is None:
        return None
    return borrowed.output if head.draft_ids is None else borrowed.output[head.draft_ids]


def _sign_test(one: Agreement, other: Agreement) -> float:
    """Standard deviations by which `one` wins the rows that only one of both gets right."""
    wins = sum(a and not b for a, b in zip(one.hits, other.hits, strict=True))
    losses = sum(b and not a for a, b in zip(one.hits, other.hits, strict=True))
    return (wins - losses) / math.sqrt(max(wins + losses, 1))


# ---------------------------------------------------------------- completing


def missing(head: StoredHead, format: str) -> tuple[str, ...]:  # noqa: A002
    """Matrices that a format requires and that the head shares with its target."""
    config = head.config
    wanted: tuple[str, ...] = ()
    if isinstance(config, MedusaConfig) and (format != "tgi-medusa" or config.num_layers > 1):
        wanted = tuple(f"{k}.{config.num_layers}.weight" for k in range(config.num_heads))
    if isinstance(config, EagleConfig) and format != "safeailab-eagle1":
        wanted = ("lm_head.weight", *(["embed_tokens.weight"] if format == "speculators-eagle3" else []))
    return tuple(name for name in wanted if name not in head.weights)


def complete(head: StoredHead, names: tuple[str, ...], borrowed: Matrices) -> StoredHead:
    """The head with these matrices of its target, in its own number format.

    Raises:
        CheckpointError: they are not as wide as the head.
    """
    width, dtype = borrowed.output.shape[-1], next(iter(head.weights.values())).dtype
    rows = head.config.vocab_size
    if width != head.config.hidden_size or len(borrowed.output) < rows:
        found, wanted = list(borrowed.output.shape), [rows, head.config.hidden_size]
        raise CheckpointError(f"The target's matrices are {found}, the head needs {wanted}: it is of another target.")
    output = borrowed.output[torch.arange(rows) if head.draft_ids is None else head.draft_ids]
    parts = {n: borrowed.embedding[:rows] if n == "embed_tokens.weight" else output for n in names}
    return replace(head, weights=head.weights | {name: part.to(dtype) for name, part in parts.items()})
