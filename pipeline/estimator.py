"""Clustering of arrays in memory, in scikit-learn's manner, on the serial driver: labels as from an archive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils.validation import check_is_fitted

from aweigh.algorithms.contract import Array
from aweigh.io.archive import Batch, View
from aweigh.io.batches import block_rows_for
from aweigh.io.model import Ids
from aweigh.io.rows import MemoryRows
from aweigh.io.scan import BatchScan, without_missing
from aweigh.io.sources.base import view_dtype
from aweigh.pipeline import assign
from aweigh.pipeline.driver import SerialRunner
from aweigh.pipeline.fitting import Fit, Fitted, Request, Saved
from aweigh.pipeline.run import choose_method, make_method
from aweigh.pipeline.task import MemorySource

Views = Sequence[Any] | Mapping[str, Any]


class MultiViewClustering(ClusterMixin, BaseEstimator):
    """Cluster samples seen in several views that fit in memory.

    Parameters
    ----------
    n_clusters : number of clusters k.
    method : "auto", "emvgc-lg", "imvc-cbg", "acmvc", …: see `aweigh methods`.
    scale : "auto", "none", "unit", "zscore", "zunit", "minmax", "tfidf".
    settings : parameters of the method, such as {"lambda": 0.1, "anchors": 20}.
    max_sweeps, tol : when to stop; None for the method's own.
    random_state : integer seed.

    Attributes
    ----------
    labels_ (n,) int32; confidence_ (n,) float32, 1 - d1/d2 of the two nearest centres; embedding_ (n, ·);
    objective_ list a sweep (of the last round); n_iter_ sweeps; method_ the method that ran; scaling_ a view.

    Views are (n, d_v) arrays with equal n, given as a list or as a dict of names.  A row that is all NaN in a view is
    missing from that view.  Raises DataError or UsageError (both say what to do).
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        method: str = "auto",
        scale: str = "auto",
        settings: dict[str, Any] | None = None,
        max_sweeps: int | None = None,
        tol: float | None = None,
        random_state: int = 0,
    ) -> None:
        self.n_clusters = n_clusters
        self.method = method
        self.scale = scale
        self.settings = settings
        self.max_sweeps = max_sweeps
        self.tol = tol
        self.random_state = random_state

    def fit(self, X: Views, y: Any = None) -> MultiViewClustering:
        """Return self, fitted to the views X; y is ignored."""
        self.__dict__.pop("_fit", None)
        return self._learn(_batch(X, "batch-0001", 0, None))

    def partial_fit(self, X: Views, y: Any = None) -> MultiViewClustering:
        """Return self after one more batch: for methods that learn batch after batch (acmvc)."""
        earlier = getattr(self, "_fit", None)
        if earlier is None:
            return self._learn(_batch(X, "batch-0001", 0, None))
        if not earlier.method.rounds:
            raise TypeError(f"{self.method_} learns all rows together; partial_fit needs a method such as acmvc")
        batches = earlier.source.batches
        last = batches[-1]
        return self._learn(_batch(X, f"batch-{len(batches) + 1:04d}", last.start + last.rows, last.views), earlier)

    def predict(self, X: Views) -> Array:
        """Return the labels (n,) of new rows under the fitted model."""
        check_is_fitted(self, "labels_")
        batch, arrays = _batch(X, "new", 0, self._fit.source.batches[0].views)
        rows = MemoryRows()
        source = MemorySource({batch.name: arrays}, (batch,), self._fitted.scaling)
        assign.assign(SerialRunner(), source, self._fit.method, self._fitted, rows)
        return _read(rows, "labels", (batch,))

    def fit_predict(self, X: Views, y: Any = None) -> Array:
        """Return the labels (n,) of the rows of X."""
        return self.fit(X).labels_

    def _learn(self, new: tuple[Batch, Any], earlier: Fit | None = None) -> MultiViewClustering:
        batch, arrays = new
        request = Request(
            self.n_clusters, self.method, None, self.scale, dict(self.settings or {}), self.max_sweeps, self.tol,
            self.random_state,
        )  # fmt: skip
        if earlier is None:
            name = choose_method((batch,), tuple(v.name for v in batch.views), self.method)
            method = make_method(name, request, (batch,))
            source, rows, saved = MemorySource({batch.name: arrays}, (batch,)), MemoryRows(), Saved()
            self.method_ = name
        else:
            method, rows, saved = earlier.method, earlier.rows, earlier.saved._replace(clustering=None)
            source = MemorySource({**earlier.source.arrays, batch.name: arrays}, (*earlier.source.batches, batch))
        features = {v.name: v.features for v in batch.views}
        dtype = str(np.result_type(*(v.dtype for v in batch.views)))
        self._fit = Fit(source, method, request, features, dtype, rows, saved=saved)
        self._fitted: Fitted = self._fit.run(SerialRunner())
        batches = source.batches
        self.labels_ = _read(rows, "labels", batches)
        self.confidence_ = _read(rows, "confidence", batches)
        self.embedding_ = _read(rows, "embedding", batches)
        rounds = self._fit.saved.rounds
        self.objective_ = rounds[-1].objective
        self.n_iter_ = sum(len(r.objective) for r in rounds)
        self.scaling_ = {v: s.kind for v, s in zip(features, self._fitted.scaling, strict=True)}
        return self


def _batch(
    X: Views, name: str, start: int, like: tuple[View, ...] | None
) -> tuple[Batch, tuple[tuple[Array, ...], Array]]:
    """Return the views as one batch in memory, cut as an import would cut them, with the presence of every row."""
    from aweigh.io.errors import DataError
    from aweigh.io.incoming import check_sources

    named = dict(X) if isinstance(X, Mapping) else {f"view{i}": x for i, x in enumerate(X)}
    arrays = {}
    for view, x in named.items():
        x = np.asarray(x)
        if x.ndim != 2:
            raise DataError(f"view {view!r} has shape {x.shape}: a view is (samples, features)", "use reshape(-1, 1)")
        arrays[view] = np.ascontiguousarray(x, view_dtype(x.dtype, view))
    shapes: dict[str, Any] = {v: _Shape(x) for v, x in arrays.items()}
    rows = check_sources(shapes, None, None)
    views = tuple(View(v, x.shape[1], str(x.dtype)) for v, x in arrays.items())
    if like is not None and views != like:
        raise DataError(f"the views are {views}, and the fit's are {like}", "give the same views in the same order")
    scan = BatchScan(dict.fromkeys(arrays, "an array"), arrays)
    missing = np.column_stack([scan.views[v].add(x) for v, x in arrays.items()])
    scan.add(0, 0, ~missing, range(rows))
    scan.refuse(True)
    clean = tuple(without_missing(x, missing[:, i]) for i, x in enumerate(arrays.values()))
    counts = {v: int(missing[:, i].sum()) for i, v in enumerate(arrays)}
    size = min(rows, block_rows_for(sum(v.row_bytes for v in views)))
    ids = Ids("int", start, start + rows - 1)
    batch = Batch(name, rows, start, size, views, ids, None, "", counts, {})
    return batch, (clean, ~missing)


class _Shape:
    def __init__(self, x: Array) -> None:
        self.rows, self.columns, self.dtype = *x.shape, x.dtype


def _read(rows: MemoryRows, name: str, batches: tuple[Batch, ...]) -> Array:
    return np.concatenate([rows.read(name, batch, i) for batch in batches for i in range(batch.blocks)])
