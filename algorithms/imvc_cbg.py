"""IMVC-CBG: a consensus bipartite graph for views with missing rows.

min Σ_v α_v² ‖X_v - (a_v∘Z) C'W_v'‖² + λ ‖Z‖²,  W_v'W_v = I (d_v, k), C (k, m), rows of Z on the simplex, Σα = 1;
X_v is zero where a sample misses view v (a_v = 0).

Highly-efficient Incomplete Large-scale Multi-view Clustering with Consensus Bipartite Graph (CVPR 2022), with the
reconstruction form that its W step belongs to.  The order W, C, Z, α is entered at Z: one pass is one iteration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from aweigh.algorithms import kmeans, linalg, simplex
from aweigh.algorithms.contract import Array, Block, Pass, Sample, Sum, f64
from aweigh.algorithms.linalg import procrustes


class Model(NamedTuple):
    """Bases W_v (d_v, k), consensus C (k, m), weights α (V,), ‖X_v‖² once known, objective of the last sweep."""

    W: tuple[Array, ...]
    C: Array
    alpha: Array
    squares: Array | None
    objective: float


class Sums(NamedTuple):
    """Z'X_v, (a_v∘Z)'(a_v∘Z) a view, Z'Z, and ‖X_v‖² a view (zeros once the model knows them)."""

    ZtX: Sum
    ZtZ_present: Sum
    ZtZ: Sum
    squares: Sum


