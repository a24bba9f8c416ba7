"""The plan of a fit of data that is not there yet: its shape, and what its passes take by measured constants."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from aweigh.algorithms import kmeans
from aweigh.io.archive import Archive, Batch, View
from aweigh.io.batches import block_rows_for
from aweigh.io.errors import UsageError
from aweigh.io.location import open_location
from aweigh.io.model import Ids
from aweigh.pipeline import plan, task
from aweigh.pipeline.bench import Constants, blockwise
from aweigh.pipeline.fitting import Request
from aweigh.pipeline.run import choose_method, make_method
from aweigh.pipeline.task import FAN_IN, ArchiveSource


@dataclass(frozen=True)
class Paper:
    """What a fit would take: seconds by the clock, the first pass and each sweep and k-means pass by itself."""

    workers: int
    tasks: int
    messages: int
    prepare_seconds: float
    read_seconds: float
    compute_seconds: float
    sum_seconds: float
    solve_seconds: float
    scheduler_seconds: float
    sweep_seconds: float
    embed_seconds: float
    clustering_seconds: float

    def seconds(self, sweeps: int, clusterings: int) -> float:
        """Return the seconds of a fit of so many sweeps and passes of k-means."""
        once = self.prepare_seconds + self.embed_seconds
        return once + sweeps * self.sweep_seconds + (clusterings + 2) * self.clustering_seconds


def asked(samples: float, features: str, dtype: str, **options: Any) -> tuple[str, Any, Archive]:
    """Return the method's name, the method and the archive that options ask for; raise UsageError, DataError."""
    if samples < 1 or samples != int(samples):
        raise UsageError(f"--samples {samples:g} is no number of rows", "give a whole number such as 1e9")
    try:
        widths = tuple(int(part) for part in features.split(","))
    except ValueError:
        widths = (0,)
    if min(widths) < 1:
        raise UsageError(f"--features {features!r} is not the columns of each view", "write for example 1024,768")
    archive = archive_of(int(samples), widths, dtype)
    if options["views"]:
        raise UsageError("--views chooses among the views of an archive, and there is none", "leave it out")
    request = Request(options["clusters"], options["method"], settings=options["settings"])
    name = choose_method(archive.batches, tuple(archive.views), request.method)
    return name, make_method(name, request, archive.batches), archive


def archive_of(samples: int, features: tuple[int, ...], dtype: str) -> Archive:
    """Return the archive that an import of such rows would make; nothing is written."""
    views = tuple(View(f"view{i}", d, dtype) for i, d in enumerate(features))
    rows = block_rows_for(sum(view.row_bytes for view in views))
    none = {view.name: 0 for view in views}
    batch = Batch("all", samples, 0, rows, views, Ids("int", 0, samples - 1), None, "", none, {})
    return Archive(open_location("."), {view.name: view for view in views}, (batch,))


def source_of(archive: Archive) -> ArchiveSource:
    """Return the source over all of it."""
    names = tuple(archive.views)
    return ArchiveSource(archive.path, archive.batches, names, tuple(range(len(names))))


def on_paper(made: plan.Plan, archive: Archive, name: str, method: Any, constants: Constants) -> Paper:
    """Return what the passes of a planned fit take on workers of which `constants` tell; raise UsageError.

    The workers of one task a time go through the tasks in rounds; the scheduler's part is added, as if nothing ran
    beside it.  Views are read from the page cache where one of the machine's workers' share of memory would hold them
    all, else at the storage's rate, which all workers of one machine share.
    """
    if not blockwise(method) or name not in constants.row_seconds:
        raise UsageError(
            f"{name} compares rows with rows, so no time a row can be told for it",
            "choose another method, or plan with an archive",
        )
    features = sum(view.features for view in archive.views.values())
    m, n = getattr(method, "m", method.clusters), made.samples
    row_bytes = made.pass_bytes / n
    tasks = len(task.groups(made.blocks))
    rows = math.ceil(tasks / made.workers) * n / tasks  # of the worker that has most to do
    cold = made.pass_bytes / made.workers > plan.default_memory(constants.workers) / 2
    more = constants.workers / constants.disk_bytes_per_second - 1 / constants.read_bytes_per_second
    disk = max(0.0, more) if cold else 0.0
    read = rows * row_bytes * (1 / constants.read_bytes_per_second + disk)
    carried = rows * 2 * method.width * 8 / constants.write_bytes_per_second
    compute = rows * (2 * m * features / constants.multiply_adds_per_second + constants.seconds_a_row(name, m))
    stats = (m * features + m * m) * 8
    sums = stats * (tasks + made.blocks) / made.workers / 2e9
    solve = m * m * features / constants.svd_multiply_adds_per_second
    scheduler = constants.pass_seconds + tasks * constants.task_seconds
    later = 0.0 if made.cached else read
    written = rows * method.embedding * row_bytes / features / constants.write_bytes_per_second
    starts = kmeans.KMeans(method.clusters).starts
    step = rows * (
        starts * method.clusters * method.embedding / constants.clustering_multiply_adds_per_second
        + method.embedding * row_bytes / features / constants.read_bytes_per_second
    )
    return Paper(
        workers=made.workers,
        tasks=tasks,
        messages=round((tasks * (1 + 1 / FAN_IN)) * constants.messages_per_task),
        prepare_seconds=rows * row_bytes * (1 / constants.survey_bytes_per_second + disk) + scheduler,
        read_seconds=later + carried,
        compute_seconds=compute,
        sum_seconds=sums,
        solve_seconds=solve,
        scheduler_seconds=scheduler,
        sweep_seconds=len(method.sweep) * (later + carried + compute + sums + solve + scheduler),
        embed_seconds=later + compute + written + scheduler,
        clustering_seconds=step + scheduler,
    )


def as_dict(made: plan.Plan, paper: Paper, name: str, method: Any) -> dict[str, Any]:
    """Return the plan and its times, JSON-ready."""
    anchors = getattr(method, "m", method.clusters)
    return {**made.as_dict(), **asdict(paper), "method": name, "clusters": method.clusters, "anchors": anchors}


def lines(paper: Paper) -> list[str]:
    """Return the times as lines for people."""
    return [
        f"a sweep on {paper.workers} workers {told(paper.sweep_seconds)}: read {told(paper.read_seconds)}, compute "
        f"{told(paper.compute_seconds)}, sum {told(paper.sum_seconds)}, solve {told(paper.solve_seconds)}, scheduler "
        f"{told(paper.scheduler_seconds)} with {paper.messages} messages for {paper.tasks} tasks",
        f"the preparing pass {told(paper.prepare_seconds)}, the embedding {told(paper.embed_seconds)}, "
        f"a pass of k-means {told(paper.clustering_seconds)}",
        f"20 sweeps and 10 passes of k-means {told(paper.seconds(20, 10))}",
    ]


def told(seconds: float) -> str:
    """Return a time in words.

    >>> told(0.0123), told(3.2), told(400), told(9000)
    ('12 ms', '3.2 s', '6.7 min', '2.5 h')
    """
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
