"""Looking through a view's rows as they stream by: missing rows, and the values that cannot be clustered."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from aweigh.io.errors import DataError


def exact_blocks(name: str, source: Any, rows_per_block: int) -> Iterator[np.ndarray]:
    """A source's rows in arrays of exactly `rows_per_block` rows, the last one shorter.

    DataError where the source yields other rows, columns or dtypes than it announced.
    """
    announced = f"view {name!r}: the source announced ({source.rows}, {source.columns}) {source.dtype}"
    hint = "Was the file changed while it was read?"
    rows = 0
    waiting: list[np.ndarray] = []
    for array in source.blocks(rows_per_block):
        if array.ndim != 2 or array.shape[1] != source.columns or array.dtype != source.dtype:
            raise DataError(f"{announced} and yielded a block of {array.shape} {array.dtype} after {rows} rows", hint)
        rows += len(array)
        if rows > source.rows:
            raise DataError(f"{announced} and yielded {rows} rows or more", hint)
        waiting.append(array)
        while sum(map(len, waiting)) >= rows_per_block:
            joined = waiting[0] if len(waiting) == 1 else np.concatenate(waiting)
            yield joined[:rows_per_block]
            waiting = [joined[rows_per_block:]] if len(joined) > rows_per_block else []
    if rows != source.rows:
        raise DataError(f"{announced} and yielded {rows} rows", hint)
    if waiting:
        yield waiting[0] if len(waiting) == 1 else np.concatenate(waiting)


@dataclass
class ViewScan:
    """What was found in one view so far: missing rows (all NaN), infinities, and rows that are partly NaN."""

    name: str
    source: str
    rows: int = 0
    missing: int = 0
    infinite: int = 0
    ragged: int = 0
    first_infinite: tuple[int, int] = (0, 0)
    first_ragged: tuple[int, int] = (0, 0)

    @property
    def good(self) -> bool:
        return not (self.infinite or self.ragged)

    def add(self, values: np.ndarray) -> np.ndarray:
        """Which of the next rows are missing, bool (rows,)."""
        start, self.rows = self.rows, self.rows + len(values)
        with np.errstate(all="ignore"):
            # One sum tells in one pass, with no temporary array, whether there is anything to look for.
            if np.isfinite(values.sum()):
                return np.zeros(len(values), bool)
        nan, infinite = np.isnan(values), np.isinf(values)
        missing = nan.all(1)
        self.missing += int(missing.sum())
        if infinite.any():
            self.first_infinite = self.first_infinite if self.infinite else _first(infinite, start)
            self.infinite += int(infinite.sum())
        nan[missing] = False
        if nan.any():
            self.first_ragged = self.first_ragged if self.ragged else _first(nan, start)
            self.ragged += int(nan.any(1).sum())
        return missing

    def problems(self) -> list[tuple[str, str]]:
        """(message, hint) of each kind of value that cannot be clustered."""
        found = []
        if self.infinite:
            row, column = self.first_infinite
            message = (
                f"view {self.name!r} has {self.infinite} infinite values, the first in row {row}, column "
                f"{column} (counted from 0): values must be finite (read from {self.source})"
            )
            found.append((message, "Replace the infinities, or leave out these rows or columns."))
        if self.ragged:
            row, column = self.first_ragged
            message = (
                f"view {self.name!r} has {self.ragged} rows in which some values are NaN and others are not, "
                f"the first in row {row}, column {column} (counted from 0): a row is either whole or missing "
                f"(all NaN) (read from {self.source})"
            )
            hint = "Fill these values in, drop the row from this view (make all of it NaN), or drop the column."
            found.append((message, hint))
        return found


class BatchScan:
    """What was found in a batch so far: a ViewScan a source, samples that are in no view, absent blocks."""

    def __init__(self, sources: Mapping[str, str], views: Iterable[str]) -> None:
        self.views = {name: ViewScan(name, source) for name, source in sources.items()}
        self.absent: dict[str, list[int]] = {name: [] for name in views}
        self.nowhere = 0
        self.first_nowhere: tuple[Any, int] = ("", 0)

    @property
    def good(self) -> bool:
        return not self.nowhere and all(view.good for view in self.views.values())

    def add(self, block: int, start: int, present: np.ndarray, ids: Any) -> None:
        """Note which views lack the whole block, and which rows are in no view; present: bool (rows, V)."""
        for name, any_row in zip(self.absent, map(np.any, present.T), strict=True):
            if not any_row:
                self.absent[name].append(block)
        lost = np.flatnonzero(~present.any(1))
        if len(lost) and not self.nowhere:
            self.first_nowhere = (ids[lost[0]], start + int(lost[0]))
        self.nowhere += len(lost)

    def refuse(self, first_batch: bool) -> None:
        """DataError that names all that was found wrong, if anything was."""
        problems = [problem for view in self.views.values() for problem in view.problems()]
        if self.nowhere:
            label, row = self.first_nowhere
            message = (
                f"{self.nowhere} samples are missing (all NaN) in every view, the first in row {row} "
                f"(counted from 0) with id {label}"
            )
            problems.append((message, "Leave these samples out."))
        for view in self.views.values():
            if first_batch and view.missing == view.rows:
                message = f"view {view.name!r} is missing (all NaN) in every row of the archive's first batch"
                problems.append((message, "Begin with a batch that has it, or leave the view out."))
        if problems:
            hints = dict.fromkeys(hint for _, hint in problems)
            raise DataError("\n".join(message for message, _ in problems), "\n".join(hints))


def _first(where: np.ndarray, start: int) -> tuple[int, int]:
    row, column = np.unravel_index(np.argmax(where), where.shape)
    return start + int(row), int(column)


def without_missing(values: np.ndarray, missing: np.ndarray) -> np.ndarray:
    """The values with zeros in the missing rows; the input is not changed."""
    if not missing.any():
        return values
    values = values.copy()
    values[missing] = 0
    return values
