"""Measure: the loss of a model, two models side by side, and what happens past the trained context.

Losses are mean cross-entropies in nats per predicted token, over windows that don't overlap.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from modernize.choices import Split
from modernize.data import IGNORED, Corpus, Windows, load_corpus
from modernize.errors import UsageError
from modernize.loading import Model
from modernize.old import OldGPT
from modernize.progress import Progress, silent
from modernize.tokenizer import Tokenizer, find_tokenizer

LOGITS_AT_ONCE = {"cpu": 1 << 24}  # numbers, 64 MB in float32
LOGITS_AT_ONCE_ELSEWHERE = 1 << 27  # 512 MB, a few windows of GPT-2's: one alone would leave a GPU waiting for work
BUCKETS = 8  # ranges of positions that a comparison tells apart
MULTIPLES = (2, 4)  # of the trained context, past which a comparison looks


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Mean loss in nats over `tokens` predicted tokens, in windows of `context`."""

    loss: float
    tokens: int
    context: int

    @property
    def perplexity(self) -> float:
        """exp(loss), or infinity where that is too large."""
        return math.exp(self.loss) if self.loss < 700 else math.inf

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            "loss": self.loss,
            "perplexity": self.perplexity,
            "tokens": self.tokens,
            "context": self.context,
        }


@dataclass(frozen=True, kw_only=True)
class PositionRange:
    """Losses of the predictions at positions `start` up to `end`, exclusive, within a window."""

    start: int
    end: int
    old: float
    new: float


@dataclass(frozen=True, kw_only=True)
class ContextLoss:
    """Losses in windows of one context; `old` is None past the old model's position table."""

    context: int
    old: float | None
    new: float


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two models on the same tokens. `kl` is the mean of KL(old ‖ new) in nats, `top1_agreement` the share of places
    where both think the same token most likely.
    """

    old: Evaluation
    new: Evaluation
    kl: float
    top1_agreement: float
    parameters_old: int
    parameters_new: int
    by_position: tuple[PositionRange, ...]
    beyond_context: tuple[ContextLoss, ...]

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            "loss": {"old": self.old.loss, "new": self.new.loss},
            "tokens": self.new.tokens,
            "context": self.new.context,
            "kl": self.kl,
            "top1_agreement": self.top1_agreement,
            "parameters": {"old": self.parameters_old, "new": self.parameters_new},
            "by_position": [vars(row) for row in self.by_position],
            "beyond_context": [vars(row) for row in self.beyond_context],
        }


def evaluate(
    model: Model,
    data: str | Path | Corpus,
    *,
    context: int = 0,
    split: Split = "val",
    tokenizer: Tokenizer | None = None,
    progress: Progress = silent,
) -> Evaluation:
    """The loss of a model on DATA, in windows of `context` (0: its trained context).

    Raises BadData for data that does not fit the model, UsageError for a context past an old model's table.
    """
    corpus = corpus_for(model, data, tokenizer)
    context = context or model.block_size
    check_context(model, context)
    ids = corpus.windows(split, context, vocab_size=model.vocab_size)
    return mean_loss(model, ids, progress=progress)


def compare(
    old: Model,
    new: Model,
    data: str | Path | Corpus,
    *,
    tokenizer: Tokenizer | None = None,
    progress: Progress = silent,
) -> Comparison:
    """Both models on the validation part of DATA, in windows of the old model's context, and past it.

    Raises BadData for data that does not fit, UsageError for models of different vocabularies.
    """
    check_comparable(old, new)
    corpus = corpus_for(new, data, tokenizer)
    context = min(old.block_size, longest(new, old.block_size))
    ids = corpus.windows("val", context, vocab_size=new.vocab_size)
    sums = _side_by_side(old, new, ids, progress)
    return Comparison(
        old=Evaluation(loss=_mean(sums.old, sums.count), tokens=int(sums.count.sum()), context=context),
        new=Evaluation(loss=_mean(sums.new, sums.count), tokens=int(sums.count.sum()), context=context),
        kl=_mean(sums.kl, sums.count),
        top1_agreement=_mean(sums.agree, sums.count),
        parameters_old=parameters(old),
        parameters_new=parameters(new),
        by_position=_by_position(sums, context),
        beyond_context=(
            ContextLoss(context=context, old=_mean(sums.old, sums.count), new=_mean(sums.new, sums.count)),
            *_beyond(old, new, corpus, context),
        ),
    )


def corpus_for(model: Model, data: str | Path | Corpus, tokenizer: Tokenizer | None) -> Corpus:
    """DATA as a Corpus; without a tokenizer, text is read as bytes by a model that knows 256 tokens. Raises BadData."""
    if isinstance(data, Corpus):
        return data

    def chosen() -> Tokenizer:
        return tokenizer or find_tokenizer(None, vocabulary={}, beside=Path("the model"), vocab_size=model.vocab_size)

    return load_corpus(data, tokenizer=chosen, vocab_size=model.vocab_size)


def longest(model: Model, wanted: int) -> int:
    """The context that a model can read, at most `wanted`."""
    return min(wanted, model.block_size) if isinstance(model, OldGPT) else wanted


def check_context(model: Model, context: int) -> None:
    """Raise UsageError for a context that an old model has no positions for."""
    if context < 1:
        raise UsageError(f"--context {context} is below 1", hint="leave it out for the trained context")
    if longest(model, context) < context:
        raise UsageError(
            f"--context {context}: the old model has positions 1 to {model.block_size}",
            hint="convert it: a modern model reads any context",
        )


def check_comparable(old: Model, new: Model) -> None:
    """Raise UsageError for models of different vocabularies."""
    if old.vocab_size != new.vocab_size:
        raise UsageError(
            f"the models know {old.vocab_size} and {new.vocab_size} tokens, so they cannot be compared",
            hint="compare a model with what it was converted into",
        )


def parameters(model: Model) -> int:
    """Number of parameters, a tied head counted once."""
    return sum(p.numel() for p in model.parameters())


def doubts_of(loss: float, vocab_size: int) -> tuple[str, ...]:
    """A warning about DATA that a trained model predicts worse than one that takes every token to be as likely."""
    chance = math.log(vocab_size)
    if not loss > chance:
        return ()
    return (
        f"a loss of {loss:.4f} is worse than chance, {chance:.4f}: was DATA made by the tokenizer of this model "
        "(--tokenizer, --data-dtype)?",
    )


def windows_at_once(context: int, vocab_size: int, device: torch.device) -> int:
    """Windows whose logits fit into memory at once."""
    return max(1, LOGITS_AT_ONCE.get(device.type, LOGITS_AT_ONCE_ELSEWHERE) // (context * vocab_size))


def batch_size(ids: Windows, device: torch.device) -> int:
    """Windows that are looked at together."""
    return min(256, windows_at_once(ids.context, ids.vocab_size, device))


def mean_loss(
    model: Callable[[Tensor], Tensor],
    ids: Windows,
    *,
    limit: int = 0,
    device: torch.device | None = None,
    progress: Progress = silent,
) -> Evaluation:
    """Mean loss over all windows, or the first `limit`, of a model, or of what gives logits on a device."""
    device = next(model.parameters()).device if isinstance(model, nn.Module) else device or torch.device("cpu")
    total, tokens, done = 0.0, 0, 0
    count = min(len(ids), limit) if limit else len(ids)
    with torch.no_grad():  # not inference mode, whose tensors a sharded model cannot train with afterwards
        for inputs, targets in ids.batches(batch_size(ids, device), limit=limit):
            y = torch.from_numpy(targets).to(device)  # (B, T)
            losses = token_losses(model(torch.from_numpy(inputs).to(device)), y)  # (B, T)
            total += losses.cpu().double().sum().item()  # on the CPU, since MPS has no float64
            tokens += int((targets != IGNORED).sum())
            done += len(inputs)
            progress(done, count)
    return Evaluation(loss=total / max(tokens, 1), tokens=tokens, context=ids.context)


def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of each place, (B, T, vocab) and (B, T) -> (B, T); zero where nothing is predicted."""
    wide = logits.flatten(0, 1) if logits.dtype == torch.float64 else logits.flatten(0, 1).float()
    flat = F.cross_entropy(wide, targets.flatten(), ignore_index=IGNORED, reduction="none")
    return flat.view_as(targets)


