"""The dense oracles against the mathematics and against published or measured figures."""

import numpy as np
import pytest
from oracles import acmvc, emvgc_lg, imvc_cbg, kmeans, l2sc
from oracles.common import (
    accuracy,
    contingency,
    kmeans_labels,
    left_singular,
    nmi,
    one_hot,
    orthonormal_error,
    polar,
    procrustes,
    purity,
    rand_index,
    random_orthonormal,
    simplex_rows,
    tfidf,
    unit_rows,
    view_means,
    zscore,
)
from scipy.optimize import minimize


def rises(records):
    """Largest relative rise of the objective from one record to the next."""
    o = np.array([record.objective for record in records])
    return np.max(np.diff(o) / np.abs(o[:-1]))


def blobs(seed, n, dims, k):
    """(views, labels): k Gaussian blobs seen in len(dims) views."""
    rng = np.random.default_rng(seed)
    labels = np.sort(np.arange(n) % k)
    rng.shuffle(labels)
    centres = [2.0 * rng.standard_normal((k, d)) for d in dims]
    return [c[labels] + rng.standard_normal((n, c.shape[1])) for c in centres], labels


# --- building blocks ------------------------------------------------------------------------------


def test_procrustes_of_zero_is_eye():
    for shape in [(3, 5), (5, 3), (4, 4)]:
        assert np.array_equal(procrustes(np.zeros(shape)), np.eye(*shape))


@pytest.mark.parametrize("shape", [(3, 7), (7, 3), (4, 4)])
def test_procrustes_maximises_the_trace(shape):
    rng = np.random.default_rng(0)
    M = rng.standard_normal(shape)
    G = procrustes(M)
    assert orthonormal_error(G) < 1e-13
    best = np.sum(G * M)
    assert abs(best - np.linalg.svd(M, compute_uv=False).sum()) < 1e-12
    assert all(np.sum(random_orthonormal(rng, *shape) * M) < best for _ in range(50))


def test_polar_is_procrustes_at_full_rank_and_drops_the_rest():
    rng = np.random.default_rng(1)
    P = rng.standard_normal((30, 4))
    assert np.abs(polar(P) - procrustes(P)).max() < 1e-13
    P[:, 3] = P[:, 0]
    G = polar(P)
    assert np.allclose(np.linalg.svd(G, compute_uv=False), [1, 1, 1, 0])
    assert not polar(np.zeros((5, 2))).any()


def test_simplex_rows_satisfy_kkt():
    P = 3.0 * np.random.default_rng(2).standard_normal((200, 7))
    Z = simplex_rows(P)
    assert np.all(Z >= 0)
    assert np.abs(Z.sum(axis=1) - 1).max() < 1e-14
    assert max(emvgc_lg.kkt_residual(np.eye(7), -p, z) for p, z in zip(P, Z, strict=True)) < 1e-14


def test_scalings():
    X = np.column_stack([np.arange(5.0), np.full(5, 0.1)])
    S = zscore(X)
    assert not S[:, 1].any()
    assert abs(np.sum(S[:, 0] ** 2) - 4) < 1e-14
    U = unit_rows(np.array([[3.0, 4.0], [0.0, 0.0]]))
    assert np.array_equal(U, [[0.6, 0.8], [0.0, 0.0]])
    T = tfidf([[2, 0], [1, 3], [0, 0]])
    assert np.allclose(np.linalg.norm(T, axis=1), [1, 1, 0])


def test_scores():
    y = np.array([0, 0, 0, 1, 1, 2])
    f = np.array([5, 5, 7, 7, 7, 9])
    assert np.array_equal(contingency(y, f), [[2, 1, 0], [0, 2, 0], [0, 0, 1]])
    assert accuracy(y, f) == purity(y, f) == 5 / 6
    assert accuracy(y, np.zeros(6)) == 0.5
    assert abs(rand_index(y, f) - 11 / 15) < 1e-15


# --- k-means --------------------------------------------------------------------------------------


def test_lloyd_descends_to_a_fixed_point():
    (X, _), _ = blobs(0, 90, (4, 3), 3)
    records = kmeans.run(X, X[:3])
    assert np.all(np.diff([r.inertia for r in records]) <= 1e-12)
    labels, _ = kmeans.assign(X, records[-1].centres)
    assert np.array_equal(labels, records[-1].labels)


def test_lloyd_keeps_the_centre_of_an_empty_cluster():
    X = np.array([[0.0], [1.0]])
    records = kmeans.run(X, [[0.0], [1.0], [99.0]])
    assert records[-1].centres[2, 0] == 99.0


