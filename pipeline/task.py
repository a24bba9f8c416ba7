"""What one Dask task does: load blocks, step the method over them, fold the statistics in order.

A task opens what it reads by itself; neither rows nor open files travel through the scheduler.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import threadpoolctl

from aweigh.algorithms import scaling
from aweigh.algorithms.contract import Array, Block, Max, Rows, Stats, Sum, combine
from aweigh.io.archive import Batch, BatchReader

FAN_IN = 8
TASKS = 20
ROW_TASK_BYTES = 16 << 20

_blas = threading.Lock()
_blas_set = False


def one_blas_thread() -> None:
    """Set BLAS to one thread in this process, for good: a context would restore under its neighbours."""
    global _blas_set
    with _blas:
        if not _blas_set:
            threadpoolctl.threadpool_limits(1, user_api="blas")
            _blas_set = True


def peak_bytes() -> int:
    """Return the most bytes that this process has had resident.

    Not getrusage's figure: that begins with what the process that started this one held.
    """
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


class RowArrays(Protocol):
    """Per-row arrays of a run by name, batch and block: in Zarr for a cluster, in memory for an estimator."""

    def read(self, name: str, batch: Batch, block: int) -> Array: ...

    def write(self, name: str, batch: Batch, block: int, rows: Array) -> None: ...


class Source(Protocol):
    """Numbered blocks of rows, in a fixed order."""

    @property
    def refs(self) -> Sequence[tuple[Batch, int]]: ...

    @property
    def most_tasks(self) -> int: ...

    def load(self, batch: Batch, block: int) -> tuple[tuple[Array, ...], Array, int]: ...


class Batches:
    """Numbering of the blocks of some batches."""

    batches: tuple[Batch, ...]
    most_tasks = 1 << 30

    @property
    def refs(self) -> Sequence[tuple[Batch, int]]:
        """The blocks in order, as (batch, number within it)."""
        return [(batch, i) for batch in self.batches for i in range(batch.blocks)]

    @property
    def rows(self) -> int:
        """Rows of all batches."""
        return sum(batch.rows for batch in self.batches)


@dataclass(frozen=True)
class ArchiveSource(Batches):
    """Blocks of an archive's views, scaled."""

    path: str
    batches: tuple[Batch, ...]
    views: tuple[str, ...]
    columns: tuple[int, ...]
    scaling: tuple[scaling.ViewScaling, ...] = ()

    def load(self, batch: Batch, block: int) -> tuple[tuple[Array, ...], Array, int]:
        """Return the scaled views, the presence (rows, V) and the logical bytes read."""
        reader = _reader(self.path, batch)
        first, last = batch.block_range(block)
        if any(batch.missing.get(name) for name in self.views):
            present = reader.present(block)[:, list(self.columns)]
        else:
            present = np.ones((last - first, len(self.views)), bool)
        raw = [reader.view(name, block) for name in self.views]
        read = sum(X.nbytes for X in raw)
        return scaled(self.scaling, raw, present), present, read


@dataclass(frozen=True)
class MemorySource(Batches):
    """Blocks of arrays in memory, scaled; the arrays themselves are never written to."""

    arrays: dict[str, tuple[tuple[Array, ...], Array]]
    batches: tuple[Batch, ...]
    scaling: tuple[scaling.ViewScaling, ...] = ()

    def load(self, batch: Batch, block: int) -> tuple[tuple[Array, ...], Array, int]:
        """Return copies of the block's rows, scaled."""
        first, last = batch.block_range(block)
        views, mask = self.arrays[batch.name]
        raw, present = [X[first:last].copy() for X in views], mask[first:last]
        return scaled(self.scaling, raw, present), present, sum(X.nbytes for X in raw)


def scaled(scalings: tuple[scaling.ViewScaling, ...], raw: list[Array], present: Array) -> tuple[Array, ...]:
    """Return the scaled views of a block, or the views as they are where no scaling is known yet."""
    if not scalings:
        return tuple(raw)
    return tuple(scaling.apply(s, X, present[:, v]) for v, (s, X) in enumerate(zip(scalings, raw, strict=True)))


