"""Choices of device and precision, also for devices that are not here; and what runs only where CUDA is."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import torch
from torch.utils import backend_registration

from modernize import devices
from modernize.errors import UsageError
from modernize.events import Settings, Started, Stepped
from modernize.facts import Facts
from modernize.loading import load
from modernize.train import finetune
from modernize.tune import Job, tune

CUDA, MPS, CPU = torch.device("cuda"), torch.device("mps"), torch.device("cpu")


def there(monkeypatch, *, cuda, mps, bf16=True):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: bf16 or including_emulation)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


@pytest.mark.parametrize(
    ("cuda", "mps", "wanted"),
    [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu"), (True, False, "cuda")],
)
def test_auto_takes_cuda_then_mps_then_cpu(monkeypatch, cuda, mps, wanted):
    there(monkeypatch, cuda=cuda, mps=mps)
    assert devices.choose_device("auto").type == wanted


@pytest.mark.parametrize("name", ["cuda", "mps"])
def test_a_device_that_is_not_there_is_refused(monkeypatch, name):
    there(monkeypatch, cuda=False, mps=False)
    with pytest.raises(UsageError, match=f"--device {name}"):
        devices.choose_device(name)


@pytest.mark.parametrize(
    ("name", "device", "bf16", "wanted"),
    [
        ("auto", CUDA, True, torch.bfloat16),
        ("auto", CUDA, False, torch.float32),
        ("auto", MPS, True, torch.float32),
        ("auto", CPU, True, torch.float32),
        ("bfloat16", CPU, True, torch.bfloat16),
        ("float16", CUDA, True, torch.float16),
        ("float32", CUDA, True, torch.float32),
    ],
)
def test_precision(monkeypatch, name, device, bf16, wanted):
    there(monkeypatch, cuda=True, mps=False, bf16=bf16)
    assert devices.choose_precision(name, device, 128, bfloat16=devices.multiplies_bfloat16(device)) == wanted


@pytest.mark.parametrize(
    ("has", "built", "width", "wanted"),
    [
        ({"avx512_bf16": True}, True, 256, torch.bfloat16),
        ({"amx_bf16": True}, True, 768, torch.bfloat16),
        ({"avx512_bf16": True}, True, 255, torch.float32),
        ({"avx512_f": True, "avx512_bf16": False}, True, 768, torch.float32),
        ({"avx512_bf16": True}, False, 768, torch.float32),
    ],
)
def test_a_cpu_makes_wide_products_in_bfloat16_where_it_has_instructions_for_it(monkeypatch, has, built, width, wanted):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: built)
    has_it = devices.multiplies_bfloat16(CPU)
    assert devices.choose_precision("auto", CPU, width, bfloat16=has_it) == wanted
    assert devices.choose_precision("float32", CPU, width, bfloat16=has_it) == torch.float32


def test_a_torch_that_cannot_say_what_a_cpu_has_gets_float32(monkeypatch):
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert not devices.multiplies_bfloat16(CPU)


X86, ARM = {"architecture": "x86_64"}, {"architecture": "aarch64"}


@pytest.mark.parametrize(
    ("device", "has", "slow"),
    [
        (CPU, X86, {torch.bfloat16, torch.float16}),
        (CPU, X86 | {"avx512_bf16": True}, {torch.float16}),
        (CPU, X86 | {"amx_bf16": True, "amx_fp16": True}, set()),
        (CPU, ARM, set()),
        (MPS, X86, set()),
        (CUDA, X86, {torch.bfloat16}),
    ],
)
def test_what_a_device_emulates(monkeypatch, device, has, slow):
    there(monkeypatch, cuda=True, mps=False, bf16=False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    precisions = (torch.float32, torch.bfloat16, torch.float16)
    assert {precision for precision in precisions if devices.emulates(device, precision)} == slow


def test_a_precision_that_is_emulated_is_told(monkeypatch, new, data):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: X86)
    options = {"steps": 1, "batch_size": 1, "device": "cpu"}
    asked = next(finetune(load(new), data, dtype="bfloat16", **options))
    assert "--dtype bfloat16: this cpu has no instructions for that precision" in asked.text
    assert isinstance(next(finetune(load(new), data, **options)), Started)


def test_autocast_is_nothing_for_float32_and_lowers_products_otherwise():
    assert isinstance(devices.autocast(CPU, torch.float32), contextlib.nullcontext)
    with devices.autocast(CPU, torch.bfloat16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16


def test_only_float16_is_scaled():
    assert devices.gradient_scaler(CPU, torch.float16).is_enabled()
    assert not devices.gradient_scaler(CPU, torch.bfloat16).is_enabled()
    assert not devices.gradient_scaler(CPU, torch.float32).is_enabled()


@pytest.mark.parametrize(
    ("option", "device", "wanted"),
    [(None, CUDA, True), (None, CPU, False), (None, MPS, False), (True, CPU, True), (False, CUDA, False)],
)
def test_compile_is_for_cuda_unless_asked(option, device, wanted):
    assert devices.should_compile(option, device) is wanted


def test_adamw_is_fused_where_it_can_be():
    assert all(devices.has_fused_adamw(d) for d in (CUDA, MPS, CPU))
    assert not devices.has_fused_adamw(torch.device("meta"))


def test_transfer_pins_for_cuda_alone():
    class Spy:
        def __init__(self):
            self.calls = []

        def pin_memory(self):
            self.calls.append("pin")
            return self

        def to(self, device, **how):
            self.calls.append((device.type, how))
            return self

    assert devices.transfer(spy := Spy(), CUDA).calls == ["pin", ("cuda", {"non_blocking": True})]
    assert spy.calls
    assert devices.transfer(Spy(), CPU).calls == [("cpu", {})]


@pytest.fixture
def on_card():
    """Run command lines on the simulated device of `card.py`, in a process of their own: code, out, err of each."""
    if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this torch takes no device that is written in Python")

    def call(*lines):
        asked = "".join(json.dumps([str(word) for word in line]) + "\n" for line in lines)
        script = Path(__file__).parent / "card.py"
        done = subprocess.run([sys.executable, script], input=asked, capture_output=True, text=True, check=False)
        found = [json.loads(line) for line in done.stdout.splitlines()]
        assert len(found) == len(lines), done.stderr
        assert not any(each["code"] for each in found), found
        return found

    return call


def test_every_command_works_on_a_device_that_is_not_the_cpu(on_card, run, nano, data, tmp_path):
    """Nothing there is mixed with what is on the CPU, and numbers are the same."""

    def lines(folder):
        folder.mkdir()
        start, new, tuned = (folder / f"{name}.safetensors" for name in ("start", "new", "tuned"))
        train = ("--data", data, "--teacher", nano, "--steps", 4, "--eval-every", 2, "--json")
        return [
            ("convert", nano, start, "--calibrate", data, "--json"),
            ("convert", nano, new, "--init", "reset"),
            ("finetune", new, *train, "--checkpoint-every", 2, "--grad-accum", 2, "-o", tuned),
            ("finetune", start, *train, "--activation-checkpointing", "--optimizer", "adamw"),
            ("eval", nano, "--data", data, "--json"),
            ("compare", nano, start, "--data", data, "--json"),
            ("sample", start, "--prompt-ids", "1,2", "--tokens", 40),
        ]

    calls = 0
    for line, there in zip(lines(tmp_path / "cpu"), on_card(*lines(tmp_path / "card")), strict=True):
        if "reset" not in line:  # which is done where the files are
            assert there["calls"] > calls + 100, line
        calls = there["calls"]
        here = run(*line)
        assert here.code == 0, here.err
        if "--json" not in line:
            assert there["out"].replace("/card/", "/cpu/") == here.out
            continue
        losses = [answer.get("loss") or answer["calibration"] for answer in (here.json, json.loads(there["out"]))]
        if isinstance(losses[0], dict):
            losses = [[part for _, part in sorted(each.items()) if isinstance(part, float)] for each in losses]
        assert losses[1] == pytest.approx(losses[0], abs=1e-3), line  # attention sums there in another order


GPU = pytest.mark.gpu
COMPILER_WARNS = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # of what the compiler imports


@GPU
@COMPILER_WARNS
@pytest.mark.parametrize("dtype", ["auto", "bfloat16", "float16", "float32"])
@pytest.mark.parametrize("compiled", [True, False])
def test_finetune_on_cuda(run, nano, tmp_path, dtype, compiled):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    data = tiny.write_bin(tmp_path / "data", tiny.spec())
    new = tmp_path / "new.safetensors"
    assert run("convert", nano, new).code == 0
    flag = "--compile" if compiled else "--no-compile"
    result = run(
        "finetune",
        new,
        "--data",
        data,
        "--teacher",
        nano,
        "--steps",
        30,
        "--lr",
        "5e-3",
        "--dtype",
        dtype,
        flag,
        "--json",
    )
    assert result.code == 0, result.err
    assert "torch.compile failed" not in result.err
    assert result.json["device"] == "cuda"
    assert result.json["loss"]["best"] < result.json["loss"]["before"]


@GPU
@COMPILER_WARNS
def test_a_run_is_resumed_on_cuda(run, nano, tmp_path):
    """As a run that was killed at step 12, after its save at step 10."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    data, new = tiny.write_bin(tmp_path / "data", tiny.spec()), tmp_path / "new.safetensors"
    run("convert", nano, new)
    options = ("--data", data, "--teacher", nano, "--steps", 20, "--checkpoint-every", 10, "--device", "cuda", "--json")
    whole = run("finetune", new, *options, "-o", tmp_path / "whole.safetensors").json
    out, saved = tmp_path / "part.safetensors", tmp_path / "part.run.safetensors"
    job = Job(
        checkpoint=new, data=str(data), output=out, teacher=nano, tokenizer=None, data_dtype="uint16", facts=Facts(),
        weights="model", log=None, plot=None, force=False, resume=False,
        settings=Settings(steps=20, checkpoint_every=10, device="cuda"),
    )  # fmt: skip
    for event in tune(job):
        if isinstance(event, Stepped) and event.step == 12:
            break
    assert saved.exists()
    assert not out.exists()
    part = run("finetune", new, *options, "-o", out, "--resume")
    assert "resumed after step 10" in part.err
    assert part.json["loss"] == pytest.approx(whole["loss"], abs=5e-3)  # sums there are in no fixed order
    assert not saved.exists()


