"""`aweigh report`: the facts of a run, gathered by two bounded passes, and the page that shows them.

The first pass reads the per-row results, the second the views of a seeded choice of blocks; both run where fits run.
Nothing n-long comes to the client: sums by cluster, a sample of rows, the ids of the rows that are shown.
"""

from __future__ import annotations

import datetime
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import threadpoolctl
from sklearn.manifold import TSNE

from aweigh.algorithms import matching, profile, sampling, scores
from aweigh.algorithms.contract import Array
from aweigh.io.archive import Archive, Batch, BatchReader
from aweigh.io.errors import UsageError
from aweigh.io.location import open_location
from aweigh.io.rows import ZarrRows
from aweigh.io.runs import CONFIG, RECORD, RunFolder, complete_run, run_names
from aweigh.pipeline import assign, compare, page, results, task, versions
from aweigh.pipeline.driver import Runner, run_pass
from aweigh.pipeline.events import Emit, Progress, silent
from aweigh.pipeline.fitting import Fitted, keep
from aweigh.pipeline.task import ArchiveSource, Batches, RowsSource, Work

POINTS = 2000  # rows in the picture
NEAREST = 5  # rows named a cluster
FEATURES = 6  # features named a cluster and view
VIEW_BYTES = 2 << 30  # of the views are read at most
DETAILED = 40  # clusters, and classes, that are shown one by one; the largest


@dataclass(frozen=True)
class Beside(Batches):
    """Blocks of an archive's views, as they were imported, with a run's labels beside them."""

    views: ArchiveSource
    labels: RowsSource

    @property
    def batches(self) -> tuple[Batch, ...]:  # type: ignore[override]
        """The batches of both."""
        return self.views.batches

    def load(self, batch: Batch, block: int) -> tuple[tuple[Array, ...], Array, int]:
        """Return the views and the labels, the presence of the views' rows, the bytes read."""
        views, present, read = self.views.load(batch, block)
        return (*views, self.labels.load(batch, block)[0][0]), present, read


def target(archive: Archive, run: RunFolder, asked: str | None) -> str:
    """Return the path or URL of the page: what was asked for, or one named after archive and run in this folder."""
    if asked is None:
        name = archive.path.rstrip("/").rsplit("/", 1)[-1].removesuffix(".zarr")
        return str(Path.cwd() / f"{name}-{run.name}.html")
    if not asked.lower().endswith((".html", ".htm")):
        raise UsageError(f"--output {asked!r} is no name of an HTML page", "give a name that ends in .html")
    return asked


def write(archive: Archive, run: RunFolder, path: str, runner: Runner, emit: Emit = silent) -> dict[str, Any]:
    """Return the run, the file and its bytes once the page of a run is written, at once, to a path or URL."""
    began = time.monotonic()
    folder, _, name = path.rpartition("/")
    location = open_location(folder or ("/" if path.startswith("/") else "."))
    data = page.render(gather(archive, run, runner, emit)).encode()
    location.write(name, data)
    seconds = round(time.monotonic() - began, 3)
    return {"run": run.name, "file": f"{location.path.rstrip('/')}/{name}", "bytes": len(data), "seconds": seconds}


def gather(archive: Archive, run: RunFolder, runner: Runner, emit: Emit = silent) -> dict[str, Any]:
    """Return all that the page shows of a complete run.  Raises StorageError where something of it is damaged."""
    config, record = run.read_json(CONFIG), run.read_json(RECORD)
    fitted_run = complete_run(archive, config.get("assigned_from")) if "assigned_from" in config else run
    fitted, method, source = assign.load(archive, fitted_run)
    fit_record = fitted_run.read_json(RECORD)
    batches, seed = results.batches_of(archive, run), config["request"]["seed"]
    source = task.restrict(source, batches)
    has_embedding = fitted_run.name == run.name
    placed = _placed(archive, run, batches, fitted, method.embedding if has_embedding else 0, seed, runner, emit)
    views, blocks = _views(source, run, fitted, seed, runner, emit)
    weights = fit_record.get("view_weights")
    numbers, sizes = fitted.numbers, placed.confidence.sum(axis=1)
    order = np.argsort(-sizes, kind="stable")
    found: dict[str, Any] = {
        "archive": archive.path, "run": run.name, "assigned_from": None if has_embedding else fitted_run.name,
        "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "config": config, "record": record, "fit": fit_record, "versions": versions.collect(),
        "parameters": fit_record["parameters"], "paper": method.paper,
        "samples": source.rows, "clusters": len(numbers),
        "batches": [{"name": b.name, "samples": b.rows, "labels": b.has_labels} for b in batches],
        "blocks": blocks,
        "views": [
            {
                "name": name, "features": archive.views[name].features, "dtype": archive.views[name].dtype,
                "missing": sum(b.missing.get(name, 0) for b in batches) / max(source.rows, 1),
                "scaling": fit_record["scaling"][name], "explained": view.explained,
                "weight": weights[name] if weights else None,
                "top": {int(numbers[i]): _top(view, i) for i in order[:DETAILED]},
            }
            for name, view in zip(source.views, views, strict=True)
        ],
        "sizes": [(int(numbers[i]), int(sizes[i])) for i in order],
        "confidence": {
            "bins": placed.confidence.sum(axis=0).tolist(),
            "means": {int(numbers[i]): float(placed.sure[i] / max(sizes[i], 1)) for i in order},
        },
        "detailed": [int(numbers[i]) for i in order[:DETAILED]],
    }  # fmt: skip
    if has_embedding:
        emit(Progress("report: picture", 0, 1))
        found["picture"] = _picture(archive, batches, placed, numbers, seed)
        found["nearest"] = _nearest(archive, batches, placed, numbers, order[:DETAILED])
    found["truth"] = _truth(archive, run) if any(b.has_labels for b in batches) else None
    before = previous_run(archive, run)
    found["previous"] = None if before is None else compare.compare(archive, before, run)
    return found


