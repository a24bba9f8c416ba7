"""Sparse views in groups of arrays, compressed by rows or by columns; each block is made dense alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from aweigh.io.errors import DataError
from aweigh.io.sources.arrays import PIECE, Opener, Run
from aweigh.io.sources.base import block_bounds, check_view_shape, described, view_dtype
from aweigh.io.sources.spool import Spool, spooled

PARTS = ("data", "indices", "indptr")


@dataclass(frozen=True)
class SparseSource:
    """A view in a group of `parts`: values, their places in a row, and where each row begins.

    `by_columns`: the parts are those of columns. Rows are then put together in a temporary file.
    """

    name: str
    opener: Opener
    rows: int
    columns: int
    stored: np.dtype
    by_columns: bool = False
    parts: tuple[str, str, str] = PARTS

    @property
    def dtype(self) -> np.dtype:
        return view_dtype(self.stored, self.name)

    def describe(self) -> str:
        return described(self, self.name)

    def blocks(self, rows_per_block: int) -> Iterator[np.ndarray]:
        block_bounds(self.rows, rows_per_block)
        return self._from_columns(rows_per_block) if self.by_columns else self._from_rows(rows_per_block)

    def _from_rows(self, rows_per_block: int) -> Iterator[np.ndarray]:
        with self.opener() as group:
            data, indices, pointers = (Run(group[part]) for part in self.parts)
            begin = pointers.take(1).astype(np.int64)
            for start, stop in block_bounds(self.rows, rows_per_block):
                ends = np.concatenate([begin, pointers.take(stop - start).astype(np.int64)])
                count = check_pointers(self.name, ends, start == 0, stop == self.rows, group[self.parts[0]].shape[0])
                shape = stop - start, self.columns
                yield dense(self.name, data.take(count).astype(self.dtype), indices.take(count), ends, shape)
                begin = ends[-1:]

    def _from_columns(self, rows_per_block: int) -> Iterator[np.ndarray]:
        kept = np.dtype([("row", np.int64), ("column", np.int64), ("value", self.dtype)])
        with self.opener() as group, spooled(kept, self.name) as spool:
            ends = self._by_blocks(group, rows_per_block, spool)
            for at, (start, stop) in enumerate(block_bounds(self.rows, rows_per_block)):
                found = spool.read(ends[at], ends[at + 1] - ends[at])
                block = np.zeros((stop - start, self.columns), self.dtype)
                np.add.at(block, (found["row"] - start, found["column"]), found["value"])
                yield block

    def _by_blocks(self, group: Any, rows_per_block: int, spool: Spool) -> list[int]:
        """Where the values of each block begin in the spool, into which they are brought."""
        blocks = -(-self.rows // rows_per_block)
        counts = np.zeros(blocks, np.int64)
        for piece in self._places(group):
            counts += np.bincount(piece // rows_per_block, minlength=blocks)
        ends = np.concatenate([[0], np.cumsum(counts)])
        pointers = np.asarray(group[self.parts[2]][:]).astype(np.int64)
        check_pointers(self.name, pointers, True, True, int(ends[-1]))
        free, done, values = ends[:-1].copy(), 0, Run(group[self.parts[0]])
        for rows in self._places(group):
            records = np.empty(len(rows), spool.dtype)
            records["row"], records["value"] = rows, values.take(len(rows))
            records["column"] = np.searchsorted(pointers, np.arange(done, done + len(rows)), "right") - 1
            records = records[np.argsort(rows // rows_per_block, kind="stable")]
            found, first, count = np.unique(records["row"] // rows_per_block, return_index=True, return_counts=True)
            for block, begin, many in zip(found, first, count, strict=True):
                spool.write(free[block], records[begin : begin + many])
                free[block] += many
            done += len(rows)
        return ends.tolist()

    def _places(self, group: Any) -> Iterator[np.ndarray]:
        """The row of each value, in pieces."""
        array = group[self.parts[1]]
        run = Run(array)
        for start, stop in block_bounds(array.shape[0], PIECE):
            yield checked_places(self.name, run.take(stop - start), self.rows)


def sparse_view(
    name: str, opener: Opener, group: Any, shape: tuple[int, int], by_columns: bool, parts: tuple[str, str, str] = PARTS
) -> SparseSource:
    """The view of a group whose parts agree in their lengths; by_columns: the parts are those of columns."""
    for part in parts:
        if part not in group:
            raise not_sparse(name, f"it has no part {part!r}")
    data, indices, pointers = (group[part] for part in parts)
    check_view_shape(shape, name)
    if data.shape != indices.shape or pointers.shape != (shape[by_columns] + 1,):
        raise not_sparse(
            name, f"parts of the shapes {data.shape}, {indices.shape} and {pointers.shape} do not make {shape}"
        )
    if {np.dtype(each.dtype).kind for each in (indices, pointers)} - set("iu"):
        raise not_sparse(name, f"its places are {indices.dtype} and {pointers.dtype}, not integers")
    view_dtype(np.dtype(data.dtype), name)
    return SparseSource(name, opener, *shape, np.dtype(data.dtype), by_columns, parts)


def check_pointers(name: str, pointers: np.ndarray, first: bool, last: bool, stored: int) -> int:
    """The number of values from the first pointer to the last; DataError where they do not rise to those stored."""
    begin, end = int(pointers[0]), int(pointers[-1])
    if (first and begin) or np.any(np.diff(pointers) < 0) or end > stored or (last and end < stored):
        raise not_sparse(name, f"its pointers do not rise from 0 to the number of stored values, {stored}")
    return end - begin


def checked_places(name: str, places: np.ndarray, width: int) -> np.ndarray:
    """The places as int64; DataError for one outside 0 to width - 1."""
    if len(places) and (places.min() < 0 or places.max() >= width):
        raise not_sparse(name, f"an index lies outside 0 to {width - 1}")
    return places.astype(np.int64)


def dense(
    name: str, values: np.ndarray, places: np.ndarray, pointers: np.ndarray, shape: tuple[int, int]
) -> np.ndarray:
    """The block of rows that begin at the pointers; values stored twice for one place are added."""
    parts = (values, checked_places(name, places, shape[1]), pointers - pointers[0])
    return csr_array(parts, shape=shape).toarray()


def not_sparse(name: str, reason: str) -> DataError:
    """The error for parts that contradict each other."""
    return DataError(f"{name} is no valid sparse matrix: {reason}", "Write it again with the library that made it.")
