"""Each method against its dense oracle, for any cut of the rows into blocks, and against the published figures."""

import numpy as np
import pytest
from blocks import graph, prepared, source_of, sweeps
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracles import acmvc as oracle_acmvc
from oracles import common
from oracles import emvgc_lg as oracle_emvgc
from oracles import imvc_cbg as oracle_imvc
from oracles import kmeans as oracle_kmeans

from aweigh.algorithms.acmvc import ACMVC
from aweigh.algorithms.contract import Sample
from aweigh.algorithms.emvgc_lg import EMVGCLG
from aweigh.algorithms.imvc_cbg import IMVCCBG
from aweigh.algorithms.kmeans import KMeans
from aweigh.algorithms.kmeans import Model as Centres

CUTS = (1, 7, 33, 80)


def blobs(n=80, widths=(9, 6, 12), k=4, seed=0, dtype=np.float64):
    """Views of n samples around k centres."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, k, n)
    return [(rng.normal(size=(k, d))[labels] * 2 + rng.normal(size=(n, d))).astype(dtype) for d in widths]


def everything(X):
    """The whole data as the sample that methods start from."""
    return Sample(tuple(X), np.ones((len(X[0]), len(X)), bool), np.arange(len(X[0])))


def close(a, b, rtol=1e-10):
    scale = max(float(np.abs(b).max()), 1e-300)
    np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * scale)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(("lam", "mu"), [(0.1, 1.0), (1e-3, 1e-4), (0.0, 1e4)])
def test_emvgc_equals_oracle(cut, lam, mu):
    X = blobs()
    method = EMVGCLG(4, anchors=8, lambda_=lam, mu=mu)
    model = method.start(everything(X), np.random.default_rng(0))
    records = oracle_emvgc.run(X, [a.copy() for a in model.anchors], lam, mu, 8)
    source = source_of([X], cut)
    states, _ = sweeps(method, source, model, 8)
    for state, record in zip(states, records, strict=True):
        close(state.history[-1], record.objective, 1e-9)
        close(graph(method, source, state.point), record.Z, 1e-8)
        for ours, theirs in zip(state.point.anchors, record.A, strict=True):
            close(ours, theirs, 1e-8)
    history = np.array(states[-1].history)
    assert (np.diff(history) <= 1e-9 * history[:-1]).all()


def test_emvgc_keeps_an_anchor_that_no_sample_uses():
    X = blobs()
    method = EMVGCLG(2, anchors=4)
    model = method.start(everything(X), np.random.default_rng(0))
    far = tuple(np.vstack([A[:-1], np.full((1, A.shape[1]), 1e3)]) for A in model.anchors)
    model = method._model(far, None, np.inf)
    states, _ = sweeps(method, source_of([X], 33), model, 3)
    assert states[-1].stats.s[-1] == 0
    for A in states[-1].model.anchors:
        np.testing.assert_array_equal(A[-1], 1e3)
    assert np.isfinite(states[-1].history).all()


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("weights", ["1/r", "1/r2"])
@pytest.mark.parametrize("m", [4, 8])
def test_imvc_equals_oracle_with_missing_rows(cut, weights, m):
    X = blobs()
    present = np.random.default_rng(1).random((80, 3)) < 0.6
    present[~present.any(1), 0] = True
    X = [x * present[:, [v]] for v, x in enumerate(X)]
    method = IMVCCBG(4, anchors=m, lambda_=0.5, weights=weights, init="paper")
    source = source_of([X], cut, present)
    model = prepared(method, source, method.start(everything(X), np.random.default_rng(0)))
    records = oracle_imvc.run(X, present, 0.5, m, 4, 8, start="paper", weights=weights)
    states, _ = sweeps(method, source, model, 8)
    for state, record in zip(states, records, strict=True):
        close(state.history[-1], record.objective)
        close(state.model.alpha, record.alpha)
        close(state.point.C, record.C)
        close(graph(method, source, state.point), record.Z)
        for ours, theirs in zip(state.point.W, record.W, strict=True):
            close(ours, theirs)


def test_imvc_full_mask_equals_no_mask():
    X = blobs()
    method = IMVCCBG(4)
    model = method.start(everything(X), np.random.default_rng(0))
    ours, _ = sweeps(method, source_of([X], 7), model, 5)
    theirs, _ = sweeps(method, source_of([X], 7, np.ones((80, 3))), model, 5)
    assert ours[-1].history == theirs[-1].history


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("init", ["paper", "kmeans"])
@pytest.mark.parametrize("ablation", [{}, {"anchor_term": False}, {"v_term": False}, {"frozen": True}])
def test_acmvc_equals_oracle_over_rounds(cut, init, ablation):
    batches = [blobs(seed=s, n=n) for s, n in ((0, 80), (1, 60), (2, 41))]
    method = ACMVC(3, anchors=5, alpha=10.0, beta=4.0, init=init, **ablation)
    source = source_of(batches, cut)
    prior, rounds, models = None, [], []
    for t, X in enumerate(batches):
        one = source_of([X], cut) if t == 0 else type(source)(source.arrays, (source.batches[t],))
        model = prepared(method, one, method.start(everything(X), np.random.default_rng(0), prior), prior=prior)
        if t == 0:
            first = model
        states, rows = sweeps(method, one, model, 6)
        rounds.append(states)
        models.append((one, rows))
        prior = states[-1].model
    start = "paper" if init == "paper" else first.A
    expected = oracle_acmvc.run(batches, 5, 3, 10.0, 4.0, 6, start=start, **ablation)
    for states, records in zip(rounds, expected, strict=True):
        for state, record in zip(states, records, strict=True):
            close(state.history[-1], record.objective)
            close(state.model.w, record.w)
            close(state.model.V @ state.model.V.T, record.V @ record.V.T, 1e-8)  # signs of eigenvectors are free
            for ours, theirs in zip(state.point.A, record.A, strict=True):
                close(ours, theirs, 1e-8)


@pytest.mark.parametrize("cut", CUTS)
def test_kmeans_equals_oracle(cut):
    X = blobs(widths=(5,))[0]
    centres = np.stack([X[:4], X[4:8]])
    method = KMeans(4, starts=2)
    model = Centres(centres, np.full(2, np.inf), X[:50], np.inf)
    states, _ = sweeps(method, source_of([[X]], cut), model, 5)
    for start in range(2):
        records = oracle_kmeans.run(X, centres[start], 5)
        close(states[-1].model.centres[start], records[-1].centres)
        close(states[-1].model.inertia[start], records[-1].inertia)


def test_kmeans_reseeds_an_empty_cluster():
    X = blobs(widths=(5,))[0]
    centres = np.stack([np.vstack([X[:3], np.full((1, 5), 1e6)])])
    model = Centres(centres, np.full(1, np.inf), X[:50], np.inf)
    states, _ = sweeps(KMeans(4, starts=1), source_of([[X]], 7), model, 6)
    assert (states[-1].stats.counts > 0).all()
    assert states[-1].history[-1] < states[0].history[-1]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cut=st.integers(1, 60), method=st.sampled_from([EMVGCLG(3), IMVCCBG(3), ACMVC(3, anchors=4, init="kmeans")]))
def test_any_cut_gives_the_same_objective(cut, method):
    X = blobs(n=60, k=3)
    model = method.start(everything(X), np.random.default_rng(0))
    results = []
    for rows in (cut, 60):
        source = source_of([X], rows)
        results.append(sweeps(method, source, prepared(method, source, model), 4)[0][-1].history)
    close(np.array(results[0]), np.array(results[1]), 1e-9)


@pytest.mark.parametrize("method", [EMVGCLG(3), IMVCCBG(3), ACMVC(3, anchors=4, init="kmeans")])
def test_order_of_views_and_rows_does_not_matter(method):
    X = blobs(n=60, k=3)
    base = method.start(everything(X), np.random.default_rng(0))
    order = np.random.default_rng(5).permutation(60)
    source, shuffled = source_of([X], 13), source_of([[x[order] for x in X]], 13)
    ours = sweeps(method, source, prepared(method, source, base), 4)[0][-1].history
    theirs = sweeps(method, shuffled, prepared(method, shuffled, base), 4)[0][-1].history
    close(np.array(ours), np.array(theirs), 1e-9)


@pytest.mark.parametrize("method", [EMVGCLG(3), IMVCCBG(3)])
@pytest.mark.parametrize("cut", [1, 7, 60])
def test_float32_stays_near_the_oracle(method, cut):
    X = blobs(n=60, k=3)
    model = method.start(everything(X), np.random.default_rng(0))
    wide = sweeps(method, source_of([X], 60), model, 6)[0][-1].history
    narrow = sweeps(method, source_of([[x.astype(np.float32) for x in X]], cut), model, 6)[0][-1].history
    close(np.array(narrow), np.array(wide), 1e-4)
    assert (np.diff(narrow) <= 1e-6 * np.array(narrow[:-1])).all()


def test_constraints_hold():
    X = blobs()
    for method in (EMVGCLG(4), IMVCCBG(4)):
        source = source_of([X], 33)
        model = sweeps(method, source, method.start(everything(X), np.random.default_rng(0)), 3)[0][-1].point
        Z = graph(method, source, model)
        assert (Z >= 0).all()
        np.testing.assert_allclose(Z.sum(1), 1, atol=1e-12)
    method = ACMVC(4, anchors=5)
    source = source_of([X], 33)
    model = prepared(method, source, method.start(everything(X), np.random.default_rng(0)))
    state = sweeps(method, source, model, 3)[0][-1]
    for A in state.model.A:
        np.testing.assert_allclose(A @ A.T, np.eye(5), atol=1e-10)
    np.testing.assert_allclose(state.model.V.T @ state.model.V, np.eye(4), atol=1e-10)
    np.testing.assert_allclose(state.model.w.sum(), 1)


def bdgp(shared_data, restored):
    data, masks = shared_data("bdgp"), shared_data("bdgp_masks")
    present = masks["present_0.7"].astype(bool)
    X = oracle_imvc.restored_counts(data["views"]) if restored else data["views"]
    return oracle_imvc.masked([common.unit_rows(x) for x in X], present), present


@pytest.mark.parametrize(
    ("lam", "figures"),
    [(1.0, (969.069, 841.472, 839.498, 839.073)), (0.1, (518.45, 384.07, 377.93, 376.59, 376.09, 375.87))],
)
def test_imvc_regression_on_bdgp(shared_data, lam, figures):
    X, present = bdgp(shared_data, restored=False)
    method = IMVCCBG(5, lambda_=lam, init="paper")
    source = source_of([X], 700, present)
    model = prepared(method, source, method.start(everything(X), np.random.default_rng(0)))
    states, _ = sweeps(method, source, model, len(figures))
    digits = 3 if lam == 1.0 else 2
    assert [round(o, digits) for o in states[-1].history] == list(figures)


@pytest.mark.parametrize(("restored", "tolerance"), [(False, 5e-9), (True, 1e-12)])
def test_imvc_reproduces_the_published_graph(shared_data, restored, tolerance):
    X, present = bdgp(shared_data, restored)
    published = shared_data("bdgp_imvccbg_Z_0.7")["Z"]
    method = IMVCCBG(5, lambda_=1.0, init="paper")
    source = source_of([X], 700, present)
    model = prepared(method, source, method.start(everything(X), np.random.default_rng(0)))
    states, _ = sweeps(method, source, model, 4)
    assert np.abs(graph(method, source, states[-1].point) - published).max() < tolerance


ACMVC_FIGURES = (
    65602.6, 63559.9, 63155.0, 62994.8, 62880.2, 62805.2, 62761.4, 62736.4, 62721.2, 62711.0,
    62703.6, 62698.0, 62693.4, 62689.6, 62686.3, 62683.4, 62680.7, 62678.2, 62675.8, 62673.7,
)  # fmt: skip


@pytest.mark.parametrize("cut", [17, 1000])
def test_acmvc_regression_on_bbcsport(shared_data, cut):
    data, stream = shared_data("bbcsport"), shared_data("bbcsport_batches")
    batches = [[x[stream["order"][stream["batch"] == t]] for x in data["views"]] for t in range(6)]
    method = ACMVC(5, anchors=25, alpha=100.0, beta=100.0, init="paper")
    source, prior = source_of(batches, cut), None
    for t in range(6):
        one = type(source)(source.arrays, (source.batches[t],))
        states, _ = sweeps(method, one, method.start(everything(batches[t]), np.random.default_rng(0), prior), 20)
        prior = states[-1].model
        assert np.isfinite(states[-1].history).all()
        if t == 0:
            assert [round(o, 1) for o in states[-1].history] == list(ACMVC_FIGURES)


@pytest.fixture(scope="module")
def mfeat_records(shared_data):
    """Views fou and pix of mfeat, z-scored, a start, and the oracle's records from it."""
    X = [common.zscore(shared_data("mfeat")["views"][v]) for v in (1, 4)]
    method = EMVGCLG(10, anchors=20, lambda_=0.1, mu=1.0)
    model = method.start(everything(X), np.random.default_rng(0))
    return X, method, model, oracle_emvgc.run(X, [a.copy() for a in model.anchors], 0.1, 1.0, 4)


@pytest.mark.slow
@pytest.mark.parametrize("cut", [1, 7, 333, 2000])
@pytest.mark.parametrize(("dtype", "tolerance", "rise"), [(np.float64, 1e-9, 0.0), (np.float32, 1e-4, 1e-6)])
def test_emvgc_on_mfeat_equals_the_oracle(mfeat_records, cut, dtype, tolerance, rise):
    X, method, model, records = mfeat_records
    source = source_of([[x.astype(dtype) for x in X]], cut)
    states, _ = sweeps(method, source, model, 4)
    for state, record in zip(states, records, strict=True):
        close(state.history[-1], record.objective, tolerance)
    close(graph(method, source, states[-1].point), records[-1].Z, tolerance)
    history = np.array(states[-1].history)
    assert (np.diff(history) <= rise * history[:-1]).all()
