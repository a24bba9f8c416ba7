"""A fit from an archive to labels: prepare, iterate, embed, cluster, publish; every step resumes."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from aweigh import algorithms
from aweigh.algorithms import kmeans, sampling, scaling
from aweigh.algorithms.contract import Array, Block, Gather, Pass, Sample, Sum
from aweigh.io import trees
from aweigh.io.archive import Archive, Batch, check_name, open_archive
from aweigh.io.errors import DataError, UsageError
from aweigh.io.rows import ZarrRows
from aweigh.io.runs import CHECKPOINT, CONFIG, MODEL, RunFolder, complete_run, incomplete_run
from aweigh.pipeline import cluster, plan, task, versions
from aweigh.pipeline.driver import Runner, State, begin, iterate, last_read, run_pass
from aweigh.pipeline.events import Emit, Event, Note, PassDone, silent
from aweigh.pipeline.task import ArchiveSource, RowsSource, Work


@dataclass(frozen=True)
class Request:
    """What was asked of a fit; stored with the run as it stands."""

    clusters: int
    method: str = "auto"
    views: tuple[str, ...] | None = None
    scale: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    max_sweeps: int | None = None
    tol: float | None = None
    seed: int = 0


class Round(NamedTuple):
    """One stretch of sweeps: over all batches, or over one where batches are learnt one after the other."""

    batches: list[str]
    objective: list[float]
    converged: bool


class Saved(NamedTuple):
    """A checkpoint: everything that the next step needs, and nothing n-long."""

    prepared: Any = None
    rounds: tuple[Round, ...] = ()
    last: Any = None
    state: Any = None
    embedded: int = 0
    clustering: Any = None
    passes: int = 0
    seconds: float = 0.0


class Fitted(NamedTuple):
    """What labels new rows: scaling, the method's model and sums at the last step, the k-means centres."""

    scaling: Any
    point: Any
    stats: Any
    centres: Any


class Gathered(NamedTuple):
    """The seeded sample of a per-row array."""

    rows: Gather
    positions: Gather


class Sizes(NamedTuple):
    """Rows a cluster, and the sum of their confidences."""

    rows: Sum
    confidence: Sum


@dataclass(frozen=True)
class GatherRows:
    """The step that gathers a seeded sample of the embedding."""

    seed: int
    bound: int

    def __call__(self, model: None, block: Block) -> tuple[Gathered, None]:
        chosen = sampling.position_hash(block.positions, self.seed) <= np.uint64(self.bound)
        return Gathered(block.views[0][chosen], block.positions[chosen]), None


@dataclass(frozen=True)
class EmbedRows:
    """The step that writes a block's embedding."""

    method: Any

    def __call__(self, model: tuple[Any, Any], block: Block) -> tuple[Sizes, Array]:
        return Sizes(np.float64(len(block.positions)), np.zeros(1)), self.method.embed(*model, block)


@dataclass(frozen=True)
class LabelRows:
    """The step that writes a block's labels and confidences."""

    method: kmeans.KMeans

    def __call__(self, model: tuple[Any, Any], block: Block) -> tuple[Sizes, tuple[tuple[str, Array], ...]]:
        both = self.method.embed(*model, block)
        labels, confidence = both[:, 0].astype(np.int32), both[:, 1].astype(np.float32)
        k = self.method.clusters
        sizes = Sizes(np.bincount(labels, minlength=k).astype(float), np.bincount(labels, confidence, k))
        return sizes, (("labels", labels), ("confidence", confidence))


def keep(model: Any, stats: Any) -> Any:
    """Solve nothing."""
    return model


def fit(
    archive: str,
    clusters: int,
    method: str = "auto",
    *,
    views: tuple[str, ...] | None = None,
    scale: str | None = None,
    settings: dict[str, Any] | None = None,
    max_sweeps: int | None = None,
    tol: float | None = None,
    seed: int = 0,
    run: str | None = None,
    resume: bool = False,
    runner: Runner | None = None,
    workers: int | None = None,
    memory: str | None = None,
    emit: Emit = silent,
) -> dict[str, Any]:
    """Return the record of a new run of `archive`: the labels lie in its folder.

    Without a `runner`, an embedded cluster of `workers` processes is started for the length of the fit.  Raises
    UsageError, DataError, StorageError, ClusterError; each says what to do.
    """
    job = prepared_job(
        archive, clusters, method, views=views, scale=scale, settings=settings, max_sweeps=max_sweeps, tol=tol,
        seed=seed, run=run, resume=resume, emit=emit,
    )  # fmt: skip
    with contextlib.ExitStack() as stack:
        if runner is None:
            runner = stack.enter_context(embedded_runner(workers, memory, emit))
        return job.run(runner)


