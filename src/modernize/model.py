"""ModernGPT: the model after. Its choices, each with the reason:

- RMSNorm before attention, before the MLP and at the end: no mean, no shift. Statistics in float32 at least.
- RoPE on queries and keys, neighbouring dimensions (2i, 2i+1) as pairs, tables in float32 and made anew for whatever
  length comes: there is no position table and no longest context.
- No biases unless the configuration lists them (a conversion that keeps them does).
- The head shares the embedding's matrix where the old model did.
- Key/value heads may be fewer than query heads (grouped-query attention).
- Scores are divided by √(head size), always; another scale of an old model is moved into its queries.
- The same MLP and activation as the old model: `down(act(up(x)))`.
- Keys are kept turned: while it writes, each new token is turned by its own place alone.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from modernize.layers import MLP, Cache, adopt, merge_heads, split_heads
from modernize.spec import ModernConfig, State


class RMSNorm(nn.Module):
    """`x · rsqrt(mean(x², last axis) + eps) · gain` (Zhang & Sennrich 2019); gain (dim,) starts at one."""

    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.gain = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """(…, dim) -> (…, dim), in the dtype of x."""
        wide = at_least_float32(x)
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps) * self.gain).to(x.dtype)


def at_least_float32(x: Tensor) -> Tensor:
    """float16 and bfloat16 widened to float32; float32 and float64 as they are."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def build_rope_cache(
    seq_len: int, head_dim: int, base: float = 10000.0, device: str | torch.device = "cpu", *, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Tables `cos, sin` of the angles m·θᵢ, θᵢ = base^(−2i/head_dim), each (seq_len, head_dim/2) in float32.

    Angles are multiplied out in float64, so that the last position is as exact as the first (Su et al. 2021). Positions
    m are divided by `scale`.
    Raises ValueError for an odd head_dim.
    """
    if head_dim % 2:
        raise ValueError(f"head_dim is {head_dim}, and RoPE turns pairs")
    places = torch.arange(seq_len, dtype=torch.float64, device="cpu") / scale
    theta = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64, device="cpu") / head_dim)  # (head_dim/2,)
    angles = torch.outer(places, theta)  # (seq_len, head_dim/2)
    return angles.cos().float().to(device), angles.sin().float().to(device)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (x[2i], x[2i+1]) of x (B, n_head, T, head_dim) by its angle; cos and sin (T or more, head_dim/2).

    Computed in float32 at least, returned in the dtype of x.
    """
    cos, sin = cos[: x.shape[-2]], sin[: x.shape[-2]]  # (T, head_dim/2)
    even, odd = at_least_float32(x).view(*x.shape[:-1], -1, 2).unbind(-1)  # (B, n_head, T, head_dim/2) each
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)  # (B, n_head, T, head_dim/2, 2)
    return turned.flatten(-2).to(x.dtype)


class Attention(nn.Module):
    """Causal self-attention with RoPE; `n_kv_head` key/value heads serve `n_head` query heads."""

    def __init__(self, config: ModernConfig) -> None:
        super().__init__()
        d, kv = config.n_embd, config.n_kv_head * config.head_dim
        self.q = nn.Linear(d, d, bias="q" in config.biases)
        self.k = nn.Linear(d, kv, bias="k" in config.biases)
        self.v = nn.Linear(d, kv, bias="v" in config.biases)
        self.o = nn.Linear(d, d, bias="o" in config.biases)
        self.n_head, self.n_kv_head = config.n_head, config.n_kv_head

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, cache: Cache | None = None) -> Tensor:
        """(B, T, n_embd) -> (B, T, n_embd); cos and sin (T, head_dim/2). With a cache, T is 1 or the cache is empty."""
        q = apply_rope(split_heads(self.q(x), self.n_head), cos, sin)  # (B, n_head, T, head_dim)
        k = apply_rope(split_heads(self.k(x), self.n_kv_head), cos, sin)  # (B, n_kv_head, T, head_dim)
        v = split_heads(self.v(x), self.n_kv_head)  # (B, n_kv_head, T, head_dim)
        if cache is not None:
            k, v = cache.extend(k, v)  # (B, n_kv_head, used, head_dim)
        causal = cache is None or q.shape[2] == k.shape[2]  # else one token, which sees all
        grouped = self.n_kv_head != self.n_head
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)
        out: Tensor = self.o(merge_heads(mixed))  # (B, T, n_embd)
        return out


