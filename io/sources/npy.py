"""Views and columns from .npy files, and the parts that .npz files share.

Files are read, not mapped: mapped pages count as memory of the process, and a file that shrinks while it is
mapped kills the process without a message.
"""

import io
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

import numpy as np

from aweigh.io.errors import DataError
from aweigh.io.names import scheme
from aweigh.io.sources.base import (
    as_column,
    block_bounds,
    check_column,
    check_view_shape,
    described,
    view_dtype,
)
from aweigh.io.sources.failures import changed, needless_key, not_a, reading, shown
from aweigh.io.sources.files import checked_file, file_size, opened

PIECE = 1 << 20
LONGEST = 1 << 16
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
AGAIN = "Write it again with numpy.save or numpy.savez, or copy it anew from where it is whole."


class Header(NamedTuple):
    """What the head of a .npy stream says; offset is where the values begin."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype
    offset: int

    @property
    def size(self) -> int:
        """The length of the whole stream in bytes."""
        return self.offset + math.prod(self.shape) * self.dtype.itemsize

    @property
    def by_columns(self) -> bool:
        """Whether the values lie column by column; with one row or one column both orders are the same."""
        return self.fortran and min(self.shape) > 1


Opener = Callable[[], AbstractContextManager[BinaryIO]]


@dataclass(frozen=True)
class NpySource:
    """A view in a .npy stream; one that lies column by column must be opened seekable."""

    name: str
    header: Header
    opener: Opener

    @property
    def rows(self) -> int:
        return self.header.shape[0]

    @property
    def columns(self) -> int:
        return self.header.shape[1]

    @property
    def dtype(self) -> np.dtype:
        return view_dtype(self.header.dtype, self.name)

    def describe(self) -> str:
        return described(self, self.name)

    def blocks(self, rows_per_block: int) -> Iterator[np.ndarray]:
        bounds = block_bounds(self.rows, rows_per_block)
        read = column_major_rows if self.header.by_columns else row_major_rows
        with self.opener() as stream:
            if read_header(stream, self.name) != self.header:
                raise changed(self.name)
            for start, stop in bounds:
                yield np.ascontiguousarray(read(stream, self.header, start, stop, self.name), self.dtype)


@dataclass(frozen=True)
class FileOpener:
    """Opens a file; a class and not a closure, because sources are pickled."""

    path: str

    @contextmanager
    def __call__(self) -> Iterator[BinaryIO]:
        with reading(self.path), opened(self.path) as file:
            yield file


def open_view(path: str, key: str | None) -> NpySource:
    """The view in a .npy file; DataError for one in a bucket whose rows would be a request a value."""
    header = file_header(path, key)
    if scheme(path) and header.by_columns:
        raise DataError(
            f"{path} lies column by column, and an object in a bucket is read from its front",
            "Save numpy.ascontiguousarray(x) instead, or copy the file to a disk.",
        )
    return view(path, header, FileOpener(path))


def open_column(path: str, key: str | None) -> np.ndarray:
    """The ids or labels in a .npy file."""
    header = file_header(path, key)
    with FileOpener(path)() as stream:
        read_header(stream, path)
        return read_column(stream, header, path)


def view(name: str, header: Header, opener: Opener) -> NpySource:
    """The source of a stream whose header describes a view."""
    check_view_shape(header.shape, name)
    view_dtype(header.dtype, name)
    return NpySource(name, header, opener)


def file_header(path: str, key: str | None) -> Header:
    """The header of a .npy file whose length agrees with it."""
    head = checked_file(path)
    if key is not None:
        raise needless_key(path, key)
    if not head.startswith(np.lib.format.MAGIC_PREFIX):
        raise not_a(path, "a .npy file", head)
    with FileOpener(path)() as stream:
        header = read_header(stream, path)
    check_size(header, file_size(path), path)
    return header


def read_header(stream: BinaryIO, name: str) -> Header:
    """The header at the front of a stream, which then stands at the first value."""
    head = stream.read(8)
    length = stream.read(4 if head[6:7] > b"\x01" else 2)
    text = stream.read(min(int.from_bytes(length, "little"), LONGEST))
    try:
        shape, fortran, dtype = parsed(io.BytesIO(head + length + text))
    except Exception as error:  # numpy parses it as Python source, which fails in many ways
        reason = shown(str(error).partition("\n")[0], 120)
        raise DataError(f"{name} has no valid .npy header: {reason}", AGAIN) from error
    return Header(shape, fortran, dtype, len(head + length + text))


def parsed(head: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype]:
    """The shape, whether it is in Fortran order, and the dtype."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy warns of headers from Python 2, which it reads well
        version = np.lib.format.read_magic(head)
        if version not in HEADERS:
            raise ValueError(f"format version {version[0]}.{version[1]} is not 1.0 or 2.0")
        shape, fortran, dtype = HEADERS[version](head)
    if any(length < 0 for length in shape):
        raise ValueError(f"the shape is {shape}")
    return shape, fortran, dtype


def check_size(header: Header, size: int, name: str) -> None:
    """Raises DataError unless the stream is as long as its header says."""
    if header.dtype.hasobject or size == header.size:  # pickled objects have any length; their dtype is refused
        return
    state = "truncated" if size < header.size else "longer than its one array"
    raise DataError(
        f"{name} is {state}: {header.shape} of {shown(header.dtype)} takes {header.size} bytes, not {size}",
        AGAIN,
    )


def fill(stream: BinaryIO, array: np.ndarray, name: str) -> np.ndarray:
    """The array, filled with the next bytes of the stream, which are read in small pieces."""
    raw = array.reshape(-1).view(np.uint8).data
    done = 0
    while done < len(raw):
        piece = stream.read(min(PIECE, len(raw) - done))
        if not piece:
            raise DataError(f"{name} is truncated: {len(raw) - done} bytes are missing", AGAIN)
        raw[done : done + len(piece)] = piece
        done += len(piece)
    return array


def row_major_rows(stream: BinaryIO, header: Header, start: int, stop: int, name: str) -> np.ndarray:
    """The next rows of a stream that lies row by row and stands at start."""
    return fill(stream, np.empty((stop - start, header.shape[1]), header.dtype), name)


def column_major_rows(stream: BinaryIO, header: Header, start: int, stop: int, name: str) -> np.ndarray:
    """Some rows of a seekable stream that lies column by column."""
    columns = np.empty((header.shape[1], stop - start), header.dtype)
    for index, values in enumerate(columns):
        stream.seek(header.offset + (index * header.shape[0] + start) * header.dtype.itemsize)
        fill(stream, values, name)
    return columns.T


def read_column(stream: BinaryIO, header: Header, name: str) -> np.ndarray:
    """The ids or labels of a stream that stands at its first value."""
    check_column(header.shape, header.dtype, name)
    return as_column(fill(stream, np.empty(header.shape[0], header.dtype), name), name)
