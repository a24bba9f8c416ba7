"""A cluster that fails during a fit: the run waits, says so, goes on, and ends with the same bits; or exit code 4."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from arrays import archive_of, blobs, fingerprint
from distributed import Client, LocalCluster

from aweigh.pipeline import cluster
from aweigh.pipeline.cluster import ClusterError, DaskRunner
from aweigh.pipeline.driver import SerialRunner
from aweigh.pipeline.events import Note, PassDone
from aweigh.pipeline.run import fit


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return archive_of(tmp_path_factory.mktemp("faults") / "a.zarr", blobs(900, (20, 9), 4)[0], block_rows=50)


@pytest.fixture(scope="module")
def expected(archive):
    return fingerprint(archive, fit(archive, 4, "acmvc", runner=SerialRunner(), max_sweeps=8, tol=0))


def fitted(archive, client, emit, **more):
    """The fingerprint of a fit on a client's cluster, which tells its events and to the runner too."""
    runner = DaskRunner(client, emit)
    return fingerprint(archive, fit(archive, 4, "acmvc", runner=runner, max_sweeps=8, tol=0, emit=emit, **more))


@pytest.mark.parametrize("cache", ["off", "on"])
def test_all_workers_gone_and_back(archive, expected, monkeypatch, cache):
    monkeypatch.setattr(cluster, "LOOK", 0.1)
    told, passes = [], []
    with cluster.embedded(1, 0, processes=False) as client:

        def emit(event):
            if isinstance(event, PassDone):
                passes.append(event.phase)
                if len(passes) == 4:
                    client.cluster.scale(0)
            if isinstance(event, Note) and ("worker" in event.text):
                told.append(event.text)
                if "no worker is left" in event.text:
                    client.cluster.scale(1)

        assert fitted(archive, client, emit, cache=cache) == expected
    assert told[0] == "no worker is left: waiting up to 900 s for one to join"
    assert told[1:] in ([], ["a worker has joined: going on"])  # or the pass ended before anybody looked


def test_a_fit_that_begins_before_its_workers(archive, expected, monkeypatch):
    monkeypatch.setattr(cluster, "LOOK", 0.1)
    with cluster.embedded(1, 0, processes=False) as client:
        client.cluster.scale(0)
        while client.scheduler_info(n_workers=-1)["workers"]:
            time.sleep(0.05)
        assert fitted(archive, client, lambda event: client.cluster.scale(1)) == expected


def test_no_worker_comes_back(archive, monkeypatch):
    monkeypatch.setattr(cluster, "LOOK", 0.1)
    monkeypatch.setattr(cluster, "WITHOUT_WORKERS", 0.5)
    with cluster.embedded(1, 0, processes=False) as client:
        client.cluster.scale(0)
        with pytest.raises(ClusterError, match="no worker joined in 0 s") as caught:
            fitted(archive, client, lambda event: None)
    assert "mend the cluster, then --resume" in caught.value.hint


def test_a_scheduler_that_is_gone(archive):
    with LocalCluster(n_workers=1, processes=False, dashboard_address=None) as local:
        client = Client(local.scheduler_address, timeout=1, set_as_default=False)
        runner = DaskRunner(client)
        client.close()
        for ask in (runner.floors, runner.workers, runner.forget, runner.limit, lambda: runner.call(len, [])):
            with pytest.raises(ClusterError, match="the scheduler is gone"):
                ask()


@pytest.mark.parametrize(("pause", "share"), [(0.8, 0.8), (False, 1)])
def test_a_worker_holds_what_it_may_before_it_is_paused(pause, share):
    import dask

    with (
        dask.config.set({"distributed.worker.memory.pause": pause}),
        LocalCluster(
            n_workers=1, threads_per_worker=2, processes=False, memory_limit=1000, dashboard_address=None
        ) as local,
        Client(local, set_as_default=False) as client,
    ):
        assert DaskRunner(client).limit() == 500 * share


@pytest.mark.slow
def test_a_stopped_worker_is_given_up(archive, expected, monkeypatch):
    """Where the scheduler's own worker-ttl is five minutes."""
    monkeypatch.setitem(cluster.SETTINGS, "distributed.scheduler.worker-ttl", "5 minutes")
    told, stopped = [], []
    with cluster.embedded(2, "1GiB") as client:
        pids = client.run(os.getpid)

        def emit(event):
            if isinstance(event, PassDone) and not stopped:
                stopped.append(time.monotonic())
                os.kill(next(iter(pids.values())), signal.SIGSTOP)
            told.extend([event.text] if isinstance(event, Note) else [])

        assert fitted(archive, client, emit) == expected
        assert time.monotonic() - stopped[0] < 60
    assert any("silent for 20 s and is given up" in text for text in told)


@pytest.mark.slow
def test_a_scheduler_killed_during_a_fit(archive, expected, tmp_path):
    at = tmp_path / "scheduler.json"
    dask_ = [sys.executable, "-m", "dask"]
    scheduler = subprocess.Popen(
        [*dask_, "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", at]
    )
    worker = subprocess.Popen(
        [*dask_, "worker", "--scheduler-file", at, "--nworkers", "2", "--nthreads", "1", "--no-dashboard"]
    )
    words = [sys.executable, "-P", "-m", "aweigh.pipeline.cli", "fit", archive, "-k", "4", "-m", "acmvc", "--json"]
    words += ["--max-sweeps", "8", "--tol", "0", "--run", "headless"]
    try:
        while not at.exists():
            time.sleep(0.1)
        address = json.loads(at.read_text())["address"]
        fitting = subprocess.Popen([*words, "--scheduler", address], stdout=subprocess.PIPE, text=True)
        while not os.path.exists(f"{archive}/runs/headless/checkpoint.npz"):
            assert fitting.poll() is None
            time.sleep(0.05)
        scheduler.kill()
        begun = time.monotonic()
        told = fitting.communicate(timeout=120)[0]
    finally:
        for process in (scheduler, worker):
            process.terminate()
            process.wait()
    assert (fitting.returncode, json.loads(told)["error"]["code"]) == (4, "cluster")
    assert time.monotonic() - begun < 60
    done = subprocess.run([*words, "--resume", "--workers", "2"], stdout=subprocess.PIPE, text=True)
    assert fingerprint(archive, json.loads(done.stdout)) == expected
