"""MATLAB files before version 7.3, by SciPy, which reads them only whole: up to a size."""

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.io
from scipy.sparse import csr_array, issparse

from aweigh.io.errors import DataError
from aweigh.io.model import STRING
from aweigh.io.sources.base import block_bounds, described, view_dtype
from aweigh.io.sources.failures import not_a, reading

LARGEST = 1 << 30
COMPRESSED = 15
HINT = "Check that MATLAB or scipy.io.loadmat reads it; save it again where it does not."


@dataclass(frozen=True)
class MemorySource:
    """A view in memory: an array, or a sparse one of which each block is made dense alone."""

    name: str
    array: Any

    @property
    def rows(self) -> int:
        return self.array.shape[0]

    @property
    def columns(self) -> int:
        return self.array.shape[1]

    @property
    def dtype(self) -> np.dtype:
        return view_dtype(self.array.dtype, self.name)

    def describe(self) -> str:
        return described(self, self.name)

    def blocks(self, rows_per_block: int) -> Iterator[np.ndarray]:
        for start, stop in block_bounds(self.rows, rows_per_block):
            piece = self.array[start:stop]
            yield np.array(piece.toarray() if issparse(piece) else piece, self.dtype, order="C")


@dataclass(frozen=True)
class Value:
    """A value as SciPy gives it."""

    value: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def kind(self) -> str:
        if issparse(self.value):
            return "matrix"
        if isinstance(self.value, (scipy.io.matlab.MatlabOpaque, scipy.io.matlab.MatlabFunction)):
            return "object"
        if self.value.dtype.names:
            return "struct"
        return {"O": "cell", "U": "char"}.get(self.value.dtype.kind, "matrix")

    def cells(self) -> "list[Value]":
        return [Value(cell) for cell in self.value.reshape(-1, order="F")]

    def fields(self) -> "dict[str, Value]":
        one = self.value.reshape(-1)[0] if self.value.size == 1 else {}
        return {name: Value(one[name]) for name in self.value.dtype.names or () if self.value.size == 1}

    def values(self) -> np.ndarray:
        if self.kind == "cell":
            return np.array(["".join(map(str, cell.value.reshape(-1))) for cell in self.cells()], STRING)
        return self.value.toarray() if issparse(self.value) else self.value

    def view(self, name: str, by_columns: bool) -> MemorySource:
        array = self.value.T if by_columns else self.value
        source = MemorySource(name, csr_array(array) if issparse(array) else array)
        view_dtype(array.dtype, name)
        return source


def variables(path: str, head: bytes) -> dict[str, Value]:
    """The variables of a file that is not too large."""
    with reading(path, (Exception,), HINT):
        size = inflated(path) if head.startswith(b"MATLAB 5.0") else os.path.getsize(path)
        if size > LARGEST:
            raise DataError(
                f"{path} takes {size / 2**30:.1f} GiB in memory, but MATLAB files before version 7.3 cannot be read in "
                f"parts, so up to {LARGEST >> 30} GiB are taken",
                "Save it in MATLAB with save(..., '-v7.3'), which is read in parts.",
            )
        try:
            found = scipy.io.loadmat(path)
        except (ValueError, NotImplementedError) as error:
            if not head.startswith(b"MATLAB"):
                raise not_a(path, "a MATLAB file", head) from error
            raise
    return {name: Value(value) for name, value in found.items() if not name.startswith("__")}


def inflated(path: str) -> int:
    """The bytes of all variables once they are unpacked, as the file's own tags say."""
    total = 0
    with open(path, "rb") as file:
        order = {b"IM": "<", b"MI": ">"}.get(file.read(128)[126:], "<")
        while len(tag := file.read(8)) == 8:
            kind, size = struct.unpack(f"{order}II", tag)
            packed = file.read(min(size, 256)) if kind == COMPRESSED else b""
            if packed:
                inner = zlib.decompressobj().decompress(packed, 8)
                total += struct.unpack(f"{order}II", inner)[1] if len(inner) == 8 else 0
            else:
                total += size
            file.seek(size - len(packed), os.SEEK_CUR)
    return total
