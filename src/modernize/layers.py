"""What the old and the modern model have in common: the activation, the MLP, heads as an axis of their own, and the
keys and values that are kept while a model writes.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from modernize.choices import ModernActivation
from modernize.spec import State


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATION_FUNCTIONS: dict[ModernActivation, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": F.relu,
    "silu": F.silu,
}


class MLP(nn.Module):
    """`down(act(up(x)))`, (B, T, n_embd) -> (B, T, n_embd)."""

    def __init__(self, n_embd: int, n_inner: int, activation: ModernActivation, biases: tuple[str, ...]) -> None:
        super().__init__()
        self.up = nn.Linear(n_embd, n_inner, bias="up" in biases)
        self.down = nn.Linear(n_inner, n_embd, bias="down" in biases)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, n_embd) -> (B, T, n_embd)."""
        hidden = ACTIVATION_FUNCTIONS[self.activation](self.up(x))  # (B, T, n_inner)
        out: Tensor = self.down(hidden)  # (B, T, n_embd)
        return out


class Cache:
    """Keys and values of one layer for the tokens so far, with room for `length` of them, and for more as they come."""

    def __init__(self, length: int) -> None:
        self.length, self.used = length, 0
        self._keys = self._values = torch.empty(0)

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Take in those of the next tokens, (B, heads, T, head_dim), and give all, (B, heads, used, head_dim)."""
        start, self.used = self.used, self.used + k.shape[2]
        if not start:
            self._keys, self._values = k[:, :, :0], v[:, :, :0]
        if self.used > self._keys.shape[2]:
            self.length = max(self.length, self.used, 2 * start)  # doubled, so that the copies cost little in all
            self._keys, self._values = _lengthened(self._keys, self.length), _lengthened(self._values, self.length)
        self._keys[:, :, start : self.used], self._values[:, :, start : self.used] = k, v
        return self._keys[:, :, : self.used], self._values[:, :, : self.used]


def _lengthened(kept: Tensor, length: int) -> Tensor:
    """(B, heads, T, head_dim) -> (B, heads, length, head_dim), with zeros behind."""
    return F.pad(kept, (0, 0, 0, length - kept.shape[2]))


def adopt(model: nn.Module, state: State, *, tied: bool) -> None:
    """Make these tensors a model's own, in their dtype and without a copy. A tied head is absent from the State.

    Raises RuntimeError for names or shapes that are not the model's.
    """
    embedding, head = model.get_submodule("wte"), model.get_submodule("head")
    model.load_state_dict(state | ({"head.weight": state["wte.weight"]} if tied else {}), assign=True)
    if tied:
        head.weight = embedding.weight


def split_heads(x: Tensor, n_head: int) -> Tensor:
    """(B, T, n_head · head_dim) -> (B, n_head, T, head_dim)."""
    return x.view(*x.shape[:-1], n_head, -1).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, n_head, T, head_dim) -> (B, T, n_head · head_dim)."""
    return x.transpose(1, 2).flatten(-2)
