"""The contract between a method and the driver: what a block is, what a pass is, how statistics add up.

A method is a frozen dataclass of hyper-parameters.  It sees one block of rows at a time on a worker (`step`) and
the summed statistics of all blocks on the scheduler (`solve`); it never sees where the rows live.

Glossary of the paper letters used in this package: X_v (n, d_v) rows of view v; Z (n, m) anchor graph; A_v (m, d_v)
anchors; m anchors; k clusters; V views; a_v (n,) presence of view v; s = Z'1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, NamedTuple, Protocol, get_type_hints

import numpy as np

Array = np.ndarray
Model = Any
Stats = Any
Rows = Array | tuple[tuple[str, Array], ...] | None

Sum = Annotated[Any, "sum"]
Min = Annotated[Any, "min"]
Max = Annotated[Any, "max"]
Gather = Annotated[Any, "gather"]  # rows put end to end in block order; for samples of a fixed size only
Each = Annotated[Any, "each"]  # a tuple of statistics, combined one by one
Lowest = Annotated[Any, "lowest"]  # (groups, t, 2): of all parts, the t rows of a group that come first in order


class Others(Protocol):
    """All blocks of the batch that a block belongs to, its own among them: nothing is read before it is asked for."""

    def views(self) -> Iterator[tuple[Array, tuple[Array, ...]]]:
        """Yield each block's row numbers within the batch and its scaled views, in order, one block at a time."""

    def rows(self, name: str) -> Array:
        """Return all the batch's rows of a per-row array: one of the method's `arrays`, or "carried"."""

    def own(self, name: str) -> Array:
        """Return this block's rows of the same."""


class Block(NamedTuple):
    """One row range of one batch: what a step sees.

    `views` are the scaled rows, one (rows, d_v) array a view; `present` is (rows, V) bool; `positions` (rows,) are the
    rows' numbers over all batches and `within` those inside their batch; `carried` (rows, width) is what the last sweep
    returned for these rows, zeros at first; `others` opens the blocks of the same batch, for methods that compare rows
    with rows.
    """

    views: tuple[Array, ...]
    present: Array
    positions: Array
    within: Array
    carried: Array
    others: Others = None  # type: ignore[assignment]


class Pass(NamedTuple):
    """One reading of the data: `step` a block on a worker, `solve` once on the scheduler.

    `step` returns sums and rows to write: carried rows as an array, or (name, rows) pairs, the name one of the method's
    `arrays` or "carried".  Rows as many as the batch has are written to all of its blocks: one step alone returns them.
    `views` is False for a pass that needs only per-row arrays.
    """

    step: Callable[[Model, Block], tuple[Stats, Rows]]
    solve: Callable[[Model, Stats], Model]
    views: bool = True
    first: bool = False


class Sample(NamedTuple):
    """A seeded sample of rows of all batches: scaled views (s, d_v), presence (s, V), positions (s,)."""

    views: tuple[Array, ...]
    present: Array
    positions: Array


class Method(Protocol):
    """A clustering method: hyper-parameters as fields, mathematics as methods, no state.

    A method may declare more: `nonnegative` (its views are scaled to values >= 0); `arrays`, the (name, columns, dtype)
    of per-row arrays that its passes write and read by name; `admit(rows)`, which raises ValueError where a batch has
    too many rows; `held(rows, block_rows, features)`, the bytes that a task holds beside a block's views; `closing`,
    the method whose passes and embedding go over earlier batches once more at the end; `view_weights(model)`, the
    views' shares (V,) in the objective; `landmarks(model, features)`, the (m, d_v) anchors of each view, in whose span
    drift is measured.
    """

    width: int
    prepare: tuple[Pass, ...]
    sweep: tuple[Pass, ...]

    def start(self, sample: Sample, rng: np.random.Generator, prior: Model | None = None) -> Model:
        """Return the model that the first sweep starts from; `prior` is the last model of an earlier fit or round."""

    def embed(self, model: Model, stats: Stats, block: Block) -> Array:
        """Return the rows (rows, ·) that go to k-means, for the point that `stats` describe."""

    def place(self, model: Model, stats: Stats, block: Block) -> Array:
        """Return the same for rows that were not in the fit: `embed`, where no row carries anything between sweeps."""


@functools.cache
def _operations(kind: Any) -> tuple[tuple[str, str], ...]:
    hints = get_type_hints(kind, include_extras=True)
    return tuple((name, hints[name].__metadata__[0]) for name in kind._fields)  # type: ignore[attr-defined]


def _lowest(parts: Sequence[Array]) -> Array:
    rows = np.concatenate(parts, axis=1)
    order = np.lexsort((rows[..., 1], rows[..., 0]))[:, : parts[0].shape[1]]
    return np.take_along_axis(rows, order[..., None], axis=1)


_COMBINE: dict[str, Callable[[Sequence[Array]], Array]] = {
    "sum": lambda parts: functools.reduce(np.add, parts),
    "min": lambda parts: functools.reduce(np.minimum, parts),
    "max": lambda parts: functools.reduce(np.maximum, parts),
    "gather": np.concatenate,
    "each": lambda parts: combine(*parts),
    "lowest": _lowest,
}


def combine(*parts: Stats) -> Stats:
    """Return the statistics of the rows of all parts, in order, leaf by leaf as their type declares.

    A leaf is an array or a tuple of arrays (one a view).  Sums run from left to right and are float64 or integers: a
    step that hands over float32 sums is refused, since they would saturate.
    """
    out, kind = [], _kind(parts[0])
    for name, operation in _operations(kind):
        leaves, merge = [getattr(part, name) for part in parts], _COMBINE[operation]
        if operation == "sum":
            _refuse_narrow(name, leaves[0])
        out.append(tuple(map(merge, zip(*leaves, strict=True))) if isinstance(leaves[0], tuple) else merge(leaves))
    return kind(*out)


def _kind(stats: Stats) -> Any:
    return type(stats)


def _refuse_narrow(name: str, leaf: Any) -> None:
    for value in leaf if isinstance(leaf, tuple) else (leaf,):
        if np.result_type(value) in (np.float32, np.float16):
            raise TypeError(f"sum leaf {name!r} is {np.result_type(value)}; sums over blocks are kept in float64")


def settled(previous: float, current: float, tol: float) -> bool:
    """Return whether the relative change of the objective is at most `tol`: the one stopping rule of all methods."""
    return bool(np.isfinite(previous)) and abs(previous - current) <= tol * abs(previous)


def f64(x: Any) -> Array:
    """Return `x` as float64: what every block sum is handed over as."""
    return np.asarray(x, dtype=np.float64)
