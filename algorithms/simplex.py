"""The two row-wise problems on the simplex {z >= 0, sum z = 1}: projection, and a QP with a shared matrix.

A row's result depends on that row, its start and Q alone, bit for bit, however rows are cut into blocks.
"""

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

_TOLERANCE = 1e-13  # of the gradient, relative to max |Q| + max |f|
_FLAT = 2e-14  # curvature counted as zero, relative to the largest entry of the matrix
_INDEPENDENT = 1e-11  # curvature an index should add to the support, relative to max |Q|
_RIDGE = 1e-12  # on the diagonal, relative to max |Q|, once one does not
_WEARING = 1e-5  # curvature whose inverse leaves errors behind when it is taken out, relative to max |Q|
_SMALL = 1e-3  # curvature, relative to the largest entry, from which a move may need refining
_EVEN = 1e-4  # unevenness of gradients that a move may leave, relative to its curvature
_DENSE = 12  # support from which the complement may be the cheaper side
_DENSE_FROM = 24  # m from which it is tried
_LOPSIDED = 3  # it is tried while fewer than m / 3 weights are negative without the sign constraint
_CLIPPED = 1e-15  # negative weights that close to zero are zero

_OPTIONS = {"nogil": True, "cache": True, "error_model": "numpy"}
_INTERNAL = {**_OPTIONS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_ONCE = {**_INTERNAL, "inline": "always"}  # called at one place: compiling it by itself would double the time
_INLINE = {**_INTERNAL, "forceinline": True}  # in the innermost path a call costs as much as its work
_F64, _I32, _I64 = ir.DoubleType(), ir.IntType(32), ir.IntType(64)
_LANES, _INDICES = ir.VectorType(_F64, 8), ir.VectorType(_I64, 8)


@njit(fastmath={"contract", "reassoc", "nsz"}, **_OPTIONS)
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


# Eight lanes at a time. Numba's own loops run scalar at the lengths met here (a support of 3 to 15).
# W (float64) holds every matrix and vector of a call as rows of one array, N (int64) the index lists: an array
# argument of a compiled function is nine scalars, a row number is one. Vectors come first, then the matrices Q, H,
# A and G. Columns beyond m are zero, and infinite in f and in the gradients g and e so that none is chosen; lists
# and states are kept zero from their size to the next multiple of 8.

_f, _half, _w, _z, _x, _d, _y, _g, _v, _u, _none, _e, _full, _left, _shift = range(15)
_MATRICES = 15
_S, _D, _ORDER = range(3)


def _row(context, builder, sig, args, i, row):
    """Address of a row of the array argument i."""
    array = context.make_array(sig.args[i])(context, builder, args[i])
    return builder.gep(array.data, [builder.mul(row, builder.extract_value(array.shape, 1))])


def _load(builder, p, k, group=0):
    p = builder.gep(p, [builder.add(k, _I64(8 * group))])
    return builder.load(builder.bitcast(p, _LANES.as_pointer()), align=8)


def _store(builder, value, p, k, group=0):
    p = builder.gep(p, [builder.add(k, _I64(8 * group))])
    builder.store(value, builder.bitcast(p, _LANES.as_pointer()), align=8)


def _splat(builder, x, kind=_LANES):
    v = builder.insert_element(ir.Constant(kind, ir.Undefined), x, _I32(0))
    return builder.shuffle_vector(v, v, ir.Constant(ir.VectorType(_I32, 8), [0] * 8))


def _fma(builder, c, v, total):
    return builder.fadd(total, builder.fmul(c, v, flags=("contract",)), flags=("contract",))


def _reduce(builder, v, element, name):
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(element, [v.type]), name)
    return builder.call(function, [v])


