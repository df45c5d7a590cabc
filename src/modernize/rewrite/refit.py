"""Refit a matrix by least squares, towards what it is: the head, and what writes into the residual stream."""

import torch
from torch import Tensor


def refit(weight: Tensor, moment: Tensor, cross: Tensor, ridge: float) -> Tensor:
    """`W + E[r zᵀ] (E zzᵀ + λI)⁻¹`, the least squares of what is missing, r = target − W z, held near W by λ.

    weight (out, in), moment (in, in) = E zzᵀ, cross (out, in) = E[r zᵀ]; λ is `ridge` times an input's mean square.
    """
    wide = moment.double()
    size = wide.trace() / len(wide)
    if not size > 0:
        return weight
    eye = torch.eye(len(wide), dtype=wide.dtype, device=wide.device)
    more: Tensor = torch.linalg.solve(wide + ridge * size * eye, cross.double().T).T
    return weight + more


def within_reach(target: Tensor, present: Tensor, known: Tensor) -> Tensor:
    """The target without what depends on the position alone, (N, T, d): what is missing has the same mean everywhere.

    With m = target − present: `present + m − E[m | position] + E[m]`; known (N, T) counts. A RoPE model can't say where
    in the window it is, so what the position table put into the stream is out of reach. As a part of a target it would
    only be imitated by whatever goes with it, at the cost of the rest.
    """
    missing = target - present
    count = known.sum(0).clamp(min=1)[:, None]  # (T, 1)
    kept = missing * known[..., None]
    here = kept.sum(0) / count  # (T, d)
    return target - here + kept.sum((0, 1)) / known.sum().clamp(min=1)
