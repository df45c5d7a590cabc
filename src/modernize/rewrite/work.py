"""What the layer-by-layer moves work on: calibration text, its sums, and how much effort to spend."""

from dataclasses import dataclass

import torch
from torch import Tensor

from modernize.model import build_rope_cache
from modernize.rewrite.block import Tables
from modernize.spec import GPTSpec

TOKENS_A_STEP = 2048  # that are worked on at once
REACH = 4  # contexts, as far as attention is to stay what it is


@dataclass(frozen=True, kw_only=True)
class Text:
    """Calibration text: N sequences of T tokens, of which the first `fitted` are fitted to and the rest judge.

    ids and targets are (N, T), known (N, T) says which places are predicted.
    """

    ids: Tensor
    targets: Tensor
    known: Tensor
    fitted: int


@dataclass(frozen=True, kw_only=True)
class Effort:
    """Adam steps of the local fits, for each block's attention, for each half of a block, and for the output."""

    attention_steps: int
    block_steps: int
    output_steps: int
    attention_rate: float  # shares of a tensor's root mean square
    block_rate: float
    output_rate: float


@dataclass(frozen=True, kw_only=True)
class Work:
    """The old model's facts, the text, RoPE's tables for its length and for what is further, and how to go about it."""

    spec: GPTSpec
    text: Text
    tables: Tables
    far: Tables  # angles of two, three, … contexts, each (REACH − 2, head_dim/2)
    effort: Effort
    kept: tuple[str, ...]  # parts whose biases are kept
    seed: int

    def held(self, tokens: int = 0) -> Tensor:
        """Numbers of the held-out sequences; with `tokens`, no more of them than that."""
        first, count = self.text.fitted, len(self.text.ids) - self.text.fitted
        if tokens:
            count = min(count, max(1, tokens // self.text.ids.shape[1]))
        return torch.arange(first, first + count)

    def some_at_once(self, numbers: Tensor, most: int = 1 << 30) -> tuple[Tensor, ...]:
        """Numbers of sequences in parts of TOKENS_A_STEP tokens, and of at most `most` sequences."""
        at_once = max(1, min(most, TOKENS_A_STEP // self.text.ids.shape[1]))
        return torch.split(numbers, at_once)

    def known_rows(self, x: Tensor) -> Tensor:
        """The places of the fitted sequences that count, (N, T, d) -> (n, d)."""
        return _rows(x[: self.text.fitted], self.text.known[: self.text.fitted])

    def held_rows(self, x: Tensor) -> Tensor:
        """The places of the held-out sequences that count, (N, T, d) -> (n, d)."""
        return _rows(x[self.text.fitted :], self.text.known[self.text.fitted :])


def _rows(x: Tensor, known: Tensor) -> Tensor:
    """Where all places count, they are not copied."""
    return x.flatten(0, 1) if known.all() else x[known]


def tables_of(length: int, head_dim: int, base: float, device: torch.device) -> tuple[Tables, Tables]:
    """RoPE's tables for text of a length, and the angles of two contexts and more, up to REACH."""
    cos, sin = build_rope_cache(length * (REACH - 1) + 1, head_dim, base, device)
    return (cos[:length], sin[:length]), (cos[2 * length :: length], sin[2 * length :: length])


def moment(rows: Tensor) -> Tensor:
    """E z zᵀ of rows (n, d), (d, d) in float64; products in the rows' own dtype, which a ridge is above."""
    return (rows.T @ rows).double() / max(len(rows), 1)