def _combination_of(groups):
    """The intrinsic behind `_combine` for the columns k to k + 8 groups, their sums in registers."""

    @intrinsic
    def combine(typing, W, N, out, base, M, rows, x, s, k):
        def generate(context, builder, sig, args):
            s, k = args[7:]
            out, base, x = (_row(context, builder, sig, args, 0, args[i]) for i in (2, 3, 6))
            rows = _row(context, builder, sig, args, 1, args[5])
            sums = [cgutils.alloca_once(builder, _LANES) for _ in range(groups)]
            for u, total in enumerate(sums):
                builder.store(_load(builder, base, k, u), total)
            with cgutils.for_range(builder, s) as loop:
                row = builder.add(args[4], builder.load(builder.gep(rows, [loop.index])))
                row = _row(context, builder, sig, args, 0, row)
                c = _splat(builder, builder.load(builder.gep(x, [loop.index])))
                for u, total in enumerate(sums):
                    builder.store(_fma(builder, c, _load(builder, row, k, u), builder.load(total)), total)
            for u, total in enumerate(sums):
                _store(builder, builder.load(total), out, k, u)
            return context.get_dummy_value()

        return types.void(W, N, out, base, M, rows, x, s, k), generate

    return combine


_combine1, _combine2, _combine4 = map(_combination_of, (1, 2, 4))


@njit(**_INLINE)
def _combine(W, N, out, base, M, rows, x, s, width):
    """W[out, :width] = W[base, :width] + sum over a < s of W[x, a] W[M + N[rows, a], :width]."""
    k = 0
    while k + 32 <= width:
        _combine4(W, N, out, base, M, rows, x, s, k)
        k += 32
    if k + 16 <= width:
        _combine2(W, N, out, base, M, rows, x, s, k)
        k += 16
    if k < width:
        _combine1(W, N, out, base, M, rows, x, s, k)


@intrinsic
def _axpy(typing, W, out, c, x, width):
    """W[out, :width] += c W[x, :width]."""

    def generate(context, builder, sig, args):
        out, x = (_row(context, builder, sig, args, 0, args[i]) for i in (1, 3))
        c = _splat(builder, args[2])
        with cgutils.for_range_slice(builder, _I64(0), args[4], _I64(8), inc=True) as (k, _):
            _store(builder, _fma(builder, c, _load(builder, x, k), _load(builder, out, k)), out, k)
        return context.get_dummy_value()

    return types.void(W, out, c, x, width), generate


@intrinsic
def _lowest(typing, W, g):
    """The first index of the least of W[g]; NaN is passed over."""

    def generate(context, builder, sig, args):
        array = context.make_array(sig.args[0])(context, builder, args[0])
        g = _row(context, builder, sig, args, 0, args[1])
        low, where = cgutils.alloca_once(builder, _LANES), cgutils.alloca_once(builder, _INDICES)
        builder.store(_load(builder, g, _I64(0)), low)
        builder.store(ir.Constant(_INDICES, [0] * 8), where)
        width = builder.extract_value(array.shape, 1)
        with cgutils.for_range_slice(builder, _I64(8), width, _I64(8), inc=True) as (k, _):
            v, best = _load(builder, g, k), builder.load(low)
            less = builder.fcmp_ordered("<", v, best)
            builder.store(builder.select(less, v, best), low)
            builder.store(builder.select(less, _splat(builder, k, _INDICES), builder.load(where)), where)
        best = builder.load(low)
        value = _reduce(builder, best, _F64, "llvm.vector.reduce.fmin.v8f64")
        hit = builder.fcmp_ordered("==", best, _splat(builder, value))
        index = builder.add(builder.load(where), ir.Constant(_INDICES, list(range(8))))
        index = builder.select(hit, index, ir.Constant(_INDICES, [2**62] * 8))
        return _reduce(builder, index, _I64, "llvm.vector.reduce.smin.v8i64")

    return types.int64(W, g), generate


# The state of a support S: w minimises 1/2 z'Qz over sum z = 1 on S, H is the inverse of Q_SS on sum z = 0, so
# that w - H f is the minimiser of the QP on S alone. With w = 0 the sum is free and H = Q_SS^(-1).


@njit(**_INTERNAL)
def _up(s):
    return (s + 7) // 8 * 8


