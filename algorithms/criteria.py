"""How good a clustering looks without labels, from sums over the rows, and which number of clusters that speaks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from aweigh.algorithms import kmeans, sampling, scores
from aweigh.algorithms.contract import Array, Block, Gather, Sum, f64


class Moments(NamedTuple):
    """A cluster's sums of rows (k, d) and counts (k,), Σ‖x‖², and the rows of a seeded sample with their clusters."""

    rows: Sum
    counts: Sum
    squares: Sum
    sample: Gather
    labels: Gather


class Spread(NamedTuple):
    """A cluster's sum of the distances of its rows to its mean (k,), and the sum of their squares."""

    distances: Sum
    squares: Sum


@dataclass(frozen=True)
class MomentsOf:
    """The step that adds up a block's rows by their labels; views are (rows, labels)."""

    clusters: int
    seed: int
    bound: int

    def __call__(self, model: None, block: Block) -> tuple[Moments, None]:
        X, labels = block.views[0], block.views[1]
        rows, counts = kmeans.sums(X, labels, self.clusters)
        chosen = sampling.position_hash(block.positions, self.seed) <= np.uint64(self.bound)
        squares = np.einsum("ij,ij->i", X, X).sum(dtype=np.float64)
        return Moments(rows, counts, f64(squares), X[chosen], labels[chosen]), None


@dataclass(frozen=True)
class SpreadOf:
    """The step that adds up how far a block's rows lie from the means (k, d) of their clusters."""

    def __call__(self, means: Array, block: Block) -> tuple[Spread, None]:
        X, labels = f64(block.views[0]), block.views[1]
        squares = np.einsum("ij,ij->i", X - means[labels], X - means[labels])
        distances = np.bincount(labels, np.sqrt(squares), len(means))
        return Spread(distances, f64(squares.sum())), None


def calinski_harabasz(moments: Moments, spread: Spread) -> float | None:
    """Return (B / (k - 1)) / (W / (n - k)), the spread of the means against that of the rows; None where undefined."""
    used, n = moments.counts > 0, moments.counts.sum()
    means, mean = _means(moments), moments.rows.sum(0) / n
    k, within = int(used.sum()), float(spread.squares)
    between = float(np.sum(moments.counts[used] * ((means[used] - mean) ** 2).sum(1)))
    return between * (n - k) / (within * (k - 1)) if k > 1 and n > k and within > 0 else None


def davies_bouldin(moments: Moments, spread: Spread) -> float | None:
    """Return the mean over clusters of the worst (S_i + S_j) / d_ij: small where clusters lie apart."""
    used = moments.counts > 0
    means, S = _means(moments)[used], spread.distances[used] / moments.counts[used]
    if used.sum() < 2:
        return None
    d = np.sqrt(_distances(means, means))
    np.fill_diagonal(d, np.inf)
    if (d == 0).any():
        return None
    return float(((S[:, None] + S[None]) / d).max(1).mean())


def _means(moments: Moments) -> Array:
    return moments.rows / np.maximum(moments.counts, 1)[:, None]


def _distances(X: Array, Y: Array) -> Array:
    return np.maximum((X**2).sum(1)[:, None] - 2 * X @ Y.T + (Y**2).sum(1), 0)


def silhouette(X: Array, labels: Array) -> float | None:
    """Return the mean silhouette of a sample's rows (s, d) among themselves; None where all have one label.

    A row alone in its cluster counts 0.
    """
    names, labels = np.unique(labels, return_inverse=True)
    if len(names) < 2 or len(names) == len(labels):
        return None
    D = np.sqrt(_distances(f64(X), f64(X)))
    np.fill_diagonal(D, 0)
    member = np.eye(len(names))[labels]
    counts, totals = member.sum(0), D @ member
    own = totals[np.arange(len(X)), labels] / np.maximum(counts[labels] - 1, 1)
    others = np.where(member > 0, np.inf, totals / counts).min(1)
    widths = np.where(counts[labels] > 1, (others - own) / np.maximum(np.maximum(own, others), 1e-300), 0.0)
    return float(widths.mean())


def graph_eigenvalues(G: Array) -> Array:
    """Return the eigenvalues (m,), largest first, of the normalised anchor graph Λ^(-1/2) Z'Z Λ^(-1/2), Λ = diag(Z'Z1).

    They are those of the graph Z Λ^(-1) Z' between samples: as many lie near 1 as it has parts that hang together.
    """
    degree = np.maximum(G.sum(1), 0)
    h = np.where(degree > 1e-12 * degree.max(), 1 / np.sqrt(np.where(degree > 0, degree, 1)), 0.0)
    return np.linalg.eigvalsh(h[:, None] * (G + G.T) / 2 * h)[::-1]


def eigengap(G: Array, k: int) -> float | None:
    """Return the gap between eigenvalues k and k + 1 of the normalised anchor graph; None where it has k."""
    lam = graph_eigenvalues(G)
    return float(lam[k - 1] - lam[k]) if len(lam) > k else None


def co_association(labels: Array) -> Array:
    """Return how often each pair of a sample's rows shares a cluster (s, s), of clusterings as columns (s, members)."""
    together = np.zeros((len(labels), len(labels)))
    for column in labels.T:
        together += column[:, None] == column[None]
    return together / labels.shape[1]


def consensus_gaps(labels: Array, ks: Sequence[int], seed: int = 0) -> dict[int, float | None]:
    """Return for each k how clearly clusterings (s, members) of a sample together fall into k clusters.

    It is lifetime × (eigenvalue ratio - 1) of their co-association.  The lifetime (Fred and Jain's evidence
    accumulation) is the stretch of heights at which average linkage has k clusters; the ratio is that of eigenvalue k
    to k + 1, where those under 1, what a row has by itself, count as 1.  Both look for the same step from different
    sides, and each alone is easily taken in: the first by a few outlying rows, the second by a slow decay.  Both are
    means over 20 draws of 250 rows, since a linkage hangs on single rows.  None from k = the rows of a draw on.
    """
    rng, rows = np.random.default_rng(seed), min(len(labels), DRAWN)
    known = [k for k in ks if k < rows]
    lifetimes, logs = np.zeros(len(known)), np.zeros(len(known))
    for _ in range(DRAWS):
        together = co_association(labels[rng.choice(len(labels), rows, replace=False)])
        eigenvalues = np.log(np.maximum(np.linalg.eigvalsh(together)[::-1], 1.0))
        heights = _heights(together)
        for i, k in enumerate(known):
            lifetimes[i] += (heights[rows - k] - heights[rows - k - 1]) / DRAWS
            logs[i] += (eigenvalues[k - 1] - eigenvalues[k]) / DRAWS
    found = dict(zip(known, (lifetimes * np.expm1(logs)).tolist(), strict=True))
    return {k: found.get(k) for k in ks}


DRAWS, DRAWN = 20, 250


def _heights(together: Array) -> Array:
    """Return the heights at which average linkage joins, rising."""
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    return linkage(squareform(1 - together, checks=False), "average")[:, 2]  # type: ignore[no-any-return]


def agreements(labels: Array) -> Array:
    """Return the mean ARI (members,) of each clustering of a sample with the others, 1 where there are no others."""
    members, sizes = labels.shape[1], labels.max(0) + 1
    found = np.zeros((members, members))
    for i in range(members):
        for j in range(i):
            table = scores.contingency(labels[:, i], labels[:, j], sizes[i], sizes[j])
            found[i, j] = found[j, i] = scores.scores(table)["ari"]
    return found.sum(1) / (members - 1) if members > 1 else np.ones(1)