def divergence(old: Tensor, new: Tensor) -> Tensor:
    """KL(old ‖ new) = Σ p_old (log p_old − log p_new) in nats, from log-probabilities (B, T, vocab) to (B, T)."""
    likely = old.exp()
    # products and sums in one go, so that nothing of the size of the logits is kept for them
    return torch.einsum("btv,btv->bt", likely, old) - torch.einsum("btv,btv->bt", likely, new)


# ---------------------------------------------------------------------------------------------- side by side


@dataclass(frozen=True, kw_only=True)
class _Sums:
    """Sums over windows, one number per position, each (T,)."""

    old: Tensor
    new: Tensor
    kl: Tensor
    agree: Tensor
    count: Tensor


def _side_by_side(old: Model, new: Model, ids: Windows, progress: Progress) -> _Sums:
    device = next(new.parameters()).device
    sums = {name: torch.zeros(ids.context, dtype=torch.float64) for name in ("old", "new", "kl", "agree", "count")}
    done = 0
    with torch.inference_mode():
        for inputs, targets in ids.batches(max(1, batch_size(ids, device) // 2)):
            x, y = torch.from_numpy(inputs).to(device), torch.from_numpy(targets).to(device)  # (B, T)
            a, b = old(x).float(), new(x).float()  # (B, T, vocab)
            log_a, log_b = a.log_softmax(-1), b.log_softmax(-1)
            known = y != IGNORED
            found = {
                "old": token_losses(a, y),
                "new": token_losses(b, y),
                "kl": divergence(log_a, log_b) * known,
                "agree": (a.argmax(-1) == b.argmax(-1)) & known,
                "count": known,
            }
            for name, values in found.items():
                sums[name][: values.shape[1]] += values.float().sum(0).cpu().double()
            done += len(inputs)
            progress(done, len(ids))
    return _Sums(**sums)


def _mean(values: Tensor, count: Tensor) -> float:
    return float(values.sum() / count.sum().clamp(min=1))


def _by_position(sums: _Sums, context: int) -> tuple[PositionRange, ...]:
    edges = np.unique(np.linspace(0, context, min(BUCKETS, context) + 1).round().astype(int))
    rows = []
    for start, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        count = sums.count[start:end]
        if count.sum():
            old, new = _mean(sums.old[start:end], count), _mean(sums.new[start:end], count)
            rows.append(PositionRange(start=start, end=end, old=old, new=new))
    return tuple(rows)


def _beyond(old: Model, new: Model, corpus: Corpus, context: int) -> Sequence[ContextLoss]:
    """Losses at multiples of the context, as far as the data and the models reach."""
    rows = []
    for multiple in MULTIPLES:
        wide = context * multiple
        if longest(new, wide) < wide or corpus.val.ndim == 2 or len(corpus.val) <= wide:
            break
        ids = corpus.windows("val", wide, vocab_size=new.vocab_size)
        rows.append(
            ContextLoss(
                context=wide,
                old=mean_loss(old, ids).loss if longest(old, wide) == wide else None,
                new=mean_loss(new, ids).loss,
            )
        )
    return rows