@njit(**_INTERNAL)
def _single(W, N, H, j):
    """The state of the vertex j."""
    for a in range(8):
        W[H, a] = 0.0
        W[_w, a] = 0.0
        W[_z, a] = 0.0
        N[_S, a] = 0
    N[_S, 0] = j
    W[_w, 0] = 1.0
    W[_z, 0] = 1.0


@njit(fastmath={"contract", "reassoc", "nsz"}, **_INLINE)
def _slopes(W, N, w, S, n, j):
    """[d; 1]'y and w'y."""
    curvature = W[_y, j]
    slope = 0.0
    for a in range(n):
        y = W[_y, N[S, a]]
        curvature += W[_d, a] * y
        slope += W[w, a] * y
    return curvature, slope


@njit(fastmath={"contract", "reassoc", "nsz"}, **_INLINE)
def _probe(W, N, Q, H, w, S, s, j, big):
    """(curvature, slope) of index j: d = -H Q[S, j] - w is the move of S per unit of z_j that keeps the
    gradients of S equal, y = Q [d; 1], curvature = [d; 1]'y and slope = w'y.

    H will grow by d / curvature: where that is large, d is refined until y is even on S to match.
    """
    n = _up(s)
    for a in range(n):
        W[_x, a] = -W[Q + j, N[S, a]]
        W[_d, a] = -W[w, a]
    _combine(W, N, _d, _d, H, _ORDER, _x, s, n)
    _combine(W, N, _y, Q + j, Q, S, _d, s, W.shape[1])
    curvature, slope = _slopes(W, N, w, S, n, j)
    if curvature < _SMALL * big:
        for _ in range(3):
            off = 0.0
            for a in range(s):
                W[_x, a] = slope - W[_y, N[S, a]]
                off = max(off, abs(W[_x, a]))
            if off <= _EVEN * curvature:
                break
            _combine(W, N, _d, _d, H, _ORDER, _x, s, n)
            _combine(W, N, _y, Q + j, Q, S, _d, s, W.shape[1])
            curvature, slope = _slopes(W, N, w, S, n, j)
    return curvature, slope


@njit(**_INLINE)
def _add(W, N, H, w, S, z, s, j, curvature, slope):
    """Put j at position s: H += [d; 1][d; 1]' / curvature, w -= [d; 1] slope / curvature."""
    n = _up(s + 1)
    if s % 8 == 0:
        for b in range(s):
            for a in range(s, n):
                W[H + b, a] = 0.0
        for a in range(s, n):
            W[w, a] = 0.0
            W[_d, a] = 0.0
            W[z, a] = 0.0
            N[S, a] = 0
    for a in range(n):
        W[H + s, a] = 0.0
    W[_d, s] = 1.0
    N[S, s] = j
    c = 1.0 / curvature
    for b in range(s + 1):
        _axpy(W, H + b, W[_d, b] * c, _d, n)
    _axpy(W, w, -slope * c, _d, n)


@njit(**_INTERNAL)
def _drop(W, N, H, w, S, z, s, p):
    """Take position p out, h its column of H: H -= h h' / h_p, w -= h w_p / h_p. The last position moves to p."""
    last = s - 1
    n = _up(s)
    for a in range(n):
        W[_x, a] = W[H + p, a]
        W[H + p, a] = W[H + last, a]
    pivot, weight = W[_x, p], W[w, p]
    N[S, p], W[z, p], W[w, p], W[_x, p] = N[S, last], W[z, last], W[w, last], W[_x, last]
    N[S, last], W[z, last], W[w, last], W[_x, last] = 0, 0.0, 0.0, 0.0
    for b in range(last):
        W[H + b, p] = W[H + b, last]
        W[H + b, last] = 0.0
    c = -1.0 / pivot
    for b in range(last):
        _axpy(W, H + b, W[_x, b] * c, _x, n)
    _axpy(W, w, weight * c, _x, n)


@njit(**_INTERNAL)
def _leave(W, N, H, s, p):
    """Take position p >= 0 out of the simplex support, a single one left exactly; the new size."""
    if s == 2:
        rest = W[_z, 1 - p]
        _single(W, N, H, N[_S, 1 - p])
        W[_z, 0] = rest
    else:
        _drop(W, N, H, _w, _S, _z, s, p)
    return s - 1