def prepared_job(
    archive: str,
    clusters: int,
    method: str = "auto",
    *,
    views: tuple[str, ...] | None = None,
    scale: str | None = None,
    settings: dict[str, Any] | None = None,
    max_sweeps: int | None = None,
    tol: float | None = None,
    seed: int = 0,
    run: str | None = None,
    resume: bool = False,
    emit: Emit = silent,
) -> Job:
    """Return a fit after every check that reads no data; nothing runs and nothing is written yet."""
    request = Request(clusters, method, views, scale, dict(settings or {}), max_sweeps, tol, seed)
    opened = open_archive(archive)
    folder = incomplete_run(opened, run) if resume else None
    if folder is not None:
        request = _request(folder, emit)
    return Job.create(opened, request, folder, run, emit)


@contextlib.contextmanager
def embedded_runner(workers: int | None, memory: str | None, emit: Emit = silent) -> Iterator[cluster.DaskRunner]:
    """Yield a runner on a LocalCluster of this machine."""
    count = workers or cluster.default_workers()
    limit = cluster.parse_memory(memory) if memory else plan.default_memory(count)
    with cluster.embedded(count, limit) as client:
        yield cluster.DaskRunner(client, emit)


def _request(folder: RunFolder, emit: Emit) -> Request:
    config = folder.read_json(CONFIG)
    changed = versions.differences(config["versions"], versions.collect())
    if changed:
        emit(Note(f"resuming on other versions ({changed}): results may differ in the last bits", warning=True))
    fields = config["request"]
    return Request(**{**fields, "views": tuple(fields["views"]) if fields["views"] else None})


