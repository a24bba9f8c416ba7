"""Sparse views in .npz files: KEY_data, KEY_indices, KEY_indptr and KEY_shape, or a scipy.sparse file."""

import zipfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
from scipy.sparse import csr_array

from aweigh.io.errors import DataError
from aweigh.io.sources.base import block_bounds, check_view_shape, described, view_dtype
from aweigh.io.sources.failures import changed, missing_key, reading, shown
from aweigh.io.sources.members import DAMAGE, MemberOpener, member_column, member_header, member_name
from aweigh.io.sources.npy import AGAIN, Header, fill, read_header

SPARSE = ("data", "indices", "indptr")
PARTS = (*SPARSE, "shape")


@dataclass(frozen=True)
class CsrSource:
    """A view stored as the CSR parts data, indices and indptr; each block is made dense alone."""

    name: str
    path: str
    prefix: str
    rows: int
    columns: int
    headers: dict[str, Header]

    @property
    def dtype(self) -> np.dtype:
        return view_dtype(self.headers["data"].dtype, self.name)

    def describe(self) -> str:
        return described(self, self.name)

    def blocks(self, rows_per_block: int) -> Iterator[np.ndarray]:
        bounds = block_bounds(self.rows, rows_per_block)
        with ExitStack() as stack:
            streams = {part: stack.enter_context(MemberOpener(self.path, self.prefix + part)()) for part in SPARSE}
            if {part: read_header(stream, self.name) for part, stream in streams.items()} != self.headers:
                raise changed(self.name)
            begin = self._next(streams, "indptr", 1).astype(np.int64)
            if begin[0] != 0:
                raise not_csr(self.name, f"indptr begins with {begin[0]}, not with 0")
            for start, stop in bounds:
                ends = self._next(streams, "indptr", stop - start).astype(np.int64)
                yield self._dense(streams, np.concatenate([begin, ends]), stop == self.rows)
                begin = ends[-1:]

    def _dense(self, streams: dict[str, BinaryIO], pointers: np.ndarray, last: bool) -> np.ndarray:
        """The block whose rows end at pointers[1:]; values stored twice for one place are added."""
        stored, end = self.headers["data"].shape[0], pointers[-1]
        if np.any(np.diff(pointers) < 0) or end > stored or (last and end < stored):
            raise not_csr(self.name, f"indptr does not rise from 0 to the number of stored values, {stored}")
        count = int(end - pointers[0])
        columns = self._next(streams, "indices", count)
        if count and (columns.min() < 0 or columns.max() >= self.columns):
            raise not_csr(self.name, f"a column index lies outside 0 to {self.columns - 1}")
        values = self._next(streams, "data", count).astype(self.dtype)
        parts = (values, columns.astype(np.int64), pointers - pointers[0])
        return csr_array(parts, shape=(len(pointers) - 1, self.columns)).toarray()

    def _next(self, streams: dict[str, BinaryIO], part: str, count: int) -> np.ndarray:
        name = member_name(self.path, self.prefix + part)
        # Without this, the innermost of the open members would put its own name to the damage.
        with reading(name, DAMAGE, AGAIN):
            return fill(streams[part], np.empty(count, self.headers[part].dtype), name)


def csr_keys(keys: Iterable[str]) -> list[str]:
    """The keys whose CSR parts are all there."""
    there = set(keys)
    found = (key.removesuffix("_indptr") for key in keys if key.endswith("_indptr"))
    return [key for key in found if all(f"{key}_{part}" in there for part in PARTS)]


def scipy_view(archive: zipfile.ZipFile, path: str, keys: list[str]) -> CsrSource:
    """The view of a file that scipy.sparse.save_npz wrote from a CSR matrix."""
    header = member_header(archive, path, "format")
    layout = member_column(archive, path, "format", header._replace(shape=header.shape or (1,)))[0]
    if layout != "csr":
        raise DataError(
            f"{path} holds a sparse matrix in the format {shown(layout)}, but only csr is read row by row",
            "Write it again with scipy.sparse.save_npz(path, x.tocsr()).",
        )
    for part in PARTS:
        if part not in keys:
            raise missing_key(path, part, keys)
    return csr_view(archive, path, "", path)


def csr_view(archive: zipfile.ZipFile, path: str, prefix: str, name: str) -> CsrSource:
    """The view of CSR parts whose dtypes and lengths agree."""
    shape = member_column(archive, path, prefix + "shape", member_header(archive, path, prefix + "shape"))
    if shape.dtype != np.int64 or min(shape) < 0:
        raise not_csr(name, f"its shape is {shown(shape.tolist())}, not two integers")
    check_view_shape(shape.tolist(), name)
    rows, columns = shape.tolist()
    headers = {part: member_header(archive, path, prefix + part) for part in SPARSE}
    view_dtype(headers["data"].dtype, name)
    for part in ("indices", "indptr"):
        if headers[part].dtype.kind not in "iu":
            raise not_csr(name, f"{part} holds {headers[part].dtype}, not integers")
    found = [headers[part].shape for part in SPARSE]
    if len(found[0]) != 1 or found[1:] != [found[0], (rows + 1,)]:
        lengths = ", ".join(f"{part} {length}" for part, length in zip(SPARSE, found, strict=True))
        raise not_csr(name, f"parts of the shapes {lengths} do not make {rows} rows")
    return CsrSource(name, path, prefix, rows, columns, headers)


def not_csr(name: str, reason: str) -> DataError:
    """The error for CSR parts that contradict each other."""
    return DataError(f"{name} is no valid CSR matrix: {reason}", "Write it again with scipy.sparse.save_npz.")
