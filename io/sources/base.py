"""What every import source offers, and what makes a view or a column of an array."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np

from aweigh.io.errors import DataError
from aweigh.io.sources.failures import shown

WORDS = {
    "c": "complex numbers",
    "O": "Python objects",
    "V": "structured records",
    "M": "dates",
    "m": "durations",
}
VIEW_HINTS = {
    "c": "Split it into two real views, for example x.real and x.imag, or take numpy.abs(x).",
    "O": "Convert it with x.astype(numpy.float64) and save it again; pickled objects are never loaded.",
    "V": "Save its fields as the columns of one plain array.",
}


class Source(Protocol):
    """A table of numbers, (samples, features), that is read a block of rows at a time.

    ``dtype`` is the one in which blocks are delivered: float32 or float64 in native byte order. Sources hold
    no open file, can be pickled, and give the same blocks each time.
    """

    @property
    def rows(self) -> int: ...

    @property
    def columns(self) -> int: ...

    @property
    def dtype(self) -> np.dtype: ...

    def blocks(self, rows_per_block: int) -> Iterator[np.ndarray]:
        """Consecutive new C-contiguous arrays (rows_per_block, columns); the last one may be shorter.

        Damage that shows only at the end of a stream, such as a wrong CRC, is raised instead of the last
        block.
        """
        ...

    def describe(self) -> str:
        """The name, shape and dtype for messages."""
        ...


def described(source: Source, name: str) -> str:
    """The line that describes a source in messages."""
    return f"{name} ({source.rows} x {source.columns}, {source.dtype.name})"


def block_bounds(rows: int, rows_per_block: int) -> Iterator[tuple[int, int]]:
    """The first row of each block and the row after its last."""
    if rows_per_block < 1:
        raise ValueError(f"rows_per_block is {rows_per_block}, but a block needs at least 1 row")
    return ((start, min(start + rows_per_block, rows)) for start in range(0, rows, rows_per_block))


def regroup(pieces: Iterable[np.ndarray], rows_per_block: int) -> Iterator[np.ndarray]:
    """The rows of pieces of any length as blocks of rows_per_block rows, the last one shorter."""
    block, filled = None, 0
    for piece in pieces:
        if block is None and len(piece) == rows_per_block:
            yield np.ascontiguousarray(piece)
            continue
        taken = 0
        while taken < len(piece):
            if block is None:
                block, filled = np.empty((rows_per_block, *piece.shape[1:]), piece.dtype), 0
            count = min(rows_per_block - filled, len(piece) - taken)
            block[filled : filled + count] = piece[taken : taken + count]
            filled, taken = filled + count, taken + count
            if filled == rows_per_block:
                yield block
                block = None
    if block is not None:
        yield block[:filled]


def view_dtype(dtype: np.dtype, name: str) -> np.dtype:
    """The dtype in which a view of this dtype is delivered; DataError for anything but real numbers.

    float32 holds float16, bool and integers of up to 16 bits exactly. Wider integers become float64, because
    only a pass over the data could tell whether float32 holds them; float64 itself rounds beyond 2**53.
    """
    if dtype.kind in "biuf":
        exact = dtype.itemsize <= (4 if dtype.kind == "f" else 2)
        return np.dtype(np.float32 if exact else np.float64)
    raise DataError(
        f"{name} holds {kind_of(dtype)}, but a view holds real numbers: floats, integers or bools",
        VIEW_HINTS.get(dtype.kind, "Encode it as numbers and save it again."),
    )


def kind_of(dtype: np.dtype) -> str:
    """The dtype in words."""
    return f"{WORDS.get(dtype.kind, 'text')} ({shown(dtype)})"


def check_view_shape(shape: Sequence[int], name: str) -> None:
    """Raises DataError unless the shape is (samples, features) with at least one of each."""
    if len(shape) != 2:
        many = len(shape) > 2
        raise DataError(
            f"{name} has {len(shape)} dimensions, shape {tuple(shape)}, but a view needs (samples, features)",
            "Use reshape(len(x), -1) to flatten each sample, then save it again."
            if many
            else "Use reshape(-1, 1) where it is one feature of many samples, then save it again.",
        )
    for length, axis in zip(shape, ("rows", "columns"), strict=True):
        if length < 1:
            raise DataError(
                f"{name} has 0 {axis}, shape {tuple(shape)}, but a view needs at least one of each",
                "Check how the file was written, or leave this view out.",
            )


def check_column(shape: Sequence[int], dtype: np.dtype, name: str) -> None:
    """Raises DataError unless shape and dtype are those of ids or labels, (samples,) or (samples, 1)."""
    if len(shape) != 1 and not (len(shape) == 2 and shape[1] == 1):
        raise DataError(
            f"{name} has the shape {tuple(shape)}, but ids and labels are one value a sample, (samples,)",
            "Save one dimension: x.ravel() of a single row, x.argmax(1) of one-hot labels.",
        )
    if shape[0] < 1:
        raise DataError(
            f"{name} has 0 rows, but ids and labels are one value a sample", "Check how the file was written."
        )
    if dtype.kind not in "biufUST":
        raise DataError(
            f"{name} holds {kind_of(dtype)}, but ids and labels are numbers, bools or strings",
            "Convert it, for example with x.astype(str), and save it again; objects are never unpickled.",
        )


def as_column(values: np.ndarray, name: str) -> np.ndarray:
    """The values as one dimension of int64, float64, bool or str."""
    check_column(values.shape, values.dtype, name)
    values, kind = values.reshape(-1), values.dtype.kind
    if kind in "bU":
        return values.astype(values.dtype.newbyteorder("="))
    if kind == "T":
        return values
    if kind == "f":
        return values.astype(np.float64)
    if kind == "S":
        return decoded(values, name)
    if kind == "u" and values.max() > np.iinfo(np.int64).max:
        raise DataError(
            f"{name} holds {values.max()}, but integer ids and labels end at {np.iinfo(np.int64).max}",
            "Save them as text with x.astype(str).",
        )
    return values.astype(np.int64)


def decoded(values: np.ndarray, name: str) -> np.ndarray:
    """The str array of an array of UTF-8 bytes."""
    try:
        return np.char.decode(values, "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name} holds bytes that are not UTF-8 ({error.reason})",
            "Decode them to str and save the array again.",
        ) from error
