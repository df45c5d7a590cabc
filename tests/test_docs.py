"""README and CI say what the program does: commands are run, tables are made again."""

import importlib
import importlib.util
import json
import re
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


def test_the_version_stands_in_one_place():
    assert f"## {modernize.__version__}" in (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert modernize.__version__ not in (ROOT / "pyproject.toml").read_text("utf-8")


def test_the_page_of_checkpoints_is_that_of_the_tables(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    module = importlib.import_module("generate")
    assert (ROOT / "docs" / "checkpoints.md").read_text("utf-8") == module.page()
    for d in DIALECTS:
        assert f"### {d.name}\n" in module.page()
        assert f"| [`{d.name}`](#{d.name}) | {d.title} |\n" in module.page()


def test_tested_versions_are_within_the_ranges():
    pinned = re.findall(r"^([a-z]+)==([\d.]+)", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
    ranges = dict(re.findall(r'"([a-z]+)>=([\d.]+)"', (ROOT / "pyproject.toml").read_text("utf-8")))
    numbers = lambda text: [int(part) for part in text.split(".")]  # noqa: E731
    assert {name for name, _ in pinned} >= set(ranges) - {"hatchling"}
    assert all(numbers(version) >= numbers(ranges[name]) for name, version in pinned if name in ranges)
    assert ("torch", "2.13.0") in pinned


@pytest.fixture(scope="module")
def page():
    """docs/start.py, which runs docs/start.md."""
    sys.path.insert(0, str(ROOT / "docs"))
    yield importlib.import_module("start")
    sys.path.remove(str(ROOT / "docs"))


@pytest.fixture(scope="module")
def told(page):
    """The steps of docs/start.md, which are those of the README and more."""
    return list(page.steps(page.PAGE.read_text("utf-8")))


@pytest.fixture(scope="module")
def story(told, tmp_path_factory):
    """What each of the steps says, run once, in a folder of its own."""
    folder = tmp_path_factory.mktemp("story")
    (folder / "examples").symlink_to(ROOT / "examples")
    has_transformers = importlib.util.find_spec("transformers") is not None
    return {step: step.run(folder) for step in told if "from transformers" not in step.code or has_transformers}


def output_of(story, command):
    """What the only step of a command says."""
    (said,) = [said for step, said in story.items() if step.command.startswith(f"modernize {command} ")]
    return said


def figures(said):
    """The first number of each line that begins with a word and a number, by the word."""
    return {name: float(number) for name, number in re.findall(r"^(\S.*?) {2,}(\d+\.\d+)", said, re.MULTILINE)}


def shape(line):
    """A line without its numbers, spaces and bars."""
    words = re.sub(r"[▏▎▍▌▋▊▉█]+", "", line).replace("all of it", "0 %")
    return re.sub(r"[+-]?\d[\d,.]*", "#", re.sub(r"\s+", " ", words)).strip()


def test_the_readme_goes_the_way_of_the_page(told):
    (text,) = [text for language, text in BLOCKS if language == "sh" and "modernize compare" in text]
    assert set(text.strip().splitlines()) <= {step.command for step in told}
    words = [step.command.split()[1] if step.command else "python" for step in told]
    assert words == ["inspect", "convert", "finetune", "compare", "sample", "export", "python", "export"]


def test_the_page_says_what_the_commands_say(story):
    for step, said in story.items():
        if "sample" in step.command:  # what is written hangs on the last bit of the weights
            assert said.startswith("The with statement")
            assert step.said.startswith("The with statement")
        elif step.code:
            assert said.splitlines()[0] == step.said.splitlines()[0] == "the same logits, to 0.0001: True"
        else:
            assert [shape(line) for line in said.splitlines()] == [shape(line) for line in step.said.splitlines()]


@pytest.mark.skipif(not SAME_PYDOC, reason="pydoc differs between Python versions")
def test_the_losses_of_the_page_are_those_that_come_out(story):
    number = re.compile(r"(?<![\d.+-])\d\.\d{4}(?!\d)")
    for step, said in story.items():
        if step.command.split()[1:2] in (["convert"], ["finetune"], ["compare"]):
            losses, written = ([float(n) for n in number.findall(text)] for text in (said, step.said))
            assert losses
            # models are fitted, and text is written, with sums that differ a little between processors
            assert losses == pytest.approx(written, rel=0.05, abs=0.05)


def test_the_whole_way_runs_and_wins_the_loss_back(story):
    loss = figures(output_of(story, "finetune"))
    best = loss["best, written"]
    assert best < loss["before"]
    assert best - loss["old model"] < 0.01
    assert figures(output_of(story, "compare"))["loss"] == loss["old model"]
    new = float(output_of(story, "compare").splitlines()[1].split()[2])
    assert new == pytest.approx(best, abs=2e-4)


@pytest.mark.skipif(not SAME_PYDOC, reason="pydoc differs between Python versions")
def test_the_first_row_of_results_is_what_comes_out(story):
    row = next(line for line in README.splitlines() if line.startswith("| `examples/pydoc-gpt.pt` | 100 |"))
    old, converted, tuned = (float(cell) for cell in row.split("|")[3:6])
    loss = figures(output_of(story, "finetune"))
    assert loss["old model"] == pytest.approx(old, abs=1e-3)
    # both are fitted, and sums differ a little between processors
    assert loss["before"] == pytest.approx(converted, abs=0.03)
    assert loss["best, written"] == pytest.approx(tuned, abs=0.03)


@pytest.mark.skipif(not SAME_PYDOC, reason="pydoc differs between Python versions")
def test_the_example_has_the_loss_that_is_noted_beside_it(story):
    noted = json.loads((ROOT / "examples" / "pydoc-gpt.json").read_text("utf-8"))
    old = figures(output_of(story, "finetune"))["old model"]
    assert old == pytest.approx(noted["validation_loss"], abs=1e-3)
    assert EXAMPLE.stat().st_size < 2_000_000


def test_links_lead_to_files():
    pages = [ROOT / name for name in ("README.md", "CHANGELOG.md", "SECURITY.md")]
    pages += [*ROOT.glob("examples/*.md"), *ROOT.glob("docs/**/*.md")]
    for path in pages:
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text("utf-8")):
            assert "://" in link or (path.parent / link).exists(), f"{path.name} links to {link}"


def test_the_python_of_the_readme_runs(tmp_path, monkeypatch):
    (code,) = [text for language, text in BLOCKS if language == "python"]
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    assert type(names["event"]).__name__ == "Finished"


def test_every_promise_of_security_has_its_tests():
    text = (ROOT / "SECURITY.md").read_text("utf-8")
    rows = [row for row in text.splitlines() if row.startswith("| ") and row != "| promise | tests |"]
    assert len(rows) > 15
    for row in rows:
        named = re.findall(r"`(test_\w+\.py)::(\w+)`", row)
        assert named, row
        for file, test in named:
            assert f"def {test}(" in (ROOT / "tests" / file).read_text("utf-8"), test
