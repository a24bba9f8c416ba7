"""Odd shapes, for every method: each works or is refused clearly."""

import numpy as np
import pytest
from arrays import Rows, blobs, results

from aweigh.algorithms import METHODS, scores
from aweigh.io.batches import import_batch
from aweigh.io.errors import DataError
from aweigh.pipeline import MultiViewClustering, fit
from aweigh.pipeline.driver import SerialRunner

EVERY = sorted(METHODS)


def clustered(X, k, method, **more):
    """Fit views in memory; the labels are in range and everything is finite."""
    made = MultiViewClustering(k, method=method, random_state=0, **more).fit(X)
    assert made.labels_.shape == (len(X[0]),)
    assert set(np.unique(made.labels_)) <= set(range(k))
    assert np.isfinite(made.embedding_).all()
    assert np.isfinite(made.confidence_).all()
    assert np.isfinite(made.objective_).all()
    return made


def accuracy(made, labels):
    k = int(labels.max()) + 1
    return scores.scores(scores.contingency(made.labels_, labels, made.n_clusters, k))["acc"]


@pytest.fixture(scope="module")
def data():
    return blobs(200, (20, 12), 4, spread=3.0)


@pytest.mark.parametrize("method", EVERY)
class TestEveryMethod:
    def test_fewer_features_than_anchors(self, method):
        X, labels = blobs(200, (3, 2), 4, spread=6.0)
        assert accuracy(clustered(X, 4, method), labels) > 0.5

    def test_one_view(self, method, data):
        assert accuracy(clustered(data[0][:1], 4, method), data[1]) > 0.8

    def test_a_row_of_zeros_in_one_view(self, method, data):
        X = [x.copy() for x in data[0]]
        X[1][5] = 0
        clustered(X, 4, method, scale="unit" if method != "l2sc" else "auto")

    def test_duplicate_rows(self, method, data):
        X = [np.repeat(x[:50], 4, axis=0) for x in data[0]]
        made = clustered(X, 4, method)
        assert (made.labels_.reshape(50, 4) == made.labels_.reshape(50, 4)[:, :1]).mean() > 0.9

    def test_two_identical_views(self, method, data):
        assert accuracy(clustered([data[0][0], data[0][0]], 4, method), data[1]) > 0.8

    def test_two_clusters(self, method):
        X, labels = blobs(120, (8, 5), 2, spread=4.0)
        assert accuracy(clustered(X, 2, method), labels) > 0.9

    def test_a_hundred_clusters(self, method):
        X, labels = blobs(1500, (24, 16), 100, spread=6.0)
        assert accuracy(clustered(X, 100, method), labels) > 0.3

    def test_a_batch_smaller_than_k(self, method, data, tmp_path):
        path = tmp_path / "a.zarr"
        X = [np.abs(x) for x in data[0]] if method == "l2sc" else data[0]
        for t, rows in enumerate((slice(0, 150), slice(150, 153))):
            import_batch(path, {f"v{i}": Rows(np.ascontiguousarray(x[rows])) for i, x in enumerate(X)}, name=f"b{t}")
        record = fit(str(path), 4, method, runner=SerialRunner())
        assert len(results(str(path), record["run"])[0]) == 153

    def test_a_choice_of_views(self, method, data, tmp_path):
        path = tmp_path / "a.zarr"
        import_batch(path, {f"v{i}": Rows(x) for i, x in enumerate((*data[0], data[0][0][:, :1]))})
        record = fit(str(path), 4, method, views=("v1", "v0"), runner=SerialRunner())
        assert list(record["scaling"]) == ["v1", "v0"]

    def test_constant_features(self, method, data):
        X = [np.hstack([x, np.full((200, 2), 7.0)]) for x in data[0]]
        assert accuracy(clustered(X, 4, method), data[1]) > 0.8

    def test_more_clusters_than_samples(self, method):
        X, _ = blobs(5, (4, 3), 2)
        with pytest.raises(DataError, match="k=6 clusters were asked of 5 samples"):
            MultiViewClustering(6, method=method).fit(X)

    def test_too_many_anchors(self, method, data):
        if not hasattr(METHODS[method](2), "m"):
            pytest.skip("has no anchors")
        with pytest.raises(DataError, match="201 anchors were asked of"):
            MultiViewClustering(4, method=method, settings={"anchors": 201}).fit(data[0])

    def test_predict_gives_fitted_rows_their_labels(self, method, data):
        made = clustered(data[0], 4, method)
        agreed = (made.predict(data[0]) == made.labels_).mean()
        assert agreed == 1.0 if not METHODS[method](2).width and not METHODS[method].rounds else agreed > 0.9


