"""Measure tokens a second and peak memory of a fine-tune, beside the plainest PyTorch loop of the same model.

    python benchmarks/throughput.py                  # writes docs/throughput.md
    python benchmarks/throughput.py --models 1M      # one model

The loops that are compared take turns in one process, a step each, in an order that is shuffled every time: two
processes of one loop differ by more than the loops do. The plain loop makes all logits, takes their cross-entropy and
steps with the same optimizers. Both keep freed memory, as `modernize finetune` does on a CPU; without it the plain loop
would be slower. Where the device has instructions for bfloat16 each loop runs in it too, the plain one by autocast, and
on CUDA also compiled. Peak memory is that of a process for each alone. Loops that fail, for memory perhaps, are told
and left out, with those that they take turns with.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
from machine import machine
from numpy.typing import NDArray
from torch.nn import functional as F

import modernize
from modernize.data import Corpus
from modernize.devices import choose_device, multiplies_bfloat16
from modernize.events import Stepped
from modernize.memory import keep_freed_memory
from modernize.model import ModernGPT
from modernize.old import OldGPT
from modernize.optim import build_optimizers
from modernize.rewrite.plan import Plan
from modernize.spec import GPTSpec, State

ROOT = Path(__file__).resolve().parent.parent
CUDA = torch.cuda.is_available()
DEVICE = choose_device("cuda" if CUDA else "cpu")
BFLOAT16 = multiplies_bfloat16(DEVICE)
FIRST_STEPS = 2  # of a loop, that are not timed: buffers and states of optimizers are made in them


@dataclass(frozen=True, kw_only=True)
class Size:
    """A shape, and a batch for it."""

    spec: GPTSpec
    batch: int
    steps: int
    processes: int  # in each of which the loops take turns

    @property
    def ids(self) -> NDArray[np.int64]:
        """Random text."""
        return np.random.default_rng(0).integers(0, self.spec.vocab_size, 40 * self.spec.block_size)


def shape(n_layer: int, n_head: int, n_embd: int, block_size: int, vocab_size: int) -> GPTSpec:
    """A tied GPT without biases, MLP four times as wide."""
    return GPTSpec(
        n_layer=n_layer,
        n_head=n_head,
        n_embd=n_embd,
        n_inner=4 * n_embd,
        block_size=block_size,
        vocab_size=vocab_size,
        activation="gelu",
        attn_scale="head",
        norm_eps=1e-5,
        tied=True,
        biases=(),
    )


SIZES = {
    "1M": Size(spec=shape(5, 4, 128, 128, 256), batch=16, steps=100, processes=5),
    "GPT-2 small": Size(
        spec=shape(12, 12, 768, 1024, 50257), batch=64 if CUDA else 2, steps=20 if CUDA else 5, processes=2
    ),
}
PLAIN = "plain loop"
GROUPS = {  # loops that take turns, by their optimizer; the others are compared with the first
    "adamw": (PLAIN, "modernize"),
    "auto": (f"{PLAIN}, Muon", "modernize, Muon", "modernize, Muon, teacher"),
}
PRECISIONS = ("float32", "bfloat16") if BFLOAT16 else ("float32",)
COMPILED = (False, True) if CUDA else (False,)


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is the same for all loops of a group."""

    model: str
    precision: str
    compiled: bool
    optimizer: str

    @property
    def size(self) -> Size:
        """The shape."""
        return SIZES[self.model]

    @property
    def rows(self) -> tuple[str, ...]:
        """The loops."""
        return GROUPS[self.optimizer]


@dataclass(kw_only=True)
class Measured:
    """Seconds of a step of each loop, one figure for each process, and peak memory in bytes."""

    seconds: dict[str, list[float]]
    memory: dict[str, float]


def random_state(shapes: Mapping[str, tuple[int, ...]]) -> State:
    """Random weights, gains of one."""
    random = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(size, generator=random) * 0.02 if len(size) > 1 else torch.ones(size)
        for name, size in shapes.items()
    }


def begun(case: Case, row: str) -> Iterator[None]:
    """A loop of random weights on random text, that has taken a step whenever it comes back."""
    config = Plan(init="reset").config(case.size.spec)
    model = ModernGPT.from_state(config, random_state(config.shapes()))
    return plain_steps(model, case) if row.startswith(PLAIN) else our_steps(model, case, row)


def our_steps(model: ModernGPT, case: Case, row: str) -> Iterator[None]:
    """What is measured."""
    size = case.size
    teacher = OldGPT.from_state(size.spec, random_state(size.spec.shapes())) if row.endswith("teacher") else None
    corpus = Corpus(name="random", train=size.ids, val=size.ids[: size.spec.block_size + 1])
    events = modernize.finetune(
        model, corpus, teacher=teacher, device=DEVICE.type, dtype=case.precision, compile=case.compiled,
        steps=size.steps, batch_size=size.batch, target_context=size.spec.block_size, eval_every=size.steps,
        optimizer=case.optimizer, lr=1e-4,
    )  # fmt: skip
    for event in events:
        if isinstance(event, Stepped):
            yield


