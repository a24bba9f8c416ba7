"""Scores of a clustering against labels, all from the contingency table, which is a sum over rows."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment

from aweigh.algorithms.contract import Array


def contingency(labels: Array, classes: Array, k: int, c: int) -> Array:
    """Return the (k, c) counts of rows with label i and class j."""
    return np.bincount(labels.astype(np.int64) * c + classes, minlength=k * c).reshape(k, c)


def scores(table: Array) -> dict[str, float]:
    """Return ACC, NMI, purity, ARI, pairwise F and Rand index, as fractions, of a contingency table.

    ACC matches clusters to classes optimally (Hungarian); NMI takes the arithmetic mean of the entropies.
    """
    n = int(table.sum())
    if n == 0:
        raise ValueError("no row has a label")
    rows, columns = linear_sum_assignment(-table)
    pairs, total = _pairs(table), n * (n - 1) / 2
    a, b = _pairs(table.sum(1)), _pairs(table.sum(0))
    expected = a * b / total if total else 0.0
    spread = (a + b) / 2 - expected
    return {
        "acc": float(table[rows, columns].sum() / n),
        "nmi": _nmi(table / n),
        "purity": float(table.max(1).sum() / n),
        "ari": float((pairs - expected) / spread) if spread else 1.0,
        "f": float(2 * pairs / (a + b)) if a + b else 1.0,
        "ri": float((total + 2 * pairs - a - b) / total) if total else 1.0,
    }


def _pairs(counts: Array) -> float:
    counts = counts.astype(np.float64)
    return float((counts * (counts - 1) / 2).sum())


def _nmi(p: Array) -> float:
    i, j = p.sum(1), p.sum(0)
    entropies = _entropy(i) + _entropy(j)
    mutual = entropies - _entropy(p.ravel())
    return float(min(max(2 * mutual / entropies, 0.0), 1.0)) if entropies > 0 else 1.0


def _entropy(p: Array) -> float:
    p = p[p > 0]
    return float(-(p * np.log(p)).sum())
