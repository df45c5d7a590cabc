"""Muon without bfloat16 is Muon."""

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.optim import Muon

from modernize.muon import WideMuon, orthogonalised
from modernize.optim import build_optimizers

ITERATIONS = ((3.4445, -4.7750, 2.0315), 5, 1e-7)


def matrices(shapes, seed):
    random = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=random)) for shape in shapes]


def give_gradients(parameters, seed):
    for parameter, gradient in zip(parameters, matrices([p.shape for p in parameters], seed), strict=True):
        parameter.grad = gradient.detach()


def test_steps_are_those_of_torch():
    ours = matrices([(12, 40), (40, 12), (24, 24)], 0)
    theirs = copy.deepcopy(ours)
    wide = WideMuon(ours, lr=1e-2)
    narrow = Muon(theirs, lr=1e-2, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    for step in range(4):
        before = [p.detach().clone() for p in theirs]
        for optimizer, parameters in ((wide, ours), (narrow, theirs)):
            give_gradients(parameters, step + 1)
            optimizer.step()
        for mine, other, old in zip(ours, theirs, before, strict=True):
            assert (mine - other).norm() < 0.03 * (step + 1) * (other - old).norm()  # bfloat16 has eight bits
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(wide.state[mine], narrow.state[other])
    with torch.no_grad():
        torch._foreach_copy_(ours, theirs)
    wide.load_state_dict(copy.deepcopy(narrow.state_dict()))  # as a run that goes on elsewhere
    for optimizer, parameters in ((wide, ours), (narrow, theirs)):
        give_gradients(parameters, 9)
        optimizer.step()
    for mine, other, old in zip(ours, theirs, before, strict=True):
        assert (mine - other).norm() < 0.03 * (other - old).norm()


@pytest.mark.parametrize("shape", [(8, 30), (30, 8), (16, 16), (1, 5)])
def test_singular_values_come_near_one_and_directions_stay(shape):
    (matrix,) = matrices([shape], 0)
    left, _, right = torch.linalg.svd(matrix.detach().double(), full_matrices=False)
    inside = left.T @ orthogonalised(matrix.detach().double(), *ITERATIONS) @ right.T
    assert ((inside.diag() > 0.3) & (inside.diag() < 1.3)).all()
    torch.testing.assert_close(inside, inside.diag().diag(), rtol=0, atol=1e-12)


def test_a_gradient_of_zeros_or_none_moves_nothing():
    parameters = matrices([(4, 6), (6, 4)], 0)
    parameters[0].grad = torch.zeros_like(parameters[0])
    before = copy.deepcopy(parameters)
    assert WideMuon(parameters, lr=1e-2).step(lambda: 3.0) == 3.0
    for now, then in zip(parameters, before, strict=True):
        assert torch.equal(now, then)


@pytest.mark.parametrize(("has", "kind"), [(True, Muon), (False, WideMuon)])
def test_bfloat16_where_there_are_instructions_for_it(has, kind):
    model = nn.ModuleDict({"h": nn.Sequential(nn.Linear(3, 4))})
    optimizers = build_optimizers(model, "auto", 1e-3, torch.device("cpu"), bfloat16=has)
    assert [type(o) for o in optimizers[1:]] == [kind]
    held = itertools.chain.from_iterable(o.param_groups for o in optimizers)
    assert {(g["lr"], g["weight_decay"]) for g in held} == {(1e-3, 0.0)}