@dataclass(frozen=True)
class RowsSource(Batches):
    """Blocks of per-row arrays of runs (an embedding, labels), as the views of a step."""

    parts: tuple[tuple[RowArrays, str], ...]
    batches: tuple[Batch, ...]
    row_bytes: int

    @property
    def most_tasks(self) -> int:  # type: ignore[override]
        """Tasks of about 16 MiB: an embedding smaller than that is one task."""
        return max(1, -(-self.rows * self.row_bytes // ROW_TASK_BYTES))

    def load(self, batch: Batch, block: int) -> tuple[tuple[Array, ...], Array, int]:
        """Return the rows of one block."""
        views = tuple(rows.read(name, batch, block) for rows, name in self.parts)
        return views, np.ones((len(views[0]), 1), bool), sum(x.nbytes for x in views)


@dataclass(frozen=True)
class Chosen:
    """Some blocks of a source."""

    source: Any
    refs: tuple[tuple[Batch, int], ...]
    most_tasks: int = 1 << 30

    def load(self, batch: Batch, block: int) -> tuple[tuple[Array, ...], Array, int]:
        """Return what the source has there."""
        return self.source.load(batch, block)


class Work(NamedTuple):
    """What is broadcast once a pass: the step, its model, where blocks come from and where rows go.

    `pin` names the run whose scaled blocks a worker may keep in memory, "" for none.
    """

    source: Any
    step: Callable[[Any, Block], tuple[Stats, Rows]]
    model: Any
    rows: RowArrays | None = None
    carried: str | None = None
    width: int = 0
    write: str | None = None
    views: bool = True
    pin: str = ""


class Tally(NamedTuple):
    """What a pass cost: logical bytes of views and of per-row arrays; seconds by kind summed over tasks, of its solve,
    and by the clock.
    """

    blocks: Sum
    rows: Sum
    view_bytes: Sum
    row_bytes: Sum
    rows_written: Sum
    read_seconds: Sum
    compute_seconds: Sum
    write_seconds: Sum
    peak_bytes: Max
    sum_seconds: Sum = 0.0
    solve_seconds: Sum = 0.0
    seconds: Sum = 0.0


def groups(blocks: int, most_tasks: int = 1 << 30) -> list[range]:
    """Return the consecutive blocks of each task: a function of the number of blocks alone (for one source).

    About 20 tasks on a small archive; the square root of the number of blocks on a large one.

    >>> [len(groups(n)) for n in (1, 16, 40, 1000, 450_000)]
    [1, 16, 20, 32, 671]
    """
    size = max(1, min(-(-blocks // TASKS), int(np.ceil(np.sqrt(blocks)))), -(-blocks // most_tasks))
    return [range(first, min(first + size, blocks)) for first in range(0, blocks, size)]


def fold(work: Work, blocks: range, at_home: bool = False) -> tuple[Stats, Tally]:
    """Return the statistics of consecutive blocks, summed in order, and what they cost.

    `at_home` says that this process is the one that keeps these blocks, where blocks are kept.
    """
    if not at_home:
        work = work._replace(pin="")
    one_blas_thread()
    refs = work.source.refs
    total = _one(work, *refs[blocks[0]])
    for number in blocks[1:]:
        total = merge(total, _one(work, *refs[number]))
    return total


def merge(*parts: tuple[Stats, Tally]) -> tuple[Stats, Tally]:
    """Return the sum of partial sums, from left to right."""
    began = time.perf_counter()
    stats, tallies = zip(*parts, strict=True)
    total, tally = combine(*stats), combine(*tallies)
    return total, tally._replace(sum_seconds=tally.sum_seconds + time.perf_counter() - began)


def solved(parts: Sequence[tuple[Stats, Tally]], solve: Callable[[Any, Stats], Any], model: Any) -> Any:
    """Return the model that the sum of the last partial sums gives, that sum, and what the pass cost."""
    stats, tally = merge(*parts)
    began = time.perf_counter()
    model = solve(model, stats)
    return model, stats, tally._replace(solve_seconds=time.perf_counter() - began)


def _one(work: Work, batch: Batch, number: int) -> tuple[Stats, Tally]:
    began = time.perf_counter()
    views, present, view_bytes = _load(work, batch, number)
    seconds = time.perf_counter() - began
    stats, tally = step_block(work, batch, number, views, present)
    read = tally.view_bytes + view_bytes
    return stats, tally._replace(view_bytes=read, read_seconds=tally.read_seconds + seconds)


def step_block(work: Work, batch: Batch, number: int, views: tuple[Array, ...], present: Array) -> tuple[Stats, Tally]:
    """Return the statistics of one block whose views are there already, and what its own rows cost."""
    began = time.perf_counter()
    first, last = batch.block_range(number)
    carried = np.zeros((last - first, work.width))
    if work.carried is not None and work.rows is not None:
        carried = work.rows.read(work.carried, batch, number)
    within = np.arange(first, last)
    loaded = time.perf_counter()
    siblings = Siblings(work, batch, number)
    stats, rows = work.step(work.model, Block(views, present, batch.start + within, within, carried, siblings))
    computed = time.perf_counter()
    written = _write(work, batch, number, rows)
    done = time.perf_counter()
    tally = Tally(
        1, last - first, siblings.view_bytes,
        (carried.nbytes if work.carried else 0) + siblings.row_bytes, written,
        loaded - began, computed - loaded, done - computed, peak_bytes(),
    )  # fmt: skip
    return stats, tally


def _write(work: Work, batch: Batch, number: int, rows: Rows) -> int:
    """Write what a step returned and return its bytes; "carried" rows go to the slot that the work names, if any."""
    written = 0
    if rows is None or work.rows is None:
        return written
    for name, values in (("carried", rows),) if isinstance(rows, np.ndarray) else rows:
        target = work.write if name == "carried" else name
        if target is None:
            continue
        first, last = batch.block_range(number)
        if len(values) == last - first:
            work.rows.write(target, batch, number, values)
        else:
            for i in range(batch.blocks):
                work.rows.write(target, batch, i, values[slice(*batch.block_range(i))])
        written += values.nbytes
    return written


@dataclass
class Siblings:
    """The blocks of one batch, for the step of one of them; counts what is read."""

    work: Work
    batch: Batch
    number: int
    view_bytes: int = 0
    row_bytes: int = 0

    def views(self) -> Iterator[tuple[Array, tuple[Array, ...]]]:
        """Yield each block's row numbers within the batch and its scaled views."""
        for i in range(self.batch.blocks):
            views, _, read = self.work.source.load(self.batch, i)
            self.view_bytes += read
            yield np.arange(*self.batch.block_range(i)), views

    def rows(self, name: str) -> Array:
        """Return all rows of a per-row array."""
        return np.concatenate([self._read(name, i) for i in range(self.batch.blocks)])

    def own(self, name: str) -> Array:
        """Return the step's own rows of a per-row array."""
        return self._read(name, self.number)

    def _read(self, name: str, block: int) -> Array:
        target = self.work.carried if name == "carried" else name
        assert self.work.rows is not None
        assert target is not None
        rows = self.work.rows.read(target, self.batch, block)
        self.row_bytes += rows.nbytes
        return rows


def _load(work: Work, batch: Batch, number: int) -> tuple[tuple[Array, ...], Array, int]:
    """Return the scaled views of a block, from this process's memory where it keeps them."""
    if not work.views:
        return (), np.ones((0, 0), bool), 0
    if not work.pin:
        return work.source.load(batch, number)
    if _pinned.get("run") != work.pin:
        forget_pinned()
        _pinned["run"] = work.pin
    key = (batch.name, number)
    if key not in _pinned:
        *block, read = work.source.load(batch, number)
        _pinned[key] = tuple(block)
        return *block, read
    return *_pinned[key], 0


_pinned: dict[Any, Any] = {}


def forget_pinned() -> None:
    """Give the memory of kept blocks back."""
    _pinned.clear()


_readers: dict[tuple[str, str, str], BatchReader] = {}


def _reader(path: str, batch: Batch) -> BatchReader:
    key = (path, batch.name, batch.digest)
    if key not in _readers:
        if len(_readers) > 64:
            _readers.clear()
        _readers[key] = BatchReader(path, batch)
    return _readers[key]


def restrict(source: Any, batches: tuple[Batch, ...]) -> Any:
    """Return the source over some of its batches."""
    return replace(source, batches=batches)
