"""A run that was stopped goes on as if it had not been: same bytes, or a sentence that says what is not the same."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import modernize
from modernize.errors import OutputRefused, TrainingStopped, UnreadableFile, UsageError
from modernize.events import Notice, Saved, Settings, Started, Stepped
from modernize.facts import Facts
from modernize.interrupts import caught
from modernize.loading import load
from modernize.model import Block
from modernize.run import Run
from modernize.tune import Job, Tuned, run_file, tune


@pytest.fixture
def job(new, nano, data, tmp_path):
    def make(name="out", *, resume=False, force=False, taught=True, **settings):
        return Job(
            checkpoint=new,
            data=str(data),
            output=tmp_path / f"{name}.safetensors",
            teacher=nano if taught else None,
            tokenizer=None,
            data_dtype="uint16",
            facts=Facts(),
            weights="model",
            log=tmp_path / f"{name}.jsonl",
            plot=None,
            force=force,
            resume=resume,
            settings=Settings(**{"steps": 12, "batch_size": 4, "device": "cpu", "eval_every": 4, **settings}),
        )

    return make


def stop_before(step):
    """Ask to stop before a step, counted from 1, is made."""
    asked = iter([False] * (step - 1) + [True] * 100)
    return lambda: next(asked)


def end_of(events):
    found = list(events)
    assert isinstance(found[-1], Tuned)
    return found[-1].finished


@pytest.mark.parametrize("options", [{}, {"optimizer": "adamw", "grad_accum": 2}, {"dtype": "float16"}], ids=str)
@pytest.mark.parametrize("step", [1, 2, 5, 12])
def test_a_resumed_run_gives_the_same_bytes(job, step, options):
    whole = job("whole", **options)
    end = end_of(tune(whole))
    part = job("part", **options)
    cut = end_of(tune(part, stop=stop_before(step)))
    assert (cut.stopped, cut.steps) == ("interrupted", step - 1)
    assert run_file(part.output).exists()
    torch.manual_seed(99)
    rest = end_of(tune(job("part", resume=True, **options)))
    assert part.output.read_bytes() == whole.output.read_bytes()
    assert (rest.steps, rest.tokens, rest.before, rest.after, rest.best, rest.old, rest.stopped) == (
        12, end.tokens, end.before, end.after, end.best, end.old, "steps",
    )  # fmt: skip
    assert not run_file(part.output).exists()
    assert losses(part.log) == losses(whole.log)


def history_of(path):
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["modernize"])["finetunes"]


def losses(log):
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    return [(row["event"], row["step"], row["loss"]) for row in rows if row["event"] in {"stepped", "validated"}]


def test_a_run_can_be_stopped_twice(job):
    whole = job("whole")
    end_of(tune(whole))
    end_of(tune(job("part"), stop=stop_before(4)))
    assert end_of(tune(job("part", resume=True), stop=stop_before(4))).steps == 6
    end_of(tune(job("part", resume=True)))
    assert job("part").output.read_bytes() == whole.output.read_bytes()


def test_a_crash_loses_what_came_after_the_last_save(job):
    whole = job("whole")
    end_of(tune(whole))
    events = tune(job("part", checkpoint_every=5))
    seen = []
    for event in events:
        seen.append(event)
        if isinstance(event, Stepped) and event.step == 8:
            break
    events.close()
    assert [e.step for e in seen if isinstance(e, Saved)] == [5]
    assert not job("part").output.exists()
    found = list(tune(job("part", resume=True)))
    assert next(e for e in found if isinstance(e, Started)).done == 5
    assert job("part").output.read_bytes() == whole.output.read_bytes()


def test_saving_changes_nothing(job):
    end_of(tune(job("whole")))
    found = list(tune(job("part", checkpoint_every=3)))
    assert [e.step for e in found if isinstance(e, Saved)] == [3, 6, 9]
    one, other = (job(name).output.read_bytes() for name in ("whole", "part"))
    assert one == other


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"lr": 1e-3}, "--lr is 0.001, and was left out "),
        ({"steps": 13}, "--steps is 13, and was 12 "),
        ({"taught": False}, r"--teacher \(sha256\) is left out, and was [0-9a-f]{12}"),
    ],
    ids=str,
)
def test_a_changed_option_is_named(job, change, named):
    end_of(tune(job(), stop=stop_before(3)))
    with pytest.raises(Exception, match=named) as caught:
        end_of(tune(job(resume=True, **change)))
    assert caught.value.exit_code == 2


def test_changed_data_are_named(job, data):
    end_of(tune(job(), stop=stop_before(3)))
    raw = bytearray((data / "train.bin").read_bytes())
    raw[0] ^= 1
    (data / "train.bin").write_bytes(raw)
    with pytest.raises(Exception, match="--data"):
        end_of(tune(job(resume=True)))


def test_only_files_of_the_run_are_replaced(job, tmp_path):
    end_of(tune(job(), stop=stop_before(3)))
    precious = tmp_path / "precious.jsonl"
    precious.write_text("mine")
    with pytest.raises(OutputRefused, match="exists already"):
        end_of(tune(replace(job(resume=True), log=precious)))
    assert precious.read_text() == "mine"
    before = job().log.read_bytes()
    with pytest.raises(UsageError, match="--lr"):
        end_of(tune(job(resume=True, lr=1.0)))
    assert job().log.read_bytes() == before
    with pytest.raises(UsageError, match="same file"):
        end_of(tune(replace(job("other"), log=run_file(job("other").output))))


def test_a_gradient_that_always_overflows_ends_the_run(job, monkeypatch):
    real = Run._update

    def spoil(self, loss):
        self.model.wte.weight.grad[0, 0] = float("inf")
        real(self, loss)

    monkeypatch.setattr(Run, "_update", spoil)
    with pytest.raises(TrainingStopped, match="overflows in float16"):
        end_of(tune(job(dtype="float16", steps=100)))


def test_a_saved_run_is_not_overwritten_unasked(job):
    end_of(tune(job(), stop=stop_before(3)))
    job().output.unlink()
    job().log.unlink()
    with pytest.raises(Exception, match="a run that would write") as caught:
        end_of(tune(job()))
    assert caught.value.exit_code == 4
    assert end_of(tune(job(force=True))).stopped == "steps"
    assert not run_file(job().output).exists()


def test_nothing_to_resume_is_a_beginning(job):
    found = list(tune(job(resume=True)))
    assert any("begins at the beginning" in event.text for event in found if isinstance(event, Notice))
    assert isinstance(found[-1], Tuned)


def test_a_run_that_was_killed_before_its_first_save_begins_anew_with_its_log(job, tmp_path):
    for event in tune(job()):
        if isinstance(event, Stepped) and event.step == 2:
            break
    assert job().log.exists()
    assert end_of(tune(job(resume=True))).steps == 12
    rows = [json.loads(line) for line in job().log.read_text().splitlines()]
    assert [row["step"] for row in rows if row["event"] == "stepped"] == list(range(1, 13))


@pytest.mark.parametrize("of_whom", ["another run", "nobody", "too deep", "a finished one", "one whose output moved"])
def test_a_log_that_this_run_did_not_begin_is_kept(job, of_whom):
    other = job("other" if of_whom == "another run" else "out")
    if of_whom in {"nobody", "too deep"}:
        other.log.write_text('{"event": 1}\n[]\n' if of_whom == "nobody" else "[" * 200_000 + "\n")
    else:
        end_of(tune(other))
    if of_whom == "one whose output moved":
        other.output.rename(other.output.with_name("kept.safetensors"))
    before = other.log.read_bytes()
    with pytest.raises(OutputRefused, match="exists already"):
        end_of(tune(replace(job(resume=True), log=other.log)))
    assert other.log.read_bytes() == before


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_log_that_is_a_pipe_is_refused_and_not_read(job):
    os.mkfifo(job().log)
    with pytest.raises(OutputRefused, match="a pipe"):
        end_of(tune(job(resume=True)))


def test_what_was_told_of_a_save_is_in_the_log_of_the_run_that_goes_on(job):
    options = {"checkpoint_every": 3}
    end_of(tune(job("whole", **options)))
    end_of(tune(job(**options), stop=stop_before(7)))
    end_of(tune(job(resume=True, **options)))
    logs = [[json.loads(line) for line in job(name).log.read_text().splitlines()] for name in ("whole", "out")]
    saves = [[row["step"] for row in rows if row["event"] == "saved"] for rows in logs]
    assert saves == [[3, 6, 9]] * 2


def test_a_run_that_was_just_saved_is_not_saved_again(job):
    found = list(tune(job(checkpoint_every=3), stop=stop_before(4)))
    assert [event.step for event in found if isinstance(event, Saved)] == [3]
    assert found[-1].finished.stopped == "interrupted"


def test_one_run_at_a_time_writes_an_output(job):
    first = tune(job())
    next(event for event in first if isinstance(event, Stepped))
    for options in ({}, {"resume": True}, {"force": True}):
        with pytest.raises(OutputRefused, match=r"another run that writes \S+ is going on"):
            end_of(tune(job(**options)))
    assert end_of(tune(job("other"))).stopped == "steps"
    assert end_of(first).stopped == "steps"
    assert not list(job().output.parent.glob(".*.lock"))


def test_a_lock_that_a_killed_run_left_holds_nobody_up(job):
    place = job().output.with_name(".out.safetensors.lock")
    place.write_bytes(b"")
    assert end_of(tune(job())).stopped == "steps"
    assert not place.exists()


@pytest.mark.parametrize("of", ["tensors", "facts"])
def test_changed_bytes_of_a_saved_run_are_found(job, of):
    end_of(tune(job(), stop=stop_before(3)))
    saved = run_file(job().output)
    raw = bytearray(saved.read_bytes())
    if of == "tensors":
        raw[-1000] ^= 1
    else:
        place = raw.index(b'\\"lr\\": 0.') + len('\\"lr\\": 0.')
        raw[place] = ord("1") if raw[place] != ord("1") else ord("2")
    saved.write_bytes(raw)
    with pytest.raises(UnreadableFile, match="it is not as it was saved"):
        end_of(tune(job(resume=True)))


def test_a_run_file_that_holds_too_little_is_refused(job):
    save_file({"a": torch.zeros(1)}, run_file(job().output), {"modernize_run": '{"schema": 3, "facts": {}}'})
    with pytest.raises(UnreadableFile, match="it has no identity, outputs, sha256"):
        end_of(tune(job(resume=True)))


def test_a_damaged_run_file_is_told_also_where_outputs_are_there(job):
    end_of(tune(job(), stop=stop_before(3)))
    saved = run_file(job().output)
    saved.write_bytes(saved.read_bytes()[:-100])
    assert job().output.exists()
    with pytest.raises(UnreadableFile, match="no run that can be resumed"):
        end_of(tune(job(resume=True)))


@pytest.mark.parametrize("command", ["eval", "finetune", "inspect", "convert"])
def test_a_saved_run_is_no_model(run, job, data, tmp_path, command):
    end_of(tune(job(), stop=stop_before(3)))
    saved = run_file(job().output)
    more = {"inspect": (), "convert": (tmp_path / "x.safetensors",)}.get(command, ("--data", data))
    found = run(command, saved, *more)
    assert found.code == 3
    assert f"error: {saved} is a run that was saved, not a model" in found.err
    assert "--resume" in found.err


@pytest.mark.parametrize("raw", [b"", b"not a run", b"\x08\0\0\0\0\0\0\0{}      "])
def test_a_damaged_run_file_is_refused(job, raw):
    run_file(job().output).write_bytes(raw)
    with pytest.raises(Exception, match="no run that can be resumed") as caught:
        end_of(tune(job(resume=True)))
    assert caught.value.exit_code == 3


def test_a_run_file_holds_tensors_and_json(job):
    end_of(tune(job(), stop=stop_before(6)))
    with safe_open(run_file(job().output), framework="pt") as file:
        parts = {"model", "best", "optimizer", "matching", "random", "history"}
        assert {name.split(".")[0] for name in file.keys()} == parts  # noqa: SIM118
        plain = json.loads(file.metadata()["modernize_run"])
        history = json.loads(file.get_tensor("history").numpy().tobytes())
    assert plain["facts"]["done"] == 5
    assert [row["step"] for row in history if row["event"] == "stepped"] == [1, 2, 3, 4, 5]


# ------------------------------------------------------------------------------------------ signals

ENDLESS = ("--steps", "100000", "--batch-size", "4", "--device", "cpu", "--eval-every", "100000", "--json")


def started(new, data, *options):
    """A long run as a process of its own, that has begun to train."""
    process = subprocess.Popen(
        [sys.executable, "-m", "modernize", "finetune", str(new), "--data", str(data), *ENDLESS, *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    said = []
    for line in process.stderr:
        said.append(line)
        if "100000 steps of" in line:
            break
    return process, "".join(said)


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_once_and_leaves(new, data, tmp_path, sent, code):
    process, _ = started(new, data)
    process.send_signal(sent)
    answer, said = process.communicate(timeout=120)
    assert process.returncode == code, said
    report = json.loads(answer)
    assert report["stopped"] == "interrupted"
    assert "once more to leave at once" in said
    assert "the run is saved in" in said
    out = tmp_path / "new-finetuned.safetensors"
    assert load(out).vocab_size == 61
    assert run_file(out).exists()
    assert not list(tmp_path.glob(".*.part"))
    # and it goes on from there, until the next one
    process, first = started(new, data, "--resume")
    process.send_signal(sent)
    answer, said = process.communicate(timeout=120)
    assert process.returncode == code, said
    assert f"resumed after step {report['steps']}" in first
    assert json.loads(answer)["steps"] >= report["steps"]


def train(interrupts):
    """As far as the event with which training starts."""
    started = Started(
        steps=1, done=0, before=1.0, old=None, lr=1.0, distill=0.5, match=False, batch_size=1, block_size=1, longest=1,
        device="cpu", dtype="float32",
        processes=1, sharded=False, validation_tokens=1,
    )  # fmt: skip
    waited = []
    assert list(interrupts.until_trained(iter([started]), lambda: waited.append(True))) == [started]
    assert waited


@pytest.fixture
def interruptible():
    """Ctrl-C raises KeyboardInterrupt, also where the tests run in the background of a script."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_second_signal_leaves_at_once(monkeypatch):
    """The first is noted, the second goes where it would have gone; under torchrun it is the same one again.

    Before the training, the first one leaves.
    """
    told = []
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), caught(told.append):
        signal.raise_signal(signal.SIGINT)
    assert not told
    with pytest.raises(KeyboardInterrupt), caught(told.append) as interrupts:
        train(interrupts)
        signal.raise_signal(signal.SIGINT)
        assert (interrupts.asked(), interrupts.exit_code, len(told)) == (True, 130, 1)
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == before
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    with caught(told.append) as interrupts:
        train(interrupts)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert interrupts.exit_code == 143