@dataclass
class Job:
    """One fit: what is fixed before anything runs, and the steps that follow."""

    archive: Archive
    request: Request
    method: Any
    name: str
    source: ArchiveSource
    folder: RunFolder
    emit: Emit
    saved: Saved = Saved()
    began: float = field(default_factory=time.monotonic)
    tallies: list[tuple[str, Any]] = field(default_factory=list)

    @classmethod
    def create(
        cls, archive: Archive, request: Request, folder: RunFolder | None, run: str | None, emit: Emit
    ) -> Job:
        """Return the job after every check that needs no data; nothing is written yet."""
        if not archive.batches:
            raise DataError(f"{archive.path} holds no batch", "import data with `aweigh import`")
        names = _views(archive, request.views)
        name = choose_method(archive, names, request.method)
        method = _method(name, request)
        _check_sizes(archive, method, name, names)
        columns = tuple(list(archive.views).index(view) for view in names)
        source = ArchiveSource(archive.path, archive.batches, names, columns)
        resumed = folder is not None
        folder = folder or RunFolder(archive, check_name("run", run or _new_name(name)))
        if not resumed and folder.exists:
            state = "complete" if folder.complete else "begun already (use --resume)"
            raise UsageError(f"run {folder.name!r} of {archive.path} is {state}", "choose another --run name")
        job = cls(archive, request, method, name, source, folder, emit)
        job.emit = job._tell(emit)
        if resumed:
            data = folder.read(CHECKPOINT)
            job.saved = trees.loads(data, job.records) if data is not None else Saved()
            config = folder.read_json(CONFIG)
            stored = tuple((b["name"], b["digest"]) for b in config["batches"])
            batches = tuple(archive.batch(n) for n, _ in stored)
            if any(b.digest != d for b, (_, d) in zip(batches, stored, strict=True)):
                raise DataError(f"the batches of run {folder.name!r} have changed", "begin a new run")
            job.source = task.restrict(source, batches)
        return job

    @property
    def records(self) -> tuple[type, ...]:
        """The named tuples that a checkpoint of this job may hold."""
        return (
            Saved, Round, Fitted, State, Sample, scaling.Prepared, scaling.ViewScaling, kmeans.Model, kmeans.Sums,
            *self.method.records,
        )  # fmt: skip

    def _tell(self, emit: Emit) -> Emit:
        def tell(event: Event) -> None:
            if isinstance(event, PassDone):
                self.tallies.append((event.phase, event.tally))
            emit(event)

        return tell

    def _save(self, **changes: Any) -> None:
        self.saved = self.saved._replace(**changes)
        self.folder.write(CHECKPOINT, trees.dumps(self.saved))

    @property
    def dtype(self) -> str:
        """The dtype of per-row results: that of the views."""
        return str(np.result_type(*(self.archive.views[v].dtype for v in self.source.views)))

    def rng(self, purpose: int, number: int = 0) -> np.random.Generator:
        """Return the generator of one purpose: the same whatever ran before."""
        return np.random.default_rng([self.request.seed, purpose, number])

    def run(self, runner: Runner) -> dict[str, Any]:
        """Return the run's record, after all steps that a checkpoint does not already cover."""
        estimate = plan.fit_plan(self.archive, self.source, self.method, runner)
        plan.refuse(estimate)
        if not self.folder.exists:
            self.folder.begin(
                {
                    "began": datetime.datetime.now(datetime.UTC).isoformat(),
                    "request": dataclasses.asdict(self.request),
                    "method": self.name,
                    "batches": [{"name": b.name, "digest": b.digest} for b in self.source.batches],
                    "versions": versions.collect(),
                }
            )
        rows = ZarrRows(self.archive.path, self.folder.folder)
        self._prepare(runner)
        for index, batches in enumerate(self.scopes):
            if index >= self.saved.embedded:
                self._round(runner, rows, index, batches)
        fitted = self._cluster(runner, rows)
        return self._publish(runner, rows, fitted, estimate)

    @property
    def scopes(self) -> list[tuple[Batch, ...]]:
        """The batches of each round: all at once, or one after the other."""
        return [(batch,) for batch in self.source.batches] if self.method.rounds else [self.source.batches]

    def _prepare(self, runner: Runner) -> None:
        if self.saved.prepared is None:
            source = task.restrict(self.source, self.scopes[0])
            names = {f.name: f for f in self.archive.views.values()}
            widths = tuple(names[v].features for v in self.source.views)
            row_bytes = sum(names[v].row_bytes for v in self.source.views)
            scale = self.request.scale or getattr(self.method, "scale", "auto")
            preparation = scaling.Preparation(
                scale, self.request.seed, source.rows, sampling.sample_size(source.rows, row_bytes)
            )
            prepared = prepare(runner, source, preparation, widths, self.emit)
            for view, chosen in zip(self.source.views, prepared.scaling, strict=True):
                self.emit(Note(f"view {view}: scaling {chosen.kind} ({chosen.reason})"))
            self._save(prepared=prepared)
        self.source = dataclasses.replace(self.source, scaling=self.saved.prepared.scaling)

    def _round(self, runner: Runner, rows: ZarrRows, index: int, batches: tuple[Batch, ...]) -> None:
        source = task.restrict(self.source, batches)
        phase = f"batch {batches[0].name}" if self.method.rounds else "sweep"
        state = self.saved.state
        if state is None:
            prior = self.saved.last[0] if self.saved.last is not None else None
            model = runner.call(self.method.start, self.saved.prepared.sample, self.rng(1, index), prior)
            for step, solve, views in self.method.prepare:
                work = Work(source, step, model, rows, views=views)
                model, _, _ = run_pass(runner, work, solve, f"{phase}: prepare", self.emit)
            if self.method.width:
                for name in ("state-0", "state-1"):
                    rows.create(name, batches, self.method.width, "float64")
            state = begin(model)
        state = iterate(
            runner, self.method, source, state,
            rows=rows, phase=phase, emit=self.emit, checkpoint=lambda s: self._save(state=s),
            max_sweeps=self.request.max_sweeps or self.method.max_sweeps,
            tol=self.method.tol if self.request.tol is None else self.request.tol,
        )  # fmt: skip
        rows.create("embedding", batches, self.method.embedding, self.dtype)
        point = (state.point, state.stats)
        carried = last_read(state)
        work = Work(source, EmbedRows(self.method), point, rows, carried, self.method.width, "embedding")
        run_pass(runner, work, keep, f"{phase}: embed", self.emit)
        done = Round([b.name for b in batches], list(state.history), state.converged)
        self._save(rounds=(*self.saved.rounds, done), last=(state.model, *point), state=None, embedded=index + 1)
        for name in ("state-0", "state-1") if self.method.width else ():
            rows.delete(name, batches)

    def _cluster(self, runner: Runner, rows: ZarrRows) -> Fitted:
        method = kmeans.KMeans(self.request.clusters)
        itemsize = np.dtype(self.dtype).itemsize
        source = RowsSource(rows, "embedding", self.source.batches, self.method.embedding * itemsize)
        state = self.saved.clustering
        if state is None:
            state = begin(start_clustering(runner, source, method, self.request.seed, self.rng(2), self.emit))
        state = iterate(
            runner, method, source, state, phase="k-means", emit=self.emit,
            max_sweeps=method.max_sweeps, tol=method.tol, checkpoint=lambda s: self._save(clustering=s),
        )  # fmt: skip
        for name, dtype in (("labels", "int32"), ("confidence", "float32")):
            rows.create(name, self.source.batches, None, dtype)
        work = Work(source, LabelRows(method), (state.point, state.stats), rows, write="labels")
        _, self.sizes, _ = run_pass(runner, work, keep, "label", self.emit)
        _, point, stats = self.saved.last
        return Fitted(self.saved.prepared.scaling, point, stats, method.best(state.point))

    def _publish(self, runner: Runner, rows: ZarrRows, fitted: Fitted, estimate: Any) -> dict[str, Any]:
        self.folder.write(MODEL, trees.dumps(fitted))
        rounds = self.saved.rounds
        workers = runner.workers() if hasattr(runner, "workers") else {}
        peak = max([int(t.peak_bytes) for _, t in self.tallies] + [w["peak_bytes"] for w in workers.values()])
        record = {
            "run": self.folder.name,
            "method": self.name,
            "samples": self.source.rows,
            "clusters": self.request.clusters,
            "sweeps": sum(len(r.objective) for r in rounds),
            "passes": len(self.tallies),
            "objective": rounds[-1].objective,
            "converged": all(r.converged for r in rounds),
            "seconds": round(time.monotonic() - self.began, 3),
            "peak_worker_bytes": peak,
            "solved_on": runner.solved_on,
            "parameters": {k: v for k, v in dataclasses.asdict(self.method).items()},
            "scaling": {
                v: {"kind": s.kind, "reason": s.reason}
                for v, s in zip(self.source.views, fitted.scaling, strict=True)
            },
            "sizes": [int(n) for n in self.sizes.rows],
            "plan": estimate.as_dict(),
            "workers": workers,
            "work": _summary(self.tallies),
        }
        if self.method.rounds:
            record["rounds"] = [
                {"batch": r.batches[0], "sweeps": len(r.objective), "objective": r.objective} for r in rounds
            ]
        self.folder.finish(record)
        return record


