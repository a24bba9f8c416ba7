"""A fit from an archive to labels: prepare, iterate, embed, cluster, publish; every step resumes."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aweigh import algorithms
from aweigh.algorithms import scaling
from aweigh.io import trees
from aweigh.io.archive import Archive, Batch, check_name, open_archive
from aweigh.io.errors import DataError, UsageError
from aweigh.io.rows import ZarrRows
from aweigh.io.runs import CHECKPOINT, CONFIG, MODEL, RunFolder, complete_run, incomplete_run
from aweigh.pipeline import cluster, config, drift, plan, task, versions
from aweigh.pipeline.driver import Runner
from aweigh.pipeline.events import Emit, Event, Note, PassDone, silent
from aweigh.pipeline.fitting import Fit, Fitted, Previous, Request, Round, Saved, records_of
from aweigh.pipeline.task import ArchiveSource


def fit(
    archive: str,
    clusters: int,
    method: str | None = None,
    *,
    views: tuple[str, ...] | None = None,
    scale: str | None = None,
    settings: dict[str, Any] | None = None,
    max_sweeps: int | None = None,
    tol: float | None = None,
    seed: int | None = None,
    run: str | None = None,
    resume: bool = False,
    runner: Runner | None = None,
    workers: int | None = None,
    memory: str | None = None,
    cache: str | None = None,
    emit: Emit = silent,
) -> dict[str, Any]:
    """Return the record of a new run of `archive`: the labels lie in its folder.

    What is None is as Dask's configuration says, under `aweigh.fit` and `aweigh.cluster`.  Without a `runner`, an
    embedded cluster of `workers` processes is started for the length of the fit.  Raises UsageError, DataError,
    StorageError, ClusterError; each says what to do.
    """
    given = {"method": method, "scale": scale, "max_sweeps": max_sweeps, "tol": tol, "seed": seed, "cache": cache}
    chosen = config.section("fit") | {name: value for name, value in given.items() if value is not None}
    cache, anchors = chosen.pop("cache"), chosen.pop("anchors")
    if anchors is not None:
        settings = {"anchors": anchors, **(settings or {})}
    job = prepared_job(archive, clusters, views=views, settings=settings, run=run, resume=resume, emit=emit, **chosen)
    job.cache = cache
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
    opened = open_archive(archive)
    if resume:
        return resumed_job(opened, incomplete_run(opened, run), emit)
    request = Request(clusters, method, views, scale, dict(settings or {}), max_sweeps, tol, seed)
    return Job.create(opened, request, None, run, emit)


def resumed_job(opened: Archive, folder: RunFolder, emit: Emit) -> Job:
    """Return the job of a run that was cut off, where its checkpoint says; what was asked then counts, not now."""
    config = folder.read_json(CONFIG)
    changed = versions.differences(config["versions"], versions.collect())
    if changed:
        emit(Note(f"resuming on other versions ({changed}): results may differ in the last bits", warning=True))
    source = config.get("updated_from")
    if source:
        from aweigh.pipeline.updating import job_from

        job = job_from(opened, complete_run(opened, source), folder, emit, how=config.get("how") or "continue")
    else:
        job = Job.create(opened, request_of(config), folder, None, emit)
    batches = tuple(opened.batch(entry["name"]) for entry in config["batches"])
    if any(b.digest != entry["digest"] for b, entry in zip(batches, config["batches"], strict=True)):
        raise DataError(f"the batches of run {folder.name!r} have changed", "begin a new run")
    job.source = task.restrict(job.source, batches)
    data = folder.read(CHECKPOINT)
    job.saved = trees.loads(data, records_of(job.method)) if data is not None else Saved()
    return job


@contextlib.contextmanager
def embedded_runner(workers: int | None, memory: str | None, emit: Emit = silent) -> Iterator[cluster.DaskRunner]:
    """Yield a runner on a LocalCluster of this machine; what is not given is as Dask's configuration says."""
    settings = config.section("cluster")
    count = workers or settings["workers"] or cluster.default_workers()
    memory = memory or settings["memory"]
    limit = cluster.parse_memory(str(memory)) if memory else plan.default_memory(count)
    with cluster.embedded(count, limit) as client:
        yield cluster.DaskRunner(client, emit, sparing=memory is None)