class Block(nn.Module):
    """`x += attn(norm_1(x)); x += mlp(norm_2(x))`."""

    def __init__(self, config: ModernConfig) -> None:
        super().__init__()
        self.norm_1 = RMSNorm(config.n_embd, config.norm_eps)
        self.attn = Attention(config)
        self.norm_2 = RMSNorm(config.n_embd, config.norm_eps)
        self.mlp = MLP(config.n_embd, config.n_inner, config.activation, config.biases)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, cache: Cache | None = None) -> Tensor:
        """(B, T, n_embd) -> (B, T, n_embd)."""
        x = x + self.attn(self.norm_1(x), cos, sin, cache)
        out: Tensor = x + self.mlp(self.norm_2(x))
        return out


class ModernGPT(nn.Module):
    """The modern model. `model(ids)` takes (B, T) token ids, any T, and gives logits (B, T, vocab_size)."""

    def __init__(self, config: ModernConfig) -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.norm_f = RMSNorm(config.n_embd, config.norm_eps)
        self.head = nn.Linear(config.n_embd, config.vocab_size, bias="head" in config.biases)
        if config.tied:
            self.head.weight = self.wte.weight
        self._tables: tuple[Tensor, Tensor] = (torch.empty(0), torch.empty(0))
        self.recompute = False  # activations inside blocks, in the backward pass, in place of keeping them

    @classmethod
    def from_state(cls, config: ModernConfig, state: State) -> "ModernGPT":
        """A model that holds these tensors, named as in `config.shapes()`, in their dtype."""
        with torch.device("meta"):
            model = cls(config)
        adopt(model, state, tied=config.tied)
        return model.requires_grad_(True)

    def to_state(self) -> State:
        """The tensors as they are written, in the order of the model; a tied head is left out."""
        own = self.state_dict()
        return {name: own[name] for name in self.config.shapes()}

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""
        return self.config.vocab_size

    @property
    def block_size(self) -> int:
        """The context that the old model was trained on."""
        return self.config.block_size

    def rope(self, seq_len: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Tables of seq_len positions, made again only when they must grow or move."""
        cos, _ = self._tables
        if cos.shape[0] < seq_len or cos.device != device:
            config, trained = self.config, self.config.trained_context
            length = trained if seq_len <= trained else 2 * seq_len  # beyond it a token at a time may follow
            with torch.inference_mode(False):  # so that tables made while measuring serve training too
                self._tables = build_rope_cache(
                    length, config.head_dim, config.rope_base, device, scale=config.rope_scale
                )
        cos, sin = self._tables
        return cos[:seq_len], sin[:seq_len]

    def caches(self, length: int) -> list[Cache]:
        """Empty caches, one a layer, with room for `length` tokens; they grow when more come."""
        return [Cache(length) for _ in self.h]

    def states(self, ids: Tensor, caches: Sequence[Cache] = ()) -> Tensor:
        """What the head reads: (B, T) -> (B, T, n_embd).

        With caches, ids are those that follow: all at first, then one at a time.
        """
        start = caches[0].used if caches else 0
        cos, sin = self.rope(start + ids.shape[1], ids.device)
        cos, sin = cos[start:], sin[start:]  # (T, head_dim/2)
        x = self.wte(ids)  # (B, T, n_embd)
        kept: Sequence[Cache | None] = caches or [None] * len(self.h)
        for block, cache in zip(self.h, kept, strict=True):
            if self.recompute and cache is None:
                x = checkpoint(block, x, cos, sin, use_reentrant=False)
            else:
                x = block(x, cos, sin, cache)
        final: Tensor = self.norm_f(x)  # (B, T, n_embd)
        return final

    def forward(self, ids: Tensor, caches: Sequence[Cache] = ()) -> Tensor:
        """(B, T) -> (B, T, vocab_size); see `states`."""
        logits: Tensor = self.head(self.states(ids, caches))  # (B, T, vocab_size)
        return logits
