"""The command line as a whole: help, version, exit codes, errors, and what it costs to start."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import torch

import modernize

COMMANDS = ["inspect", "convert", "finetune", "eval", "compare", "sample", "dialects"]


def process(*arguments, **more):
    return subprocess.run(
        [sys.executable, "-m", "modernize", *map(str, arguments)], capture_output=True, text=True, check=False, **more
    )


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help(run, flag):
    result = run(flag)
    assert result.code == 0
    assert all(command in result.out for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command(run, command):
    result = run(command, "-h")
    assert result.code == 0
    assert "--quiet" in result.out
    assert ("--json" in result.out) == (command != "sample")


def test_version(run):
    assert run("--version").out == f"modernize {modernize.__version__}\n"
    assert run("--version").code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("inspect", "x.pt", "--no-such-option"), "--no-such-option"),
        (("frobnicate",), "frobnicate"),
        (("convert", "x.pt"), "NEW"),
        (("convert", "x.pt", "y", "--init", "magic"), "magic"),
        (("finetune", "x.pt", "--data", "d", "--steps", "0"), "--steps"),
        (("eval", "x.pt"), "--data"),
    ],
)
def test_wrong_usage_is_exit_two_with_a_hint(run, arguments, said):
    result = run(*arguments)
    assert result.code == 2
    assert result.err.startswith("error: ")
    assert said in result.err
    assert "\nhint: see `modernize" in result.err
    assert result.out == ""


BAD = {
    "text named .pt": (b"my model\n", "text file"),
    "empty file": (b"", "empty"),
    "nothing there": (None, "no file"),
}


@pytest.mark.parametrize(("content", "said"), BAD.values(), ids=BAD)
@pytest.mark.parametrize("command", ["inspect", "convert", "eval", "sample", "compare"])
def test_bad_input_is_a_sentence_and_exit_three(run, tmp_path, command, content, said):
    path = tmp_path / "bad.pt"
    if content is not None:
        path.write_bytes(content)
    more = {
        "convert": [tmp_path / "new.safetensors"],
        "eval": ["--data", "pydoc"],
        "sample": ["--prompt", "a"],
        "compare": [path, "--data", "pydoc"],
    }
    result = run(command, path, *more.get(command, []))
    assert result.code == 3
    lines = result.err.splitlines()
    assert lines[0].startswith("error: ")
    assert lines[1].startswith("hint: ")
    assert said in lines[0]
    assert "bad.pt" in lines[0]
    assert "Traceback" not in result.err


def test_a_missing_fact_is_asked_for_by_option(run, tmp_path):
    import torch

    spec = tiny.spec()
    torch.save(tiny.as_dialect(tiny.jittered(spec), spec, tiny.dialect("nanogpt")), tmp_path / "m.pt")
    result = run("inspect", tmp_path / "m.pt", "--activation", "gelu")
    assert (result.code, "hint: pass --n-head N" in result.err) == (3, True)
    result = run("inspect", tmp_path / "m.pt", "--activation", "gelu", "--n-head", "4", "--json")
    assert result.json["warnings"] == []


def test_a_bug_is_exit_one_with_a_traceback(run, nano, monkeypatch):
    def broken(*args, **kwargs):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("modernize.inspection.inspect", broken)
    result = run("inspect", nano)
    assert result.code == 1
    assert "Traceback" in result.err
    assert "error: this is a bug: ZeroDivisionError" in result.err


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"),
        torch.AcceleratorError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_memory_that_runs_out_is_no_bug(run, nano, data, monkeypatch, error):
    def greedy(*_, **__):
        raise error

    monkeypatch.setattr("modernize.measure.mean_loss", greedy)
    result = run("eval", nano, "--data", data)
    assert (result.code, result.out) == (2, "")
    assert "error: there is not enough memory\n" in result.err
    assert "Traceback" not in result.err


def test_debug_shows_where_an_error_was_raised(run, tmp_path, monkeypatch):
    monkeypatch.setenv("MODERNIZE_DEBUG", "1")
    assert "Traceback" in run("inspect", tmp_path / "gone.pt").err


def test_ctrl_c_is_130(run, nano, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("modernize.inspection.inspect", interrupted)
    result = run("inspect", nano)
    assert (result.code, "Traceback" in result.err) == (130, False)


def test_python_dash_m_is_the_same():
    result = process("--version")
    assert (result.returncode, result.stdout) == (0, f"modernize {modernize.__version__}\n")


def test_no_escape_characters_in_a_pipe_and_warnings_on_stderr(nano):
    result = process("inspect", nano, "--json", env={**os.environ, "PYTHONHASHSEED": "1"})
    assert result.returncode == 0
    assert "\x1b" not in result.stdout + result.stderr
    assert json.loads(result.stdout)["schema"] == 1
    assert result.stderr.startswith("warning: ")


def test_names_with_markup_and_control_characters_are_shown_as_text(run, tmp_path):
    import torch

    spec = tiny.spec()
    keys = tiny.as_dialect(tiny.jittered(spec), spec, tiny.dialect("nanogpt"))
    torch.save({**keys, "[red]evil\x1b[31m": torch.ones(1)}, tmp_path / "m.pt")
    result = run("inspect", tmp_path / "m.pt", "--n-head", "4")
    assert result.code == 3
    assert "[red]evil\\x1b[31m" in result.err
    assert "\x1b" not in result.err


HOSTILE = "[red]\x1b[2J\x9b31m\u202e\nerror: no"


@pytest.mark.parametrize("command", ["inspect", "convert", "inspect --json", "convert --json"])
@pytest.mark.parametrize("place", ["beside", "among", "vocabulary", "setting", "metadata"])
def test_no_name_from_a_file_reaches_the_terminal_raw(run, tmp_path, command, place):
    """Whether a file is taken or refused: as a tensor's name, a token, a setting or the metadata of a modern file."""
    import torch

    spec = tiny.spec()
    keys = tiny.as_dialect(tiny.jittered(spec), spec, tiny.dialect("nanogpt"))
    held = {"model": keys, "model_args": tiny.model_args(spec)}
    if place == "beside":
        held[HOSTILE] = torch.ones(3)
    elif place == "among":
        keys[HOSTILE] = torch.ones(3)
    elif place == "vocabulary":
        held["stoi"] = {HOSTILE: 10**6}
    elif place == "setting":
        held["model_args"]["activation"] = HOSTILE
    else:
        held["config"] = {"model_type": HOSTILE, "block_size": HOSTILE, HOSTILE: HOSTILE}
    torch.save(held, tmp_path / "m.pt")
    name, *options = command.split()
    output = [tmp_path / "new.safetensors", "--init", "fold"] if name == "convert" else []
    result = run(name, tmp_path / "m.pt", *output, *options)
    assert result.code in (0, 3)
    shown = result.out + result.err
    assert all(c.isprintable() for c in shown if c != "\n")
    assert not any(line.startswith("error: no") for line in shown.splitlines())


