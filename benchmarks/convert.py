"""Measure time and peak memory of `convert` and `inspect`, beside `cp` and the plainest load and save of the same file.

    python benchmarks/convert.py                     # writes docs/speed.md; needs 20 GB of disk and 8 GB of memory
    python benchmarks/convert.py --sizes "GPT-2 small" --repeats 3
    python benchmarks/convert.py --small             # a tiny model: whether it runs

The files are made first, with random weights, as nanoGPT saves them and as safetensors. Every figure is the median of
processes of their own, which take turns. From time and memory of each, those of a process that only imports the same
are taken off, so that what is left is work. The files are in the page cache: they have just been read.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from machine import machine
from safetensors.torch import save_file

ROOT = Path(__file__).resolve().parent.parent
MODERNIZE = (sys.executable, "-m", "modernize")
KILO = 1 if sys.platform == "darwin" else 1024  # bytes in the unit of ru_maxrss


@dataclass(frozen=True, kw_only=True)
class Size:
    """The shape of a GPT-2."""

    n_layer: int
    n_head: int
    n_embd: int
    block_size: int = 1024
    vocab_size: int = 50257

    @property
    def largest(self) -> int:
        """Bytes of its largest tensor, the token embedding."""
        return 4 * self.vocab_size * self.n_embd


SIZES = {
    "GPT-2 small": Size(n_layer=12, n_head=12, n_embd=768),
    "GPT-2 XL": Size(n_layer=48, n_head=25, n_embd=1600),
}
TINY = {"tiny": Size(n_layer=2, n_head=2, n_embd=16, block_size=8, vocab_size=100)}
FORMATS = {"torch zip": "pt", "safetensors": "safetensors"}
# a process that does the work in the plainest way, and one that only imports what that needs
PLAIN = {
    "torch zip": ("import sys, torch", "torch.save(torch.load(sys.argv[1]), sys.argv[2])"),
    "safetensors": (
        "import sys; from safetensors.torch import load_file, save_file",
        "save_file(load_file(sys.argv[1]), sys.argv[2])",
    ),
}
CONVERT = "modernize convert --init fold"
# A process starts with the peak of the one that starts it, so that one has to be small.
WAIT = """
import os, subprocess, sys, time
began = time.perf_counter()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, used = os.wait4(process.pid, 0)
print(time.perf_counter() - began, used.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""
PLAINEST = "load and save"
COPIES = ("cp", PLAINEST, CONVERT)
WAYS = (*COPIES, "modernize inspect", "modernize inspect --json")
IMPORTS = {
    CONVERT: "import modernize.cli, modernize.commands.files, modernize.conversion, modernize.show",
    "modernize inspect": "import modernize.cli, modernize.commands.files, modernize.inspection, modernize.show",
}
IMPORTS["modernize inspect --json"] = IMPORTS["modernize inspect"]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds and peak memory in bytes."""

    seconds: float
    memory: float


def make(size: Size, folder: Path) -> None:
    """Write the model's files: random weights, the head tied."""
    random = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random).mul_(0.02)

    d = size.n_embd
    state = {"transformer.wte.weight": normal(size.vocab_size, d), "transformer.wpe.weight": normal(size.block_size, d)}
    for i in range(size.n_layer):
        for name, out, width in (
            ("attn.c_attn", 3 * d, d), ("attn.c_proj", d, d), ("mlp.c_fc", 4 * d, d), ("mlp.c_proj", d, 4 * d)
        ):  # fmt: skip
            state[f"transformer.h.{i}.{name}.weight"] = normal(out, width)
            state[f"transformer.h.{i}.{name}.bias"] = normal(out)
        for name in ("ln_1", "ln_2"):
            state |= {f"transformer.h.{i}.{name}.weight": 1 + normal(d), f"transformer.h.{i}.{name}.bias": normal(d)}
    state |= {"transformer.ln_f.weight": 1 + normal(d), "transformer.ln_f.bias": normal(d)}
    save_file(state, folder / "old.safetensors")
    state["lm_head.weight"] = state["transformer.wte.weight"]
    settings = {name: getattr(size, name) for name in ("n_layer", "n_head", "n_embd", "block_size", "vocab_size")}
    torch.save({"model": state, "model_args": {**settings, "bias": True, "dropout": 0.0}}, folder / "old.pt")


def cost(command: Sequence[str]) -> Cost:
    """Run a process to its end. Raises RuntimeError where it fails."""
    done = subprocess.run((sys.executable, "-c", WAIT, *command), check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stderr}")
    seconds, peak = map(float, done.stdout.split())
    return Cost(seconds=seconds, memory=peak * KILO)