# --- EMVGC-LG -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mu", [0.0, 1e-8, 1e-4, 1.0, 1e4])
def test_simplex_qp_satisfies_kkt(mu):
    rng = np.random.default_rng(3)
    for m, r in [(1, 3), (2, 1), (5, 9), (12, 3), (30, 40), (40, 6)]:
        A = rng.standard_normal((m, r))
        if m > 3:
            A[-1] = A[0]
        for size in (1e-3, 1.0, 1e3):
            Q = A @ A.T + mu * np.eye(m)
            f = size * rng.standard_normal(m)
            z = emvgc_lg.simplex_qp(Q, f)
            assert z.min() >= 0
            assert emvgc_lg.kkt_residual(Q, f, z) < 1e-13


def test_simplex_qp_finds_an_interior_solution_and_a_known_support():
    rng = np.random.default_rng(4)
    A = rng.standard_normal((9, 20))
    Q = A @ A.T
    z = np.full(9, 1 / 9)
    assert np.abs(emvgc_lg.simplex_qp(Q, -Q @ z) - z).max() < 1e-13
    z = np.zeros(9)
    z[[1, 4, 6]] = [0.5, 0.3, 0.2]
    pressure = np.where(z > 0, 0.0, rng.random(9))
    assert np.abs(emvgc_lg.simplex_qp(Q, pressure - Q @ z) - z).max() < 1e-13


def test_simplex_qp_agrees_with_a_general_solver():
    rng = np.random.default_rng(5)
    A = rng.standard_normal((6, 8))
    Q, f = A @ A.T, rng.standard_normal(6)
    z = emvgc_lg.simplex_qp(Q, f)
    found = minimize(
        lambda z: 0.5 * z @ Q @ z + f @ z,
        np.full(6, 1 / 6),
        jac=lambda z: Q @ z + f,
        bounds=[(0, None)] * 6,
        constraints={"type": "eq", "fun": lambda z: z.sum() - 1, "jac": lambda z: np.ones(6)},
        options={"ftol": 1e-15, "maxiter": 500},
    )
    assert np.abs(found.x - z).max() < 1e-6


@pytest.fixture(scope="module")
def small_emvgc():
    X, labels = blobs(6, 60, (7, 4), 3)
    X = [zscore(x) for x in X]
    A0 = view_means(X, kmeans_labels(np.hstack(X), 6, n_init=1), 6)
    return X, labels, A0


@pytest.mark.parametrize(("lam", "mu"), [(0.1, 1.0), (1e-3, 1e-4), (1.0, 1e2)])
def test_emvgc_is_monotone_and_stationary(small_emvgc, lam, mu):
    X, _, A0 = small_emvgc
    records = emvgc_lg.run(X, A0, lam, mu, 8)
    assert rises(records) <= 1e-13
    Q, F = emvgc_lg.quadratic(records[-1].A, mu), emvgc_lg.linear(X, records[-1].A, lam)
    assert max(emvgc_lg.kkt_residual(Q, f, z) for f, z in zip(F, records[-1].Z, strict=True)) < 1e-13


def test_emvgc_a_step_has_zero_gradient(small_emvgc):
    X, _, A0 = small_emvgc
    lam = 0.1
    Z = emvgc_lg.z_step(X, A0, lam, 1.0)
    for x, a in zip(X, emvgc_lg.a_step(X, Z, A0, lam), strict=True):
        gradient = Z.T @ (Z @ a - x) + lam * Z.sum(axis=0)[:, None] * a
        assert np.abs(gradient).max() < 1e-11


def test_emvgc_z_step_is_the_minimum_of_the_objective(small_emvgc):
    X, _, A0 = small_emvgc
    rng = np.random.default_rng(7)
    Z = emvgc_lg.z_step(X, A0, 0.1, 1.0)
    best = emvgc_lg.objective(X, Z, A0, 0.1, 1.0)
    for _ in range(20):
        other = 0.9 * Z + 0.1 * rng.dirichlet(np.ones(6), len(Z))
        assert emvgc_lg.objective(X, other, A0, 0.1, 1.0) > best


def test_emvgc_dead_anchor_keeps_its_value(small_emvgc):
    X, _, A0 = small_emvgc
    A0 = [a.copy() for a in A0]
    for a in A0:
        a[2] = 1e3
    records = emvgc_lg.run(X, A0, 0.1, 1.0, 3)
    for record in records:
        assert not record.Z[:, 2].any()
        assert all(np.array_equal(a[2], b[2]) for a, b in zip(record.A, A0, strict=True))
    assert rises(records) <= 1e-13


