"""Views that stay where they are: blocks of rows of an array in another Zarr store, and whether they have changed."""

import itertools
import math
from collections.abc import Mapping
from typing import Any

import google_crc32c
import numpy as np
import zarr

from aweigh.io.errors import DataError, StorageError, UsageError
from aweigh.io.location import open_location
from aweigh.io.model import Link, View
from aweigh.io.sources import zarr_array
from aweigh.io.sources.base import Source
from aweigh.io.sources.zarr_array import ZarrSource

LARGEST_BLOCK = 1 << 28


class Linked:
    """The array that a link leads to, opened; StorageError where it is gone, or not of the view's shape."""

    def __init__(self, link: Link, view: View, rows: int) -> None:
        self.link, self.view = link, view
        try:
            self.array = zarr_array.find(link.path, link.key or None, 2, "two-dimensional array")[1]
        except DataError as error:
            raise StorageError(f"view {view.name!r} is linked to {link}, which cannot be opened: {error}") from error
        if self.array.shape != (rows, view.features):
            raise _changed(view.name, f"{link} has shape {self.array.shape} and had ({rows}, {view.features})")
        self.location = open_location(link.path)

    def read(self, start: int, stop: int) -> np.ndarray:
        """The rows as they lie there, in the view's dtype."""
        try:
            with zarr_array.zarr_errors(str(self.link)):
                values = np.asarray(self.array[start:stop])
        except DataError as error:
            raise StorageError(f"view {self.view.name!r} is linked, and cannot be read: {error}") from error
        return np.ascontiguousarray(values, self.view.dtype)

    def stamp(self, start: int, stop: int) -> int:
        """The crc32c over names, sizes and versions of the chunks that hold these rows; no chunk is read."""
        grid = self.array.shards or self.array.chunks
        columns = range(-(-self.array.shape[1] // grid[1]))
        told = []
        for at in itertools.product(range(start // grid[0], -(-stop // grid[0])), columns):
            key = self.array.metadata.encode_chunk_key(at)
            told.append(f"{key} {self.location.stamp(f'{self.array.path}/{key}'.lstrip('/'))}")
        return int(google_crc32c.value("\n".join(told).encode()))

    def check(self, start: int, stop: int, expected: int) -> None:
        """StorageError where a chunk was written anew, added or removed since it was linked."""
        if self.stamp(start, stop) != expected:
            raise _changed(self.view.name, f"chunks of {self.link}, rows {start} to {stop - 1}, have changed")


def _changed(view: str, what: str) -> StorageError:
    return StorageError(
        f"view {view!r}: {what}; linked data must stay as it is",
        "Restore it, or import it anew into another archive.",
    )


def link_to(name: str, source: Source) -> tuple[Link, int]:
    """The link to a source, and its rows a chunk; UsageError unless it is a Zarr array, its rows as they lie there."""
    if not isinstance(source, ZarrSource):
        raise UsageError(
            f"--link refers to arrays of Zarr stores, and view {name!r} is {source.describe()}",
            "Leave out --link: it is copied into the archive then.",
        )
    array: zarr.Array[Any] = source.array
    codecs = [type(codec).__name__ + str(getattr(codec, "codec_id", "")) for codec in array.compressors]
    checksums = any("crc32" in codec.lower() for codec in codecs)
    return Link(open_location(source.path).path, array.path, checksums), source.chunk_rows


def linked_block_rows(chunk_rows: Mapping[str, int], rows: int, row_bytes: int, wanted: int) -> int:
    """The rows of a block in which every linked view has whole chunks; DataError where it would be too large."""
    chunks = {name: min(size, rows) for name, size in chunk_rows.items()}
    least = min(math.lcm(*chunks.values()), rows)
    if least * row_bytes > LARGEST_BLOCK:
        told = ", ".join(f"{name} {size}" for name, size in chunk_rows.items())
        raise DataError(
            f"the linked views' chunks hold {told} rows: blocks of whole chunks would hold {least} rows, which are "
            f"{least * row_bytes >> 20} MiB of all views together, and up to {LARGEST_BLOCK >> 20} MiB are allowed",
            "Leave out --link, or write the arrays again with fewer rows a chunk, the same number in each.",
        )
    return least * max(1, wanted // least)