def test_a_bug_shows_no_name_raw_either(run, nano, monkeypatch):
    def fails(*args, **kwargs):
        raise RuntimeError(HOSTILE)

    monkeypatch.setattr("modernize.inspection.inspect", fails)
    result = run("inspect", nano)
    assert result.code == 1
    assert "Traceback" in result.err
    assert all(c.isprintable() for c in result.err if c != "\n")


IMPORTS = """
import sys
{before}
try:
    {call}
except SystemExit:
    pass
print("torch" in sys.modules)
"""


def imports_torch(call, before="import modernize.cli"):
    code = IMPORTS.format(call=call, before=before)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return result.stdout.splitlines()[-1] == "True"


def test_help_does_not_load_torch():
    assert not imports_torch("sys.argv = ['modernize', '--help']; modernize.cli.main()")
    assert not imports_torch("sys.argv = ['modernize', 'finetune', '--help']; modernize.cli.main()")
    assert not imports_torch("modernize.ModernizeError", before="import modernize")


def test_inspect_of_safetensors_does_not_load_torch(tmp_path):
    from safetensors.torch import save_file

    spec = tiny.spec()
    keys = tiny.as_dialect(tiny.jittered(spec), spec, tiny.dialect("nanogpt"))
    save_file({n: t.clone() for n, t in keys.items()}, tmp_path / "m.safetensors")
    argv = ["modernize", "inspect", str(tmp_path / "m.safetensors"), "--n-head", "4"]
    assert not imports_torch(f"sys.argv = {argv!r}; modernize.cli.main()")


