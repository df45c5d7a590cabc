"""Two processes on the CPU do what one does with the same batch: as DDP, cut up, and when a run changes hands."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from modernize import boundary
from modernize.boundary import _is_told_here
from modernize.data import IGNORED, Corpus
from modernize.errors import (
    BadData,
    ModernizeError,
    OneProcess,
    OutOfMemory,
    OutputRefused,
    ProcessFailed,
    TrainingStopped,
    UnreadableFile,
    UsageError,
)
from modernize.events import Settings
from modernize.facts import Facts
from modernize.feed import Feed
from modernize.interrupts import LAUNCHED
from modernize.loading import load
from modernize.parallel import World, join
from modernize.run import Run
from modernize.tune import Job, run_file, tune

pytestmark = pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="no gloo here")


def job_of(new, nano, data, output, *, log=None, **settings):
    return Job(
        checkpoint=new,
        data=str(data),
        output=output,
        teacher=nano,
        tokenizer=None,
        data_dtype="uint16",
        facts=Facts(),
        weights="model",
        log=log,
        plot=None,
        force=False,
        resume=False,
        settings=Settings(batch_size=4, device="cpu", **settings),
    )


@pytest.fixture
def finetune(new, nano, data, tmp_path):
    """Run the command in some processes; gives its JSON, the losses of its log, and the tensors that it wrote."""

    def call(name, *options, processes, code=0):
        run = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m", "--"]
        module = run if processes > 1 else ["-m"]  # what comes after `--` is not torchrun's, which has a --log-dir
        out, log = tmp_path / f"{name}.safetensors", tmp_path / f"{name}.jsonl"
        done = subprocess.run(
            [
                sys.executable, *module, "modernize", "finetune", str(new), "--data", str(data),
                "--teacher", str(nano), "--steps", "6", "--eval-every", "3", "--batch-size", "4", "--device", "cpu",
                "-o", str(out), "--log", str(log), "--json", *options,
            ],
            capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
        )  # fmt: skip
        assert (done.returncode == 0) == (code == 0), done.stderr
        if code:
            return done.stderr
        rows = [json.loads(line) for line in log.read_text().splitlines()]
        losses = [row["loss"] for row in rows if row["event"] in {"stepped", "validated"}]
        return json.loads(done.stdout), losses, load(out).state_dict()

    return call


@pytest.mark.parametrize(
    ("options", "close"),
    [
        (("--optimizer", "adamw", "--batch-size", "5"), 1e-5),
        (("--optimizer", "adamw", "--grad-accum", "2"), 1e-5),
        (("--optimizer", "adamw", "--grad-accum", "2", "--shard"), 1e-5),
        (("--shard",), 2e-4),  # Muon may orthogonalise in bfloat16, and parts are summed in another order
    ],
    ids=["ddp, an odd batch", "ddp, two batches", "shard, two batches", "shard with muon"],
)
def test_two_processes_do_what_one_does(finetune, tmp_path, options, close):
    report, losses, weights = finetune("one", *options, processes=1)
    both, shared, theirs = finetune("two", *options, processes=2)
    rows = [json.loads(line) for line in (tmp_path / "two.jsonl").read_text().splitlines()]
    began = next(row for row in rows if row["event"] == "started")
    assert (began["processes"], began["sharded"]) == (2, "--shard" in options)
    assert len(losses) == 8
    assert shared == pytest.approx(losses, abs=close)
    assert (both["tokens"], both["steps"]) == (report["tokens"], 6)
    assert both["loss"] == pytest.approx(report["loss"], abs=close)
    for name in weights:
        torch.testing.assert_close(theirs[name], weights[name], rtol=0, atol=10 * close)


def test_a_run_of_one_process_is_resumed_by_two(finetune, new, nano, data, tmp_path):
    _, losses, _ = finetune("one", processes=1)
    asked = iter([False] * 4 + [True] * 100)
    job = job_of(new, nano, data, tmp_path / "two.safetensors", log=tmp_path / "two.jsonl", steps=6, eval_every=3)
    assert list(tune(job, stop=lambda: next(asked)))[-1].finished.steps == 4
    _, shared, _ = finetune("two", "--shard", "--resume", processes=2)
    assert shared == pytest.approx(losses, abs=2e-4)


def test_a_signal_to_the_launcher_saves_the_run_once(new, data, tmp_path):
    out = tmp_path / "out.safetensors"
    process = subprocess.Popen(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "--",
            "modernize", "finetune", str(new), "--data", str(data), "--steps", "100000", "--eval-every", "100000",
            "--batch-size", "4", "--device", "cpu", "-o", str(out),
        ],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    for line in process.stdout:
        if "100000 steps of" in line:
            break
    process.terminate()
    said, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert said.count("the run is saved in") == 1
    assert run_file(out).exists()
    assert load(out).vocab_size == 61
    assert not list(tmp_path.glob(".*.part"))


def test_a_batch_that_cannot_be_shared_is_refused_once(finetune):
    said = finetune("odd", "--batch-size", "1", processes=2, code=2)
    assert said.count("error: a batch of 1 windows is too small to be shared by 2 processes") == 1
    assert "--batch-size 2" in said


@pytest.mark.parametrize("processes", [2, 3, 5])
def test_what_is_drawn_does_not_depend_on_how_many_share_it(processes):
    corpus = Corpus(name="ids", train=np.arange(1, 400), val=np.arange(1, 40))
    settings = Settings(batch_size=9, block_size=8, target_context=20)
    alone, shared = (Feed.of(corpus, settings, vocab_size=400, processes=count) for count in (1, processes))
    lengths = set()
    for _ in range(30):
        (x, y), (padded_x, padded_y) = alone.draw(1)[0], shared.draw(1)[0]
        lengths.add((len(x), x.shape[1]))
        assert len(padded_x) == len(padded_y) == processes * shared.windows_each(x.shape[1])
        assert np.array_equal(padded_x[: len(x)], x)
        assert np.array_equal(padded_y[: len(y)], y)
        assert (padded_y[len(y) :] == IGNORED).all()
    assert lengths == {(9, 8), (3, 20)}


@pytest.mark.parametrize("windows", [1, 3])
def test_batches_lie_in_memory_as_those_that_were_compiled_for(windows):
    corpus = Corpus(name="ids", train=np.arange(1, 400), val=np.arange(1, 40))
    settings = Settings(batch_size=windows, block_size=8, target_context=8)
    for x, y in Feed.of(corpus, settings, vocab_size=400, processes=1).draw(5):
        assert x.strides == y.strides == (8 * 8, 8)
        assert not np.shares_memory(x, y)


@pytest.mark.parametrize(("has", "another_lacks", "found"), [(True, False, True), (True, True, False)])
def test_bfloat16_is_for_all_processes_or_none(monkeypatch, has, another_lacks, found):
    monkeypatch.setattr("modernize.parallel.multiplies_bfloat16", lambda device: has)
    monkeypatch.setattr(World, "any", lambda self, flag, device: flag or another_lacks)
    assert World(size=2).bfloat16(torch.device("cpu")) is found


@pytest.mark.parametrize(
    ("error", "rank", "local", "told"),
    [
        (UsageError, 1, 1, False),
        (OutOfMemory, 1, 1, True),
        (OneProcess, 1, 1, True),
        (ModernizeError, 1, 1, True),
        (ProcessFailed, 1, 1, False),
        (TrainingStopped, 1, 1, False),
        (TrainingStopped, 0, 0, True),
        (OutputRefused, 8, 0, True),
        (BadData, 8, 0, True),
        (BadData, 9, 1, False),
        (TrainingStopped, 8, 0, False),
        (UnreadableFile, 8, 0, True),
        (UnreadableFile, 9, 1, False),
    ],
)
def test_which_of_several_processes_tells_an_error(monkeypatch, error, rank, local, told):
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("LOCAL_RANK", str(local))
    assert _is_told_here(error("so it is", hint="do that")) is told


@pytest.mark.parametrize(("rank", "waits", "said"), [("0", [], "error: so it is"), ("1", [boundary.TELLING], "")])
def test_who_has_nothing_to_tell_leaves_after_the_one_who_does(monkeypatch, capsys, rank, waits, said):
    waited = []
    monkeypatch.setenv(LAUNCHED, "a run")
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("LOCAL_RANK", rank)
    monkeypatch.setattr(boundary.time, "sleep", waited.append)
    monkeypatch.setattr(boundary.signal, "signal", lambda *_: None)
    boundary._say(UsageError("so it is", hint="do that"))
    assert waited == waits
    assert capsys.readouterr().err[: len("error: so it is")] == said


def test_what_is_left_of_a_run_is_written_before_any_process_leaves(new, nano, data, tmp_path, monkeypatch):
    order = []

    class Two(World):
        def wait(self):
            order.append("waited")

    def spoil(self, loss):
        if self.done == 3:
            raise TrainingStopped("step 4: the loss is not a finite number", hint="try less")
        return update(self, loss)

    update = Run._update
    monkeypatch.setattr(Run, "_update", spoil)
    monkeypatch.setattr("modernize.tune.write_tensors", lambda *a: order.append("written"))
    job = job_of(new, nano, data, tmp_path / "out.safetensors", steps=6, eval_every=1, lr=1e-4)
    with pytest.raises(TrainingStopped, match="has the weights of step"):
        list(tune(job, world=Two()))
    assert order[-2:] == ["written", "waited"]


def test_data_that_is_not_there_is_told_once(finetune):
    said = finetune("none", "--data", "missing.txt", processes=2, code=3)
    assert said.count("error: there is no data missing.txt") == 1
    assert "this is a bug" not in said


def test_alone_every_share_is_the_whole():
    batch = torch.arange(8).view(4, 2)
    assert World().share(batch).equal(batch)
    assert World(rank=1, size=2).share(batch).tolist() == [[2, 3], [6, 7]]
    assert not World().any(False, torch.device("cpu"))
    assert World().any(True, torch.device("cpu"))


ONE_FAILS = """
import os, sys, time
import torch
from modernize.cli import main
from modernize.run import Run

