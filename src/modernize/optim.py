"""Which optimizer trains which parameter: Muon the matrices inside the blocks, AdamW everything else.

Muon's updates are scaled to the size of AdamW's (Liu et al. 2025), so that one learning rate serves both.
"""

import torch
from torch import nn
from torch.optim import AdamW, Muon, Optimizer

from modernize.choices import OptimizerName
from modernize.devices import has_fused_adamw

BETAS = (0.9, 0.95)
NEAR = 0.25  # nats above the old model: nearer than that, large steps would throw away what the conversion kept
# peaks that won back most on small models in 50 to 200 steps; Muon's serves both of its optimizers
NEAR_LR: dict[OptimizerName, float] = {"auto": 7e-4, "muon": 7e-4, "adamw": 7e-4}
FAR_LR: dict[OptimizerName, float] = {"auto": 4e-3, "muon": 4e-3, "adamw": 2e-3}


def default_lr(name: OptimizerName, *, loss: float, old: float | None) -> float:
    """Peak of the learning rate for a model whose validation loss is `loss` where the old model's is `old`, in nats.

    Where the old loss isn't known, the model is taken to be near: that costs steps, the other would cost the model.
    """
    near = old is None or loss - old < NEAR
    return (NEAR_LR if near else FAR_LR)[name]


def build_optimizers(model: nn.Module, name: OptimizerName, lr: float, device: torch.device) -> list[Optimizer]:
    """Optimizers that together hold every parameter once; `auto` is Muon with AdamW. Groups remember `initial_lr`.

    Nothing decays: a few dozen steps should move the weights towards the old model, not towards zero.
    """
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and n.startswith("h.")]
    if name == "adamw":
        matrices = []
    chosen = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in chosen]
    optimizers: list[Optimizer] = [AdamW(rest, lr=lr, betas=BETAS, weight_decay=0.0, fused=has_fused_adamw(device))]
    if matrices:
        optimizers.append(Muon(matrices, lr=lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["initial_lr"] = lr
    return optimizers