@njit(**_INLINE)
def _reach(W, z, s, limit):
    """(step, p): the largest step up to limit that keeps z + step d >= 0, the position p that stops it or -1."""
    p = -1
    step = limit
    for a in range(s):
        d = W[_d, a]
        if d < 0.0 and W[z, a] < -step * d:
            step = W[z, a] / -d
            p = a
    return step, p


@njit(**_ONCE)
def _enter(W, N, Q, H, big, s, j):
    """(size, curvature): raise z_j to its optimum given the support, dropping what reaches zero."""
    gain = 0.0
    while True:
        curvature, slope = _probe(W, N, Q, H, _w, _S, s, j, big)
        limit = (W[_g, N[_S, 0]] - W[_g, j]) / curvature if curvature > _FLAT * big else np.inf
        step, p = _reach(W, _z, s, limit)
        _axpy(W, _z, step, _d, _up(s))
        _axpy(W, _g, step, _y, W.shape[1])
        gain += step
        if p < 0:
            _add(W, N, H, _w, _S, _z, s, j, curvature, slope)
            W[_z, s] = gain
            return s + 1, curvature
        if s == 1:
            _single(W, N, H, j)
            return 1, np.inf
        s = _leave(W, N, H, s, p)


@njit(**_ONCE)
def _enter_free(W, N, A, G, flat, k, j):
    """The same for multiplier j of the complement, whose sum is free; -1 if it is unbounded."""
    gain = 0.0
    while True:
        curvature, _ = _probe(W, N, A, G, _none, _D, k, j, flat / _FLAT)
        limit = -W[_e, j] / curvature if curvature > flat else np.inf
        step, p = _reach(W, _u, k, limit)
        if not step < np.inf:
            return -1
        _axpy(W, _u, step, _d, _up(k))
        _axpy(W, _e, step, _y, W.shape[1])
        gain += step
        if p < 0:
            _add(W, N, G, _none, _D, _u, k, j, curvature, 0.0)
            W[_u, k] = gain
            return k + 1
        _drop(W, N, G, _none, _D, _u, k, p)
        k -= 1


@njit(**_INTERNAL)
def _normalise(W, z, s):
    """z clipped at zero and divided by its sum; even weights if nothing is left."""
    total = 0.0
    for a in range(s):
        W[z, a] = max(W[z, a], 0.0)
        total += W[z, a]
    sound = 0.0 < total < np.inf
    for a in range(s):
        W[z, a] = W[z, a] / total if sound else 1.0 / s


@njit(**_INLINE)
def _below(W, N, s, j):
    """How far g_j is below all gradients of the support; not above 0 for a member, whatever rounding did to it."""
    low = W[_g, N[_S, 0]]
    for a in range(1, s):
        g = W[_g, N[_S, a]]
        low = g if g < low else low
    return low - W[_g, j]


@njit(**_INTERNAL)
def _uneven(W, N, s):
    """max g - min g over the support: zero at its minimiser."""
    low = high = W[_g, N[_S, 0]]
    for a in range(1, s):
        g = W[_g, N[_S, a]]
        low = g if g < low else low
        high = g if g > high else high
    return high - low


@njit(**_ONCE)
def _polish(W, N, Q, H, s, worn, big, ridge, tolerance):
    """(size, done): Newton steps inside the support until its gradients agree. g = Q z + f afresh, without the
    ridge that the diagonal of Q may carry: a ridge slows the steps down, it does not move the minimiser.

    Where updates have worn H out, or the steps do not get there soon, it is built again.
    """
    for step in range(16 + 8 * s):
        if step % 8 == (0 if worn else 4):
            s = _rebuild(W, N, Q, H, s, big)
        _normalise(W, _z, s)
        _combine(W, N, _g, _f, Q, _S, _z, s, W.shape[1])
        for a in range(s):
            W[_g, N[_S, a]] -= ridge * W[_z, a]
        if _uneven(W, N, s) <= tolerance:
            return s, True
        level = W[_g, N[_S, 0]]
        for a in range(s):
            W[_x, a] = level - W[_g, N[_S, a]]
        _combine(W, N, _d, _none, H, _ORDER, _x, s, _up(s))
        reached, p = _reach(W, _z, s, 1.0)
        _axpy(W, _z, reached, _d, _up(s))
        if p >= 0:
            s = _leave(W, N, H, s, p)
    return s, False