def request_of(config: dict[str, Any]) -> Request:
    """Return what a run was asked, with the method that was chosen for it."""
    fields = {**config["request"], "method": config["method"]}
    return Request(**{**fields, "views": tuple(fields["views"]) if fields["views"] else None})


@dataclass(frozen=True)
class Earlier:
    """The run that an update goes on from: the batches that it has learnt, and all that it has labelled.

    `how`: "continue" learns the other batches one after the other; "refit" sweeps over all batches from the earlier
    model; "full" fits all batches anew.  Numbers are kept in each case.
    """

    folder: RunFolder
    fitted: Fitted
    batches: tuple[Batch, ...]
    labelled: tuple[Batch, ...]
    rounds: tuple[Round, ...]
    how: str = "continue"


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
    earlier: Earlier | None = None
    cache: str = "auto"
    publishes: bool = True
    watched: bool = False
    drift: Any = None
    began: float = field(default_factory=time.monotonic)
    tallies: list[tuple[str, Any]] = field(default_factory=list)

    @classmethod
    def create(cls, archive: Archive, request: Request, folder: RunFolder | None, run: str | None, emit: Emit) -> Job:
        """Return the job after every check that needs no data; nothing is written yet."""
        if not archive.batches:
            raise DataError(f"{archive.path} holds no batch", "import data with `aweigh import`")
        names = chosen_views(archive, request.views)
        name = choose_method(archive.batches, names, request.method)
        method = make_method(name, request, archive.batches)
        source = source_of(archive, names)
        folder = folder or new_folder(archive, run, name)
        job = cls(archive, request, method, name, source, folder, emit)
        job.emit = job._tell(emit)
        return job

    def _tell(self, emit: Emit) -> Emit:
        def tell(event: Event) -> None:
            if isinstance(event, PassDone):
                self.tallies.append((event.phase, event.tally))
            emit(event)

        return tell

    def run(self, runner: Runner) -> dict[str, Any]:
        """Return the run's record, after all steps that a checkpoint does not already cover."""
        estimate = plan.fit_plan(self.archive, self.source, self.method, runner, self.cache)
        plan.refuse(estimate)
        if not self.folder.exists:
            self.folder.begin(
                {
                    "began": datetime.datetime.now(datetime.UTC).isoformat(),
                    "request": dataclasses.asdict(self.request),
                    "method": self.name,
                    "batches": [{"name": b.name, "digest": b.digest} for b in self.source.batches],
                    "updated_from": self.earlier.folder.name if self.earlier else None,
                    "how": self.earlier.how if self.earlier else None,
                    "versions": versions.collect(),
                }
            )
        views = [self.archive.views[name] for name in self.source.views]
        steps = Fit(
            self.source, self.method, self.request, {v.name: v.features for v in views},
            str(np.result_type(*(v.dtype for v in views))), ZarrRows(self.archive.path, self.folder.folder),
            self.emit, self._checkpoint, self.saved, pin=self.folder.name if estimate.cached else "",
        )  # fmt: skip
        if self.earlier is not None:
            self._go_on(runner, steps, self.earlier)
        found = self.measure(runner)
        fitted = steps.run(runner)
        if self.earlier is not None and self.earlier.how == "full" and found is not None:
            found = drift.Measured(
                drift.begun(self.source, steps.rows, self.method, fitted, runner, self.emit).state, found.told
            )
        elif found is None and self.new and (self.watched or self.earlier is not None):
            source = task.restrict(self.source, self.new)
            found = drift.begun(source, steps.rows, self.method, fitted, runner, self.emit)
        self.drift = found
        return self._publish(runner, steps, fitted, estimate)

    @property
    def new(self) -> tuple[Batch, ...]:
        """The batches that no earlier run has labelled."""
        return tuple(b for b in self.source.batches if self.earlier is None or b not in self.earlier.labelled)

    def measure(self, runner: Runner) -> Any:
        """Return how the new batches lie beside the earlier ones, None where nothing was measured before."""
        if self.drift is None and self.earlier is not None:
            self.drift = drift.measured(self.earlier.folder, self.source, self.new, runner, self.emit)
        return self.drift

    def _go_on(self, runner: Runner, steps: Fit, old: Earlier) -> None:
        """Give the steps what the earlier run hands over; a checkpoint already holds it."""
        rows = ZarrRows(self.archive.path, old.folder.folder)
        steps.previous = Previous(rows, old.labelled, old.fitted.numbers, old.fitted.next_number)
        if old.how == "full" or self.saved.prepared is not None:
            return
        last = (old.fitted.model, old.fitted.point, old.fitted.stats)
        steps.saved = Saved(scaling.Prepared((), old.fitted.scaling, None), last=last)
        if old.how == "continue":
            steps.inherit(runner, rows, old.batches)
            steps.saved = steps.saved._replace(rounds=old.rounds, embedded=len(old.batches))

    @property
    def seconds(self) -> float:
        """Seconds of this run so far, those before an interruption included."""
        return round(self.saved.seconds + time.monotonic() - self.began, 3)

    @property
    def work(self) -> list[dict[str, Any]]:
        """What each pass so far has cost, those before an interruption included."""
        return [*self.saved.work, *_summary(self.tallies)]

    def _checkpoint(self, saved: Saved) -> None:
        saved = saved._replace(work=self.work, seconds=self.seconds)
        self.folder.write(CHECKPOINT, trees.dumps(saved))

    def _publish(self, runner: Runner, steps: Fit, fitted: Fitted, estimate: Any) -> dict[str, Any]:
        self.folder.write(MODEL, trees.dumps(fitted))
        rounds = steps.saved.rounds
        workers = runner.workers()
        peak = max([int(t.peak_bytes) for _, t in self.tallies] + [w["peak_bytes"] for w in workers.values()])
        record = {
            "run": self.folder.name,
            "method": self.name,
            "samples": self.source.rows,
            "clusters": self.request.clusters,
            "sweeps": sum(len(r.objective) for r in rounds),
            "passes": len(self.work),
            "objective": rounds[-1].objective,
            "converged": all(r.converged for r in rounds),
            "seconds": self.seconds,
            "peak_worker_bytes": peak,
            "solved_on": runner.solved_on,
            "parameters": dataclasses.asdict(self.method),
            "scaling": {
                v: {"kind": s.kind, "reason": s.reason} for v, s in zip(self.source.views, fitted.scaling, strict=True)
            },
            "linked_without_checksums": [
                v
                for v in self.source.views
                if any(not b.links[v].checksums for b in self.source.batches if v in b.links)
            ],
            "sizes": [int(n) for n in steps.sizes.rows],
            "numbers": [int(n) for n in fitted.numbers],
            "updated_from": self.earlier.folder.name if self.earlier else None,
            "how": self.earlier.how if self.earlier else None,
            "matching": plain(steps.matching),
            "view_weights": view_weights(self.method, fitted.model, self.source.views),
            "drift": drift.keep(self.folder, self.drift),
            "plan": estimate.as_dict(),
            "driver_peak_bytes": task.peak_bytes(),
            "spilled_bytes": sum(w["spilled_bytes"] for w in workers.values()),
            "restarted_workers": runner.restarted() if hasattr(runner, "restarted") else 0,
            "workers": workers,
            "work": self.work,
        }
        if self.method.rounds:
            record["rounds"] = [
                {"batch": r.batches[0], "sweeps": len(r.objective), "objective": r.objective, "converged": r.converged}
                for r in rounds
            ]
        other = self.folder.finish(record, self.publishes)
        if other is not None:
            self.emit(Note(f"run {other} was finished at the same moment and stays the latest", warning=True))
        return record


