"""L2SC against its dense oracle for any cut into blocks, its graph against brute force, and the published figures."""

from typing import NamedTuple

import numpy as np
import pytest
from archive_helpers import Rows
from blocks import source_of
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import common
from oracles import l2sc as oracle

from aweigh.algorithms import graph, kmeans, scaling, scores
from aweigh.algorithms.contract import Sample
from aweigh.algorithms.l2sc import L2SC
from aweigh.io import trees
from aweigh.io.archive import open_archive
from aweigh.io.batches import import_batch
from aweigh.io.errors import DataError
from aweigh.io.rows import MemoryRows, ZarrRows
from aweigh.io.runs import RunFolder
from aweigh.pipeline.cluster import DaskRunner, embedded
from aweigh.pipeline.driver import SerialRunner, State, begin, iterate
from aweigh.pipeline.estimator import MultiViewClustering
from aweigh.pipeline.fitting import Fit, Request, Round, Saved
from aweigh.pipeline.run import fit
from aweigh.pipeline.task import MemorySource, Work, _write

TOPICS, WORDS = 3, 60
RECORDS = (
    Saved, Round, State, Sample, scaling.Prepared, scaling.ViewScaling, kmeans.Model, kmeans.Sums, *L2SC.records
)  # fmt: skip


def documents(seed, n=45):
    """(X, labels): word counts of n documents on three topics that overlap, so that their graph is connected."""
    topics = np.random.default_rng(99).dirichlet(np.full(WORDS, 0.4), TOPICS) + 0.5 / WORDS
    topics /= topics.sum(axis=1, keepdims=True)
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % TOPICS
    return np.array([rng.multinomial(60, topics[j]) for j in labels]).astype(float), labels


class Learnt(NamedTuple):
    """A task's states after each sweep, its source and per-row arrays."""

    states: list
    source: MemorySource
    rows: MemoryRows

    @property
    def E(self):
        """E (n, k) at the last sweep."""
        state, batch = self.states[-1], self.source.batches[0]
        return np.vstack([self.rows.read(state.read, batch, i) for i in range(batch.blocks)]) @ state.point.G


def learn(method, source, prior=None, sweeps=10, tol=1e-5):
    """A task learnt from a prior model, in the order of a fit."""
    rows, runner = MemoryRows(), SerialRunner()
    widths = [v.features for v in source.batches[0].views]
    sample = Sample(tuple(np.ones((1, d)) for d in widths), np.ones((1, len(widths)), bool), np.zeros(1, int))
    model = method.start(sample, np.random.default_rng(0), prior)
    for step, solve, views, _ in method.prepare:
        work = Work(source, step, model, rows, None, method.width, None, views)
        model, _, _ = runner.run(work, solve, lambda done, of: None)
    states = []
    iterate(
        runner, method, source, begin(model), rows=rows, phase="test", max_sweeps=sweeps, tol=tol,
        checkpoint=states.append,
    )  # fmt: skip
    return Learnt(states, source, rows)


def one(source, t):
    return type(source)(source.arrays, (source.batches[t],))


def close(a, b, rtol=1e-10):
    np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * max(float(np.abs(b).max()), 1e-300))


def dense_task(X, F=None):
    return oracle.normalised(oracle.affinity(X if F is None else F)), oracle.co_cluster(X)


@pytest.mark.parametrize(
    ("cut", "affinity", "b", "sweeps", "steps"),
    [
        (33, "same", "procrustes", 10, 10),
        (1, "same", "procrustes", 3, 2),
        (7, "same", "procrustes", 4, 3),
        (45, "same", "procrustes", 4, 3),
        (7, "tfidf", "procrustes", 4, 3),
        (7, "tfidf", "eigen", 4, 3),
        (45, "same", "eigen", 4, 1),
    ],
)
def test_equals_oracle_over_tasks_and_a_revisit(cut, affinity, b, sweeps, steps):
    tasks = [documents(seed)[0] for seed in range(3)]
    source = source_of([[X] for X in tasks], cut)
    method = L2SC(TOPICS, lambda_=1.0, mu=0.1, affinity=affinity, b=b, steps=steps)
    library, prior = oracle.empty(WORDS, TOPICS), None
    for t in (0, 1, 2, 0):
        K, Xh = dense_task(tasks[t], common.tfidf(tasks[t]) if affinity == "tfidf" else None)
        library, expected = oracle.learn(library, t, K, Xh, 1.0, 0.1, b=b, sweeps=sweeps, steps=steps)
        learnt = learn(method, one(source, t), prior, sweeps)
        assert len(learnt.states) == len(expected)
        for state, record in zip(learnt.states, expected, strict=True):
            close(state.history[-1], record.objective)
            close(state.model.B, record.B)
            close(state.model.L, record.L)
        close(learnt.E, expected[-1].E)
        prior = learnt.states[-1].model
        kept = {**dict(zip(prior.tasks, zip(prior.M, prior.C, strict=True), strict=True))}
        kept[int(prior.task)] = (prior.own_M, prior.own_C)
        assert sorted(kept) == [source.batches[i].start for i in sorted(library.records)]
        for i, (M, C) in library.records.items():
            close(kept[source.batches[i].start][0], M)
            close(kept[source.batches[i].start][1], C)