def test_a_view_missing_in_a_whole_batch(data, tmp_path):
    X, _ = data
    path = tmp_path / "a.zarr"
    import_batch(path, {"a": Rows(X[0][:120]), "b": Rows(X[1][:120])}, name="both", block_rows=50)
    import_batch(path, {"a": Rows(np.ascontiguousarray(X[0][120:]))}, name="one", block_rows=50)
    record = fit(str(path), 4, runner=SerialRunner())
    assert record["method"] == "imvc-cbg"
    assert len(results(str(path), record["run"])[0]) == 200


def test_the_estimator_is_a_scikit_learn_estimator(data):
    from sklearn.base import clone

    made = MultiViewClustering(4, method="emvgc-lg", settings={"lambda": 0.2}, random_state=3)
    copy = clone(made).set_params(n_clusters=5)
    assert copy.get_params()["n_clusters"] == 5
    assert made.get_params()["settings"] == {"lambda": 0.2}
    assert "n_clusters=5" in repr(copy)
    np.testing.assert_array_equal(made.fit_predict(data[0]), made.fit(data[0]).labels_)


def test_the_estimator_and_an_archive_give_the_same_labels(data, tmp_path):
    X = [x.copy() for x in data[0]]
    X[1][::7] = np.nan
    path = tmp_path / "a.zarr"
    import_batch(path, {f"view{i}": Rows(x) for i, x in enumerate(X)})
    for method in ("imvc-cbg", "auto"):
        record = fit(str(path), 4, method, seed=5, runner=SerialRunner())
        made = MultiViewClustering(4, method=method, random_state=5).fit(X)
        np.testing.assert_array_equal(results(str(path), record["run"])[0], made.labels_)


def test_partial_fit_learns_batch_after_batch(data):
    X, labels = data
    made = MultiViewClustering(4, method="acmvc")
    for first in range(0, 200, 50):
        made.partial_fit([x[first : first + 50] for x in X])
    assert made.labels_.shape == (200,)
    assert accuracy(made, labels) > 0.8
    with pytest.raises(TypeError, match="learns all rows together"):
        MultiViewClustering(4, method="emvgc-lg").fit(X).partial_fit(X)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bdgp", "ngs"])
@pytest.mark.parametrize("share", [f"0.{i}" for i in range(1, 10)])
def test_missing_views_end_to_end(shared_data, tmp_path, name, share):
    data, present = shared_data(name), shared_data(f"{name}_masks")[f"present_{share}"].astype(bool)
    X = [np.where(present[:, [v]], x, np.nan) for v, x in enumerate(data["views"])]
    path = tmp_path / "a.zarr"
    import_batch(path, {f"v{i}": Rows(x) for i, x in enumerate(X)}, labels=data["labels"])
    record = fit(str(path), 5, runner=SerialRunner())
    assert record["method"] == "imvc-cbg"
    found = scores.scores(scores.contingency(results(str(path), record["run"])[0], data["labels"], 5, 5))
    print(f"{name} {share} of the samples complete: ACC {found['acc']:.3f} NMI {found['nmi']:.3f}")
    assert found["acc"] > 0.3