@GPU
@COMPILER_WARNS
def test_a_batch_that_does_not_fit_on_cuda(run, nano, tmp_path):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    data, new = tiny.write_bin(tmp_path / "data", tiny.spec()), tmp_path / "new.safetensors"
    run("convert", nano, new)
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (256 << 20)) / total)
    try:
        found = run("finetune", new, "--data", data, "--teacher", nano, "--steps", 1, "--batch-size", 100_000)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert found.code == 2
    assert "not enough memory on cuda for 100000 windows" in found.err
    assert "--batch-size 50000 --grad-accum 2" in found.err


@GPU
def test_losses_on_cuda_are_those_on_the_cpu(run, nano, tmp_path):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    data = tiny.write_bin(tmp_path / "data", tiny.spec())
    losses = [run("eval", nano, "--data", data, "--device", d, "--json").json["loss"] for d in ("cpu", "cuda")]
    assert losses[0] == pytest.approx(losses[1], abs=1e-3)


@GPU
def test_a_conversion_on_cuda_gives_the_same_bytes_and_a_loss_as_on_the_cpu(run, nano, tmp_path):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    data = tiny.write_bin(tmp_path / "data", tiny.spec())
    files = [tmp_path / f"{name}.safetensors" for name in ("once", "again", "cpu")]
    for file, device in zip(files, ("cuda", "cuda", "cpu"), strict=True):
        assert run("convert", nano, file, "--calibrate", data, "--device", device).code == 0
    assert files[0].read_bytes() == files[1].read_bytes()
    losses = [run("eval", file, "--data", data, "--device", "cpu", "--json").json["loss"] for file in files[1:]]
    assert losses[0] == pytest.approx(losses[1], abs=1e-2)
