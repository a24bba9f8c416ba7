"""The simplex QP with a shared matrix, a row after the other: the compiled active set method behind `simplex_qp`.

Points and directions p on the support are kept with their images, as one row (Q p, p): Q p by index in the first w
columns, p by position in the support S after them.  With s indices in S, the s - 1 rows of R are directions of sum
zero, conjugate to each other (p' Q p~ = 0), c their curvatures p' Q p; the row X = (g, z) is the point with its
gradient g = Q z + f.  Adding to a row its multiples of the directions then does all the work: it makes the direction
of a new index out of Q_j - Q_b, and the Newton step inside the support out of the gradient.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

_TOLERANCE = 1e-13  # of the gradient, relative to max |Q| + max |f|
_FLAT = 2e-14  # curvature counted as zero, relative to max |Q|
_INDEPENDENT = 1e-11  # curvature that each index adds to a Q that needs no ridge, relative to max |Q|
_RIDGE = 1e-12  # on the diagonal of one that does, relative to max |Q|
_EARLY = 5  # support at which all indices are tried, if half of them still have too low a gradient
_FEW = 10  # they are taken if at most m / 10 weights are negative without the sign constraint

# In one file, so that numba's cache sees a change of any.
_OPTIONS = {"nogil": True, "cache": True, "error_model": "numpy", "fastmath": {"contract", "reassoc", "nsz"}}
_kernel = njit(**_OPTIONS)
_part = njit(**_OPTIONS, no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=True)
_inlined = njit(**_OPTIONS, inline="always")  # as a call each would pass all arrays on, at the cost of its work


class Work(NamedTuple):
    """What the QP of one Q works on: Q (m, w), and room for one row of F after the other."""

    Q: np.ndarray
    half: np.ndarray  # diagonal of Q / 2
    f: np.ndarray
    R: np.ndarray
    c: np.ndarray
    S: np.ndarray
    X: np.ndarray
    u: np.ndarray  # a row under work
    x: np.ndarray  # coefficients; from w on, gradients of the support
    order: np.ndarray  # 0, 1, 2, ...
    big: float  # max |Q|
    ridge: float
    regular: bool  # Q is safely invertible on sum z = 0; then:
    R_all: np.ndarray  # R and c of all indices, in order
    c_all: np.ndarray
    H: np.ndarray  # v - H f minimises over sum z = 1
    v: np.ndarray


@_part
def _combine(out, x, M, rows, s, n):
    """out[:n] += sum over a < s of x[a] M[rows[a], :n]; four at a time, since out is loaded and stored each time."""
    for a in range(0, s, 4):
        b, c, d = min(a + 1, s - 1), min(a + 2, s - 1), min(a + 3, s - 1)
        A, B, C, D = M[rows[a]], M[rows[b]], M[rows[c]], M[rows[d]]
        x_a = x[a]
        x_b = x[b] if b > a else 0.0
        x_c = x[c] if c > b else 0.0
        x_d = x[d] if d > c else 0.0
        for k in range(n):
            out[k] += (x_a * A[k] + x_b * B[k]) + (x_c * C[k] + x_d * D[k])


@_part
def _lowest(g, m):
    """The first index of the least of g[:m], told apart to 1e-13 of its size.

    Compilers vectorise a minimum of integers, not one of floats: each float becomes an integer of the same order
    whose lowest bits give way to its index.
    """
    bits = 1
    while bits < m:
        bits *= 2
    keys = g.view(np.int64)
    low = np.int64(2**63 - 1)
    for j in range(m):
        key = keys[j] ^ ((keys[j] >> 63) & np.int64(2**63 - 1))
        low = min(low, (key & -bits) | j)
    return low & (bits - 1)


@_part
def _append(Q, R, c, S, x, order, s, j):
    """Index j at position s, R[s - 1]: the direction that raises z_j by 1 and keeps the gradients of S equal."""
    w = Q.shape[1]
    b = S[0]
    row = R[s - 1]
    for k in range(w):
        row[k] = Q[j, k] - Q[b, k]
    for a in range(w, w + s):
        row[a] = 0.0
    row[w] = -1.0
    for i in range(s - 1):
        x[i] = (R[i, b] - R[i, j]) / c[i]
        R[i, w + s] = 0.0
    _combine(row, x, R, order, s - 1, w + s)
    row[w + s] = 1.0
    c[s - 1] = max(row[j] - row[b], 0.0)
    S[s] = j


@_part
def _drop(R, c, S, X, u, w, s, p):
    """The index at position p out, the last one moves there; the new size.

    Each pair of directions is turned, in turn, so that one of it has no share of p and the other, u, meets the
    next; the last u is gone. No curvature falls by it.
    """
    last, p = w + s - 1, w + p
    first = 0
    while first < s - 2 and R[first, p] == 0.0:
        first += 1
    scale = 1.0 / R[first, p]
    curvature = c[first] * scale * scale
    for k in range(last + 1):
        u[k] = R[first, k] * scale
    for i in range(first + 1, s - 1):
        row, out = R[i], R[i - 1]
        share = row[p]
        c[i - 1] = c[i] + share * share * curvature
        keep, mix = c[i] / c[i - 1], share * curvature / c[i - 1]
        for k in range(last + 1):
            old, new = u[k], row[k]
            u[k] = keep * old + mix * new
            out[k] = new - share * old
        curvature *= keep
    for i in range(s - 2):
        R[i, p] = R[i, last]
    X[p] = X[last]
    S[p - w] = S[s - 1]
    return s - 1


@_part
def _conjugate(R, c, S, row, x, order, w, s):
    """row += the multiples of the directions that make it conjugate to all of them."""
    for a in range(s):
        x[w + a] = row[S[a]]
    for i in range(s - 1):
        total = 0.0
        for a in range(w, w + s):
            total += R[i, a] * x[a]
        x[i] = -total / c[i]
    _combine(row, x, R, order, s - 1, w + s)


@_inlined
def _reach(z, d, s, limit):
    """(step, p): the largest step up to limit that keeps z + step d >= 0, the position p that stops it or -1."""
    p = -1
    step = limit
    for a in range(s):
        if d[a] < 0.0 and z[a] < -step * d[a]:
            step = z[a] / -d[a]
            p = a
    return step, p


@_inlined
def _enter(k, s, j):
    """Raise z_j to its optimum given the support, dropping what reaches zero; the new size."""
    w = k.Q.shape[1]
    _append(k.Q, k.R, k.c, k.S, k.x, k.order, s, j)
    k.X[w + s] = 0.0
    s += 1
    p = 0
    while s > 1 and p >= 0:
        row, curvature = k.R[s - 2], k.c[s - 2]
        limit = (k.X[k.S[0]] - k.X[j]) / curvature if curvature > _FLAT * k.big else np.inf
        step, p = _reach(k.X[w:], row[w:], s, limit)
        for a in range(w + s):
            k.X[a] += step * row[a]
        if p >= 0:
            s = _drop(k.R, k.c, k.S, k.X, k.u, w, s, p)
    return s


@_kernel
def _build(Q, R, c, S, X, x, order, s, flat):
    """The directions of the support from nothing; the new size: an index without curvature is left out."""
    w = Q.shape[1]
    size = 1
    for a in range(1, s):
        X[w + size] = X[w + a]
        _append(Q, R, c, S, x, order, size, S[a])
        size += c[size - 1] > flat
    return size


@_inlined
def _refresh(k, s):
    """max g - min g over the support, once z is normalised and g = Q z + f computed from it, without the ridge."""
    w = k.Q.shape[1]
    z = k.X[w:]
    total = 0.0
    for a in range(s):
        z[a] = max(z[a], 0.0)
        total += z[a]
    sound = 0.0 < total < np.inf
    for a in range(s):
        z[a] = z[a] / total if sound else 1.0 / s
    for j in range(w):
        k.X[j] = k.f[j]
    _combine(k.X, z, k.Q, k.S, s, w)
    low, high = np.inf, -np.inf
    for a in range(s):
        k.X[k.S[a]] -= k.ridge * z[a]
        low = min(low, k.X[k.S[a]])
        high = max(high, k.X[k.S[a]])
    return high - low


@_inlined
def _polish(k, s, tolerance):
    """Newton steps inside the support until its gradients agree; the new size.

    With a ridge this is a proximal point method: it slows the steps down, and does not move the minimiser.
    """
    w = k.Q.shape[1]
    for step in range(16 + 8 * s):
        if _refresh(k, s) <= tolerance:
            break
        if step % 8 == 4:
            s = _build(k.Q, k.R, k.c, k.S, k.X, k.x, k.order, s, _FLAT * k.big)
        for j in range(w):
            k.u[j] = k.X[j]
            k.u[w + j] = 0.0
        _conjugate(k.R, k.c, k.S, k.u, k.x, k.order, w, s)
        reached, p = _reach(k.X[w:], k.u[w:], s, 1.0)
        for a in range(w, w + s):
            k.X[a] += reached * k.u[a]
        if p >= 0:
            s = _drop(k.R, k.c, k.S, k.X, k.u, w, s, p)
    return s


@_part
def _vertex(Q, f, S, X, s):
    """X at the first of the support's s vertices."""
    w = Q.shape[1]
    for j in range(w):
        X[j] = Q[S[0], j] + f[j]
    for a in range(s):
        X[w + a] = 0.0
    X[w] = 1.0


