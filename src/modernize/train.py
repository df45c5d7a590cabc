"""Tune: all weights are trained for a few dozen steps to win back the old model's loss.

`finetune` is a generator of events; the bar, the log, the plot and the tests all live on them. When it is done the
model holds the weights of the best validation.
"""

import math
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from modernize.data import IGNORED, Corpus
from modernize.devices import (
    autocast,
    choose_device,
    choose_precision,
    gradient_scaler,
    should_compile,
    transfer,
)
from modernize.errors import BadData, TrainingStopped, UsageError
from modernize.events import Event, Finished, Notice, Settings, Started, Stepped, Validated
from modernize.loading import Model
from modernize.measure import Evaluation, Progress, corpus_for, mean_loss, silent
from modernize.model import ModernGPT
from modernize.objective import Objective
from modernize.old import OldGPT
from modernize.optim import build_optimizers, default_lr
from modernize.tokenizer import Tokenizer

TOKENS_A_STEP = 2048  # of the default batch, and never fewer than FEWEST_WINDOWS windows
FEWEST_WINDOWS = 8


def finetune(
    model: Model,
    data: str | Path | Corpus,
    *,
    teacher: Model | None = None,
    tokenizer: Tokenizer | None = None,
    progress: Progress = silent,
    settings: Settings | None = None,
    **options: object,
) -> Iterator[Event]:
    """Train `model` on the training part of DATA, in place; `options` are fields of Settings.

    The weights of model and teacher become float32 on the chosen device. Yields Started (after Notices, where there is
    something to say), then Stepped and Validated, then Finished. The best validation may be that before the first step.

    Raises:
        TypeError: settings and options together, or an option that is none.
        UsageError, BadData: before any work.
        TrainingStopped: a loss or gradient that is not finite; the model then holds its best weights so far.
    """
    if settings is not None and options:
        raise TypeError(f"give settings or single options, not both: {', '.join(options)}")
    chosen = settings or Settings(**options)  # type: ignore[arg-type]
    chosen.check()
    if not isinstance(model, ModernGPT) or not isinstance(teacher, OldGPT | None):
        raise UsageError(
            "a modern model is fine-tuned, and an old one teaches",
            hint="convert the old model first; the teacher is the old checkpoint, loaded",
        )
    corpus = corpus_for(model, data, tokenizer)
    if teacher is not None and teacher.vocab_size != model.vocab_size:
        raise UsageError(
            f"the teacher knows {teacher.vocab_size} tokens and the model {model.vocab_size}",
            hint="the teacher is the old model that this one was converted from",
        )
    return _Run(model, corpus, teacher, chosen, progress).events()