def test_no_command_shows_the_help(run):
    result = run()
    assert (result.code, result.err) == (0, "")
    assert "Commands" in result.out


@pytest.mark.parametrize("command", [("inspect", "{x}"), ("convert", "{x}", "{x}"), ("eval", "n.pt", "--data", "{x}")])
def test_names_that_no_file_can_have(run, command):
    result = run(*(part.format(x="x" * 300) for part in command))
    assert result.code in (3, 4)
    assert "Traceback" not in result.err


def test_a_full_stdout_is_no_bug():
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    command = [sys.executable, "-m", "modernize", "dialects"]
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    assert result.returncode == 4
    assert b"Traceback" not in result.stderr


def test_a_reader_that_leaves_ends_it_quietly():
    command = f"{sys.executable} -m modernize dialects | head -1; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert result.returncode in (0, 141)
    assert result.stderr == ""


def test_a_reader_that_leaves_a_sample_ends_it_quietly():
    model = Path(__file__).parent.parent / "examples" / "pydoc-gpt.pt"
    sample = f"{sys.executable} -m modernize sample {model} --prompt The --quiet"
    result = subprocess.run(
        ["bash", "-c", f"{sample} | head -c 5; exit ${{PIPESTATUS[0]}}"], capture_output=True, text=True, check=False
    )
    assert (result.returncode in (0, 141), len(result.stdout), result.stderr) == (True, 5, "")


def test_what_an_encoding_lacks_is_escaped(nano):
    odd = nano.with_name("n☃.pt")
    nano.rename(odd)
    result = process("inspect", odd, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert result.returncode == 0
    assert "n\\u2603.pt" in result.stdout


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_modern_file_with_values_that_are_no_numbers_is_refused(run, nano, tmp_path, value):
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    new = tmp_path / "new.safetensors"
    run("convert", nano, new, "--init", "fold")
    with safe_open(new, framework="pt") as file:
        metadata = file.metadata()
    tensors = load_file(new)
    tensors["h.0.mlp.up.weight"][0, 0] = value
    save_file(tensors, new, metadata)
    result = run("eval", new, "--data", "pydoc")
    assert (result.code, "h.0.mlp.up.weight holds values that are not finite" in result.err) == (3, True)


@pytest.mark.parametrize(
    ("field", "value"),
    [("rope_base", "x"), ("rope_base", -5), ("norm_eps", None), ("n_head", 3), ("n_embd", 36), ("tied", "no")],
)
def test_a_modern_file_with_a_config_that_cannot_be_is_refused(run, nano, tmp_path, field, value):
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    new = tmp_path / "new.safetensors"
    run("convert", nano, new, "--init", "fold")
    with safe_open(new, framework="pt") as file:
        metadata = file.metadata()
    facts = json.loads(metadata["modernize"])
    facts["config"][field] = value
    save_file(load_file(new), new, {**metadata, "modernize": json.dumps(facts)})
    result = run("inspect", new)
    assert (result.code, "Traceback" in result.err) == (3, False)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--steps", "0"), "--steps 0 should be greater than or equal to 1"),
        (("--steps", "5", "--steps=-2"), "--steps -2 should be greater than or equal to 1"),
        (("--lr", "nan"), "--lr nan should be less than or equal to 10"),
        (("--activation", "swish"), "--activation: 'swish' is not one of 'gelu', 'gelu_tanh', 'relu'"),
        (("--warmup", "9", "--steps", "3"), "--warmup 9 is more than the 3 steps there are"),
        (("--tolerance", "0.1"), "--tolerance says when a run stops"),
        (("--tolerance", "inf", "--until-recovered"), "--tolerance inf is no number from 0 up"),
    ],
)
def test_an_option_that_does_not_fit_is_told_with_its_value(run, new, data, words, said):
    found = run("finetune", new, "--data", data, *words)
    assert (found.code, found.out) == (2, "")
    assert f"error: {said}" in found.err
