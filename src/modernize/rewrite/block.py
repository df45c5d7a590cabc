"""What happens inside a folded block, piece by piece: normed inputs, heads, scores, mixtures, hidden units.

A block is a State under short names (`q.weight`, `q.bias`, … `down.bias`), matrices `(out, in)`; its norms have gain
one and no shift, and its inputs have mean zero, so that `r(x) = x / √(mean x² + eps)` is LayerNorm. Without tables it
is the old block, with RoPE's tables the new one.
"""

import math
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from modernize.layers import ACTIVATION_FUNCTIONS, merge_heads, split_heads
from modernize.model import apply_rope
from modernize.spec import GPTSpec, State

Tables: TypeAlias = tuple[Tensor, Tensor]  # cos, sin, each (T, head_dim/2)
EVERY = slice(None)
PARTS = {"q": "attn.q", "k": "attn.k", "v": "attn.v", "o": "attn.o", "up": "mlp.up", "down": "mlp.down"}


def block_of(state: State, i: int) -> State:
    """Block i of a State, under short names."""
    found = {}
    for part, home in PARTS.items():
        for kind in ("weight", "bias"):
            tensor = state.get(f"h.{i}.{home}.{kind}")
            if tensor is not None:
                found[f"{part}.{kind}"] = tensor
    return found


def as_state(block: State, i: int) -> State:
    """Inverse of `block_of`."""
    named = {}
    for name, tensor in block.items():
        part, kind = name.split(".")
        named[f"h.{i}.{PARTS[part]}.{kind}"] = tensor
    return named


def normed(x: Tensor, eps: float) -> Tensor:
    """`x · rsqrt(mean(x², last axis) + eps)`, (…, d) -> (…, d)."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def linear(block: State, part: str, x: Tensor) -> Tensor:
    """(…, in) -> (…, out), with the part's bias where it has one."""
    return F.linear(x, block[f"{part}.weight"], block.get(f"{part}.bias"))


def heads(block: State, part: str, z: Tensor, n_head: int, tables: Tables | None = None) -> Tensor:
    """Queries, keys or values (B, n_head, T, head_dim) of normed inputs z (B, T, d); turned where there are tables."""
    split = split_heads(linear(block, part, z), n_head)
    return apply_rope(split, *tables) if tables and part in "qk" else split


def log_attention(q: Tensor, k: Tensor, queries: slice = EVERY) -> Tensor:
    """Log-probabilities (B, n_head, Q, T) of causal attention, −∞ after the query; q, k (B, n_head, T, head_dim).

    Q of the T queries are looked at, by default all.
    """
    return masked(scores(q[:, :, queries], k), queries).log_softmax(-1)


def scores(q: Tensor, k: Tensor) -> Tensor:
    """`q kᵀ / √head_dim`, (B, n_head, Q, T), also after the query."""
    return q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])


def masked(all_scores: Tensor, queries: slice = EVERY) -> Tensor:
    """Scores (…, Q, T) with −∞ after the query."""
    places = torch.arange(all_scores.shape[-1], device=all_scores.device)
    return all_scores.masked_fill(places > places[queries, None], -torch.inf)


def mixture(block: State, z: Tensor, n_head: int, tables: Tables | None = None) -> Tensor:
    """What the heads gather, before the output projection: (B, T, d) -> (B, T, d)."""
    q, k, v = (heads(block, part, z, n_head, tables) for part in "qkv")
    return merge_heads(F.scaled_dot_product_attention(q, k, v, is_causal=True))


def hidden(block: State, z: Tensor, spec: GPTSpec) -> Tensor:
    """Activated units of the MLP, (B, T, d) -> (B, T, n_inner)."""
    return ACTIVATION_FUNCTIONS[spec.activation](linear(block, "up", z))
