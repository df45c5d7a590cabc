"""Measure how fast each way of converting comes back to the old model's loss, beside what people do without it.

    python benchmarks/recovery.py                        # everything, about an hour and a half on two cores
    python benchmarks/recovery.py --models example       # one model
    python benchmarks/recovery.py --render               # the page and the plot again, from what was measured

For each model, way and seed: validation losses on a schedule of 200 steps, and of 50 steps, with what they cost. What
is measured goes to `docs/recovery.json` line by line, and a run that is there isn't run again; from it come
`docs/recovery.md` and `docs/recovery.png`. Published models are read from the folder that MODERNIZE_CHECKPOINTS names;
the one with heads of 64 is trained here, by `examples/train_pydoc_gpt.py`, and kept in the folder `--work`.

Ways: `retrofit`, `fold` and `reset`, each with the default fine-tune and the old model as teacher; `adamw` is `reset`
with AdamW and cross-entropy alone; `old` is the old model itself, trained on for as many steps with cross-entropy.
"""

import argparse
import copy
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import machine
from recovery_page import render
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import modernize
from modernize.conversion import Conversion
from modernize.data import Corpus, Windows, load_corpus
from modernize.devices import multiplies_bfloat16
from modernize.events import Settings, Stepped
from modernize.facts import Facts
from modernize.feed import Feed
from modernize.loading import load_whole
from modernize.measure import mean_loss
from modernize.model import ModernGPT
from modernize.old import OldGPT
from modernize.optim import build_optimizers, schedule
from modernize.recipe import ALONE_LR
from modernize.tokenizer import find_tokenizer
from modernize.train import TARGET, default_batch_size

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = Path(os.environ.get("MODERNIZE_CHECKPOINTS", ROOT.parent / "shared" / "checkpoints"))
STEPS = (0, 5, 10, 25, 50, 100, 200)
MULTIPLES, LOOKED_BEYOND = (2, 4), (0, 50, 100, 200)  # of the old context, at these steps
HORIZONS = (200, 50)  # a schedule of its own for each; the losses of the longer one are read at STEPS
SEEDS = (0, 1, 2)
WAYS = ("retrofit", "fold", "reset", "adamw", "old")
ADAMW_LR = 1e-3  # what people take