def prepare(
    runner: Runner, source: Any, preparation: scaling.Preparation, widths: tuple[int, ...], emit: Emit = silent
) -> scaling.Prepared:
    """Return scaling and sample: a probe of a few blocks, then one pass over all.  Raises DataError."""
    refs = source.refs
    probe = _Probe(source, tuple(refs[i] for i in sorted({0, len(refs) // 3, 2 * len(refs) // 3, len(refs) - 1})))
    model = preparation.init(widths)
    model, _, _ = run_pass(runner, Work(probe, preparation.probe.step, model), preparation.probe.solve, "probe", emit)
    try:
        step, solve, _ = preparation.survey
        model, survey, _ = run_pass(runner, Work(source, step, model), solve, "survey", emit)
    except ValueError as error:
        raise DataError(str(error)) from error
    if float(survey.absent) > 0:
        raise DataError(
            f"{int(survey.absent)} samples are missing in every view that was chosen, so nothing is known of them",
            "choose more views, or import the data without these samples",
        )
    if all(bool((h <= lo).all()) for lo, h in zip(survey.low, survey.high, strict=True)):
        raise DataError("all samples are equal in every view: there is nothing to cluster", "check what was imported")
    return model


@dataclass(frozen=True)
class _Probe:
    source: Any
    refs: tuple[tuple[Batch, int], ...]
    most_tasks: int = 1 << 30

    def load(self, batch: Batch, block: int) -> Any:
        return self.source.load(batch, block)


def start_clustering(
    runner: Runner, source: Any, method: kmeans.KMeans, seed: int, rng: np.random.Generator, emit: Emit = silent
) -> kmeans.Model:
    """Return k-means' first model, from the seeded sample of the embedding."""
    size = sampling.sample_size(source.rows, source.row_bytes)
    step = GatherRows(seed, sampling.threshold(source.rows, size))
    _, found, _ = run_pass(runner, Work(source, step, None), keep, "k-means: sample", emit)
    chosen = sampling.smallest(found.positions, seed, size)
    X, positions = found.rows[chosen], found.positions[chosen]
    return runner.call(method.start, Sample((X,), np.ones((len(X), 1), bool), positions), rng)


def choose_method(archive: Archive, views: tuple[str, ...], name: str) -> str:
    """Return the method's name; `auto` takes the first that can do with the missing rows there are."""
    missing = any(batch.missing.get(view, 0) for batch in archive.batches for view in views)
    able = [n for n, m in algorithms.METHODS.items() if not missing or m.missing]
    if name == "auto":
        if not able:
            raise DataError("some samples are missing in some views, and no method here can do with that")
        return able[0]
    if name not in algorithms.METHODS:
        raise UsageError(
            f"there is no method {name!r}; there are {', '.join(algorithms.METHODS)}", "see `aweigh methods`"
        )
    if name not in able:
        counts = {v: sum(b.missing.get(v, 0) for b in archive.batches) for v in views}
        told = ", ".join(f"{v}: {n}" for v, n in counts.items() if n)
        raise DataError(
            f"{name} needs every sample in every view, and rows are missing ({told})",
            f"use -m {able[0]}, or choose complete views with --views" if able else "choose complete views with --views",
        )
    return name


def _method(name: str, request: Request) -> Any:
    if request.clusters < 2:
        raise UsageError(f"k={request.clusters}: a clustering needs at least 2 clusters", "give -k 2 or more")
    try:
        return algorithms.make(name, request.clusters, request.settings)
    except ValueError as error:
        raise UsageError(str(error), "see `aweigh methods`") from error


def _check_sizes(archive: Archive, method: Any, name: str, views: tuple[str, ...]) -> None:
    if method.clusters > archive.rows:
        raise DataError(
            f"k={method.clusters} clusters were asked of {archive.rows} samples", f"give a k of at most {archive.rows}"
        )
    rows = archive.batches[0].rows if method.rounds else archive.rows
    if getattr(method, "m", 0) > rows:
        where = "the first batch's" if method.rounds else "the"
        raise DataError(f"{method.m} anchors were asked of {where} {rows} samples", f"give at most {rows} anchors")


def _views(archive: Archive, chosen: tuple[str, ...] | None) -> tuple[str, ...]:
    for name in chosen or ():
        if name not in archive.views:
            raise UsageError(f"there is no view {name!r}; there are {', '.join(archive.views)}", "see `aweigh info`")
    if chosen is not None and len(set(chosen)) != len(chosen):
        raise UsageError(f"a view is named twice in {','.join(chosen)}", "name each view once")
    return tuple(chosen or archive.views)


def _new_name(method: str) -> str:
    return f"{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S-%f}-{method}"


def _summary(tallies: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    """Return what each pass cost, JSON-ready."""
    return [
        {"pass": phase, **{name: round(float(v), 4) if "seconds" in name else int(v) for name, v in t._asdict().items()}}
        for phase, t in tallies
    ]


def read_labels(archive: Archive, run: RunFolder, batch: Batch) -> Iterator[tuple[Array, Array, Array]]:
    """Yield (ids, labels, confidence) of one batch of a run, a block at a time."""
    from aweigh.io.archive import BatchReader

    rows, reader = ZarrRows(archive.path, run.folder), BatchReader(archive.path, batch)
    for block in range(batch.blocks):
        first, last = batch.block_range(block)
        yield (
            reader.ids(first, last),
            rows.read("labels", batch, block),
            rows.read("confidence", batch, block),
        )


__all__ = ["Job", "Pass", "Request", "complete_run", "fit", "json", "read_labels"]
