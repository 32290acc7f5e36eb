"""The losses of guesses through a frozen output matrix, with their gradients, a few rows at a time.

What a head guesses is compared with the target over thousands of tokens per row. Left to automatic differentiation,
dozens of such arrays go through memory; here each row's stay in the processor's cache, and only the gradient of the
states is kept. The formulas are those of `losses`.
"""

from __future__ import annotations

from typing import Any

import torch

from outrider.training.losses import KL_DECAY
from outrider.training.states import Output

ROWS = 64
"""That are in work together."""


def guess_loss(
    states: torch.Tensor, last: torch.Tensor, log_norms: torch.Tensor, output: Output, *, hybrid: bool
) -> torch.Tensor:
    """[n] `losses.hybrid` or `losses.forward_kl` of the head's laws against the target's.

    Args:
        states: [n, H] what goes into the output matrix; the gradient flows to it alone.
        last: [n, H] the target's last states at the same places.
        log_norms: [n] logsumexp of the target's logits over its whole vocabulary.
        output: rows of the draft vocabulary, not trained.
        hybrid: whether acceptance counts besides KL.
    """
    found: torch.Tensor = _GuessLoss.apply(states, last, log_norms, output, hybrid)  # type: ignore[no-untyped-call]
    return found


class _GuessLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: torch.Tensor, last: torch.Tensor, log_norms: torch.Tensor, output: Output, hybrid: bool
    ) -> torch.Tensor:
        losses, slopes = states.new_empty(len(states), dtype=torch.float32), torch.empty_like(states)
        kind = states.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32
        output = Output(output.weight.to(dtype), output.bias)  # once, not for every few rows
        for first in range(0, len(states), ROWS):
            rows = slice(first, first + ROWS)
            logits = output.logits(states[rows].to(dtype)).float()
            target = output.logits(last[rows].to(dtype)).float() - log_norms[rows, None]
            losses[rows], slope = _with_slope(logits, target, hybrid)
            slopes[rows] = slope.to(dtype) @ output.weight
        ctx.save_for_backward(slopes)
        return losses

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        (slopes,) = ctx.saved_tensors
        return slopes * grads[0][:, None].to(slopes.dtype), None, None, None, None


def _with_slope(logits: torch.Tensor, target: torch.Tensor, hybrid: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """[n] losses and [n, Vd] their gradient by the logits; both arrays are written over.

    With p = softmax(logits), q the target's law and q' the same renormalised, the gradient of KL(q' || p) is p - q',
    and that of sum min(p, q) is p m - p sum(p m), m being 1 where p < q.
    """
    log_p, log_q = logits.logsumexp(-1, keepdim=True), target.logsumexp(-1, keepdim=True)
    p, renormalised = (logits - log_p).exp_(), (target - log_q).exp_()
    kl = (target.sub_(logits).mul_(renormalised)).sum(-1) + (log_p - log_q)[:, 0]
    if not hybrid:
        return kl, p.sub_(renormalised)
    q = renormalised * log_q.exp()
    accepted = torch.minimum(p, q).sum(-1)
    under = torch.where(p < q, p, 0)
    rising = under.sub_(p * under.sum(-1, keepdim=True))
    share = torch.exp(-KL_DECAY * accepted)
    loss = share * kl + (1 - share) * (1 - accepted)
    return loss, p.sub_(renormalised).mul_(share[:, None]).sub_(rising.mul_((1 - share)[:, None]))
