"""The projection onto the simplex and the QP with a shared matrix, against slow references."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aweigh.algorithms.simplex import kkt_residual, project_simplex, simplex_qp, warm_up

EXACT = 1e-12


def projection(p):
    """The projection of one p, by bisection on its shift."""
    low, high = p.min() - 1.0, p.max()
    for _ in range(200):
        t = (low + high) / 2
        low, high = (t, high) if np.maximum(p - t, 0).sum() > 1 else (low, t)
    return np.maximum(p - low, 0)


def minimiser(Q, f):
    """The minimiser of 1/2 z'Qz + f'z for one f and positive definite Q, by trying every support."""
    m = len(f)
    best, value = None, np.inf
    for code in range(1, 2**m):
        S = np.flatnonzero([code >> j & 1 for j in range(m)])
        K = np.block([[Q[np.ix_(S, S)], np.ones((len(S), 1))], [np.ones((1, len(S))), np.zeros((1, 1))]])
        z = np.zeros(m)
        z[S] = np.linalg.solve(K, np.append(-f[S], 1.0))[:-1]
        if z.min() >= 0 and z @ Q @ z / 2 + f @ z < value:
            best, value = z, z @ Q @ z / 2 + f @ z
    return best


def conditioned(rng, m, condition):
    """Q (m, m) with eigenvalues from 1 down to 1 / condition."""
    U, _ = np.linalg.qr(rng.standard_normal((m, m)))
    Q = (U * np.geomspace(1.0, 1.0 / condition, m)) @ U.T
    return (Q + Q.T) / 2


def problems(rng, m, n, condition):
    """Q, and an F for solutions from one vertex to the whole simplex."""
    Q = conditioned(rng, m, condition)
    interior = -rng.dirichlet(np.ones(m), size=n) @ Q
    noise = rng.standard_normal((n, m)) * np.geomspace(1e-6, 1.0, n)[:, None]
    return Q, interior + noise


def check(Q, F, Z, tolerance=EXACT):
    assert Z.shape == F.shape
    assert Z.min() >= 0
    assert kkt_residual(Q, F, Z).max() < tolerance


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_warm_up_compiles_everything():
    from aweigh.algorithms import active_set, simplex

    warm_up()
    before = [len(k.signatures) for k in (active_set.qp_rows, simplex._project_rows)]
    for dtype in (np.float32, np.float64):
        F = np.ones((2, 3), dtype)
        project_simplex(F)
        simplex_qp(np.eye(3), F)
        simplex_qp(np.eye(3), F, start=F)
    assert before == [len(k.signatures) for k in (active_set.qp_rows, simplex._project_rows)]


@pytest.mark.parametrize("m", [1, 2, 7, 8, 9, 50, 400])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_projection_is_the_nearest_point(rng, m, scale):
    P = scale * rng.standard_normal((20, m))
    expected = np.array([projection(p) for p in P])
    np.testing.assert_allclose(project_simplex(P), expected, atol=1e-12 * max(scale, 1))


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 30), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_projection_with_ties(m, levels, seed):
    P = np.random.default_rng(seed).integers(0, levels, (3, m)) / 2.0
    Z = project_simplex(P)
    np.testing.assert_allclose(Z, [projection(p) for p in P], atol=1e-12)
    np.testing.assert_array_equal(Z[:1], project_simplex(P[:1]))


def test_projection_keeps_dtype_and_points_of_the_simplex(rng):
    P = rng.dirichlet(np.ones(9), size=30)
    np.testing.assert_allclose(project_simplex(P), P, atol=1e-15)
    single = project_simplex(P.astype(np.float32))
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, P, atol=1e-7)
    assert project_simplex(np.zeros((0, 4))).shape == (0, 4)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 7), st.sampled_from([1.0, 1e2, 1e5]), st.integers(0, 2**32 - 1))
def test_qp_against_every_support(m, condition, seed):
    rng = np.random.default_rng(seed)
    Q, F = problems(rng, m, 6, condition)
    np.testing.assert_allclose(simplex_qp(Q, F), [minimiser(Q, f) for f in F], atol=1e-15 * condition * 100)


@pytest.mark.parametrize("m", [1, 2, 8, 9, 23, 24, 50, 100, 130, 257])
@pytest.mark.parametrize("condition", [1.0, 1e2, 1e5, 1e7, 1e9])
def test_qp_is_exact(rng, m, condition):
    Q, F = problems(rng, m, 40, condition)
    cold = simplex_qp(Q, F)
    check(Q, F, cold)
    for start in (cold, rng.dirichlet(np.ones(m), size=40), np.ones_like(F), np.zeros_like(F)):
        check(Q, F, simplex_qp(Q, F, start=start))
    moved = F + 0.02 * F.std() * rng.standard_normal(F.shape)
    warm = simplex_qp(Q, moved, start=cold)
    check(Q, moved, warm)
    gap = np.abs(warm - simplex_qp(Q, moved)) @ np.abs(Q)
    assert gap.max() < 1e-9


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_qp_scales(rng, scale):
    Q, F = problems(rng, 30, 20, 1e3)
    np.testing.assert_allclose(simplex_qp(scale * Q, scale * F), simplex_qp(Q, F), atol=1e-9)


@pytest.mark.parametrize("mu", [1e-4, 1.0, 1e2, 1e4])
def test_qp_of_anchors(rng, mu):
    centres = 2 * rng.standard_normal((10, 64))
    X = centres[rng.integers(10, size=300)] + rng.standard_normal((300, 64))
    A = X[:60]
    Q, F = A @ A.T + mu * np.eye(60), -X @ A.T
    check(Q, F, simplex_qp(Q, F))
    check(Q, F, simplex_qp(Q, F, start=simplex_qp(Q, F[::-1])))


@pytest.mark.parametrize("mu", [0.0, 1e-12])
def test_zero_and_equal_anchors(rng, mu):
    A = rng.standard_normal((30, 12))
    A[[3, 17]] = 0.0
    A[[5, 6, 29]] = A[4]
    X = rng.standard_normal((200, 12)) * np.geomspace(1e-3, 3.0, 200)[:, None]
    Q, F = A @ A.T + mu * np.eye(30), -X @ A.T
    Z = simplex_qp(Q, F)
    check(Q, F, Z)
    np.testing.assert_array_equal(Z, simplex_qp(Q, F))
    check(Q, F, simplex_qp(Q, F, start=np.ones_like(F)))
    check(Q, F, simplex_qp(Q, F, start=Z))


@pytest.mark.parametrize("mu", [0.0, 1e-12, 1e-8])
@pytest.mark.parametrize("kind", ["far", "falling", "equal"])
@pytest.mark.parametrize("m", [9, 33, 48, 80])
def test_beyond_condition_1e9(rng, m, kind, mu):
    A = rng.standard_normal((m, m // 2 + 1))
    if kind == "far":
        A += 10 * rng.standard_normal(A.shape[1])
    elif kind == "falling":
        A *= np.geomspace(1, 1e-5, A.shape[1])
    else:
        A[: m // 2] = A[0]
    X = rng.dirichlet(np.ones(m), size=30) @ A + 1e-3 * rng.standard_normal((30, A.shape[1]))
    Q, F = A @ A.T + mu * np.eye(m), -X @ A.T
    for start in (None, rng.random(F.shape), rng.random(F.shape) < 0.1):
        check(Q, F, simplex_qp(Q, F, start=start), 1e-11)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 3), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_qp_with_ties(m, d, levels, seed):
    rng = np.random.default_rng(seed)
    A = rng.integers(-levels, levels + 1, (m, d)).astype(float)
    X = rng.integers(-levels, levels + 1, (5, d)) / 2.0
    Q, F = A @ A.T, -X @ A.T
    Z = simplex_qp(Q, F)
    check(Q, F, Z)
    check(Q, F, simplex_qp(Q, F, start=rng.integers(0, 2, F.shape)))
    np.testing.assert_array_equal(Z[2:3], simplex_qp(Q, F[2:3]))


def test_linear_programme_and_constant(rng):
    F = rng.standard_normal((20, 9))
    np.testing.assert_array_equal(simplex_qp(np.zeros((9, 9)), F), np.eye(9)[F.argmin(axis=1)])
    Z = simplex_qp(np.zeros((9, 9)), np.zeros((2, 9)))
    np.testing.assert_array_equal(Z, np.eye(9)[[0, 0]])


def test_one_anchor():
    F = np.array([[3.0], [-1e9], [0.0]])
    for Q in ([[0.0]], [[2.0]]):
        np.testing.assert_array_equal(simplex_qp(Q, F), np.ones((3, 1)))
        np.testing.assert_array_equal(simplex_qp(Q, F, start=np.ones((3, 1))), np.ones((3, 1)))


def test_identity_is_the_projection(rng):
    P = rng.standard_normal((200, 40)) * np.geomspace(1e-3, 3.0, 200)[:, None]
    np.testing.assert_allclose(simplex_qp(np.eye(40), -P), project_simplex(P), atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("m", [5, 20, 64])
def test_rows_are_independent_bit_for_bit(rng, m, dtype):
    Q, F = problems(rng, m, 60, 1e4)
    F = rng.permutation(F).astype(dtype)
    start = rng.permutation(simplex_qp(Q, F))
    for given_start in (None, start):
        whole = simplex_qp(Q, F, start=given_start)
        for cuts in (range(1, 60), [7, 8, 31], [30]):
            blocks = np.split(np.arange(60), cuts)
            parts = [simplex_qp(Q, F[b], start=None if given_start is None else start[b]) for b in blocks]
            np.testing.assert_array_equal(np.concatenate(parts), whole)
    np.testing.assert_array_equal(simplex_qp(Q, F[::-1])[::-1], simplex_qp(Q, F))


def test_single_precision_is_exact_for_the_f_given(rng):
    Q, F = problems(rng, 50, 40, 1e4)
    F = F.astype(np.float32)
    Z = simplex_qp(Q, F)
    assert Z.dtype == np.float32
    np.testing.assert_array_equal(Z, simplex_qp(Q, F.astype(np.float64)).astype(np.float32))


def test_layouts_and_empty_blocks(rng):
    Q, F = problems(rng, 10, 20, 10.0)
    Z = simplex_qp(Q, F)
    np.testing.assert_array_equal(simplex_qp(np.asfortranarray(Q), np.asfortranarray(F)), Z)
    np.testing.assert_array_equal(simplex_qp(Q, F[::2], start=None), Z[::2])
    assert simplex_qp(Q, F[:0]).shape == (0, 10)
    F.setflags(write=False)
    np.testing.assert_array_equal(simplex_qp(Q, F), Z)


def test_rows_that_are_not_finite_give_nan_and_touch_no_other(rng):
    Q, F = problems(rng, 12, 6, 10.0)
    bad = F.copy()
    bad[1, 3], bad[4, 0] = np.nan, np.inf
    Z = simplex_qp(Q, bad)
    assert np.isnan(Z[[1, 4]]).all()
    np.testing.assert_array_equal(Z[[0, 2, 3, 5]], simplex_qp(Q, F)[[0, 2, 3, 5]])
    assert np.isnan(simplex_qp(np.full((12, 12), np.nan), F)).all()


def test_shapes_are_checked():
    with pytest.raises(ValueError, match="Q must be"):
        simplex_qp(np.eye(3), np.zeros((2, 4)))
    with pytest.raises(ValueError, match="start has shape"):
        simplex_qp(np.eye(3), np.zeros((2, 3)), start=np.zeros((1, 3)))
    with pytest.raises(ValueError, match="at least one column"):
        project_simplex(np.zeros((2, 0)))


def test_residual_of_known_points():
    Q, F = np.eye(2), np.zeros((3, 2))
    Z = np.array([[0.5, 0.5], [1.0, 0.0], [0.5, 0.6]])
    np.testing.assert_allclose(kkt_residual(Q, F, Z), [0.0, 1.0, 0.11], atol=1e-12)
