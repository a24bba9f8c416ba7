"""Every file of cluster-configs/: it carries the settings that the code has, and it starts what it says or fits its schema."""

import contextlib
import inspect
import itertools
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from arrays import archive_of, blobs
from click.testing import CliRunner

from aweigh.io.errors import UsageError
from aweigh.pipeline import cluster_file, launch
from aweigh.pipeline.cli import main
from aweigh.pipeline.cluster import SETTINGS, WORKER_ENVIRONMENT, ClusterError
from aweigh.pipeline.launch import environment

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "cluster-configs"
PLAIN = {name: value for name, value in SETTINGS.items() if not isinstance(value, dict)}
CLUSTERS = sorted(path for path in CONFIGS.rglob("*.yaml") if "\nkind: " in path.read_text() and path.parent.name != "x")
CLUSTERS = [path for path in CLUSTERS if "apiVersion" not in path.read_text()]
ASSIGNED = re.compile(r"\b([A-Z][A-Z0-9_]+)=([^\s]+)")


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    X, labels = blobs(300, (8, 5), 3, spread=3.0)
    return archive_of(tmp_path_factory.mktemp("configs") / "a.zarr", X, labels)


@pytest.fixture
def bin_folder(tmp_path, monkeypatch):
    """A folder first on PATH, with `dask` and `aweigh` of this Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program(folder / "dask", f'exec {sys.executable} -m dask "$@"')
    program(folder / "aweigh", f'exec {sys.executable} -m aweigh.pipeline.cli "$@"')
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def program(path, text):
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


def changed(source, target, **values):
    """A copy of a cluster file with other values."""
    target.write_text(yaml.safe_dump({**yaml.safe_load(source.read_text()), **values}))
    return target


def fitted(archive, path):
    """The record of a fit on the cluster that a file describes."""
    done = CliRunner().invoke(main, ["fit", archive, "-k", "3", "--json", "--cluster", str(path)])
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    stored = json.loads((Path(archive) / "runs" / record["run"] / "record.json").read_text()) if False else record
    return stored


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def process(command, log, until=None, **options):
    """A process whose log holds `until`, ended with the context."""
    with open(log, "w") as out:
        running = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, **options)
    try:
        deadline = time.monotonic() + 60
        while until and until not in Path(log).read_text():
            assert running.poll() is None, Path(log).read_text()
            assert time.monotonic() < deadline, Path(log).read_text()
            time.sleep(0.05)
        yield running
    finally:
        running.terminate()
        running.wait(20)