@_part
def _settle(Q, f, R, c, S, X, u, x, order, s):
    """X at the minimiser on the support, which is thinned until that is positive; the new size."""
    w = Q.shape[1]
    before = 0
    while s != before:
        before = s
        _vertex(Q, f, S, X, s)
        _conjugate(R, c, S, X, x, order, w, s)
        for a in range(s - 1, -1, -1):
            if s > 1 and not X[w + a] > 0.0:
                s = _drop(R, c, S, X, u, w, s, a)
    return s


@_inlined
def _try_all(k, s):
    """The support of all indices, thinned, if few are negative in the minimiser over sum z = 1; else as it was.

    It is looked at where half of all gradients are below that of the support.
    """
    m, w = k.Q.shape[0], k.Q.shape[1]
    below = 0
    for j in range(m):
        below += k.X[j] < k.X[k.S[0]]
    if 2 * below < m:
        return s
    for j in range(m):
        k.x[j] = -k.f[j]
        k.u[j] = k.v[j]
    _combine(k.u, k.x, k.H, k.order, m, m)
    negative = 0
    for j in range(m):
        negative += k.u[j] < 0.0
    if _FEW * negative > m:
        return s
    for i in range(m):
        k.S[i] = i
        k.c[i] = k.c_all[i]
        for a in range(w + m):
            k.R[i, a] = k.R_all[i, a]
    return _settle(k.Q, k.f, k.R, k.c, k.S, k.X, k.u, k.x, k.order, m)


