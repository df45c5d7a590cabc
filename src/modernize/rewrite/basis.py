"""Turn each head's basis, so that RoPE's slow pairs carry what a head matches by content (move 6)."""

import torch
from torch import Tensor

FLOOR = 1e-6  # of the largest: directions that the text never shows still have to be invertible


def turn_basis(
    q: Tensor, q_bias: Tensor, k: Tensor, moment: Tensor, n_head: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Turned (q, q_bias, k) and each head's strengths (n_head, head_dim), ascending; scores without RoPE stay the same.

    q, k (d, d) are `(out, in)`, q_bias (d,); moment (d + 1, d + 1) is E[z̃ z̃ᵀ] of the inputs with a one appended,
    z̃ = (z, 1). With A = (Wq | bq) and B = (Wk | 0) of a head, scores are z̃ᵀ Aᵀ B z̃', and any T leaves them alone:
    `(T A)ᵀ (T⁻ᵀ B) = Aᵀ B`. T is chosen by the singular values of `S^½ Aᵀ B S^½`, so that the directions are
    uncorrelated on the text and balanced, √s on each side. The weakest come first, in RoPE's fast pairs, which spoil
    what they carry; the strongest come last, in the slow ones, which hardly touch it. All in float64.
    """
    d = q.shape[1]
    wide_q = torch.cat([q, q_bias[:, None]], dim=1).double().chunk(n_head)  # (head_dim, d + 1) each
    wide_k = torch.cat([k, torch.zeros_like(q_bias)[:, None]], dim=1).double().chunk(n_head)
    turned_q, turned_k, strengths = [], [], []
    for a, b in zip(wide_q, wide_k, strict=True):
        turn, strength = _turn(a, b, moment.double())
        turned_q.append(turn @ a)
        turned_k.append(torch.linalg.inv(turn).T @ b)
        strengths.append(strength)
    new_q, new_k = torch.cat(turned_q), torch.cat(turned_k)
    return new_q[:, :d], new_q[:, d], new_k[:, :d], torch.stack(strengths)


def _turn(a: Tensor, b: Tensor, moment: Tensor) -> tuple[Tensor, Tensor]:
    """T (head_dim, head_dim) for one head, and its strengths in ascending order.

    With `A S Aᵀ = Raᵀ Ra`, `B S Bᵀ = Rbᵀ Rb` and the decomposition `Ra Rbᵀ = U s Vᵀ`: T = s^½ Uᵀ Ra⁻ᵀ.
    """
    root_a, root_b = _root(a @ moment @ a.T), _root(b @ moment @ b.T)
    left, strength, _ = torch.linalg.svd(root_a @ root_b.T)
    balanced = strength.clamp(min=FLOOR * float(strength.max()) or 1.0).sqrt()
    turn = balanced[:, None] * (left.T @ torch.linalg.inv(root_a).T)
    return turn.flip(0), strength.flip(0)


def _root(gram: Tensor) -> Tensor:
    """An invertible R with RᵀR = gram, up to the floor under its eigenvalues."""
    values, vectors = torch.linalg.eigh(gram)
    floor = FLOOR * float(values.max())
    root: Tensor = values.clamp(min=floor if floor > 0 else 1.0).sqrt()[:, None] * vectors.T
    return root
