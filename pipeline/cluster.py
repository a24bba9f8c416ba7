"""Dask: the embedded cluster, joining one that runs, and the runner whose sums stay on the workers.

Rows never leave the workers.  A pass broadcasts the work once, sums in a fixed tree, and solves in the scheduler's
process, off its event loop; the client sees the model and the small sums.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import dask
import distributed
from dask.utils import parse_timedelta
from distributed import Client, KilledWorker, LocalCluster
from distributed.client import FutureCancelledError
from distributed.protocol.serialize import Serialize, Serialized
from distributed.scheduler import heartbeat_interval

from aweigh.algorithms.contract import Model, Stats
from aweigh.io.errors import AweighError, UsageError
from aweigh.pipeline import config, plan, task
from aweigh.pipeline.driver import Solve
from aweigh.pipeline.events import Emit, Note, silent
from aweigh.pipeline.task import FAN_IN, Tally, Work

MALLOC = str(64 << 20)
WORKER_ENVIRONMENT = {
    "MALLOC_TRIM_THRESHOLD_": MALLOC,
    "MALLOC_MMAP_THRESHOLD_": MALLOC,
    "MALLOC_ARENA_MAX": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
}
SETTINGS = {
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": 0.95,
    "distributed.scheduler.allowed-failures": 10,
    "distributed.scheduler.worker-ttl": "30s",
    "distributed.nanny.pre-spawn-environ": WORKER_ENVIRONMENT,
}
WITHOUT_WORKERS = 900.0  # seconds to wait for a worker where none is left
SILENT = 20.0  # seconds without a heartbeat after which a worker is given up, whatever the scheduler's worker-ttl
LOOK = 5.0  # seconds between looks at the workers
GATHER = 60.0  # seconds for a pass's last sums to reach the scheduler
ATTEMPTS = 3


class ClusterError(AweighError):
    """Workers or the scheduler were lost, or did nothing for too long."""

    code = "cluster"
    exit_code = 4


@contextlib.contextmanager
def embedded(workers: int, memory: int | str, *, processes: bool = True, threads: int = 1) -> Iterator[Client]:
    """Yield a client of a LocalCluster on loopback whose scheduler lives in this process."""
    # A Nanny leaks the first value it sets into this process's environment, which later beats its own setting.
    before = {name: os.environ.get(name) for name in WORKER_ENVIRONMENT}
    with dask.config.set(SETTINGS):
        if processes:
            os.environ.update({name: v for name, v in WORKER_ENVIRONMENT.items() if name.startswith("MALLOC")})
        try:
            with (
                LocalCluster(
                    n_workers=workers,
                    threads_per_worker=threads,
                    processes=processes,
                    memory_limit=memory,
                    dashboard_address="127.0.0.1:0",
                    silence_logs=50,
                    **({"host": "127.0.0.1"} if processes else {}),
                ) as cluster,
                Client(cluster, set_as_default=False) as client,
            ):
                yield client
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value


@contextlib.contextmanager
def joined(address: str) -> Iterator[Client]:
    """Yield a client of a cluster that runs already."""
    try:
        client = Client(address, timeout=20, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise ClusterError(
            f"no Dask scheduler answers at {address} ({type(error).__name__})",
            "start one with `dask scheduler`, or leave out --scheduler for an embedded cluster",
        ) from error
    with client:
        yield client


def default_workers() -> int:
    """Return one worker a processor that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def parse_memory(text: str) -> int:
    """Return a size such as 1GiB in bytes; raise UsageError where it is none."""
    try:
        size = int(dask.utils.parse_bytes(text))
    except ValueError as error:
        raise UsageError(f"--memory {text!r} is no size", "give one such as 2GiB or 800MB") from error
    if size < 64 << 20:
        raise UsageError(f"--memory {text!r} is under 64 MiB", "a worker needs about 300 MiB before it reads anything")
    return size


