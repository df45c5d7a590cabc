"""Which optimizer trains which parameter: Muon the matrices inside the blocks, AdamW everything else.

Muon's updates are scaled to the size of AdamW's (Liu et al. 2025), so that one learning rate serves both.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer

from modernize.choices import OptimizerName
from modernize.devices import has_fused_adamw
from modernize.muon import WideMuon
from modernize.spec import State

BETAS = (0.9, 0.95)


def schedule(step: int, steps: int, warmup: int) -> float:
    """Factor of the learning rate at a step, from 0: a linear rise over `warmup` steps, then a linear fall to zero."""
    if step < warmup:
        return (step + 1) / warmup
    return (steps - step) / max(steps - warmup, 1)


def build_optimizers(
    model: nn.Module, name: OptimizerName, lr: float, device: torch.device, *, bfloat16: bool
) -> list[Optimizer]:
    """Optimizers that together hold every parameter once; `auto` is Muon with AdamW, in bfloat16 where all devices have
    instructions for it. Groups remember `initial_lr`.

    Nothing decays: a few dozen steps should move the weights towards the old model, not towards zero.
    """
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and n.startswith("h.")]
    if name == "adamw":
        matrices = []
    chosen = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in chosen]
    optimizers: list[Optimizer] = [AdamW(rest, lr=lr, betas=BETAS, weight_decay=0.0, fused=has_fused_adamw(device))]
    if matrices:
        optimizers.append(
            Muon(matrices, lr=lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
            if bfloat16
            else WideMuon(matrices, lr=lr)
        )
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["initial_lr"] = lr
    return optimizers


def pack_optimizers(model: nn.Module, optimizers: Sequence[Optimizer]) -> State:
    """The tensors of the optimizers' states, as `parameter:what`."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        f"{names[id(parameter)]}:{key}": value
        for optimizer in optimizers
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
    }


def unpack_optimizers(model: nn.Module, optimizers: Sequence[Optimizer], tensors: State) -> None:
    """The inverse of `pack_optimizers`; what optimizers hold beside tensors is theirs to say."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    states: dict[str, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        of, key = name.split(":")
        states.setdefault(of, {})[key] = value
    for optimizer in optimizers:
        plain = optimizer.state_dict()
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        plain["state"] = {number: states[names[id(p)]] for number, p in enumerate(parameters) if names[id(p)] in states}
        optimizer.load_state_dict(plain)
