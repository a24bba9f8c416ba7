"""The steps of a fit, whatever holds the rows: prepare, iterate round by round, embed, cluster, label."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from aweigh.algorithms import kmeans, matching, sampling, scaling, scores
from aweigh.algorithms.contract import Array, Block, Gather, Sample, Sum
from aweigh.io.archive import Batch
from aweigh.io.errors import DataError
from aweigh.pipeline import task
from aweigh.pipeline.driver import Runner, State, begin, iterate, last_read, run_pass
from aweigh.pipeline.events import Emit, Note, silent
from aweigh.pipeline.task import RowsSource, Work


@dataclass(frozen=True)
class Request:
    """What was asked of a fit; stored with the run as it stands."""

    clusters: int
    method: str = "auto"
    views: tuple[str, ...] | None = None
    scale: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    max_sweeps: int | None = None
    tol: float | None = None
    seed: int = 0


Named = tuple[tuple[str, Array], ...]


class Round(NamedTuple):
    """One stretch of sweeps: over all batches, or over one where batches are learnt one after the other."""

    batches: list[str]
    objective: list[float]
    converged: bool


class Saved(NamedTuple):
    """A checkpoint: everything that the next step needs, and nothing n-long."""

    prepared: Any = None
    rounds: tuple[Round, ...] = ()
    last: Any = None
    state: Any = None
    embedded: int = 0
    clustering: Any = None
    work: Any = ()
    seconds: float = 0.0
    revisited: int = 0


class Fitted(NamedTuple):
    """What labels new rows and what the next round starts from.

    Scaling; the method's last model, its model at the last step and the sums there; the k-means centres, the number
    that each of them has, and the smallest number never used.
    """

    scaling: Any
    model: Any
    point: Any
    stats: Any
    centres: Any
    numbers: Any
    next_number: int


class Previous(NamedTuple):
    """An earlier run whose cluster numbers are kept: its labels, the batches it labelled, its numbers."""

    rows: Any
    batches: tuple[Batch, ...]
    numbers: Any
    next_number: int


class Table(NamedTuple):
    """Counts of shared rows (old number, new cluster)."""

    counts: Sum


def records_of(method: Any) -> tuple[type, ...]:
    """Return the named tuples that a checkpoint or a model of a method may hold."""
    return (
        Saved, Round, Fitted, State, Sample, scaling.Prepared, scaling.ViewScaling, kmeans.Model, kmeans.Sums,
        *method.records,
    )  # fmt: skip


class Gathered(NamedTuple):
    """The seeded sample of a per-row array."""

    rows: Gather
    positions: Gather


class Sizes(NamedTuple):
    """Rows a cluster, and the sum of their confidences."""

    rows: Sum
    confidence: Sum


@dataclass(frozen=True)
class GatherRows:
    """The step that gathers a seeded sample of the embedding."""

    seed: int
    bound: int

    def __call__(self, model: None, block: Block) -> tuple[Gathered, None]:
        chosen = sampling.position_hash(block.positions, self.seed) <= np.uint64(self.bound)
        return Gathered(block.views[0][chosen], block.positions[chosen]), None


@dataclass(frozen=True)
class EmbedRows:
    """The step that writes a block's embedding."""

    method: Any

    def __call__(self, model: tuple[Any, Any], block: Block) -> tuple[Sizes, Array]:
        return Sizes(np.float64(len(block.positions)), np.zeros(1)), self.method.embed(*model, block)


@dataclass(frozen=True)
class LabelRows:
    """The step that writes a block's labels and confidences."""

    centres: Array
    numbers: Array

    def __call__(self, model: None, block: Block) -> tuple[Sizes, Named]:
        return labels_of(*kmeans.nearest_two(block.views[0], self.centres), self.numbers)