def test_signals_that_are_ignored_stay_so():
    """As of a command that a script runs in the background."""
    before, told = signal.signal(signal.SIGINT, signal.SIG_IGN), []
    try:
        with caught(told.append) as interrupts:
            signal.raise_signal(signal.SIGINT)
            assert (interrupts.asked(), told) == (False, [])
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


# ------------------------------------------------------------------------------------------ bad ends


def test_a_loss_that_is_no_number_keeps_the_best_weights(job, monkeypatch):
    """Validated at step 4, ruined at step 6."""
    real = Run._update

    def spoil(self, loss):
        real(self, float("nan") if self.done == 5 else loss)

    monkeypatch.setattr(Run, "_update", spoil)
    with pytest.raises(TrainingStopped, match=r"step 6.*has the weights of step 4"):
        end_of(tune(job(lr=3e-3)))
    kept = load(job().output)
    assert modernize.evaluate(kept, job().data).loss < modernize.evaluate(load(job().checkpoint), job().data).loss
    assert history_of(job().output)[0]["steps"] == 4


@pytest.mark.parametrize(
    ("error", "batch", "hint"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), 4, "--batch-size 2 --grad-accum 2"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), 1, "--block-size 8"),
    ],
)
def test_too_little_memory_says_what_to_try(job, monkeypatch, error, batch, hint):
    def full(self):
        raise error

    monkeypatch.setattr(Run, "_step", full)
    with pytest.raises(UsageError, match="not enough memory on cpu") as found:
        end_of(tune(job(batch_size=batch)))
    assert hint in found.value.hint


