"""Views and columns from Parquet files, one or many, a batch of rows at a time.

A view is a column of lists of one length, or columns of numbers. The rows of many files follow one another in the
order of the files' names, in which part.10 comes after part.9.
"""

import glob
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from aweigh.io.errors import DataError
from aweigh.io.model import STRING
from aweigh.io.sources.base import as_column, block_bounds, check_view_shape, described, regroup, view_dtype
from aweigh.io.sources.extras import needed
from aweigh.io.sources.failures import changed, missing_key, not_a, only, reading, shown
from aweigh.io.sources.files import checked_file
from aweigh.io.sources.spool import spooled
from aweigh.io.sources.tables import chosen

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

AGAIN = "Write it again, or copy it anew from where it is whole."
BUFFER = 1 << 20
STRIP = 32  # columns, each of which takes some 4 MB while it is read
LARGE = 1 << 28  # bytes of a row group


class Field(NamedTuple):
    """A column: the dtype in which a view delivers its numbers, None where it holds none; its width in a view."""

    name: str
    kind: str
    dtype: np.dtype | None
    width: int = 1
    is_list: bool = False


Fields = tuple[Field, ...]


@dataclass(frozen=True)
class ParquetSource:
    """A view in one column of lists or several of numbers; a null list is a missing row."""

    path: str
    files: tuple[str, ...]
    counts: tuple[int, ...]
    fields: Fields
    index: str | None

    @property
    def rows(self) -> int:
        return sum(self.counts)

    @property
    def columns(self) -> int:
        return sum(field.width for field in self.fields)

    @property
    def dtype(self) -> np.dtype:
        if not self.fields:
            raise DataError(f"{self.path} has no column left for the view", "Name the columns with PATH:PREFIX.")
        return np.result_type(*map(self._dtype_of, self.fields))

    def describe(self) -> str:
        return described(self, self.path)

    def without(self, names: frozenset[str]) -> "ParquetSource":
        return replace(self, fields=tuple(field for field in self.fields if field.name not in names))

    def ids(self) -> np.ndarray | None:
        """The rows' names, where pandas stored an index that names them."""
        return carried(self.path, self.files, self.index)

    def blocks(self, rows_per_block: int) -> Iterator[np.ndarray]:
        return regroup(self._pieces(rows_per_block), min(rows_per_block, self.rows))

    def _pieces(self, rows_per_block: int) -> Iterator[np.ndarray]:
        for file, count in zip(self.files, self.counts, strict=True):
            start = 0
            with opened(file) as parquet:
                for group in range(parquet.num_row_groups):
                    read = self._by_strips if self._is_large(parquet, group) else self._by_rows
                    for piece in read(parquet, group, self.fields, file, start, rows_per_block):
                        yield piece
                        start += len(piece)
            if start != count:
                raise changed(file)

    def _is_large(self, parquet: "pq.ParquetFile", group: int) -> bool:
        """Whether the pages that are read of all columns at once would take hundreds of megabytes."""
        return len(self.fields) > STRIP and parquet.metadata.row_group(group).total_byte_size > LARGE

    def _by_rows(
        self, parquet: "pq.ParquetFile", group: int, fields: Fields, file: str, start: int, rows_per_block: int
    ) -> Iterator[np.ndarray]:
        """The rows of some columns of a row group, which begins in row start of a file."""
        for batch in parquet.iter_batches(rows_per_block, [group], [field.name for field in fields]):
            block, at = np.empty((len(batch), sum(field.width for field in fields)), self.dtype), 0
            for field in fields:
                where = f"{file}, column {shown(field.name)!r}"
                values = plain(batch.column(field.name))
                fill = vectors if field.is_list else numbers
                block[:, at : at + field.width] = fill(values, field.width, self.dtype, where, start)
                at += field.width
            yield block
            start += len(batch)

    def _by_strips(
        self, parquet: "pq.ParquetFile", group: int, fields: Fields, file: str, start: int, rows_per_block: int
    ) -> Iterator[np.ndarray]:
        """The same through a temporary file, in which a few columns at a time lie one after the other."""
        rows = parquet.metadata.row_group(group).num_rows
        with spooled(self.dtype, file) as spool:
            strips, end = [], 0
            for at in range(0, len(fields), STRIP):
                done = 0
                for piece in self._by_rows(parquet, group, fields[at : at + STRIP], file, start, rows_per_block):
                    width = piece.shape[1]
                    spool.write(end + done * width, piece)
                    done += len(piece)
                if done != rows:
                    raise changed(file)
                strips.append((end, width))
                end += rows * width
            for low, high in block_bounds(rows, rows_per_block):
                parts = [spool.read(begin + low * width, (high - low) * width) for begin, width in strips]
                yield np.concatenate([part.reshape(high - low, -1) for part in parts], axis=1)

    def _dtype_of(self, field: Field) -> np.dtype:
        if field.dtype is None:
            raise DataError(
                f"{self.path}, column {shown(field.name)!r} holds {field.kind}, but a view holds numbers, or lists of "
                "numbers",
                f"Name the view's columns as {self.path}:PREFIX, or give this one to --ids or --labels.",
            )
        return field.dtype


