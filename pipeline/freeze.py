"""A run whose model stays: the batches that it has not seen are placed by it, beside the rows it has labelled."""

from __future__ import annotations

import datetime
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from aweigh.algorithms import kmeans
from aweigh.algorithms.contract import Array, Block
from aweigh.io.archive import open_archive
from aweigh.io.errors import DataError
from aweigh.io.rows import ZarrRows
from aweigh.io.runs import CONFIG, MODEL, RECORD, RunFolder, complete_run
from aweigh.pipeline import assign, drift, task
from aweigh.pipeline.driver import Runner, run_pass
from aweigh.pipeline.events import Emit, silent
from aweigh.pipeline.fitting import Fitted, Sizes, keep, labels_of
from aweigh.pipeline.run import new_folder, refuse_missing
from aweigh.pipeline.task import RowsSource, Work

NAMED = ("embedding", "labels", "confidence")


@dataclass(frozen=True)
class CopyRows:
    """The step that copies what a run holds of a block."""

    numbers: Array

    def __call__(self, model: None, block: Block) -> tuple[Sizes, Any]:
        _, labels, _ = block.views
        counts = np.bincount(labels, minlength=int(self.numbers.max()) + 1)[self.numbers]
        return Sizes(counts.astype(float), np.zeros(len(self.numbers))), tuple(zip(NAMED, block.views, strict=True))


@dataclass(frozen=True)
class PlaceRows:
    """The step that embeds and labels a block by a frozen model."""

    method: Any

    def __call__(self, fitted: Fitted, block: Block) -> tuple[Sizes, Any]:
        rows = self.method.place(fitted.point, fitted.stats, block)
        sizes, named = labels_of(*kmeans.nearest_two(rows, fitted.centres), fitted.numbers)
        return sizes, (("embedding", rows), *named)


def frozen_run(
    archive: str, source: str | None, *, run: str | None = None, runner: Runner, emit: Emit = silent,
    publishes: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """Return the record of a new run over all batches: old rows as in `source`, new ones placed by its model.

    A run of this name that was cut off is done again from its beginning, to the same bits.  Raises DataError where
    there is no new batch.
    """
    began, opened = time.monotonic(), open_archive(archive)
    model = complete_run(opened, source)
    config, earlier = model.read_json(CONFIG), model.read_json(RECORD)
    fitted, method, views = assign.load(opened, model)
    old = views.batches
    new = tuple(batch for batch in opened.batches if batch not in old)
    if not new:
        raise DataError(f"run {model.name!r} has labelled every batch of {opened.path}", "import a batch first")
    refuse_missing(new, views.views, method, config["method"])
    folder = _folder(opened, run, config["method"], model)
    if not folder.exists:
        entries = [{"name": b.name, "digest": b.digest} for b in (*old, *new)]
        frozen = [*config.get("frozen", ()), *(batch.name for batch in new)]
        now = datetime.datetime.now(datetime.UTC).isoformat()
        told = {"began": now, "batches": entries, "frozen": frozen, "updated_from": model.name, "how": "freeze"}
        folder.begin({**config, **told})
    measured = drift.measured(model, views, new, runner, emit)
    rows, dtype = ZarrRows(opened.path, folder.folder), ZarrRows(opened.path, model.folder)
    kinds = dict(zip(NAMED, (str(dtype.read("embedding", old[0], 0).dtype), "int32", "float32"), strict=True))
    for name in NAMED:
        rows.create(name, (*old, *new), method.embedding if name == "embedding" else None, kinds[name])
    source_rows = RowsSource(tuple((dtype, name) for name in NAMED), old, method.embedding * 8 + 8)
    _, kept, _ = run_pass(runner, Work(source_rows, CopyRows(fitted.numbers), None, rows), keep, "copy", emit)
    work = Work(task.restrict(views, new), PlaceRows(method), fitted, rows, None, method.width)
    _, placed, _ = run_pass(runner, work, keep, "place", emit)
    measured = measured or drift.begun(task.restrict(views, new), rows, method, fitted, runner, emit)
    folder.write(MODEL, model.read(MODEL) or b"")
    record = {
        **earlier,
        "run": folder.name,
        "samples": sum(batch.rows for batch in (*old, *new)),
        "sweeps": 0,
        "passes": 2,
        "seconds": round(time.monotonic() - began, 3),
        "sizes": [int(n) for n in kept.rows + placed.rows],
        "updated_from": model.name,
        "how": "freeze",
        "matching": None,
        "drift": drift.keep(folder, measured),
    }
    folder.finish(record, publishes)
    return record


def _folder(opened: Any, run: str | None, method: str, model: RunFolder) -> RunFolder:
    """Return a new folder, or that of the same frozen run that was cut off."""
    if run is not None:
        folder = RunFolder(opened, run)
        if folder.exists and not folder.complete:
            config = folder.read_json(CONFIG)
            same = [entry["name"] for entry in config["batches"]] == [batch.name for batch in opened.batches]
            if (config.get("how"), config.get("updated_from")) == ("freeze", model.name) and same:
                return folder
    return new_folder(opened, run, method)
