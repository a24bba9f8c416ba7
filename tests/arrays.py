"""Test helpers: made-up views, and archives of them."""

import hashlib

import numpy as np

from aweigh.io.archive import open_archive
from aweigh.io.batches import import_batch
from aweigh.io.rows import ZarrRows


class Rows:
    """An import source over an array in memory."""

    def __init__(self, x):
        self.array, self.rows, self.columns, self.dtype = x, *x.shape, x.dtype

    def blocks(self, rows):
        for first in range(0, self.rows, rows):
            yield np.ascontiguousarray(self.array[first : first + rows])

    def describe(self):
        return f"an array {self.array.shape}"


def blobs(n, widths, k, seed=0, dtype=np.float64, spread=2.0):
    """(views, labels) of n samples around k centres."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, k, n)
    return [(spread * rng.normal(size=(k, d))[labels] + rng.normal(size=(n, d))).astype(dtype) for d in widths], labels


def archive_of(path, X, labels=None, block_rows=None, batches=1, **more):
    """The path of an archive that holds views X in `batches` batches."""
    for t, rows in enumerate(np.array_split(np.arange(len(X[0])), batches)):
        import_batch(
            path,
            {f"v{i}": Rows(x[rows]) for i, x in enumerate(X)},
            name=f"b{t}",
            block_rows=block_rows,
            labels=None if labels is None else labels[rows],
            **more,
        )
    return str(path)


def results(path, run):
    """(labels, embedding, confidence) of a run."""
    archive = open_archive(path)
    rows = ZarrRows(archive.path, f"runs/{run}")
    return tuple(
        np.concatenate([rows.read(name, batch, i) for batch in archive.batches for i in range(batch.blocks)])
        for name in ("labels", "embedding", "confidence")
    )


def fingerprint(path, record):
    """A hash of all that a run computed: labels, embedding, confidence and every objective."""
    h = hashlib.sha256(repr([r["objective"] for r in record.get("rounds", [record])]).encode())
    for values in results(path, record["run"]):
        h.update(values.tobytes())
    return h.hexdigest()