def open_view(path: str, key: str | None) -> ParquetSource:
    """The view in the column KEY, in those that begin with KEY, in the only one of lists, or else in all columns."""
    files, counts, schema = checked(path)
    index = index_of(schema)
    fields = [field_of(files[0], field) for field in schema if field.name != index or key == index]
    if key is not None:
        fields = [fields[at] for at in chosen(path, [field.name for field in fields], key)]
    elif lists := [field for field in fields if field.is_list]:
        only(path, "column of lists", [field.name for field in lists], [field.name for field in fields])
        fields = lists
    measured = tuple(field._replace(width=width_of(path, files, field)) if field.is_list else field for field in fields)
    source = ParquetSource(path, files, counts, measured, index)
    check_view_shape((source.rows, source.columns), path)
    return source


def open_column(path: str, key: str | None) -> np.ndarray:
    """The ids or labels in the column KEY, or in the only one."""
    files, _, schema = checked(path)
    key = only(path, "column", schema.names, schema.names) if key is None else key
    if key not in schema.names:
        raise missing_key(path, key, schema.names)
    return column(files, key)


def column_ids(path: str, key: str | None) -> np.ndarray | None:
    """The rows' names that a column comes with."""
    files, _, schema = checked(path)
    index = index_of(schema)
    return None if index == key else carried(path, files, index)


def carried(path: str, files: tuple[str, ...], index: str | None) -> np.ndarray | None:
    """The values of pandas' index, but for a nameless one of numbers, which counts rows."""
    if index is None:
        return None
    values = column(files, index)
    return None if index.startswith("__index_level_") and values.dtype.kind in "if" else values


def column(files: tuple[str, ...], key: str) -> np.ndarray:
    """A column of all files: int64, float64, bool or str."""
    pieces = []
    for file in files:
        where = f"{file}, column {shown(key)!r}"
        start = 0
        with opened(file) as parquet:
            for batch in parquet.iter_batches(1 << 16, columns=[key]):
                pieces.append(values_of(plain(batch.column(0)), where, start))
                start += len(batch)
    return as_column(np.concatenate(pieces), f"{files[0]}:{shown(key)}") if pieces else np.empty(0, np.int64)


def values_of(values: "pa.Array", where: str, start: int) -> np.ndarray:
    """Ids or labels of rows from start on; DataError for a null."""
    import pyarrow as pa

    if values.null_count:
        row = start + int(np.argmin(values.is_valid().to_numpy(zero_copy_only=False)))
        raise DataError(f"{where}, row {row} (counted from 0) is null, but each row needs a value", "Fill it in.")
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        return np.array(values.to_pylist(), STRING)
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type) or pa.types.is_boolean(values.type)):
        raise DataError(f"{where} holds {values.type}, but ids and labels are numbers or text", "Convert it to text.")
    return values.to_numpy(zero_copy_only=False)


def checked(path: str) -> tuple[tuple[str, ...], tuple[int, ...], "pa.Schema"]:
    """The files of a path, their numbers of rows and their common schema."""
    needed("pyarrow", "parquet", path)
    files = files_of(path)
    counts, first = [], None
    for file in files:
        with opened(file) as parquet:
            counts.append(parquet.metadata.num_rows)
            schema = parquet.schema_arrow
        first = schema if first is None else first
        if not schema.equals(first):
            other = next((f for f in schema if f.name not in first.names or not f.equals(first.field(f.name))), None)
            what = "lacks columns" if other is None else f"has the column {shown(other.name)} of type {other.type}"
            raise DataError(f"{file} {what}, unlike {files[0]}", "Give files of the same columns and types.")
    if not sum(counts):
        raise DataError(f"{path} has 0 rows", "Check how it was written.")
    return files, tuple(counts), first


