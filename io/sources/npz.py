"""Views and columns from .npz files: plain arrays, CSR parts and scipy.sparse files, all streamed."""

import lzma
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import BinaryIO, cast

import numpy as np
from scipy.sparse import csr_array

from aweigh.io.errors import DataError, StorageError
from aweigh.io.sources.base import Source, block_bounds, check_view_shape, described, view_dtype
from aweigh.io.sources.failures import changed, checked_file, missing_key, not_a, only, reading, shown
from aweigh.io.sources.npy import AGAIN, Header, check_size, fill, read_column, read_header, view

DAMAGE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError, OSError)
SPARSE = ("data", "indices", "indptr")
PARTS = (*SPARSE, "shape")


@dataclass(frozen=True)
class MemberOpener:
    """Opens the array KEY; a class and not a closure, because sources are pickled.

    A stream in a zip file only runs forwards: what must be ``seekable`` is unpacked to a temporary file.
    """

    path: str
    key: str
    seekable: bool = False

    @contextmanager
    def __call__(self) -> Iterator[BinaryIO]:
        with opened_zip(self.path) as archive, opened_member(archive, self.path, self.key) as stream:
            if not self.seekable:
                yield stream
                return
            with tempfile.TemporaryFile() as file:
                unpack(stream, cast(BinaryIO, file), member_name(self.path, self.key))
                yield cast(BinaryIO, file)


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
            streams = {
                part: stack.enter_context(MemberOpener(self.path, self.prefix + part)()) for part in SPARSE
            }
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
        with reading(
            name, DAMAGE, AGAIN
        ):  # here too, since the innermost open member would put its name to it
            return fill(streams[part], np.empty(count, self.headers[part].dtype), name)


def open_view(path: str, key: str | None) -> Source:
    """The plain or sparse view KEY of an .npz file, or its only one where KEY is left out."""
    check_zip(path)
    with opened_zip(path) as archive:
        keys = array_keys(archive)
        sparse = csr_keys(keys)
        if key is None and {"format", "shape", "data"} <= set(keys):
            return scipy_view(archive, path, keys)
        if key is None:
            fitting = keys if len(keys) == 1 else [*sparse, *of_dimension(archive, path, keys, 2)]
            key = only(path, "two-dimensional array", fitting, keys)
        if key in keys:
            header = member_header(archive, path, key)
            return view(member_name(path, key), header, MemberOpener(path, key, header.by_columns))
        if key in sparse:
            return csr_view(archive, path, key + "_", member_name(path, key))
        raise missing_key(path, key, [*sparse, *keys])


def open_column(path: str, key: str | None) -> np.ndarray:
    """The ids or labels KEY of an .npz file, or its only one-dimensional array where KEY is left out."""
    check_zip(path)
    with opened_zip(path) as archive:
        keys = array_keys(archive)
        if key is None:
            parts = {f"{prefix}_{part}" for prefix in csr_keys(keys) for part in PARTS}
            fitting = of_dimension(archive, path, [k for k in keys if k not in parts], 1)
            key = only(path, "one-dimensional array", keys if len(keys) == 1 else fitting, keys)
        if key not in keys:
            raise missing_key(path, key, keys)
        return member_column(archive, path, key, member_header(archive, path, key))


def check_zip(path: str) -> None:
    """Raises DataError unless the file begins as a zip archive does."""
    head = checked_file(path)
    if not head.startswith(b"PK"):
        raise not_a(path, "an .npz file", head)


@contextmanager
def opened_zip(path: str) -> Iterator[zipfile.ZipFile]:
    """The zip archive; damage to it is a DataError that names the file."""
    with reading(path, DAMAGE, AGAIN), zipfile.ZipFile(path) as archive:
        yield archive


@contextmanager
def opened_member(archive: zipfile.ZipFile, path: str, key: str) -> Iterator[BinaryIO]:
    """The stream of the array KEY; its CRC is checked when the last byte is read."""
    name = member_name(path, key)
    try:
        info = archive.getinfo(key + ".npy")
    except KeyError as error:
        raise changed(name) from error
    if info.flag_bits & 0x1:
        raise DataError(
            f"{name} is encrypted", "Unpack it with its password and save the arrays again with numpy.savez."
        )
    with reading(name, DAMAGE, AGAIN), archive.open(info) as stream:
        yield cast(BinaryIO, stream)


def unpack(stream: BinaryIO, file: BinaryIO, name: str) -> None:
    """Copies the stream to the file and goes back to its front; StorageError where the disk is full."""
    try:
        shutil.copyfileobj(stream, file, 1 << 20)
        file.seek(0)
    except OSError as error:
        if error.errno is None:
            raise
        raise StorageError(
            f"{name} lies column by column and cannot be unpacked to {tempfile.gettempdir()}: "
            f"{error.strerror}",
            "Free space there, set TMPDIR to a larger disk, or save numpy.ascontiguousarray(x) instead.",
        ) from error


def member_name(path: str, key: str) -> str:
    """The name of an array for messages."""
    return f"{path}:{shown(key)}"


def array_keys(archive: zipfile.ZipFile) -> list[str]:
    """The keys of all arrays."""
    return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]


def csr_keys(keys: Iterable[str]) -> list[str]:
    """The keys whose CSR parts are all there."""
    there = set(keys)
    found = (key.removesuffix("_indptr") for key in keys if key.endswith("_indptr"))
    return [key for key in found if all(f"{key}_{part}" in there for part in PARTS)]


def of_dimension(archive: zipfile.ZipFile, path: str, keys: Iterable[str], dimensions: int) -> list[str]:
    """The keys of the arrays with so many dimensions."""
    return [key for key in keys if len(member_header(archive, path, key).shape) == dimensions]


def member_header(archive: zipfile.ZipFile, path: str, key: str) -> Header:
    """The header of an array whose length agrees with it."""
    name = member_name(path, key)
    with opened_member(archive, path, key) as stream:
        header = read_header(stream, name)
    check_size(header, archive.getinfo(key + ".npy").file_size, name)
    return header


def member_column(archive: zipfile.ZipFile, path: str, key: str, header: Header) -> np.ndarray:
    """The values of a one-dimensional array."""
    name = member_name(path, key)
    with opened_member(archive, path, key) as stream:
        read_header(stream, name)
        return read_column(stream, header, name)


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
