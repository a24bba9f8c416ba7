"""The graph of nearest neighbours of one batch: built block against block, weighted, multiplied, its eigenvectors.

Directed lists are what is stored: `near` (n, K) row numbers and `distance` (n, K) squared distances, nearest first; a
row with fewer than K others names itself at an infinite distance.  The symmetric graph is A + A' of the weighted lists.
"""

from __future__ import annotations

from collections.abc import Iterable

import numba
import numpy as np

from aweigh.algorithms import linalg
from aweigh.algorithms.contract import Array, f64

TILE = 1024  # rows a side of the products that distances come from
DENSE = 1000  # rows up to which eigenvectors come from a dense matrix
QUANTUM = 2.0**-44  # distances are rounded to this: what a product's rounding would tell apart is a tie


def nearest(U: Array, at: Array, others: Iterable[tuple[Array, Array]], K: int) -> tuple[Array, Array]:
    """Return `near` and `distance` (rows, K) of the rows U (rows, d), whose numbers are `at` (rows,).

    `others` yields (numbers, rows) of every block, in any order and cut; all rows are of unit length or zero.  Exact:
    the K smallest of |x_i|² + |x_j|² - 2 x_i'x_j over j ≠ i, ties by the smaller number.  Holds a block and a tile.
    """
    near, distance = np.full((len(U), K), -1), np.full((len(U), K), np.inf)
    for numbers, X in others:
        for a in range(0, len(U), TILE):
            for b in range(0, len(X), TILE):
                rows = slice(a, a + TILE)
                _keep(U[rows], at[rows], X[b : b + TILE], numbers[b : b + TILE], near[rows], distance[rows])
    return _own(near, at), distance


def nearest_in_cells(
    U: Array, at: Array, others: Iterable[tuple[Array, Array]], K: int, anchors: Array, probes: int
) -> tuple[Array, Array]:
    """Return the same, approximately: each row is compared with the rows of the cells of its `probes` nearest anchors.

    A row's cell is that of its nearest anchor; `anchors` (cells, d) are unit rows.
    """
    near, distance = np.full((len(U), K), -1), np.full((len(U), K), np.inf)
    probed = np.argsort(-(U @ anchors.T), axis=1, kind="stable")[:, :probes]
    for numbers, X in others:
        cell = np.argmax(X @ anchors.T, axis=1)
        for c in range(len(anchors)):
            rows, columns = np.flatnonzero((probed == c).any(axis=1)), np.flatnonzero(cell == c)
            if not len(rows) or not len(columns):
                continue
            N, D = near[rows], distance[rows]
            for b in range(0, len(columns), TILE):
                tile = columns[b : b + TILE]
                for a in range(0, len(rows), TILE):
                    part = slice(a, a + TILE)
                    _keep(U[rows[part]], at[rows[part]], X[tile], numbers[tile], N[part], D[part])
            near[rows], distance[rows] = N, D
    return _own(near, at), distance


def _own(near: Array, at: Array) -> Array:
    return np.where(near < 0, at[:, None], near)


def _keep(U: Array, at: Array, X: Array, numbers: Array, near: Array, distance: Array) -> None:
    """Let the rows X into the lists of the rows U, in place."""
    s, t = f64(U.any(axis=1)), f64(X.any(axis=1))
    _insert(U @ X.T, s, t, at, numbers, near, distance, QUANTUM)


@numba.njit(nogil=True, cache=True)
def _insert(products, s, t, at, numbers, near, distance, quantum):  # type: ignore[no-untyped-def]
    K = near.shape[1]
    for i in range(products.shape[0]):
        for j in range(products.shape[1]):
            number = numbers[j]
            if number == at[i]:
                continue
            d = max(s[i] + t[j] - 2.0 * products[i, j], 0.0)
            if d > distance[i, K - 1] + quantum:
                continue
            d = np.round(d / quantum) * quantum
            if d > distance[i, K - 1] or (d == distance[i, K - 1] and number > near[i, K - 1]):
                continue
            place = K - 1
            while place > 0:
                before = distance[i, place - 1]
                if d > before or (d == before and number > near[i, place - 1]):
                    break
                distance[i, place] = distance[i, place - 1]
                near[i, place] = near[i, place - 1]
                place -= 1
            distance[i, place] = d
            near[i, place] = number


def weights(near: Array, distance: Array) -> Array:
    """Return the weights (n, K) of the directed lists A, such that D^(-1/2) W D^(-1/2) = A + A'.

    W_ij = exp(-d_ij / 2σ²) where either names the other, σ² the median of the finite distances; a pair that names each
    other counts half in each list.  D are the row sums of W; a row without weight has none.
    """
    found = distance[np.isfinite(distance)]
    variance = float(np.median(found)) if len(found) else 1.0
    rows = np.arange(len(near))[:, None]
    mutual = np.isin(near * len(near) + rows, rows * len(near) + near)
    A = np.exp(distance / (-2.0 * (variance if variance > 0 else 1.0))) * np.where(mutual, 0.5, 1.0)
    degree = A.sum(axis=1) + np.bincount(near.ravel(), A.ravel(), len(near))
    h = inverse_root(degree)
    return h[:, None] * A * h[near]


def inverse_root(x: Array) -> Array:
    """Return x^(-1/2) where x > 0, and 0 elsewhere."""
    return np.where(x > 0, 1.0 / np.sqrt(np.where(x > 0, x, 1.0)), 0.0)


def product(near: Array, weight: Array, first: int, last: int, E: Array) -> Array:
    """Return rows first to last of (A + A') E, (last - first, k): a block's own lists, and all that name its rows."""
    out = np.zeros((last - first, E.shape[1]))
    _add_product(near, weight, first, last, E, out)
    return out


@numba.njit(nogil=True, cache=True)
def _add_product(near, weight, first, last, E, out):  # type: ignore[no-untyped-def]
    n, K = near.shape
    for i in range(n):
        for j in range(K):
            w, other = weight[i, j], near[i, j]
            if w == 0.0:
                continue
            if first <= i < last:
                for c in range(E.shape[1]):
                    out[i - first, c] += w * E[other, c]
            if first <= other < last:
                for c in range(E.shape[1]):
                    out[other - first, c] += w * E[i, c]


def leading_vectors(near: Array, weight: Array, k: int) -> Array:
    """Return the eigenvectors (n, k) of the largest eigenvalues of A + A', each with its largest entry positive.

    Dense up to `DENSE` rows, by Lanczos from a fixed start above; zero columns where there are fewer rows than k.
    """
    import scipy.sparse as sparse

    n = len(near)
    A = sparse.csr_array((weight.ravel(), near.ravel(), np.arange(0, near.size + 1, near.shape[1])), shape=(n, n))
    S = A + A.T
    out = np.zeros((n, k))
    if n <= max(DENSE, 2 * k):
        out[:, : min(n, k)] = linalg.top_eigenvectors(S.toarray(), k)
        return out
    from scipy.sparse.linalg import eigsh

    values, Q = eigsh(S, k, which="LA", v0=np.random.default_rng(0).standard_normal(n), tol=0)
    Q = Q[:, np.argsort(-values, kind="stable")]
    largest = Q[np.abs(Q).argmax(axis=0), np.arange(k)]
    return Q * np.where(largest < 0, -1.0, 1.0)
