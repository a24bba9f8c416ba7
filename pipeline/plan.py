"""What a fit would read, hold and take, from the archive's shape alone: arithmetic, and a refusal with numbers.

The projection of a worker's peak is its measured floor (imports and compiled kernels) plus what one task holds at
once: one block of all views decoded, the stored bytes of its largest view beside them, the rows of width m or k that
a step makes, the model with its sums, its share of the gathered sample as it came and as it was merged, and what the
allocator keeps.  Workers hold much the same, since the last sums are added where they are solved, in the scheduler.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from aweigh.algorithms import kmeans, sampling
from aweigh.io.archive import Archive
from aweigh.io.errors import DataError
from aweigh.pipeline import task

MIB = 1 << 20
ALLOCATOR = 96 * MIB  # what malloc may keep (the trim threshold that workers are given) and what the first read loads


@dataclass(frozen=True)
class Plan:
    """The shape of a fit; sizes in bytes."""

    samples: int
    views: int
    blocks: int
    block_bytes: int
    tasks: int
    pass_bytes: int
    passes: int
    state_bytes: int
    result_bytes: int
    worker_floor_bytes: int
    worker_peak_bytes: int
    driver_peak_bytes: int
    worker_limit_bytes: int | None
    workers: int
    cached: bool
    model_bytes: int

    def as_dict(self) -> dict[str, Any]:
        """Return the plan JSON-ready."""
        return asdict(self)


def fit_plan(
    archive: Archive,
    source: task.ArchiveSource,
    method: Any,
    runner: Any = None,
    cache: str = "off",
    floor: int | None = None,
    workers: int | None = None,
) -> Plan:
    """Return the plan of a fit; workers and floor are the runner's, or one process like them, unless given.

    The floor is what a process holds before it reads.  `cache`: "on" keeps the scaled blocks in the workers' memory,
    "auto" where their share fits beside the peak, and at most doubles it where nobody gave the workers a limit.
    """
    views = [archive.views[name] for name in source.views]
    row_bytes = sum(view.row_bytes for view in views)
    rows = source.rows
    block_rows = max(batch.block_rows for batch in source.batches)
    block_rows = min(block_rows, max(batch.rows for batch in source.batches))
    block_bytes = block_rows * row_bytes
    m, features = getattr(method, "m", method.clusters), sum(view.features for view in views)
    item = np.result_type(*(view.dtype for view in views)).itemsize
    sample = sampling.sample_size(rows, row_bytes) * row_bytes
    floors = runner.floors() if runner is not None else {}
    floor = floor or max(floors.values(), default=0) or measured_floor()
    largest = max(block_rows * view.row_bytes for view in views)
    biggest = max(batch.rows for batch in source.batches) if method.rounds else rows
    model = (m * features + m * m) * 8
    step = block_bytes + largest + block_rows * (3 * max(m, method.embedding) * item + 4 * method.width * 8)
    step += method.held(biggest, block_rows, features) if hasattr(method, "held") else 0
    worker = floor + step + 6 * model + 2 * sample + ALLOCATOR
    workers, limit = workers or len(floors) or 1, runner.limit() if runner is not None else None
    share = -(-biggest * row_bytes // workers) + block_bytes * 2
    room = min(limit or 0, 2 * worker) if getattr(runner, "sparing", False) else limit or 0
    cached = cache == "on" or (cache == "auto" and worker + share <= room)
    worker += share if cached else 0
    return Plan(
        samples=rows,
        views=len(views),
        blocks=len(source.refs),
        block_bytes=block_bytes,
        tasks=len(task.groups(len(source.refs))),
        pass_bytes=rows * row_bytes,
        passes=2 + method.max_sweeps * len(method.sweep),
        state_bytes=2 * rows * method.width * 8,
        result_bytes=rows * (method.embedding * 8 + 8),
        worker_floor_bytes=floor,
        worker_peak_bytes=worker,
        driver_peak_bytes=(floor if runner is None else resident()) + 6 * sample + 16 * model + ALLOCATOR + 32 * MIB,
        worker_limit_bytes=limit,
        workers=workers,
        cached=cached,
        model_bytes=model,
    )


def joint(plans: Sequence[Plan]) -> Plan:
    """Return the plan of fits in the same passes: the blocks and steps of one, the models and rows of all."""
    largest = max(plans, key=lambda p: p.worker_peak_bytes)
    models = sum(p.model_bytes for p in plans)
    return replace(
        largest,
        passes=max(p.passes for p in plans),
        state_bytes=sum(p.state_bytes for p in plans),
        result_bytes=sum(p.result_bytes for p in plans),
        worker_peak_bytes=largest.worker_peak_bytes + 6 * (models - largest.model_bytes),
        driver_peak_bytes=max(p.driver_peak_bytes for p in plans) + 16 * (models - largest.model_bytes),
        model_bytes=models,
    )


def refuse(plan: Plan) -> None:
    """Raise DataError, with the numbers, where a worker would not hold what one task needs."""
    limit = plan.worker_limit_bytes
    if limit and plan.worker_peak_bytes > limit:
        raise DataError(
            f"a worker would hold up to {plan.worker_peak_bytes / MIB:.0f} MiB "
            f"(its floor of {plan.worker_floor_bytes / MIB:.0f} MiB and blocks of {plan.block_bytes / MIB:.1f} MiB), "
            f"and its limit is {limit / MIB:.0f} MiB",
            ("use --cache off, " if plan.cached else "")
            + f"give --memory {-(-plan.worker_peak_bytes // MIB) + 1}MiB or more, fewer anchors, or fewer --views",
        )


def lines(plan: Plan) -> list[str]:
    """Return the plan as lines for people."""
    limit = f"of {plan.worker_limit_bytes / MIB:.0f} MiB" if plan.worker_limit_bytes else "without a limit given"
    return [
        f"{plan.samples} samples, {plan.views} views: {plan.blocks} blocks of {plan.block_bytes / MIB:.1f} MiB",
        f"a pass reads {plan.pass_bytes / MIB:.1f} MiB in {plan.tasks} tasks; at most {plan.passes} passes",
        f"per-row state {plan.state_bytes / MIB:.1f} MiB, results {plan.result_bytes / MIB:.1f} MiB",
        f"a worker's peak {plan.worker_peak_bytes / MIB:.0f} MiB "
        f"(floor {plan.worker_floor_bytes / MIB:.0f} MiB) {limit}",
        f"the driver's and scheduler's peak {plan.driver_peak_bytes / MIB:.0f} MiB",
    ]


def default_memory(workers: int) -> int:
    """Return the memory of one embedded worker: its share of nine tenths of what the machine has."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(0.9 * total / workers)


def resident_after_imports() -> int:
    """Return this process's resident bytes once a worker's imports are done and its kernels compiled."""
    from aweigh.algorithms import METHODS, scaling, simplex  # noqa: F401

    simplex.warm_up()
    for dtype in (np.float32, np.float64):
        X = np.ones((4, 2), dtype)
        scaling.survey_view(X, np.ones(4, bool), np.zeros(2))
        kmeans.nearest_two(X, np.zeros((2, 2)))
        kmeans.means(X, np.zeros(4, np.int32), 2)
    return resident()


def resident() -> int:
    """Return the bytes that this process has resident."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


_FLOOR = (
    "import distributed.nanny, aweigh.pipeline.cluster, aweigh.pipeline.plan as plan; "
    "print(plan.resident_after_imports())"
)


def measured_floor() -> int:
    """Return the resident bytes of a fresh process with a worker's imports."""
    out = subprocess.run([sys.executable, "-c", _FLOOR], capture_output=True, text=True, check=True)
    return int(out.stdout.split()[-1])
