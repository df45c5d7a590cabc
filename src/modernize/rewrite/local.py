"""Local fits: a few Adam steps on one part of one block, against what the old block does there.

Nothing flows backward through more than that part, so memory and time are those of one block.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from modernize.model import apply_rope
from modernize.rewrite import block as blocks
from modernize.rewrite.work import REACH, TOKENS_A_STEP, Work
from modernize.spec import GPTSpec, State

Loss = Callable[[State, Tensor], Tensor]  # of parameters and the numbers of some sequences
BETAS = (0.9, 0.95)
MOST_KEPT = 1 << 26  # numbers of the old attention
FAR_WEIGHT, FAR_QUERIES, FAR_KEYS = 0.05, 8, 4  # every eighth query, every fourth key
MOST_QUERIES = 256  # of a sequence; neighbours say much the same, and scores are what a long context costs


def minimise(
    start: State, loss: Loss, *, lr: Mapping[str, float], steps: int, work: Work, most: int = 1 << 30
) -> State:
    """`start` after some Adam steps on `loss`; the learning rates, one for each name, fall to zero.

    Fitted sequences are gone through in a shuffled order, TOKENS_A_STEP tokens a step and at most `most` sequences.
    """
    parameters = {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
    groups = [{"params": [parameters[name]], "lr": lr[name]} for name in parameters]
    optimizer = torch.optim.Adam(groups, betas=BETAS)
    device = next(iter(parameters.values())).device
    rising = max(1, min(5, steps // 5))
    batch = max(1, min(most, TOKENS_A_STEP // work.text.ids.shape[1]))
    with torch.enable_grad():
        for step, numbers in enumerate(_shuffled(work.text.fitted, batch, steps, work.seed)):
            factor = min(1.0, (step + 1) / rising) * (1 - step / steps)
            for group, name in zip(optimizer.param_groups, parameters, strict=True):
                group["lr"] = lr[name] * factor
            optimizer.zero_grad(set_to_none=True)
            loss(parameters, numbers.to(device)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return {name: tensor.detach() for name, tensor in parameters.items()}


def _shuffled(sequences: int, batch: int, steps: int, seed: int) -> Iterator[Tensor]:
    random, left = np.random.default_rng(seed), np.empty(0, dtype=np.int64)
    batch = min(batch, sequences)
    for _ in range(steps):
        if len(left) < batch:
            left = random.permutation(sequences)
        yield torch.from_numpy(left[:batch])
        left = left[batch:]


@dataclass(frozen=True, kw_only=True)
class OldAttention:
    """What the old block's heads ask, offer and see on the whole text.

    q, k are (N, n_head, T, head_dim). `seen` is the attention p itself, (N, n_head, T, T), and the sum of p log p over
    its last axis; it is None where that is too much to keep, and then made anew whenever it is looked at.
    """

    q: Tensor
    k: Tensor
    seen: tuple[Tensor, Tensor] | None = None

    @classmethod
    def of(cls, block: State, z: Tensor, work: Work) -> "OldAttention":
        """Of a folded block and its normed inputs z (N, T, d)."""
        q, k = (blocks.heads(block, part, z, work.spec.n_head) for part in "qk")
        if z.shape[1] > MOST_QUERIES or q.shape[:-1].numel() * q.shape[2] > MOST_KEPT:
            return cls(q=q, k=k)
        parts = [_attention(q[n], k[n]) for n in work.some_at_once(torch.arange(len(q)))]
        p, certainty = (torch.cat(part) for part in zip(*parts, strict=True))
        return cls(q=q, k=k, seen=(p, certainty))

    def look(self, numbers: Tensor, queries: slice = blocks.EVERY) -> tuple[Tensor, Tensor]:
        """Attention p (B, n_head, Q, T) and Σ p log p (B, n_head, Q) of some sequences and queries."""
        if self.seen is None:
            return _attention(self.q[numbers], self.k[numbers], queries)
        p, certainty = self.seen
        return p[numbers][:, :, queries], certainty[numbers][:, :, queries]


def _attention(q: Tensor, k: Tensor, queries: slice = blocks.EVERY) -> tuple[Tensor, Tensor]:
    logs = blocks.log_attention(q, k, queries)
    p = logs.exp()
    return p, torch.where(p > 0, p * logs, 0.0).sum(-1)


def attention_divergence(old: OldAttention, block: State, z: Tensor, numbers: Tensor, work: Work) -> Tensor:
    """KL(old attention ‖ new attention) of each head, a mean over the queries of some sequences: (n_head,).

    z (N, T, d) are the new block's normed inputs; `numbers` says which sequences. Of sequences longer than MOST_QUERIES
    every second query is looked at, or every third and so on, other ones in other batches. With the new scores s it is
    `Σ p log p − Σ p s + log Σ exp s`, and `Σ p s` needs no scores: it is q times what p gathers of the keys.
    """
    every = max(1, z.shape[1] // MOST_QUERIES)
    queries = slice(int(numbers.sum()) % every, None, every)
    p, certainty = old.look(numbers, queries)
    q, k = (blocks.heads(block, part, z[numbers], work.spec.n_head, work.tables) for part in "qk")
    q = q[:, :, queries]
    expected = (q * (p @ k)).sum(-1) / math.sqrt(q.shape[-1])  # (B, n_head, Q)
    here = blocks.masked(blocks.scores(q, k), queries).logsumexp(-1)
    weight = work.text.known[numbers][:, None, queries]
    lost = ((certainty - expected + here) * weight).sum((0, 2)) / weight.sum().clamp(min=1)
    return lost + FAR_WEIGHT * _lost_far_away(q, k, here, numbers, work)


def _lost_far_away(q: Tensor, k: Tensor, here: Tensor, numbers: Tensor, work: Work) -> Tensor:
    """What attention to a text past the old context adds to the divergence, where none should be: (n_head,).

    That text is the keys of another sequence, two or more contexts away; a few of them stand for all up to REACH. With
    `here` the logarithm of the sum over the sequence itself, it is `log(1 + exp(there − here))`.
    """
    cos, sin = (table[int(numbers.sum()) % len(table)] for table in work.far)
    q = apply_rope(q[:, :, ::FAR_QUERIES], cos.expand(q.shape[2], -1), sin.expand(q.shape[2], -1))
    others = k.roll(1, dims=0)[:, :, ::FAR_KEYS]
    for_each = math.log((REACH - 1) * k.shape[2] / others.shape[2])
    there = blocks.scores(q, others).logsumexp(-1) + for_each  # (B, n_head, Q / FAR_QUERIES)
    return F.softplus(there - here[:, :, ::FAR_QUERIES]).mean((0, 2))


def stream_error(x: Tensor, target: Tensor, known: Tensor) -> Tensor:
    """Mean square of what is missing in the stream, relative to the target's power; x, target (B, T, d)."""
    weight = known[..., None]
    return ((x - target).square() * weight).sum() / (target.square() * weight).sum().clamp(min=1e-12)


def attention_out(block: State, x: Tensor, z: Tensor, work: Work) -> Tensor:
    """The stream after attention, (B, T, d)."""
    return x + blocks.linear(block, "o", blocks.mixture(block, z, work.spec.n_head, work.tables))


def mlp_out(block: State, x: Tensor, z: Tensor, spec: GPTSpec) -> Tensor:
    """The stream after the MLP, (B, T, d)."""
    return x + blocks.linear(block, "down", blocks.hidden(block, z, spec))


def rates(block: State, share: float) -> dict[str, float]:
    """Learning rates relative to each tensor's root mean square, so that no scale of weights needs another."""
    return {name: share * float(t.square().mean().sqrt()) or share for name, t in block.items()}
