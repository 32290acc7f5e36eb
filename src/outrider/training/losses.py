"""Losses of a draft law p against the target's law q, both over the draft vocabulary.

q is not normalised there: what is missing to 1 is the target's mass outside the draft vocabulary. All losses are
per row; (logits, log-probabilities) are [n, Vd].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from outrider.errors import InvalidOption

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""From the head's logits [n, Vd] and the target's log-probabilities [n, Vd] to a number per row [n]."""

PerRow = Callable[..., torch.Tensor]

ROWS = 512
"""Rows whose laws over a whole vocabulary are in memory together."""

KL_DECAY = 3.0
"""How fast the hybrid turns from KL to acceptance (2602.23881)."""


def acceptance(logits: torch.Tensor, target_log_probs: torch.Tensor) -> torch.Tensor:
    """[n] sum of min(p, q): the probability that the token rule keeps a token drawn from p (2211.17192)."""
    return torch.minimum(logits.softmax(-1), target_log_probs.exp()).sum(-1)


def forward_kl(logits: torch.Tensor, target_log_probs: torch.Tensor) -> torch.Tensor:
    """[n] KL(q || p) in nats, of q renormalised on the draft vocabulary."""
    target = target_log_probs.log_softmax(-1)
    return (target.exp() * (target - logits.log_softmax(-1))).sum(-1)


def reverse_kl(logits: torch.Tensor, target_log_probs: torch.Tensor) -> torch.Tensor:
    """[n] KL(p || q) in nats, of q renormalised on the draft vocabulary."""
    law = logits.log_softmax(-1)
    return (law.exp() * (law - target_log_probs.log_softmax(-1))).sum(-1)


def total_variation(logits: torch.Tensor, target_log_probs: torch.Tensor) -> torch.Tensor:
    """[n] 1 - sum of min(p, q), which counts the target's mass outside the draft vocabulary as lost."""
    return 1 - acceptance(logits, target_log_probs)


def hybrid(logits: torch.Tensor, target_log_probs: torch.Tensor) -> torch.Tensor:
    """[n] lambda KL(q || p) + (1 - lambda) TV, lambda = exp(-3 acceptance): KL first, then what is kept.

    Source: the LK loss (2602.23881). TV alone has no gradient where p and q do not meet yet.
    """
    kept = acceptance(logits, target_log_probs)
    share = torch.exp(-KL_DECAY * kept.detach())
    return share * forward_kl(logits, target_log_probs) + (1 - share) * (1 - kept)


LOSSES: dict[str, Loss] = {"kl": forward_kl, "reverse-kl": reverse_kl, "tv": total_variation, "hybrid": hybrid}


def loss_of(name: str) -> Loss:
    """A loss by its name.

    Raises:
        InvalidOption: naming those that there are.
    """
    if name not in LOSSES:
        raise InvalidOption("loss", name, ", ".join(LOSSES))
    return LOSSES[name]


def in_parts(per_row: PerRow, states: torch.Tensor, *rows: torch.Tensor, size: int = ROWS) -> torch.Tensor:
    """What `per_row` says of rows, a part of them at a time, and the gradients for their states at once.

    A law over a whole vocabulary takes more memory than all that a small model keeps of a row, so nothing of a part
    stays. No other gradients flow: what turns states into laws is not trained.

    Args:
        per_row: from the same part of `states` and each of `rows` to a number per row that depends on no other row;
            without gradients, to anything per row.
        states: [n, ...].
        *rows: [n, ...] each.
        size: rows of a part.
    """
    if torch.is_grad_enabled():
        found: torch.Tensor = _Parts.apply(per_row, size, states, *rows)  # type: ignore[no-untyped-call]
        return found
    return torch.cat([per_row(*part) for part in _parts(size, states, *rows)])


def in_parts_again(per_row: PerRow, states: torch.Tensor, *rows: torch.Tensor, size: int = ROWS) -> torch.Tensor:
    """The same where the matrix that turns states into laws is trained: backward computes each part once more."""
    parts = _parts(size, states, *rows)
    return torch.cat([checkpoint(per_row, *part, use_reentrant=False, preserve_rng_state=False) for part in parts])


def _parts(size: int, *rows: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    return zip(*(torch.split(each, size) for each in rows), strict=True)


class _Parts(torch.autograd.Function):
    """Numbers of rows whose gradients are computed with them, as each depends on its own row alone."""

    @staticmethod
    def forward(ctx: Any, per_row: PerRow, size: int, states: torch.Tensor, *rows: torch.Tensor) -> torch.Tensor:
        """The numbers [n]."""
        numbers, gradients = list[torch.Tensor](), list[torch.Tensor]()
        for part, *others in _parts(size, states, *rows):
            with torch.enable_grad():
                leaf = part.detach().requires_grad_()
                found = per_row(leaf, *others)
            gradients += torch.autograd.grad(found, leaf, torch.ones_like(found))
            numbers.append(found.detach())
        ctx.save_for_backward(torch.cat(gradients))
        ctx.num_others = len(rows)
        return torch.cat(numbers)

    @staticmethod
    def backward(ctx: Any, *wanted: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """For the states."""
        (gradients,) = ctx.saved_tensors
        each = wanted[0].view(-1, *[1] * (gradients.ndim - 1))
        return None, None, gradients * each, *[None] * ctx.num_others


def mean_of_texts(losses: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The mean over texts of their means, so that long texts do not weigh more; texts without a row do not count.

    Args:
        losses: [n] of the columns that count.
        rows: [B, S] bool, n of them true.
    """
    counts = rows.sum(1)
    weight = 1 / (counts.clamp(min=1) * (counts > 0).sum().clamp(min=1))
    return (losses * weight.repeat_interleave(counts)).sum()
