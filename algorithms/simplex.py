"""The two row-wise problems on the simplex {z >= 0, sum z = 1}: projection, and a QP with a shared matrix."""

import numpy as np
from numba import njit

_TOLERANCE = 1e-13  # of the gradient, relative to max |Q| + max |f|
_FLAT = 2e-14  # curvature counted as zero, relative to max |Q|


@njit(nogil=True, cache=True, error_model="numpy")
def _project_rows(P, Z):
    n, m = P.shape
    work = np.empty(m)
    for i in range(n):
        for j in range(m):
            work[j] = P[i, j]
        work.sort()
        total = 0.0
        shift = 0.0
        for j in range(m - 1, -1, -1):
            total += work[j]
            t = (total - 1.0) / (m - j)
            if work[j] <= t:
                break
            shift = t
        for j in range(m):
            Z[i, j] = max(P[i, j] - shift, 0.0)


def project_simplex(P):
    """Z (n, m): the nearest point of the simplex for each row of P, in P's dtype.

    z = max(p - t, 0) with t = (sum of the r largest p - 1) / r, r the largest count whose smallest member
    exceeds its t. Float64 inside. A row with NaN or infinity gives a meaningless row: check before.
    """
    P = _rows(P)
    Z = np.empty_like(P)
    _project_rows(P, Z)
    return Z


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz"})
def _direction(H, w, Q, S, s, j, d):
    """d[:s] = -H Q[S, j] - w: the move of the support per unit of z_j that keeps its gradients equal."""
    row = Q[j]
    for a in range(s):
        d[a] = -w[a]
    for b in range(s):
        q = row[S[b]]
        h = H[b]
        for a in range(s):
            d[a] -= q * h[a]


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz"})
def _combine(Q, S, s, d, y):
    """y += sum over a of d[a] Q[S[a]]."""
    ld = y.shape[0]
    a = 0
    while a + 4 <= s:
        d0, d1, d2, d3 = d[a], d[a + 1], d[a + 2], d[a + 3]
        q0, q1, q2, q3 = Q[S[a]], Q[S[a + 1]], Q[S[a + 2]], Q[S[a + 3]]
        for k in range(ld):
            y[k] += (d0 * q0[k] + d1 * q1[k]) + (d2 * q2[k] + d3 * q3[k])
        a += 4
    while a < s:
        d0 = d[a]
        q0 = Q[S[a]]
        for k in range(ld):
            y[k] += d0 * q0[k]
        a += 1


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz"})
def _add(H, w, S, s, j, d, curvature, slope):
    """Border H and w with index j: H += [d; 1][d; 1]' / curvature, w -= [d; 1] slope / curvature."""
    d[s] = 1.0
    w[s] = 0.0
    S[s] = j
    for b in range(s + 1):
        H[b, s] = 0.0
        H[s, b] = 0.0
    for b in range(s + 1):
        x = d[b] / curvature
        w[b] -= x * slope
        h = H[b]
        for a in range(s + 1):
            h[a] += x * d[a]


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz"})
def _drop(H, w, S, z, s, p):
    """Take position p out of H and w: H -= h h' / h_p, w -= h w_p / h_p; the last position moves to p."""
    last = s - 1
    S[p] = S[last]
    z[p] = z[last]
    if p != last:
        for b in range(s):
            H[b, p], H[b, last] = H[b, last], H[b, p]
        for a in range(s):
            H[p, a], H[last, a] = H[last, a], H[p, a]
        w[p], w[last] = w[last], w[p]
    g = H[last]
    if last == 1:
        H[0, 0] = 0.0
        w[0] = 1.0
        return
    for b in range(last):
        x = g[b] / g[last]
        w[b] -= x * w[last]
        h = H[b]
        for a in range(last):
            h[a] -= x * g[a]


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz"})
def _gradient(Q, f, S, s, z, g):
    """g = Q z + f."""
    for k in range(g.shape[0]):
        g[k] = f[k]
    _combine(Q, S, s, z, g)


@njit(nogil=True, cache=True, error_model="numpy")
def _block(z, d, s, limit):
    """The largest step up to limit that keeps z + step d >= 0, and the position that stops it (or -1)."""
    p = -1
    step = limit
    for a in range(s):
        if d[a] < 0.0 and z[a] < -step * d[a]:
            step = z[a] / -d[a]
            p = a
    return step, p


@njit(nogil=True, cache=True, error_model="numpy")
def _lowest(g):
    j = 0
    for k in range(1, g.shape[0]):
        if g[k] < g[j]:
            j = k
    return j