def fold(work: Work, blocks: range, home: str = "") -> tuple[Stats, Tally]:
    """Return what one task gives; `home` is the worker that keeps its blocks, where blocks are kept."""
    return task.fold(work, blocks, bool(home) and distributed.get_worker().address == home)


@dataclass
class DaskRunner:
    """Passes on the workers of a client's cluster, solves in its scheduler's process.

    `sparing`: nobody said how much memory the workers may take, so that what could be kept in it is kept small.
    """

    client: Client
    emit: Emit = silent
    deadline: float = field(default_factory=lambda: float(parse_timedelta(config.section("cluster")["deadline"])))
    sparing: bool = False
    fold: Callable[..., tuple[Stats, Tally]] = fold
    solved_on: str = ""
    _began: set[str] = field(default_factory=set)

    def run(self, work: Work, solve: Solve, progress: Callable[[int, int], None]) -> tuple[Model, Stats, Tally]:
        """Return the solved model, the summed statistics and what the pass cost.

        Lost workers cost their tasks in flight and their partial sums; a pass whose sums were lost with all their
        workers is run again.  Raises ClusterError where nothing moves for `deadline` seconds.
        """
        return self._persist(lambda: self._once(work, solve, progress))

    def _persist(self, what: Callable[[], Any]) -> Any:
        """Return what() of an attempt that was not lost with the workers, or the connection, that it needed."""
        for attempt in range(ATTEMPTS):
            self._connected()
            try:
                return what()
            except (KilledWorker, FutureCancelledError, _Lost) as error:
                if attempt + 1 == ATTEMPTS:
                    raise ClusterError(f"a pass was lost {ATTEMPTS} times: {error}", self._state()) from error
                self.emit(Note(f"a pass was lost ({error}) and is run again", warning=True))
        raise AssertionError

    def _connected(self) -> None:
        """Wait while the client tries to reach a lost scheduler again; raise ClusterError once it has given up."""
        while self.client.status == "connecting":
            time.sleep(0.1)
        if self.client.status != "running":
            raise ClusterError("the scheduler is gone, and was not back in time", "start it again, then --resume")

    @contextlib.contextmanager
    def _reaching(self) -> Iterator[None]:
        """A context in which a connection that breaks is a lost attempt."""
        try:
            yield
        except Exception as error:
            if isinstance(error, OSError | TimeoutError) or self.client.status != "running":
                raise _Lost(f"no connection to the scheduler: {type(error).__name__}") from error
            raise

    def _once(self, work: Work, solve: Solve, progress: Callable[[int, int], None]) -> tuple[Model, Stats, Tally]:
        todo = task.groups(len(work.source.refs), work.source.most_tasks)
        with self._reaching():
            # A large model is sent on purpose.
            with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TiB"}):
                shared = self.client.submit(_identity, work, pure=False, retries=2)
            leaves = self._leaves(shared, todo, bool(work.pin))
            level = leaves
            while len(level) > FAN_IN:
                level = [
                    self.client.submit(task.merge, *level[i : i + FAN_IN], pure=False, retries=2)
                    for i in range(0, len(level), FAN_IN)
                ]
        self._wait(leaves, level, progress)
        answer = self._on_scheduler(_solve_there, keys=[part.key for part in level], solve=solve, model=work.model)
        if answer is None:
            raise _Lost("the summed statistics")
        model, stats, tally, self.solved_on = answer
        return model, stats, tally

    def _leaves(self, shared: Any, todo: list[range], pinned: bool) -> list[Any]:
        """Submit a pass's tasks; where blocks are kept in memory, each to the worker that keeps its blocks."""
        homes = self._addresses() if pinned else []
        if not homes:
            return self.client.map(self.fold, [shared] * len(todo), todo, pure=False, retries=2)
        return [
            self.client.submit(
                self.fold, shared, blocks, homes[i % len(homes)], pure=False, retries=2,
                workers=[homes[i % len(homes)]], allow_other_workers=True,
            )
            for i, blocks in enumerate(todo)
        ]  # fmt: skip

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return function(*args), computed in the scheduler's process, off its event loop."""
        value, self.solved_on = self._persist(lambda: self._on_scheduler(_call_there, what=function, given=args))
        return value

    def workers(self) -> dict[str, dict[str, Any]]:
        """Return what each worker is and the most memory that it has held, by address."""
        return self._everywhere(_describe_process)

    def restarted(self) -> int:
        """Return how many of the workers that the fit began with are gone."""
        return len(self._began - set(self._addresses()))

    def floors(self) -> dict[str, int]:
        """Return each worker's resident bytes after its imports, kernels compiled, by address; waits for a worker."""
        patience = _Patience(self)
        while not self._persist(self._look):
            patience.check()
            time.sleep(0.25)
        found = self._everywhere(_floor_here)
        self._began = set(found)
        return found

    def limit(self) -> int | None:
        """Return the least memory that a worker may fill before it is paused or killed, None where it has no limit."""
        return min((limit for limit in self._everywhere(_limit_here).values() if limit), default=None)

    def forget(self) -> None:
        """Let the workers give back the memory of kept blocks."""
        self._everywhere(task.forget_pinned)

    def _everywhere(self, function: Callable[..., Any]) -> dict[str, Any]:
        """Return function() of each worker that does not die meanwhile, by address."""

        def ask() -> dict[str, Any]:
            with self._reaching():
                return dict(self.client.run(function, on_error="ignore"))

        return dict(self._persist(ask))

    def _addresses(self) -> list[str]:
        return sorted(self.client.scheduler_info(n_workers=-1)["workers"])

    def _look(self) -> int:
        """Give up workers that have long been silent; return how many there are then."""
        silent, left = self._on_scheduler(_give_up_silent, seconds=SILENT)
        for address in silent:
            self.emit(Note(f"worker {address} has been silent for {SILENT:.0f} s and is given up", warning=True))
        return int(left)

    def _wait(self, leaves: list[Any], sums: list[Any], progress: Callable[[int, int], None]) -> None:
        """Return once all `sums` are there; raise what went wrong with them, or ClusterError where nothing moves."""
        changed = threading.Event()
        for future in sums:
            future.add_done_callback(lambda future: changed.set())
        done, patience = -1, _Patience(self)
        while True:
            changed.wait(0.25)
            changed.clear()
            now = sum(f.status == "finished" for f in leaves)
            if now != done:
                done = now
                patience.moved()
                progress(done, len(leaves))
            for future in sums:
                if future.status in ("cancelled", "lost"):
                    raise _Lost(f"its sums are {future.status}")
                if future.status == "error":
                    future.result()
            if all(future.status == "finished" for future in sums):
                progress(len(leaves), len(leaves))
                return
            self._connected()
            patience.check()

    def _on_scheduler(self, function: Callable[..., Any], **kwargs: Any) -> Any:
        with self._reaching():
            return self.client.run_on_scheduler(function, **kwargs)

    def _state(self) -> str:
        try:
            info = self.client.scheduler_info(n_workers=-1)["workers"]
        except Exception:
            return "the scheduler does not answer; start it again, then --resume"
        lines = [f"{a}: {w.get('status')}, {w.get('metrics', {}).get('memory', 0) >> 20} MiB" for a, w in info.items()]
        return f"workers: {'; '.join(lines) or 'none'}; mend the cluster, then --resume"


