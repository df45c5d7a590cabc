"""The loss and its gradients, against the same written out with all logits at once."""

import pytest
import torch
from torch.nn import functional as F

from modernize import objective
from modernize.data import IGNORED
from modernize.objective import SummedLoss, places_at_once, softmax_


def noise(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def plain(states, head, bias, targets, old, distill):
    log_new = F.linear(states, head, bias).log_softmax(-1)
    loss = (1 - distill) * F.nll_loss(log_new, targets, ignore_index=IGNORED, reduction="sum")
    if old[0] is not None:
        log_old = F.linear(*old).log_softmax(-1)
        loss = loss + distill * ((log_old.exp() * (log_old - log_new)).sum(-1) * (targets != IGNORED)).sum()
    return loss


@pytest.mark.parametrize(
    ("logits", "places"), [(1, 512), (22, 512), (40, 512), (1 << 20, 1), (1 << 20, 3), (1 << 20, 512)]
)
@pytest.mark.parametrize("taught", [True, False])
@pytest.mark.parametrize("biased", [True, False])
def test_loss_and_gradients(monkeypatch, logits, places, taught, biased):
    monkeypatch.setattr(objective, "LOGITS_AT_ONCE", logits)
    monkeypatch.setattr(objective, "PLACES_AT_ONCE", places)
    targets = torch.tensor([3, IGNORED, 0, 10, 3, IGNORED, 7])
    old = (noise(7, 5, seed=3), noise(11, 5, seed=4), noise(11, seed=5)) if taught else (None, None, None)
    distill = 0.3 if taught else 0.0
    found = []
    for loss in (lambda *a: SummedLoss.apply(*a[:4], *a[4], a[5]), plain):
        states, head = noise(7, 5, seed=0).requires_grad_(), noise(11, 5, seed=1).requires_grad_()
        bias = noise(11, seed=2).requires_grad_() if biased else None
        value = loss(states, head, bias, targets, old, distill)
        (2.5 * value).backward()
        found.append([value, states.grad, head.grad, *([bias.grad] if biased else [])])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("offset", [0.0, -3000.0])
def test_probabilities_of_sure_models_and_of_logits_far_from_zero(offset):
    logits = 40 * noise(50, 300, seed=0).float() + offset
    found = logits.clone()
    top, rest = softmax_(found)
    torch.testing.assert_close(top + rest, logits.double().logsumexp(-1, keepdim=True).float(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found, logits.double().softmax(-1).float(), rtol=1e-4, atol=1e-30)


def test_many_places_with_one_target_do_not_overflow_in_float16():
    """Of a small vocabulary, all places of a batch would be one product, whose sum float16 cannot hold."""
    states, head = torch.full((1 << 15, 4), 8.0), torch.zeros((61, 4), requires_grad=True)
    with torch.autocast("cpu", torch.float16):
        SummedLoss.apply(states, head, None, torch.zeros(1 << 15, dtype=torch.int64), None, None, None, 0.0).backward()
    wanted = torch.full((61,), 1 / 61).index_fill(0, torch.tensor(0), 1 / 61 - 1) * 8 * (1 << 15)
    torch.testing.assert_close(head.grad, wanted[:, None].expand(-1, 4), rtol=1e-2, atol=0)


def test_a_head_that_is_shared_with_the_embedding_gets_both_gradients():
    ids, targets = torch.tensor([1, 2, 3]), torch.tensor([2, 3, 4])
    found = []
    for loss in (lambda *a: SummedLoss.apply(*a[:4], *a[4], a[5]), plain):
        wte = noise(11, 5, seed=1).requires_grad_()
        loss(wte[ids].tanh(), wte, None, targets, (None, None, None), 0.0).backward()
        found.append(wte.grad)
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_reduced_products_keep_sums_in_float32(dtype):
    states, head = noise(64, 16, seed=0).float().requires_grad_(), noise(50, 16, seed=1).float().requires_grad_()
    targets = torch.arange(64) % 50
    with torch.autocast("cpu", dtype):
        value = SummedLoss.apply(states, head, None, targets, None, None, None, 0.0)
    assert value.dtype == torch.float32
    value.backward()
    wanted = plain(states.detach().double(), head.detach().double(), None, targets, (None,), 0.0)
    assert value.item() == pytest.approx(wanted.item(), rel=1e-2)
    assert states.grad.dtype == head.grad.dtype == torch.float32


def test_places_at_once_are_few_where_caches_are_small_or_sums_overflow():
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    few = objective.PLACES_AT_ONCE
    assert places_at_once(256, cpu, torch.float32) == places_at_once(256, cuda, torch.float16) == few
    assert places_at_once(256, cuda, torch.bfloat16) == objective.LOGITS_AT_ONCE // 256
    assert places_at_once(1 << 20, cpu, torch.float32) == places_at_once(1 << 20, cuda, torch.float16) == 32
    assert places_at_once(1 << 30, cuda, torch.bfloat16) == 1


def test_what_teaches_is_told_apart_where_logits_lie_far_from_zero():
    states, head = noise(20, 8, seed=0), noise(50, 8, seed=1)
    bias = torch.full((50,), -3000.0, dtype=torch.float64)
    old, targets = (states + 0.01 * noise(20, 8, seed=2), head, bias), torch.zeros(20, dtype=torch.int64)
    exact = SummedLoss.apply(states, head, bias, targets, *old, 1.0)
    found = SummedLoss.apply(states.float(), head.float(), bias.float(), targets, *(o.float() for o in old), 1.0)
    assert 0 < exact < 0.1
    assert abs(found - exact) < 0.003  # of logits that are rounded to 1e-4 each