def commands(way: str, format_: str, size: Size, folder: Path) -> tuple[Sequence[str], Sequence[str]]:
    """What does the work, and what only imports for it; none for `cp`."""
    old, new = str(folder / f"old.{FORMATS[format_]}"), str(folder / "new.safetensors")
    facts = ("--dialect", "nanogpt", "--n-head", str(size.n_head), "--activation", "gelu")
    if way == "cp":
        return ("cp", old, new), ()
    if way == PLAINEST:
        imports, work = PLAIN[format_]
        return (sys.executable, "-c", f"{imports}; {work}", old, new), (sys.executable, "-c", imports)
    imported = (sys.executable, "-c", IMPORTS[way])
    if way == CONVERT:
        return (*MODERNIZE, "convert", old, new, "--init", "fold", *facts), imported
    return (*MODERNIZE, "inspect", old, *facts, *(["--json"] if way.endswith("--json") else [])), imported


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What processes cost that work, and what those cost that import the same."""

    works: list[Cost]
    imports: list[Cost]

    def work(self) -> Cost:
        """What the work alone costs."""
        seconds, memory = (
            median(getattr(cost, what) for cost in self.works)
            - (median(getattr(cost, what) for cost in self.imports) if self.imports else 0)
            for what in ("seconds", "memory")
        )
        return Cost(seconds=seconds, memory=memory)


Key = tuple[str, str, str]  # model, format, way


def measure(way: str, format_: str, size: Size, folder: Path, into: Measured) -> None:
    """Once."""
    work, imports = commands(way, format_, size, folder)
    os.sync()  # what others have written is not waited for
    into.works.append(cost(work))
    (folder / "new.safetensors").unlink(missing_ok=True)
    if imports:
        into.imports.append(cost(imports))


def page(results: Mapping[Key, Measured], sizes: Mapping[str, Size], start: Mapping[str, Sequence[Cost]]) -> str:
    """The tables."""
    lines = [
        "# Speed and memory of a conversion\n",
        f"Written by `python benchmarks/convert.py`. Machine: {machine()}.\n",
        "Random weights in float32, `--init fold`, files in the page cache. Medians; what a process costs that only "
        "imports the same is taken off. The ratio is to the plainest load and save of the same file, by `torch` or "
        "`safetensors`, which neither hashes what it reads nor waits until all is on the disk, as a conversion does. "
        "Memory is the peak of the process, also in sizes of the largest tensor.\n",
        "| model | file | way | seconds | ratio | peak memory, MB | largest tensors |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (name, format_, way), measured in results.items():
        found, plain = measured.work(), results[name, format_, PLAINEST].work()
        ratio = f"{found.seconds / plain.seconds:.2f}" if plain.seconds > 0 and way in COPIES else ""
        peak = f"{found.memory / 1e6:.0f} | {found.memory / sizes[name].largest:.2f}"
        lines.append(f"| {name} | {format_} | {way} | {found.seconds:.2f} | {ratio} | {peak} |")
    lines += ["", "| start | seconds | ratio |", "| --- | --- | --- |"]
    least = median(c.seconds for c in start["import typer"])
    for what, found_start in start.items():
        seconds = median(c.seconds for c in found_start)
        lines.append(f"| `{what}` | {seconds:.3f} | {seconds / least:.2f} |")
    return "\n".join(lines) + "\n"


START: dict[str, Sequence[str]] = {
    "import typer": (sys.executable, "-c", "import typer"),
    "modernize --help": (*MODERNIZE, "--help"),
}


def run(sizes: Mapping[str, Size], repeats: int, folder: Path) -> str:
    """Make the files, measure everything in turns, and give the page."""
    results = {(name, f, way): Measured(works=[], imports=[]) for name in sizes for f in FORMATS for way in WAYS}
    for name, size in sizes.items():
        # in a process of its own, so that this one stays small
        cost((sys.executable, __file__, "--make", str(folder), "--sizes", name))
        for _ in range(repeats):
            for format_ in FORMATS:
                for way in WAYS:
                    into = results[name, format_, way]
                    measure(way, format_, size, folder, into)
                    seconds, memory = into.works[-1].seconds, into.works[-1].memory
                    print(f"{name}, {format_}, {way}, with imports: {seconds:.2f} s, {memory / 1e6:.0f} MB", flush=True)
        for suffix in FORMATS.values():
            (folder / f"old.{suffix}").unlink()
    start = {what: [cost(command) for _ in range(2 * repeats + 1)] for what, command in START.items()}
    return page(results, sizes, start)


def main() -> None:
    """Measure, and write the page."""
    every = SIZES | TINY
    parser = argparse.ArgumentParser(description="Time and memory of a conversion, beside a plain load and save.")
    parser.add_argument("--sizes", nargs="*", default=list(SIZES), choices=list(every))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the files are made; by default a temporary one")
    parser.add_argument("--small", action="store_true", help="a tiny model, once, and no page")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "speed.md")
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.make:
        make(every[given.sizes[0]], given.make)
        return
    chosen = TINY if given.small else {name: every[name] for name in given.sizes}
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        said = run(chosen, 1 if given.small else given.repeats, Path(folder))
    print(said)
    if not given.small:
        given.out.write_text(said, encoding="utf-8")


if __name__ == "__main__":
    main()
