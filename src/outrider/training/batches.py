"""Texts of like length side by side, in an order that is a function of the seed and the number of the step."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass, fields

import numpy as np
import torch

from outrider.training.states import States


@dataclass(frozen=True)
class Batch:
    """Texts, padded behind to a common width S and `room` more.

    Args:
        tokens: [B, S + room].
        features: [B, S, F] float32.
        last: [B, S + room, H] float32, the target's last states.
        log_norms: [B, S + room].
        counts: [B, S + room] bool: whether the law after this token is one by which the target wrote a token.
    """

    tokens: torch.Tensor
    features: torch.Tensor
    last: torch.Tensor
    log_norms: torch.Tensor
    counts: torch.Tensor

    def to(self, device: torch.device) -> Batch:
        """The same, on a device."""
        return Batch(*(getattr(self, field.name).to(device) for field in fields(self)))


class Batches:
    """All texts in groups of about so many tokens; groups hold texts of like length.

    Args:
        states: of the texts.
        tokens_per_batch: at most, padding included, but for texts that are longer.
        room: places behind each text that unrolled steps look into.
        seed: of the order.
    """

    def __init__(self, states: States, tokens_per_batch: int, room: int, seed: int) -> None:
        self._states, self._room, self._seed = states, room, seed
        self._groups = _groups(np.diff(states.starts), tokens_per_batch)

    def __len__(self) -> int:
        return len(self._groups)

    def at(self, step: int) -> Batch:
        """The batch of a step; every group comes once per epoch."""
        epoch, place = divmod(step, len(self._groups))
        order = np.random.default_rng([self._seed, epoch]).permutation(len(self._groups))
        return self._collated(self._groups[order[place]])

    def _collated(self, group: Ordered[int]) -> Batch:
        s = self._states
        lengths = [int(s.starts[i + 1] - s.starts[i]) for i in group]
        size, wide = max(lengths), max(lengths) + self._room
        tokens = torch.zeros(len(group), wide, dtype=torch.int64)
        features = torch.zeros(len(group), size, s.features.shape[1])
        last = torch.zeros(len(group), wide, s.last.shape[1])
        log_norms, counts = torch.zeros(len(group), wide), torch.zeros(len(group), wide, dtype=torch.bool)
        for row, (i, length) in enumerate(zip(group, lengths, strict=True)):
            place = slice(s.starts[i], s.starts[i + 1])
            tokens[row, :length] = torch.from_numpy(s.tokens[place].astype(np.int64))
            features[row, :length] = torch.from_numpy(s.features[place].astype(np.float32))
            last[row, :length] = torch.from_numpy(s.last[place].astype(np.float32))
            log_norms[row, :length] = torch.from_numpy(s.log_norms[place].copy())
            counts[row, int(s.own[i]) - 1 : length - 1] = True
        return Batch(tokens, features, last, log_norms, counts)


def _groups(lengths: np.ndarray, tokens_per_batch: int) -> list[list[int]]:
    """Indices of texts, shortest first, cut where a group would get too large."""
    groups: list[list[int]] = []
    for i in np.argsort(lengths, kind="stable").tolist():
        if groups and (len(groups[-1]) + 1) * lengths[i] <= tokens_per_batch:
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups
