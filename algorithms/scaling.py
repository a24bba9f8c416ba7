"""Scaling of views: what a view's values say about it, the transform that follows, and its application to a block.

Every scaling is one form: an optional logarithm, an affine map a feature, optional unit rows.  The parameters are
sums over the rows that are present, gathered in one pass; variances are sums about a shift near the data, so that
they do not cancel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numba
import numpy as np

from aweigh.algorithms import sampling
from aweigh.algorithms.contract import Array, Block, Gather, Max, Min, Pass, Sample, Sum

SCALINGS = ("auto", "none", "unit", "zscore", "zunit", "minmax", "tfidf")


class ViewScaling(NamedTuple):
    """y = (g(x) - shift) * scale, then unit rows: g is the identity, 1 + log x or log(1 + x) of positive values."""

    kind: str
    reason: str
    logarithm: str
    shift: Array
    scale: Array
    unit: bool
    low: float


class Survey(NamedTuple):
    """What the surveying pass measures of the views: one entry a view, features along the arrays."""

    rows: Sum
    total: Sum
    square: Sum
    low: Min
    high: Max
    nonzero: Sum
    fractional: Sum
    unit_rows: Sum
    zero_rows: Sum
    absent: Sum
    sample_views: Gather
    sample_present: Gather
    sample_positions: Gather


class Prepared(NamedTuple):
    """The scaling of every view and the scaled sample that methods start from."""

    shift: tuple[Array, ...]
    scaling: tuple[ViewScaling, ...]
    sample: Sample | None


@dataclass(frozen=True)
class Preparation:
    """The one preparing pass: survey every view, decide its scaling, gather the sample."""

    scale: str
    seed: int
    rows: int
    sample_rows: int
    nonnegative: bool = False

    def __post_init__(self) -> None:
        if self.scale not in SCALINGS:
            raise ValueError(f"scale={self.scale!r} is not one of {', '.join(SCALINGS)}")

    @property
    def probe(self) -> Pass:
        """The pass over a few blocks that sets the shift near the data."""
        return Pass(self._survey, self._set_shift)

    @property
    def survey(self) -> Pass:
        """The pass over all blocks."""
        return Pass(self._survey, self._decide)

    def init(self, features: tuple[int, ...]) -> Prepared:
        """Return the model that the probe starts from: shifts of zero."""
        return Prepared(tuple(np.zeros(d) for d in features), (), None)

    def _survey(self, model: Prepared, block: Block) -> tuple[Survey, None]:
        chosen = sampling.position_hash(block.positions, self.seed) <= np.uint64(
            sampling.threshold(self.rows, self.sample_rows)
        )
        columns = [survey_view(X, block.present[:, v], model.shift[v]) for v, X in enumerate(block.views)]
        nowhere = np.float64((~block.present.any(axis=1)).sum())
        sample = tuple(X[chosen] for X in block.views), block.present[chosen], block.positions[chosen]
        leaves: Any = (*zip(*columns, strict=True), nowhere, *sample)
        return Survey(*leaves), None

    def _set_shift(self, model: Prepared, stats: Survey) -> Prepared:
        # total is about the zero shift here: the mean of the probed rows.
        means = (t / max(float(n), 1.0) for t, n in zip(stats.total, stats.rows, strict=True))
        return model._replace(shift=tuple(means))

    def _decide(self, model: Prepared, stats: Survey) -> Prepared:
        scaling = tuple(
            choose(self.scale, *(leaf[v] for leaf in stats[:9]), shift=model.shift[v], nonnegative=self.nonnegative)
            for v in range(len(stats.rows))
        )
        keep = sampling.smallest(stats.sample_positions, self.seed, self.sample_rows)
        present = stats.sample_present[keep]
        views = tuple(
            apply(s, X[keep], present[:, v]) for v, (s, X) in enumerate(zip(scaling, stats.sample_views, strict=True))
        )
        return Prepared(model.shift, scaling, Sample(views, present, stats.sample_positions[keep]))


def survey_view(X: Array, present: Array, shift: Array) -> tuple[Array, ...]:
    """Return the first nine leaves of `Survey` of one view of one block: float64 sums about `shift`."""
    d = X.shape[1]
    total, square, nonzero = np.zeros(d), np.zeros(d), np.zeros(d)
    low, high = np.full(d, np.inf), np.full(d, -np.inf)
    counts = np.zeros(4)
    _accumulate(X, present, shift, total, square, low, high, nonzero, counts)
    rows, fractional, unit, zero = (np.asarray(c) for c in counts)
    return rows, total, square, low, high, nonzero, fractional, unit, zero


@numba.njit(nogil=True, cache=True, fastmath={"contract"})
def _accumulate(X, present, shift, total, square, low, high, nonzero, counts):  # type: ignore[no-untyped-def]
    fractional, unit, zero, rows = 0, 0, 0, 0
    for i in range(X.shape[0]):
        if not present[i]:
            continue
        rows += 1
        norm = 0.0
        for j in range(X.shape[1]):
            x = np.float64(X[i, j])
            y = x - shift[j]
            total[j] += y
            square[j] += y * y
            low[j] = min(low[j], x)
            high[j] = max(high[j], x)
            nonzero[j] += 1.0 if x != 0.0 else 0.0
            fractional += 1 if x != np.floor(x) else 0
            norm += x * x
        unit += 1 if abs(np.sqrt(norm) - 1.0) < 1e-3 else 0
        zero += 1 if norm == 0.0 else 0
    counts[0] += rows
    counts[1] += fractional
    counts[2] += unit
    counts[3] += zero


def choose(
    kind: str,
    rows: Array,
    total: Array,
    square: Array,
    low: Array,
    high: Array,
    nonzero: Array,
    fractional: Array,
    unit: Array,
    zero: Array,
    *,
    shift: Array,
    nonnegative: bool = False,
) -> ViewScaling:
    """Return the scaling of one view: the kind asked for, or for `auto` the one its values call for, with why.

    `auto`: rows already of unit length (|norm - 1| < 1e-3 or zero) are kept; sparse non-negative values (more than
    half zeros) get sublinear tf-idf and unit rows; anything else the z-score of each feature and unit rows.  A method
    that needs values >= 0 gets sparse non-negative values as they are and anything else min-max scaled instead.
    """
    n, d = float(rows), len(total)
    lowest = float(low.min()) if n else 0.0
    density = float(nonzero.sum() / max(n * d, 1.0))
    reason = "asked for"
    if kind == "auto":
        kind, reason = _auto(n, lowest, density, float(unit), float(zero))
        if nonnegative and (kind == "zunit" or lowest < 0):
            kind, reason = "minmax", f"the method needs values >= 0; {reason}"
        elif nonnegative and kind == "tfidf":
            kind, reason = "none", f"the method weighs counts itself; {reason}"
    elif nonnegative and (kind in ("zscore", "zunit") or (lowest < 0 and kind in ("none", "unit"))):
        raise ValueError(
            f"the method needs values >= 0, and {kind} of a view whose smallest value is {lowest:g} has others: "
            "use minmax, or leave the view out"
        )
    offset, scale, logarithm = np.zeros(d), np.ones(d), ""
    if kind in ("zscore", "zunit"):
        offset = shift + total / max(n, 1.0)
        variance = np.maximum(square - total * total / max(n, 1.0), 0.0) / max(n - 1.0, 1.0)
        # A feature whose spread is rounding of its own magnitude is constant.
        magnitude = np.maximum(np.abs(low), np.abs(high)) if n else np.ones(d)
        varies = (high > low) & (variance > (1e-14 * magnitude) ** 2)
        scale = np.where(varies, 1.0 / np.sqrt(np.where(varies, variance, 1.0)), 0.0)
    elif kind == "minmax":
        spread = np.where(high > low, high - low, 1.0)
        offset = np.where(np.isfinite(low), low, 0.0)
        scale = np.where(high > low, 1.0 / spread, 0.0)
    elif kind == "tfidf":
        if lowest < 0:
            raise ValueError(f"tfidf needs values >= 0, and the smallest is {lowest:g}: use zunit or minmax")
        logarithm = "log1p" if fractional > 0 else "1+log"
        scale = np.log((1.0 + n) / (1.0 + nonzero)) + 1.0
    return ViewScaling(kind, reason, logarithm, offset, scale, kind in ("unit", "zunit", "tfidf"), lowest)


def _auto(rows: float, lowest: float, density: float, unit: float, zero: float) -> tuple[str, str]:
    if rows and unit + zero >= rows and unit:
        return "none", "every row has unit length already"
    if lowest >= 0 and density < 0.5:
        return "tfidf", f"non-negative and sparse ({density:.1%} of the values are not zero)"
    return "zunit", f"dense values ({density:.1%} not zero, smallest {lowest:.4g})"


def apply(scaling: ViewScaling, X: Array, present: Array) -> Array:
    """Return the scaled rows (rows, d) of one view, missing rows zero.  May overwrite X where X is writeable."""
    if scaling.kind == "none":
        return X
    if scaling.logarithm:
        X = _logarithm(X, scaling.logarithm)
    out = X if X.flags.writeable and X.flags.c_contiguous else np.empty_like(X, order="C")
    _affine(X, present, scaling.shift.astype(X.dtype), scaling.scale.astype(X.dtype), scaling.unit, out)
    # Rows that come later may lie below the smallest value surveyed.
    return np.maximum(out, 0, out=out) if scaling.kind == "minmax" else out


def _logarithm(X: Array, form: str) -> Array:
    if form == "log1p":
        return np.log1p(np.maximum(X, 0))
    return np.where(X > 0, 1 + np.log(np.where(X > 0, X, 1)), 0).astype(X.dtype)


@numba.njit(nogil=True, cache=True, fastmath={"contract", "reassoc"}, error_model="numpy")
def _affine(X, present, shift, scale, unit, out):  # type: ignore[no-untyped-def]
    n, d = X.shape
    for i in range(n):
        if not present[i]:
            for j in range(d):
                out[i, j] = 0
            continue
        norm = X.dtype.type(0)
        for j in range(d):
            y = (X[i, j] - shift[j]) * scale[j]
            out[i, j] = y
            norm += y * y
        if unit and norm > 0:
            factor = X.dtype.type(1) / np.sqrt(norm)
            for j in range(d):
                out[i, j] *= factor
