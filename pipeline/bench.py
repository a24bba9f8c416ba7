"""What this machine, or the workers of a cluster, can do: constants measured on the spot, for the plan on paper.

Every worker measures at the same time, since they share memory and disk; the median counts.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
import os
import shutil
import statistics
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from aweigh import algorithms
from aweigh.algorithms import kmeans, scaling
from aweigh.algorithms.contract import Array, Block, Sample, Sum
from aweigh.io.archive import open_archive
from aweigh.io.batches import import_batch
from aweigh.io.errors import UsageError
from aweigh.io.rows import ZarrRows
from aweigh.pipeline import cluster, plan, task, versions
from aweigh.pipeline.task import ArchiveSource, Batches, Work

FEATURES, ROWS, CLUSTERS = (512, 256, 64), 4096, 20
ANCHORS = (10, 40, 120)
BLOCKS = 8
COLUMNS = 60  # of the embedding that is clustered
TASKS = (20, 220)


@dataclass(frozen=True)
class Constants:
    """Rates of one worker while all work, seconds of the scheduler; `row_seconds` by method and anchors.

    `read` is from the page cache, checked and scaled; `disk` what the storage gives to all workers of one machine
    together, nothing cached.  `row_seconds` is what a sweep takes a row beyond its two products X A' and Z'X.
    """

    read_bytes_per_second: float
    disk_bytes_per_second: float
    survey_bytes_per_second: float
    write_bytes_per_second: float
    multiply_adds_per_second: float
    row_seconds: dict[str, dict[str, float]]
    clustering_multiply_adds_per_second: float
    svd_multiply_adds_per_second: float
    task_seconds: float
    pass_seconds: float
    messages_per_task: float
    floor_bytes: int
    workers: int
    versions: dict[str, str]

    def seconds_a_row(self, method: str, anchors: int) -> float:
        """Return the seconds a row beyond the products, between the measured numbers of anchors by powers."""
        known = sorted((int(m), s) for m, s in self.row_seconds[method].items())
        m, s = np.log([k for k, _ in known]), np.log([max(v, 1e-9) for _, v in known])
        i = int(np.clip(np.searchsorted(m, np.log(anchors)) - 1, 0, len(m) - 2))
        slope = (s[i + 1] - s[i]) / (m[i + 1] - m[i])
        return float(np.exp(s[i] + slope * (np.log(anchors) - m[i])))


def default_path() -> Path:
    """Return where constants lie unless told: bench.json in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aweigh" / "bench.json"


def save(constants: Constants, path: Path) -> None:
    """Write constants as JSON, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(json.dumps(dataclasses.asdict(constants), indent=1) + "\n", encoding="utf-8")
    os.replace(fresh, path)


def load(path: Path) -> Constants:
    """Return stored constants; raise UsageError where there are none or they are of another version."""
    try:
        return Constants(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise UsageError(f"there are no constants in {path}", "measure them with `aweigh bench`") from error
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(
            f"{path} holds no constants of `aweigh bench` ({error})", "run `aweigh bench` again"
        ) from error


def measure(runner: Any, folder: str) -> Constants:
    """Return the constants of a runner's workers; `folder` is where they write and read, and is left as it was."""
    floors = runner.floors()
    place = os.path.join(os.path.abspath(folder), f"aweigh-bench-{uuid.uuid4().hex[:8]}")
    found = list(runner.client.run(_on_worker, place).values())
    middle = {name: statistics.median(one[name] for one in found) for name in found[0] if name != "row_seconds"}
    middle["disk_bytes_per_second"] *= len(found)
    rows = {
        name: {m: statistics.median(one["row_seconds"][name][m] for one in found) for m in by_anchors}
        for name, by_anchors in found[0]["row_seconds"].items()
    }
    return Constants(
        **middle, **_scheduling(runner.client), row_seconds=rows, svd_multiply_adds_per_second=_svd_rate(),
        floor_bytes=max(floors.values()), workers=len(floors), versions=versions.collect(),
    )  # fmt: skip


async def _on_worker(place: str) -> dict[str, Any]:
    return await asyncio.to_thread(_measured_here, f"{place}-{os.getpid()}")


def _measured_here(place: str) -> dict[str, Any]:
    task.one_blas_thread()
    try:
        return {**_reading(place), **_computing()}
    finally:
        shutil.rmtree(place, ignore_errors=True)


def best(function: Callable[[], Any], repeats: int = 3) -> float:
    """Return the least seconds of some calls."""
    return min(_timed(function) for _ in range(repeats))


