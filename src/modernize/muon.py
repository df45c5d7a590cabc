"""Muon for devices that are not known to have instructions for bfloat16."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim import Muon
from torch.optim.optimizer import ParamsT


class WideMuon(Muon):
    """torch.optim.Muon as it is used here, but its Newton–Schulz iterations stay in the dtype of the gradient.

    Torch's are in bfloat16, which a CPU that has to emulate it multiplies some hundred times slower than float32.
    Groups and states are those of torch's, so a run that was saved with one of them goes on with the other.
    """

    def __init__(self, params: ParamsT, lr: float) -> None:
        super().__init__(params, lr=lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update. Its size is matched to AdamW's, 0.2 · √max(rows, columns) (Liu et al. 2025, equation 4)."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(parameter.grad)
                average = state["momentum_buffer"].lerp_(parameter.grad, 1 - group["momentum"])
                ahead = parameter.grad.lerp(average, group["momentum"])
                update = orthogonalised(ahead, group["ns_coefficients"], group["ns_steps"], group["eps"])
                parameter.add_(update, alpha=-group["lr"] * 0.2 * math.sqrt(max(parameter.shape)))
        return loss


def orthogonalised(matrix: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """A matrix (m, n) with its singular values brought near one, by Newton–Schulz iterations (Jordan et al. 2024).

    X ← a X + (b X Xᵀ + c (X Xᵀ)²) X, from a matrix whose norm is one, and lying rather than standing.
    """
    standing = matrix.shape[0] > matrix.shape[1]
    a, b, c = coefficients
    found = matrix.T if standing else matrix
    found = found / found.norm().clamp(min=eps)
    for _ in range(steps):
        gram = found @ found.T
        found = torch.addmm(found, torch.addmm(gram, gram, gram, beta=b, alpha=c), found, beta=a)
    return found.T if standing else found