def test_emvgc_mfeat(shared_data):
    data = shared_data("mfeat")
    X = [zscore(data["views"][v]) for v in (1, 4)]
    A0 = view_means(X, kmeans_labels(np.hstack(X), 20, n_init=1), 20)
    records = emvgc_lg.run(X, A0, 0.1, 1.0, 4)
    assert rises(records) <= 1e-12
    found = kmeans_labels(unit_rows(left_singular(records[-1].Z, 10)), 10)
    assert accuracy(data["labels"], found) > 0.8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("views", "m", "lam", "mu", "vectors", "expected"),
    [
        ((1, 4), 50, 1e-4, 1e-4, 50, 0.905),
        ((1, 4), 20, 1e-4, 1e4, 20, 0.925),
        ((0, 1, 2, 3, 4, 5), 20, 0.1, 1.0, 10, 0.92),
    ],
)
def test_emvgc_mfeat_figures(shared_data, views, m, lam, mu, vectors, expected):
    data = shared_data("mfeat")
    X = [zscore(data["views"][v]) for v in views]
    A0 = view_means(X, kmeans_labels(np.hstack(X), m, n_init=1), m)
    records = emvgc_lg.run(X, A0, lam, mu, 10)
    assert rises(records) <= 1e-12
    found = kmeans_labels(unit_rows(left_singular(records[-1].Z, vectors)), 10)
    assert abs(accuracy(data["labels"], found) - expected) < 0.04


# --- IMVC-CBG -------------------------------------------------------------------------------------

BDGP = {
    1.0: [969.069, 841.472, 839.498, 839.073],
    0.1: [518.45, 384.07, 377.93, 376.59, 376.09, 375.87],
}


@pytest.fixture(scope="module")
def bdgp(shared_data):
    return shared_data("bdgp"), shared_data("bdgp_masks")["present_0.7"]


def imvc_bdgp(views, present, lam):
    """The records of the paper's program on BDGP: m = k = 5, unit rows, printed start and stop."""
    X = [unit_rows(x) for x in views]
    return imvc_cbg.stopped(imvc_cbg.run(X, present, lam, 5, 5, len(BDGP[lam]) + 2))


@pytest.mark.parametrize("lam", BDGP)
def test_imvc_bdgp_objectives(bdgp, lam):
    data, present = bdgp
    records = imvc_bdgp(data["views"], present, lam)
    digits = 3 if lam == 1.0 else 2
    assert [round(r.objective, digits) for r in records] == BDGP[lam]
    found = kmeans_labels(left_singular(records[-1].Z, 5), 5)
    expected = {1.0: (0.4498, 0.2292), 0.1: (0.4393, 0.2179)}[lam]
    assert np.allclose((accuracy(data["labels"], found), nmi(data["labels"], found)), expected, atol=0.03)


def test_imvc_bdgp_stored_graph(bdgp, shared_data):
    data, present = bdgp
    stored = shared_data("bdgp_imvccbg_Z_0.7")
    Z = imvc_bdgp(data["views"], present, 1.0)[-1].Z
    assert np.abs(Z - stored["Z"]).max() < 5e-9
    counts = imvc_cbg.restored_counts(data["views"])
    records = imvc_bdgp(counts, present, 1.0)
    assert np.abs(records[-1].Z - stored["Z"]).max() < 1e-12
    assert np.allclose([r.objective for r in records], stored["objective"], rtol=1e-13, atol=0)


@pytest.fixture(scope="module")
def small_imvc():
    X, labels = blobs(8, 80, (9, 6, 5), 3)
    rng = np.random.default_rng(8)
    present = rng.integers(0, 2, (80, 3))
    present[present.sum(axis=1) == 0, 0] = 1
    return [unit_rows(x) for x in X], present, labels


def test_imvc_ignores_what_stands_in_missing_rows(small_imvc):
    X, present, _ = small_imvc
    noisy = [np.where(present[:, [v]] > 0, x, np.nan) for v, x in enumerate(X)]
    a, b = (imvc_cbg.run(x, present, 1.0, 3, 3, 3)[-1] for x in (X, noisy))
    assert a.objective == b.objective
    assert np.array_equal(a.Z, b.Z)