def _timed(function: Callable[[], Any]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


class Noise:
    """An import source of normal values around a few centres."""

    dtype = np.dtype(np.float32)

    def __init__(self, rows: int, columns: int, seed: int) -> None:
        self.rows, self.columns = rows, columns
        self._block = clustered(ROWS, columns, seed)

    def blocks(self, rows_per_block: int) -> Any:
        """Yield the same rows again and again."""
        for first in range(0, self.rows, rows_per_block):
            yield np.resize(self._block, (min(rows_per_block, self.rows - first), self.columns))

    def describe(self) -> str:
        """Name it for messages."""
        return "noise"


def clustered(rows: int, columns: int, seed: int) -> Array:
    """Return float32 rows around as many centres as there are clusters."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(CLUSTERS, columns))[rng.integers(CLUSTERS, size=rows)]
    return (centres + 2 * rng.normal(size=(rows, columns))).astype(np.float32)


def _reading(place: str) -> dict[str, float]:
    sources = {f"v{i}": Noise(BLOCKS * ROWS, d, i) for i, d in enumerate(FEATURES)}
    import_batch(place, sources, name="bench", block_rows=ROWS)
    opened = open_archive(place)
    views = tuple(opened.views)
    plain = ArchiveSource(place, opened.batches, views, tuple(range(len(views))))
    surveyed = [
        scaling.survey_view(X, np.ones(len(X), bool), np.zeros(X.shape[1])) for X in plain.load(opened.batches[0], 0)[0]
    ]
    chosen = tuple(scaling.choose("zunit", *found, shift=np.zeros(len(found[1]))) for found in surveyed)
    source = dataclasses.replace(plain, scaling=chosen)
    size = BLOCKS * ROWS * sum(FEATURES) * 4

    def read() -> None:
        for ref in source.refs:
            source.load(*ref)

    def survey() -> None:
        for X in plain.load(opened.batches[0], 0)[0]:
            scaling.survey_view(X, np.ones(len(X), bool), np.zeros(X.shape[1]))

    _forget(place)
    cold = _timed(read)
    rows = ZarrRows(place, "runs/bench")
    rows.create("rows", opened.batches, COLUMNS, "float32")
    block = np.zeros((ROWS, COLUMNS), np.float32)

    def write() -> None:
        for ref in source.refs:
            rows.write("rows", *ref, block)

    return {
        "read_bytes_per_second": size / best(read),
        "disk_bytes_per_second": size / cold,
        "survey_bytes_per_second": size / BLOCKS / best(survey),
        "write_bytes_per_second": BLOCKS * block.nbytes / best(write),
    }


def _forget(place: str) -> None:
    """Let the page cache forget a folder's files, so that the next reading is the storage's."""
    for folder, _, names in os.walk(place):
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _computing() -> dict[str, Any]:
    X, m = clustered(ROWS, sum(FEATURES), 0), 40
    A, Z = X[:m].copy(), np.ascontiguousarray(X[:, :m])
    rate = 2 * ROWS * m * X.shape[1] / best(lambda: (X @ A.T, Z.T @ X), 5)
    E = clustered(ROWS, COLUMNS, 1)
    method = kmeans.KMeans(CLUSTERS)
    centres = np.stack([E[i : i + CLUSTERS] for i in range(method.starts)]).astype(float)
    model = kmeans.Model(centres, np.zeros(method.starts), E, 0.0)
    block = block_of((E,), 0)
    step = best(lambda: method.step(model, block))
    return {
        "multiply_adds_per_second": rate,
        "clustering_multiply_adds_per_second": ROWS * method.starts * CLUSTERS * COLUMNS / step,
        "row_seconds": {
            name: {str(m): _row_seconds(name, m, rate) for m in ANCHORS}
            for name, kind in algorithms.METHODS.items()
            if blockwise(kind(2))
        },
    }


def blockwise(method: Any) -> bool:
    """Return whether a method's steps see one block alone, so that one block shows what a row costs."""
    return not getattr(method, "arrays", ())


def block_of(views: tuple[Array, ...], width: int) -> Block:
    """Return a block of complete rows."""
    n = len(views[0])
    return Block(views, np.ones((n, len(views)), bool), np.arange(n), np.arange(n), np.zeros((n, width)))


def _row_seconds(name: str, anchors: int, rate: float) -> float:
    """Return the seconds a row of a sweep of one method after three sweeps, without X A' and Z'X."""
    k = min(anchors, CLUSTERS)
    fields = algorithms.parameters(name)
    method = algorithms.make(
        name, k if "anchors" in fields else anchors, {"anchors": anchors} if "anchors" in fields else {}
    )
    views = tuple(clustered(ROWS, d, 2) for d in FEATURES)
    views = tuple(X / np.linalg.norm(X, axis=1, keepdims=True) for X in views)
    block = block_of(views, method.width)
    model = method.start(Sample(views, block.present, block.positions), np.random.default_rng(0))
    for step, solve, *_ in (*method.prepare, *method.sweep * 3):
        stats, rows = step(model, block)
        model = solve(model, stats)
        block = block._replace(carried=rows) if isinstance(rows, np.ndarray) else block
    seconds = sum(best(functools.partial(one.step, model, block), 2) for one in method.sweep)
    return max(seconds / ROWS - 2 * anchors * sum(FEATURES) / rate, 1e-9)


def _svd_rate() -> float:
    M = np.random.default_rng(0).normal(size=(60, 832))
    return 60 * 60 * 832 / best(lambda: np.linalg.svd(M, full_matrices=False), 5)


class Nothing(NamedTuple):
    """The sums of a pass that does nothing."""

    count: Sum


@dataclass(frozen=True)
class Numbers(Batches):
    """Blocks without rows, one a task: what a pass costs beside its work."""

    count: int

    @property
    def refs(self) -> Any:
        """The blocks in order, which are of no batch."""
        return range(self.count)


def nothing(work: Work, blocks: range, home: str = "") -> tuple[Nothing, task.Tally]:
    """Return the sums of one task that reads nothing."""
    return Nothing(np.ones(())), task.Tally(len(blocks), *(0,) * (len(task.Tally._fields) - 1))


def unused(model: Any, block: Block) -> Any:
    """Step over nothing: `nothing` never calls it."""
    raise AssertionError


def same(model: Any, stats: Any) -> Any:
    """Solve nothing."""
    return model


def idle_pass(client: Any, tasks: int) -> None:
    """Run a pass of so many tasks that do nothing, by the way of every pass."""
    work = Work(Numbers(tasks * tasks), unused, None)
    cluster.DaskRunner(client, fold=nothing).run(work, same, lambda done, of: None)


def messages(client: Any) -> int:
    """Return how many messages client, scheduler and workers have sent each other so far, those of tasks among them."""
    workers = sum(client.run(lambda dask_worker: dask_worker.batched_stream.message_count, on_error="ignore").values())
    return client.scheduler_comm.message_count + client.run_on_scheduler(_sent) + workers


def _sent(dask_scheduler: Any) -> int:
    comms = (*dask_scheduler.stream_comms.values(), *dask_scheduler.client_comms.values())
    return sum(comm.message_count for comm in comms)


def _scheduling(client: Any) -> dict[str, float]:
    """Return the seconds of a pass and of each of its tasks, and the messages of a task, by passes that do nothing."""
    took, sent, repeats = {}, {}, 5
    for tasks in TASKS:
        idle_pass(client, tasks)
        before = messages(client)
        took[tasks] = best(functools.partial(idle_pass, client, tasks), repeats)
        sent[tasks] = (messages(client) - before) / repeats
    few, many = TASKS
    each = max((took[many] - took[few]) / (many - few), 0.0)
    return {
        "task_seconds": each,
        "pass_seconds": max(took[few] - few * each, 0.0),
        "messages_per_task": (sent[many] - sent[few]) / (many - few),
    }


def lines(found: Constants) -> list[str]:
    """Return the constants as lines for people."""
    mega, giga = 1e6, 1e9
    methods = []
    for name, by in found.row_seconds.items():
        told = ", ".join(f"{s * 1e6:.2f} µs at {m}" for m, s in by.items())
        methods.append(f"  {name}: a row beside its products {told} anchors")
    return [
        f"{found.workers} workers at once, each:",
        f"  reads, checks and scales {found.read_bytes_per_second / mega:.0f} MB/s from the page cache, "
        f"surveys {found.survey_bytes_per_second / mega:.0f} and writes {found.write_bytes_per_second / mega:.0f}",
        f"  multiplies matrices at {2 * found.multiply_adds_per_second / giga:.1f} GFLOP/s (float32)",
        *methods,
        f"  holds {found.floor_bytes / plan.MIB:.0f} MiB before it reads anything",
        f"the storage gives {found.disk_bytes_per_second / mega:.0f} MB/s to all of them",
        f"a pass costs {found.pass_seconds * 1e3:.0f} ms, a task {found.task_seconds * 1e3:.2f} ms and "
        f"{found.messages_per_task:.1f} messages",
    ]
