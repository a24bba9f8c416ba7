"""Views and columns from .csv and .tsv files, read twice: once to count rows, once for the values."""

import csv
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from aweigh.io.errors import DataError
from aweigh.io.sources.base import block_bounds, described
from aweigh.io.sources.failures import (
    changed,
    looks_like,
    missing_key,
    not_a,
    only,
    reading,
    shown,
)
from aweigh.io.sources.files import checked_file
from aweigh.io.sources.tables import chosen

Record = tuple[int, list[str]]

INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
DECIMAL = re.compile(r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?inf(inity)?", re.IGNORECASE)
MISSING_WORDS = {"na", "n/a", "null", "none", "?", "-"}


@dataclass(frozen=True)
class CsvSource:
    """A view in columns `at` of a text table; delivered as float64, since text does not say how precise it is.

    `named`: the first column names the rows and belongs to no view, whose columns are the others.
    """

    path: str
    header: tuple[str, ...] | None
    rows: int
    width: int
    at: tuple[int, ...]
    named: bool = False

    @property
    def columns(self) -> int:
        return len(self.at)

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.float64)

    def describe(self) -> str:
        return described(self, self.path)

    def without(self, names: frozenset[str]) -> "CsvSource":
        left = tuple(at for at in self.at if self._name(at) not in names)
        named = self.named and self._name(0) not in names
        if not left:
            raise DataError(f"{self.path} has no column left for the view", "Name the columns with PATH:PREFIX.")
        return replace(self, at=left, named=named)

    def ids(self) -> np.ndarray | None:
        """The rows' names in the first column; None where there are none, or they only count."""
        return row_names(self)

    def blocks(self, rows_per_block: int) -> Iterator[np.ndarray]:
        bounds = block_bounds(self.rows, rows_per_block)
        body = records(self.path, skip=self.header is not None)
        for start, stop in bounds:
            block = np.empty((stop - start, self.columns))
            for row in block:
                line, cells = next(body, (0, []))
                if len(cells) != self.width:
                    raise changed(self.path)
                row[:] = self._numbers(line, [cells[at] for at in self.at])
            if stop == self.rows and next(body, None) is not None:
                raise changed(self.path)
            yield block

    def _numbers(self, line: int, cells: list[str]) -> list[float]:
        """The values of one row."""
        try:
            if "_" not in "".join(cells):
                return list(map(float, cells))
        except ValueError:
            pass
        return [self._number(line, at, cell) for at, cell in zip(self.at, cells, strict=True)]

    def _name(self, at: int) -> str:
        """The name of a column: its number, counted from 1, where there is no header."""
        return self.header[at] if self.header else str(at + 1)

    def _number(self, line: int, at: int, cell: str) -> float:
        try:
            return number(cell)
        except ValueError:
            pass
        hint = "Give text its own file for --ids or --labels; write missing values as empty cells or nan."
        if ";" in cell or "\t" in cell:
            hint = "Its cells seem to be separated otherwise: use commas in .csv and tabs in .tsv."
        column = f"column {at + 1}" + (f" ({shown(self.header[at])})" if self.header else "")
        raise DataError(f"{self.path}, line {line}, {column}: {shown(cell)!r} is not a number", hint)


def open_view(path: str, key: str | None) -> CsvSource:
    """The view made of the columns that KEY means, or of all but one that names the rows."""
    table = scanned(path)
    if key is not None:
        return replace(table, at=tuple(chosen(path, names_of(table), key)))
    if not table.named:
        return table
    return replace(table, at=table.at[1:])


def column_ids(path: str, key: str | None) -> np.ndarray | None:
    """The rows' names that a column comes with."""
    table = scanned(path)
    return None if key == names_of(table)[0] else row_names(table)


def row_names(table: CsvSource) -> np.ndarray | None:
    """The cells of the first column where it names the rows, but not where they have no name and are numbers."""
    if not table.named:
        return None
    name, values = names_of(table)[0], column(table, 0)
    if not name:
        return values if values.dtype.kind == "U" else None
    for row, cell in enumerate(map(str, values)):
        if not is_text(cell):
            raise DataError(
                f"{table.path}, column 1 ({shown(name)}) names the rows with text, but row {row} (counted from 0) has "
                f"{shown(cell)!r}",
                f"Correct the cells; where these are ids all the same, say so: --ids {table.path}:{shown(name)}.",
            )
    return values


def names_of(table: CsvSource) -> list[str]:
    """The names of all columns."""
    return list(table.header or map(str, range(1, table.width + 1)))


def open_column(path: str, key: str | None) -> np.ndarray:
    """The ids or labels in the column KEY, a name or, where there is no header, a number from 1."""
    table = scanned(path)
    names = names_of(table)
    key = only(path, "column", names, names) if key is None else key
    if names.count(key) > 1:
        raise DataError(f"{path} has {names.count(key)} columns {shown(key)!r}", "Give each a name of its own.")
    if key not in names:
        raise missing_key(path, key, names)
    return column(table, names.index(key))


def column(table: CsvSource, at: int) -> np.ndarray:
    """The cells of a column."""
    return typed([cells[at] for _, cells in records(table.path, skip=table.header is not None)])


