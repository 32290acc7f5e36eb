"""Which states of the target an EAGLE-3 head reads: two ways to count that differ by one, under one key.

A: id i is the state that enters layer i (EAGLE, vLLM, speculators, llama.cpp), which is how we count. B: id i is what
layer i puts out (SpecForge, SGLang, Model-Optimizer). A = B + 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.drafters.heads.formats import HeadFolder
from outrider.errors import CheckpointError
from outrider.models.settings import record

IDS, NESTED = "eagle_aux_hidden_state_layer_ids", "eagle_config"
ASK = "Say which states of the target it reads (--layers or feature_layers, as transformers counts hidden_states)"


def default_layers(num_target_layers: int) -> tuple[int, int, int]:
    """The three states that EAGLE-3 heads read unless told otherwise; ids in A."""
    return (2, num_target_layers // 2, num_target_layers - 3)


def read_layers(folder: HeadFolder, settings: Mapping[str, Any], count: int) -> tuple[int, ...]:
    """Ids of the states that a head reads, in A.

    Args:
        folder: the head.
        settings: where its ids are; `eagle_config` of it holds those in B.
        count: how many there must be, by the width of `fc`.

    Raises:
        CheckpointError: the evidence contradicts itself, is missing, or names states that the target does not have.
    """
    depth, where = folder.hints.num_target_layers, folder.path
    ids = folder.hints.feature_layers
    if ids is None:
        ids = _agreed(where, settings, depth) or _default(where, depth)
    if len(ids) != count:
        raise CheckpointError(f"{where}: fc is {count} states wide, but the layer ids are {list(ids)}. {ASK}.")
    for layer in ids:
        if layer < 0 or (depth is not None and layer > depth):
            raise CheckpointError(f"{where}: state {layer} is not one of a target with {depth} layers.")
    return ids


def _agreed(where: Path, settings: Mapping[str, Any], depth: int | None) -> tuple[int, ...] | None:
    """What all evidence says; None without any."""
    top, nested = _ids(settings, IDS), _ids(record(settings, NESTED), IDS)
    if top and nested and top == _plus(nested, 1):
        return top  # told in both ways: nothing to guess, even if they are one off the usual
    readings: dict[tuple[int, ...], str] = {}
    if top:
        readings[top] = "the top-level key"
    if nested:
        readings[_plus(nested, 1)] = f"the key in {NESTED}"
    for ids in (top, nested):
        if ids and depth is not None:
            usual = default_layers(depth)
            if ids == usual:
                readings[ids] = "the usual ids, counted by what enters a layer"
            if ids == _plus(usual, -1):
                readings[usual] = "the usual ids, counted by what leaves a layer"
    if len(readings) > 1:
        found = "; ".join(f"{list(ids)} by {evidence}" for ids, evidence in readings.items())
        raise CheckpointError(f"{where}: the layer ids contradict each other: {found}. {ASK}, and run --check.")
    return next(iter(readings), None)


def _default(where: Path, depth: int | None) -> tuple[int, ...]:
    if depth is None:
        raise CheckpointError(
            f"{where} has no {IDS}, and the usual ones follow from the number of the target's layers, which was not "
            "given. Name the target."
        )
    return default_layers(depth)


def _ids(settings: Mapping[str, Any], name: str) -> tuple[int, ...] | None:
    value = settings.get(name)
    if value is None or value == []:
        return None
    whole = isinstance(value, list) and all(isinstance(i, int) and not isinstance(i, bool) for i in value)
    if not whole or len(value) > 64 or not all(-1 <= i < 2**31 for i in value):
        raise CheckpointError(f"The head's config has {name} = {value!r}; it must be a short list of layer ids.")
    return tuple(value)


def _plus(ids: tuple[int, ...], step: int) -> tuple[int, ...]:
    return tuple(i + step for i in ids)
