"""The two halves of a block, attention and MLP, each made anew on what the new model makes of the text so far.

Where there is a choice, held-out text decides: each head between its start and its fit, each bias between absorbing and
dropping, each matrix between what it is and its refit. No gradient goes further than half a block.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from modernize.rewrite import block as blocks
from modernize.rewrite import local
from modernize.rewrite.absorb import absorb, direction_of_one, share_absorbed
from modernize.rewrite.attention_start import merge_heads_of, start_attention
from modernize.rewrite.refit import refit, within_reach
from modernize.rewrite.work import Work, moment
from modernize.spec import State

REFIT_RIDGE = 0.1  # of the mean square of an input


@dataclass(frozen=True, kw_only=True)
class BlockReport:
    """How a block went, on held-out text.

    `positions` is the share of t that constants explain, `pairs` carry them in each head; `divergence` is that of
    attention from the old one, summed over heads, at the start and in the end; `absorbed` the R² of every bias that
    went into its weight; `missing` the share of the old stream's power that is missed after it, positions apart.
    """

    positions: float
    pairs: tuple[int, ...]
    divergence_start: float
    divergence: float
    absorbed: Mapping[str, float]
    missing: float


@dataclass(frozen=True, kw_only=True)
class Streams:
    """The residual streams of the old and the new model on the text, each (N, T, d)."""

    old: Tensor
    new: Tensor


def retrofit_attention(old: State, streams: Streams, work: Work) -> tuple[State, Streams, BlockReport]:
    """The new block's q, k, v, o, and the streams after attention. `old` is the folded block."""
    spec, effort = work.spec, work.effort
    z_old, z = blocks.normed(streams.old, spec.norm_eps), blocks.normed(streams.new, spec.norm_eps)
    seen = local.OldAttention.of(old, z_old, work)
    absorption = Absorption.of(z, work)
    start = start_attention(old, seen, z, work, lambda block: absorption.into(block, ("q", "k"))[0])
    fitted = local.minimise(
        start.block,
        lambda block, n: local.attention_divergence(seen, block, z, n, work).sum(),
        lr=local.rates(start.block, effort.attention_rate),
        steps=effort.attention_steps,
        work=work,
    )
    lost = [_held_divergence(seen, block, z, work) for block in (start.block, fitted)]
    queries = merge_heads_of(lost[1] < lost[0], fitted, start.block)
    after = streams.old + blocks.linear(old, "o", blocks.mixture(old, z_old, spec.n_head))
    new = queries | {"v.weight": old["v.weight"]}
    mixed = blocks.mixture(new, z, spec.n_head, work.tables)
    written, absorbed = _writer(old, "o", mixed, Streams(old=after, new=streams.new), work)
    new |= written
    if effort.block_steps:
        new = _fit(new, streams.new, z, after, work)
        mixed = blocks.mixture(new, z, spec.n_head, work.tables)
    report = BlockReport(
        positions=start.explained,
        pairs=start.pairs,
        divergence_start=float(lost[0].sum()),
        divergence=float(torch.minimum(*lost).sum()),
        absorbed={part: absorption.share for part in "qk" if f"{part}.bias" not in queries} | absorbed,
        missing=1.0,
    )
    return new, Streams(old=after, new=streams.new + blocks.linear(new, "o", mixed)), report


def retrofit_mlp(
    old: State, streams: Streams, work: Work, *, shift: Tensor | None = None
) -> tuple[State, Streams, dict[str, float]]:
    """The new block's up and down, and the streams after the MLP; R² of the biases that were absorbed.

    `shift` (d,), in units of the stream's root mean square, is added to what the last block should write.
    """
    spec = work.spec
    z_old, z = blocks.normed(streams.old, spec.norm_eps), blocks.normed(streams.new, spec.norm_eps)
    after = streams.old + blocks.linear(old, "down", blocks.hidden(old, z_old, spec))
    own = {name: tensor for name, tensor in old.items() if name.startswith(("up", "down"))}
    target = after
    if shift is not None:
        more = shift * work.known_rows(after).square().mean(-1).sqrt().mean()
        target = after + more
        own["down.bias"] = own.get("down.bias", torch.zeros_like(shift)) + more
    up, absorbed = Absorption.of(z, work).into({n: t for n, t in own.items() if n.startswith("up")}, ("up",))
    hidden = blocks.hidden(up, z, spec)
    written, more_absorbed = _writer(own, "down", hidden, Streams(old=target, new=streams.new), work)
    new = up | written
    if work.effort.block_steps:
        new = _fit(new, streams.new, z, target, work)
        hidden = blocks.hidden(new, z, spec)
    out = streams.new + blocks.linear(new, "down", hidden)
    return new, Streams(old=after, new=out), absorbed | more_absorbed


