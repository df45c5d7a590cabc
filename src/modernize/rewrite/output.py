"""How the new model ends: the last MLP, the final gain and the head, made so that held-out text is predicted best.

Endings are tried from plain to fitted, and each one says its loss.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from modernize.rewrite import block as blocks
from modernize.rewrite import local
from modernize.rewrite.absorb import stream_shift
from modernize.rewrite.halves import Absorption, Streams, retrofit_mlp
from modernize.rewrite.refit import refit, within_reach
from modernize.rewrite.work import Work, moment
from modernize.spec import State

HEAD_RIDGE = 1e-3  # of the mean square of an input
GAIN_RATE = 0.01  # of the gain's root mean square
MOST_LOGITS = 1 << 25  # numbers at once


@dataclass(frozen=True, kw_only=True)
class Head:
    """A final gain (d,), the matrix that reads it, (vocab, d), and perhaps a bias, (vocab,)."""

    gain: Tensor
    weight: Tensor
    bias: Tensor | None

    def logits(self, x: Tensor, eps: float) -> Tensor:
        """Of final states, (…, d) -> (…, vocab)."""
        return F.linear(blocks.normed(x, eps) * self.gain, self.weight, self.bias)


@dataclass(frozen=True, kw_only=True)
class Ending:
    """One way to end: up and down of the last block, the head, what was absorbed, the final streams, and the loss on
    held-out text.
    """

    name: str
    mlp: State
    head: Head
    absorbed: dict[str, float]
    streams: Streams
    loss: float


def endings(old: State, old_head: Head, streams: Streams, work: Work, *, tied: bool) -> Iterator[Ending]:
    """Ways to end, each from the best before it.

    old is the last folded block, streams are those after its attention.
    """
    keep = old_head.bias is not None and "head" in work.kept
    head = old_head if keep else replace(old_head, bias=None)
    mlp, after, absorbed = retrofit_mlp(old, streams, work)
    found = [_judged("blocks", mlp, head, after, work, absorbed=absorbed)]
    yield found[0]
    if tied and old_head.bias is not None and not keep:
        shift = stream_shift(old_head.weight, old_head.gain, old_head.bias).to(after.new.dtype)
        mlp, shifted, absorbed = retrofit_mlp(old, streams, work, shift=shift)
        found.append(_judged("final shift", mlp, head, shifted, work, absorbed=absorbed))
        yield found[-1]
    best = _best(found)
    if not tied:
        for ending in _untied(best, old_head, work):
            found.append(ending)
            yield ending
        best = _best(found)
    if work.effort.output_steps:
        yield _fit_output(best, old_head, streams, work, tied=tied)


def _best(found: list[Ending]) -> Ending:
    return min(found, key=lambda ending: ending.loss)


def _judged(name: str, mlp: State, head: Head, streams: Streams, work: Work, *, absorbed: dict[str, float]) -> Ending:
    loss = held_loss(head, streams.new, work)
    return Ending(name=name, mlp=mlp, head=head, absorbed=absorbed, streams=streams, loss=loss)


def held_loss(head: Head, x: Tensor, work: Work) -> float:
    """Mean cross-entropy of a head on final states x (N, T, d) of held-out text; infinite where it is no number."""
    total, count = 0.0, 0
    for n in work.some_at_once(work.held(), most=sequences_at_once(x, head)):
        known = work.text.known[n]
        logits = head.logits(x[n][known], work.spec.norm_eps)  # (places, vocab)
        total += float(F.cross_entropy(logits, work.text.targets[n][known], reduction="sum"))
        count += int(known.sum())
    loss = total / max(count, 1)
    return loss if math.isfinite(loss) else math.inf


def sequences_at_once(x: Tensor, head: Head) -> int:
    """Sequences whose logits are not too many at once."""
    return max(1, MOST_LOGITS // (x.shape[1] * len(head.weight)))


def _untied(best: Ending, old_head: Head, work: Work) -> Iterator[Ending]:
    """A head of its own takes its bias in, and is refitted to the old logits."""
    z = blocks.normed(best.streams.new, work.spec.norm_eps)
    absorbed = dict(best.absorbed)
    head = best.head
    if old_head.bias is not None and head.bias is None:
        both = {"head.weight": old_head.weight, "head.bias": old_head.bias}
        taken, shares = Absorption.of(z, work).into(both, ("head",))
        absorbed |= shares
        head = replace(head, weight=taken["head.weight"])
        yield _judged("head bias", best.mlp, head, best.streams, work, absorbed=absorbed)
    weight = _refit_head(head, old_head, best.streams, work)
    yield _judged("head refit", best.mlp, replace(head, weight=weight), best.streams, work, absorbed=absorbed)


def _refit_head(head: Head, old_head: Head, streams: Streams, work: Work) -> Tensor:
    """Least squares of the old logits, each row centred, from the new final states: (vocab, d).

    Both sides are linear in the states, so no logits are needed: with r = Wo zo + bo − W z, each matrix centred over
    the vocabulary, `E[r zᵀ] = Wo E[zo zᵀ] + bo E[z]ᵀ − W E[z zᵀ]`.
    """
    eps = work.spec.norm_eps
    present, wanted_state = (
        blocks.normed(x, eps) * gain for x, gain in ((streams.new, head.gain), (streams.old, old_head.gain))
    )
    z = work.known_rows(present)
    z_old = work.known_rows(within_reach(wanted_state, present, work.text.known))
    across = (z_old.T @ z).double() / max(len(z), 1)
    weight, wanted = head.weight.double(), old_head.weight.double()
    within = moment(z)
    cross = (wanted - wanted.mean(0)) @ across - (weight - weight.mean(0)) @ within
    if old_head.bias is not None:
        bias = old_head.bias.double() - (head.bias.double() if head.bias is not None else 0)
        cross = cross + torch.outer(bias - bias.mean(), z.mean(0, dtype=torch.float64))
    return refit(weight, within, cross, HEAD_RIDGE).to(head.weight.dtype)


def _fit_output(best: Ending, old_head: Head, streams: Streams, work: Work, *, tied: bool) -> Ending:
    """The last MLP and, where the head is tied, the final gain, fitted to the old model's prediction.

    KL(old ‖ new) of the prediction; nothing flows back beyond this MLP.
    """
    spec, effort = work.spec, work.effort
    x, z = streams.new, blocks.normed(streams.new, spec.norm_eps)
    start = best.mlp | ({"gain": best.head.gain} if tied else {})
    rates = local.rates(best.mlp, effort.output_rate) | ({"gain": GAIN_RATE} if tied else {})

    def parts(parameters: State) -> tuple[State, Head]:
        mlp = {name: tensor for name, tensor in parameters.items() if name != "gain"}
        return mlp, replace(best.head, gain=parameters.get("gain", best.head.gain))

    def loss(parameters: State, n: Tensor) -> Tensor:
        mlp, head = parts(parameters)
        known = work.text.known[n]
        old = old_head.logits(best.streams.old[n][known], spec.norm_eps).log_softmax(-1)  # (places, vocab)
        new = head.logits(local.mlp_out(mlp, x[n], z[n], spec)[known], spec.norm_eps).log_softmax(-1)
        return F.kl_div(new, old, reduction="batchmean", log_target=True)

    fitted = local.minimise(
        start,
        loss,
        lr=rates,
        steps=effort.output_steps,
        work=work,
        most=sequences_at_once(x, best.head),
    )
    mlp, head = parts(fitted)
    after = Streams(old=best.streams.old, new=local.mlp_out(mlp, x, z, spec))
    return _judged("output fit", mlp, head, after, work, absorbed=best.absorbed)
