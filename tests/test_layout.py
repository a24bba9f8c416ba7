"""The layout, over the syntax trees: who may import what, what is packaged, and that no command knows a method."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

from aweigh.algorithms import METHODS

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("pipeline", "algorithms", "io")
MODULES = sorted(path for part in PARTS for path in (ROOT / part).rglob("*.py"))
OURS = {path.stem for path in MODULES} | {path.parent.name for path in MODULES}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
IMPORT_NAMES = {"scikit-learn": "sklearn", "pyyaml": "yaml"}


def imports(tree):
    """(what is imported, line) of every import statement, `from a import b` as a.b, relative ones with their dots."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)


def breaks_one_way(part, name):
    """algorithms and io import nothing of the project outside themselves."""
    return part != "pipeline" and name.startswith("aweigh.") and not f"{name}.".startswith(f"aweigh.{part}.")


def breaks_dask(part, name):
    """Only pipeline imports Dask."""
    return part != "pipeline" and name.split(".")[0] in ("dask", "distributed")


def breaks_absolute(part, name):
    """Our modules are imported by their full names; a plain `io` is Python's own."""
    top, _, rest = name.partition(".")
    return name.startswith(".") or top in ("pipeline", "algorithms") or (top == "io" and rest.split(".")[0] in OURS)


RULES = [breaks_one_way, breaks_dask, breaks_absolute]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_imports(rule):
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in MODULES
        for name, line in imports(ast.parse(path.read_bytes()))
        if rule(path.relative_to(ROOT).parts[0], name)
    ]
    assert not wrong, f"{rule.__doc__} Wrong: {wrong}"


@pytest.mark.parametrize(
    ("rule", "part", "code"),
    [
        (breaks_one_way, "io", "from aweigh import algorithms"),
        (breaks_one_way, "algorithms", "import aweigh.io.archive"),
        (breaks_one_way, "algorithms", "def f():\n    from aweigh.pipeline.task import fold"),
        (breaks_dask, "io", "import dask.array as da"),
        (breaks_dask, "algorithms", "from distributed import Client"),
        (breaks_absolute, "pipeline", "from . import task"),
        (breaks_absolute, "pipeline", "from .task import fold"),
        (breaks_absolute, "pipeline", "from algorithms import METHODS"),
        (breaks_absolute, "io", "from io import archive"),
        (breaks_absolute, "io", "from io.archive import Archive"),
    ],
)
def test_each_rule_sees_what_it_forbids(rule, part, code):
    assert any(rule(part, name) for name, _ in imports(ast.parse(code)))


@pytest.mark.parametrize("code", ["import io", "from io import BytesIO", "from aweigh.io.sources import csv"])
def test_the_rules_allow(code):
    assert not any(rule("io", name) for rule in RULES for name, _ in imports(ast.parse(code)))


def test_every_folder_is_packaged():
    folders = {".".join(("aweigh", *path.parent.relative_to(ROOT).parts)) for path in MODULES}
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == folders


def test_what_is_imported_is_declared():
    declared = {re.split(r"[^\w-]", line)[0] for line in PROJECT["project"]["dependencies"]}
    extras = PROJECT["project"]["optional-dependencies"].items()
    declared |= {re.split(r"[^\w-]", line)[0] for name, lines in extras if name != "test" for line in lines}
    known = {IMPORT_NAMES.get(name, name.replace("-", "_")) for name in declared} | {"aweigh"}
    tops = {name.split(".")[0] for path in MODULES for name, _ in imports(ast.parse(path.read_bytes()))}
    assert tops - known - set(sys.stdlib_module_names) == set()


def test_what_is_declared_is_imported():
    needed = {re.split(r"[^\w-]", line)[0] for line in PROJECT["project"]["dependencies"]}
    tops = {name.split(".")[0] for path in MODULES for name, _ in imports(ast.parse(path.read_bytes()))}
    assert {IMPORT_NAMES.get(name, name.replace("-", "_")) for name in needed} - tops == set()


def names_compared(tree):
    """(method's name, line) wherever the tree compares with one, matches one or looks one up in a literal."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare | ast.MatchValue):
            inside = ast.walk(node)
        elif isinstance(node, ast.Dict):
            inside = (key for key in node.keys if key is not None)
        else:
            continue
        for leaf in inside:
            if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str) and leaf.value in METHODS:
                yield leaf.value, leaf.lineno


def test_no_command_branches_on_a_method():
    wrong = [
        f"{path.relative_to(ROOT)}:{line} asks for {name!r}"
        for path in MODULES
        if path.is_relative_to(ROOT / "pipeline")
        for name, line in names_compared(ast.parse(path.read_bytes()))
    ]
    assert not wrong, f"a method says of itself what the pipeline needs to know. Wrong: {wrong}"


@pytest.mark.parametrize(
    "code",
    ["m == {!r}", "m in ({!r},)", "{{{!r}: 1}}[m]", "match m:\n    case {!r}:\n        pass", "{!r} != m"],
)
def test_a_branch_on_a_method_is_seen(code):
    name = next(iter(METHODS))
    assert list(names_compared(ast.parse(code.format(name))))