def test_recomputed_activations_give_the_same_weights(job, monkeypatch):
    end_of(tune(job("kept")))
    calls, forward = [], Block.forward

    def counted(self, *inputs):
        calls.append(self)
        return forward(self, *inputs)

    monkeypatch.setattr(Block, "forward", counted)
    end_of(tune(job("more")))
    often = len(calls)
    end_of(tune(job("again", activation_checkpointing=True)))
    assert len(calls) - often == often + 12 * 2  # each of two blocks once more a step
    kept, again = (load(job(name).output).state_dict() for name in ("kept", "again"))
    assert all(torch.equal(kept[name], again[name]) for name in kept)


def test_a_run_stops_when_the_old_loss_is_reached(job):
    whole = end_of(tune(job("whole", lr=3e-3)))
    rows = [json.loads(line) for line in job("whole").log.read_text().splitlines()]
    first = next(row for row in rows if row["event"] == "validated")
    assert first["step"] == 4
    almost = max(0.0, first["loss"] - whole.old + 1e-6)
    assert whole.before > whole.old + almost
    found = end_of(tune(job(until_recovered=True, tolerance=almost, lr=3e-3)))
    assert (found.stopped, found.steps) == ("recovered", 4)
    found = end_of(tune(job("near", until_recovered=True, tolerance=100.0)))
    assert (found.stopped, found.steps, found.tokens, found.best) == ("recovered", 0, 0, whole.before)
    found = end_of(tune(job("far", until_recovered=True, lr=1e-9)))
    assert (found.stopped, found.steps) == ("steps", 12)
    assert found.best > found.old
    with pytest.raises(UsageError, match="needs the old model"):
        end_of(tune(job(until_recovered=True, taught=False, force=True)))
