"""Fixtures that many tests share. Tiny models are made in `tiny.py`; nothing is downloaded."""

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it, and what it starts too

ROOT = Path(__file__).parent.parent
CHECKPOINTS = Path(os.environ.get("MODERNIZE_CHECKPOINTS", ROOT.parent / "shared" / "checkpoints"))


@pytest.fixture(autouse=True)
def _no_gpu(request, monkeypatch):
    """What isn't for a GPU is for the CPU, also on a machine that has one."""
    if request.node.get_closest_marker("gpu") is None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # of other processes; this one must not have asked yet


@dataclass
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        import json

        return json.loads(self.out)


@pytest.fixture
def run(capsys, monkeypatch):
    """Run the command line in this process: `run("inspect", path)` gives code, out, err."""
    from modernize.cli import main

    def call(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["modernize", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        captured = capsys.readouterr()
        return Result(int(end.value.code or 0), captured.out, captured.err)

    return call


@pytest.fixture(scope="session")
def checkpoints() -> Path:
    """The folder of real checkpoints; tests that need it skip where there is none."""
    if not CHECKPOINTS.is_dir():
        pytest.skip("no real checkpoints here (MODERNIZE_CHECKPOINTS)")
    return CHECKPOINTS


@pytest.fixture
def nano(tmp_path):
    """A tiny nanoGPT checkpoint with biases and a tied head, as a path."""
    import tiny

    return tiny.save_nano(tmp_path / "nano.pt", tiny.spec())


@pytest.fixture
def data(tmp_path):
    """A folder with train.bin and val.bin for the tiny model."""
    import tiny

    return tiny.write_bin(tmp_path / "data", tiny.spec())


@pytest.fixture
def new(run, nano, tmp_path):
    """The tiny checkpoint converted by the exact moves, as a path."""
    path = tmp_path / "new.safetensors"
    assert run("convert", nano, path, "--init", "fold").code == 0
    return path