torch.distributed.destroy_process_group = lambda: time.sleep(1000)  # as NCCL's may, while others wait
if os.environ["RANK"] == "1":
    def greedy(self):
        raise torch.OutOfMemoryError("no memory left")
    Run._step = greedy
main()
"""


def test_of_several_processes_one_without_memory_says_so_and_none_waits(new, data, tmp_path):
    script = tmp_path / "one_fails.py"
    script.write_text(ONE_FAILS)
    done = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script),
            "finetune", str(new), "--data", str(data), "--steps", "6", "--batch-size", "4", "--device", "cpu",
        ],
        capture_output=True, text=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert done.stderr.count("error: there is not enough memory on cpu for 4 windows of 16 tokens") == 1
    assert "this is a bug" not in done.stderr


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (RuntimeError("[/gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:1"), ProcessFailed),
        (torch.distributed.DistBackendError("NCCL error: remote process exited"), ProcessFailed),
        (RuntimeError("shapes cannot be multiplied"), RuntimeError),
        (torch.OutOfMemoryError("no memory left"), torch.OutOfMemoryError),
    ],
)
def test_a_process_that_others_leave_says_so(monkeypatch, error, wanted):
    calls = []
    for name in ("init_process_group", "new_group", "destroy_process_group"):
        monkeypatch.setattr(torch.distributed, name, lambda *a, name=name, **k: calls.append(name))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError if wanted is not ProcessFailed else ProcessFailed) as met, join("cpu"):
        raise error
    assert type(met.value) is wanted
    assert "destroy_process_group" not in calls
    with join("cpu"):
        pass
    assert calls[-1] == "destroy_process_group"
