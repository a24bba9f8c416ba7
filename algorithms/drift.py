"""Drift of a view: how far a batch lies from the batches before it, in the space that the view's anchors span.

A reference is fixed once: for each view an orthonormal basis Q_v (r, d_v) of its anchors, and the clusters' means in
these coordinates.  Of a batch, three figures a view:

distance     squared 2-Wasserstein distance of the Gaussians of the coordinates c = Q_v x of this batch and of the
             history, over the history's total variance: 0 the same, 1 as far away as the view is wide
outside      share of ‖X_v‖² that the anchors do not span: the error of reconstructing the view from its anchors
unexplained  share of the coordinates' variance within clusters (adjusted for their number), a row's cluster being the
             nearest over all views together: the error of reconstructing the view from its clusters

A view has drifted where a figure is far outside the spread of the same figure over past batches, and far in itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from aweigh.algorithms import linalg
from aweigh.algorithms.contract import Array, Block, Sum, combine, f64

FEWEST = 2  # past batches that a spread is taken from
FACTOR = 4.0  # times the largest of the past distances, or the widest of the past deviations
FAR = 0.25  # of the view's own variance
WORSE = 0.15  # more of the view not reconstructed


class Reference(NamedTuple):
    """A view each: bases Q_v (r, d_v) and clusters' means (k, r) in their coordinates."""

    bases: tuple[Array, ...]
    means: tuple[Array, ...]


class Sums(NamedTuple):
    """A view each: rows, Σc, Σcc', ‖X‖², ‖C‖²; rows and Σc a cluster."""

    rows: Sum
    total: Sum
    outer: Sum
    squares: Sum
    inside: Sum
    cluster_rows: Sum
    cluster_total: Sum


class Past(NamedTuple):
    """The figures of one earlier batch, one value a view; `scaled` is distance over what chance gives it."""

    batch: str
    scaled: Array
    outside: Array
    unexplained: Array


