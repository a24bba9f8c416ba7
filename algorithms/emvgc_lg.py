"""EMVGC-LG: an anchor graph with local and global structure, for complete views.

min over A, Z:  Σ_v ‖X_v - Z A_v‖² + λ Σ_v Σ_j s_j ‖a_vj‖² + μ ‖Z‖²,  rows of Z on the simplex, s = Z'1.

Efficient Multi-View Graph Clustering with Local and Global Structure Preservation, Eq. 6 (with Σ‖X_v‖² added, so that
the value is not negative and runs compare).  One pass over the data is one iteration: a block solves its rows of Z at
the current anchors and adds Z'X_v, Z'Z and s; the anchors follow from the sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from aweigh.algorithms import kmeans, linalg, simplex
from aweigh.algorithms.contract import Array, Block, Pass, Sample, Sum, f64


class Model(NamedTuple):
    """Anchors A_v (m, d_v), their shared quadratic Q (m, m) and q (m,), and the objective of the last sweep."""

    anchors: tuple[Array, ...]
    Q: Array
    q: Array
    squares: float | None
    objective: float


class Sums(NamedTuple):
    """Z'X_v, Z'Z, s and Σ‖X_v‖² (zero once the model knows it)."""

    ZtX: Sum
    ZtZ: Sum
    s: Sum
    squares: Sum


@dataclass(frozen=True)
class EMVGCLG:
    """EMVGC-LG with m anchors (3k where not given), local weight λ and global weight μ.

    `vectors`: which left singular vectors of Z are the embedding: the first "k", "all" m as in the authors' programs,
    or "soft", all m with vector j weighted by σ_j³ / (σ_j³ + σ_k³): right both where m is near k and far beyond it.
    An anchor that no sample uses keeps its old value: the pseudo-inverse would send it to zero, and two such anchors
    make Q singular up to μ.
    """

    clusters: int
    anchors: int | None = None
    lambda_: float = 0.1
    mu: float = 1.0
    vectors: str = "soft"

    paper = "EMVGC-LG: efficient multi-view graph clustering with local and global structure preservation (2023)"
    missing = False
    rounds = False
    records = (Model, Sums)
    width = 0
    prepare = ()
    max_sweeps = 50
    tol = 3e-4

    def __post_init__(self) -> None:
        if self.m < self.clusters:
            raise ValueError(f"anchors={self.m} is less than k={self.clusters}: the graph would have too low a rank")
        if self.lambda_ < 0 or self.mu < 0:
            raise ValueError(f"lambda={self.lambda_} and mu={self.mu} must be >= 0")
        if self.vectors not in linalg.VECTORS:
            raise ValueError(f"vectors={self.vectors!r} must be one of {', '.join(linalg.VECTORS)}")

    @property
    def m(self) -> int:
        """Number of anchors."""
        return 3 * self.clusters if self.anchors is None else self.anchors

    @property
    def embedding(self) -> int:
        """Columns of the embedding."""
        return self.clusters if self.vectors == "k" else self.m

    @property
    def sweep(self) -> tuple[Pass, ...]:
        """One pass: Z at the anchors, then the anchors from the sums."""
        return (Pass(self.step, self.solve),)

    def start(self, sample: Sample, rng: np.random.Generator, prior: Model | None = None) -> Model:
        """Return anchors A_v: the means a view of one k-means over the views side by side (aligned starts)."""
        if prior is not None:
            return prior._replace(squares=None)
        labels = kmeans.cluster(np.hstack(sample.views), self.m, rng)
        return self._model(tuple(kmeans.means(f64(X), labels, self.m) for X in sample.views), None, np.inf)

    def _model(self, anchors: tuple[Array, ...], squares: float | None, objective: float) -> Model:
        q = sum(np.einsum("ij,ij->i", A, A) for A in anchors)
        Q = sum(A @ A.T for A in anchors) + self.mu * np.eye(self.m)
        return Model(anchors, Q, q, squares, objective)

    def graph(self, model: Model, block: Block) -> Array:
        """Return Z (rows, m): row z minimises ½ z'Qz + f'z on the simplex, f = -Σ_v A_v x_v + (λ/2) q.

        The paper's Eq. 11 prints the λ/2 term with the wrong sign.
        """
        dtype = block.views[0].dtype
        F = np.tile((self.lambda_ / 2 * model.q).astype(dtype), (len(block.views[0]), 1))
        for X, A in zip(block.views, model.anchors, strict=True):
            F -= X @ A.T.astype(dtype)
        return simplex.simplex_qp(model.Q, F)

    def step(self, model: Model, block: Block) -> tuple[Sums, None]:
        """Return the sums of one block at the current anchors."""
        Z = self.graph(model, block)
        squares = sum(map(linalg.squared_sum, block.views)) if model.squares is None else 0.0
        ZtX = tuple(f64(Z.T @ X) for X in block.views)
        return Sums(ZtX, f64(Z.T @ Z), Z.sum(0, dtype=np.float64), f64(squares)), None

    def solve(self, model: Model, sums: Sums) -> Model:
        """Return A_v = (Z'Z + λ diag(s))⁻¹ Z'X_v, and the objective of the anchors that Z was solved at."""
        squares = float(sums.squares) if model.squares is None else model.squares
        objective = squares + self.lambda_ * float(sums.s @ model.q) + self.mu * float(np.trace(sums.ZtZ))
        for A, ZtX in zip(model.anchors, sums.ZtX, strict=True):
            objective += float(np.sum((A @ A.T) * sums.ZtZ) - 2 * np.sum(A * ZtX))
        used = sums.s > 1e-12 * sums.s.sum()
        H = sums.ZtZ[np.ix_(used, used)] + self.lambda_ * np.diag(sums.s[used])
        anchors = []
        for A, ZtX in zip(model.anchors, sums.ZtX, strict=True):
            A = A.copy()
            A[used] = np.linalg.lstsq(H, ZtX[used], rcond=None)[0]
            anchors.append(A)
        return self._model(tuple(anchors), squares, objective)

    def landmarks(self, model: Model, features: tuple[int, ...]) -> tuple[Array, ...]:
        """Return the anchors A_v (m, d_v)."""
        return model.anchors

    def place(self, model: Model, sums: Sums, block: Block) -> Array:
        """Return the embedding of rows that were not in the fit: the same map."""
        return self.embed(model, sums, block)

    def embed(self, model: Model, sums: Sums, block: Block) -> Array:
        """Return the left singular vectors of Z that `vectors` names, rows to unit length."""
        W = linalg.embedding_map(sums.ZtZ, self.clusters, self.vectors)
        return linalg.unit_rows(self.graph(model, block) @ W.astype(block.views[0].dtype))
