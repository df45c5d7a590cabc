"""Measure tokens a second and peak memory of a fine-tune, beside the plainest PyTorch loop of the same model.

    python benchmarks/throughput.py                  # writes docs/throughput.md
    python benchmarks/throughput.py --models 1M      # one model

Every figure is the median step of a process of its own; the processes take turns, several times over. The plain loop
makes all logits, takes their cross-entropy and steps with the same optimizers. Each row runs in bfloat16 too, the plain
loop by autocast, and on CUDA also compiled. What fails, for memory perhaps, is told and left out.
"""

import argparse
import itertools
import json
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
from machine import machine
from numpy.typing import NDArray
from torch.nn import functional as F

import modernize
from modernize.data import Corpus
from modernize.events import Stepped
from modernize.model import ModernGPT
from modernize.old import OldGPT
from modernize.optim import build_optimizers
from modernize.rewrite.plan import Plan
from modernize.spec import GPTSpec, State

ROOT = Path(__file__).resolve().parent.parent
CUDA = torch.cuda.is_available()


@dataclass(frozen=True, kw_only=True)
class Size:
    """A shape, and a batch for it."""

    spec: GPTSpec
    batch: int
    steps: int


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
    "1M": Size(spec=shape(5, 4, 128, 128, 256), batch=16, steps=40),
    "GPT-2 small": Size(spec=shape(12, 12, 768, 1024, 50257), batch=64 if CUDA else 2, steps=4 if not CUDA else 20),
}
PLAIN = "plain loop"
ROWS = {  # a way, and its optimizer
    PLAIN: "adamw",
    "modernize": "adamw",
    f"{PLAIN}, Muon": "auto",
    "modernize, Muon": "auto",
    "modernize, Muon, teacher": "auto",
}
PRECISIONS = ("float32", "bfloat16")
COMPILED = (False, True) if CUDA else (False,)


def random_state(shapes: Mapping[str, tuple[int, ...]]) -> State:
    """Random weights, gains of one."""
    random = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(size, generator=random) * 0.02 if len(size) > 1 else torch.ones(size)
        for name, size in shapes.items()
    }


def measure(size: Size, row: str, precision: str, compiled: bool) -> dict[str, float]:
    """Median seconds of a step, and peak memory in bytes, in this process."""
    spec = size.spec
    config = Plan(init="reset").config(spec)
    model = ModernGPT.from_state(config, random_state(config.shapes()))
    ids = np.random.default_rng(0).integers(0, spec.vocab_size, 40 * spec.block_size)
    if row.startswith(PLAIN):
        seconds = plain_steps(model, ids, size, precision, compiled, ROWS[row])
    else:
        teacher = OldGPT.from_state(spec, random_state(spec.shapes())) if row.endswith("teacher") else None
        corpus = Corpus(name="random", train=ids, val=ids[: spec.block_size + 1])
        events = modernize.finetune(
            model, corpus, teacher=teacher, steps=size.steps, batch_size=size.batch, dtype=precision,
            compile=compiled, eval_every=size.steps, lr=1e-4, optimizer=ROWS[row], target_context=spec.block_size,
        )  # fmt: skip
        ends = [(e.tokens, e.tokens / e.tokens_per_second) for e in events if isinstance(e, Stepped)]
        seconds = [later[1] - earlier[1] for earlier, later in itertools.pairwise(ends)]
    used = torch.cuda.max_memory_allocated() if CUDA else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": median(seconds[1:]), "memory": used}


def plain_steps(  # noqa: PLR0917
    model: ModernGPT, ids: NDArray[np.int64], size: Size, precision: str, compiled: bool, optimizer: str
) -> list[float]:
    """The plainest loop."""
    device = torch.device("cuda" if CUDA else "cpu")
    model.to(device)
    torch.set_float32_matmul_precision("high" if CUDA else "highest")  # as modernize does while it trains
    optimizers = build_optimizers(model, optimizer, 1e-4, device)
    model.rope(size.spec.block_size, device)  # made beforehand, as modernize does
    forward = torch.compile(model) if compiled else model
    random, found = np.random.default_rng(0), []
    for _ in range(size.steps):
        began = time.perf_counter()
        starts = random.integers(0, len(ids) - size.spec.block_size, size.batch)
        windows = torch.from_numpy(np.stack([ids[s : s + size.spec.block_size + 1] for s in starts])).to(device)
        for each in optimizers:
            each.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bfloat16"):
            loss = F.cross_entropy(forward(windows[:, :-1]).flatten(0, 1).float(), windows[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for each in optimizers:
            each.step()
        loss.item()
        found.append(time.perf_counter() - began)
    return found


def page(results: dict[tuple[str, str, bool, str], list[dict[str, float]]]) -> str:
    """The table."""
    lines = [
        "# Speed of a fine-tune\n",
        f"Written by `python benchmarks/throughput.py`. Machine: {machine()}.\n",
        "Median of the repeats; the ratio is to the plain loop of the same model, batch, precision and optimizer.\n",
        "| model | precision | compiled | way | tokens/s | ratio | peak memory, GB |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (name, precision, compiled, row), found in results.items():
        alike = f"{PLAIN}, Muon" if "Muon" in row else PLAIN
        if not found or not results[name, precision, compiled, alike]:
            continue
        size = SIZES[name]
        tokens = size.batch * size.spec.block_size
        seconds = median(r["seconds"] for r in found)
        plain = median(r["seconds"] for r in results[name, precision, compiled, alike])
        memory = median(r["memory"] for r in found) / 1e9
        said = "yes" if compiled else "no"
        lines.append(
            f"| {name}, {size.batch} × {size.spec.block_size} | {precision} | {said} | {row} | {tokens / seconds:,.0f} "
            f"| {plain / seconds:.2f} | {memory:.2f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure everything, each in a process of its own, and write the page."""
    parser = argparse.ArgumentParser(description="Tokens a second of a fine-tune, beside the plainest loop.")
    parser.add_argument("--models", nargs="*", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "throughput.md")
    parser.add_argument("--one", help="what one process measures, as JSON")
    given = parser.parse_args()
    if given.one:
        name, precision, compiled, row = json.loads(given.one)
        print(json.dumps(measure(SIZES[name], row, precision, compiled)))
        return
    cases = [(n, p, c, r) for n in given.models for p in PRECISIONS for c in COMPILED for r in ROWS]
    results: dict[tuple[str, str, bool, str], list[dict[str, float]]] = {case: [] for case in cases}
    for _ in range(given.repeats):
        for case in cases:
            command = [sys.executable, __file__, "--one", json.dumps(case)]
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            if done.returncode:  # a float32 batch may not fit where a bfloat16 one does
                print(*case, "failed:", *done.stderr.splitlines()[-1:], flush=True)
                continue
            results[case].append(json.loads(done.stdout.splitlines()[-1]))
            print(*case, results[case][-1], flush=True)
    given.out.write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main()