@pytest.mark.parametrize("cut", [7, 45])
def test_encoding_equals_oracle_and_leaves_the_library_alone(cut):
    tasks = [documents(seed)[0] for seed in range(3)]
    source = source_of([[X] for X in tasks], cut)
    method = L2SC(TOPICS, lambda_=1.0, affinity="same", steps=3, reencode=True)
    library, prior = oracle.empty(WORDS, TOPICS), None
    for t, X in enumerate(tasks):
        library, _ = oracle.learn(library, t, *dense_task(X), 1.0, 0.1, sweeps=3, steps=3)
        prior = learn(method, one(source, t), prior, 3).states[-1].model
    for t, X in enumerate(tasks[:2]):
        again = learn(method.closing, one(source, t), prior, sweeps=4, tol=-1.0)
        close(again.E, oracle.encode(library, *dense_task(X), 1.0, steps=12))
        for state in again.states:
            np.testing.assert_array_equal(state.model.B, prior.B)
            np.testing.assert_array_equal(state.model.L, prior.L)
        history = np.array(again.states[-1].history)
        assert (np.diff(history) > -1e-12).all()


def test_a_step_taken_twice_changes_nothing():
    X, _ = documents(0)
    source = source_of([[X]], 20)
    once = learn(L2SC(TOPICS, steps=2), source, sweeps=2, tol=-1.0)
    twice = learn(Twice(TOPICS, steps=2), source, sweeps=2, tol=-1.0)
    assert once.states[-1].history == twice.states[-1].history
    np.testing.assert_array_equal(once.E, twice.E)


class Twice(L2SC):
    """L2SC whose every step is taken a second time, after what the first has returned was written."""

    @property
    def prepare(self):
        return tuple(again(p) for p in super().prepare)

    @property
    def sweep(self):
        return tuple(again(p) for p in super().sweep)


def again(one_pass):
    def step(model, block):
        _, rows = one_pass.step(model, block)
        siblings = block.others
        _write(siblings.work, siblings.batch, siblings.number, rows)
        return one_pass.step(model, block)

    return one_pass._replace(step=step)


def brute(U, K):
    """`near` and `distance` from all pairs, differences under 1e-12 being ties."""
    D = np.round(((U[:, None] - U[None]) ** 2).sum(2), 12)
    near = oracle.neighbours(D, min(K, len(U) - 1))
    return near, np.take_along_axis(D, near, axis=1)


def assembled(U, cut, K, build=graph.nearest, *more):
    pieces = [(np.arange(a, min(a + cut, len(U))), U[a : a + cut]) for a in range(0, len(U), cut)]
    parts = [build(X, at, pieces, K, *more) for at, X in pieces]
    return np.vstack([p[0] for p in parts]), np.vstack([p[1] for p in parts])


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1000), n=st.integers(1, 40), cut=st.integers(1, 40), K=st.integers(1, 12))
def test_neighbours_equal_brute_force_with_duplicates_and_zero_rows(seed, n, cut, K):
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 3, (n, 4)) * rng.integers(0, 2, (n, 1))
    U = common.unit_rows(X[rng.integers(0, n, n)])
    near, distance = assembled(U, cut, K)
    expected, squared = brute(U, K)
    found = expected.shape[1]
    np.testing.assert_array_equal(near[:, :found], expected)
    np.testing.assert_allclose(distance[:, :found], squared, atol=1e-12)
    assert (near[:, found:] == np.arange(n)[:, None]).all()
    assert np.isinf(distance[:, found:]).all()


def test_neighbours_over_several_tiles(monkeypatch):
    U = common.unit_rows(np.random.default_rng(0).normal(size=(101, 5)))
    expected = assembled(U, 101, 6)
    monkeypatch.setattr(graph, "TILE", 8)
    for cut in (30, 101):
        np.testing.assert_array_equal(assembled(U, cut, 6)[0], expected[0])
    anchors = U[:7]
    everything, _ = assembled(U, 30, 6, graph.nearest_in_cells, anchors, 7)
    np.testing.assert_array_equal(everything, expected[0])
    few, _ = assembled(U, 30, 6, graph.nearest_in_cells, anchors, 3)
    other, _ = assembled(U, 101, 6, graph.nearest_in_cells, anchors, 3)
    np.testing.assert_array_equal(few, other)


