"""Retrofit: from a folded State, block by block, to a modern one without positions and biases.

The streams of both models are carried forward, so every activation is computed once for each block, and none is kept
longer than its block.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from modernize.progress import Progress
from modernize.rewrite import block as blocks
from modernize.rewrite.halves import BlockReport, Streams, missing_share, retrofit_attention, retrofit_mlp
from modernize.rewrite.output import Ending, Head, endings
from modernize.rewrite.work import Work
from modernize.spec import State


@dataclass(frozen=True, kw_only=True)
class Retrofitted:
    """A modern State, how each block went, and the name and held-out loss of every ending that was tried."""

    state: State
    blocks: tuple[BlockReport, ...]
    endings: tuple[tuple[str, float], ...]


@torch.no_grad()
def retrofit(folded: State, work: Work, *, tied: bool, progress: Progress) -> Retrofitted:
    """The modern State, in float64, that does most nearly what the folded old one did.

    `folded` has had the exact moves, and still has its position table and biases; computed in float32 on the device of
    the text. Raises nothing of its own.
    """
    spec, ids = work.spec, work.text.ids
    wte, wpe = _here(folded["wte.weight"], ids), _here(folded["wpe.weight"], ids)
    streams = Streams(old=wte[ids] + wpe[: ids.shape[1]], new=wte[ids])  # (N, T, d) each
    ones = torch.ones(spec.n_embd, dtype=torch.float64)
    state: State = {"wte.weight": folded["wte.weight"]}
    reports: list[BlockReport] = []
    tried: list[Ending] = []
    for i in range(spec.n_layer):
        old = {name: _here(tensor, ids) for name, tensor in blocks.block_of(folded, i).items()}
        new, middle, report = retrofit_attention(old, streams, work)
        if i + 1 < spec.n_layer:
            mlp, streams, absorbed = retrofit_mlp(old, middle, work)
        else:
            tried = list(endings(old, _head(folded, ids, tied=tied), middle, work, tied=tied))
            best = min(tried, key=lambda ending: ending.loss)
            mlp, streams, absorbed = best.mlp, best.streams, best.absorbed
            state["norm_f.gain"] = _away(best.head.gain)
            if not tied:
                state["head.weight"] = _away(best.head.weight)
            if best.head.bias is not None:
                state["head.bias"] = _away(best.head.bias)
        whole = {name: _away(tensor) for name, tensor in (new | mlp).items()}
        state |= blocks.as_state(whole, i) | {f"h.{i}.norm_1.gain": ones, f"h.{i}.norm_2.gain": ones}
        reports.append(replace(report, absorbed={**report.absorbed, **absorbed}, missing=missing_share(streams, work)))
        progress(i + 1, spec.n_layer)
    return Retrofitted(state=state, blocks=tuple(reports), endings=tuple((e.name, e.loss) for e in tried))


def _head(folded: State, ids: Tensor, *, tied: bool) -> Head:
    """The old head: a tied one reads with the embedding and keeps its gain."""
    bias = folded.get("head.bias")
    return Head(
        gain=_here(folded["ln_f.weight"], ids),
        weight=_here(folded["wte.weight" if tied else "head.weight"], ids),
        bias=None if bias is None else _here(bias, ids),
    )


def _here(tensor: Tensor, beside: Tensor) -> Tensor:
    """In float32 on the device of another."""
    return tensor.to(beside.device, torch.float32)


def _away(tensor: Tensor) -> Tensor:
    """In float64 on the CPU, where everything else of a conversion is."""
    return tensor.cpu().double()
