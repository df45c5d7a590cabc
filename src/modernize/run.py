"""The loop of a fine-tune, as a stream of events, and everything that it depends on, so that it can stop and go on."""

import contextlib
import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from modernize.data import IGNORED, Corpus
from modernize.devices import (
    autocast,
    choose_device,
    choose_precision,
    emulates,
    fast_products,
    gradient_scaler,
    should_compile,
    transfer,
)
from modernize.errors import OneProcess, TrainingStopped, UsageError
from modernize.events import Event, Finished, Notice, Saved, Settings, Started, Stepped, Stopped, Validated
from modernize.feed import Feed
from modernize.measure import mean_loss
from modernize.memory import is_out_of_memory, too_large
from modernize.model import ModernGPT
from modernize.objective import Objective
from modernize.old import OldGPT
from modernize.optim import build_optimizers, pack_optimizers, schedule, unpack_optimizers
from modernize.parallel import fill, is_cut, like, norm_of, spread, together, whole
from modernize.recipe import choose_recipe
from modernize.spec import State
from modernize.surroundings import Surroundings

LOOKS, MOST_LOOKS = 8, 256  # places for each number of the old width, in at most so many batches
MOST_SKIPPED = 30  # in a row; a scale that was only too large is found in fewer
# of a run, as it is saved
_COUNTED = ("done", "tokens", "seconds", "skipped", "lr", "before", "old", "after", "best", "reached", "best_reached")


