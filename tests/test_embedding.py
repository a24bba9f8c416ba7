"""The soft cut-off of an anchor graph's singular vectors, and the figures that it must reach with nothing else set."""

import numpy as np
import pytest

from aweigh.algorithms import linalg
from aweigh.algorithms.scores import contingency, scores
from aweigh.pipeline.estimator import MultiViewClustering


def test_soft_map_weighs_left_singular_vectors():
    Z = np.random.default_rng(0).random((50, 7))
    U, sigma, _ = np.linalg.svd(Z, full_matrices=False)
    weight = sigma**3 / (sigma**3 + sigma[2] ** 3)
    found = Z @ linalg.embedding_map(Z.T @ Z, 3, "soft")
    np.testing.assert_allclose(found @ found.T, (U * weight**2) @ U.T, atol=1e-10)


@pytest.mark.parametrize("rank", [0, 2, 4])
def test_soft_map_drops_lost_directions(rank):
    rng = np.random.default_rng(0)
    Z = rng.random((50, rank)) @ rng.random((rank, 7))
    found = Z @ linalg.embedding_map(Z.T @ Z, 3, "soft")
    assert np.isfinite(found).all()
    assert np.linalg.matrix_rank(found, tol=1e-6) == rank


@pytest.mark.parametrize(
    ("columns", "scale", "settings", "acc", "nmi"),
    [
        (range(6), "auto", {}, 0.92, 0.86),
        ((1, 4), "zscore", {"anchors": 50, "lambda": 1e-4, "mu": 1e-4}, 0.885, 0.82),
    ],
)
def test_one_embedding_default_serves_few_and_many_anchors(shared_data, columns, scale, settings, acc, nmi):
    data = shared_data("mfeat")
    views = [data["views"][c].astype(np.float32) for c in columns]
    labels = MultiViewClustering(10, method="emvgc-lg", scale=scale, settings=settings).fit_predict(views)
    found = scores(contingency(labels, data["labels"], 10, 10))
    assert found["acc"] >= acc
    assert found["nmi"] >= nmi