def test_graph_equals_dense_affinity_and_lanczos_its_vectors(monkeypatch):
    rng = np.random.default_rng(1)
    U = common.unit_rows(rng.normal(size=(90, 4)) + 3 * rng.normal(size=(1, 4)))
    near, distance = assembled(U, 25, 10)
    weight = graph.weights(near, distance)
    K = oracle.normalised(oracle.affinity(U))
    pieces = [graph.product(near, weight, a, min(a + 13, 90), np.eye(90)) for a in range(0, 90, 13)]
    close(np.vstack(pieces), K)
    close(graph.leading_vectors(near, weight, 3), oracle.start(K, 3))
    monkeypatch.setattr(graph, "DENSE", 10)
    close(graph.leading_vectors(near, weight, 3), oracle.start(K, 3))


@pytest.mark.parametrize("n", [1, 2, 5, 11])
def test_tasks_smaller_than_k_or_the_neighbours(n):
    method, X = L2SC(4, steps=3), documents(1, n)[0]
    first = learn(method, source_of([[documents(0)[0]]], 20)).states[-1].model
    learnt = learn(method, source_of([[X]], 2), first)
    assert np.isfinite(learnt.states[-1].history).all()
    assert np.isfinite(learnt.E).all()
    gram = learnt.E.T @ learnt.E
    np.testing.assert_allclose(gram @ gram, gram, atol=1e-6)  # E'E projects on the directions that n rows have


def fitted(batches, k, scale=None, runner=None, cut=64, seed=0, **parameters):
    """The fit of batches of one or more views, and per batch its labels and embedding."""
    source, rows = source_of(batches, cut), MemoryRows()
    features = {v.name: v.features for v in source.batches[0].views}
    fit = Fit(source, L2SC(k, **parameters), Request(k, "l2sc", scale=scale, seed=seed), features, "float64", rows)
    fit.run(runner or SerialRunner())

    def read(name):
        return [np.concatenate([rows.read(name, b, i) for i in range(b.blocks)]) for b in source.batches]

    return fit, read("labels"), read("embedding")


@pytest.mark.parametrize("scale", ["none", "unit", "zscore", "zunit", "tfidf"])
def test_negative_values_are_refused(scale):
    X = documents(0)[0]
    X[3, 5] = -1.0
    with pytest.raises(DataError, match=r"values >= 0.*minmax"):
        fitted([[X]], TOPICS, scale)


def test_negative_values_of_a_later_batch_are_refused():
    later = documents(1)[0]
    later[3, 5] = -2.0
    with pytest.raises(DataError, match=r"l2sc needs values >= 0.*the smallest is -2: use --scale minmax"):
        fitted([[documents(0)[0]], [later]], TOPICS, "none", steps=1)


def test_auto_scaling_keeps_counts_and_moves_dense_views_above_zero():
    X, dense = documents(0)[0], np.random.default_rng(0).normal(size=(45, 3))
    sparse = X * (np.random.default_rng(1).random(X.shape) < 0.4)
    fit, _, _ = fitted([[sparse, dense], [sparse, 2 * dense]], TOPICS, steps=1)
    assert [s.kind for s in fit.source.scaling] == ["none", "minmax"]


def test_views_lie_side_by_side():
    X = documents(0)[0]
    together = learn(L2SC(TOPICS), source_of([[X]], 20)).states[-1].history
    apart = learn(L2SC(TOPICS), source_of([[X[:, :20], X[:, 20:]]], 20)).states[-1].history
    close(apart, together)


def test_reencoding_rewrites_the_earlier_batches_only():
    batches = [[documents(seed)[0]] for seed in range(3)]
    _, _, before = fitted(batches, TOPICS, steps=3)
    done, labels, after = fitted(batches, TOPICS, steps=3, reencode=True)
    assert [len(r.batches) for r in done.saved.rounds] == [1, 1, 1]
    assert not np.allclose(before[0], after[0])
    np.testing.assert_array_equal(before[2], after[2])
    truth = [documents(seed)[1] for seed in range(3)]
    assert common.purity(np.concatenate(truth), np.concatenate(labels)) > 0.9