@dataclass(frozen=True, kw_only=True)
class Subject:
    """An old model and the text that it is judged on."""

    name: str
    title: str
    checkpoint: Path
    data: str
    facts: Facts = field(default_factory=Facts)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One run. Losses are in nats by step; seconds are without validation, and `passes` tokens trained through the
    whole model, or as much work in matrix products as that: so conversion and training are in one unit.
    """

    model: str
    way: str
    seed: int
    horizon: int
    old: float
    losses: dict[int, float]
    seconds: dict[int, float]  # of training
    conversion_seconds: float
    conversion_passes: float
    own_text: int  # tokens that the old model wrote
    data_tokens: dict[int, int]  # different tokens of DATA that were seen
    passes: dict[int, float]  # of training
    beyond: dict[int, dict[int, float]] = field(default_factory=dict)  # losses at multiples of the old context


def subjects(work: Path) -> tuple[Subject, ...]:
    """All models, those that are not there too."""
    return (
        Subject(
            name="shakespeare",
            title="nanoGPT, tiny Shakespeare by characters, 4 layers, 4 heads of 32, context 128",
            checkpoint=PUBLISHED / "nanogpt-shakespeare-bias" / "ckpt.pt",
            data=str(PUBLISHED / "nanogpt-shakespeare-bias"),
        ),
        Subject(
            name="professionals",
            title="nanoGPT, a list of professions, 4 layers, 4 heads of 16, context 64",
            checkpoint=PUBLISHED / "nanogpt-professionals" / "ckpt.pt",
            data=str(PUBLISHED / "nanogpt-professionals"),
        ),
        Subject(
            name="lecture",
            title="lecture model, 5,000 BPE tokens, 4 layers, 4 heads of 16, context 32; saw this validation text",
            checkpoint=PUBLISHED / "lecture-bpe" / "gpt_model.pth",
            data=str(PUBLISHED / "lecture-bpe"),
            facts=Facts(activation="relu", attn_scale="embd"),
        ),
        Subject(
            name="example",
            title="the example, Python's language reference by bytes, 2 layers, 4 heads of 32, context 128",
            checkpoint=ROOT / "examples" / "pydoc-gpt.pt",
            data="pydoc",
        ),
        Subject(
            name="heads64",
            title="trained here, Python's language reference by bytes, 4 layers, 3 heads of 64, context 256",
            checkpoint=work / "heads64.pt",
            data="pydoc",
        ),
    )


def train_heads64(out: Path) -> None:
    """The old model with heads of 64, from nothing: some twelve minutes on two cores."""
    sizes = ["--layers", "4", "--heads", "3", "--width", "192", "--context", "256", "--batch", "16", "--steps", "2000"]
    script = ROOT / "examples" / "train_pydoc_gpt.py"
    subprocess.run([sys.executable, str(script), *sizes, "--out", str(out)], check=True)


class Bench:
    """One model, read once, and its runs."""

    def __init__(self, subject: Subject, work: Path) -> None:
        self.subject, self.work = subject, work
        loaded = load_whole(subject.checkpoint, facts=subject.facts)
        assert isinstance(loaded.model, OldGPT)
        self.old = loaded.model.float()
        self.spec = self.old.spec
        self.corpus = load_corpus(
            subject.data,
            tokenizer=lambda: find_tokenizer(
                None, vocabulary=loaded.vocabulary, beside=subject.checkpoint, vocab_size=self.spec.vocab_size
            ),
            vocab_size=self.spec.vocab_size,
        )
        self.train = self.corpus.windows("train", self.spec.block_size, vocab_size=self.spec.vocab_size)
        self.val = self.corpus.windows("val", self.spec.block_size, vocab_size=self.spec.vocab_size)
        self.old_loss = mean_loss(self.old, self.val).loss
        self.batch = default_batch_size(self.spec.block_size)
        self._work_of: dict[str, float] = {}

    def run(self, way: str, seed: int) -> Iterator[Measured]:
        """Convert, then train once for each horizon."""
        if way == "old":
            for horizon in HORIZONS:
                steps = _train_on(self.old, self.train, self.batch, seed=seed, steps=horizon)
                yield self._measured(way, seed, horizon, None, steps)
            return
        init = "reset" if way == "adamw" else way
        path = self.work / f"{self.subject.name}.safetensors"
        began = time.perf_counter()
        report = self._convert(path, init, seed)
        seconds = time.perf_counter() - began
        own_text = report.calibration.tokens if report.calibration else 0
        for horizon in HORIZONS:
            model = modernize.load(path)
            if way == "adamw":
                events = modernize.finetune(
                    model, self.corpus, steps=horizon, seed=seed, optimizer="adamw", lr=ADAMW_LR, eval_every=horizon,
                    target_context=model.block_size,
                )  # fmt: skip
            else:
                events = modernize.finetune(
                    model, self.corpus, teacher=self.old, steps=horizon, seed=seed, eval_every=horizon
                )
            steps = ((model, e.step, e.tokens / e.tokens_per_second) for e in events if isinstance(e, Stepped))
            yield self._measured(way, seed, horizon, (seconds, self._passes(init, path, model), own_text), steps)

    def _convert(self, path: Path, init: str, seed: int) -> Conversion:
        return modernize.convert(
            self.subject.checkpoint, path, init=init, seed=seed, facts=self.subject.facts, force=True
        )

    def _measured(
        self,
        way: str,
        seed: int,
        horizon: int,
        conversion: tuple[float, float, int] | None,
        steps: Iterator[tuple[nn.Module, int, float]],
    ) -> Measured:
        losses, seconds = {0: 0.0}, {0: 0.0}
        beyond: dict[int, dict[int, float]] = {multiple: {} for multiple in MULTIPLES}
        if conversion is None:
            losses[0] = self.old_loss
        else:
            converted = modernize.load(self.work / f"{self.subject.name}.safetensors")
            losses[0] = mean_loss(converted, self.val).loss
            self._look_beyond(converted, 0, beyond)
        for model, step, took in steps:
            if step in STEPS:
                losses[step], seconds[step] = mean_loss(model, self.val).loss, took
            if step in LOOKED_BEYOND and conversion is not None:
                self._look_beyond(model, step, beyond)
        took, passes, own_text = conversion or (0.0, 0.0, 0)
        # a teacher's forward pass is a third of a forward and a backward pass of the student, which is of its size
        each = 1.0 if way in {"adamw", "old"} else 1.0 + 1 / 3
        tokens = self.batch * self.train.context
        return Measured(
            model=self.subject.name,
            way=way,
            seed=seed,
            horizon=horizon,
            old=self.old_loss,
            losses=losses,
            seconds=seconds,
            conversion_seconds=took,
            conversion_passes=passes,
            own_text=own_text,
            beyond=beyond if conversion is not None else {},
            data_tokens={step: self._seen(way, seed, step) for step in losses},
            passes={step: step * tokens * each for step in losses},
        )

    def _passes(self, init: str, path: Path, model: ModernGPT) -> float:
        """Work of a conversion, in tokens trained through the whole model: counted once a way, apart from the clock."""
        if init not in self._work_of:
            counted = path.with_name("counted.safetensors")
            with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
                self._convert(counted, init, 0)
            self._work_of[init] = counter.get_total_flops() / (3 * self._flops_of_forward(model))
        return self._work_of[init]

    def _flops_of_forward(self, model: nn.Module) -> float:
        """Operations in matrix products, for each token of a full window."""
        ids = torch.zeros((1, self.spec.block_size), dtype=torch.int64)
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
            model(ids)
        return counter.get_total_flops() / self.spec.block_size

    def _look_beyond(self, model: nn.Module, step: int, beyond: dict[int, dict[int, float]]) -> None:
        """Losses on windows longer than the old context."""
        for multiple, found in beyond.items():
            windows = self.corpus.windows("val", multiple * self.spec.block_size, vocab_size=self.spec.vocab_size)
            found[step] = mean_loss(model, windows).loss

    def _seen(self, way: str, seed: int, steps: int) -> int:
        """How many different tokens of DATA the windows of a fine-tune hold: the same draws, from numbered tokens."""
        count, block = len(self.train.ids), self.train.context
        numbers = Corpus(name="numbers", train=np.arange(count), val=np.arange(block + 1))
        target = block if way in ("adamw", "old") else TARGET * block
        settings = Settings(seed=seed, batch_size=self.batch, block_size=block, target_context=target)
        feed = Feed.of(numbers, settings, vocab_size=count, processes=1)
        drawn = [np.unique(batch[0]) for _ in range(steps) for batch in feed.draw(1)]
        return len(np.unique(np.concatenate(drawn))) if drawn else 0


def _train_on(
    old: OldGPT, train: Windows, batch: int, *, seed: int, steps: int
) -> Iterator[tuple[nn.Module, int, float]]:
    """The old model trained on as it was trained, with our optimizers at the rate for models that are near."""
    model = copy.deepcopy(old).requires_grad_(True)
    random, device, seconds = np.random.default_rng(seed), torch.device("cpu"), 0.0
    optimizers = build_optimizers(model, "auto", ALONE_LR, device, bfloat16=multiplies_bfloat16(device))
    for step in range(steps):
        began = time.perf_counter()
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * schedule(step, steps, max(1, steps // 20))
            optimizer.zero_grad(set_to_none=True)
        x, y = (torch.from_numpy(ids) for ids in train.draw(random, batch))
        F.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        seconds += time.perf_counter() - began
        yield model, step + 1, seconds


def as_row(measured: Measured) -> dict[str, Any]:
    """A line of the results."""
    return {**asdict(measured), "machine": machine()}


def main() -> None:
    """Measure what is missing, and write the page."""
    parser = argparse.ArgumentParser(description="Measure how fast each conversion comes back to the old loss.")
    parser.add_argument("--models", nargs="*", help="names of models; all by default")
    parser.add_argument("--ways", nargs="*", default=WAYS, choices=WAYS)
    parser.add_argument("--seeds", nargs="*", type=int, default=SEEDS)
    parser.add_argument("--work", type=Path, default=ROOT / ".bench", help="for models on the way")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "recovery.json")
    parser.add_argument("--render", action="store_true", help="only write the page and the plot")
    given = parser.parse_args()
    given.work.mkdir(exist_ok=True)
    known = subjects(given.work)
    rows = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    have = {(row["model"], row["way"], row["seed"]) for row in rows if row["horizon"] == HORIZONS[-1]}
    for subject in known if not given.render else ():
        missing = [(way, seed) for seed in given.seeds for way in given.ways if (subject.name, way, seed) not in have]
        if not missing or (given.models and subject.name not in given.models):
            continue
        if subject.name == "heads64" and not subject.checkpoint.exists():
            train_heads64(subject.checkpoint)
        if not subject.checkpoint.exists():
            print(f"{subject.name}: no {subject.checkpoint}, left out")
            continue
        bench = Bench(subject, given.work)
        for way, seed in missing:
            for measured in bench.run(way, seed):
                row = as_row(measured)
                print(json.dumps(row), flush=True)
                with given.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
    render(given.out, {subject.name: subject.title for subject in known})


if __name__ == "__main__":
    main()
