"""k-means as a method on the same driver: all starts stepped in one pass, judged by their inertia over all rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numba
import numpy as np

from aweigh.algorithms.contract import Array, Block, Pass, Sample, Sum, f64, settled


class Model(NamedTuple):
    """Centres of all starts (starts, k, d), their inertias, and spare rows for clusters that run empty."""

    centres: Array
    inertia: Array
    spare: Array
    objective: float


class Sums(NamedTuple):
    """A start's sums of rows a cluster (starts, k, d), counts (starts, k) and inertia (starts,)."""

    rows: Sum
    counts: Sum
    inertia: Sum


@dataclass(frozen=True)
class KMeans:
    """Lloyd's k-means from `starts` greedy k-means++ seedings of a sample, each converged on the sample first.

    A cluster that runs empty is re-seeded with the row of a seeded sample that lies farthest from its centre.
    """

    clusters: int
    starts: int = 10

    width = 0
    prepare = ()
    max_sweeps = 100
    tol = 1e-6

    @property
    def sweep(self) -> tuple[Pass, ...]:
        """One pass: assign every row in every start, then move the centres."""
        return (Pass(self.step, self.solve),)

    def start(self, sample: Sample, rng: np.random.Generator, prior: Model | None = None) -> Model:
        """Return the starts' centres after Lloyd's iterations on the sample rows."""
        (X,) = sample.views
        spare = X[: min(len(X), 1024)]
        model = Model(_seed(X, self.clusters, self.starts, rng), np.full(self.starts, np.inf), spare, np.inf)
        return self._lloyd(model, X)._replace(objective=np.inf)

    def _lloyd(self, model: Model, X: Array) -> Model:
        for _ in range(self.max_sweeps):
            previous = model.objective
            model = self.solve(model, self._sums(model, X))
            if settled(previous, model.objective, self.tol):
                break
        return model

    def _sums(self, model: Model, X: Array) -> Sums:
        rows = np.zeros(model.centres.shape)
        counts, inertia = np.zeros(rows.shape[:2]), np.zeros(len(rows))
        for start, centres in enumerate(model.centres):
            labels, nearest, _ = nearest_two(X, centres)
            _add_rows(X, labels, rows[start], counts[start])
            inertia[start] = nearest.sum(dtype=np.float64)
        return Sums(rows, counts, inertia)

    def step(self, model: Model, block: Block) -> tuple[Sums, None]:
        """Return the sums of one block."""
        return self._sums(model, block.views[0]), None

    def solve(self, model: Model, sums: Sums) -> Model:
        """Return the means of the clusters; the objective is the inertia summed over the starts."""
        counts = sums.counts[:, :, None]
        centres = np.where(counts > 0, sums.rows / np.maximum(counts, 1), model.centres)
        for start, empty in enumerate(sums.counts == 0):
            if empty.any():
                centres[start] = reseed(centres[start], empty, f64(model.spare))
        return model._replace(centres=centres, inertia=sums.inertia, objective=float(sums.inertia.sum()))

    def best(self, model: Model) -> Array:
        """Return the centres (k, d) of the start of smallest inertia."""
        return model.centres[int(np.argmin(model.inertia))]

    def embed(self, model: Model, sums: Sums, block: Block) -> Array:
        """Return the squared distances (rows, k) to the centres of the best start."""
        X, C = f64(block.views[0]), self.best(model)
        return np.maximum((X**2).sum(1)[:, None] - 2 * X @ C.T + (C**2).sum(1), 0)


def cluster(X: Array, k: int, rng: np.random.Generator, starts: int = 3) -> Array:
    """Return labels (rows,) of k-means of rows in memory: what methods start their anchors from."""
    method = KMeans(k, starts)
    whole = Sample((X,), np.ones((len(X), 1), bool), np.arange(len(X)))
    return nearest_two(X, method.best(method.start(whole, rng)))[0]


