"""Calibrate: text that the old model writes itself, or DATA; candidates made with it, and the best of them.

The candidates are the plain rewrite, the exact moves alone, and the ways to end a retrofit. What is kept is what
predicts held-out calibration text best, so the result is never worse there than `fold` or `reset`.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from modernize.choices import Effort as EffortName
from modernize.data import IGNORED, Corpus, Windows, windows
from modernize.errors import BadTensors
from modernize.loading import Model
from modernize.measure import token_losses, windows_at_once
from modernize.model import ModernGPT
from modernize.old import OldGPT
from modernize.progress import Stages, unseen
from modernize.rewrite.apply import Rewritten, folded, rewrite
from modernize.rewrite.halves import BlockReport
from modernize.rewrite.plan import Plan
from modernize.rewrite.retrofit import retrofit
from modernize.rewrite.work import Effort, Text, Work, tables_of
from modernize.sample import self_text
from modernize.spec import LINEARS, GPTSpec, State

TOKENS = 16384  # to fit to
HELD_OUT = 4  # for each so many sequences that are fitted to, one that judges
FEWEST = 8  # sequences to fit to, at least
EFFORTS: Mapping[EffortName, Effort] = {
    "quick": Effort(
        attention_steps=25, block_steps=0, output_steps=20, attention_rate=0.05, block_rate=0.03, output_rate=0.05
    ),
    "full": Effort(
        attention_steps=100, block_steps=100, output_steps=60, attention_rate=0.03, block_rate=0.03, output_rate=0.05
    ),
}


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A way to convert, and its mean loss in nats on held-out calibration text."""

    name: str
    loss: float


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What a retrofit was made with and how it went. Losses are in nats a token on the held-out `held` of `tokens`."""

    source: str
    effort: EffortName
    tokens: int
    held: int
    loss_old: float
    loss_reset: float
    loss_fold: float
    loss_new: float
    chosen: str
    candidates: tuple[Candidate, ...]
    blocks: tuple[BlockReport, ...]

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return asdict(self)

    def summary(self) -> dict[str, Any]:
        """What the new file's metadata keeps of it."""
        names = ("source", "effort", "tokens", "loss_old", "loss_reset", "loss_fold", "loss_new", "chosen")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """The best candidate: its State in float64 and configuration, the plan that it follows, and the report."""

    made: Rewritten
    plan: Plan
    calibration: Calibration


def text_from_self(model: OldGPT, *, seed: int, progress: Stages) -> Text:
    """Text that the model writes, in sequences of its own context. Deterministic by seed. Raises BadTensors."""
    fitted, held = sequences_of(model.block_size)
    length = model.block_size
    steps = self_text(
        model,
        sequences=fitted + held,
        length=length + 1,
        seed=seed,
        progress=partial(progress, "the old model writes"),
    )
    try:
        rows = torch.stack(list(steps), dim=1)  # (N, T + 1)
    except FloatingPointError as error:
        raise no_prediction() from error
    return _text(rows[:, :-1], rows[:, 1:], fitted, next(model.parameters()).device)