def scanned(path: str) -> CsvSource:
    """The table as a first pass finds it: its header, rows and columns."""
    head = checked_file(path)
    if b"\0" in head or looks_like(head):
        raise not_a(path, "a text table", head)
    every = records(path)
    _, first = next(every, (0, []))
    _, second = next(every, (0, []))
    below = bool(second) and is_text(second[0])
    header = None
    if is_header(first) or (below and len(first) > 1 and first[0] == ""):
        header = tuple(name.strip() for name in first)
    rows = sum(1 for _ in every) + bool(second) + (header is None and bool(first))
    if rows == 0:
        raise DataError(
            f"{path} has 0 rows" + (" below its header" if header else ""),
            "Write a line a sample; a first line that is not all numbers is taken for the header.",
        )
    if header is None and len(first) > 2 and first == column_numbers(first):
        raise DataError(
            f"{path}, line 1 counts 0, 1, 2, …, which may be column numbers or a sample",
            "Drop column numbers (pandas: header=False), or put a line of column names above the data.",
        )
    named = header is not None and len(header) > 1 and (below or not header[0])
    if named and is_text(first[0]) and any(map(is_value, first[1:])):
        raise DataError(
            f"{path}, line 1 begins with text and goes on with numbers, so it may be a sample or a line of names",
            "Put a line of column names above the data.",
        )
    return CsvSource(path, header, rows, len(first), tuple(range(len(first))), named)


def column_numbers(first: list[str]) -> list[str]:
    """The line with which pandas numbers these columns; the name of its row numbers is empty."""
    unnamed = [""] if first[0] == "" else []
    return unnamed + [str(i) for i in range(len(first) - len(unnamed))]


def records(path: str, skip: bool = False) -> Iterator[Record]:
    """The line number and the cells of each row, all of one length; ``skip`` leaves out the first row.

    Empty lines are no rows, except between the rows of a single column, where dropping an empty cell would
    shift all ids or labels below it.
    """
    width, blank = 0, []
    for line, cells in lines(path):
        if not cells:
            blank.append(line)
            continue
        if width == 1:
            yield from ((at, [""]) for at in blank)
        blank.clear()
        if width and len(cells) != width:
            raise DataError(
                f"{path}, line {line} has {len(cells)} columns, but the lines above have {width}",
                "Give each line as many cells; put quotes round a cell that holds the separator.",
            )
        if width or not skip:
            yield line, cells
        width = len(cells)


def lines(path: str) -> Iterator[Record]:
    """The number and the cells of each line of the file."""
    tabs = path.lower().endswith(".tsv")
    with reading(path), open(path, encoding="utf-8-sig", newline="") as text:
        reader = csv.reader(text, delimiter="\t" if tabs else ",", strict=True)
        try:
            for cells in reader:
                yield reader.line_num, cells
        except csv.Error as error:
            raise DataError(
                f"{path}, line {reader.line_num}: {error}",
                "Check the quotes: each needs its partner, and a quote inside quotes is doubled.",
            ) from error
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            raise DataError(
                f"{path}, after line {reader.line_num}: byte 0x{byte:02x} is not UTF-8 text",
                "Save it as UTF-8 (in a spreadsheet: CSV UTF-8).",
            ) from error


def number(cell: str) -> float:
    """The value of a cell, NaN where it is empty; ValueError where it is no number."""
    if "_" in cell:  # float("1_000") is 1000.0
        raise ValueError(cell)
    return float(cell) if cell.strip() else math.nan


def is_number(cell: str) -> bool:
    """Whether a cell is a number, empty or nan."""
    try:
        number(cell)
    except ValueError:
        return False
    return True


def is_value(cell: str) -> bool:
    """Whether a cell is a number that is there."""
    return is_number(cell) and bool(cell.strip()) and not math.isnan(number(cell))


def is_text(cell: str) -> bool:
    """Whether a cell is neither a number nor a word for a missing value."""
    return not is_number(cell) and cell.strip().lower() not in MISSING_WORDS


def is_header(cells: list[str]) -> bool:
    """Whether a first row names columns: some cell is neither a number nor a word for a missing value."""
    return any(map(is_text, cells))


def typed(cells: list[str]) -> np.ndarray:
    """The cells as int64, else float64, else str.

    What a number would not keep apart stays text: 007 and 7, or integers of more than 64 bits.
    """
    stripped = [cell.strip() for cell in cells]
    if all(INTEGER.fullmatch(cell) and len(cell) <= 20 for cell in stripped):
        integers = list(map(int, stripped))
        if max(map(abs, integers)) <= np.iinfo(np.int64).max:
            return np.array(integers, dtype=np.int64)
    elif all(map(is_plain_decimal, stripped)):
        return np.array(list(map(number, stripped)))
    return np.array(cells, dtype=np.str_)


def is_plain_decimal(cell: str) -> bool:
    """Whether a stripped cell is empty, nan or a decimal number; integers only as far as float64 counts."""
    if not cell or cell.lower() == "nan":
        return True
    if INTEGER.fullmatch(cell):
        return len(cell) < 20 and abs(int(cell)) <= 2**53
    return DECIMAL.fullmatch(cell) is not None
