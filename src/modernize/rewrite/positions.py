"""Fit RoPE to what the position table did: constants in q and k whose turned product is a function of distance.

A pair with frequency θ and constant vectors in q and k adds `a cos θΔ + b sin θΔ` to the score at distance Δ = i − j.
To second order, the divergence of attention from p to the softmax of other scores is half the variance under p of the
difference (softmax's Hessian), so the fit is a least squares with weights p in which every row may move as a whole.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True, kw_only=True)
class Normal:
    """Normal equations of the fit for every head, P pairs: columns are cos θΔ of each pair, then sin θΔ of each."""

    gram: Tensor  # (n_head, 2P, 2P), E of the covariance of the columns under p
    target: Tensor  # (n_head, 2P), E of their covariance with the missing score


def normal_equations(p: Tensor, missing: Tensor, cos: Tensor, sin: Tensor) -> Normal:
    """From attention p (B, n_head, T, T) and the score that is missing there; cos and sin (T, P) are RoPE's tables."""
    count = p.shape[0] * p.shape[2]
    tables = torch.cat([cos, sin], dim=1)  # (T, 2P): as a function of a position, and of a distance
    at, pairs = p @ tables, cos.shape[1]  # (B, n_head, T, 2P): Σ_j p_ij cos θj, and sin
    # cos θ(i − j) = cos θi cos θj + sin θi sin θj, and so for the sine: what each row sees on average
    real, imaginary = at[..., :pairs], at[..., pairs:]
    mean = torch.cat([cos * real + sin * imaginary, sin * real - cos * imaginary], dim=-1)
    weighted = p * missing  # (B, n_head, T, T)
    offset = weighted.sum(-1)  # (B, n_head, T)
    columns = tables.double()
    by_distance = sum_by_distance(p.sum(0)).double()  # (n_head, T)
    gram = torch.einsum("ht,ta,tb->hab", by_distance, columns, columns)
    gram = gram - torch.einsum("bhia,bhic->hac", mean, mean).double()
    target = sum_by_distance(weighted.sum(0)).double() @ columns - torch.einsum("bhi,bhia->ha", offset, mean).double()
    return Normal(gram=gram / count, target=target / count)


def sum_by_distance(of: Tensor) -> Tensor:
    """Sums over diagonals, (n_head, T, T) -> (n_head, T): entry Δ holds all i − j = Δ; above the diagonal nothing."""
    heads, length, _ = of.shape
    wide = 2 * length - 1
    # rows that are one longer than the matrix is wide make columns of diagonals; sums of columns have a fixed order
    rows = F.pad(of.tril().flip(-1), (0, length)).flatten(1)[:, : length * wide].view(heads, length, wide)
    return rows.sum(1)[:, length - 1 :]


def fit_pairs(normal: Normal, pairs: int, ridge: float) -> Tensor:
    """Amplitudes (n_head, 2·pairs) of cos and sin on the `pairs` fastest pairs: ridge least squares."""
    every = normal.target.shape[1] // 2
    chosen = torch.cat([torch.arange(pairs), every + torch.arange(pairs)]).to(normal.gram.device)
    gram = normal.gram[:, chosen][:, :, chosen]
    eye = torch.eye(2 * pairs, dtype=gram.dtype, device=gram.device)
    amplitudes: Tensor = torch.linalg.solve(gram + ridge * eye, normal.target[:, chosen, None])[..., 0]
    return amplitudes


def pair_biases(amplitudes: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """Constants (n_head · head_dim,) in q and k that realise `a cos θΔ + b sin θΔ` on the fastest pairs.

    amplitudes (n_head, 2·pairs) as `fit_pairs` gives them. With k = (√r, 0) and q = √r (cos φ, −sin φ) of a pair,
    turned by θj and θi, the score is `r cos(θΔ − φ)/√head_dim`: r = √(a² + b²)·√head_dim, φ = atan2(b, a).
    """
    n_head, pairs = amplitudes.shape[0], amplitudes.shape[1] // 2
    a, b = amplitudes[:, :pairs], amplitudes[:, pairs:]
    root, phase = (torch.hypot(a, b) * math.sqrt(head_dim)).sqrt(), torch.atan2(b, a)
    q_bias, k_bias = (amplitudes.new_zeros(n_head, head_dim) for _ in range(2))
    k_bias[:, : 2 * pairs : 2] = root
    q_bias[:, : 2 * pairs : 2] = root * phase.cos()
    q_bias[:, 1 : 2 * pairs : 2] = -root * phase.sin()
    return q_bias.flatten(), k_bias.flatten()


def explained(p: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """Share of t that the pairs explain, (n_head,).

    t(Δ) is the mean of the missing score at distance Δ under p, each row centred; `before` and `after`
    (B, n_head, T, T) are what is missing without and with them.
    """
    weight = sum_by_distance(p.sum(0)).double().clamp(min=1e-30)  # (n_head, T)
    found = []
    for missing in (before, after):
        centred = p * (missing - (p * missing).sum(-1, keepdim=True))
        found.append((sum_by_distance(centred.sum(0)).double().square() / weight).sum(1))
    return 1 - found[1] / found[0].clamp(min=1e-30)