@dataclass(frozen=True)
class CompareRows:
    """The step that counts a block's rows by old number and new cluster."""

    centres: Array
    old: int

    def __call__(self, model: None, block: Block) -> tuple[Table, None]:
        new = kmeans.nearest_two(block.views[0], self.centres)[0]
        return Table(scores.contingency(block.views[1], new, self.old, len(self.centres)).astype(float)), None


@dataclass(frozen=True)
class CopyRows:
    """The step that copies a block of an earlier run's embedding."""

    def __call__(self, model: None, block: Block) -> tuple[Sizes, Array]:
        return Sizes(np.float64(len(block.positions)), np.zeros(1)), block.views[0]


def labels_of(labels: Array, first: Array, second: Array, numbers: Array) -> tuple[Sizes, Named]:
    """Return sizes, and the rows to write: labels (int32) and confidence 1 - d1/d2 (float32) of the two distances.

    Confidence is 0 on the border between two clusters and 1 on a centre.
    """
    ratio = np.sqrt(np.divide(first, second, out=np.ones_like(first), where=second > 0))
    confidence = (1 - ratio).astype(np.float32)
    k = len(numbers)
    sizes = Sizes(np.bincount(labels, minlength=k).astype(float), np.bincount(labels, confidence, k))
    return sizes, (("labels", numbers[labels].astype(np.int32)), ("confidence", confidence))


def _arrays(method: Any) -> tuple[tuple[str, int, str], ...]:
    """Return name, columns and dtype of all per-row arrays that a method's passes write, the two slots among them."""
    slots = tuple((name, method.width, "float64") for name in ("state-0", "state-1") if method.width)
    return (*slots, *getattr(method, "arrays", ()))


def keep(model: Any, stats: Any) -> Any:
    """Solve nothing."""
    return model


