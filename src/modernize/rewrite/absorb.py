"""Absorb biases into the weights beside them, and move a tied head's bias into the last block."""

from dataclasses import replace

import torch
from torch import Tensor

from modernize.rewrite.work import moment
from modernize.spec import ModernConfig, State

RIDGE = 1e-5  # of the mean square of an input


def direction_of_one(moment: Tensor, mean: Tensor, ridge: float = RIDGE) -> Tensor:
    """W (d,) with wᵀz ≈ 1 on the text: `w = (E zzᵀ + λI)⁻¹ E z`, λ relative to the trace; exact where 1 is linear in z.

    moment (d, d) is E zzᵀ, mean (d,) is E z. Zero for inputs that are always zero.
    """
    wide = moment.double()
    size = wide.trace() / len(wide)
    if not size > 0:
        return torch.zeros_like(mean.double())
    eye = torch.eye(len(wide), dtype=wide.dtype, device=wide.device)
    direction: Tensor = torch.linalg.solve(wide + ridge * size * eye, mean.double())
    return direction


def absorb(weight: Tensor, bias: Tensor, direction: Tensor) -> Tensor:
    """`W z + b ≈ (W + b wᵀ) z`: weight (out, in), bias (out,), direction w (in,) from `direction_of_one`."""
    return weight + torch.outer(bias, direction)


def share_absorbed(z: Tensor, direction: Tensor) -> float:
    """R² of wᵀz against the constant 1 on inputs (n, d): `1 − E (wᵀz − 1)²`; at most 0 where dropping does as well."""
    return 1 - float((z @ direction.to(z.dtype) - 1).square().mean())


def stream_shift(head: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    """What to add to the final state, in units of its root mean square (d,), so that a head's bias is not needed.

    Least squares of `W diag(g) u = b`, up to a constant over the vocabulary: head W (vocab, d), gain g (d,), bias b
    (vocab,). For the shift β of the final norm, b = W β, this is β/g, and exact.
    """
    rows = head.double() * gain.double()
    rows, wanted = rows - rows.mean(0), bias.double() - bias.double().mean()
    gram = rows.T @ rows
    floor = 1e-10 * float(gram.trace()) / len(gram)
    eye = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    shift: Tensor = torch.linalg.solve(gram + floor * eye, rows.T @ wanted)
    return shift


def without_head_bias(state: State, config: ModernConfig, states: Tensor) -> tuple[State, ModernConfig, float]:
    """A modern State whose head bias is absorbed by its weight, and R² of that; a tied head gets a matrix of its own.

    states (n, d) are what the head reads on some text.
    """
    new, direction = dict(state), direction_of_one(moment(states), states.mean(0, dtype=torch.float64))
    weight, bias = new.get("head.weight", new["wte.weight"]), new.pop("head.bias")
    new["head.weight"] = absorb(weight, bias, direction.to(weight.dtype))
    without = replace(config, tied=False, biases=tuple(part for part in config.biases if part != "head"))
    return {name: new[name] for name in without.shapes()}, without, share_absorbed(states, direction)
