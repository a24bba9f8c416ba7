"""Writing one batch's Zarr group: arrays, checksums, and the count that must be right before a commit."""

import hashlib
import json
from collections.abc import Collection
from typing import Any

import numpy as np
import zarr
from numcodecs import Blosc
from zarr.codecs import BloscCodec, Crc32cCodec

from aweigh.io.errors import StorageError
from aweigh.io.location import Location
from aweigh.io.locks import storage_errors
from aweigh.io.model import View, chunk_name
from aweigh.io.reader import CHECKSUM_ROWS
from aweigh.io.store import RecordingStore

SHRINKS = 0.95
LZ4 = BloscCodec(cname="lz4", shuffle="shuffle")
# Zarr leaves out chunks that hold only the fill value; then they could not be told from lost ones.
CONFIG: Any = {"write_empty_chunks": True}


class BatchWriter:
    """The uncommitted group `batches/<name>`: blocks are written whole and once, then `finish` seals it.

    dtypes: those of the columns `sample` and, where there is one, `label`: np.int64 or str.
    """

    def __init__(
        self,
        location: Location,
        name: str,
        views: tuple[View, ...],
        rows: int,
        block_rows: int,
        dtypes: dict[str, Any],
        links: Collection[str] = (),
    ) -> None:
        self.location, self.name, self.rows, self.block_rows = location, name, rows, block_rows
        self.blocks = -(-rows // block_rows)
        self.views = {view.name: view for view in views}
        self.columns = (*self.views, "present", *dtypes)
        self._dtypes, self._links = dtypes, links
        self._sizes = np.zeros((self.blocks, len(self.columns)), np.int64)
        self._checksums = np.zeros((self.blocks, len(self.columns)), np.uint32)
        self._arrays: dict[str, zarr.Array[Any]] = {}
        self._store = RecordingStore(location.zarr_store(read_only=False))
        self._group: zarr.Group | None = None

    def __enter__(self) -> "BatchWriter":
        return self

    def __exit__(self, *ignored: object) -> None:
        self._store.stop()

    def write(self, array: str, block: int, values: np.ndarray, sample: np.ndarray | None = None) -> None:
        """Store one block of an array; a view's first `sample` (or values) decides whether to compress."""
        with self._errors():
            if array not in self._arrays:
                self._arrays[array] = self._create(array, values if sample is None else sample)
            start = block * self.block_rows
            self._arrays[array][start : start + len(values)] = values
        at = block, self.columns.index(array)
        self._sizes[at], self._checksums[at] = self._store.written.pop(chunk_name(self.name, array, block))

    def note(self, view: str, block: int, stamp: int) -> None:
        """Note the stamp of one block of a linked view, which is not stored here."""
        self._checksums[block, self.columns.index(view)] = stamp

    def finish(self) -> str:
        """The digest of the batch, once all that was written is counted and will outlast a power cut."""
        with self._errors():
            for name in self.columns:
                if name not in self._arrays and name not in self._links:
                    self._create(name, None)
            parts = -(-self.blocks // CHECKSUM_ROWS)
            shape = self._checksums.shape
            chunks = min(self.blocks, CHECKSUM_ROWS), shape[1]
            names = {"arrays": list(self.columns)}
            self._array("checksum", shape, chunks, np.uint32, ("chunk", "array"), (), names)[:] = self._checksums
        self._count(parts)
        self.location.sync(f"batches/{self.name}")
        return digest(tuple(self.views.values()), self.rows, self.block_rows, self._checksums)

    def _errors(self) -> Any:
        return storage_errors(f"writing batch {self.name!r} to {self.location.path}")

    def _count(self, parts: int) -> None:
        found = dict(self.location.sizes(f"batches/{self.name}"))
        sealing = [chunk_name(self.name, "checksum", part) for part in range(parts)]
        expected = {name: self._store.written[name][0] for name in sealing}
        for block, column in np.argwhere(self._sizes):
            expected[chunk_name(self.name, self.columns[column], block)] = int(self._sizes[block, column])
        for name, size in expected.items():
            if found.get(name) != size:
                raise StorageError(
                    f"{name} of {self.location.path} has {found.get(name)} bytes and {size} were written; the batch is "
                    "not committed",
                    "Check the file system and repeat the import.",
                )

    def _create(self, name: str, values: np.ndarray | None) -> "zarr.Array[Any]":
        if name in self.views:
            view = self.views[name]
            codecs = (LZ4,) if values is None or shrinks(values) else ()
            dims = "sample", f"feature_{name}"
            return self._by_rows(name, (view.features,), view.dtype, dims, codecs, {})
        if name == "present":
            names = {"views": list(self.views)}
            return self._by_rows(name, (len(self.views),), bool, ("sample", "view"), (), names)
        return self._by_rows(name, (), self._dtypes[name], ("sample",), (), {})

    def _by_rows(self, name: str, width: Any, dtype: Any, dims: Any, codecs: Any, attributes: Any) -> Any:
        return self._array(name, (self.rows, *width), (self.block_rows, *width), dtype, dims, codecs, attributes)

    def _array(
        self, name: str, shape: Any, chunks: Any, dtype: Any, dims: Any, codecs: Any, attributes: Any
    ) -> "zarr.Array[Any]":
        if self._group is None:
            self._group = zarr.create_group(store=self._store, path=f"batches/{self.name}", zarr_format=3)
        return self._group.create_array(
            name,
            shape=shape,
            chunks=chunks,
            dtype=dtype,
            # Strings are of Zarr's "string" type (vlen-utf8): fixed-width types are unspecified, and warn.
            fill_value="" if dtype is str else 0,
            filters=None,
            compressors=[*codecs, Crc32cCodec()],
            dimension_names=dims,
            attributes=attributes,
            config=CONFIG,
        )


def shrinks(values: np.ndarray) -> bool:
    """Whether lz4 with byte shuffling takes at least 5 % off."""
    packed = Blosc(cname="lz4", clevel=5, shuffle=Blosc.SHUFFLE).encode(np.ascontiguousarray(values))
    return len(packed) <= SHRINKS * values.nbytes


def digest(views: tuple[View, ...], rows: int, block_rows: int, checksums: np.ndarray) -> str:
    """The sha256 over a batch's shapes and all its chunks' checksums."""
    shapes = json.dumps([[view.name, view.features, view.dtype] for view in views] + [[rows, block_rows]])
    return hashlib.sha256(shapes.encode() + checksums.astype("<u4").tobytes()).hexdigest()