def plain_steps(model: ModernGPT, case: Case) -> Iterator[None]:
    """The plainest loop."""
    size, ids, context = case.size, case.size.ids, case.size.spec.block_size
    model.to(DEVICE)
    optimizers = build_optimizers(model, case.optimizer, 1e-4, DEVICE, bfloat16=BFLOAT16)
    model.rope(context, DEVICE)  # made beforehand, as modernize does
    forward = torch.compile(model) if case.compiled else model
    draw = np.random.default_rng(0)
    for _ in range(size.steps):
        starts = draw.integers(0, len(ids) - context, size.batch)
        windows = torch.from_numpy(np.stack([ids[s : s + context + 1] for s in starts])).to(DEVICE)
        for each in optimizers:
            each.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16, enabled=case.precision == "bfloat16"):
            loss = F.cross_entropy(forward(windows[:, :-1]).flatten(0, 1).float(), windows[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for each in optimizers:
            each.step()
        loss.item()
        yield


def take_turns(case: Case) -> dict[str, float]:
    """Median seconds of a step of each loop. Raises what a loop raises."""
    loops = {row: begun(case, row) for row in case.rows}
    for loop in loops.values():
        for _ in range(FIRST_STEPS):
            next(loop)
    seconds: dict[str, list[float]] = {row: [] for row in loops}
    order, turns = [*loops], random.Random(0)
    for _ in range(case.size.steps - FIRST_STEPS):
        turns.shuffle(order)
        for row in order:
            _wait()
            began = time.perf_counter()
            next(loops[row])
            _wait()
            seconds[row].append(time.perf_counter() - began)
    return {row: median(taken) for row, taken in seconds.items()}


def _wait() -> None:
    """Until the device is done, so that no loop waits for what another began."""
    if CUDA:
        torch.cuda.synchronize()


def peak(case: Case, row: str) -> dict[str, float]:
    """Bytes that a process takes which runs one loop alone, on CUDA those of the device."""
    for _ in begun(case, row):
        pass
    used = torch.cuda.max_memory_allocated() if CUDA else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {row: used}


def in_a_process(case: Case, row: str | None) -> dict[str, float]:
    """What `peak`, or `take_turns` for no row, gives in a process of its own; nothing where that failed."""
    command = [sys.executable, __file__, "--one", json.dumps([asdict(case), row])]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    said = (done.stderr if done.returncode else done.stdout).splitlines()
    told = [*asdict(case).values(), row or "in turns"]
    print(*told, f"failed ({done.returncode}):" if done.returncode else "", *said[-1:], flush=True)
    return {} if done.returncode else dict(json.loads(said[-1]))


def page(results: Mapping[Case, Measured]) -> str:
    """The table."""
    lines = [
        "# Speed of a fine-tune\n",
        f"Written by `python benchmarks/throughput.py`. Machine: {machine()}.\n",
        "The ratio is to the plain loop of the same model, batch, precision and optimizer, with which a loop takes",
        "turns in one process: that of median steps, the median of some processes and under it their range. Both loops",
        "keep freed memory, as `modernize finetune` does on a CPU. Peak memory is that of a process for each alone.\n",
        "| model | precision | compiled | way | tokens/s | ratio | peak memory, GB |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for case, found in results.items():
        tokens = case.size.batch * case.size.spec.block_size
        what = f"{case.model}, {case.size.batch} × {case.size.spec.block_size}"
        for row in case.rows:
            if not found.seconds[row] or row not in found.memory:
                continue
            ratios = [plain / ours for plain, ours in zip(found.seconds[case.rows[0]], found.seconds[row], strict=True)]
            lines.append(
                f"| {what} | {case.precision} | {'yes' if case.compiled else 'no'} | {row} "
                f"| {tokens / median(found.seconds[row]):,.0f} | {ratio(ratios)} | {found.memory[row] / 1e9:.2f} |"
            )
    return "\n".join(lines) + "\n"


def ratio(found: Sequence[float]) -> str:
    """The median, and the range where there is one."""
    middle, lowest, highest = (f"{figure(found):.3f}" for figure in (median, min, max))
    return middle if lowest == highest else f"{middle}<br>{lowest} to {highest}"


def main() -> None:
    """Measure everything, and write the page."""
    parser = argparse.ArgumentParser(description="Tokens a second of a fine-tune, beside the plainest loop.")
    parser.add_argument("--models", nargs="*", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "throughput.md")
    parser.add_argument("--one", help="what one process measures, as JSON")
    given = parser.parse_args()
    if given.one:
        facts, row = json.loads(given.one)
        keep_freed_memory(DEVICE)
        torch.set_float32_matmul_precision("high" if CUDA else "highest")  # as modernize does while it trains
        print(json.dumps(peak(Case(**facts), row) if row else take_turns(Case(**facts))))
        return
    cases = [
        Case(model=model, precision=precision, compiled=compiled, optimizer=optimizer)
        for model in given.models
        for precision in PRECISIONS
        for compiled in COMPILED
        for optimizer in GROUPS
    ]
    results = {case: Measured(seconds={row: [] for row in case.rows}, memory={}) for case in cases}
    for number in range(max(case.size.processes for case in cases)):
        for case in cases:
            if number >= case.size.processes:
                continue
            for row, seconds in in_a_process(case, None).items():
                results[case].seconds[row].append(seconds)
    for case in cases:
        for row in case.rows:
            results[case].memory |= in_a_process(case, row)
    given.out.write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main()