def test_a_resumed_fit_ends_in_the_same_bits():
    source = source_of([[documents(seed)[0]] for seed in range(2)], 64)
    method, request = L2SC(TOPICS, steps=2, reencode=True), Request(TOPICS, "l2sc", max_sweeps=3)

    def run(saved, stop):
        kept = []

        def save(saved):
            kept.append(trees.loads(trees.dumps(saved), RECORDS))
            if len(kept) == stop:
                raise InterruptedError

        Fit(source, method, request, {"v0": WORDS}, "float64", rows, save=save, saved=saved).run(SerialRunner())
        return kept

    rows = MemoryRows()
    whole, expected = run(Saved(), None), rows.blocks
    for stop in range(1, 13):  # after scaling, three sweeps and the round of two batches, and those of the first again
        rows = MemoryRows()
        with pytest.raises(InterruptedError):
            run(Saved(), stop)
        run(whole[stop - 1], None)
        for key in expected:
            np.testing.assert_array_equal(rows.blocks[key], expected[key])


def test_too_many_rows_are_refused_with_the_way_out():
    X = documents(0)[0]
    with pytest.raises(DataError, match=r"45 rows is more than the 40 .* graph=cells .*exact_rows"):
        fitted([[X]], TOPICS, exact_rows=40)
    fitted([[X]], TOPICS, exact_rows=40, graph="cells")
    with pytest.raises(DataError, match="45 rows is more than the 40 that graph=cells"):
        fitted([[X]], TOPICS, exact_rows=4, graph="cells")


def test_parameters_are_checked():
    with pytest.raises(ValueError, match="affinity='x' must be one of auto, tfidf, same"):
        L2SC(3, affinity="x")
    with pytest.raises(ValueError, match="eta=0"):
        L2SC(3, eta=0.0)
    with pytest.raises(ValueError, match="at least 1"):
        L2SC(3, neighbours=0)


def test_new_rows_are_placed_where_the_fit_puts_their_like():
    batches, truth = zip(*(([x], y) for x, y in (documents(seed) for seed in range(3))), strict=True)
    model = MultiViewClustering(TOPICS, method="l2sc", scale="none", settings={"steps": 3}).fit(batches[0])
    for X in batches[1:]:
        model.partial_fit(X)
    found = model.predict(batches[2])
    assert np.mean(found == model.labels_[90:]) > 0.8
    assert common.purity(truth[2], found) > 0.9


def test_dask_and_serial_label_alike(tmp_path):
    path = str(tmp_path / "a.zarr")
    for t in range(2):
        import_batch(path, {"words": Rows(documents(t)[0])}, name=f"t{t}", block_rows=12)
    wanted = {"settings": {"reencode": True, "steps": 2}, "max_sweeps": 2}
    with embedded(2, "1GiB") as client:
        record = fit(path, TOPICS, "l2sc", **wanted, run="dask", runner=DaskRunner(client))
    fit(path, TOPICS, "l2sc", **wanted, run="serial", runner=SerialRunner())
    archive = open_archive(path)
    for name in ("labels", "embedding", "confidence"):
        one, other = (ZarrRows(path, RunFolder(archive, run).folder) for run in ("dask", "serial"))
        for batch in archive.batches:
            for block in range(batch.blocks):
                np.testing.assert_array_equal(one.read(name, batch, block), other.read(name, batch, block))
    assert [r["sweeps"] for r in record["rounds"]] == [2, 2]
    assert record["solved_on"].startswith("scheduler")


@pytest.mark.slow
def test_webkb4_meets_the_published_figures(shared_data):
    data = shared_data("webkb4")
    rows = [np.flatnonzero(data["task"] == t) for t in range(4)]
    batches = [[data["views"][0][r]] for r in rows]
    _, labels, _ = fitted(batches, 4, "none", affinity="tfidf", lambda_=10.0, reencode=True)
    found = [scores.scores(common.contingency(data["labels"][r], y).T) for r, y in zip(rows, labels, strict=True)]
    mean = {name: np.mean([f[name] for f in found]) for name in ("purity", "nmi", "ri")}
    assert mean["purity"] >= 0.7714
    assert mean["nmi"] >= 0.4626
    assert mean["ri"] >= 0.7758


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [("hdigit", 0.97), ("webkb4", 0.9), ("bdgp", 0.58)])
def test_recall_of_the_approximate_graph(shared_data, name, least):
    X = shared_data(name)["views"][0]
    U = common.unit_rows(X) if name == "hdigit" else common.tfidf(X)
    anchors = U[np.sort(np.random.default_rng(0).choice(len(U), max(len(U) // 64, 32), replace=False))]
    exact, _ = assembled(U, 2500, 10)
    near, _ = assembled(U, 2500, 10, graph.nearest_in_cells, anchors, L2SC(2).probes)
    assert np.mean((near[:, :, None] == exact[:, None]).any(axis=2)) > least