@dataclass(frozen=True)
class IMVCCBG:
    """IMVC-CBG with m anchors (k where not given) and weight λ of ‖Z‖².

    `weights`: "1/r" (what the published results follow) or "1/r2" (what the paper prints), r_v = ‖X_v - (a_v∘Z)C'W_v'‖.
    `init`: "kmeans" starts from k-means labels of the complete samples and C = eye; "paper" from Z = [I_m; 0] and
    C = 0, which depends on the order of samples and of features.  `vectors`: the first "k" or "all" left singular
    vectors of Z are the embedding, or "soft", all of them weighted by σ_j³ / (σ_j³ + σ_k³), with rows to unit length
    where `unit_rows`.  The Z step is exact for m = k only, where C'C = I.
    """

    clusters: int
    anchors: int | None = None
    lambda_: float = 1.0
    weights: str = "1/r"
    init: str = "kmeans"
    vectors: str = "soft"
    unit_rows: bool = True

    paper = "IMVC-CBG: incomplete multi-view clustering with a consensus bipartite graph (CVPR 2022)"
    missing = True
    rounds = False
    records = (Model, Sums)
    width = 0
    max_sweeps = 50
    tol = 1e-4

    def __post_init__(self) -> None:
        if self.m < self.clusters:
            raise ValueError(f"anchors={self.m} is less than k={self.clusters}: C has no orthonormal rows")
        if self.lambda_ <= 0:
            raise ValueError(f"lambda={self.lambda_} must be > 0: it divides the Z step")
        for name, allowed in (("weights", ("1/r", "1/r2")), ("init", ("kmeans", "paper")), ("vectors", linalg.VECTORS)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r} must be one of {', '.join(allowed)}")

    @property
    def m(self) -> int:
        """Number of anchors."""
        return self.clusters if self.anchors is None else self.anchors

    @property
    def embedding(self) -> int:
        """Columns of the embedding."""
        return self.clusters if self.vectors == "k" else self.m

    @property
    def prepare(self) -> tuple[Pass, ...]:
        """The printed start reads the first m samples; the other starts need the seeded sample alone."""
        return (Pass(self._first_step, self._first_solve, first=True),) if self.init == "paper" else ()

    @property
    def sweep(self) -> tuple[Pass, ...]:
        """One pass: Z at W, C and α, then α, W and C from the sums."""
        return (Pass(self.step, self.solve),)

    def start(self, sample: Sample, rng: np.random.Generator, prior: Model | None = None) -> Model:
        """Return W and C that follow from Z_0, the one-hot labels of complete samples, and C_0 = eye (k, m)."""
        if prior is not None:
            return prior._replace(squares=None)
        if self.init == "paper":
            return self._with_C(tuple(np.zeros((self.m, X.shape[1])) for X in sample.views))
        complete = sample.present.all(axis=1)
        if complete.sum() < self.m:  # too few samples have every view: zeros stand for what is missing
            complete = np.full(len(sample.positions), True)
        views = [X[complete] for X in sample.views]
        labels = kmeans.cluster(np.hstack(views), self.m, rng)
        Z = np.eye(self.m)[labels]
        return self._with_C(tuple(Z.T @ f64(X) for X in views))

    def _with_C(self, ZtX: tuple[Array, ...]) -> Model:
        """Return W_v = procrustes(X_v'Z_0 C_0'), and C = procrustes(Σ α² W_v'X_v'Z_0); the printed C_0 is 0."""
        V = len(ZtX)
        C0 = np.zeros((self.clusters, self.m)) if self.init == "paper" else np.eye(self.clusters, self.m)
        W = tuple(procrustes(S.T @ C0.T) for S in ZtX)
        C = procrustes(sum(B.T @ S.T for B, S in zip(W, ZtX, strict=True)) / V**2)
        return Model(W, C, np.full(V, 1.0 / V), None, np.inf)

    def _first_step(self, model: Model, block: Block) -> tuple[Sums, None]:
        """Return Z_0'X_v of Z_0 = [I_m; 0]: the first m samples themselves."""
        rows = np.flatnonzero(block.positions < self.m)
        Z = np.zeros((len(block.positions), self.m))
        Z[rows, block.positions[rows]] = 1
        nothing = np.zeros((self.m, self.m))
        V = len(block.views)
        return Sums(tuple(Z.T @ f64(X) for X in block.views), (nothing,) * V, nothing, np.zeros(V)), None

    def _first_solve(self, model: Model, sums: Sums) -> Model:
        return self._with_C(sums.ZtX)

    def graph(self, model: Model, block: Block) -> Array:
        """Return Z (rows, m): simplex( Σ_v α_v² a_v (x_v W_v C) / (λ + Σ_v α_v² a_v) ) a row."""
        dtype, P = block.views[0].dtype, 0
        for X, W, a in zip(block.views, model.W, model.alpha, strict=True):
            P = P + X @ ((a * a) * (W @ model.C)).astype(dtype)  # X is zero where missing, which stands for a_v
        weight = self.lambda_ + block.present @ (model.alpha**2)
        return simplex.project_simplex(P / weight.astype(dtype)[:, None])

    def step(self, model: Model, block: Block) -> tuple[Sums, None]:
        """Return the sums of one block."""
        Z = self.graph(model, block)
        ZtZ = f64(Z.T @ Z)
        known = model.squares is not None
        squares = np.zeros(len(block.views)) if known else f64([linalg.squared_sum(X) for X in block.views])
        seen = tuple(_present_gram(Z, a, ZtZ) for a in block.present.T)
        return Sums(tuple(f64(Z.T @ X) for X in block.views), seen, ZtZ, squares), None

    def solve(self, model: Model, sums: Sums) -> Model:
        """Return α from the residuals, the objective after it, then W_v = procrustes(X_v'(a_v∘Z) C') and C."""
        squares = sums.squares if model.squares is None else model.squares
        CtC = model.C.T @ model.C
        r2 = np.array(
            [
                x2 - 2 * np.sum((W @ model.C) * S.T) + np.sum(CtC * G)
                for x2, W, S, G in zip(squares, model.W, sums.ZtX, sums.ZtZ_present, strict=True)
            ]
        )
        r = np.sqrt(np.maximum(r2, 1e-12 * np.maximum(squares, 1e-300)))
        alpha = 1 / r if self.weights == "1/r" else 1 / r**2
        alpha = alpha / alpha.sum()
        objective = float(np.sum(alpha**2 * np.maximum(r2, 0)) + self.lambda_ * np.trace(sums.ZtZ))
        W = tuple(procrustes(S.T @ model.C.T) for S in sums.ZtX)
        C = procrustes(sum(a * a * (B.T @ S.T) for a, B, S in zip(alpha, W, sums.ZtX, strict=True)))
        return Model(W, C, alpha, squares, objective)

    def view_weights(self, model: Model) -> Array:
        """Return α."""
        return model.alpha

    def landmarks(self, model: Model, features: tuple[int, ...]) -> tuple[Array, ...]:
        """Return the bases W_v' (k, d_v), whose span holds the anchors C'W_v'."""
        return tuple(W.T for W in model.W)

    def place(self, model: Model, sums: Sums, block: Block) -> Array:
        """Return the embedding of rows that were not in the fit: the same map."""
        return self.embed(model, sums, block)

    def embed(self, model: Model, sums: Sums, block: Block) -> Array:
        """Return the left singular vectors of Z that `vectors` names, rows to unit length where asked."""
        W = linalg.embedding_map(sums.ZtZ, self.clusters, self.vectors)
        U = self.graph(model, block) @ W.astype(block.views[0].dtype)
        return linalg.unit_rows(U) if self.unit_rows else U


def _present_gram(Z: Array, present: Array, whole: Array) -> Array:
    """Return (a∘Z)'(a∘Z), which is Z'Z where nothing is missing."""
    if present.all():
        return whole
    rows = Z * present[:, None].astype(Z.dtype)
    return f64(rows.T @ rows)
