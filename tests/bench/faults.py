"""Kills at random instants: every fit must end, with the bits of an undisturbed one.

    python tests/bench/faults.py [--kills 10] [--seed 0] [--who worker,driver,freeze,all,scheduler,small] [--plain]

`worker`: kill -9 of a worker of a separate scheduler; `driver`: kill -9 of the fit, then --resume; `freeze`: SIGSTOP;
`all`: kill -9 of every worker, a new one after 20 s; `scheduler`: kill -9 of the scheduler, then --resume on another;
`small`: workers of 512 MiB.  `--plain` starts scheduler and workers with Dask's defaults, not with our settings.
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


PLAIN = False


def settings() -> dict[str, str]:
    """Return the environment of scheduler and workers: the settings of the embedded cluster, unless plain."""
    if PLAIN:
        return dict(os.environ)
    own = {f"DASK_{k.upper().replace('-', '_').replace('.', '__')}": repr(v) for k, v in SETTINGS.items()}
    return {**os.environ, **WORKER_ENVIRONMENT, **own}


@contextlib.contextmanager
def scheduler(folder: Path) -> Iterator[tuple[str, subprocess.Popen]]:
    """Yield the address of a scheduler process, and the process."""
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
        yield json.loads(at.read_text())["address"], process
    finally:
        process.kill()
        process.wait()


def worker(address: str, folder: Path, memory: str = "2GiB", nanny: str = "--no-nanny") -> subprocess.Popen:
    """Start a worker process, by default without a nanny, so that a kill is a kill."""
    return subprocess.Popen(
        [
            sys.executable, "-m", "distributed.cli.dask_worker", address, nanny, "--nthreads", "1",
            "--memory-limit", memory, "--no-dashboard", "--local-directory", str(folder / "space"),
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


def begin(path: str, run: str, address: str) -> subprocess.Popen:
    """Start a fit on a cluster."""
    words = command(path, run, "--scheduler", address)
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def ended(fit: subprocess.Popen, path: str, run: str, told: str = "") -> str:
    """Return the hash of a fit's run; what went wrong where it failed, or did not say what it should have."""
    errors = fit.communicate(timeout=600)[1]
    if fit.returncode:
        return f"exit code {fit.returncode}: {errors[-300:]}"
    return fingerprint(path, run) if told in errors else f"{told!r} was not said: {errors[-300:]}"


def kill_worker(path: str, folder: Path, number: int, after: float, how: int) -> tuple[str, float]:
    """Return the run's hash and its seconds, with one of two workers killed (or frozen) `after` seconds in."""
    with scheduler(folder) as (address, _), stopping([worker(address, folder) for _ in range(2)]) as workers:
        began = time.monotonic()
        fit = begin(path, f"hit-{number}", address)
        time.sleep(after)
        workers[0].send_signal(how)
        if how == signal.SIGKILL:
            workers.append(worker(address, folder))
        return ended(fit, path, f"hit-{number}"), time.monotonic() - began


def kill_all(path: str, folder: Path, number: int, after: float) -> tuple[str, float]:
    """Return the run's hash and its seconds, with every worker killed `after` seconds in and one new one 20 s later."""
    with scheduler(folder) as (address, _), stopping([worker(address, folder) for _ in range(2)]) as workers:
        began = time.monotonic()
        fit = begin(path, f"alone-{number}", address)
        time.sleep(after)
        for one in workers:
            one.kill()
        time.sleep(20)
        workers.append(worker(address, folder))
        told = "no worker is left" if fit.poll() is None else ""
        return ended(fit, path, f"alone-{number}", told), time.monotonic() - began


def kill_scheduler(path: str, folder: Path, number: int, after: float) -> tuple[str, float]:
    """Return the hash of a run whose scheduler was killed `after` seconds in, resumed on another; seconds to exit 4."""
    run = f"headless-{number}"
    with scheduler(folder) as (address, process), stopping([worker(address, folder) for _ in range(2)]):
        fit = begin(path, run, address)
        time.sleep(after)
        process.kill()
        began = time.monotonic()
        errors = fit.communicate(timeout=300)[1]
        took = time.monotonic() - began
    if fit.returncode == 0:
        return fingerprint(path, run), took
    if fit.returncode != 4:
        return f"exit code {fit.returncode}: {errors[-300:]}", took
    more = ("--resume",) if Path(path, "runs", run, "config.json").exists() else ()
    done = subprocess.run(command(path, run, "--workers", "2", *more), capture_output=True, text=True)
    return (fingerprint(path, run) if done.returncode == 0 else done.stderr[-300:]), took


def small_workers(path: str, folder: Path, number: int) -> tuple[str, float]:
    """Return the hash of a fit on workers of 512 MiB under nannies, or "refused" with exit code 3; its seconds."""
    with scheduler(folder) as (address, _):
        workers = [worker(address, folder, "512MiB", "--nanny") for _ in range(2)]
        with stopping(workers, signal.SIGTERM):
            began = time.monotonic()
            fit = begin(path, f"small-{number}", address)
            found = ended(fit, path, f"small-{number}")
            if fit.returncode == 3 and "a worker would hold up to" in found:
                print(found)
                return "refused", time.monotonic() - began
            return found, time.monotonic() - began


@contextlib.contextmanager
def stopping(workers: list[subprocess.Popen], how: int = signal.SIGKILL) -> Iterator[list[subprocess.Popen]]:
    """Yield processes that end with the context."""
    try:
        yield workers
    finally:
        for one in workers:
            one.send_signal(how)
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
    parser.add_argument("--plain", action="store_true")
    given = parser.parse_args()
    global PLAIN
    PLAIN = given.plain
    chance, wrong = random.Random(given.seed), 0
    with tempfile.TemporaryDirectory() as temporary, dask.config.set(SETTINGS):
        folder = Path(temporary)
        path = str(folder / "a.zarr")
        make(path, 120_000, [96, 48], 8, labelled=False)
        began = time.monotonic()
        subprocess.run(command(path, "whole", "--workers", "2", "--memory", "2GiB"), check=True, capture_output=True)
        calm, expected = time.monotonic() - began, fingerprint(path, "whole")
        print(f"undisturbed: {calm:.1f} s")
        once = ("freeze", "small")
        cases = [(who, i) for who in given.who.split(",") for i in range(1 if who in once else given.kills)]
        for number, (who, _) in enumerate(cases):
            after = chance.uniform(1.0, calm)
            hit = {
                "worker": lambda n=number, t=after: kill_worker(path, folder, n, t, signal.SIGKILL),
                "freeze": lambda n=number, t=after: kill_worker(path, folder, n, t, signal.SIGSTOP),
                "driver": lambda n=number, t=after: kill_driver(path, n, t),
                "all": lambda n=number, t=after: kill_all(path, folder, n, t),
                "scheduler": lambda n=number, t=after: kill_scheduler(path, folder, n, t),
                "small": lambda n=number: small_workers(path, folder, n),
            }
            found, took = hit[who]()
            same = found == expected or (who == "small" and found == "refused")
            wrong += not same
            print(
                f"{who:9} hit after {after:5.1f} s: {took:5.1f} s, {'identical' if found == expected else found}",
                flush=True,
            )
    print(f"{len(cases)} hits, {wrong} runs that did not end identical")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