@njit(**_ONCE)
def _rebuild(W, N, Q, H, s, big):
    """H and w of the same support from nothing, z kept; an index without curvature of its own is left out."""
    for a in range(s):
        W[_full, a] = W[_z, a]
        N[_D, a] = N[_S, a]
    weight = W[_full, 0]
    _single(W, N, H, N[_D, 0])
    W[_z, 0] = weight
    size = 1
    for a in range(1, s):
        curvature, slope = _probe(W, N, Q, H, _w, _S, size, N[_D, a], big)
        if curvature > _FLAT * big:
            weight = W[_full, a]
            _add(W, N, H, _w, _S, _z, size, N[_D, a], curvature, slope)
            W[_z, size] = weight
            size += 1
    return size


@njit(**_ONCE)
def _from_start(W, N, Q, H, big, start, i):
    """(size, worn): the state of the support of row i of start, thinned until its own minimiser z is positive.

    worn: indices were taken out of an ill-conditioned H, which leaves its errors in the rest.
    """
    s = 0
    least = big
    for j in range(start.shape[1]):
        if not start[i, j]:
            continue
        if s == 0:
            _single(W, N, H, j)
            s = 1
            continue
        curvature, slope = _probe(W, N, Q, H, _w, _S, s, j, big)
        if curvature > _INDEPENDENT * big:
            _add(W, N, H, _w, _S, _z, s, j, curvature, slope)
            s += 1
            least = min(least, curvature)
    built = s
    before = 0
    while s > 1 and s != before:
        for a in range(s):
            W[_x, a] = -W[_f, N[_S, a]]
        _combine(W, N, _z, _w, H, _ORDER, _x, s, _up(s))
        before = s
        a = 0
        while a < s and s > 1:
            if W[_z, a] > 0.0:
                a += 1
            else:
                s = _leave(W, N, H, s, a)
    return s, s < built and least < _WEARING * big


@njit(**_ONCE)
def _whole(W, N, Q, A, m, big):
    """Whether all of Q is safely invertible on sum z = 0; then A and v are the state of all indices."""
    for a in range(8):
        W[A, a] = 0.0
        W[_v, a] = 0.0
        N[_D, a] = 0
    W[_v, 0] = 1.0
    for j in range(1, m):
        curvature, slope = _probe(W, N, Q, A, _v, _D, j, j, big)
        if not curvature > _INDEPENDENT * big:
            return False
        _add(W, N, A, _v, _D, _u, j, j, curvature, slope)
    return True


@njit(**_ONCE)
def _spread(W, m):
    """max left where full > 0, minus min left: zero at the minimiser, left being its gradient."""
    low, high = np.inf, -np.inf
    for j in range(m):
        g = W[_left, j]
        low = g if g < low else low
        if W[_full, j] > 0.0:
            high = g if g > high else high
    return high - low


@njit(**_ONCE)
def _by_complement(W, N, Q, A, G, m, flat, tolerance):
    """Whether full now is the minimiser, found from the indices D that are zero in it.

    With A, v the state of all indices and e = v - A f, the multipliers u of z >= 0 solve min 1/2 u'Au + e'u over
    u >= 0, and z = e + A u. Gives up when D is not the small side or rounding does not allow the tolerance.
    """
    width = W.shape[1]
    below = 0
    for a in range(m):
        W[_x, a] = -W[_f, a]
    _combine(W, N, _e, _v, A, _ORDER, _x, m, width)
    for a in range(m):
        below += W[_e, a] < 0.0
    if _LOPSIDED * below > m:
        return False
    for a in range(m, width):
        W[_e, a] = np.inf
    k = 0
    for _ in range(m):
        j = _lowest(W, _e)
        if j >= m or not W[_e, j] < -_CLIPPED:
            break
        if k > m // 2:
            return False
        k = _enter_free(W, N, A, G, flat, k, j)
        if k < 0:
            return False
    for a in range(m):
        W[_full, a] = W[_e, a]
    for _ in range(4):
        for b in range(k):
            W[_full, N[_D, b]] = 0.0
        _normalise(W, _full, m)
        _combine(W, N, _left, _f, Q, _ORDER, _full, m, width)
        if _spread(W, m) <= tolerance:
            return True
        _step_outside(W, N, A, G, m, k)
    return False


