"""From logits to laws: the one road from a model's logits to the probabilities that tokens are drawn from.

Plain decoding, drafting and verification all call `laws`, so their laws agree bit for bit wherever their logits do.
It knows nothing of models, drafts or rules: only logits, and the history in front of each row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Ordered
from typing import Any

import numpy as np
import torch

from outrider.core import Law, Sequence
from outrider.errors import OutriderError, ProcessorError
from outrider.options import LARGEST, Sampling
from outrider.penalties import known_ids, penalise
from outrider.rounds import TokenLogprobs

Paths = Ordered[tuple[int, ...]]


def laws(logits: torch.Tensor, sequence: Sequence, paths: Paths) -> Law:
    """The processed law of every row, each with its own history `sequence.tokens + paths[i]`.

    In this order: repetition, presence and frequency penalties, logit bias, banned ids, `min_new_tokens`, the user's
    processor, temperature, top-k, top-p, min-p; the filters mean what transformers' warpers mean. At temperature 0 a
    row is one-hot at its largest logit, the lowest id if several are equal. As the temperature falls towards 0 the
    law still shares its mass among exactly equal logits; only at 0 itself does the lowest id take all. A row's law
    does not depend on the rows beside it. Ids beyond V, which a drafter of fewer tokens meets, are passed over. The
    processor is called once per row, but not behind a stop id or a token it forbade: decoding never gets there.

    Args:
        logits: [n, V] of any float type and device; never modified.
        sequence: whose history, stop ids and `Sampling` count.
        paths: n tuples, the drafted tokens between `sequence.tokens` and each row; () for the pending token's row.

    Returns:
        [n, V] on the CPU, float32 (float64 for float64 logits).

    Raises:
        ProcessorError: the user's processor raised, or what it returned is not [V] usable logits.
        OutriderError: a row has NaN or +inf, or no token is left in it.
    """
    (scores, best), sampling = _processed(logits, sequence, paths), sequence.sampling
    if sampling.temperature == 0:
        law = np.zeros(scores.shape, scores.numpy().dtype)
        law[np.arange(len(law)), scores.numpy().argmax(-1)] = 1
        return law
    law = _softmax(scores, best, sampling.temperature)
    if sampling.top_k is not None or sampling.top_p < 1 or sampling.min_p > 0:
        _filter(law, scores, sampling)
    return law


def token_logprobs(logits: torch.Tensor, sequence: Sequence, path: tuple[int, ...], token: int) -> TokenLogprobs:
    """Natural log-probabilities of an emitted token and of the `sampling.logprobs` likeliest ones.

    They are those of the processed law. At temperature 0, where that law would say 0.0 of everything, they are those
    of the processed logits (penalties, bias, bans, processor) at temperature 1. Equal tokens come lowest id first;
    tokens of probability 0 are left out, so there may be fewer than asked.

    Args:
        logits: [V] of the row that gave the token.
        sequence: with the history that `laws` saw: `sequence.tokens + path` precede the token.
        path: drafted tokens between `sequence.tokens` and the row.
        token: the emitted id.
    """
    given = logits[None], sequence, [path]
    law = (laws(*given) if sequence.sampling.temperature > 0 else _softmax(*_processed(*given), 1.0))[0]
    wanted = sequence.sampling.logprobs or 0
    least = np.partition(law, -wanted)[-wanted] if wanted else np.inf
    ids = np.flatnonzero((law >= least) & (law > 0))
    ids = ids[np.argsort(-law[ids], kind="stable")][:wanted]
    chosen = math.log(law[token]) if law[token] > 0 else -math.inf
    return TokenLogprobs(chosen, tuple((int(i), math.log(law[i])) for i in ids))


def _processed(logits: torch.Tensor, sequence: Sequence, paths: Paths) -> tuple[torch.Tensor, torch.Tensor]:
    """[n, V] on the CPU: all that comes before the temperature; may share memory with `logits`. And [n] the largest."""
    assert len(paths) == len(logits), "one path per row"
    s = sequence.sampling
    raw = logits.detach().to(torch.promote_types(logits.dtype, torch.float32))
    penalised = (s.repetition_penalty, s.presence_penalty, s.frequency_penalty) != (1, 0, 0)
    early = [row for row, path in enumerate(paths) if sequence.num_new_tokens + len(path) < s.min_new_tokens]
    scores = raw.clone() if penalised or s.logit_bias or s.banned_ids or early else raw
    if penalised:
        penalise(scores, raw, sequence, paths)
    if s.logit_bias:
        biased = known_ids(s.logit_bias, scores)
        scores[:, biased] += scores.new_tensor([float(s.logit_bias[i]) for i in biased])
    if s.banned_ids:
        scores[:, known_ids(s.banned_ids, scores)] = -torch.inf
    for row in early:
        scores[row, known_ids(sequence.stop_ids, scores)] = -torch.inf
    best = _check(scores, OutriderError, "The model gave NaN, or biases, bans and min_new_tokens forbid every token")
    if s.processor is not None:
        scores = _apply(s.processor, scores, sequence, paths)
        best = _check(scores, ProcessorError, "The logits processor's result has NaN or forbids every token")
    return scores.cpu(), best.cpu()


def _check(scores: torch.Tensor, error: type[OutriderError], cause: str) -> torch.Tensor:
    best = scores.amax(-1)  # NaN if there is one in the row
    if not torch.isfinite(best).all():
        raise error(f"{cause}: the largest logits are {best.tolist()}, but each row needs a finite one.")
    return best


def _apply(processor: Any, scores: torch.Tensor, sequence: Sequence, paths: Paths) -> torch.Tensor:
    """The user's processor on every row, each from copies.

    It never sees a history that decoding could not reach, on which a grammar might raise: rows behind a stop id or
    behind a token that it has itself forbidden stay as they are, for no rule gets there.
    """
    result, rows, unreached = torch.empty_like(scores), dict[tuple[int, ...], int](), list[int]()
    for row, path in enumerate(paths):
        parent = rows.get(path[:-1]) if path else None
        forbidden = parent is not None and result[parent, path[-1]] == -torch.inf
        if forbidden or not sequence.stop_ids.isdisjoint(path):
            result[row] = -torch.inf  # so that the rows behind it are not reached either
            unreached.append(row)
        else:
            result[row] = _call(processor, [*sequence.tokens, *path], scores[row].clone())
        rows[path] = row
    result[unreached] = scores[unreached]
    return result


def _call(processor: Any, token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
    shape = logits.shape
    try:
        made = processor(token_ids, logits)
        if isinstance(made, torch.Tensor) and made.is_floating_point() and made.shape == shape:
            return made.detach()
        got = (made.dtype, *made.shape) if isinstance(made, torch.Tensor) else type(made).__name__
        raise TypeError(f"it returned {got}, not a float tensor of shape {tuple(shape)}")
    except Exception as error:
        raise ProcessorError(f"The logits processor failed with {type(error).__name__}: {error}") from error


def _softmax(scores: torch.Tensor, best: torch.Tensor, temperature: float) -> Law:
    """Law of [n, V] scores; the largest, `best`, become 0 first, so that a tiny temperature cannot overflow."""
    if temperature != 1:  # this copy is written over in the end: allocating costs as much as all the rest
        scores = (scores - best[:, None]).div_(max(float(temperature), 1 / LARGEST))
    law: Law = torch.softmax(scores, -1, out=None if temperature == 1 else scores).numpy()
    law /= law.sum(-1, keepdims=True, dtype=np.float64)  # rows of a large vocabulary are 1e-5 off in float32
    return law


def _filter(law: Law, scores: torch.Tensor, sampling: Sampling) -> None:
    """Keep what top-k, top-p and min-p leave of each row of `law` [n, V], in place, and divide it by its sum."""
    num_kept = min(sampling.top_k or law.shape[-1], law.shape[-1])
    least = scores.topk(num_kept).values[:, -1].tolist() if sampling.top_k else None
    for i, row in enumerate(law):
        if least is not None:
            ids = np.flatnonzero(scores[i].numpy() >= least[i])
        elif sampling.top_p < 1:  # tokens below this floor have less than 1 - top_p together: no set needs them
            ids = np.flatnonzero(row >= (1 - sampling.top_p) / (2 * len(row)))
        else:
            ids = np.flatnonzero(row >= sampling.min_p * row.max())
        probs = row[ids]
        if sampling.top_p < 1:
            whole = probs if least is not None else row
            kept = _nucleus(probs, sampling.top_p * whole.sum(dtype=np.float64))
            ids, probs = ids[kept], probs[kept]
        kept = probs >= sampling.min_p * probs.max()
        ids, probs = ids[kept], probs[kept]
        row[:] = 0
        row[ids] = probs / probs.sum(dtype=np.float64)


def _nucleus(probs: Law, mass: float) -> Law:
    """Indices of the fewest largest entries that add up to `mass`; of equal ones, the first go first."""
    ranked = np.sort(probs)[::-1]
    size = min(int(np.searchsorted(ranked.cumsum(dtype=np.float64), mass)) + 1, len(ranked))
    above, level = np.flatnonzero(probs > ranked[size - 1]), np.flatnonzero(probs == ranked[size - 1])
    return np.concatenate([above, level[: size - len(above)]])