def means(X: Array, labels: Array, k: int) -> Array:
    """Return the mean of the rows of each label (k, d), zero for a label that no row has."""
    total, counts = sums(X, labels, k)
    return total / np.maximum(counts, 1)[:, None]


def sums(X: Array, labels: Array, k: int) -> tuple[Array, Array]:
    """Return the sum of the rows of each label (k, d) and their counts (k,)."""
    total, counts = np.zeros((k, X.shape[1])), np.zeros(k)
    _add_rows(X, labels, total, counts)
    return total, counts


def nearest_two(X: Array, centres: Array) -> tuple[Array, Array, Array]:
    """Return for each row the nearest centre, and the squared distances (float64) to it and to the next one.

    Ties go to the centre of smaller number.
    """
    C = centres.astype(X.dtype)
    return _two_smallest(X @ C.T, np.einsum("ij,ij->i", X, X), f64(np.einsum("ij,ij->i", f64(C), f64(C))))


def reseed(centres: Array, empty: Array, spare: Array) -> Array:
    """Return the centres with each empty one moved to the spare row farthest from all centres in use."""
    centres = centres.copy()
    for j in np.flatnonzero(empty):
        used = centres[~empty]
        distance = ((spare[:, None, :] - used[None]) ** 2).sum(2).min(1) if len(used) else np.zeros(len(spare))
        centres[j] = spare[int(np.argmax(distance))]
        empty = empty.copy()
        empty[j] = False
    return centres


def _seed(X: Array, k: int, starts: int, rng: np.random.Generator) -> Array:
    """Return the centres (starts, k, d) of greedy k-means++: each the best of 2 + log k rows drawn by their distance.

    All starts draw together, so that the rows are read k times and not starts * k times.
    """
    trials, squares = 2 + int(np.log(k)), f64(np.einsum("ij,ij->i", X, X))
    rows, each = np.zeros((starts, k), int), np.arange(starts)
    rows[:, 0] = rng.integers(len(X), size=starts)
    nearest = _distances(X, squares, rows[:, 0])
    for j in range(1, k):
        drawn = np.empty((starts, trials), int)
        for start, weights in enumerate(nearest.cumsum(axis=1)):
            drawn[start] = np.searchsorted(weights, rng.random(trials) * weights[-1])
        drawn = np.minimum(drawn, len(X) - 1)
        tried = np.minimum(_distances(X, squares, drawn.ravel()).reshape(starts, trials, -1), nearest[:, None])
        best = tried.sum(axis=2).argmin(axis=1)
        rows[:, j], nearest = drawn[each, best], tried[each, best]
    return f64(X[rows])


def _distances(X: Array, squares: Array, rows: Array) -> Array:
    """Return the squared distances (len(rows), n) of all rows to some of them."""
    return np.maximum(squares[rows][:, None] - 2 * f64(X[rows] @ X.T) + squares, 0)


@numba.njit(nogil=True, cache=True)
def _two_smallest(cross, row_squares, centre_squares):  # type: ignore[no-untyped-def]
    n, k = cross.shape
    labels, first, second = np.empty(n, np.int32), np.empty(n), np.empty(n)
    for i in range(n):
        best, d1, d2 = 0, np.inf, np.inf
        for j in range(k):
            d = centre_squares[j] - 2.0 * cross[i, j]
            if d < d1:
                best, d2, d1 = j, d1, d
            elif d < d2:
                d2 = d
        labels[i] = best
        first[i] = max(d1 + row_squares[i], 0.0)
        second[i] = max(d2 + row_squares[i], 0.0)
    return labels, first, second


@numba.njit(nogil=True, cache=True)
def _add_rows(X, labels, total, counts):  # type: ignore[no-untyped-def]
    for i in range(X.shape[0]):
        j = labels[i]
        counts[j] += 1.0
        for f in range(X.shape[1]):
            total[j, f] += X[i, f]
