"""Where a block's attention starts from: of turned and unturned bases, and of position fits, the best for each head.

All are judged by the divergence from the old attention on held-out text, head by head.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from modernize.rewrite import block as blocks
from modernize.rewrite import positions
from modernize.rewrite.basis import turn_basis
from modernize.rewrite.local import OldAttention, attention_divergence
from modernize.rewrite.work import TOKENS_A_STEP, Work, moment
from modernize.spec import State

RIDGES = (1e-4, 1e-2)
FITTED_TOKENS = 4096


@dataclass(frozen=True, kw_only=True)
class Start:
    """Queries and keys to begin with; `pairs` of each head carry positions, `explained` is their share of t."""

    block: State  # q and k, with the biases that are kept
    pairs: tuple[int, ...]
    explained: float


def start_attention(old: State, seen: OldAttention, z: Tensor, work: Work, absorb: Callable[[State], State]) -> Start:
    """The best start of each head.

    old is the old block, `seen` what it asks and offers, z (N, T, d) the normed inputs of the new one; `absorb` moves
    biases into weights where they are not kept, and what is left is judged.
    """
    judged = work.held(TOKENS_A_STEP)
    n_head = work.spec.n_head
    chosen: list[_Option] = []
    lost = torch.full((n_head,), torch.inf, device=z.device)
    best: State = {}
    biased: State = {}  # the same before biases were absorbed
    for option in _options(old, seen, z, work):
        block = absorb(option.block)
        divergence = attention_divergence(seen, block, z, judged, work)
        better = divergence < lost
        lost = torch.where(better, divergence, lost)
        best = {
            name: torch.where(_per_row(better, tensor), tensor, best[name]) if best else tensor
            for name, tensor in block.items()
        }
        biased = merge_heads_of(better, option.block, biased) if biased else option.block
        chosen = [option if better[h] or not chosen else chosen[h] for h in range(n_head)]
    return Start(
        block=best,
        pairs=tuple(option.pairs for option in chosen),
        explained=_explained(biased, seen, z, work),
    )


def merge_heads_of(better: Tensor, one: State, other: State) -> State:
    """The heads of `one` where better (n_head,) says so, those of `other` elsewhere."""
    return {name: torch.where(_per_row(better, tensor), tensor, other[name]) for name, tensor in one.items()}


def _per_row(of_heads: Tensor, tensor: Tensor) -> Tensor:
    """(n_head,) as a mask over the rows of a tensor (n_head · head_dim, …)."""
    rows = of_heads.repeat_interleave(tensor.shape[0] // len(of_heads))
    return rows.view(-1, *[1] * (tensor.ndim - 1))


@dataclass(frozen=True, kw_only=True)
class _Option:
    block: State
    pairs: int


def _options(old: State, seen: OldAttention, z: Tensor, work: Work) -> Iterator[_Option]:
    """Unturned and turned; without constants, and with them on a quarter, half or all of the pairs."""
    head_dim = work.spec.head_dim
    zero = torch.zeros_like(old["q.weight"][:, 0])
    q_bias = old.get("q.bias", zero)
    plain = {"q.weight": old["q.weight"], "q.bias": q_bias, "k.weight": old["k.weight"], "k.bias": zero}
    ones = torch.cat([work.known_rows(z), work.known_rows(torch.ones_like(z[..., :1]))], dim=1)  # (n, d + 1)
    q, turned_bias, k, _ = turn_basis(old["q.weight"], q_bias, old["k.weight"], moment(ones), work.spec.n_head)
    turned = {"q.weight": q, "q.bias": turned_bias, "k.weight": k, "k.bias": zero}
    turned = {name: tensor.to(z.dtype) for name, tensor in turned.items()}
    for basis in (plain, turned):
        yield _Option(block=basis, pairs=0)
        normal = _normal(basis, seen, z, work)
        for pairs in sorted({max(1, head_dim // 8), max(1, head_dim // 4), head_dim // 2}):
            for ridge in RIDGES:
                more_q, more_k = positions.pair_biases(positions.fit_pairs(normal, pairs, ridge), head_dim)
                constants = {"q.bias": basis["q.bias"] + more_q.to(z.dtype), "k.bias": more_k.to(z.dtype)}
                yield _Option(block=basis | constants, pairs=pairs)


def _normal(basis: State, seen: OldAttention, z: Tensor, work: Work) -> positions.Normal:
    """Normal equations of the position fit on the first FITTED_TOKENS."""
    count = min(work.text.fitted, max(1, FITTED_TOKENS // z.shape[1]))
    total: positions.Normal | None = None
    for numbers in work.some_at_once(torch.arange(count)):
        p, missing = _missing(basis, seen, z, numbers, work)
        found = positions.normal_equations(p, missing, *work.tables)
        total = positions.Normal(gram=total.gram + found.gram, target=total.target + found.target) if total else found
    assert total is not None  # there is at least one sequence
    return total


def _missing(basis: State, seen: OldAttention, z: Tensor, numbers: Tensor, work: Work) -> tuple[Tensor, Tensor]:
    """Old attention p (B, n_head, T, T), zero for queries that don't count, and what the new score lacks there."""
    old = blocks.scores(seen.q[numbers], seen.k[numbers])
    p = seen.look(numbers)[0] * work.text.known[numbers][:, None, :, None]
    q, k = (blocks.heads(basis, part, z[numbers], work.spec.n_head, work.tables) for part in "qk")
    return p, old - blocks.scores(q, k)


def _explained(best: State, seen: OldAttention, z: Tensor, work: Work) -> float:
    """Share of t that the constants explain on held-out text, a mean over heads; 0 for a head without constants."""
    judged = work.held(TOKENS_A_STEP)
    without = best | {"k.bias": torch.zeros_like(best["k.bias"])}
    p, before = _missing(without, seen, z, judged, work)
    _, after = _missing(best, seen, z, judged, work)
    return float(positions.explained(p, before, after).clamp(0, 1).mean())
