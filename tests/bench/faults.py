"""Kills at random instants: every fit must end, with the bits of an undisturbed one.

    python tests/bench/faults.py [--kills 10] [--seed 0] [--who worker,driver,freeze]

`worker`: kill -9 of a worker of a separate scheduler; `driver`: kill -9 of the fit, then --resume; `freeze`: SIGSTOP.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import dask
import numpy as np
from synthetic import make

from aweigh.io.archive import open_archive
from aweigh.io.rows import ZarrRows
from aweigh.pipeline.cluster import SETTINGS, WORKER_ENVIRONMENT

AWEIGH = [sys.executable, "-m", "aweigh.pipeline.cli"]


def settings() -> dict[str, str]:
    """Return the environment of scheduler and workers: the settings of the embedded cluster."""
    own = {f"DASK_{k.upper().replace('-', '_').replace('.', '__')}": repr(v) for k, v in SETTINGS.items()}
    return {**os.environ, **WORKER_ENVIRONMENT, **own}


@contextlib.contextmanager
def scheduler(folder: Path) -> Iterator[str]:
    """Yield the address of a scheduler process."""
    at = folder / f"scheduler-{time.monotonic_ns()}.json"
    command = ["scheduler", "--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "distributed.cli.dask_scheduler", *command[1:], "--scheduler-file", str(at)],
        env=settings(), stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while not at.exists():
            time.sleep(0.1)
        time.sleep(0.3)
        yield json.loads(at.read_text())["address"]
    finally:
        process.kill()
        process.wait()


def worker(address: str, folder: Path) -> subprocess.Popen:
    """Start a worker process without a nanny, so that a kill is a kill."""
    return subprocess.Popen(
        [
            sys.executable, "-m", "distributed.cli.dask_worker", address, "--no-nanny", "--nthreads", "1",
            "--memory-limit", "2GiB", "--no-dashboard", "--local-directory", str(folder / "space"),
        ],
        env=settings(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def fingerprint(path: str, run: str) -> str:
    """Return a hash of labels, embedding, confidence and objective of a run."""
    archive = open_archive(path)
    rows, h = ZarrRows(archive.path, f"runs/{run}"), hashlib.sha256()
    record = json.loads(Path(path, "runs", run, "run.json").read_text())
    h.update(repr(record["objective"]).encode())
    for batch in archive.batches:
        for name in ("labels", "embedding", "confidence"):
            for block in range(batch.blocks):
                h.update(np.ascontiguousarray(rows.read(name, batch, block)).tobytes())
    return h.hexdigest()


def command(path: str, run: str, *more: str) -> list[str]:
    """Return the words of one fit."""
    return [*AWEIGH, "fit", path, "-k", "8", "-m", "acmvc", "--max-sweeps", "12", "--tol", "0", "--run", run, *more]


def kill_worker(path: str, folder: Path, number: int, after: float, how: int) -> tuple[str, float]:
    """Return the run's hash and its seconds, with one of two workers killed (or frozen) `after` seconds in."""
    with scheduler(folder) as address:
        workers = [worker(address, folder) for _ in range(2)]
        began = time.monotonic()
        words = command(path, f"hit-{number}", "--scheduler", address)
        fit = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            time.sleep(after)
            workers[0].send_signal(how)
            if how == signal.SIGKILL:
                workers.append(worker(address, folder))
            told = fit.communicate(timeout=300)[1]
            if fit.returncode:
                return f"exit code {fit.returncode}: {told[-300:]}", time.monotonic() - began
            return fingerprint(path, f"hit-{number}"), time.monotonic() - began
        finally:
            for one in workers:
                one.kill()
                one.wait()


def kill_driver(path: str, number: int, after: float) -> tuple[str, float]:
    """Return the hash of a run whose driver was killed `after` seconds in and that was resumed."""
    began = time.monotonic()
    run = f"cut-{number}"
    fit = subprocess.Popen(
        command(path, run, "--workers", "2", "--memory", "2GiB"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    with contextlib.suppress(subprocess.TimeoutExpired):
        fit.wait(timeout=after)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(fit.pid, signal.SIGKILL)
    fit.wait()
    folder = Path(path, "runs", run)
    if not (folder / "run.json").exists():
        more = ("--resume",) if (folder / "config.json").exists() else ()
        done = subprocess.run(
            command(path, run, "--workers", "2", "--memory", "2GiB", *more), capture_output=True, text=True
        )
        if done.returncode:
            return f"exit code {done.returncode}: {done.stderr[-300:]}", time.monotonic() - began
    return fingerprint(path, run), time.monotonic() - began


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--who", default="worker,driver,freeze")
    given = parser.parse_args()
    chance, wrong = random.Random(given.seed), 0
    with tempfile.TemporaryDirectory() as temporary, dask.config.set(SETTINGS):
        folder = Path(temporary)
        path = str(folder / "a.zarr")
        make(path, 120_000, [96, 48], 8, labelled=False)
        began = time.monotonic()
        subprocess.run(command(path, "whole", "--workers", "2", "--memory", "2GiB"), check=True, capture_output=True)
        calm, expected = time.monotonic() - began, fingerprint(path, "whole")
        print(f"undisturbed: {calm:.1f} s")
        cases = [(who, i) for who in given.who.split(",") for i in range(1 if who == "freeze" else given.kills)]
        for number, (who, _) in enumerate(cases):
            after = chance.uniform(1.0, calm)
            if who == "driver":
                found, took = kill_driver(path, number, after)
            else:
                how = signal.SIGKILL if who == "worker" else signal.SIGSTOP
                found, took = kill_worker(path, folder, number, after, how)
            same = found == expected
            wrong += not same
            print(f"{who:7} hit after {after:5.1f} s: {took:5.1f} s, {'identical' if same else found}", flush=True)
    print(f"{len(cases)} hits, {wrong} runs that did not end identical")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
