"""Run what docs/start.md tells, and write what is said into its blocks.

python docs/start.py

A `console` block holds one command, behind `$`, and what it says on stdout. A `python` block is a program, and the
`text` block behind it what that prints. All run one after the other in a folder of its own, beside `examples/`.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).with_suffix(".md")
EXAMPLES = Path(__file__).parent.parent / "examples"
BLOCKS = re.compile(
    r"(?P<before>```console\n\$ (?P<command>[^\n]*)\n|```python\n(?P<code>[^`]*)```\n\n```text\n)(?P<said>.*?)```",
    re.DOTALL,
)
# what differs from machine to machine, and how it is written
VARIES = (
    (re.compile(r"[\d,]+(?= tokens/s)"), False),
    (re.compile(r"(?<=training time)( +)\d+(?= s$)", re.MULTILINE), True),
    (re.compile(r"(?<=by transformers )\d[\w.]*"), False),
)


@dataclass(frozen=True, kw_only=True)
class Step:
    """A command or a program of the page, and what the page says that it says."""

    command: str
    code: str
    said: str

    def run(self, folder: Path) -> str:
        """What it says now, on stdout. Raises CalledProcessError where it fails."""
        words = shlex.split(self.command) if self.command else ["-c", self.code]
        if self.command:
            if words[0] != "modernize":
                raise ValueError(f"the page runs modernize and nothing else, and not {words[0]}")
            words = ["-m", *words]
        done = subprocess.run(
            [sys.executable, *words],
            cwd=folder,
            env={**os.environ, "PYTHONIOENCODING": "utf-8"},
            stdout=subprocess.PIPE,
            check=True,
            encoding="utf-8",
        )
        return fixed(done.stdout)


def fixed(text: str) -> str:
    """Text without spaces at the ends of lines, and with … for what no two machines have alike."""
    lines = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    for pattern, aligned in VARIES:
        lines = pattern.sub(lambda found, aligned=aligned: "…".rjust(len(found[0]) if aligned else 0), lines)
    return lines


def steps(page: str) -> Iterator[Step]:
    """Every step of a page, in order."""
    for found in BLOCKS.finditer(page):
        yield Step(command=found["command"] or "", code=found["code"] or "", said=found["said"])


def told_again(page: str, folder: Path) -> str:
    """The page with what its steps say now."""
    said = iter([step.run(folder) for step in steps(page)])
    return BLOCKS.sub(lambda found: f"{found['before']}{next(said)}```", page)


def main() -> None:
    """Run the page in a folder that is thrown away."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "examples").symlink_to(EXAMPLES)
        PAGE.write_text(told_again(PAGE.read_text(encoding="utf-8"), folder), encoding="utf-8")


if __name__ == "__main__":
    main()