@dataclass
class Fit:
    """A fit over a source: its steps, each of which a checkpoint may already cover.

    `features` are the views' names and widths, in the source's order; `dtype` is that of per-row results; `save` is
    called with the new state after every sweep and step.
    """

    source: Any
    method: Any
    request: Request
    features: dict[str, int]
    dtype: str
    rows: Any
    emit: Emit = silent
    save: Callable[[Saved], None] = lambda saved: None
    saved: Saved = Saved()
    previous: Previous | None = None
    pin: str = ""
    matching: matching.Matching | None = None
    sizes: Any = None

    @property
    def scopes(self) -> list[tuple[Batch, ...]]:
        """The batches of each round: all at once, or one after the other."""
        return [(batch,) for batch in self.source.batches] if self.method.rounds else [self.source.batches]

    def run(self, runner: Runner) -> Fitted:
        """Return what labels new rows; labels, confidence and embedding are in `rows` then."""
        self._admit()
        self._prepare(runner)
        for index, batches in enumerate(self.scopes):
            if index >= self.saved.embedded:
                self._round(runner, index, batches)
        for index, batches in enumerate(self.scopes[:-1] if self._closing else ()):
            if index >= self.saved.revisited:
                self._revisit(runner, index, batches)
        return self._cluster(runner)

    @property
    def _closing(self) -> Any:
        """The method that goes over earlier batches once more, None for most."""
        return getattr(self.method, "closing", None)

    def _admit(self) -> None:
        """Raise DataError where a batch has more rows than the method takes."""
        admit: Any = getattr(self.method, "admit", None)
        for batch in self.source.batches if admit else ():
            try:
                admit(batch.rows)
            except ValueError as error:
                raise DataError(str(error)) from error

    def _save(self, **changes: Any) -> None:
        self.saved = self.saved._replace(**changes)
        self.save(self.saved)

    def _rng(self, purpose: int, number: int = 0) -> np.random.Generator:
        """Return the generator of one purpose: the same whatever ran before."""
        return np.random.default_rng([self.request.seed, purpose, number])

    def _prepare(self, runner: Runner) -> None:
        if self.saved.prepared is None:
            source = task.restrict(self.source, self.scopes[0])
            row_bytes = sum(self.features.values()) * np.dtype(self.dtype).itemsize
            size = sampling.sample_size(source.rows, row_bytes)
            scale = self.request.scale or "auto"
            nonnegative = getattr(self.method, "nonnegative", False)
            preparation = scaling.Preparation(scale, self.request.seed, source.rows, size, nonnegative)
            prepared = prepare(runner, source, preparation, tuple(self.features.values()), self.emit)
            for view, chosen in zip(self.features, prepared.scaling, strict=True):
                self.emit(Note(f"view {view}: scaling {chosen.kind} ({chosen.reason})"))
            self._save(prepared=prepared)
        self.source = replace(self.source, scaling=self.saved.prepared.scaling)

    def _round(self, runner: Runner, index: int, batches: tuple[Batch, ...]) -> None:
        phase = f"batch {batches[0].name}" if self.method.rounds else "sweep"
        state = self._learn(runner, self.method, self._rng(1, index), batches, phase)
        done = Round([b.name for b in batches], list(state.history), state.converged)
        last = (state.model, state.point, state.stats)
        self._save(rounds=(*self.saved.rounds, done), last=last, state=None, embedded=index + 1, revisited=0)
        self._forget(self.method, batches)

    def _revisit(self, runner: Runner, index: int, batches: tuple[Batch, ...]) -> None:
        """Write the embedding of an earlier batch anew, from the last model, which stays."""
        self._learn(runner, self._closing, self._rng(3, index), batches, f"batch {batches[0].name} again")
        self._save(state=None, revisited=index + 1)
        self._forget(self._closing, batches)

    def _learn(
        self, runner: Runner, method: Any, rng: np.random.Generator, batches: tuple[Batch, ...], phase: str
    ) -> State:
        """Return the state after the sweeps of a method over some batches, whose embedding is written then."""
        rows, source, state = self.rows, task.restrict(self.source, batches), self.saved.state
        if state is None:
            prior = self.saved.last[0] if self.saved.last is not None else None
            model = runner.call(method.start, self.saved.prepared.sample, rng, prior)
            for name, width, dtype in _arrays(method):
                rows.create(name, batches, width, dtype)
            try:
                for step, solve, views, first in method.prepare:
                    if first and prior is not None:
                        continue
                    work = Work(source, step, model, rows, None, method.width, None, views)
                    model, _, _ = run_pass(runner, work, solve, f"{phase}: prepare", self.emit)
            except ValueError as error:
                raise DataError(str(error)) from error
            state = begin(model)
            # The sample has done its part, and is too large to be written with every sweep.
            self._save(prepared=self.saved.prepared._replace(sample=None), state=state)
        state = iterate(
            runner, method, source, state,
            rows=rows, phase=phase, emit=self.emit, checkpoint=lambda s: self._save(state=s), pin=self.pin,
            max_sweeps=self.request.max_sweeps or method.max_sweeps,
            tol=method.tol if self.request.tol is None else self.request.tol,
        )  # fmt: skip
        rows.create("embedding", batches, method.embedding, self.dtype)
        point = (state.point, state.stats)
        work = Work(source, EmbedRows(method), point, rows, last_read(state), method.width, "embedding", pin=self.pin)
        run_pass(runner, work, keep, f"{phase}: embed", self.emit)
        runner.forget()
        return state

    def _forget(self, method: Any, batches: tuple[Batch, ...]) -> None:
        for name, _, _ in _arrays(method):
            self.rows.delete(name, batches)

    def _cluster(self, runner: Runner) -> Fitted:
        method = kmeans.KMeans(self.request.clusters)
        row_bytes = self.method.embedding * np.dtype(self.dtype).itemsize
        source = RowsSource(((self.rows, "embedding"),), self.source.batches, row_bytes)
        state = self.saved.clustering
        if state is None:
            state = begin(start_clustering(runner, source, method, self.request.seed, self._rng(2), self.emit))
        state = iterate(
            runner, method, source, state, phase="k-means", emit=self.emit,
            max_sweeps=method.max_sweeps, tol=method.tol, checkpoint=lambda s: self._save(clustering=s),
        )  # fmt: skip
        for name, dtype in (("labels", "int32"), ("confidence", "float32")):
            self.rows.create(name, self.source.batches, None, dtype)
        centres = method.best(state.point)
        numbers, next_number = self._numbers(runner, centres, row_bytes)
        work = Work(source, LabelRows(centres, numbers), None, self.rows, write="labels")
        _, self.sizes, _ = run_pass(runner, work, keep, "label", self.emit)
        model, point, stats = self.saved.last
        return Fitted(self.saved.prepared.scaling, model, point, stats, centres, numbers, next_number)

    def _numbers(self, runner: Runner, centres: Array, row_bytes: int) -> tuple[Array, int]:
        """Return the clusters' numbers: those of the previous run where rows are shared, else 0 to k - 1."""
        if self.previous is None:
            return np.arange(len(centres)), len(centres)
        rows, batches, old, first_free = self.previous
        source = RowsSource(((self.rows, "embedding"), (rows, "labels")), batches, row_bytes + 4)
        work = Work(source, CompareRows(centres, first_free), None)
        _, table, _ = run_pass(runner, work, keep, "match", self.emit)
        self.matching = matching.match(table.counts[old], old, first_free)
        return self.matching.numbers, max(first_free, int(self.matching.numbers.max()) + 1)

    def inherit(self, runner: Runner, rows: Any, batches: tuple[Batch, ...]) -> None:
        """Copy the embedding of batches that an earlier run has learnt; their views are not read."""
        row_bytes = self.method.embedding * np.dtype(self.dtype).itemsize
        self.rows.create("embedding", batches, self.method.embedding, self.dtype)
        source = RowsSource(((rows, "embedding"),), batches, row_bytes)
        work = Work(source, CopyRows(), None, self.rows, write="embedding")
        run_pass(runner, work, keep, "embeddings of earlier batches", self.emit)


