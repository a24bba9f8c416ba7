"""The README against the program: its commands exist, its Python runs, its table of scores is what comes out."""

import json
import os
import re
import shlex
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest
from click.testing import CliRunner

from aweigh.algorithms import METHODS
from aweigh.io.batches import import_batch
from aweigh.io.sources import open_column, open_source
from aweigh.pipeline.cli import main

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
PYTHON = [code for kind, code in BLOCKS if kind == "python"]
SHELL = [line.split("#")[0] for kind, code in BLOCKS if kind == "sh" for line in code.splitlines()]
TABLE = dict(re.findall(r"^\| `aweigh ([a-z]+)[^`]*` \| (.*) \|$", README, re.MULTILINE))
SHOWN = re.findall(r"`(aweigh [a-z][^`]*)`", README) + [line for line in SHELL if line.startswith("aweigh ")]


def section(title):
    return re.split(r"^## ", README.split(f"## {title}\n")[1], flags=re.MULTILINE)[0]


def options(command):
    return {name for parameter in main.commands[command].params for name in parameter.opts}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the demo's archive in it, not clustered yet."""
    folder = tmp_path_factory.mktemp("readme")
    names = ("fac", "fou", "kar", "mor", "pix", "zer")
    with resources.as_file(resources.files("aweigh.io") / "sample" / "mfeat.npz") as sample:
        views = {name: open_source(f"{sample}:view{i}") for i, name in enumerate(names)}
        import_batch(folder / "demo" / "mfeat.zarr", views, name="digits", labels=open_column(f"{sample}:labels"))
    return folder


def test_every_command_is_in_the_table_and_no_other():
    assert set(TABLE) == set(main.commands)


@pytest.mark.parametrize("line", SHOWN)
def test_commands_are_spelled_right(line):
    words = shlex.split(line.replace("…", ""))[1:]
    assert words[0] in main.commands
    assert {word for word in words if word.startswith("-")} <= options(words[0])


@pytest.mark.parametrize("command", [name for name in TABLE if TABLE[name].count("`-")])
def test_options_in_the_table_exist(command):
    assert {text.split()[0] for text in re.findall(r"`(-[^`]+)`", TABLE[command])} <= options(command)


def test_what_is_said_not_to_be_there_is_not_there():
    assert not set(re.findall(r"`([a-z]+)`", section("Not there yet"))) & set(main.commands)


def test_every_method_is_in_the_table_and_no_other():
    assert set(re.findall(r"^\| `([\w-]+)` \|", section("Commands"), re.MULTILINE)) == set(METHODS)


def test_make_has_the_targets_shown():
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    assert {line.split()[1] for line in SHELL if line.startswith("make ")} <= targets


@pytest.mark.parametrize("code", [code for code in PYTHON if "__main__" not in code])
def test_python_runs(code, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    for expected in re.findall(r"print\(.*\)  # (Frozen.*)", code):
        assert expected in capsys.readouterr().out


def test_the_script_gives_the_scores_shown(folder):
    (code,) = [code for code in PYTHON if "__main__" in code]
    (folder / "script.py").write_text(code, "utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-W", "error", "script.py"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert "2000 rows in 1 batches" in done.stdout
    scored = CliRunner().invoke(main, ["score", str(folder / "demo" / "mfeat.zarr"), "--json"])
    names, values = re.search(r"^( +ACC.*)\n(.*)$", README, re.MULTILINE).groups()
    shown = dict(zip(names.lower().split(), map(float, values.split()), strict=True))
    # Another BLAS may round differently and end a little elsewhere.
    assert json.loads(scored.output) == pytest.approx(shown, abs=0.03)
