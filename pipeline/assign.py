"""Labels of rows that were not in a fit, by its frozen model."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

import numpy as np

from aweigh import algorithms
from aweigh.algorithms import kmeans
from aweigh.algorithms.contract import Array, Block
from aweigh.io import trees
from aweigh.io.archive import Archive, Batch, check_name, open_archive
from aweigh.io.errors import DataError, UsageError
from aweigh.io.rows import ZarrRows
from aweigh.io.runs import CONFIG, MODEL, RunFolder, complete_run
from aweigh.pipeline import task
from aweigh.pipeline.driver import Runner, run_pass
from aweigh.pipeline.events import Emit, silent
from aweigh.pipeline.fitting import Fitted, Sizes, keep, labels_of, records_of
from aweigh.pipeline.run import refuse_missing, request_of
from aweigh.pipeline.task import ArchiveSource, RowsSource, Work


@dataclass(frozen=True)
class PlaceRows:
    """The step that embeds a block by the frozen model and labels it by the nearest centre."""

    method: Any

    def __call__(self, fitted: Fitted, block: Block) -> tuple[Sizes, tuple[tuple[str, Array], ...]]:
        rows = self.method.place(fitted.point, fitted.stats, block)
        return labels_of(*kmeans.nearest_two(rows, fitted.centres), fitted.numbers)


def assign(runner: Runner, source: Any, method: Any, fitted: Fitted, rows: Any, emit: Emit = silent) -> Sizes:
    """Return the cluster sizes of a source's rows; labels and confidence are in `rows` then."""
    for name, dtype in (("labels", "int32"), ("confidence", "float32")):
        rows.create(name, source.batches, None, dtype)
    work = Work(source, PlaceRows(method), fitted, rows, None, method.width, "labels")
    _, sizes, _ = run_pass(runner, work, keep, "assign", emit)
    return sizes


@dataclass(frozen=True)
class NearestRows:
    """The step that labels rows of a stored embedding by the nearest centre."""

    centres: Array
    numbers: Array

    def __call__(self, model: None, block: Block) -> tuple[Sizes, tuple[tuple[str, Array], ...]]:
        return labels_of(*kmeans.nearest_two(block.views[0], self.centres), self.numbers)


def label_batches(
    archive: str, run: str | None, batches: tuple[str, ...], name: str | None, runner: Runner, emit: Emit = silent
) -> dict[str, Any]:
    """Return the record of a new run that labels batches by the frozen model of `run` (the latest otherwise).

    Without batch names, those that `run` has not seen.  Rows that were in the fit keep their stored embedding, so
    they get the same label back.  Raises DataError, UsageError.
    """
    opened = open_archive(archive)
    model = complete_run(opened, run)
    config = model.read_json(CONFIG)
    if "assigned_from" in config:
        model = complete_run(opened, config["assigned_from"])
        config = model.read_json(CONFIG)
    fitted, method, source = load(opened, model)
    seen = {entry["name"] for entry in config["batches"]}
    chosen = [opened.batch(b) for b in batches] or [b for b in opened.batches if b.name not in seen]
    if not chosen:
        raise DataError(f"run {model.name!r} has seen every batch of {opened.path}", "name batches with --batch")
    refuse_missing(tuple(chosen), source.views, method, config["method"])
    now = datetime.datetime.now(datetime.UTC)
    folder = RunFolder(opened, check_name("run", name or f"{now:%Y%m%d-%H%M%S-%f}-assigned"))
    if folder.exists:
        raise UsageError(f"run {folder.name!r} exists already", "choose another name")
    entries = [{"name": b.name, "digest": b.digest} for b in chosen]
    folder.begin({**config, "began": now.isoformat(), "batches": entries, "assigned_from": model.name})
    rows, sizes = ZarrRows(opened.path, folder.folder), np.zeros(len(fitted.centres))
    for batch in chosen:
        if batch.name in seen:
            sizes += _nearest(runner, opened, model, batch, fitted, rows, method.embedding, emit).rows
        else:
            sizes += assign(runner, task.restrict(source, (batch,)), method, fitted, rows, emit).rows
    record = {
        "run": folder.name, "assigned_from": model.name, "method": config["method"],
        "batches": [b.name for b in chosen], "samples": sum(b.rows for b in chosen),
        "clusters": len(fitted.centres), "sizes": [int(n) for n in sizes],
    }  # fmt: skip
    folder.finish(record, latest=False)
    return record


def _nearest(
    runner: Runner, opened: Archive, model: RunFolder, batch: Batch, fitted: Fitted, rows: ZarrRows, width: int,
    emit: Emit,
) -> Sizes:  # fmt: skip
    for name, dtype in (("labels", "int32"), ("confidence", "float32")):
        rows.create(name, (batch,), None, dtype)
    source = RowsSource(((ZarrRows(opened.path, model.folder), "embedding"),), (batch,), width * 8)
    work = Work(source, NearestRows(fitted.centres, fitted.numbers), None, rows, write="labels")
    return run_pass(runner, work, keep, "assign", emit)[1]


def load(opened: Archive, model: RunFolder) -> tuple[Fitted, Any, ArchiveSource]:
    """Return a complete run's fitted model, its method, and the source over the batches it was fitted on."""
    config = model.read_json(CONFIG)
    request = request_of(config)
    method = algorithms.make(config["method"], request.clusters, request.settings)
    fitted = trees.loads(model.read(MODEL) or b"", records_of(method))
    names = tuple(request.views or opened.views)
    columns = tuple(list(opened.views).index(view) for view in names)
    batches = tuple(opened.batch(entry["name"]) for entry in config["batches"])
    return fitted, method, ArchiveSource(opened.path, batches, names, columns, fitted.scaling)