class _Lost(Exception):
    pass


class _Patience:
    """How long nothing may move: a runner's deadline where it has workers, WITHOUT_WORKERS where it has none."""

    def __init__(self, runner: DaskRunner) -> None:
        self._runner, self._alone = runner, False
        self._since = self._looked = time.monotonic()

    def moved(self) -> None:
        """Begin to count anew."""
        self._since = time.monotonic()

    def check(self) -> None:
        """Say once that no worker is left, and that one is back; raise ClusterError where it has been too long."""
        now = time.monotonic()
        if now - self._looked > LOOK:
            self._looked, alone = now, not self._runner._look()
            if alone != self._alone:
                self._alone, self._since = alone, now
                told = f"no worker is left: waiting up to {WITHOUT_WORKERS:.0f} s for one to join"
                self._runner.emit(Note(told if alone else "a worker has joined: going on", warning=alone))
        limit = WITHOUT_WORKERS if self._alone else self._runner.deadline
        if now - self._since > limit:
            what = "no worker joined" if self._alone else "no task finished"
            raise ClusterError(f"{what} in {limit:.0f} s", self._runner._state())


def _identity(work: Work) -> Work:
    return work


async def _floor_here() -> int:
    """Return a worker's floor; off its event loop, since compiling for longer than worker-ttl would cost the worker."""
    return await asyncio.to_thread(plan.resident_after_imports)