def bases(landmarks: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return orthonormal rows that span the landmarks (m, d_v) of each view."""
    found = []
    for A in landmarks:
        _, s, Vt = np.linalg.svd(f64(A), full_matrices=False)
        found.append(Vt[s > 1e-6 * max(s[0], 1e-300)] if s[0] > 0 else Vt[:1])
    return tuple(found)


@dataclass(frozen=True)
class Profile:
    """The step that sums a block's coordinates by cluster: the stored `labels` at first, then the nearest means."""

    numbers: Array | None = None

    def __call__(self, reference: Reference, block: Block) -> tuple[Sums, None]:
        coordinates = [f64(X @ Q.T.astype(X.dtype)) for X, Q in zip(block.views, reference.bases, strict=True)]
        if self.numbers is None:
            labels, k = nearest(coordinates, reference.means, block.present), len(reference.means[0])
        else:
            order = np.argsort(self.numbers)
            labels = order[np.searchsorted(self.numbers[order], block.others.own("labels"))]
            k = len(self.numbers)
        parts = [
            _sums(X, C, labels, block.present[:, v], k)
            for v, (X, C) in enumerate(zip(block.views, coordinates, strict=True))
        ]
        leaves: Any = zip(*parts, strict=True)
        return Sums(*leaves), None


def _sums(X: Array, C: Array, labels: Array, present: Array, k: int) -> tuple[Array, ...]:
    one = (labels[:, None] == np.arange(k)) & present[:, None]
    C = C * present[:, None]
    return (
        f64(present.sum()), C.sum(0), C.T @ C, f64(linalg.squared_sum(X)), f64(linalg.squared_sum(C)),
        f64(one.sum(0)), one.T.astype(float) @ C,
    )  # fmt: skip


def nearest(coordinates: list[Array], means: tuple[Array, ...], present: Array) -> Array:
    """Return the cluster (rows,) whose means are nearest over the views that a row has."""
    distance = np.zeros((len(present), len(means[0])))
    for v, (C, M) in enumerate(zip(coordinates, means, strict=True)):
        distance += ((M**2).sum(1) - 2 * C @ M.T) * present[:, [v]]
    return distance.argmin(axis=1)


def means(sums: Sums) -> tuple[Array, ...]:
    """Return the clusters' means (k, r) of each view."""
    return tuple(T / np.maximum(n, 1)[:, None] for n, T in zip(sums.cluster_rows, sums.cluster_total, strict=True))


def figures(batch: Sums, history: Sums | None) -> tuple[Array, Past]:
    """Return the distances (V,), NaN without a history, and the figures to be kept."""
    V = len(batch.rows)
    distance, scaled, outside, unexplained = (np.full(V, np.nan) for _ in range(4))
    for v in range(V):
        if batch.rows[v] < 2:
            continue
        outside[v] = 1 - batch.inside[v] / batch.squares[v] if batch.squares[v] > 0 else 0.0
        unexplained[v] = _within(batch, v)
        if history is not None and history.rows[v] >= 2:
            distance[v] = _wasserstein(batch, history, v)
            scaled[v] = distance[v] * batch.rows[v] * history.rows[v] / (batch.rows[v] + history.rows[v])
    return distance, Past("", scaled, outside, unexplained)


def _moments(sums: Sums, v: int) -> tuple[Array, Array]:
    n = sums.rows[v]
    mean = sums.total[v] / n
    return mean, sums.outer[v] / n - np.outer(mean, mean)


def _within(sums: Sums, v: int) -> float:
    """Return the within-cluster share of the variance, adjusted: 1 - R² times (n - 1) / (n - clusters)."""
    n, sizes = float(sums.rows[v]), sums.cluster_rows[v]
    total = float(sums.inside[v] - sums.total[v] @ sums.total[v] / n)
    held = float((sums.cluster_total[v] ** 2).sum(1) @ (1 / np.maximum(sizes, 1)))
    used = int((sizes > 0).sum())
    if total <= 1e-12 * float(sums.inside[v]) or n <= used:
        return float("nan")
    return (float(sums.inside[v]) - held) / total * (n - 1) / (n - used)


def _wasserstein(batch: Sums, history: Sums, v: int) -> float:
    """Return (‖μ - μ_h‖² + tr(S + S_h - 2 (S_h½ S S_h½)½)) / tr S_h."""
    (mean, S), (mean_h, S_h) = _moments(batch, v), _moments(history, v)
    width = max(float(np.trace(S_h)), 1e-12 * float(history.inside[v] / history.rows[v]), 1e-300)
    root = _root(S_h)
    cross = np.sqrt(np.maximum(np.linalg.eigvalsh(root @ S @ root), 0)).sum()
    squared = float(((mean - mean_h) ** 2).sum() + np.trace(S) + np.trace(S_h) - 2 * cross)
    return max(squared, 0.0) / width


def _root(S: Array) -> Array:
    lam, Q = np.linalg.eigh((S + S.T) / 2)
    return (Q * np.sqrt(np.maximum(lam, 0))) @ Q.T


def drifted(distance: Array, now: Past, past: tuple[Past, ...]) -> Array:
    """Return which views (V,) have drifted: False for all where the past is too short to know its own spread."""
    known = [p for p in past if np.isfinite(p.scaled).any()]
    if len(known) < FEWEST:
        return np.zeros(len(distance), bool)
    with np.errstate(invalid="ignore"):
        highest = np.nanmax([p.scaled for p in known], axis=0, initial=0)
        found = (distance > FAR) & (now.scaled > FACTOR * highest)
        for name in ("outside", "unexplained"):
            values = np.array([getattr(p, name) for p in past])
            centre = np.nanmean(values, axis=0) if np.isfinite(values).all() else np.nan_to_num(values).mean(axis=0)
            spread = np.nanmax(np.abs(values - centre), axis=0, initial=0)
            found |= np.abs(getattr(now, name) - centre) > np.maximum(WORSE, FACTOR * spread)
    return found


def joined(history: Sums | None, batch: Sums) -> Sums:
    """Return the history with one more batch."""
    return batch if history is None else combine(history, batch)
