"""What is read of a finished run: its labels beside ids and classes, a block at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from aweigh.algorithms import scores
from aweigh.algorithms.contract import Array
from aweigh.io.archive import Archive, Batch, BatchReader
from aweigh.io.errors import DataError
from aweigh.io.rows import ZarrRows
from aweigh.io.runs import CONFIG, RunFolder
from aweigh.io.sources import zarr_array


class Labelled(NamedTuple):
    """Rows of one block: ids, labels (int32), confidence (float32), classes (None where the batch has none)."""

    ids: Array
    labels: Array
    confidence: Array
    classes: Array | None


def batches_of(archive: Archive, run: RunFolder) -> tuple[Batch, ...]:
    """Return the batches that a run has labelled."""
    return tuple(archive.batch(entry["name"]) for entry in run.read_json(CONFIG)["batches"])


def labelled(archive: Archive, run: RunFolder, batches: tuple[Batch, ...]) -> Iterator[Labelled]:
    """Yield the rows of a run, a block at a time, in order."""
    rows = ZarrRows(archive.path, run.folder)
    for batch in batches:
        reader = BatchReader(archive.path, batch)
        for block in range(batch.blocks):
            first, last = batch.block_range(block)
            yield Labelled(
                reader.ids(first, last),
                rows.read("labels", batch, block),
                rows.read("confidence", batch, block),
                reader.labels(first, last) if batch.has_labels else None,
            )


def class_table(archive: Archive, run: RunFolder) -> tuple[Array, list[str]]:
    """Return the counts of rows by label and class, and the classes' names, over all rows whose batch has labels.

    Raises DataError where none has.
    """
    batches = tuple(batch for batch in batches_of(archive, run) if batch.has_labels)
    if not batches:
        raise DataError(
            f"no batch of {archive.path} has labels to score against", "give --labels when importing a batch"
        )
    names: dict[str, int] = {}
    counts: dict[tuple[int, int], int] = {}
    rows = ZarrRows(archive.path, run.folder)
    for batch in batches:
        reader = BatchReader(archive.path, batch)
        for block in range(batch.blocks):
            found, inverse = np.unique(reader.labels(*batch.block_range(block)), return_inverse=True)
            codes = np.array([names.setdefault(str(name), len(names)) for name in found])[inverse]
            labels = rows.read("labels", batch, block)
            pairs, times = np.unique(np.column_stack([labels, codes]), axis=0, return_counts=True)
            for (label, code), n in zip(pairs.tolist(), times.tolist(), strict=True):
                counts[label, code] = counts.get((label, code), 0) + n
    table = np.zeros((max(label for label, _ in counts) + 1, len(names)), np.int64)
    for at, n in counts.items():
        table[at] = n
    return table, list(names)


def score(archive: Archive, run: RunFolder) -> dict[str, float]:
    """Return the scores of a run over all rows whose batch has labels; DataError where none has."""
    return scores.scores(class_table(archive, run)[0])


def open_dataset(archive: Archive, batch: str, run: RunFolder | None = None) -> Any:
    """Return a batch as an xarray.Dataset, lazily read: its views, ids and labels, and a run's results beside them.

    Linked views are Dask arrays of the store in which they lie.
    """
    import dask.array
    import xarray

    store = archive.location.zarr_store()
    found = xarray.open_zarr(store, group=f"batches/{batch}", consolidated=False, chunks=None)
    for view, link in archive.batch(batch).links.items():
        array = zarr_array.find(link.path, link.key or None, 2, "two-dimensional array")[1]
        found[view] = ("sample", f"feature_{view}"), dask.array.from_array(array, chunks=array.chunks)
    if run is None:
        return found
    made = xarray.open_zarr(store, group=f"{run.folder}/{batch}", consolidated=False, chunks=None)
    return found.merge(made)