@pytest.mark.parametrize("start", ["paper", "one-hot"])
@pytest.mark.parametrize("weights", ["1/r", "1/r2"])
def test_imvc_constraints_and_descent(small_imvc, start, weights):
    X, present, labels = small_imvc
    Z0 = start if start == "paper" else one_hot(labels, 3)
    records = imvc_cbg.run(X, present, 0.1, 3, 3, 10, start=Z0, weights=weights)
    for record in records:
        assert max(orthonormal_error(w) for w in record.W) < 1e-13
        assert orthonormal_error(record.C) < 1e-13
        assert np.abs(record.Z.sum(axis=1) - 1).max() < 1e-13
        assert record.Z.min() >= 0
        assert abs(record.alpha.sum() - 1) < 1e-14
    # every step minimises the objective when m = k, and 1/r^2 is the minimiser of sum alpha^2 r^2
    assert rises(records) <= (1e-13 if weights == "1/r2" else 1e-3)


def test_imvc_weights(small_imvc):
    r = np.array([1.0, 2.0, 4.0])
    assert np.allclose(imvc_cbg.alpha_step(r, "1/r"), np.array([4, 2, 1]) / 7)
    assert np.allclose(imvc_cbg.alpha_step(r, "1/r2"), np.array([16, 4, 1]) / 21)


def test_imvc_z_step_is_the_minimum_for_m_equal_k(small_imvc):
    X, present, _ = small_imvc
    a = present.astype(float)
    rng = np.random.default_rng(9)
    W = [random_orthonormal(rng, x.shape[1], 3) for x in X]
    C = random_orthonormal(rng, 3, 3)
    alpha = np.array([0.5, 0.3, 0.2])
    X = imvc_cbg.masked(X, a)
    Z = imvc_cbg.z_step(X, a, W, C, alpha, 0.1)
    best = imvc_cbg.objective(X, a, W, C, Z, alpha, 0.1)
    for _ in range(20):
        other = 0.9 * Z + 0.1 * rng.dirichlet(np.ones(3), len(Z))
        assert imvc_cbg.objective(X, a, W, C, other, alpha, 0.1) > best


# --- ACMVC ----------------------------------------------------------------------------------------

BBCSPORT = [
    65602.6, 63559.9, 63155.0, 62994.8, 62880.2, 62805.2, 62761.4, 62736.4, 62721.2, 62711.0,
    62703.6, 62698.0, 62693.4, 62689.6, 62686.3, 62683.4, 62680.7, 62678.2, 62675.8, 62673.7,
]  # fmt: skip


@pytest.fixture(scope="module")
def bbcsport(shared_data):
    """(batches [round][view], labels in the order of the stream)."""
    data, stream = shared_data("bbcsport"), shared_data("bbcsport_batches")
    rows = [stream["order"][stream["batch"] == t] for t in range(6)]
    return [[x[r] for x in data["views"]] for r in rows], data["labels"][np.concatenate(rows)]


def test_acmvc_bbcsport(bbcsport):
    batches, labels = bbcsport
    rounds = acmvc.run(batches, 25, 5, 100.0, 100.0, 20)
    assert [round(r.objective, 1) for r in rounds[0]] == BBCSPORT
    assert max(rises(records) for records in rounds) <= 1e-12
    found = kmeans_labels(acmvc.embedding(rounds), 5)
    assert abs(accuracy(labels, found) - 0.800) < 0.02
    assert abs(nmi(labels, found) - 0.554) < 0.02


def test_acmvc_bbcsport_second_setting(bbcsport):
    batches, labels = bbcsport
    found = kmeans_labels(acmvc.embedding(acmvc.run(batches, 25, 5, 10.0, 1000.0, 20)), 5)
    assert abs(accuracy(labels, found) - 0.813) < 0.02
    assert abs(nmi(labels, found) - 0.608) < 0.02


@pytest.fixture(scope="module")
def small_acmvc():
    X, labels = blobs(10, 90, (12, 10), 3)
    return [[x[t::3] for x in X] for t in range(3)], [labels[t::3] for t in range(3)]


def test_acmvc_printed_start(small_acmvc):
    batches, _ = small_acmvc
    first, second = acmvc.run(batches[:1], 6, 3, 1.0, 1.0, 2)[0]
    assert all(np.array_equal(a, np.eye(6, a.shape[1])) for a in first.A)
    assert np.array_equal(first.F, np.eye(30, 3))
    assert np.allclose(first.V, procrustes(first.Z[:3].T))
    assert second.F.any(axis=1).all()