@njit(**_ONCE)
def _step_outside(W, N, A, G, m, k):
    """One Newton step of full on the indices outside D: its inverse is A - A_D G A_D'."""
    low = W[_left, min(_lowest(W, _left), m - 1)]
    for a in range(m):
        W[_x, a] = low - W[_left, a] if W[_full, a] > 0.0 else 0.0
    _combine(W, N, _full, _full, A, _ORDER, _x, m, W.shape[1])
    for b in range(k):
        W[_x, b] = -W[_full, N[_D, b]]
    _combine(W, N, _d, _none, G, _ORDER, _x, k, _up(k))
    _combine(W, N, _full, _full, A, _D, _d, k, W.shape[1])


@njit(**_INTERNAL)
def _largest(W, M, m):
    top = 0.0
    for i in range(M, M + m):
        for j in range(m):
            top = max(top, abs(W[i, j]))
    return top


@njit(**_ONCE)
def _vertex(W, N, Q, H, m):
    """The best vertex: min Q_jj / 2 + f_j, the first of equals; its size, 1."""
    for k in range(W.shape[1]):
        W[_g, k] = W[_half, k] + W[_f, k]
    j = min(_lowest(W, _g), m - 1)
    _single(W, N, H, j)
    for k in range(W.shape[1]):
        W[_g, k] = W[Q + j, k] + W[_f, k]
    return 1


@njit(**_INTERNAL)
def _set_ridge(W, Q, m, ridge):
    for a in range(m):
        W[Q + a, a] = 2.0 * W[_half, a] + ridge


@njit(**_ONCE)
def _solve_row(W, N, start, i, m, big, tolerance, memo):
    """The size of the support left in S, z; or 0 if the minimiser was left in full.

    From the best vertex (or the given support) the index of least gradient enters until none is below the
    support. Once the support is not small, the complement is tried. Once it is nearly singular, Q gets a ridge,
    and polishing makes it a proximal point method. memo: what is known of A (0, 1 or -1: nothing, good,
    unusable), the curvature that counts as zero there, and the ridge now on the diagonal of Q.
    """
    Q, H, A, G = _MATRICES, _MATRICES + m, _MATRICES + 2 * m, _MATRICES + 3 * m
    given = 0
    for j in range(start.shape[1]):
        given += start[i, j]
    dense = given >= _DENSE
    untried = m >= _DENSE_FROM
    s = 0
    fresh = False
    worn = False
    even = True
    stalls = 0
    for turn in range(40 + 3 * m):
        if untried and (dense or s >= _DENSE):
            untried = False
            if memo[0] == 0.0:
                memo[0] = 1.0 if _whole(W, N, Q, A, m, big) else -1.0
                memo[1] = _FLAT * _largest(W, A, m)
            if memo[0] > 0.0 and _by_complement(W, N, Q, A, G, m, memo[1], tolerance):
                return 0
        if s == 0:
            fresh = given == 0
            if fresh:
                s = _vertex(W, N, Q, H, m)
            else:
                s, worn = _from_start(W, N, Q, H, big, start, i)
        j = min(_lowest(W, _g), m - 1)
        below = _below(W, N, s, j)
        if not fresh and (given > 0 or worn or below <= tolerance):
            s, even = _polish(W, N, Q, H, s, worn, big, memo[2], tolerance)
            j = min(_lowest(W, _g), m - 1)
            below = _below(W, N, s, j)
            given = 0
            fresh = True
            worn = False
        stuck = fresh and not even
        if (not stuck and not below > tolerance) or (fresh and turn > 20 + 3 * m):
            return s
        if not stuck:
            fresh = False
            s, curvature = _enter(W, N, Q, H, big, s, j)
            worn = (turn + 1) % (8 if memo[2] > 0.0 else 20 + m) == 0
            stuck = curvature < _INDEPENDENT * big
        if (stuck or turn > 20 + m) and memo[2] == 0.0:
            memo[2] = _RIDGE * big
            tolerance *= 10.0
            _set_ridge(W, Q, m, memo[2])
            fresh, worn, untried = False, True, False
        elif fresh:
            fresh, worn = False, True
            stalls += 1
            if stalls > 4:
                break
    _normalise(W, _z, s)
    return s