def choose_method(batches: tuple[Batch, ...], views: tuple[str, ...], name: str) -> str:
    """Return the method's name; `auto` takes the first in the table that can do with the missing rows there are."""
    counts = {view: sum(batch.missing.get(view, 0) for batch in batches) for view in views}
    able = [n for n, m in algorithms.METHODS.items() if m.missing or not any(counts.values())]
    if name == "auto":
        return able[0]
    if name not in algorithms.METHODS:
        raise UsageError(
            f"there is no method {name!r}; there are {', '.join(algorithms.METHODS)}", "see `aweigh methods`"
        )
    refuse_missing(batches, views, algorithms.METHODS[name], name)
    return name


def refuse_missing(batches: tuple[Batch, ...], views: tuple[str, ...], method: Any, name: str) -> None:
    """Raise DataError where rows are missing from views and the method needs them all."""
    counts = {view: sum(batch.missing.get(view, 0) for batch in batches) for view in views}
    if any(counts.values()) and not method.missing:
        told = ", ".join(f"{v}: {n}" for v, n in counts.items() if n)
        able = " or ".join(n for n, m in algorithms.METHODS.items() if m.missing)
        raise DataError(
            f"{name} needs every sample in every view, and rows are missing ({told})",
            f"use -m {able}, or choose complete views with --views",
        )