def prepare(
    runner: Runner, source: Any, preparation: scaling.Preparation, widths: tuple[int, ...], emit: Emit = silent
) -> scaling.Prepared:
    """Return scaling and sample: a probe of a few blocks, then one pass over all.  Raises DataError."""
    refs = source.refs
    probe = task.Chosen(source, tuple(refs[i] for i in sorted({0, len(refs) // 3, 2 * len(refs) // 3, len(refs) - 1})))
    model = preparation.init(widths)
    model, _, _ = run_pass(runner, Work(probe, preparation.probe.step, model), preparation.probe.solve, "probe", emit)
    try:
        step, solve = preparation.survey[:2]
        model, survey, _ = run_pass(runner, Work(source, step, model), solve, "survey", emit)
    except ValueError as error:
        raise DataError(str(error)) from error
    if float(survey.absent) > 0:
        raise DataError(
            f"{int(survey.absent)} samples are missing in every view that was chosen, so nothing is known of them",
            "choose more views, or import the data without these samples",
        )
    if all(bool((h <= lo).all()) for lo, h in zip(survey.low, survey.high, strict=True)):
        raise DataError("all samples are equal in every view: there is nothing to cluster", "check what was imported")
    return model


def start_clustering(
    runner: Runner, source: Any, method: kmeans.KMeans, seed: int, rng: np.random.Generator, emit: Emit = silent
) -> kmeans.Model:
    """Return k-means' first model, from the seeded sample of the embedding."""
    size = sampling.sample_size(source.rows, source.row_bytes)
    step = GatherRows(seed, sampling.threshold(source.rows, size))
    _, found, _ = run_pass(runner, Work(source, step, None), keep, "k-means: sample", emit)
    chosen = sampling.smallest(found.positions, seed, size)
    X, positions = found.rows[chosen], found.positions[chosen]
    return runner.call(method.start, Sample((X,), np.ones((len(X), 1), bool), positions), rng)
