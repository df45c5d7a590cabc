"""README and CI say what the program does: commands are run, tables are made again."""

import importlib
import json
import re
import shlex
import sys
from pathlib import Path

import pytest

import modernize
from modernize.dialects import DIALECTS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
EXAMPLE = ROOT / "examples" / "pydoc-gpt.pt"
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)
SAME_PYDOC = sys.version_info[:2] == (3, 11)  # the text differs between Python versions


def test_the_two_commands_are_those_that_ci_runs():
    commands = [text.strip() for language, text in BLOCKS if language == "sh" and ".venv" in text]
    assert len(commands) == 2
    assert all("-c constraints.txt" in command for command in commands)
    lines = (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
    assert all(command in lines for command in commands)


def test_the_dialects_are_all_there():
    between = README.split("<!-- dialects -->\n")[1].split("<!-- /dialects -->")[0]
    rows = [f"| `{d.name}` | {d.title} |" for d in DIALECTS]
    assert between == "\n".join(["| dialect | what |", "|---|---|", *rows]) + "\n"


def test_the_version_stands_in_one_place():
    assert f"## {modernize.__version__}" in (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert modernize.__version__ not in (ROOT / "pyproject.toml").read_text("utf-8")


def test_the_page_of_checkpoints_is_that_of_the_tables(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    module = importlib.import_module("generate")
    assert (ROOT / "docs" / "checkpoints.md").read_text("utf-8") == module.page()
    assert all(f"### {d.name}\n" in module.page() for d in DIALECTS)


def test_tested_versions_are_within_the_ranges():
    pinned = re.findall(r"^([a-z]+)==([\d.]+)", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
    ranges = dict(re.findall(r'"([a-z]+)>=([\d.]+)"', (ROOT / "pyproject.toml").read_text("utf-8")))
    numbers = lambda text: [int(part) for part in text.split(".")]  # noqa: E731
    assert {name for name, _ in pinned} >= set(ranges) - {"hatchling"}
    assert all(numbers(version) >= numbers(ranges[name]) for name, version in pinned if name in ranges)
    assert ("torch", "2.13.0") in pinned


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """The whole way as the README tells it, run once, in a folder of its own: output by command."""
    import subprocess

    folder = tmp_path_factory.mktemp("story")
    (folder / "examples").symlink_to(ROOT / "examples")
    (text,) = [text for language, text in BLOCKS if language == "sh" and "modernize compare" in text]
    said = {}
    for line in text.strip().splitlines():
        words = shlex.split(line)
        more = [] if words[1] == "sample" else ["--json"]
        result = subprocess.run(
            [sys.executable, "-m", *words, *more], cwd=folder, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stderr
        said[words[1]] = result.stdout if words[1] == "sample" else json.loads(result.stdout)
    return said


def test_the_whole_way_runs_and_wins_the_loss_back(story):
    assert list(story) == ["inspect", "convert", "finetune", "compare", "sample"]
    loss = story["finetune"]["loss"]
    assert loss["best"] < loss["before"]
    assert loss["best"] - loss["old"] < 0.01
    assert story["compare"]["loss"]["new"] == pytest.approx(loss["best"], abs=1e-4)
    assert story["sample"].startswith("The with statement")


@pytest.mark.skipif(not SAME_PYDOC, reason="pydoc differs between Python versions")
def test_the_first_row_of_results_is_what_comes_out(story):
    row = next(line for line in README.splitlines() if line.startswith("| `examples/pydoc-gpt.pt` | 100 |"))
    old, converted, tuned = (float(cell) for cell in row.split("|")[3:6])
    loss = story["finetune"]["loss"]
    assert loss["old"] == pytest.approx(old, abs=1e-3)
    # both are fitted, and sums differ a little between processors
    assert (loss["before"], loss["best"]) == (pytest.approx(converted, abs=0.03), pytest.approx(tuned, abs=0.03))


@pytest.mark.skipif(not SAME_PYDOC, reason="pydoc differs between Python versions")
def test_the_example_has_the_loss_that_is_noted_beside_it(story):
    noted = json.loads((ROOT / "examples" / "pydoc-gpt.json").read_text("utf-8"))
    assert story["finetune"]["loss"]["old"] == pytest.approx(noted["validation_loss"], abs=1e-3)
    assert EXAMPLE.stat().st_size < 2_000_000


def test_the_python_of_the_readme_runs(tmp_path, monkeypatch):
    (code,) = [text for language, text in BLOCKS if language == "python"]
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    assert type(names["event"]).__name__ == "Finished"
