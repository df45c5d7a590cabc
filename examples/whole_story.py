"""The whole story on the example checkpoint: inspect, convert, fine-tune 100 steps, compare, sample, export.

Run it after installing: `python examples/whole_story.py`. It takes some two minutes on two CPU cores and leaves what
it makes in a folder that it names.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

OLD = Path(__file__).with_name("pydoc-gpt.pt")


def modernize(*arguments: str | Path) -> None:
    """Show a command, run it, and stop where it fails."""
    words = [str(a) for a in arguments]
    print(f"\n$ modernize {' '.join(repr(w) if ' ' in w else w for w in words)}", flush=True)
    subprocess.run([sys.executable, "-m", "modernize", *words], check=True)


def main() -> None:
    """Tell it."""
    start = time.perf_counter()
    folder = Path(tempfile.mkdtemp(prefix="modernize-"))
    new, tuned = folder / "pydoc-modern.safetensors", folder / "pydoc-tuned.safetensors"
    modernize("inspect", OLD)
    modernize("convert", OLD, new)
    modernize("finetune", new, "--data", "pydoc", "--teacher", OLD, "--steps", "100", "-o", tuned)
    modernize("compare", OLD, tuned, "--data", "pydoc")
    modernize("sample", tuned, "--prompt", "The with statement", "--tokens", "300", "--temperature", "0.7")
    modernize("export", tuned, folder / "pydoc-arcee", "--to", "arcee")
    print(f"\nall of it is in {folder}; {time.perf_counter() - start:.0f} seconds")


if __name__ == "__main__":
    main()
