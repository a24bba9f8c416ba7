"""Views in two-dimensional arrays that are read by slices: of HDF5 files, Zarr stores and netCDF files."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from aweigh.io.sources.base import block_bounds, described, regroup, view_dtype
from aweigh.io.sources.failures import changed

BAND = 128 << 20
PIECE = 1 << 20

Opener = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class ArraySource:
    """A view in an array that `opener` opens; `by_columns`: its columns are the samples."""

    name: str
    opener: Opener
    shape: tuple[int, int]
    stored: np.dtype
    by_columns: bool = False

    @property
    def rows(self) -> int:
        return self.shape[self.by_columns]

    @property
    def columns(self) -> int:
        return self.shape[not self.by_columns]

    @property
    def dtype(self) -> np.dtype:
        return view_dtype(self.stored, self.name)

    def describe(self) -> str:
        return described(self, self.name)

    def blocks(self, rows_per_block: int) -> Iterator[np.ndarray]:
        block_bounds(self.rows, rows_per_block)
        return regroup(self._pieces(rows_per_block), min(rows_per_block, self.rows))

    def _pieces(self, rows_per_block: int) -> Iterator[np.ndarray]:
        with self.opener() as array:
            if tuple(array.shape) != self.shape:
                raise changed(self.name)
            size = piece_rows(array, self.by_columns, self.columns, rows_per_block)
            for start, stop in block_bounds(self.rows, size):
                piece = np.asarray(array[:, start:stop].T if self.by_columns else array[start:stop])
                yield np.ascontiguousarray(piece, self.dtype)


def piece_rows(array: Any, axis: int, columns: int, rows_per_block: int) -> int:
    """The rows to read at once: whole chunks, so that none is read twice, where they are not too large for that."""
    try:
        chunks = getattr(array, "shards", None) or array.chunks
    except NotImplementedError:  # Zarr's chunks of different sizes
        chunks = None
    chunk = chunks[axis] if chunks else 1
    if chunk * columns * array.dtype.itemsize > BAND:
        return rows_per_block
    return max(rows_per_block // chunk, 1) * chunk


class Run:
    """The values of a one-dimensional array in their order, read in large pieces that end where chunks do."""

    def __init__(self, array: Any) -> None:
        chunks = getattr(array, "shards", None) or array.chunks
        chunk = chunks[0] if chunks else 1
        self.array, self.size = array, max(PIECE // max(chunk, 1), 1) * chunk
        self.piece, self.start, self.read = np.empty(0, array.dtype), 0, 0

    def take(self, count: int) -> np.ndarray:
        """The next `count` values."""
        pieces = []
        while True:
            found = self.piece[self.start : self.start + count]
            pieces.append(found)
            self.start, count = self.start + len(found), count - len(found)
            if not count or self.read >= self.array.shape[0]:
                return np.concatenate(pieces)
            self.piece = np.asarray(self.array[self.read : self.read + self.size])
            self.start, self.read = 0, self.read + len(self.piece)