def make_method(name: str, request: Request, batches: tuple[Batch, ...]) -> Any:
    """Return the method, checked against the number of rows; raise UsageError or DataError."""
    k, rows = request.clusters, sum(batch.rows for batch in batches)
    if k < 2:
        raise UsageError(f"k={k}: a clustering needs at least 2 clusters", "give -k 2 or more")
    if k > rows:
        raise DataError(f"k={k} clusters were asked of {rows} samples", f"give a k of at most {rows}")
    try:
        method = algorithms.make(name, k, request.settings)
    except ValueError as error:
        raise UsageError(str(error), "see `aweigh methods`") from error
    first = batches[0].rows if method.rounds else rows
    if getattr(method, "m", 0) > first:
        where = "the first batch's" if method.rounds else "the"
        raise DataError(f"{method.m} anchors were asked of {where} {first} samples", f"give at most {first} --anchors")
    return method


def source_of(archive: Archive, views: tuple[str, ...]) -> ArchiveSource:
    """Return the source over all batches of an archive, its views as they are."""
    columns = tuple(list(archive.views).index(view) for view in views)
    return ArchiveSource(archive.path, archive.batches, views, columns)


def chosen_views(archive: Archive, chosen: tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the views that were chosen, all by default; UsageError where one is unknown or named twice."""
    for name in chosen or ():
        if name not in archive.views:
            raise UsageError(f"there is no view {name!r}; there are {', '.join(archive.views)}", "see `aweigh info`")
    if chosen is not None and len(set(chosen)) != len(chosen):
        raise UsageError(f"a view is named twice in {','.join(chosen)}", "name each view once")
    return tuple(chosen or archive.views)


def new_folder(archive: Archive, run: str | None, method: str) -> RunFolder:
    """Return the folder of a run that is not there yet, named after the time and the method unless told."""
    name = run or f"{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S-%f}-{method}"
    folder = RunFolder(archive, check_name("run", name))
    if folder.exists:
        state = "complete" if folder.complete else "begun already (use --resume)"
        raise UsageError(f"run {folder.name!r} of {archive.path} is {state}", "choose another --run name")
    return folder


def view_weights(method: Any, model: Any, views: tuple[str, ...]) -> dict[str, float] | None:
    """Return the share that each view has in the method's objective, None where it weighs no views."""
    weigh = getattr(method, "view_weights", None)
    return None if weigh is None else {v: float(w) for v, w in zip(views, weigh(model), strict=True)}


def plain(found: Any) -> Any:
    """Return a matching JSON-ready."""
    return None if found is None else {k: v.tolist() if k == "numbers" else v for k, v in found._asdict().items()}


def _summary(tallies: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    """Return what each pass cost, JSON-ready."""
    return [
        {"pass": phase, **{n: round(float(v), 4) if "seconds" in n else int(v) for n, v in tally._asdict().items()}}
        for phase, tally in tallies
    ]