@njit(nogil=True, cache=True, error_model="numpy")
def _polish(H, w, S, s, z, g, Q, f, d, tolerance):
    """Newton steps inside the support until its gradients agree; returns the support size."""
    for _ in range(8 + 2 * s):
        total = 0.0
        for a in range(s):
            total += z[a]
        for a in range(s):
            z[a] /= total
        _gradient(Q, f, S, s, z, g)
        low = g[S[0]]
        high = low
        for a in range(1, s):
            low = min(low, g[S[a]])
            high = max(high, g[S[a]])
        if high - low <= tolerance:
            break
        for a in range(s):
            d[a] = 0.0
            for b in range(s):
                d[a] -= H[b, a] * (g[S[b]] - low)
        step, p = _block(z, d, s, 1.0)
        for a in range(s):
            z[a] = max(z[a] + step * d[a], 0.0)
        if p >= 0:
            _drop(H, w, S, z, s, p)
            s -= 1
    return s


@njit(nogil=True, cache=True, error_model="numpy")
def _solve_row(Q, f, big, H, w, S, z, g, y, d):
    """Fill S, z with the support of the minimiser and its weights; returns the support size."""
    m = H.shape[0]
    best = 0
    top = 0.0
    for j in range(m):
        top = max(top, abs(f[j]))
        if 0.5 * Q[j, j] + f[j] < 0.5 * Q[best, best] + f[best]:
            best = j
    tolerance = _TOLERANCE * (big + top)
    s = 1
    S[0], z[0], w[0], H[0, 0] = best, 1.0, 1.0, 0.0
    omega = 0.0
    _gradient(Q, f, S, s, z, g)
    fresh = True
    for _ in range(20 + 10 * m):
        j = _lowest(g)
        if g[S[0]] - g[j] <= tolerance:
            if fresh:
                break
            s = _polish(H, w, S, s, z, g, Q, f, d, tolerance)
            fresh = True
            continue
        fresh = False
        gain = 0.0
        while True:
            _direction(H, w, Q, S, s, j, d)
            for k in range(y.shape[0]):
                y[k] = Q[j, k]
            _combine(Q, S, s, d, y)
            curvature = y[j]
            for a in range(s):
                curvature += d[a] * y[S[a]]
            full = curvature > _FLAT * big
            limit = (g[S[0]] - g[j]) / curvature if full else np.inf
            step, p = _block(z, d, s, limit)
            for a in range(s):
                z[a] = max(z[a] + step * d[a], 0.0)
            gain += step
            for k in range(y.shape[0]):
                g[k] += step * y[k]
            if p < 0:
                break
            if s == 1:
                s = 0
                break
            _drop(H, w, S, z, s, p)
            s -= 1
        if s == 0:
            S[0], z[0], w[0], H[0, 0] = j, 1.0, 1.0, 0.0
        else:
            slope = 0.0  # of the quadratic at w along [d; 1]
            for a in range(s):
                slope += w[a] * y[S[a]]
            _add(H, w, S, s, j, d, curvature, slope)
            z[s] = gain
        s += 1
    return s


@njit(nogil=True, cache=True, error_model="numpy")
def _qp_rows(Q, F, Z):
    n, m = F.shape
    ld = (m + 7) // 8 * 8
    Qp = np.zeros((m, ld))
    Qp[:, :m] = Q
    big = np.abs(Q).max()
    f = np.full(ld, np.inf)
    H = np.zeros((m, ld))
    w, z, g, y, d = np.zeros(ld), np.zeros(ld), np.zeros(ld), np.zeros(ld), np.zeros(ld)
    S = np.zeros(ld, np.int64)
    for i in range(n):
        for j in range(m):
            f[j] = F[i, j]
            Z[i, j] = 0.0
        s = _solve_row(Qp, f, big, H, w, S, z, g, y, d)
        for a in range(s):
            Z[i, S[a]] = z[a]


def simplex_qp(Q, F, start=None):
    """Z (n, m): for each row f of F the minimiser of 1/2 z'Qz + f'z on the simplex, in F's dtype.

    Q (m, m) is symmetric positive semi-definite. Primal active set method, exact to rounding.
    """
    F = _rows(F)
    Q = np.ascontiguousarray(Q, dtype=np.float64)
    if Q.shape != (F.shape[1], F.shape[1]):
        raise ValueError(f"Q has shape {Q.shape}, F has shape {F.shape}: Q must be (m, m) for F (n, m)")
    Z = np.empty_like(F)
    if F.size:
        _qp_rows(Q, F, Z)
    return Z


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
        simplex_qp(np.eye(2), P)
        simplex_qp(np.eye(2), P, start=P)


def _rows(P):
    P = np.ascontiguousarray(P)
    if P.dtype not in (np.float32, np.float64):
        P = P.astype(np.float64)
    if P.ndim != 2 or P.shape[1] == 0:
        raise ValueError(f"expected rows of at least one column, got shape {P.shape}")
    return P
