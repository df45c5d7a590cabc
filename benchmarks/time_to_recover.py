"""Measure how long it takes from an old file to a modern model within so many nats of it, beside what people do.

    python benchmarks/time_to_recover.py                     # writes docs/time-to-recover.md

Every way may choose how many steps it takes: the fewest of STEPS that end within the tolerance, on a learning rate that
falls to zero at the last of them, in the median of the seeds. Seconds are those of converting, with reading and
writing, and of the steps; validation is left out. Nothing else should run meanwhile.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from machine import machine
from recovery import ADAMW_LR, ROOT, SEEDS, Bench, subjects

import modernize
from modernize.events import Finished
from modernize.measure import mean_loss

STEPS = (3, 5, 10, 15, 20, 30, 40, 50, 75, 100, 125, 150, 175, 200, 250, 300)
WAYS = {
    "retrofit": "`modernize convert`, `modernize finetune`",
    "reset": "`reset`, the same fine-tune",
    "adamw": "`reset`, AdamW 1e-3, cross-entropy",
}


@dataclass(frozen=True, kw_only=True)
class Found:
    """What one way needed: steps, training tokens, the loss above the old one, and seconds of each seed."""

    steps: int
    tokens: int
    own_text: int
    above: tuple[float, ...]
    converting: tuple[float, ...]
    training: tuple[float, ...]

    def seconds(self) -> float:
        """The median of the whole."""
        return median(a + b for a, b in zip(self.converting, self.training, strict=True))


def search(bench: Bench, way: str, tolerance: float, seeds: Sequence[int]) -> Found | None:
    """The fewest steps after which the median loss is within the tolerance, by halving; None where STEPS has none."""
    files, converting, own_text = [], [], 0
    for seed in seeds:
        path = bench.work / f"race-{bench.subject.name}-{way}-{seed}.safetensors"
        began = time.perf_counter()
        report = modernize.convert(
            bench.subject.checkpoint,
            path,
            init="reset" if way == "adamw" else way,
            seed=seed,
            facts=bench.subject.facts,
            force=True,
        )
        converting.append(time.perf_counter() - began)
        files.append(path)
        own_text = report.calibration.tokens if report.calibration else 0
    enough: Found | None = None
    low, high = 0, len(STEPS)  # fewer than STEPS[low] are too few, STEPS[high] are enough
    while low < high:
        middle = (low + high) // 2
        steps = STEPS[middle]
        runs = [train(bench, path, way, steps, seed) for path, seed in zip(files, seeds, strict=True)]
        above = tuple(loss - bench.old_loss for loss, _ in runs)
        print(bench.subject.name, way, steps, *(f"{loss:+.4f}" for loss in above), flush=True)
        if median(above) > tolerance:
            low = middle + 1
            continue
        high = middle
        enough = Found(
            steps=steps,
            tokens=steps * bench.batch * bench.spec.block_size,
            own_text=own_text,
            above=above,
            converting=tuple(converting),
            training=tuple(seconds for _, seconds in runs),
        )
    return enough


def train(bench: Bench, path: Path, way: str, steps: int, seed: int) -> tuple[float, float]:
    """The loss after a fine-tune of so many steps, and its seconds."""
    model = modernize.load(path)
    options = {"steps": steps, "seed": seed, "eval_every": steps}
    if way == "adamw":
        events = modernize.finetune(
            model, bench.corpus, optimizer="adamw", lr=ADAMW_LR, target_context=model.block_size, **options
        )
    else:
        events = modernize.finetune(model, bench.corpus, teacher=bench.old, **options)
    *_, end = events
    assert isinstance(end, Finished)
    return mean_loss(model, bench.val).loss, end.tokens / end.tokens_per_second


def page(found: dict[str, dict[str, Found | None]], titles: dict[str, str], tolerance: float, seeds: int) -> str:
    """The tables."""
    lines = [
        "# How long it takes to recover\n",
        f"Written by `python benchmarks/time_to_recover.py`. Machine: {machine()}. Medians of {seeds} seeds.\n",
        f"From an old file to a modern model within {tolerance} nats of the old validation loss. Every way takes the "
        f"fewest steps that are enough (of {', '.join(map(str, STEPS))}), with a learning rate that falls to zero at "
        "the last; seconds are without validation and reading.\n",
    ]
    for name, ways in found.items():
        base = ways["adamw"]
        lines += [
            f"## {titles[name]}\n",
            "| way | steps | tokens trained on | share | own text | converting, s | training, s | in all, s | share "
            "| above the old loss |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        ]
        for way, row in ways.items():
            if row is None:
                lines.append(f"| {WAYS[way]} | more than {STEPS[-1]} |" + " |" * 8)
                continue
            share = (f"{row.tokens / base.tokens:.2f}", f"{row.seconds() / base.seconds():.2f}") if base else ("", "")
            lines.append(
                f"| {WAYS[way]} | {row.steps} | {row.tokens:,} | {share[0]} | {row.own_text:,} "
                f"| {median(row.converting):.1f} | {median(row.training):.1f} | {row.seconds():.1f} "
                f"| {share[1]} | {median(row.above):+.3f} |"
            )
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description="Time from an old file to a model that is near it.")
    parser.add_argument("--models", nargs="*", default=["shakespeare"], choices=[s.name for s in subjects(Path())])
    parser.add_argument("--tolerance", type=float, default=0.03, help="nats above the old loss (%(default)s)")
    parser.add_argument("--seeds", nargs="*", type=int, default=SEEDS)
    parser.add_argument("--work", type=Path, default=ROOT / ".bench")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "time-to-recover.md")
    given = parser.parse_args()
    given.work.mkdir(exist_ok=True)
    chosen = {subject.name: subject for subject in subjects(given.work) if subject.name in given.models}
    found: dict[str, dict[str, Found | None]] = {}
    for name, subject in chosen.items():
        bench = Bench(subject, given.work)
        found[name] = {way: search(bench, way, given.tolerance, given.seeds) for way in WAYS}
    titles = {name: subject.title for name, subject in chosen.items()}
    given.out.write_text(page(found, titles, given.tolerance, len(given.seeds)), encoding="utf-8")


if __name__ == "__main__":
    main()