@njit(**_OPTIONS)
def _qp_rows(F, start, Z, W, N, rounding):
    n, m = F.shape
    big = _largest(W, _MATRICES, m)
    memo = np.zeros(3)
    for i in range(n):
        top = 0.0
        total = 0.0
        for j in range(m):
            f = np.float64(F[i, j])
            W[_f, j] = f + W[_shift, j]
            f = abs(f)
            top = f if f > top else top
            total += f
            Z[i, j] = 0.0
        if not np.isfinite(total):
            for j in range(m):
                Z[i, j] = np.nan
            continue
        s = _solve_row(W, N, start, i, m, big, _TOLERANCE * (rounding + top), memo)
        if memo[2] > 0.0:
            memo[2] = 0.0
            _set_ridge(W, _MATRICES, m, 0.0)
        for a in range(s):
            Z[i, N[_S, a]] = W[_z, a]
        if s == 0:
            for j in range(m):
                Z[i, j] = W[_full, j]


def simplex_qp(Q, F, start=None):
    """Z (n, m): for each row f of F the minimiser of 1/2 z'Qz + f'z on the simplex, in F's dtype.

    Q (m, m) is symmetric positive semi-definite; F is float32 or float64; the work is done in float64. `start`
    (n, m) gives rows whose support is a guess of the answer's: it changes the time, and the result by rounding
    (or to another minimiser, where there are several).

    Primal active set method on the inverse of Q over the support, exact for the f given: gradients agree to
    1e-13 (max |Q| + max |f|), or to 1e-12 of it where the support is singular to 1e-11: there, steps are
    taken with 1e-12 max |Q| on the diagonal, which does not move the minimiser, and a rare row stops as far
    as 1e-7 off (`kkt_residual` tells). Singular Q and equal anchors always give the same one of the
    minimisers: the search starts from the first best vertex and takes the first of equal gradients. A row
    that is not done after 20 + 3 m entering indices returns its feasible z so far. A row of F with NaN or
    infinity gives a row of NaN; such a Q only such rows.
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
    width = -(-m // 8) * 8
    W = _zeros(_MATRICES + 4 * m, width)
    # Centred: with sum z = 1, r1' + 1r' in Q is r in f. Left in Q, anchors far from zero cost H its digits.
    r = Q.mean(axis=1)
    W[_MATRICES : _MATRICES + m, :m] = Q - (r[:, None] + r) + r.mean()
    W[_half, :m] = W[_MATRICES + np.arange(m), np.arange(m)] / 2
    W[_shift, :m] = r
    W[_f, m:] = np.inf
    N = np.tile(np.arange(width), (3, 1))
    Z = np.empty((n, m))
    support = np.ascontiguousarray(np.asarray(start) > 0)
    _qp_rows(F.astype(np.float64, copy=False), support, Z, W, N, np.abs(Q).max())
    return Z.astype(F.dtype, copy=False)


def _zeros(*shape):
    """Zeros on a 64-byte boundary: a load of 8 lanes across one costs twice."""
    size = 8 * int(np.prod(shape))
    raw = np.zeros(size + 64, np.uint8)
    first = -raw.ctypes.data % 64
    return raw[first : first + size].view(np.float64).reshape(shape)


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