@pytest.mark.parametrize("start", ["paper", "seeded"])
@pytest.mark.parametrize("ablation", [{}, {"anchor_term": False}, {"v_term": False}, {"frozen": True}])
def test_acmvc_constraints_and_descent(small_acmvc, start, ablation):
    batches, _ = small_acmvc
    A0 = acmvc.seeded_anchors(batches[0], kmeans_labels(np.hstack(batches[0]), 6, n_init=1), 6)
    rounds = acmvc.run(batches, 6, 3, 2.0, 5.0, 12, start=start if start == "paper" else A0, **ablation)
    for t, records in enumerate(rounds):
        for record in records:
            assert max(orthonormal_error(a) for a in record.A) < 1e-12
            assert orthonormal_error(record.F) < 1e-12
            assert orthonormal_error(record.V) < 1e-12
            assert record.Z.min() >= 0
            assert abs(record.w.sum() - 1) < 1e-14
        assert rises(records) <= 1e-12
        if ablation.get("frozen") and t > 0:
            last = rounds[t - 1][-1]
            assert np.array_equal(records[-1].V, last.V)
            assert all(np.array_equal(a, b) for a, b in zip(records[-1].A, last.A, strict=True))


def test_acmvc_infinite_beta_is_frozen(small_acmvc):
    batches, _ = small_acmvc
    tied = acmvc.run(batches, 6, 3, 2.0, 1e12, 6)[2][-1]
    frozen = acmvc.run(batches, 6, 3, 2.0, 1.0, 6, frozen=True)[2][-1]
    free = acmvc.run(batches, 6, 3, 2.0, 1.0, 6)[2][-1]
    # rounds 1 agree, so the anchors of round 3 agree too
    assert np.abs(tied.Z - frozen.Z).max() < 1e-7
    assert np.abs(free.Z - frozen.Z).max() > 1e-4


def test_acmvc_seeded_start_takes_v_from_z(small_acmvc):
    batches, _ = small_acmvc
    A0 = acmvc.seeded_anchors(batches[0], kmeans_labels(np.hstack(batches[0]), 6, n_init=1), 6)
    first = acmvc.run(batches[:1], 6, 3, 2.0, 5.0, 1, start=A0)[0][0]
    X, w = batches[0], 0.5
    Z = np.maximum(sum(x @ a.T / w for x, a in zip(X, A0, strict=True)) / (2.0 + 2 / w), 0)
    assert np.allclose(first.Z, Z)
    top = np.linalg.svd(Z)[2][:3].T
    assert np.allclose(first.V @ first.V.T, top @ top.T)


# --- L2SC -----------------------------------------------------------------------------------------


def count_task(seed, n, d, k):
    """(X, labels): term counts of n documents on k topics, the topics the same for every seed."""
    topics = np.random.default_rng(99).dirichlet(np.full(d, 0.1), k)
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % k
    return np.array([rng.multinomial(60, topics[j]) for j in labels]).astype(float), labels


def l2sc_task(name, X, F=None):
    """(name, K, Xh): the affinity on F (X when not given), Xh on X."""
    return name, l2sc.normalised(l2sc.affinity(X if F is None else F)), l2sc.co_cluster(X)


@pytest.fixture(scope="module")
def stream():
    return [l2sc_task(seed, count_task(seed, 45, 60, 3)[0]) for seed in range(3)]


def test_l2sc_affinity_by_hand():
    X = np.array([[1.0, 0.0], [2.0, 0.1], [1.0, 0.3], [0.0, 3.0]])
    U = unit_rows(X)
    D = np.array([[np.sum((u - v) ** 2) for u in U] for v in U])
    W = l2sc.affinity(X, K=1)
    near = [1, 0, 1, 2]
    variance = np.median([D[i, j] for i, j in enumerate(near)])
    expected = np.zeros((4, 4))
    for i, j in enumerate(near):
        expected[i, j] = expected[j, i] = np.exp(-D[i, j] / (2 * variance))
    assert np.allclose(W, expected)


def test_l2sc_neighbours_break_ties_by_index():
    D = np.array([[0.0, 1.0, 1.0, 1.0], [1.0, 0.0, 2.0, 2.0], [1.0, 2.0, 0.0, 2.0], [1.0, 2.0, 2.0, 0.0]])
    assert np.array_equal(l2sc.neighbours(D, 2), [[1, 2], [0, 2], [0, 1], [0, 1]])


def test_l2sc_matrices(stream):
    for _, K, Xh in stream:
        assert np.abs(K - K.T).max() < 1e-15
        assert np.linalg.eigvalsh(K)[-1] < 1 + 1e-12
        assert np.linalg.norm(Xh, 2) < 1 + 1e-12
    with pytest.raises(ValueError, match="X >= 0"):
        l2sc.co_cluster(np.array([[-1.0]]))
    assert not l2sc.co_cluster(np.zeros((2, 3))).any()


