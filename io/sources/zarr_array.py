"""Views and columns from arrays in Zarr stores, formats 2 and 3, on a disk or in a bucket."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr
import zarr.errors

from aweigh.io.errors import DataError
from aweigh.io.location import open_location
from aweigh.io.names import scheme
from aweigh.io.sources import netcdf
from aweigh.io.sources.base import (
    Source,
    as_column,
    block_bounds,
    check_column,
    check_view_shape,
    described,
    regroup,
    view_dtype,
)
from aweigh.io.sources.failures import missing_key, needless_key, no_file, only, reading, shown

PACKED = {"_FillValue", "missing_value", "scale_factor", "add_offset"}
HINT = "Check that zarr.open reads it; write or copy the store again where it does not."


@dataclass(frozen=True)
class ZarrSource:
    """A view in an existing Zarr array.

    Zarr reads a chunk that is not there as the fill value, silently: it may have been left out on purpose.
    """

    name: str
    path: str
    array: zarr.Array[Any]

    @property
    def rows(self) -> int:
        return self.array.shape[0]

    @property
    def columns(self) -> int:
        return self.array.shape[1]

    @property
    def dtype(self) -> np.dtype:
        return view_dtype(np.dtype(self.array.dtype), self.name)

    @property
    def chunk_rows(self) -> int:
        """The rows that are stored together; all of them where the chunks are not alike."""
        return chunk_rows(self.array) or self.rows

    def describe(self) -> str:
        return described(self, self.name)

    def blocks(self, rows_per_block: int) -> Iterator[np.ndarray]:
        block_bounds(self.rows, rows_per_block)
        return regroup(self._pieces(rows_per_block), min(rows_per_block, self.rows))

    def _pieces(self, rows_per_block: int) -> Iterator[np.ndarray]:
        """Whole chunks of rows, so that none is read twice: as many as fit a block, but at least one."""
        chunk = chunk_rows(self.array) or rows_per_block
        for start, stop in block_bounds(self.rows, max(rows_per_block // chunk, 1) * chunk):
            with zarr_errors(self.name):
                piece = np.asarray(self.array[start:stop])
            yield piece.astype(self.dtype, copy=False)


def open_view(path: str, key: str | None) -> Source:
    """The view in a Zarr array, or in the only two-dimensional array of a group; decoded where xarray packed it."""
    name, array = find(path, key, 2, "two-dimensional array")
    if PACKED & set(array.attrs) and not scheme(path):
        return netcdf.packed_view(name, os.path.join(path, array.path) if array.path else path)
    check_view_shape(array.shape, name)
    view_dtype(np.dtype(array.dtype), name)
    return ZarrSource(name, path, array)


def open_column(path: str, key: str | None) -> np.ndarray:
    """The ids or labels in a Zarr array, or in the only one-dimensional array of a group."""
    name, array = find(path, key, 1, "one-dimensional array")
    if np.dtype(array.dtype).kind not in "TO":  # text of any length, which is known only once it is read
        check_column(array.shape, np.dtype(array.dtype), name)
    with zarr_errors(name):
        values = np.asarray(array[...])
    return as_column(plain_text(values), name)


def find(path: str, key: str | None, dimensions: int, wanted: str) -> tuple[str, zarr.Array[Any]]:
    """The name and the array that a path and a key mean."""
    node = opened(path)
    if isinstance(node, zarr.Array):
        if key is not None:
            raise needless_key(path, key)
        return path, without_pickle(node, path)
    if key is None:
        arrays = arrays_below(path, node)
        fitting = [each for each, array in arrays.items() if array.ndim == dimensions]
        key = only(path, wanted, list(arrays) if len(arrays) == 1 else fitting, arrays)
    name = f"{path}:{shown(key)}"
    with zarr_errors(name):
        try:
            array = node[key]
        except (KeyError, ValueError):
            array = None
    if not isinstance(array, zarr.Array):
        raise missing_key(path, key, arrays_below(path, node))
    return name, without_pickle(array, name)


def opened(path: str) -> zarr.Array[Any] | zarr.Group:
    """The array or group at a path or an s3:// URL."""
    remote = scheme(path)
    if not remote:
        check_folder(path)
    with zarr_errors(path):
        try:
            return zarr.open(open_location(path).zarr_store() if remote else path, mode="r")
        except FileNotFoundError as error:
            raise DataError(
                f"{path} holds no Zarr array or group"
                if remote
                else f"{path} is a folder, but holds no Zarr array or group",
                "Give the folder of a Zarr store or array; other sources are single files.",
            ) from error


def check_folder(path: str) -> None:
    """Raises DataError unless a folder is there, StorageError where it may not be read."""
    if not os.path.exists(path):
        store = path
        while store and not store.lower().endswith(".zarr"):
            store = os.path.dirname(store)
        if store != path and os.path.isdir(store):
            node = opened(store)
            there = arrays_below(store, node) if isinstance(node, zarr.Group) else {}
            raise missing_key(store, os.path.relpath(path, store), there)
        raise no_file(path)
    if not os.path.isdir(path):
        raise DataError(f"{path} is a file, but a Zarr store is a folder", "Unpack it, or correct its suffix.")
    with reading(path):
        os.listdir(path)


def arrays_below(path: str, group: zarr.Group) -> dict[str, zarr.Array[Any]]:
    """All arrays in a group and its groups, by their path."""
    with zarr_errors(path):
        members = group.members(max_depth=None)
    return {name: node for name, node in sorted(members, key=str) if isinstance(node, zarr.Array)}


def chunk_rows(array: zarr.Array[Any]) -> int | None:
    """The rows that are stored together, or None where the chunks are not all alike."""
    try:
        return (array.shards or array.chunks)[0]
    except NotImplementedError:
        return None


def without_pickle(array: zarr.Array[Any], name: str) -> zarr.Array[Any]:
    """The array, unless reading it would unpickle: unpickling runs whatever code the data names."""
    with zarr_errors(name):
        codecs = (*array.filters, *array.compressors)
    if any("pickle" in str(getattr(codec, "codec_id", "")) for codec in codecs):
        raise DataError(f"{name} is stored with the codec pickle, which is never loaded", "Save it as numbers or text.")
    return array


@contextmanager
def zarr_errors(name: str) -> Iterator[None]:
    """A context that makes DataError of whatever Zarr and its codecs raise; it is quiet about odd dtypes."""
    with reading(name, (Exception,), HINT), warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=zarr.errors.UnstableSpecificationWarning)
        yield


def plain_text(values: np.ndarray) -> np.ndarray:
    """Text of any length as numpy's text of one length; anything else as it is."""
    if values.dtype.kind == "T" or (values.dtype.kind == "O" and all(isinstance(v, str) for v in values.flat)):
        return np.array(values.tolist(), dtype=np.str_).reshape(values.shape)
    return values
