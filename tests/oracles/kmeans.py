"""Dense oracle of k-means: plain Lloyd from given centres, min sum_i ||x_i - c_(label i)||^2."""

from typing import NamedTuple

import numpy as np


class Record(NamedTuple):
    """One iteration: labels and inertia of the centres it began with, then the new centres."""

    labels: np.ndarray
    inertia: float
    centres: np.ndarray


def squared_distances(X, centres):
    """D (n, k), D_ij = ||x_i - c_j||^2 from the differences."""
    return np.array([np.sum((X - c) ** 2, axis=1) for c in centres]).T


def assign(X, centres):
    """(labels, inertia): the nearest centre of each row, ties to the lower index."""
    D = squared_distances(X, centres)
    return np.argmin(D, axis=1), float(D.min(axis=1).sum())


def update(X, labels, centres):
    """c_j = mean of the rows with label j; an empty cluster keeps its centre."""
    new = np.array(centres, dtype=np.float64)
    for j in range(len(new)):
        if np.any(labels == j):
            new[j] = X[labels == j].mean(axis=0)
    return new


def run(X, centres, iterations=300):
    """Records of Lloyd's iterations from `centres` (k, d), ended when no label changes."""
    X = np.asarray(X, dtype=np.float64)
    centres = np.asarray(centres, dtype=np.float64)
    records = []
    for _ in range(iterations):
        labels, inertia = assign(X, centres)
        centres = update(X, labels, centres)
        records.append(Record(labels, inertia, centres))
        if len(records) > 1 and np.array_equal(labels, records[-2].labels):
            break
    return records