@_inlined
def _begin(k, given):
    """The support at the start, its size: the given one, else the best vertex, min Q_jj / 2 + f_j."""
    m = k.Q.shape[0]
    s = 0
    for j in range(given.size):
        if given[j]:
            k.S[s] = j
            s += 1
    if s == 0:
        for j in range(m):
            k.u[j] = k.half[j] + k.f[j]
        k.S[0] = _lowest(k.u, m)
        _vertex(k.Q, k.f, k.S, k.X, 1)
        return 1
    s = _build(k.Q, k.R, k.c, k.S, k.X, k.x, k.order, s, _FLAT * k.big)
    return _settle(k.Q, k.f, k.R, k.c, k.S, k.X, k.u, k.x, k.order, s)


@_inlined
def _solve(k, given, tolerance):
    """The size of the support: the index of least gradient enters until none is below the polished support."""
    m = k.Q.shape[0]
    s = _begin(k, given)
    untried = k.regular
    polished = False
    for _ in range(40 + 3 * m):
        j = _lowest(k.X, m)
        level = np.inf
        for a in range(s):
            level = min(level, k.X[k.S[a]])
        if level - k.X[j] > tolerance:
            s = _enter(k, s, j)
            polished = False
            if untried and s >= _EARLY:
                untried = False
                s = _try_all(k, s)
        elif polished:
            break
        else:
            s = _polish(k, s, tolerance)
            polished = True
    return s


@_kernel
def qp_rows(F, start, Z, k, shift, scale):
    """Z: the minimiser for each row of F + shift; start (n, m or 0): the supports to start from."""
    n, m = F.shape
    w = k.Q.shape[1]
    for i in range(n):
        top, total = 0.0, 0.0
        for j in range(m):
            f = F[i, j]
            k.f[j] = f + shift[j]
            f = abs(f)
            top = max(top, f)
            total += f
            Z[i, j] = 0.0
        if not total < np.inf:
            for j in range(m):
                Z[i, j] = np.nan
            continue
        s = _solve(k, start[i], _TOLERANCE * (scale + top))
        for a in range(s):
            Z[i, k.S[a]] = k.X[w + a]


def prepare(Q):
    """The Work of a centred Q (m, m). An index without curvature of its own: a ridge, and all indices are not tried."""
    m = len(Q)
    w = -(-m // 8) * 8
    big = np.abs(Q).max()
    padded = np.zeros((m, w))
    padded[:, :m] = Q
    order = np.arange(m + 1)
    R, c, H, v = np.zeros((m + 1, 2 * w + 8)), np.zeros(m + 1), np.zeros((m, m)), np.zeros(m)
    S, X, u, x = order.copy(), np.zeros(2 * w + 8), np.zeros(2 * w + 8), np.zeros(2 * w + 8)
    regular = _build(padded, R, c, S, X, x, order, m, _INDEPENDENT * big) == m and big > 0
    if regular:
        P = R[: m - 1, w : w + m]
        H[:] = (P.T / c[: m - 1]) @ P
        v[:] = -H @ Q[:, 0]
        v[0] += 1.0
    ridge = 0.0 if regular else _RIDGE * big
    padded[order[:m], order[:m]] += ridge
    return Work(
        Q=padded,
        half=np.diag(Q) / 2,
        f=np.zeros(w),
        R=np.zeros_like(R),
        c=np.zeros_like(c),
        S=S,
        X=X,
        u=u,
        x=x,
        order=order,
        big=big,
        ridge=ridge,
        regular=regular,
        R_all=R,
        c_all=c,
        H=H,
        v=v,
    )