def text_from_data(model: OldGPT, corpus: Corpus, *, seed: int) -> Text:
    """Windows of the training part of DATA, drawn by seed; the last of it, which is not fitted to, judges.

    Raises BadData where there is too little of it.
    """
    fitted, held = sequences_of(model.block_size)
    context, vocab = model.block_size, model.vocab_size
    whole = corpus.windows("train", context, vocab_size=vocab)
    cut = len(whole.ids) - max(len(whole.ids) // (HELD_OUT + 1), 1 if whole.ids.ndim == 2 else context + 1)
    random = np.random.default_rng(seed)
    parts = [
        _drawn(windows(ids, context, vocab_size=vocab, name=f"{corpus.name} ({said})"), random, count)
        for ids, count, said in (
            (whole.ids[: max(cut, 0)], fitted, "training part, for calibration"),
            (whole.ids[max(cut, 0) :], held, "training part, for judging"),
        )
    ]
    fit, judge = parts
    length = max(part[0].shape[1] for part in parts)
    inputs, targets = (
        torch.from_numpy(np.concatenate([_padded(fit[k], length, fill), _padded(judge[k], length, fill)]))
        for k, fill in ((0, 0), (1, IGNORED))
    )
    return _text(inputs, targets, len(fit[0]), next(model.parameters()).device)


def _drawn(of: Windows, random: np.random.Generator, count: int) -> tuple[Any, Any]:
    """Windows that start anywhere; rows without a repetition."""
    if of.ids.ndim == 2:
        return of.take(random.permutation(len(of.ids))[:count])
    return of.draw(random, count)


def _padded(rows: Any, length: int, fill: int) -> Any:  # noqa: ANN401  (arrays of ids)
    return np.pad(rows, ((0, 0), (0, length - rows.shape[1])), constant_values=fill)


def _text(inputs: Tensor, targets: Tensor, fitted: int, device: torch.device) -> Text:
    known = targets != IGNORED
    return Text(ids=inputs.to(device), targets=targets.to(device), known=known.to(device), fitted=fitted)


def sequences_of(context: int) -> tuple[int, int]:
    """How many sequences of a context are fitted to, and how many judge."""
    fitted = max(FEWEST, TOKENS // context)
    return fitted, max(1, fitted // HELD_OUT)


def text_loss(model: Model, text: Text) -> float:
    """Mean loss of a model on held-out text."""
    ids, targets = text.ids[text.fitted :], text.targets[text.fitted :]
    at_once = windows_at_once(ids.shape[1], model.vocab_size, ids.device)
    total = torch.zeros((), dtype=torch.float64)
    with torch.inference_mode():
        for x, y in zip(torch.split(ids, at_once), torch.split(targets, at_once), strict=True):
            total += token_losses(model(x), y).cpu().double().sum()
    return float(total) / max(int(text.known[text.fitted :].sum()), 1)


def calibrate(
    state: State,
    old: OldGPT,
    plan: Plan,
    text: Text,
    *,
    source: str,
    effort: EffortName,
    seed: int,
    loss_old: float,
    progress: Stages = unseen,
) -> Calibrated:
    """Make all candidates of a retrofit, and choose the best.

    state and old are the canonical State and the model of it, on the device of the text; plan says what becomes of
    biases and of a tied head; loss_old is what `old_loss` gives. Raises BadTensors for fits that cannot be solved.
    """
    spec, device = old.spec, text.ids.device
    config = plan.config(spec)
    plans = {"reset": Plan(init="reset", untie=plan.untie, rope_base=plan.rope_base)}
    plans["fold"] = Plan(init="fold", bias=plan.bias, untie=plan.untie, rope_base=plan.rope_base)
    losses = {name: text_loss(_model(rewrite(state, spec, each), device), text) for name, each in plans.items()}
    tables, far = tables_of(text.ids.shape[1], spec.head_dim, plan.rope_base, device)
    work = Work(spec=spec, text=text, tables=tables, far=far, effort=EFFORTS[effort], kept=config.biases, seed=seed)
    try:
        made = retrofit(
            folded(state, spec, plan),
            work,
            tied=config.tied,
            progress=partial(progress, "fitting blocks"),
        )
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        raise BadTensors(
            f"the blocks of the old model cannot be fitted: {error}", hint="--init fold moves what can be moved exactly"
        ) from error
    best = Rewritten(state={name: made.state[name] for name in config.shapes()}, config=config)
    new = text_loss(_model(best, device), text)
    new = new if math.isfinite(new) else math.inf
    candidates = [Candidate(name=name, loss=loss) for name, loss in losses.items()]
    candidates += [Candidate(name=f"retrofit, {name}", loss=loss) for name, loss in made.endings]
    chosen, follows = min(candidates[2:], key=lambda c: c.loss).name, plan
    for name, loss in losses.items():
        if loss < new:
            best, new, chosen, follows = rewrite(state, spec, plans[name]), loss, name, plans[name]
    return Calibrated(
        made=best,
        plan=follows,
        calibration=Calibration(
            source=source,
            effort=effort,
            tokens=int(text.known.sum()),
            held=int(text.known[text.fitted :].sum()),
            loss_old=loss_old,
            loss_reset=losses["reset"],
            loss_fold=losses["fold"],
            loss_new=new,
            chosen=chosen,
            candidates=tuple(candidates),
            blocks=made.blocks,
        ),
    )


def old_loss(old: OldGPT, text: Text) -> float:
    """The old model's `text_loss`. Raises BadTensors where that is no finite number."""
    loss = text_loss(old, text)
    if not math.isfinite(loss):
        raise no_prediction()
    return loss


def no_prediction() -> BadTensors:
    """The error for a model that predicts nothing that could be followed."""
    return BadTensors(
        "the old model's predictions are not finite numbers in float32, so there is nothing to calibrate by",
        hint="check it with modernize eval; --init fold and reset need no predictions",
    )


def tie_harm(state: State, spec: GPTSpec, text: Text, *, loss_old: float) -> float:
    """What a head that stays tied costs by the exact moves alone, in nats on held-out text; see `fold.centre`."""
    tied = folded(state, spec, Plan(init="fold"))
    biases = tuple(part for part in LINEARS if any(name.endswith(f"{part}.bias") for name in tied))
    plain = replace(spec, biases=biases, attn_scale="head")
    return text_loss(old_model(plain, tied, text.ids.device), text) - loss_old


def _model(made: Rewritten, device: torch.device) -> ModernGPT:
    """A candidate as a model in float32."""
    state = {name: tensor.float().to(device) for name, tensor in made.state.items()}
    return ModernGPT.from_state(made.config, state).requires_grad_(False)


def old_model(spec: GPTSpec, state: State, device: torch.device) -> OldGPT:
    """The old model in float32, on a device."""
    return OldGPT.from_state(spec, {name: tensor.float().contiguous().to(device) for name, tensor in state.items()})