def missing_share(streams: Streams, work: Work) -> float:
    """Share of the old stream's power that the new one misses on held-out text, positions apart."""
    held = work.held()
    target = within_reach(streams.old, streams.new, work.text.known)
    return float(local.stream_error(streams.new[held], target[held], work.text.known[held]))


def _held_divergence(seen: local.OldAttention, block: State, z: Tensor, work: Work) -> Tensor:
    """`attention_divergence` over all held-out sequences, (n_head,), some at a time."""
    parts = work.some_at_once(work.held())
    weights = torch.stack([work.text.known[n].sum() for n in parts]).double()
    lost = torch.stack([local.attention_divergence(seen, block, z, n, work) for n in parts]).double()
    return torch.einsum("p,ph->h", weights / weights.sum().clamp(min=1), lost)


@dataclass(frozen=True, kw_only=True)
class Absorption:
    """The second moment of inputs z, their direction w, and how nearly wᵀz is one on held-out text (R²)."""

    moment: Tensor
    direction: Tensor
    share: float
    kept: tuple[str, ...]

    @classmethod
    def of(cls, z: Tensor, work: Work) -> "Absorption":
        """For inputs z (N, T, in)."""
        rows = work.known_rows(z)
        within = moment(rows)
        direction = direction_of_one(within, rows.mean(0, dtype=torch.float64))
        return cls(
            moment=within, direction=direction, share=share_absorbed(work.held_rows(z), direction), kept=work.kept
        )

    def into(self, block: State, parts: tuple[str, ...]) -> tuple[State, dict[str, float]]:
        """Biases of these parts, which all read z, go into their weights, and what share of each.

        They are dropped where that would be as good, and stay where they are kept.
        """
        new, absorbed = dict(block), dict[str, float]()
        for part in parts:
            if part in self.kept or f"{part}.bias" not in block:
                continue
            bias, weight = new.pop(f"{part}.bias"), block[f"{part}.weight"]
            absorbed[part] = self.share
            if self.share > 0:
                new[f"{part}.weight"] = absorb(weight.double(), bias.double(), self.direction).to(weight.dtype)
        return new, absorbed


def _writer(old: State, part: str, z: Tensor, streams: Streams, work: Work) -> tuple[State, dict[str, float]]:
    """`o` or `down` with its bias absorbed, refitted where held-out text agrees, and R² of the absorption.

    z (N, T, in) are its inputs; it should bring the new stream from where it is to where the old one is after it.
    """
    own = {name: tensor for name, tensor in old.items() if name.split(".")[0] == part}
    absorption = Absorption.of(z, work)
    plain, absorbed = absorption.into(own, (part,))
    rows, out = work.known_rows(z), streams.new + blocks.linear(plain, part, z)
    target = within_reach(streams.old, out, work.text.known)
    cross = (work.known_rows(target - out).T @ rows).double() / max(len(rows), 1)
    better = refit(plain[f"{part}.weight"].double(), absorption.moment, cross, REFIT_RIDGE).to(z.dtype)
    refitted = plain | {f"{part}.weight": better}
    held = work.held()
    errors = [
        local.stream_error(
            streams.new[held] + blocks.linear(option, part, z[held]), target[held], work.text.known[held]
        )
        for option in (plain, refitted)
    ]
    return (refitted if errors[1] < errors[0] else plain), absorbed


def _fit(new: State, x: Tensor, z: Tensor, wanted: Tensor, work: Work) -> State:
    """Half a block, all of its tensors, fitted to the wanted stream; as it was where held-out text says so."""

    def out(block: State, n: Tensor) -> Tensor:
        if "q.weight" in new:
            return local.attention_out(block, x[n], z[n], work)
        return local.mlp_out(block, x[n], z[n], work.spec)

    known, held = work.text.known, work.held()
    target = within_reach(wanted, out(new, torch.arange(len(x))), known)
    fitted = local.minimise(
        new,
        lambda block, n: local.stream_error(out(block, n), target[n], known[n]),
        lr=local.rates(new, work.effort.block_rate),
        steps=work.effort.block_steps,
        work=work,
    )
    errors = [local.stream_error(out(block, held), target[held], known[held]) for block in (new, fitted)]
    return fitted if errors[1] < errors[0] else new
