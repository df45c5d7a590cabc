"""What a conversion takes: no more than some blocks and its largest tensors, and a way out at any time."""

import resource
import signal
import subprocess
import sys
import time

import pytest
import tiny
import torch
from safetensors.torch import save_file

from modernize.checkpoint import open_checkpoint

LARGEST = 4 * 60_000 * 256  # bytes of the embedding: 61 MB of a file of 65 MB
SPEC = tiny.spec(n_layer=2, n_head=4, n_embd=256, n_inner=512, block_size=32, vocab_size=60_000, biases=())
FACTS = ("--n-head", "4", "--activation", "gelu", "--dialect", "nanogpt")
IMPORTS = "import modernize.cli, modernize.commands.files, modernize.conversion, modernize.show"
PEAK = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
_, status, used = os.wait4(process.pid, 0)
print(used.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.fixture(scope="module", params=["pt", "safetensors", "transposed"])
def large(request, tmp_path_factory):
    """A model whose vocabulary is most of it."""
    keys = tiny.as_dialect(tiny.jittered(SPEC), SPEC, tiny.dialect("nanogpt"))
    keys = {name: tensor.float() for name, tensor in keys.items()}
    path = tmp_path_factory.mktemp("large") / "old"
    if request.param == "transposed":  # as a kernel of JAX that was turned
        keys["transformer.wte.weight"] = keys["transformer.wte.weight"].t().contiguous().t()
    if request.param == "safetensors":
        save_file({name: tensor.clone() for name, tensor in keys.items()}, path)
    else:
        torch.save(keys, path)
    return path


def peak(*command):
    """Peak memory of a process in bytes; a process starts with that of the one that starts it, so that one is small."""
    told = subprocess.run([sys.executable, "-c", PEAK, *map(str, command)], capture_output=True, text=True, check=True)
    return int(told.stdout) * (1 if sys.platform == "darwin" else 1024)


def test_a_conversion_takes_less_than_a_few_of_the_largest_tensor(large, tmp_path):
    convert = (
        sys.executable,
        "-m",
        "modernize",
        "convert",
        large,
        tmp_path / "new.safetensors",
        "--init",
        "fold",
        *FACTS,
    )
    # a transposed table is held whole while it is turned
    bound = 3.0 if not open_checkpoint(large).by_rows("transformer.wte.weight") else 2.5
    assert peak(*convert) - peak(sys.executable, "-c", IMPORTS) < bound * LARGEST


def test_a_transposed_table_is_read_once(large, tmp_path, monkeypatch):
    read = []
    source = open_checkpoint(large).source
    fill = type(source)._fill
    monkeypatch.setattr(
        type(source), "_fill", lambda self, place, into: (read.append(into.nbytes), fill(self, place, into))
    )
    from modernize.conversion import convert
    from modernize.facts import Facts

    convert(
        large, tmp_path / "new.safetensors", init="fold", facts=Facts(n_head=4, activation="gelu", dialect="nanogpt")
    )
    assert sum(read) < 8 * LARGEST


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="signals of POSIX")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_of_a_conversion_is_one_whatever_computes(large, tmp_path, sent):
    """Three at moments that differ: with the part begun, and a little later."""
    for number, later in enumerate((0.0, 0.03, 0.1)):
        folder = tmp_path / str(number)
        folder.mkdir()
        process = subprocess.Popen(
            [sys.executable, "-m", "modernize", "convert", large, folder / "new.safetensors", "--init", "fold", *FACTS],
            stderr=subprocess.PIPE,
        )
        while not list(folder.iterdir()) and process.poll() is None:
            time.sleep(0.005)
        time.sleep(later)
        process.send_signal(sent)
        said = process.communicate(timeout=60)[1]
        done = process.returncode in (0, -sent)  # it was over, or in its last moments
        assert done or process.returncode == 128 + sent, said
        assert [file.name for file in folder.iterdir()] == (["new.safetensors"] if done else [])


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="limits of POSIX")
def test_a_full_disk_is_one_whatever_computes(large, tmp_path):
    process = subprocess.run(
        [sys.executable, "-m", "modernize", "convert", large, tmp_path / "new.safetensors", "--init", "fold", *FACTS],
        stderr=subprocess.PIPE, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20 << 20, 20 << 20)),
    )  # fmt: skip
    assert (process.returncode, list(tmp_path.iterdir())) == (4, []), process.stderr
