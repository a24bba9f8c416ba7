"""Small solves run in the scheduler's process, off its event loop: it answers while a 400 x 8000 SVD is under way."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from arrays import archive_of, blobs
from distributed import Client

from aweigh.pipeline import cluster, fit
from aweigh.pipeline.cluster import WORKER_ENVIRONMENT, DaskRunner
from aweigh.pipeline.task import groups

SETTINGS = {"anchors": 400, "init": "kmeans"}


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """An archive of 450 rows of 8000 features."""
    X, labels = blobs(450, (8000,), 40, dtype=np.float32)
    return archive_of(tmp_path_factory.mktemp("wide") / "a.zarr", X, labels)


@contextlib.contextmanager
def embedded():
    with cluster.embedded(1, cluster.parse_memory("2GiB")) as client:
        yield client, os.getpid()


@contextlib.contextmanager
def separate(tmp_path):
    """A `dask scheduler` and a `dask worker` process."""
    at, environment = tmp_path / "scheduler.json", {**os.environ, **WORKER_ENVIRONMENT}
    given = {"scheduler": ["--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0"], "worker": []}
    given["worker"] = ["--nthreads", "1", "--no-dashboard", "--local-directory", str(tmp_path)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.dask_{kind}", "--scheduler-file", str(at), *options],
            env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        for kind, options in given.items()
    ]  # fmt: skip
    try:
        with Client(scheduler_file=str(at), timeout=60, set_as_default=False) as client:
            client.wait_for_workers(1, timeout=60)
            yield client, processes[0].pid
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait()


class Asking(threading.Thread):
    """Asks a scheduler for its identity again and again; `waited` are the seconds of every answer."""

    def __init__(self, address):
        super().__init__()
        self.address, self.over, self.waited = address, threading.Event(), []

    def run(self):
        with Client(self.address, set_as_default=False) as client:
            while not self.over.wait(0.005):
                began = time.perf_counter()
                client.sync(client.scheduler.identity)
                self.waited.append(time.perf_counter() - began)


@pytest.mark.parametrize("kind", ["embedded", "separate"])
def test_the_event_loop_answers_during_a_large_solve(wide, tmp_path, kind):
    with embedded() if kind == "embedded" else separate(tmp_path) as (client, pid):
        asking = Asking(client.scheduler.address)
        asking.start()
        try:
            record = fit(wide, 40, "acmvc", settings=SETTINGS, runner=DaskRunner(client), max_sweeps=2, tol=0.0)
        finally:
            asking.over.set()
            asking.join()
    solves = [entry["solve_seconds"] for entry in record["work"]]
    assert record["solved_on"].startswith(f"scheduler (pid {pid} on ")
    # On a loop that solves block, one question waits for all of each; a busy machine may keep one waiting as long.
    waited, took = sorted(asking.waited)[-2], sorted(solves)[-2]
    assert waited < 0.75 * took, (waited, took)
    stored = json.loads(Path(wide, "runs", record["run"], "run.json").read_text())
    assert stored["solved_on"] == record["solved_on"]


def test_a_task_takes_a_share_of_the_blocks_that_grows_slower_than_their_number():
    tasks = [len(groups(blocks)) for blocks in (20, 1000, 100_000, 450_000)]
    assert tasks == [20, 32, 316, 671]
