"""OldGPT: the model before. LayerNorm, learned positions, pre-norm blocks; the teacher, and the truth to compare with.

It runs the canonical State of any dialect, so its parameters have the canonical names.
"""

import copy
import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from modernize.errors import UsageError
from modernize.layers import MLP, Cache, adopt, merge_heads, split_heads
from modernize.spec import GPTSpec, State


class OldAttention(nn.Module):
    """Causal self-attention with scores over √(head size), or over √width where the old program did so."""

    def __init__(self, spec: GPTSpec) -> None:
        super().__init__()
        d = spec.n_embd
        self.q, self.k, self.v, self.o = (nn.Linear(d, d, bias=part in spec.biases) for part in "qkvo")
        self.n_head = spec.n_head
        self.scale = 1 / math.sqrt(spec.head_dim if spec.attn_scale == "head" else d)

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        """(B, T, n_embd) -> (B, T, n_embd); with a cache, T is 1 or the cache is empty."""
        q, k, v = (split_heads(proj(x), self.n_head) for proj in (self.q, self.k, self.v))  # (B, n_head, T, head_dim)
        if cache is not None:
            k, v = cache.extend(k, v)  # (B, n_head, used, head_dim)
        causal = q.shape[2] == k.shape[2]  # else one token, which sees all
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=self.scale)
        out: Tensor = self.o(merge_heads(mixed))  # (B, T, n_embd)
        return out


class OldBlock(nn.Module):
    """`x += attn(ln_1(x)); x += mlp(ln_2(x))`."""

    def __init__(self, spec: GPTSpec) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(spec.n_embd, eps=spec.norm_eps, bias="ln_1" in spec.biases)
        self.attn = OldAttention(spec)
        self.ln_2 = nn.LayerNorm(spec.n_embd, eps=spec.norm_eps, bias="ln_2" in spec.biases)
        self.mlp = MLP(spec.n_embd, spec.n_inner, spec.activation, spec.biases)

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        """(B, T, n_embd) -> (B, T, n_embd)."""
        x = x + self.attn(self.ln_1(x), cache)
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


class OldGPT(nn.Module):
    """The old model. `model(ids)`: (B, T) token ids, T at most `spec.block_size`, -> logits (B, T, vocab)."""

    def __init__(self, spec: GPTSpec) -> None:
        super().__init__()
        self.spec = spec
        self.wte = nn.Embedding(spec.vocab_size, spec.n_embd)
        self.wpe = nn.Embedding(spec.block_size, spec.n_embd)
        self.h = nn.ModuleList(OldBlock(spec) for _ in range(spec.n_layer))
        self.ln_f = nn.LayerNorm(spec.n_embd, eps=spec.norm_eps, bias="ln_f" in spec.biases)
        self.head = nn.Linear(spec.n_embd, spec.vocab_size, bias="head" in spec.biases)
        if spec.tied:
            self.head.weight = self.wte.weight

    @classmethod
    def from_state(cls, spec: GPTSpec, state: State) -> "OldGPT":
        """A model that holds the tensors of a canonical State, in their dtype; a tied head is absent there."""
        with torch.device("meta"):
            model = cls(spec)
        adopt(model, state, tied=spec.tied)
        return model.requires_grad_(False)

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""
        return self.spec.vocab_size

    @property
    def block_size(self) -> int:
        """The trained context, past which this model has no positions."""
        return self.spec.block_size

    def as_teacher(self, device: torch.device, precision: torch.dtype) -> "OldGPT":
        """The model where it will teach: itself in float32, or for another precision a copy.

        Matrices of the copy's blocks, which autocast would narrow at every pass, are kept narrow: the same predictions
        in less memory, and under autocast alone.
        """
        if precision == torch.float32:
            return self.to(device, torch.float32)
        model = copy.deepcopy(self).float()
        for part in model.h.modules():
            if isinstance(part, nn.Linear):
                part.to(precision)
        return model.to(device)

    def caches(self, length: int) -> list[Cache]:
        """Empty caches, one a layer, with room for `length` tokens."""
        return [Cache(length) for _ in self.h]

    def states(self, ids: Tensor, caches: Sequence[Cache] = ()) -> Tensor:
        """What the head reads: (B, T) -> (B, T, n_embd).

        With caches, ids are those that follow: all at first, then one at a time.

        Raises UsageError for more tokens than there are positions.
        """
        start = caches[0].used if caches else 0
        end = start + ids.shape[1]
        if end > self.spec.block_size:
            raise UsageError(
                f"the old model has {self.spec.block_size} positions and was given {end} tokens",
                hint=f"use a context of at most {self.spec.block_size}",
            )
        x = self.wte(ids) + self.wpe.weight[start:end]  # (B, T, n_embd)
        for block, cache in itertools.zip_longest(self.h, caches):
            x = block(x, cache)
        final: Tensor = self.ln_f(x)  # (B, T, n_embd)
        return final

    def forward(self, ids: Tensor, caches: Sequence[Cache] = ()) -> Tensor:
        """(B, T) -> (B, T, vocab_size); see `states`."""
        logits: Tensor = self.head(self.states(ids, caches))  # (B, T, vocab_size)
        return logits