@pytest.mark.parametrize("b", ["procrustes", "eigen"])
def test_l2sc_constraints_and_library(stream, b):
    library, visits, again = l2sc.run(stream, 3, 1.0, 0.1, b=b)
    for sweeps in visits:
        for sweep in sweeps:
            assert orthonormal_error(sweep.E) < 1e-12
            assert orthonormal_error(sweep.B) < 1e-12
            assert orthonormal_error(sweep.L) < 1e-12
    assert np.array_equal(visits[0][0].B, np.eye(3))
    for (name, K, Xh), sweeps in zip(stream, visits, strict=True):
        m, c = library.records[name]
        E = sweeps[-1].E
        assert np.allclose(m, E.T @ K @ E)
        assert np.allclose(c, 1.0 * Xh.T @ E)
    for seed, E in again.items():
        labels = count_task(seed, 45, 60, 3)[1]
        assert purity(labels, kmeans_labels(l2sc.embedding(E, library.B), 3)) > 0.9


def test_l2sc_e_steps_ascend(stream):
    _, K, Xh = stream[0]
    rng = np.random.default_rng(11)
    B, L = random_orthonormal(rng, 3, 3), random_orthonormal(rng, 60, 3)

    def value(E):
        return np.trace(E.T @ K @ E) + 0.7 * np.trace(L.T @ Xh.T @ E @ B)

    E = random_orthonormal(rng, 45, 3)
    values = [value(E)]
    for _ in range(30):
        E = l2sc.e_steps(E, K, Xh, B, L, 0.7, 0.5, 1)
        values.append(value(E))
    assert np.min(np.diff(values)) > -1e-12


def test_l2sc_ascends_without_the_group_term(stream):
    for lam in (0.1, 1.0):
        library = l2sc.empty(60, 3)
        for name, K, Xh in stream:
            library, sweeps = l2sc.learn(library, name, K, Xh, lam, 0.0, eta=0.5, tolerance=0.0)
            assert np.min(np.diff([s.objective for s in sweeps])) > -1e-12


def test_l2sc_b_step_is_exact():
    rng = np.random.default_rng(12)
    C, L = rng.standard_normal((20, 3)), random_orthonormal(rng, 20, 3)
    B = l2sc.b_step(np.eye(3), C, np.eye(3), L, 1, "procrustes")
    best = np.trace(L.T @ C @ B)
    assert all(np.trace(L.T @ C @ random_orthonormal(rng, 3, 3)) < best for _ in range(50))


def test_l2sc_revisit_replaces_the_old_records(stream):
    library, _, _ = l2sc.run([*stream, stream[0]], 3, 1.0, 0.1)
    assert sorted(library.records) == [0, 1, 2]
    once, _, _ = l2sc.run(stream, 3, 1.0, 0.1)
    name, K, Xh = stream[0]
    after, sweeps = l2sc.learn(once, name, K, Xh, 1.0, 0.1)
    assert np.array_equal(after.L, library.L)
    assert np.allclose(after.records[0][0], sweeps[-1].E.T @ K @ sweeps[-1].E)


@pytest.mark.slow
def test_l2sc_webkb4(shared_data):
    data = shared_data("webkb4")
    X, y, task = data["views"][0], data["labels"], data["task"]
    F = tfidf(X)
    rows = [np.flatnonzero(task == t) for t in range(4)]
    tasks = [l2sc_task(t, X[r], F[r]) for t, r in enumerate(rows)]
    library, visits, again = l2sc.run(tasks, 4, 10.0, 0.1)

    def mean(embeddings):
        found = [kmeans_labels(E, 4) for E in embeddings]
        return [
            np.mean([score(y[r], f) for r, f in zip(rows, found, strict=True)]) for score in (purity, nmi, rand_index)
        ]

    single = mean([unit_rows(l2sc.start(K, 4)) for _, K, _ in tasks])
    streaming = mean([l2sc.embedding(s[-1].E, s[-1].B) for s in visits])
    encoded = mean([l2sc.embedding(again[t], library.B) for t in range(4)])
    assert np.allclose(single, [0.757, 0.397, 0.721], atol=0.01)
    assert np.allclose(streaming, [0.771, 0.458, 0.780], atol=0.025)
    assert np.allclose(encoded, [0.773, 0.474, 0.787], atol=0.015)