def _limit_here(dask_worker: Any) -> int | None:
    """Return what one thread of a worker may hold: less than its limit where it would be paused before."""
    memory = dask_worker.memory_manager
    limit = int((memory.memory_limit or 0) * (memory.memory_pause_fraction or 1))
    return limit // max(1, dask_worker.state.nthreads) or None


async def _give_up_silent(dask_scheduler: Any, seconds: float) -> tuple[list[str], int]:
    """Run in the scheduler's process: restart the workers whose heartbeats stopped, as worker-ttl does, only sooner."""
    long = max(seconds, 10 * heartbeat_interval(len(dask_scheduler.workers)))
    silent = [each.address for each in dask_scheduler.workers.values() if time.time() - each.last_seen > long]
    new = [address for address in silent if address not in _restarting]
    if new:
        again = dask_scheduler.restart_workers(new, wait_for_workers=False, stimulus_id=f"silent-{time.time()}")
        _restarting.update(dict.fromkeys(new, being := asyncio.ensure_future(again)))
        being.add_done_callback(lambda being: [_restarting.pop(address, None) for address in new])
    return new, len(dask_scheduler.workers) - len(silent)


_restarting: dict[str, Any] = {}  # by worker; asyncio keeps no reference to what it runs


def _here() -> str:
    return f"scheduler (pid {os.getpid()} on {socket.gethostname()})"


async def _solve_there(dask_scheduler: Any, keys: list[str], solve: Solve, model: Model) -> Any:
    """Run in the scheduler's process: fetch the last partial sums from their workers; add and solve in a thread."""
    try:
        answer = await asyncio.wait_for(dask_scheduler.gather(keys), GATHER)
    except TimeoutError:
        return None
    if answer["status"] != "OK":
        return None
    parts = [_unwrapped(answer["data"][key]) for key in keys]
    return *await asyncio.to_thread(_quietly, task.solved, parts, solve, model), _here()


def _unwrapped(value: Any) -> Any:
    """Return what a worker's answer holds: bytes from another process, the object itself within one."""
    if isinstance(value, Serialized):
        return distributed.protocol.deserialize(value.header, value.frames)
    return value.data if isinstance(value, Serialize) else value


async def _call_there(dask_scheduler: Any, what: Callable[..., Any], given: tuple[Any, ...]) -> Any:
    return await asyncio.to_thread(_quietly, what, *given), _here()


def _quietly(function: Callable[..., Any], *args: Any) -> Any:
    task.one_blas_thread()
    return function(*args)


def _describe_process(dask_worker: Any) -> dict[str, Any]:
    spilled = getattr(dask_worker.data, "spilled_total", (0, 0))
    return {
        "pid": os.getpid(),
        "peak_bytes": task.peak_bytes(),
        "spilled_bytes": int(spilled[1]) if isinstance(spilled, tuple) else 0,
        "malloc": {name: os.environ.get(name) for name in WORKER_ENVIRONMENT if name.startswith("MALLOC")},
    }