def files_of(path: str) -> tuple[str, ...]:
    """The Parquet files of a file, a folder or a pattern such as parts/*.parquet, numbers in names counted."""
    if os.path.isfile(path) or not (os.path.isdir(path) or glob.has_magic(path)):
        return (path,)
    found = parquet_in(path) if os.path.isdir(path) else glob.glob(path)
    if not found:
        raise DataError(f"{path} matches no file", "Check the path and its spelling.")
    return tuple(sorted(found, key=lambda file: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", file)]))


def is_table(folder: str) -> bool:
    """Whether a folder is a table of many files: it holds some, and no Zarr array or group."""
    zarr = any(os.path.exists(os.path.join(folder, name)) for name in ("zarr.json", ".zgroup", ".zarray"))
    return not zarr and bool(parquet_in(folder))


def parquet_in(folder: str) -> list[str]:
    """The Parquet files in a folder and those below; names that begin with a dot or _ are no data."""
    inside = glob.iglob("**/*", root_dir=folder, recursive=True)
    named = [name for name in inside if name.lower().endswith((".parquet", ".pq"))]
    return [os.path.join(folder, n) for n in named if not any(part[0] in "._" for part in n.split(os.sep))]


@contextmanager
def opened(path: str) -> "Iterator[pq.ParquetFile]":
    """The file, read through a small buffer; damage to it is a DataError that names it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    head = checked_file(path)
    if head.startswith(b"PARE"):
        raise DataError(f"{path} is encrypted", "Write it again without encryption.")
    if not head.startswith(b"PAR1"):
        raise not_a(path, "a Parquet file", head)
    with reading(path, (pa.ArrowException, OSError), AGAIN):
        # Without the buffer, a row group's column is read whole, which may be the whole file.
        parquet = pq.ParquetFile(path, buffer_size=BUFFER, pre_buffer=False)
        with parquet:
            yield parquet


def index_of(schema: "pa.Schema") -> str | None:
    """The column in which pandas stored the index, if it has one of its own."""
    stored = (schema.pandas_metadata or {}).get("index_columns", [])
    names = [name for name in stored if isinstance(name, str) and name in schema.names]
    return names[0] if len(names) == 1 else None


def field_of(path: str, field: "pa.Field") -> Field:
    """What a column may be in a view; its width is not looked for yet."""
    kind = getattr(field.type, "storage_type", field.type)
    value = getattr(kind, "value_type", None) if "list" in str(kind) else None
    return Field(field.name, str(field.type), number_dtype(kind if value is None else value), 1, value is not None)


def number_dtype(kind: "pa.DataType") -> np.dtype | None:
    """The dtype in which a view delivers numbers of this type, None where it is none."""
    import pyarrow as pa

    if pa.types.is_decimal(kind):
        return np.dtype(np.float64)
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        return None
    return view_dtype(np.dtype(kind.to_pandas_dtype()), "")


def width_of(path: str, files: tuple[str, ...], field: Field) -> int:
    """The length of the first list that is there."""
    import pyarrow.compute as pc

    for file in files:
        with opened(file) as parquet:
            for batch in parquet.iter_batches(1024, columns=[field.name]):
                lengths = pc.drop_null(pc.list_value_length(plain(batch.column(0))))
                if len(lengths):
                    return int(lengths[0].as_py())
    raise DataError(f"{path}, column {shown(field.name)!r} is null in every row", "Leave the view out.")


def plain(values: "pa.Array") -> "pa.Array":
    """The values as they are stored: an extension's storage, a dictionary's entries."""
    values = getattr(values, "storage", values)
    return values.dictionary_decode() if hasattr(values, "dictionary_decode") else values


def numbers(values: "pa.Array", width: int, dtype: np.dtype, where: str, start: int) -> np.ndarray:
    """A column of numbers, (rows, 1); nulls are NaN."""
    return as_numpy(values, dtype)[:, None]


def vectors(values: "pa.Array", width: int, dtype: np.dtype, where: str, start: int) -> np.ndarray:
    """A column of lists, (rows, width); null lists are rows of NaN.

    DataError for a list of another length, and for a null inside a list.
    """
    import pyarrow.compute as pc

    there = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
    lengths = pc.drop_null(pc.list_value_length(values)).to_numpy()
    ragged = np.flatnonzero(lengths != width)
    if len(ragged):
        row = start + there[ragged[0]]
        raise DataError(
            f"{where}, row {row} (counted from 0) is a list of {lengths[ragged[0]]} numbers, but the first one has "
            f"{width}",
            "A view needs lists of one length; a row that lacks the view is null.",
        )
    flat = values.flatten()
    if flat.null_count:
        at = int(np.argmin(flat.is_valid().to_numpy(zero_copy_only=False)))
        row = start + there[at // width]
        raise DataError(
            f"{where}, row {row} (counted from 0) has a null at place {at % width} of its list",
            "Fill it in, or make the whole list null where the row lacks the view.",
        )
    block = np.full((len(values), width), np.nan, dtype)
    block[there] = as_numpy(flat, dtype).reshape(-1, width)
    return block


def as_numpy(values: "pa.Array", dtype: np.dtype) -> Any:
    """Numbers as an array of floats; nulls are NaN."""
    import pyarrow as pa

    return values.cast(pa.from_numpy_dtype(dtype), safe=False).to_numpy(zero_copy_only=False)