def _placed(
    archive: Archive, run: RunFolder, batches: tuple[Batch, ...], fitted: Fitted, width: int, seed: int,
    runner: Runner, emit: Emit,
) -> profile.Placement:  # fmt: skip
    rows = ZarrRows(archive.path, run.folder)
    names = (*(("embedding",) if width else ()), "labels", "confidence")
    source = RowsSource(tuple((rows, name) for name in names), batches, width * 8 + 8)
    bound = sampling.threshold(source.rows, POINTS)
    step = profile.Place(fitted.centres[:, :width], fitted.numbers, seed, bound, NEAREST)
    return run_pass(runner, Work(source, step, None), keep, "report: rows", emit)[1]


def _views(
    source: ArchiveSource, run: RunFolder, fitted: Fitted, seed: int, runner: Runner, emit: Emit
) -> tuple[list[profile.Differences], tuple[int, int]]:
    """Return the differences of every view between the clusters, and how many blocks of how many they are of."""
    labels = RowsSource(((ZarrRows(source.path, run.folder), "labels"),), source.batches, 4)
    both = Beside(ArchiveSource(source.path, source.batches, source.views, source.columns), labels)
    refs, archive_views = both.refs, {view.name: view for view in source.batches[0].views}
    row_bytes = sum(archive_views[name].row_bytes for name in source.views)
    most = max(1, VIEW_BYTES // (row_bytes * max(b.block_rows for b in source.batches)))
    chosen = tuple(refs[i] for i in sampling.smallest(np.arange(len(refs)), seed, most))
    step = profile.Describe(fitted.numbers)
    shift: Any = tuple(np.zeros(archive_views[name].features) for name in source.views)
    probe = Work(task.Chosen(both, chosen[:: -(-len(chosen) // 4)]), step, shift)
    shift, _, _ = run_pass(runner, probe, profile.shifts, "report: probe", emit)
    _, sums, _ = run_pass(runner, Work(task.Chosen(both, chosen), step, shift), keep, "report: views", emit)
    parts = zip(shift, sums.rows, sums.total, sums.square, strict=True)
    return [profile.differences(*part) for part in parts], (len(chosen), len(refs))


def _top(view: profile.Differences, cluster: int) -> list[dict[str, Any]]:
    """Return the features in which a cluster differs most from all samples, the most different first."""
    effect = view.effect[cluster]
    order = np.argsort(-np.abs(np.nan_to_num(effect)), kind="stable")[:FEATURES]
    return [
        {
            "feature": int(j), "effect": float(effect[j]), "mean": _clean(view.means[cluster, j], view.deviation[j]),
            "overall": _clean(view.mean[j], view.deviation[j]),
        }
        for j in order if abs(effect[j]) >= 0.01
    ]  # fmt: skip


def _clean(mean: float, deviation: float) -> float:
    """Return a mean, zero where it is the rounding of a sum."""
    return 0.0 if abs(mean) < 1e-9 * deviation else float(mean)


def _picture(
    archive: Archive, batches: tuple[Batch, ...], placed: profile.Placement, numbers: Array, seed: int
) -> dict[str, Any]:
    """Return the sample on two pairs of axes: by t-SNE, and the principal axes of the embedding."""
    chosen = sampling.smallest(placed.positions, seed, POINTS)
    rows, positions = placed.rows[chosen], placed.positions[chosen]
    axes, shares = profile.principal_axes(rows)
    ids, classes = named(archive, batches, positions)
    return {
        "ids": ids, "classes": classes, "clusters": numbers[placed.labels[chosen]].tolist(),
        "confidence": placed.confidences[chosen].tolist(),
        "axes": axes.tolist(), "shares": shares.tolist(), "neighbours": neighbour_map(rows, axes, seed).tolist(),
    }  # fmt: skip


def neighbour_map(rows: Array, axes: Array, seed: int) -> Array:
    """Return the rows (s, 2) on a plane by t-SNE, or on their principal axes where there is too little to place."""
    if len(rows) < 20 or len(np.unique(rows, axis=0)) < 20:
        return axes
    # One thread: the others' waiting costs more than it saves at this size, and bits stay the same.
    with threadpoolctl.threadpool_limits(1):
        made = TSNE(init="pca", random_state=seed % (1 << 32), perplexity=min(30, len(rows) // 4), max_iter=500)
        return np.asarray(made.fit_transform(rows), float)


def _nearest(
    archive: Archive, batches: tuple[Batch, ...], placed: profile.Placement, numbers: Array, order: Array
) -> dict[int, list[dict[str, Any]]]:
    """Return the id, class and distance of the samples nearest each centre, by cluster."""
    found = placed.nearest[order]
    there = np.isfinite(found[..., 0])
    ids, classes = named(archive, batches, found[there][:, 1].astype(np.int64))
    rows: dict[int, list[dict[str, Any]]] = {int(numbers[i]): [] for i in order}
    for which, id_, class_, (squared, _) in zip(np.nonzero(there)[0], ids, classes, found[there], strict=True):
        rows[int(numbers[order[which]])].append({"id": id_, "class": class_, "distance": float(np.sqrt(squared))})
    return rows


def named(archive: Archive, batches: tuple[Batch, ...], positions: Array) -> tuple[list[str], list[str | None]]:
    """Return the ids and the classes (None where there are none) of rows by position; a block is read once."""
    ids: dict[int, str] = {}
    classes: dict[int, str] = {}
    for batch in batches:
        reader = BatchReader(archive.path, batch)
        within = positions - batch.start
        mine = np.flatnonzero((within >= 0) & (within < batch.rows))
        for block in np.unique(within[mine] // batch.block_rows):
            first, last = batch.block_range(int(block))
            rows = mine[within[mine] // batch.block_rows == block]
            ids |= zip(rows, map(str, reader.ids(first, last)[within[rows] - first]), strict=True)
            if batch.has_labels:
                classes |= zip(rows, map(str, reader.labels(first, last)[within[rows] - first]), strict=True)
    return [ids[i] for i in range(len(positions))], [classes.get(i) for i in range(len(positions))]


def _truth(archive: Archive, run: RunFolder) -> dict[str, Any]:
    """Return the counts of rows by cluster and class, the largest of both, matched ones on the diagonal; the scores."""
    table, names = results.class_table(archive, run)
    rows = [int(i) for i in np.argsort(-table.sum(1), kind="stable")[:DETAILED] if table[i].sum()]
    columns = [int(j) for j in np.argsort(-table.sum(0), kind="stable")[:DETAILED]]
    pairs = dict(matching.pairs(table[np.ix_(rows, columns)]))
    rows_order = sorted(range(len(rows)), key=lambda i: rows[i])
    taken = [pairs[i] for i in rows_order if i in pairs]
    columns_order = taken + [j for j in range(len(columns)) if j not in taken]
    shown = table[np.ix_([rows[i] for i in rows_order], [columns[j] for j in columns_order])]
    return {
        "scores": scores.scores(table), "samples": int(table.sum()),
        "clusters": [rows[i] for i in rows_order], "classes": [names[columns[j]] for j in columns_order],
        "counts": shown.tolist(), "shown": int(shown.sum()),
        "all_clusters": int((table.sum(1) > 0).sum()), "all_classes": len(names),
    }  # fmt: skip


def previous_run(archive: Archive, run: RunFolder) -> RunFolder | None:
    """Return the run that this one went on from, else the newest complete one begun before it that shares a batch."""
    config = run.read_json(CONFIG)
    mine = {entry["name"] for entry in config["batches"]}
    found = []
    for name in run_names(archive):
        other = RunFolder(archive, name)
        if name != run.name and other.complete:
            its = other.read_json(CONFIG)
            if its["began"] < config["began"] and mine & {entry["name"] for entry in its["batches"]}:
                found.append((name == config.get("updated_from"), its["began"], name))
    return RunFolder(archive, max(found)[2]) if found else None
