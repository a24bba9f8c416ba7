"""L2SC: tasks keep arriving; spectral clustering of each with a library that all of them share.

max (1/T) Σ_t [ tr((E_t B)' K_t E_t B) + λ tr(L' X̂_t' E_t B) ] + μ ‖L‖_{2,1};  B'B = I (k, k), L'L = I (d, k),
E_t'E_t = I (n_t, k), K_t = D^(-1/2) W D^(-1/2) of the graph of nearest neighbours, X̂ = D2^(-1/2) X D1^(-1/2) with D1
the feature sums and D2 the sample sums of X (n_t, d) >= 0: the views side by side.

Lifelong spectral clustering (2020).  A task is a batch.  A sweep is `steps` passes of E = polar(P),
P = E + η (2 K E + λ X̂ L B'), and one that gathers E'KE and X̂'E, from which B and L follow.  What is carried is P:
polar(P) = P G needs the sum P'P of all blocks, so that each pass begins with the G of the pass before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from aweigh.algorithms import graph, linalg, sampling
from aweigh.algorithms.contract import Array, Block, Gather, Min, Pass, Sample, Sum, f64
from aweigh.algorithms.graph import inverse_root
from aweigh.algorithms.linalg import procrustes

GUARD = 1e-8
CELL_ROWS = np.uint64(256)  # rows a cell


class Model(NamedTuple):
    """The library B (k, k) and L (d, k), the records of the tasks learnt so far, and the task at hand.

    `tasks` (T,) are the tasks' first row numbers, M (T, k, k) = E'KE and C (T, d, k) = λ X̂'E their records;
    `task`, `own_M` and `own_C` the same of the task at hand, which joins them when the next one begins.  `mass` (d,)
    are its feature sums and `idf` (d,) what its affinity is weighed with, None where it takes X as it is; `integers`
    says that X are counts.  G (k, k) = (P'P)^(-1/2); `fresh` that no P is there yet; `anchors` (cells, d) or None.
    """

    B: Array
    L: Array
    tasks: Array
    M: Array
    C: Array
    task: Array
    own_M: Array
    own_C: Array
    mass: Array
    idf: Array | None
    integers: bool
    G: Array
    fresh: bool
    anchors: Array | None
    objective: float


class Survey(NamedTuple):
    """Sums and non-zero values a feature, counts of rows and of values that are no integers, the smallest value, the
    first row's number, and the rows that cells lie around.
    """

    rows: Sum
    mass: Sum
    nonzero: Sum
    fractional: Sum
    low: Min
    first: Min
    anchors: Gather


class Nothing(NamedTuple):
    """No sums: the pass only writes rows."""

    blocks: Sum


class Gram(NamedTuple):
    """P'P."""

    PtP: Sum


class Sums(NamedTuple):
    """E'KE and X̂'E."""

    EtKE: Sum
    XtE: Sum


@dataclass(frozen=True)
class L2SC:
    """L2SC with weight λ of the library, μ of its group sparsity, step η, K nearest neighbours.

    `affinity`: neighbours are sought on unit rows of X ("same"), of its sublinear tf-idf over the task ("tfidf"), or of
    tf-idf where more than half of X is zero ("auto"); X̂ is of X itself.  `b`: "procrustes", or the printed "eigen".
    `graph`: "exact" up to `exact_rows` rows a task; up to ten times as many, "cells" compares a row with those of its
    `probes` nearest cells only, of about 256 rows each (share of true neighbours found: .98 on digits, .92 on texts,
    .62 on sparse features without structure).  `reencode` brings the E of earlier tasks up to date with the last
    library; `frozen` learns the library on the first task alone.  The records of T tasks take 8 T k (d + k) bytes.
    """

    clusters: int
    lambda_: float = 3.0
    mu: float = 0.1
    eta: float = 1.0
    neighbours: int = 10
    steps: int = 10
    affinity: str = "auto"
    b: str = "procrustes"
    graph: str = "exact"
    exact_rows: int = 50_000
    probes: int = 16
    reencode: bool = False
    frozen: bool = False

    paper = "L2SC: lifelong spectral clustering (2020)"
    missing = False
    nonnegative = True
    rounds = True
    records = (Model, Sums)
    max_sweeps = 10
    tol = 1e-5

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r} must be one of {', '.join(allowed)}")
        if self.lambda_ < 0 or self.mu < 0 or self.eta <= 0:
            raise ValueError(f"lambda={self.lambda_} and mu={self.mu} must be >= 0, and eta={self.eta} > 0")
        if min(self.neighbours, self.steps, self.probes, self.exact_rows) < 1:
            raise ValueError("neighbours, steps, probes and exact_rows must be at least 1")

    @property
    def width(self) -> int:
        """Columns of P."""
        return self.clusters

    @property
    def embedding(self) -> int:
        """Columns of E B."""
        return self.clusters

    @property
    def arrays(self) -> tuple[tuple[str, int, str], ...]:
        """The graph's lists, E_0, and λ X̂ L B' of the sweep under way."""
        K, k = self.neighbours, self.clusters
        return (
            ("near", K, "int64"), ("distance", K, "float64"), ("weight", K, "float64"),
            ("start", k, "float64"), ("pull", k, "float64"),
        )  # fmt: skip

    @property
    def prepare(self) -> tuple[Pass, ...]:
        """Sums of the features; the nearest neighbours; weights and E_0, in one task."""
        return (
            Pass(self._survey, self._admit_task),
            Pass(self._neighbours, self._keep),
            Pass(self._weigh, self._forget_anchors, views=False),
        )

    @property
    def sweep(self) -> tuple[Pass, ...]:
        """The E steps, of which the first reads the views for X̂ L, and the pass that gathers the records."""
        climb = Pass(self._climb, self._whiten, views=False)
        return (Pass(self._pull, self._whiten), *(climb,) * (self.steps - 1), Pass(self._record, self.solve))

    @property
    def closing(self) -> L2SC | None:
        """E steps alone, for a library that stays."""
        return replace(self, frozen=True) if self.reencode else None

    def admit(self, rows: int) -> None:
        """Raise ValueError where a task of this many rows is too large."""
        most = self.exact_rows * (1 if self.graph == "exact" else 10)
        if rows > most:
            way = "--set graph=cells takes ten times as many, approximately; or " if self.graph == "exact" else ""
            raise ValueError(
                f"a batch of {rows} rows is more than the {most} that graph={self.graph} compares row with row: "
                f"{way}import smaller batches, or raise --set exact_rows"
            )

    def held(self, rows: int, block_rows: int, features: int) -> int:
        """Return the bytes that a task holds beside one block's views, for a batch of so many rows and blocks."""
        K, k = self.neighbours, self.clusters
        comparing = 5 * block_rows * features * 8 + 2 * graph.TILE**2 * 8 + 4 * block_rows * K * 8
        weighing = rows * 8 * (16 * K + max(4 * k, 40)) + 5 * min(rows, max(graph.DENSE, 2 * k)) ** 2 * 8
        return max(comparing, weighing)

    def start(self, sample: Sample, rng: np.random.Generator, prior: Model | None = None) -> Model:
        """Return the library before a task: B = I and L = 0 at first; the last task's records join the others'."""
        d, k = sum(X.shape[1] for X in sample.views) if prior is None else len(prior.L), self.clusters
        zero = np.zeros((d, k))
        empty = Model(
            np.eye(k), zero, np.zeros(0, np.int64), np.zeros((0, k, k)), np.zeros((0, d, k)), np.array(-1),
            np.zeros((k, k)), zero, np.zeros(d), None, False, np.eye(k), True, None, np.inf,
        )  # fmt: skip
        if prior is None:
            return empty
        return empty._replace(
            B=prior.B,
            L=prior.L,
            tasks=np.append(prior.tasks, prior.task),
            M=np.concatenate([prior.M, prior.own_M[None]]),
            C=np.concatenate([prior.C, prior.own_C[None]]),
        )

    def _survey(self, model: Model, block: Block) -> tuple[Survey, None]:
        X = _side_by_side(block.views)
        chosen = sampling.position_hash(block.positions, 0) % CELL_ROWS == 0 if self.graph == "cells" else []
        return Survey(
            np.float64(len(X)), X.sum(axis=0, dtype=np.float64), f64((X != 0).sum(axis=0)),
            np.float64((np.floor(X) != X).sum()), np.float64(X.min(initial=np.inf)), block.positions.min(),
            f64(X[np.flatnonzero(chosen)]),
        ), None  # fmt: skip

    def _admit_task(self, model: Model, survey: Survey) -> Model:
        """Return the model of this task, the records of an earlier visit to it taken out."""
        if survey.low < 0:
            raise ValueError(
                f"l2sc needs values >= 0, since it divides by sums of them, and the smallest is {survey.low:g}: "
                "use --scale minmax, or --views to leave out the view that holds it"
            )
        self.admit(int(survey.rows))
        others = model.tasks != survey.first
        sparse = survey.nonzero.sum() < 0.5 * survey.rows * len(survey.mass)
        weighed = self.affinity == "tfidf" or (self.affinity == "auto" and sparse)
        return model._replace(
            tasks=model.tasks[others],
            M=model.M[others],
            C=model.C[others],
            task=np.asarray(survey.first),
            mass=survey.mass,
            idf=np.log((1 + survey.rows) / (1 + survey.nonzero)) + 1 if weighed else None,
            integers=bool(survey.fractional == 0),
            anchors=survey.anchors if len(survey.anchors) else None,
        )

    def _affinity(self, model: Model, X: Array) -> Array:
        """Return the unit rows that neighbours are sought on, float64."""
        X = X.astype(np.float64)
        if model.idf is not None:
            if model.integers:
                positive = X > 0
                np.log(X, out=X, where=positive)
                X += positive
            else:
                np.log1p(X, out=X)
            X *= model.idf
        return linalg.unit_rows(X)

    def _neighbours(self, model: Model, block: Block) -> tuple[Nothing, tuple[tuple[str, Array], ...]]:
        U = self._affinity(model, _side_by_side(block.views))
        others = ((at, self._affinity(model, _side_by_side(views))) for at, views in block.others.views())
        if model.anchors is None:
            near, distance = graph.nearest(U, block.within, others, self.neighbours)
        else:
            anchors = self._affinity(model, model.anchors)
            near, distance = graph.nearest_in_cells(U, block.within, others, self.neighbours, anchors, self.probes)
        return Nothing(1), (("near", near), ("distance", distance))

    def _keep(self, model: Model, nothing: Nothing) -> Model:
        return model

    def _weigh(self, model: Model, block: Block) -> tuple[Nothing, tuple[tuple[str, Array], ...] | None]:
        """Write the weights and E_0 of the whole task: the work of its first block."""
        if block.within[0] > 0:
            return Nothing(1), None
        near = block.others.rows("near")
        weight = graph.weights(near, block.others.rows("distance"))
        return Nothing(1), (("weight", weight), ("start", graph.leading_vectors(near, weight, self.clusters)))

    def _forget_anchors(self, model: Model, nothing: Nothing) -> Model:
        return model._replace(anchors=None)

    def _pull(self, model: Model, block: Block) -> tuple[Gram, tuple[tuple[str, Array], ...]]:
        """Take the first E step of a sweep, and write the λ X̂ L B' that the others take again."""
        pull = self.lambda_ * (_project(model, _side_by_side(block.views)) @ model.B.T)
        P = self._ascend(model, block, pull)
        return Gram(P.T @ P), (("carried", P), ("pull", pull))

    def _climb(self, model: Model, block: Block) -> tuple[Gram, Array]:
        """Take an E step."""
        P = self._ascend(model, block, block.others.own("pull"))
        return Gram(P.T @ P), P

    def _ascend(self, model: Model, block: Block, pull: Array) -> Array:
        """Return P = E + η (2 K E + λ X̂ L B') of one block."""
        E, KE = _multiply(model, block)
        return E + self.eta * (2 * KE + pull)

    def _whiten(self, model: Model, gram: Gram) -> Model:
        """Return G = (P'P)^(-1/2)."""
        return model._replace(G=linalg.inverse_root(gram.PtP), fresh=False)

    def _record(self, model: Model, block: Block) -> tuple[Sums, None]:
        """Return E'KE and X̂'E of one block."""
        E, KE = _multiply(model, block)
        X = _side_by_side(block.views)
        scaled = E * inverse_root(X.sum(axis=1, dtype=np.float64))[:, None]
        XtE = inverse_root(model.mass)[:, None] * f64(X.T @ scaled.astype(X.dtype))
        return Sums(E.T @ KE, XtE), None

    def solve(self, model: Model, sums: Sums) -> Model:
        """Return B = procrustes(C'L) and L = procrustes(C B / T + μ R L), R = 2‖l_i‖; or a frozen library's value."""
        own_M, own_C = sums.EtKE, self.lambda_ * sums.XtE
        if self.frozen and len(model.tasks):
            value = np.sum((own_M @ model.B) * model.B) + np.sum((own_C @ model.B) * model.L)
            return model._replace(own_M=own_M, own_C=own_C, objective=float(value))
        T, B = len(model.tasks) + 1, self._B(model, sums)
        M, C = model.M.sum(axis=0) + own_M, model.C.sum(axis=0) + own_C
        R = 2 * np.maximum(np.linalg.norm(model.L, axis=1), GUARD)
        L = procrustes(C @ B / T + self.mu * R[:, None] * model.L)
        value = (np.sum((M @ B) * B) + np.sum((C @ B) * L)) / T + self.mu * np.linalg.norm(L, axis=1).sum()
        return model._replace(B=B, L=L, own_M=own_M, own_C=own_C, objective=float(value))

    def _B(self, model: Model, sums: Sums) -> Array:
        """Return the B of the point that the sums describe: I while L = 0."""
        if self.frozen and len(model.tasks):
            return model.B
        if not model.L.any():
            return np.eye(self.clusters)
        C = model.C.sum(axis=0) + self.lambda_ * sums.XtE
        if self.b == "procrustes":
            return procrustes(C.T @ model.L)
        M = model.M.sum(axis=0) + sums.EtKE
        return linalg.top_eigenvectors(M + model.B @ model.L.T @ C, self.clusters)

    def embed(self, model: Model, sums: Sums, block: Block) -> Array:
        """Return E B with rows to unit length."""
        return linalg.unit_rows(block.carried @ model.G @ self._B(model, sums))

    def landmarks(self, model: Model, features: tuple[int, ...]) -> tuple[Array, ...]:
        """Return the library's rows of each view, L_v' (k, d_v)."""
        return tuple(part.T for part in np.split(model.L, np.cumsum(features)[:-1]))

    def place(self, model: Model, sums: Sums, block: Block) -> Array:
        """Return x̂ L with rows to unit length for rows that were not in the fit: approximate.

        Such rows are in no graph, so that the library alone speaks: λ X̂ L B' is what E follows, and (X̂ L B') B = X̂ L.
        The features are weighed as in the last task.
        """
        return linalg.unit_rows(_project(model._replace(L=self.solve(model, sums).L), _side_by_side(block.views)))


_CHOICES = {"affinity": ("auto", "tfidf", "same"), "b": ("procrustes", "eigen"), "graph": ("exact", "cells")}


def _side_by_side(views: tuple[Array, ...]) -> Array:
    return views[0] if len(views) == 1 else np.hstack(views)


def _project(model: Model, X: Array) -> Array:
    """Return X̂ L (rows, k), float64."""
    right = (inverse_root(model.mass)[:, None] * model.L).astype(X.dtype)
    return inverse_root(X.sum(axis=1, dtype=np.float64))[:, None] * f64(X @ right)


def _multiply(model: Model, block: Block) -> tuple[Array, Array]:
    """Return the block's rows of E and of K E."""
    E = block.others.rows("start") if model.fresh else block.others.rows("carried") @ model.G
    first, last = int(block.within[0]), int(block.within[-1]) + 1
    KE = graph.product(block.others.rows("near"), block.others.rows("weight"), first, last, E)
    return E[first:last], KE
