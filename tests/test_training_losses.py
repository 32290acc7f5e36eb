"""Losses against their formulas, written out in double precision, one number at a time."""

from __future__ import annotations

import math

import pytest
import torch

from outrider.errors import InvalidOption
from outrider.training.losses import (
    KL_DECAY,
    LOSSES,
    ROWS,
    acceptance,
    forward_kl,
    in_parts,
    in_parts_again,
    loss_of,
    mean_of_texts,
)


def rows(seed=0, count=5, size=7, whole=True):
    """Logits of a draft, and log-probabilities of a target: a whole law, or the first tokens of a larger one."""
    dice = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(count, size, generator=dice)
    target = (2 * torch.randn(count, size if whole else size + 4, generator=dice)).log_softmax(-1)
    return logits, target[:, :size]


def laws(logits, target):
    """p, q as it is and q renormalised, as lists of floats."""
    for row, wanted in zip(logits.double().tolist(), target.double().tolist(), strict=True):
        total = sum(map(math.exp, row))
        p, q = [math.exp(x) / total for x in row], [math.exp(x) for x in wanted]
        yield p, q, [x / sum(q) for x in q]


FORMULAS = {
    "kl": lambda p, q, r: sum(b * math.log(b / a) for a, b in zip(p, r, strict=True)),
    "reverse-kl": lambda p, q, r: sum(a * math.log(a / b) for a, b in zip(p, r, strict=True)),
    "tv": lambda p, q, r: 1 - sum(map(min, p, q)),
    "hybrid": lambda p, q, r: (
        math.exp(-KL_DECAY * sum(map(min, p, q))) * FORMULAS["kl"](p, q, r)
        + (1 - math.exp(-KL_DECAY * sum(map(min, p, q)))) * FORMULAS["tv"](p, q, r)
    ),
}


def errors(name, loss, whole):
    """Largest difference between a loss and the formula of a name."""
    logits, target = rows(whole=whole)
    wanted = torch.tensor([FORMULAS[name](*each) for each in laws(logits, target)])
    return float((loss(logits, target) - wanted).abs().max())


@pytest.mark.parametrize("whole", [True, False], ids=["whole law", "part of the law"])
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_its_formula(name, whole):
    assert errors(name, LOSSES[name], whole) < 1e-5


@pytest.mark.parametrize("name", LOSSES)
def test_another_loss_is_not(name):
    assert all(errors(name, other, False) > 1e-3 for key, other in LOSSES.items() if key != name)


def test_of_a_whole_law_acceptance_is_one_minus_half_the_l1_distance():
    logits, target = rows()
    distance = (logits.softmax(-1) - target.exp()).abs().sum(-1)
    assert torch.allclose(acceptance(logits, target), 1 - distance / 2, atol=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_least_where_the_laws_are_equal(name):
    logits, target = rows()
    best, other = LOSSES[name](target, target), LOSSES[name](logits, target)
    assert best.abs().max() < 1e-5
    assert (other > 1e-3).all()


@pytest.mark.parametrize("name", LOSSES)
def test_following_the_gradient_lets_more_be_accepted(name):
    logits, target = rows()
    moved = logits.clone().requires_grad_()
    for _ in range(200):
        (gradient,) = torch.autograd.grad(LOSSES[name](moved, target).sum(), moved)
        moved = (moved - 0.5 * gradient).detach().requires_grad_()
    assert (acceptance(moved, target) > acceptance(logits, target)).all()


def test_the_hybrids_share_is_no_way_to_make_it_small():
    """The share follows acceptance, but no gradient flows through it."""
    logits, target = rows()
    moved = logits.clone().requires_grad_()
    (found,) = torch.autograd.grad(LOSSES["hybrid"](moved, target).sum(), moved)
    share = torch.exp(-KL_DECAY * acceptance(logits, target))
    parts = share * forward_kl(moved, target) + (1 - share) * (1 - acceptance(moved, target))
    (wanted,) = torch.autograd.grad(parts.sum(), moved)
    assert torch.allclose(found, wanted, atol=1e-6)


def test_an_unknown_loss_is_refused_by_name():
    with pytest.raises(InvalidOption, match=r"loss is 'l2'; allowed: kl, reverse-kl, tv, hybrid"):
        loss_of("l2")


@pytest.mark.parametrize("count", [0, 1, ROWS, 2 * ROWS + 3])
def test_parts_give_the_same_numbers_and_gradients_as_the_whole(count):
    dice = torch.Generator().manual_seed(1)
    inputs, shared = torch.randn(count, 6, generator=dice), torch.randn(9, 4, generator=dice)
    _, target = rows(2, count, 9)
    found = {}
    for call in (lambda f, *r: f(*r), in_parts, in_parts_again):
        weight, output = torch.ones(4, 6).div(3).requires_grad_(), shared.clone().requires_grad_()
        losses = call(lambda x, q, o=output: forward_kl(x @ o.T, q), inputs @ weight.T, target)
        assert losses.shape == (count,)
        (losses * torch.arange(count)).sum().backward()
        found[call] = losses.detach(), weight.grad, output.grad
    whole, parts, again = found.values()
    assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-3) for a, b in zip(whole, again, strict=True))
    assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-3) for a, b in zip(whole[:2], parts[:2], strict=True))
    assert parts[2] is None  # what turns states into laws is not trained


@pytest.mark.parametrize("call", [in_parts, in_parts_again])
def test_no_part_is_larger_than_allowed(call):
    sizes = []
    call(lambda x: sizes.append(len(x)) or x.sum(-1), torch.zeros(2 * ROWS + 3, 2, requires_grad=True))
    assert sizes == [ROWS, ROWS, 3]


def test_without_gradients_parts_may_be_of_any_shape():
    with torch.no_grad():
        assert in_parts(lambda x: x[:, :2], torch.ones(ROWS + 1, 3)).shape == (ROWS + 1, 2)


def test_every_text_weighs_the_same_however_long_it_is():
    counts = torch.tensor([[True, False, False], [True, True, True], [False, False, False]])
    losses = torch.tensor([4.0, 1.0, 2.0, 3.0])
    assert float(mean_of_texts(losses, counts)) == pytest.approx((4 + (1 + 2 + 3) / 3) / 2)
    assert float(mean_of_texts(losses[:0], torch.zeros(2, 3, dtype=torch.bool))) == 0
