"""The two row-wise problems on the simplex {z >= 0, sum z = 1}: projection, and a QP with a shared matrix.

A row's result depends on that row, its start and Q alone, bit for bit, however rows are cut into blocks.
"""

import numpy as np
from numba import njit

from aweigh.algorithms.active_set import prepare, qp_rows


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz"})
def _project_rows(P, Z):
    n, m = P.shape
    p = np.empty(m)
    for i in range(n):
        top = np.float64(P[i, 0])
        for j in range(m):
            p[j] = P[i, j]
            top = p[j] if p[j] > top else top
        for j in range(m):
            p[j] -= top
        t, count, before = -1.0, 0.0, -1.0
        while count != before:
            before, count, total = count, 0.0, 0.0
            for j in range(m):
                inside = p[j] > t
                total += p[j] if inside else 0.0
                count += 1.0 if inside else 0.0
            t = (total - 1.0) / count
        for j in range(m):
            Z[i, j] = p[j] - t if p[j] > t else 0.0


def project_simplex(P):
    """Z (n, m): the nearest point of the simplex for each row of P, in P's dtype.

    z = max(p - t, 0), where t = (sum of p > t - 1) / (count of p > t) is found by shrinking {p > t} from
    {p > max p - 1} until it no longer changes. Float64 inside. A row with NaN or infinity gives a meaningless
    row: check before.
    """
    P = _rows(P)
    Z = np.empty_like(P)
    _project_rows(P, Z)
    return Z


def simplex_qp(Q, F, start=None):
    """Z (n, m): for each row f of F the minimiser of 1/2 z'Qz + f'z on the simplex, in F's dtype.

    Q (m, m) is symmetric positive semi-definite; F is float32 or float64; the work is done in float64. `start`
    (n, m) gives rows whose support is a guess of the answer's: it changes the time, and the result by rounding
    (or to another minimiser, where there are several).

    Primal active set method on conjugate directions of the support, exact for the f given: gradients agree to
    1e-13 (max |Q| + max |f|). Where Q is singular to 1e-11, steps are taken with 1e-12 max |Q| on its diagonal,
    which does not move the minimiser, and a rare row stops short (`kkt_residual` tells). Singular Q and equal
    anchors always give the same one of the minimisers: the search starts from the first best vertex and takes
    the first of equal gradients. A row that is not done after 40 + 3 m turns returns its feasible z so far.
    A row of F with NaN or infinity gives a row of NaN; such a Q only such rows.
    """
    F = _rows(F)
    n, m = F.shape
    Q = np.ascontiguousarray(Q, dtype=np.float64)
    if Q.shape != (m, m):
        raise ValueError(f"Q has shape {Q.shape}, F has shape {F.shape}: Q must be (m, m) for F (n, m)")
    if start is None:
        start = np.empty((n, 0))
    elif np.shape(start) != F.shape:
        raise ValueError(f"start has shape {np.shape(start)}, F has shape {F.shape}")
    if not np.isfinite(Q).all():
        return np.full_like(F, np.nan)
    # Centred: with sum z = 1, r1' + 1r' in Q is r in f. Left in Q, anchors far from zero cost digits.
    r = Q.mean(axis=1)
    work = prepare(Q - (r[:, None] + r) + r.mean())
    support = np.ascontiguousarray(np.asarray(start) > 0)
    Z = np.empty((n, m))
    qp_rows(F.astype(np.float64, copy=False), support, Z, work, r, np.abs(Q).max())
    return Z.astype(F.dtype, copy=False)


def kkt_residual(Q, F, Z):
    """(n,): the scaled KKT residual of each row: how far Z is from the minimisers of `simplex_qp`.

    max of |sum z - 1| and max_j |min(z_j, (g_j - z'g) / (max |Q| + max |f|))|, with g = Qz + f.
    """
    Q, F, Z = (np.asarray(a, dtype=np.float64) for a in (Q, F, Z))
    G = Z @ Q + F
    scale = np.abs(Q).max() + np.abs(F).max(axis=1, keepdims=True)
    level = (Z * G).sum(axis=1, keepdims=True)
    gap = np.abs(np.minimum(Z, (G - level) / np.where(scale > 0, scale, 1.0))).max(axis=1)
    return np.maximum(gap, np.abs(Z.sum(axis=1) - 1.0))


def warm_up():
    """Nothing; afterwards both kernels are compiled for float32 and float64."""
    for dtype in (np.float32, np.float64):
        P = np.array([[0.2, 0.7]], dtype=dtype)
        project_simplex(P)
        simplex_qp(np.eye(2), P, start=P)


def _rows(P):
    P = np.ascontiguousarray(P)
    if P.dtype not in (np.float32, np.float64):
        P = P.astype(np.float64)
    if P.ndim != 2 or P.shape[1] == 0:
        raise ValueError(f"expected rows of at least one column, got shape {P.shape}")
    return P if P.flags.writeable else P.copy()  # a read-only array would compile the kernels once more
