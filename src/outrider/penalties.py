"""Penalties on tokens that a history holds already, as transformers defines them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Ordered

import torch

from outrider.core import Sequence


def known_ids(ids: Iterable[int], scores: torch.Tensor) -> list[int]:
    """Those of the ids that the scores [..., V] have: a drafter may have fewer tokens than the target."""
    return [i for i in ids if i < scores.shape[-1]]


def penalise(scores: torch.Tensor, raw: torch.Tensor, sequence: Sequence, paths: Ordered[tuple[int, ...]]) -> None:
    """Write the penalised logits of all seen tokens into `scores`, always from `raw` and the row's own counts."""
    s = sequence.sampling

    def write(rows: slice | int, times_in_output: Mapping[int, int]) -> None:
        known = known_ids(times_in_output, raw)
        times = raw.new_tensor([times_in_output[i] for i in known])
        seen = torch.tensor(known, dtype=torch.int64, device=raw.device)
        values = raw[rows, seen]
        repetition = float(s.repetition_penalty)
        values = torch.where(values < 0, values * repetition, values / repetition)
        scores[rows, seen] = (
            values - times.clamp(max=1) * float(s.presence_penalty) - times * float(s.frequency_penalty)
        )

    counts = dict.fromkeys(sequence.tokens, 0)  # a token of the prompt is seen, yet 0 times in the output
    for token in sequence.tokens[sequence.prompt_length :]:
        counts[token] += 1
    write(slice(None), counts)
    for row, path in enumerate(paths):
        write(row, {token: counts.get(token, 0) + path.count(token) for token in path})
