"""The shape of the program: imports flow one way, the library never prints, modules stay small."""

import ast
from pathlib import Path

import pytest

import modernize

PACKAGE = Path(modernize.__file__).parent
# read, recognise, rewrite, tune, write: a module may import what stands on its own line or above
ORDER = (
    ("errors", "choices", "progress", "ahead"),
    ("spec", "events", "whole"),
    ("checkpoint",),
    ("stored", "hashing", "alone"),
    ("dialects",),
    ("facts", "unwrap", "strangers", "outline", "masks"),
    ("misfit",),
    ("recognise", "operations"),
    ("layers",),
    ("old", "model"),
    ("rewrite",),
    ("loading", "tokenizer"),
    ("text",),
    ("data", "devices"),
    ("feed", "measure", "memory", "muon", "optim", "parallel", "recipe"),
    ("matching", "surroundings", "trial"),
    ("objective", "inspection"),
    ("run", "sample"),
    ("train",),
    ("calibration",),
    ("write", "plot"),
    ("resume", "runtimes"),
    ("conversion", "tune", "exporting"),
    ("console",),
    ("show",),
    ("options", "boundary", "interrupts"),
    ("commands",),
    ("cli",),
    ("__main__",),
)
LEVEL = {name: level for level, names in enumerate(ORDER) for name in names}
MODULES = sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")


def word(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("modernize."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.ImportFrom) and node.module == "modernize":
            yield from (alias.name for alias in node.names if alias.name in LEVEL)
        elif isinstance(node, ast.Import):
            yield from (a.name.split(".")[1] for a in node.names if a.name.startswith("modernize."))


def test_every_module_has_its_place():
    assert {word(p) for p in MODULES} == set(LEVEL)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_from_later_words_to_earlier_ones(path):
    level = LEVEL[word(path)]
    later = {name for name in imported(ast.parse(path.read_text("utf-8"))) if LEVEL[name] > level}
    assert not later


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_modules_are_small_and_nothing_prints(path):
    text = path.read_text("utf-8")
    limit = {"model.py": 250}.get(path.name, 350)
    assert len(text.splitlines()) <= limit
    calls = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call)]
    assert not [c for c in calls if isinstance(c.func, ast.Name) and c.func.id in ("print", "input", "eval", "exec")]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_nothing_loads_a_file_that_could_run_code(path):
    text = path.read_text("utf-8")
    tree = ast.parse(text)
    imports = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert not imports & {"pickle", "cPickle", "dill", "marshal", "shelve", "joblib"}
    called = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert not {"torch.load", "torch.jit.load", "torch.export.load", "pickle.loads"}.intersection(called)
    assert "allow_pickle=True" not in text


def test_the_public_api_is_what_it_says():
    for name in modernize.__all__:
        assert callable(getattr(modernize, name))
    with pytest.raises(AttributeError, match="no_such_name"):
        modernize.no_such_name  # noqa: B018
