"""Memory that a process keeps for its next step."""

import subprocess
import sys

import pytest
import torch

from modernize import memory

BLOCKS_AGAIN = """
import resource

import torch

from modernize.memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(1 << 24)  # 64 MB, more than glibc ever keeps of itself
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

given_back = faults()
if keep_freed_memory(torch.device("cpu")):
    faults()
    print(given_back, faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc alone is asked to")
def test_a_block_that_was_freed_is_taken_again_as_it_is():
    done = subprocess.run([sys.executable, "-c", BLOCKS_AGAIN], check=True, capture_output=True, text=True)
    if not done.stdout:
        pytest.skip("this C library has no mallopt")
    given_back, kept = map(int, done.stdout.split())
    assert kept < given_back / 10


def test_what_gives_nothing_back_anyway_is_left_as_it_is(monkeypatch):
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: object())
    assert not memory.keep_freed_memory(torch.device("cpu"))  # a C library without mallopt
    monkeypatch.setattr(memory.ctypes, "CDLL", None)
    assert not memory.keep_freed_memory(torch.device("cuda"))
    with monkeypatch.context() as said:
        said.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
        assert not memory.keep_freed_memory(torch.device("cpu"))
    monkeypatch.setattr(memory.sys, "platform", "darwin")
    assert not memory.keep_freed_memory(torch.device("cpu"))


def test_a_fine_tune_keeps_it(run, new, data, monkeypatch):
    asked = []
    monkeypatch.setattr("modernize.memory.keep_freed_memory", asked.append)
    assert run("finetune", new, "--data", data, "--steps", "1", "--device", "cpu").code == 0
    assert asked == [torch.device("cpu")]
