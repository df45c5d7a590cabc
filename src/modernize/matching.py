"""Hidden-state matching: what the head reads is drawn towards what the old model's head reads.

Two models that predict alike hold that in different bases (a conversion turns and scales them), so states are compared
through a linear map. The map is nothing that is trained: it is the ridge regression of the new states on the old ones,
from moments of the last few steps, and follows the model. What it leaves of the new states, as a share of their power,
is the loss. (Hidden states of a teacher through a linear map: Romero et al. 2015, FitNets.)
"""

import torch
from torch import Tensor

from modernize.parallel import World
from modernize.spec import State

DECAY = 0.9  # of the moments, a step
RIDGE = 1e-3  # of the diagonal, so that directions of great and of small power are alike


class Matching:
    """The map (d_old, d_new) and what it is made from. It is made before the first step, and renewed after each."""

    def __init__(self, d_old: int, d_new: int, device: torch.device) -> None:
        self.map = torch.zeros((d_old, d_new), device=device)
        self.scale = torch.zeros((), device=device)  # 1 / (d_new · power), so that a loss is a share
        self.moments = torch.zeros(d_old * (d_old + d_new) + 2, device=device)  # old·old, old·new, new², places
        self.last = torch.zeros((), device=device)  # what `loss` gave since the map was made
        self._step = torch.zeros_like(self.moments)
        self._made = False
        self._sizes = [d_old * d_old, d_old * d_new, 1, 1]

    def loss(self, new: Tensor, old: Tensor, known: Tensor) -> Tensor:
        """Of states (N, d_new) and (N, d_old) at the places (N,) that are known: the sum of shares, in float32."""
        new, old = new.float(), old.float()
        self.look(new, old, known)
        missed: Tensor = (new - old @ self.map).square().sum(-1) * known  # (N,)
        loss = missed.sum() * self.scale
        self.last += loss.detach()
        return loss

    @torch.no_grad()
    def look(self, new: Tensor, old: Tensor, known: Tensor) -> None:
        """Add states to the moments of this step."""
        old = old.float() * known[:, None]
        new = new.float() * known[:, None]
        parts = (old.T @ old, old.T @ new, new.square().sum()[None], known.sum()[None].float())
        self._step += torch.cat([part.flatten() for part in parts])

    @torch.no_grad()
    def renew(self, world: World) -> None:
        """Make the map again from what all processes have seen since the last time."""
        fresh = world.total(self._step)
        self.moments = DECAY * self.moments + (1 - DECAY) * fresh if self._made else fresh.clone()
        self.forget()
        self._solve()

    def forget(self) -> None:
        """As if nothing had been seen since the map was made."""
        self._step.zero_()
        self.last.zero_()

    def _solve(self) -> None:
        d_old, d_new = self.map.shape
        by_old, by_new, power, places = torch.split(self.moments, self._sizes)
        precise = torch.device("cpu") if self.map.device.type == "mps" else self.map.device  # MPS has no float64
        gram = by_old.view(d_old, d_old).to(precise, torch.float64)
        gram.diagonal().mul_(1 + RIDGE).clamp_(min=1e-30)
        found, _ = torch.linalg.solve_ex(gram, by_new.view(d_old, d_new).to(precise, torch.float64))
        self.map = found.to(self.map.device, torch.float32)
        self.scale = places[0] / power[0].clamp(min=1e-30)
        self._made = True

    def state(self) -> State:
        """What a run that goes on needs, between steps."""
        return {"moments": self.moments}

    def restore(self, state: State) -> None:
        """The inverse."""
        self.moments = state["moments"].to(self.map.device)
        self._solve()
