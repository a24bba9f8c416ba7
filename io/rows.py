"""Per-row arrays of a run: one Zarr array a batch and a name, chunked as the batch's blocks, one writer a chunk."""

from __future__ import annotations

from typing import Any

import numpy as np
import zarr
from zarr.codecs import BytesCodec, Crc32cCodec

from aweigh.io.archive import Batch
from aweigh.io.errors import StorageError
from aweigh.io.location import open_location, storage_errors
from aweigh.io.store import CheckedStore


class ZarrRows:
    """Arrays `<folder>/<batch>/<name>` of an archive; picklable, opened where it is used.

    Arrays are made beforehand by `create`; a task then writes whole chunks, so running it twice changes nothing.
    A chunk that was never written raises StorageError when read.
    """

    def __init__(self, path: str, folder: str) -> None:
        self.path, self.folder = path, folder
        self._opened: dict[tuple[str, str, bool], Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return ZarrRows, (self.path, self.folder)

    def create(self, name: str, batches: tuple[Batch, ...], width: int | None, dtype: str) -> None:
        """Make (or make anew) the array of every batch: (rows, width), or (rows,) where width is None."""
        location = open_location(self.path)
        store = location.zarr_store(read_only=False)
        for batch in batches:
            tail = () if width is None else (width,)
            with storage_errors(f"creating {self._key(batch, name)}"):
                if not location.exists(f"{self.folder}/{batch.name}/zarr.json"):
                    zarr.create_group(store=store, path=f"{self.folder}/{batch.name}", overwrite=False)
                zarr.create_array(
                    store=store,
                    name=self._key(batch, name),
                    shape=(batch.rows, *tail),
                    chunks=(batch.block_rows, *tail),
                    dtype=dtype,
                    filters=None,
                    serializer=BytesCodec(),
                    compressors=[Crc32cCodec()],
                    fill_value=0,
                    dimension_names=("sample",) if width is None else ("sample", f"column_{name}"),
                    config={"write_empty_chunks": True},
                    overwrite=True,
                )

    def read(self, name: str, batch: Batch, block: int) -> np.ndarray:
        """Return one block of rows."""
        first, last = batch.block_range(block)
        with storage_errors(f"reading {self._key(batch, name)}"):
            try:
                return np.asarray(self._array(name, batch, True)[first:last])
            except (ValueError, RuntimeError, FileNotFoundError) as error:
                raise StorageError(
                    f"block {block} of {self._key(batch, name)} in {self.path} is torn or missing ({error})",
                    "fit again under another run name",
                ) from error

    def write(self, name: str, batch: Batch, block: int, rows: np.ndarray) -> None:
        """Write one block of rows, whole."""
        first, last = batch.block_range(block)
        with storage_errors(f"writing {self._key(batch, name)}"):
            self._array(name, batch, False)[first:last] = rows

    def delete(self, name: str, batches: tuple[Batch, ...]) -> None:
        """Remove the array of every batch."""
        for batch in batches:
            open_location(self.path).delete(self._key(batch, name))

    def _key(self, batch: Batch, name: str) -> str:
        return f"{self.folder}/{batch.name}/{name}"

    def _array(self, name: str, batch: Batch, reading: bool) -> Any:
        at = (name, batch.name, reading)
        if at not in self._opened:
            store = open_location(self.path).zarr_store(read_only=reading)
            if reading:
                store = CheckedStore(store, self.path)
            array = zarr.open_array(store=store, path=self._key(batch, name), mode="r" if reading else "r+")
            self._opened[at] = array if reading else array.with_config({"write_empty_chunks": True})
        return self._opened[at]


class MemoryRows:
    """The same in a dictionary, for one process."""

    def __init__(self) -> None:
        self.blocks: dict[tuple[str, str, int], np.ndarray] = {}

    def create(self, name: str, batches: tuple[Batch, ...], width: int | None, dtype: str) -> None:
        """Nothing to make beforehand."""

    def read(self, name: str, batch: Batch, block: int) -> np.ndarray:
        """Return one block of rows."""
        return self.blocks[name, batch.name, block]

    def write(self, name: str, batch: Batch, block: int, rows: np.ndarray) -> None:
        """Keep one block of rows."""
        self.blocks[name, batch.name, block] = rows

    def delete(self, name: str, batches: tuple[Batch, ...]) -> None:
        """Forget the rows of every batch."""
        names = {batch.name for batch in batches}
        self.blocks = {at: rows for at, rows in self.blocks.items() if not (at[0] == name and at[1] in names)}