class Run:
    """One fine-tune, of settings that fit each other and in which batch and block size are chosen."""

    def __init__(
        self, model: ModernGPT, corpus: Corpus, teacher: OldGPT | None, settings: Settings, around: Surroundings
    ) -> None:
        self.settings, self.around = settings, around
        self.feed = Feed.of(corpus, settings, vocab_size=model.vocab_size, processes=around.world.size)
        self.val = corpus.windows("val", model.block_size, vocab_size=model.vocab_size)
        self.device = choose_device(settings.device)
        self.bfloat16 = around.world.bfloat16(self.device)
        self.precision = choose_precision(settings.dtype, self.device, model.config.n_embd, bfloat16=self.bfloat16)
        # what is cut up goes to the device a block at a time, and never whole
        cut = settings.shard and around.world.size > 1
        self.model = model.to(device="cpu" if cut else self.device, dtype=torch.float32)
        self.model.recompute = settings.activation_checkpointing
        self.teacher = teacher.as_teacher(self.device, self.precision) if teacher is not None else None
        self.warmup = settings.warmup or max(1, settings.steps // 20)
        checks = 20 if settings.until_recovered else 4
        self.eval_every = settings.eval_every or max(1, settings.steps // checks)
        self.limit = max(1, settings.val_tokens // model.block_size)
        self.objective = Objective(self.model, self.teacher, self.precision)
        self.spread = spread(self.objective, self.model, around.world, self.device, shard=cut)
        self.scaler = gradient_scaler(self.device, self.precision)
        self.optimizers: list[Optimizer] = []
        self.lr = settings.lr
        self.done, self.tokens, self.seconds, self.skipped = 0, 0, 0.0, 0
        self.saved = -1  # the step after which the run was saved last
        self.before = self.after = self.best = math.inf
        self.old: float | None = None
        self.best_state: State = {}
        self.reached = self.best_reached = 0  # tokens of the longest window so far, and when the loss was best

    def events(self) -> Iterator[Event]:
        """The run, event by event."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(fast_products(self.device))
            try:
                yield from self._begin()
                stack.callback(self._give_best)
                stopped = yield from self._train()
            except RuntimeError as error:
                if is_out_of_memory(error):
                    raise too_large(self.settings, self.device, self.around.world.size) from error
                raise
        yield self._finished(stopped)

    def _train(self) -> Generator[Event, None, Stopped]:
        """Steps, validations and saves; gives why it stopped."""
        if self._recovered():
            return "recovered"
        if should_compile(self.settings.compile, self.device) and self.done < self.settings.steps:
            yield from self._compile()
        while self.done < self.settings.steps:
            if self.around.world.any(self.around.stop(), self.device):
                if self.saved != self.done:
                    yield from self._save()
                return "interrupted"
            yield self._step()
            if self.done % self.eval_every == 0 or self.done == self.settings.steps:
                yield self._validated()
                if self._recovered():
                    return "recovered"
            every = self.settings.checkpoint_every
            if every and self.done % every == 0 and self.done < self.settings.steps:
                yield from self._save()
        return "steps"

    def _begin(self) -> Iterator[Event]:
        """Look at the losses and choose the learning rate; or take all of it from a run that was saved."""
        if emulates(self.device, self.precision):
            yield Notice(
                text=f"--dtype {self.settings.dtype}: this {self.device.type} has no instructions for that precision "
                "and emulates it; --dtype float32 is faster, often many times"
            )
        if len(self.val) > self.limit:
            yield Notice(
                text=f"validation uses the first {self.limit * self.val.context:,} tokens of "
                f"{len(self.val) * self.val.context:,} (--val-tokens)"
            )
        keeper = self.around.keeper
        saved = keeper.load() if keeper and self.around.resume else None
        done = saved[1]["done"] if saved else -1
        if self.around.world.any(self.around.world.agree(done, self.device) != done, self.device):
            raise UsageError(
                "not all processes see the same saved run",
                hint="put the output into a folder that all machines share",
            )
        if saved:
            yield from self._restore(*saved)
        else:
            if self.around.resume:
                yield Notice(text="there is no saved run to resume, so this one begins at the beginning")
            self.before = self.after = self._validate(self.objective.predict)
            self.old = self._validate(self.teacher) if self.teacher else None
            self._keep_if_best(self.before)
            width, tokens = self.model.config.n_embd, self.feed.shortest.ids.size
            recipe = choose_recipe(self.settings, loss=self.before, old=self.old, width=width, tokens=tokens)
            self.lr, self.objective.distill = recipe.lr, recipe.distill
            self.optimizers = self._build_optimizers()
            if recipe.match:
                self._match()
        yield Started(
            steps=self.settings.steps,
            done=self.done,
            before=self.before,
            old=self.old,
            lr=self.lr,
            distill=self.objective.distill,
            match=self.objective.matching is not None,
            batch_size=self.settings.batch_size,
            block_size=self.settings.block_size,
            longest=self.feed.longest,
            device=self.device.type,
            dtype=str(self.precision).removeprefix("torch."),
            processes=self.around.world.size,
            sharded=is_cut(self.model),
            validation_tokens=min(len(self.val), self.limit) * self.val.context,
        )

    def _build_optimizers(self) -> list[Optimizer]:
        chosen = self.settings.optimizer
        return build_optimizers(self.model, chosen, self.lr, self.device, bfloat16=self.bfloat16)

    def _match(self) -> None:
        """Draw the states to the teacher's too. The first map is made of a whole update, and of enough to be one."""
        matching, random, looked, seen = self.objective.match(), np.random.default_rng(self.settings.seed), 0, 0
        while looked < self.settings.grad_accum or (seen < LOOKS * matching.map.shape[0] and looked < MOST_LOOKS):
            batch = self.feed.of_shortest(random)
            self.objective.look(*self._shared(batch))
            looked, seen = looked + 1, seen + int((batch[1] != IGNORED).sum())
        matching.renew(self.around.world)

    def _compile(self) -> Iterator[Notice]:
        """Compile before the first step, for batches of the real sizes, and go on without where that fails."""
        self.model.rope(self.feed.longest, self.device)  # made beforehand, so that the graph only reads the tables
        shapes = [(self.feed.windows_each(windows.context), windows.width) for windows in self.feed.windows]
        failure = self.objective.compile_trunk(shapes)
        if failure and is_cut(self.model):  # parts of it are away, and other processes wait for them
            raise OneProcess(f"torch.compile failed ({failure})", hint="use --no-compile")
        if self.around.world.any(bool(failure), self.device):
            self.objective.trunk = self.model.states
            yield Notice(text=f"torch.compile failed ({failure or 'in another process'}); training goes on without it")

    def _step(self) -> Stepped:
        """One update from `grad_accum` batches. Raises TrainingStopped before a bad one."""
        began, world = time.perf_counter(), self.around.world
        factor = schedule(self.done, self.settings.steps, self.warmup)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * factor
            optimizer.zero_grad(set_to_none=True)
        batches = self.feed.draw(self.settings.grad_accum)
        # of the whole step, so that batches with much and with little padding weigh what they hold
        predicted = sum(int((targets != IGNORED).sum()) for _, targets in batches)
        total = torch.zeros((), device=self.device)
        for number, batch in enumerate(batches):
            x, y = self._shared(batch)
            with together(self.spread, last=number + 1 == len(batches)):
                loss = self.spread(x, y) / max(predicted, 1)
                self.scaler.scale(loss * world.size).backward()  # gradients are averaged over processes
            total += loss.detach()
        # of what is told, what the matching adds is left out, so that it can be held against the old loss
        told, mean = world.total(torch.stack([total - self.objective.matched() / max(predicted, 1), total])).tolist()
        self._update(mean)
        if self.objective.matching:
            self.objective.matching.renew(world)
        self.done, self.tokens = self.done + 1, self.tokens + predicted
        self.reached = max(self.reached, batches[0][0].shape[1])
        self.seconds += time.perf_counter() - began
        return Stepped(
            step=self.done,
            loss=told,
            lr=self.lr * factor,
            tokens=self.tokens,
            tokens_per_second=self.tokens / self.seconds,
            seconds_left=self.seconds / self.done * (self.settings.steps - self.done),
        )

    def _shared(self, batch: Sequence[NDArray[np.int64]]) -> Iterator[Tensor]:
        """Inputs and targets of the windows of this process, each (B, T), on the device."""
        return (transfer(self.around.world.share(torch.from_numpy(ids)), self.device) for ids in batch)

    def _update(self, loss: float) -> None:
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)
        parameters, most = list(self.model.parameters()), self.settings.grad_clip
        found = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        norm = norm_of(found)
        if norm > most:  # below, scaling by one would take as long
            nn.utils.clip_grads_with_norm_(parameters, most, found)
        # a gradient that overflowed in float16 is the scaler's business: it scales down, and nobody steps
        if not math.isfinite(loss) or not (math.isfinite(norm) or self.scaler.is_enabled()):
            raise TrainingStopped(
                f"step {self.done + 1}: the {'loss' if not math.isfinite(loss) else 'gradient'} is not a finite number",
                hint=f"try a smaller learning rate, --lr {self.lr / 4:g}, or --dtype float32",
            )
        self.skipped = 0 if math.isfinite(norm) else self.skipped + 1
        if self.skipped == MOST_SKIPPED:
            raise TrainingStopped(
                f"step {self.done + 1}: the gradient overflows in float16, {MOST_SKIPPED} steps in a row",
                hint="use --dtype bfloat16 or float32",
            )
        if math.isfinite(norm):
            for optimizer in self.optimizers:
                self.scaler.step(optimizer)
        self.scaler.update()

    def _validated(self) -> Validated:
        self.after = self._validate(self.objective.predict)
        return Validated(step=self.done, loss=self.after, best=self._keep_if_best(self.after))

    def _validate(self, predict: Callable[[Tensor], Tensor]) -> float:
        """Mean loss on the validation part, the same in all processes."""
        with autocast(self.device, self.precision):
            progress = partial(self.around.progress, "validation")
            loss = mean_loss(predict, self.val, limit=self.limit, device=self.device, progress=progress).loss
        return self.around.world.agree(loss, self.device)

    def _recovered(self) -> bool:
        old = self.old if self.settings.until_recovered else None
        return old is not None and self.after <= old + self.settings.tolerance

    def _keep_if_best(self, loss: float) -> bool:
        """Remember the weights where the loss is the lowest so far; those before the first step whatever it is."""
        if self.best_state and not loss < self.best:
            return False
        self.best, self.best_reached = loss if math.isfinite(loss) else math.inf, self.reached
        self._remember()
        return True

    def _remember(self) -> None:
        """Keep these weights as the best, in the place of those before."""
        if self.best_state:
            fill(self.best_state, self.model.to_state())
        else:
            self.best_state = {name: tensor.detach().clone() for name, tensor in self.model.to_state().items()}

    def _give_best(self) -> None:
        config = self.model.config
        self.model.config = replace(config, trained_context=max(config.trained_context, self.best_reached))
        fill(self.model.to_state(), self.best_state)

    def _save(self) -> Iterator[Saved]:
        """Hand everything that the rest of the run depends on to the keeper, where there is one."""
        if self.around.keeper is None:
            return
        world = self.around.world
        parts = {
            "model": self.model.to_state(),
            "best": self.best_state,
            "optimizer": pack_optimizers(self.model, self.optimizers),
            "matching": self.objective.matching.state() if self.objective.matching else {},
        }
        tensors = {
            f"{part}.{name}": tensor for part, state in parts.items() for name, tensor in whole(state, world).items()
        }
        tensors["random.cpu"] = torch.get_rng_state()
        if self.device.type == "cuda":
            tensors["random.cuda"] = torch.cuda.get_rng_state(self.device)
        facts = {name: getattr(self, name) for name in _COUNTED}
        facts |= {
            "distill": self.objective.distill,
            "random": self.feed.random.bit_generator.state,
            "scaler": self.scaler.state_dict(),
        }
        self.saved = self.done
        yield Saved(step=self.done, path=self.around.keeper.save(tensors, facts))

    def _restore(self, tensors: State, facts: Mapping[str, Any]) -> Iterator[Notice]:
        def part(prefix: str) -> State:
            return {n.removeprefix(prefix): tensor for n, tensor in tensors.items() if n.startswith(prefix)}

        for name in _COUNTED:
            setattr(self, name, facts[name])
        fill(self.model.to_state(), part("model."))
        self._remember()  # cut up as the model is
        fill(self.best_state, part("best."))
        self.optimizers = self._build_optimizers()
        unpack_optimizers(self.model, self.optimizers, like(self.model, part("optimizer.")))
        if matching := part("matching."):
            self.objective.match().restore(matching)
        self.objective.distill = facts["distill"]
        self.feed.random.bit_generator.state = facts["random"]
        self.scaler.load_state_dict(facts["scaler"])
        torch.set_rng_state(tensors["random.cpu"])
        if self.device.type == "cuda" and "random.cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random.cuda"], self.device)
        yield Notice(text=f"resumed after step {self.done}")

    def _finished(self, stopped: Stopped) -> Finished:
        return Finished(
            steps=self.done,
            tokens=self.tokens,
            before=self.before,
            after=self.after,
            best=self.best,
            old=self.old,
            tokens_per_second=self.tokens / max(self.seconds, 1e-9),
            device=self.device.type,
            dtype=str(self.precision).removeprefix("torch."),
            stopped=stopped,
        )