def default_batch_size(block_size: int) -> int:
    """Windows a step: about TOKENS_A_STEP tokens."""
    return max(FEWEST_WINDOWS, TOKENS_A_STEP // block_size)


def schedule(step: int, steps: int, warmup: int) -> float:
    """Factor of the learning rate at a step, from 0: a linear rise over `warmup` steps, then a linear fall to zero."""
    if step < warmup:
        return (step + 1) / warmup
    return (steps - step) / max(steps - warmup, 1)


class _Run:
    """One fine-tune: what is chosen, what is prepared, and the loop."""

    def __init__(
        self, model: ModernGPT, corpus: Corpus, teacher: OldGPT | None, settings: Settings, progress: Progress
    ) -> None:
        self.settings, self.progress = settings, progress
        block = settings.block_size or model.block_size
        if teacher is not None and block > teacher.block_size:
            raise UsageError(
                f"--block-size {block} is past the teacher's {teacher.block_size} positions",
                hint=f"use --block-size {teacher.block_size}, or no --teacher",
            )
        if not len(corpus.train):
            raise BadData(
                f"{corpus.name} has no training part",
                hint="give a folder with train.bin and val.bin, or a longer text",
            )
        self.train = corpus.windows("train", block, vocab_size=model.vocab_size)
        self.val = corpus.windows("val", model.block_size, vocab_size=model.vocab_size)
        self.device = choose_device(settings.device)
        self.precision = choose_precision(settings.dtype, self.device)
        self.model = model.to(device=self.device, dtype=torch.float32)
        self.teacher = teacher.to(self.device, torch.float32) if teacher is not None else None
        self.batch = settings.batch_size or default_batch_size(block)
        self.warmup = settings.warmup or max(1, settings.steps // 20)
        self.eval_every = settings.eval_every or max(1, settings.steps // 4)
        self.limit = max(1, settings.val_tokens // model.block_size)
        self.objective = Objective(self.model, self.teacher, settings.distill, self.precision)
        if should_compile(settings.compile, self.device):
            self.objective.trunk = torch.compile(self.model.states)
        self.lr = settings.lr
        self.optimizers: list[Optimizer] = []
        self.scaler = gradient_scaler(self.device, self.precision)
        self.random = np.random.default_rng(settings.seed)
        self.tokens, self.seconds = 0, 0.0
        self.best, self.best_state = math.inf, dict[str, Tensor]()

    def events(self) -> Iterator[Event]:
        """The run, event by event."""
        settings = self.settings
        if len(self.val) > self.limit:
            yield Notice(
                text=f"validation uses the first {self.limit * self.val.context:,} tokens of "
                f"{len(self.val) * self.val.context:,} (--val-tokens)"
            )
        first = self._validate(self.model)
        before, old = first.loss, self._validate(self.teacher).loss if self.teacher else None
        self._keep_if_best(before)
        self.lr = settings.lr or default_lr(settings.optimizer, loss=before, old=old)
        self.optimizers = build_optimizers(self.model, settings.optimizer, self.lr, self.device)
        yield Started(
            steps=settings.steps,
            before=before,
            old=old,
            lr=self.lr,
            batch_size=self.batch,
            block_size=self.train.context,
            device=self.device.type,
            dtype=str(self.precision).removeprefix("torch."),
            validation_tokens=first.tokens,
        )
        after = before
        try:
            for step in range(settings.steps):
                yield from self._first_call(step)
                yield self._step(step)
                if (step + 1) % self.eval_every == 0 or step + 1 == settings.steps:
                    after = self._validate(self.model).loss
                    yield Validated(step=step + 1, loss=after, best=self._keep_if_best(after))
        finally:
            self.model.load_state_dict(self.best_state, strict=False)  # a tied head is the embedding, and not in it
        yield Finished(
            steps=settings.steps,
            tokens=self.tokens,
            before=before,
            after=after,
            best=self.best,
            old=old,
            tokens_per_second=self.tokens / max(self.seconds, 1e-9),
            device=self.device.type,
            dtype=str(self.precision).removeprefix("torch."),
            stopped="steps",
        )

    def _first_call(self, step: int) -> Iterator[Notice]:
        """Compile at the first step, with a batch of the real size, and go on without where that fails."""
        if step or self.objective.trunk == self.model.states:
            return
        self.model.rope(self.train.context, self.device)  # made beforehand, so that the graph only reads the tables
        ids = torch.zeros((self.batch, self.train.context), dtype=torch.int64, device=self.device)
        try:
            self.objective(ids, ids).backward()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever the compiler raises, training works without it
            self.objective.trunk = self.model.states
            text = (str(error).splitlines() or [""])[0]
            yield Notice(
                text=f"torch.compile failed ({type(error).__name__}: {text[:120]}); training goes on without it"
            )
        self.model.zero_grad(set_to_none=True)

    def _step(self, step: int) -> Stepped:
        """One update from `grad_accum` batches. Raises TrainingStopped before a bad one."""
        began = time.perf_counter()
        factor = schedule(step, self.settings.steps, self.warmup)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * factor
            optimizer.zero_grad(set_to_none=True)
        batches = [self.train.draw(self.random, self.batch) for _ in range(self.settings.grad_accum)]
        # of the whole step, so that batches with much and with little padding weigh what they hold
        predicted = sum(int((targets != IGNORED).sum()) for _, targets in batches)
        total = torch.zeros((), device=self.device)
        for batch in batches:
            x, y = (transfer(torch.from_numpy(ids), self.device) for ids in batch)  # (B, T)
            loss = self.objective(x, y) / max(predicted, 1)
            self.scaler.scale(loss).backward()
            total += loss.detach()
        mean = total.item()  # the one place where the device is waited for
        self._update(step, mean)
        self.tokens += predicted
        self.seconds += time.perf_counter() - began
        return Stepped(
            step=step + 1,
            loss=mean,
            lr=self.lr * factor,
            tokens=self.tokens,
            tokens_per_second=self.tokens / self.seconds,
            seconds_left=self.seconds / (step + 1) * (self.settings.steps - step - 1),
        )

    def _update(self, step: int, loss: float) -> None:
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.grad_clip).item()
        # a gradient that overflowed in float16 is the scaler's business: it scales down, and nobody steps
        if not math.isfinite(loss) or not (math.isfinite(norm) or self.scaler.is_enabled()):
            raise TrainingStopped(
                f"step {step + 1}: the {'loss' if not math.isfinite(loss) else 'gradient'} is not a finite number",
                hint=f"try a smaller learning rate, --lr {self.lr / 4:g}, or --dtype float32",
            )
        if math.isfinite(norm):
            for optimizer in self.optimizers:
                self.scaler.step(optimizer)
        self.scaler.update()

    def _validate(self, model: ModernGPT | OldGPT) -> Evaluation:
        with autocast(self.device, self.precision):
            return mean_loss(model, self.val, limit=self.limit, progress=self.progress)

    def _keep_if_best(self, loss: float) -> bool:
        """Remember the weights where the loss is the lowest so far; those before the first step whatever it is."""
        if self.best_state and not loss < self.best:
            return False
        self.best = loss if math.isfinite(loss) else math.inf
        self.best_state = {name: tensor.detach().clone() for name, tensor in self.model.to_state().items()}
        return True
