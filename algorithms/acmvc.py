"""ACMVC: batches that keep arriving; the newest round reuses the last one's anchors.

Round t: min Σ_v (1/w_v) ‖X_tv - Z A_v‖² + α ‖Z - F V'‖² + β (Σ_v ‖A_v - A_v,prev‖² + ‖V - V_prev‖²),
A_v A_v' = I (m, d_v), F'F = I (n_t, k), V'V = I (m, k), Z >= 0, Σw = 1.  Round 1 has no β term.

Anchor-based continual multi-view clustering, Eq. 5.  The paper's letters k (anchors) and c (clusters) are m and k here.
The order A, Z, F, V, w is entered at Z; the rows carried between sweeps are Y = Z V (rows, k), of which F = Y G.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from aweigh.algorithms import kmeans, linalg
from aweigh.algorithms.contract import Array, Block, Pass, Sample, Sum, f64
from aweigh.algorithms.linalg import procrustes


class Model(NamedTuple):
    """Anchors A_v (m, d_v) of the next step and of the last one, V (m, k), weights w (V,), and G (k, k).

    `eye` says that F is eye(n_t, k), as the printed start has it after its first iteration.  `previous` are the A_v and
    V of the round before, None in round 1.
    """

    A: tuple[Array, ...]
    A_last: tuple[Array, ...]
    V: Array
    w: Array
    G: Array
    eye: bool
    previous: tuple[tuple[Array, ...], Array] | None
    squares: Array | None
    objective: float


class Sums(NamedTuple):
    """Z'X_v, Z'Z, the first k rows of Z, and ‖X_v‖² a view (zeros once the model knows them)."""

    ZtX: Sum
    ZtZ: Sum
    first: Sum
    squares: Sum


@dataclass(frozen=True)
class ACMVC:
    """ACMVC with m anchors (3k where not given), weight α of the factorisation and β of the history.

    `init`: "samples" or "kmeans" start A_v from m seeded sample rows or k-means centres, then V = top-k eigenvectors of
    the first Z'Z; "paper" from A_v = eye, V = 0, which depends on the order of features and samples.  The ablations of
    the paper's Table 3: `anchor_term` and `v_term` false drop their β term; `frozen` keeps A and V after round 1.
    `vectors`: what goes to k-means, with rows to unit length: the graph "z", or the indicator "f" as in the paper,
    where F'F = I blows the small directions of Z up to the size of the large ones.
    Where d_v < m no A_v has orthonormal rows: A_v'A_v = I then, and the objective may rise.
    """

    clusters: int
    anchors: int | None = None
    alpha: float = 1.0
    beta: float = 10.0
    init: str = "kmeans"
    vectors: str = "z"
    anchor_term: bool = True
    v_term: bool = True
    frozen: bool = False

    paper = "ACMVC: anchor-based continual multi-view clustering (2024)"
    missing = False
    rounds = True
    records = (Model, Sums)
    max_sweeps = 20
    tol = 1e-3

    def __post_init__(self) -> None:
        if self.m < self.clusters:
            raise ValueError(f"anchors={self.m} is less than k={self.clusters}: V (m, k) would not have V'V = I")
        if self.alpha <= 0 or self.beta < 0:
            raise ValueError(f"alpha={self.alpha} must be > 0 and beta={self.beta} >= 0")
        if self.init not in ("samples", "kmeans", "paper"):
            raise ValueError(f"init={self.init!r} must be one of samples, kmeans, paper")
        if self.vectors not in ("z", "f"):
            raise ValueError(f"vectors={self.vectors!r} must be z or f")

    @property
    def m(self) -> int:
        """Number of anchors."""
        return 3 * self.clusters if self.anchors is None else self.anchors

    @property
    def width(self) -> int:
        """Columns of Y = Z V."""
        return self.clusters

    @property
    def embedding(self) -> int:
        """Columns of Z, or of F."""
        return self.m if self.vectors == "z" else self.clusters

    @property
    def prepare(self) -> tuple[Pass, ...]:
        """V of a seeded start comes from the first Z; the printed start has V = 0."""
        return () if self.init == "paper" else (Pass(self.step, self._first_V, first=True),)

    @property
    def sweep(self) -> tuple[Pass, ...]:
        """One pass: Z at A, F, V and w, then F, V, w and A from the sums."""
        return (Pass(self.step, self.solve),)

    def start(self, sample: Sample, rng: np.random.Generator, prior: Model | None = None) -> Model:
        """Return the first model of a round: seeded anchors, or those of the round before."""
        if prior is None:
            A, V, previous = tuple(self._anchors(sample, rng)), np.zeros((self.m, self.clusters)), None
        else:
            A, V, previous = prior.A_last, prior.V, (prior.A_last, prior.V)
        nothing = np.zeros((self.clusters, self.clusters))
        return Model(A, A, V, np.full(len(A), 1.0 / len(A)), nothing, False, previous, None, np.inf)

    def _anchors(self, sample: Sample, rng: np.random.Generator) -> list[Array]:
        if self.init == "paper":
            return [np.eye(self.m, X.shape[1]) for X in sample.views]
        if self.init == "samples":
            rows = rng.choice(len(sample.positions), self.m, replace=len(sample.positions) < self.m)
            return [procrustes(f64(X[rows])) for X in sample.views]
        labels = kmeans.cluster(np.hstack(sample.views), self.m, rng)
        return [procrustes(kmeans.means(f64(X), labels, self.m)) for X in sample.views]

    def _first_V(self, model: Model, sums: Sums) -> Model:
        """Return V = top-k eigenvectors of the first Z'Z; later rounds keep the V of the round before."""
        return model._replace(V=linalg.top_eigenvectors(sums.ZtZ, self.clusters))

    def graph(self, model: Model, block: Block) -> Array:
        """Return Z = max(P, 0), P = (α F V' + Σ_v X_v A_v'/w_v) / (α + Σ_v 1/w_v), F = Y G."""
        dtype = block.views[0].dtype
        if model.eye:
            F = (block.within[:, None] == np.arange(self.clusters)).astype(dtype)
        else:
            F = block.carried.astype(dtype) @ model.G.astype(dtype)
        P = F @ (self.alpha * model.V.T).astype(dtype)
        for X, A, w in zip(block.views, model.A, model.w, strict=True):
            P += X @ (A.T / w).astype(dtype)
        return np.maximum(P / dtype.type(self.alpha + np.sum(1 / model.w)), 0)

    def step(self, model: Model, block: Block) -> tuple[Sums, Array]:
        """Return the sums of one block, and its rows of Y = Z V."""
        Z = self.graph(model, block)
        first = np.zeros((self.clusters, self.m))
        early = block.within < self.clusters
        first[block.within[early]] = Z[early]
        known = model.squares is not None
        squares = np.zeros(len(block.views)) if known else f64([linalg.squared_sum(X) for X in block.views])
        sums = Sums(tuple(f64(Z.T @ X) for X in block.views), f64(Z.T @ Z), first, squares)
        return sums, f64(Z @ model.V.astype(Z.dtype))

    def solve(self, model: Model, sums: Sums) -> Model:
        """Return V = procrustes(α Z'F + β V_prev), w_v = d_v/Σd, and A_v = procrustes(Z'X_v/w_v + β A_v,prev)."""
        squares = sums.squares if model.squares is None else model.squares
        eye = not model.V.any()
        G = self._G(model, sums)
        ZtF = sums.first.T if eye else sums.ZtZ @ model.V @ G
        frozen = self.frozen and model.previous is not None
        A_prev, V_prev = model.previous or (None, None)
        beta_a, beta_v = self.beta * self.anchor_term, self.beta * self.v_term
        pull = self.alpha * ZtF
        V = model.V if frozen else procrustes(pull if V_prev is None else pull + beta_v * V_prev)
        d2 = np.array(
            [
                x2 - 2 * np.sum(A * S) + np.sum((A @ A.T) * sums.ZtZ)
                for x2, A, S in zip(squares, model.A, sums.ZtX, strict=True)
            ]
        )
        d = np.sqrt(np.maximum(d2, 1e-12 * np.maximum(squares, 1e-300)))
        w = d / d.sum()
        objective = float(np.sum(d2 / w))
        objective += self.alpha * float(np.trace(sums.ZtZ) - 2 * np.sum(V * ZtF) + _rank(G, eye, self.clusters))
        if A_prev is not None:
            objective += beta_a * sum(float(np.sum((A - B) ** 2)) for A, B in zip(model.A, A_prev, strict=True))
            objective += beta_v * float(np.sum((V - V_prev) ** 2))
        A = model.A
        if not frozen:
            A = tuple(
                procrustes(S / wv if A_prev is None else S / wv + beta_a * A_prev[v])
                for v, (S, wv) in enumerate(zip(sums.ZtX, w, strict=True))
            )
        return Model(A, model.A, V, w, G, eye, model.previous, squares, objective)

    def view_weights(self, model: Model) -> Array:
        """Return (1/w_v) / Σ(1/w): the views' shares."""
        return (1 / model.w) / np.sum(1 / model.w)

    def landmarks(self, model: Model, features: tuple[int, ...]) -> tuple[Array, ...]:
        """Return the anchors A_v (m, d_v)."""
        return model.A_last

    def _G(self, model: Model, sums: Sums) -> Array:
        """Return G = (V'Z'Z V)^(-1/2), so that F = Z V G has orthonormal columns."""
        return linalg.inverse_root(model.V.T @ sums.ZtZ @ model.V)

    def embed(self, model: Model, sums: Sums, block: Block) -> Array:
        """Return Z, or F = Z V G, with rows to unit length: each round's F scales as 1/sqrt(n_t)."""
        Z = self.graph(model, block)
        if self.vectors == "z":
            return linalg.unit_rows(Z)
        return linalg.unit_rows(Z @ (model.V @ self._G(model, sums)).astype(Z.dtype))

    def place(self, model: Model, sums: Sums, block: Block) -> Array:
        """Return the embedding of rows that were not in the fit: their own fixed point z = P(z V G), from f = 0."""
        model = model._replace(eye=False, G=self._G(model, sums))
        for _ in range(self.max_sweeps):
            block = block._replace(carried=self.graph(model, block) @ model.V.astype(block.views[0].dtype))
        return self.embed(model, sums, block)


def _rank(G: Array, eye: bool, k: int) -> float:
    """Return ‖F‖²: k, less the directions that the Gram matrix has lost."""
    return float(k) if eye else float(np.linalg.matrix_rank(G))
