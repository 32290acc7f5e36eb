"""Reading MLP speculators, tied or not."""

from __future__ import annotations

import torch

from outrider.drafters.heads.config import MlpConfig
from outrider.drafters.heads.formats import HeadFolder, Shapes, flag, size
from outrider.drafters.heads.stored import StoredHead
from outrider.errors import CheckpointError

PREFIX = "speculator."
TIED_FROM = {"emb": 0, "ln": 0, "head": 0, "proj": 1}
"""The step whose part the later steps share; `head` may be stored for each of them all the same."""


def read_mlp(folder: HeadFolder) -> tuple[StoredHead, tuple[str, ...]]:
    """An MLP speculator; what its steps share is repeated for each of them, without copies.

    Raises:
        CheckpointError: see `files.read_head`.
    """
    settings, folder = folder.settings, folder.renamed(lambda name: name.removeprefix(PREFIX))
    hidden = size(settings, "emb_dim", 4096)
    inner = settings.get("inner_dim")
    config = MlpConfig(
        num_steps=size(settings, "n_predict", 3),
        hidden_size=hidden,
        inner_size=hidden if inner in (None, 0) else size(settings, "inner_dim"),
        vocab_size=size(settings, "vocab_size", 32_000),
        scale_input=flag(settings, "scale_input"),
    )
    if config.num_steps > len(folder.entries):
        raise CheckpointError(f"{folder.path} has too few tensors for {config.num_steps} steps.")
    shapes = mlp_shapes(config)
    if not flag(settings, "tie_weights"):
        return StoredHead(config, folder.read_weights(shapes)), ()
    later = {name: shape for name, shape in shapes.required.items() if _source(name) != name}
    own = {name: shape for name, shape in shapes.required.items() if name not in later}
    stored = folder.read_weights(Shapes(own, later))
    for name in later:
        shared = stored[_source(name)]
        if name.startswith("head."):
            stored.setdefault(name, shared)
        elif not torch.equal(stored.get(name, shared), shared):
            raise CheckpointError(f"{folder.path}: the config ties {name} to {_source(name)}, but the two differ.")
        else:
            stored[name] = shared
    return StoredHead(config, stored), ()


def mlp_shapes(config: MlpConfig) -> Shapes:
    """The tensors of an MLP speculator by the names of `heads.mlp`."""
    inner, vocab, shapes = config.inner_size, config.vocab_size, dict[str, tuple[int, ...]]()
    for i in range(config.num_steps):
        shapes |= {f"emb.{i}.weight": (vocab, inner), f"head.{i}.weight": (vocab, inner)}
        shapes |= {f"proj.{i}.weight": (inner, inner if i else config.hidden_size)}
        shapes |= {f"ln.{i}.weight": (inner,), f"ln.{i}.bias": (inner,)}
    return Shapes(shapes, {})


def _source(name: str) -> str:
    """The tensor that a tied one shares."""
    part, step, rest = name.split(".")
    return f"{part}.{min(int(step), TIED_FROM[part])}.{rest}"
