"""Losses with their gradients through a frozen output matrix: those of the plain formulas."""

from __future__ import annotations

import pytest
import torch

from outrider.training import fused
from outrider.training.fused import guess_loss
from outrider.training.losses import forward_kl, hybrid
from outrider.training.states import Output


def plain(states, last, log_norms, output, kind):
    return kind(output.logits(states), output.logits(last) - log_norms[:, None])


def example(seed=0, rows=150):
    dice = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=dice)  # noqa: E731
    last, weight = draw(rows, 12), draw(40, 12)
    outside = draw(rows).abs()  # what the whole vocabulary has besides the draft's
    log_norms = (last @ weight.T).logsumexp(-1) + outside
    return draw(rows, 12).requires_grad_(), last, log_norms, Output(weight)


def error(kind, is_hybrid):
    states, last, log_norms, output = example()
    weights = torch.linspace(0.1, 2, len(states))
    wanted = plain(states, last, log_norms, output, kind)
    (slope,) = torch.autograd.grad((wanted * weights).sum(), states)
    found = guess_loss(states, last, log_norms, output, hybrid=is_hybrid)
    (found_slope,) = torch.autograd.grad((found * weights).sum(), states)
    return (found - wanted).abs().max().item(), (found_slope - slope).abs().max().item()


@pytest.mark.parametrize(("kind", "is_hybrid"), [(forward_kl, False), (hybrid, True)])
def test_loss_and_gradient_are_those_of_the_formula(kind, is_hybrid):
    loss, slope = error(kind, is_hybrid)
    assert loss < 1e-5
    assert slope < 1e-4


def test_another_formula_would_be_seen():
    assert error(forward_kl, True)[1] > 1e-2


def test_a_wrong_gradient_would_be_seen(monkeypatch):
    right = fused._with_slope
    monkeypatch.setattr(fused, "_with_slope", lambda *a: (lambda loss, slope: (loss, 1.01 * slope))(*right(*a)))
    assert error(hybrid, True)[1] > 1e-3


def test_under_autocast_it_is_close():
    states, last, log_norms, output = example()
    wanted = guess_loss(states, last, log_norms, output, hybrid=True)
    with torch.autocast("cpu", torch.bfloat16):
        found = guess_loss(states, last, log_norms, output, hybrid=True)
    assert (found - wanted).abs().max() < 0.2
    assert not torch.equal(found, wanted)
