"""What clusters look like: how sure their rows are, which rows lie nearest, how the features differ between them.

All of it is sums over blocks of labelled rows, and a seeded sample of rows for pictures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import sparse

from aweigh.algorithms import sampling
from aweigh.algorithms.contract import Array, Block, Gather, Lowest, Sum, f64

BINS = 20  # of confidence, which lies between 0 and 1


class Placement(NamedTuple):
    """Rows a cluster and bin of confidence (k, BINS), sums of confidence (k,), the (squared distance, position) of the
    rows nearest each centre (k, t, 2), and the sample: rows of the embedding, positions, labels, confidences.
    """

    confidence: Sum
    sure: Sum
    nearest: Lowest
    rows: Gather
    positions: Gather
    labels: Gather
    confidences: Gather


@dataclass(frozen=True)
class Place:
    """The step that places rows among the centres; a block's views: embedding (if it is stored), labels, confidence.

    `numbers` (k,) are the labels of the centres (k, d), d = 0 without an embedding; the sample are the rows whose hash
    is at most `bound`.
    """

    centres: Array
    numbers: Array
    seed: int
    bound: int
    nearest: int

    def __call__(self, model: None, block: Block) -> tuple[Placement, None]:
        *stored, labels, confidence = block.views
        embedding = stored[0] if stored else np.zeros((len(labels), 0))
        k, which = len(self.numbers), index(labels, self.numbers)
        bins = np.clip((confidence * BINS).astype(np.int64), 0, BINS - 1)
        counts = np.bincount(which * BINS + bins, minlength=k * BINS).reshape(k, BINS)
        sure = np.bincount(which, confidence, k)
        chosen = sampling.position_hash(block.positions, self.seed) <= np.uint64(self.bound)
        nearest = self._nearest(embedding, which, block.positions)
        sample = embedding[chosen], block.positions[chosen], which[chosen], confidence[chosen]
        return Placement(f64(counts), sure, nearest, *sample), None

    def _nearest(self, embedding: Array, which: Array, positions: Array) -> Array:
        """Return the (squared distance, position) of the rows of each cluster nearest its centre, inf where too few."""
        distance = np.sum((f64(embedding) - self.centres[which]) ** 2, axis=1)
        order = np.lexsort((positions, distance, which))
        first = np.searchsorted(which[order], np.arange(len(self.numbers)))
        rank = np.arange(len(order)) - first[which[order]]
        rows, rank = order[rank < self.nearest], rank[rank < self.nearest]
        found = np.full((len(self.numbers), self.nearest, 2), np.inf)
        found[which[rows], rank] = np.column_stack([distance[rows], positions[rows]])
        return found


class Sums(NamedTuple):
    """A view's rows a cluster (k,), sums of its features a cluster (k, d) and of their squares (d,), about a shift."""

    rows: Sum
    total: Sum
    square: Sum


@dataclass(frozen=True)
class Describe:
    """The step that sums a block's features by cluster.  A block's views: the views' rows, then labels.

    The model are the shifts (d,) of the views, near the data, so that variances do not cancel.
    """

    numbers: Array

    def __call__(self, model: tuple[Array, ...], block: Block) -> tuple[Sums, None]:
        *views, labels = block.views
        which, n = index(labels, self.numbers), len(labels)
        columns = []
        for X, shift, present in zip(views, model, block.present.T, strict=True):
            one_hot = sparse.csr_array((f64(present), (which, np.arange(n))), shape=(len(self.numbers), n))
            moved = np.where(present[:, None], X - shift, 0.0)
            columns.append((one_hot.sum(axis=1), one_hot @ moved, np.einsum("ij,ij->j", moved, moved)))
        return Sums(*zip(*columns, strict=True)), None  # type: ignore[arg-type]


def shifts(model: tuple[Array, ...], sums: Sums) -> tuple[Array, ...]:
    """Return the means (d,) of each view's features over the rows that were summed: the solve of a probing pass."""
    return tuple(
        shift + total.sum(0) / max(rows.sum(), 1.0)
        for shift, total, rows in zip(model, sums.total, sums.rows, strict=True)
    )


class Differences(NamedTuple):
    """How a view's features differ between clusters.

    Means (k, d), mean and standard deviation (d,) over all clusters, the difference of the means in standard deviations
    (k, d), and the share of the features' variance that lies between the clusters, averaged over features that vary.
    """

    means: Array
    mean: Array
    deviation: Array
    effect: Array
    explained: float


def differences(shift: Array, rows: Array, total: Array, square: Array) -> Differences:
    """Return the differences of one view from its sums; NaN for clusters of which the view has no row."""
    n, counts = max(float(rows.sum()), 1.0), np.where(rows > 0, rows, np.nan)[:, None]
    means, mean = total / counts, total.sum(0) / n
    variance = np.maximum(square / n - mean**2, 0.0)
    # What is left of a constant feature is the rounding of its own magnitude.
    varies = variance > (1e-12 * np.maximum(np.abs(shift), np.abs(mean))) ** 2
    deviation = np.where(varies, np.sqrt(variance), 0.0)
    effect = np.where(varies, (means - mean) / np.where(varies, deviation, 1.0), 0.0)
    between = np.nansum(counts * effect**2, axis=0) / n
    explained = float(between[varies].mean()) if varies.any() else 0.0
    return Differences(shift + means, shift + mean, deviation, effect, explained)


def principal_axes(rows: Array, count: int = 2) -> tuple[Array, Array]:
    """Return the rows (s, count) on their principal axes, and the shares (count,) of the variance along them.

    The sign of an axis makes its largest loading positive; axes that are not there are zero.
    """
    centred = f64(rows) - f64(rows).mean(axis=0)
    _, sizes, axes = np.linalg.svd(centred, full_matrices=False)
    axes = axes[:count]
    axes *= np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(axis=1)])[:, None]
    found, shares = np.zeros((len(rows), count)), np.zeros(count)
    found[:, : len(axes)] = centred @ axes.T
    shares[: len(axes)] = sizes[:count] ** 2 / max(float((sizes**2).sum()), 1e-300)
    return found, shares


def index(labels: Array, numbers: Array) -> Array:
    """Return the place of each label in `numbers`, which holds them all."""
    order = np.argsort(numbers)
    return order[np.searchsorted(numbers, labels, sorter=order)]
