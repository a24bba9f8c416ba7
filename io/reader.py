"""Reading the blocks of one committed batch, with damage refused."""

from typing import Any

import numpy as np
import zarr

from aweigh.io.errors import DataError, StorageError
from aweigh.io.links import Linked
from aweigh.io.location import open_location
from aweigh.io.locks import storage_errors
from aweigh.io.model import STRING, Batch, View, chunk_name
from aweigh.io.store import CheckedStore, damage

CHECKSUM_ROWS = 4096


class BatchReader:
    """A picklable handle on the data of one batch; nothing is read before it is asked for.

    `bytes_read` counts decoded bytes and `stored_bytes` bytes as they lie in the store, both by array.
    Where a chunk is missing, torn or foreign, every method raises a StorageError that names it.
    """

    def __init__(self, archive_path: str, batch: Batch) -> None:
        location = open_location(archive_path)
        self.path = location.path
        self.batch = batch
        self.bytes_read: dict[str, int] = {}
        self._store = CheckedStore(location.zarr_store(read_only=True), location.path)
        self._arrays: dict[str, zarr.Array[Any]] = {}
        self._checksums: dict[int, np.ndarray] = {}
        self._links: dict[str, Linked] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchReader, (self.path, self.batch)

    def __repr__(self) -> str:
        return f"<BatchReader of {self.batch.name!r} in {self.path}>"

    @property
    def stored_bytes(self) -> dict[str, int]:
        return self._store.stored

    def view(self, name: str, block: int) -> np.ndarray:
        """One block of a view, (rows, features), C-contiguous; one chunk is read, none where it is absent."""
        view = self._view(name)
        start, stop = self.batch.block_range(block)
        if self.batch.is_absent(name, block):
            return np.zeros((stop - start, view.features), view.dtype)
        return self._linked_rows(name, block) if name in self.batch.links else self._chunk(name, block)

    def rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """Rows start to stop of a view, (stop - start, features); whole chunks are read."""
        view = self._view(name)
        self._check_rows(start, stop)
        out = np.empty((stop - start, view.features), view.dtype)
        for block, low, high in self._pieces(start, stop):
            first = block * self.batch.block_rows
            out[low - start : high - start] = self.view(name, block)[low - first : high - first]
        return out

    def present(self, block: int) -> np.ndarray:
        """Which views each row of a block has, bool (rows, V), in the order of the manifest's views."""
        return self._chunk("present", block)

    def ids(self, start: int, stop: int) -> np.ndarray:
        """The sample ids of rows start to stop, int64 or numpy's StringDType."""
        return self._column("sample", start, stop)

    def labels(self, start: int, stop: int) -> np.ndarray:
        """The labels of rows start to stop, int64 or numpy's StringDType; DataError where there are none."""
        if not self.batch.has_labels:
            raise DataError(
                f"batch {self.batch.name!r} of {self.path} has no labels",
                "Labels are given when a batch is imported, with --labels.",
            )
        return self._column("label", start, stop)

    def checksums(self) -> np.ndarray:
        """The crc32c of every stored chunk, uint32 (blocks, arrays of the batch)."""
        for block in range(0, self.batch.blocks, CHECKSUM_ROWS):
            self._checksum("present", block)
        return np.concatenate([self._checksums[part] for part in sorted(self._checksums)])

    def check_metadata(self, name: str) -> None:
        """StorageError where an array's metadata are missing, torn or not those that the manifest says."""
        self._linked(name) if name in self.batch.links else self._array(name)

    def check_link(self, name: str, block: int) -> None:
        """StorageError where the chunks that a linked view refers to have changed."""
        self._linked(name).check(*self.batch.block_range(block), self._checksum(name, block))

    def _column(self, name: str, start: int, stop: int) -> np.ndarray:
        self._check_rows(start, stop)
        size = self.batch.block_rows
        pieces = [
            self._chunk(name, block)[low - block * size : high - block * size]
            for block, low, high in self._pieces(start, stop)
        ]
        return np.concatenate(pieces) if pieces else np.empty(0, self._array(name).dtype)

    def _pieces(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        size = self.batch.block_rows
        blocks = range(start // size, -(-stop // size)) if stop > start else range(0)
        return [(block, max(start, block * size), min(stop, (block + 1) * size)) for block in blocks]

    def _check_rows(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self.batch.rows:
            raise IndexError(f"rows {start} to {stop} of batch {self.batch.name!r}, which has {self.batch.rows}")

    def _view(self, name: str) -> View:
        for view in self.batch.views:
            if view.name == name:
                return view
        names = ", ".join(view.name for view in self.batch.views)
        raise DataError(f"there is no view {name!r} in {self.path}; its views are {names}", "Choose one of these.")

    def _chunk(self, name: str, block: int) -> np.ndarray:
        start, stop = self.batch.block_range(block)
        crc = self._checksum(name, block)
        return self._decode(name, chunk_name(self.batch.name, name, block), crc, slice(start, stop))

    def _linked(self, name: str) -> Linked:
        if name not in self._links:
            self._links[name] = Linked(self.batch.links[name], self._view(name), self.batch.rows)
        return self._links[name]

    def _linked_rows(self, name: str, block: int) -> np.ndarray:
        values = self._linked(name).read(*self.batch.block_range(block))
        self.check_link(name, block)
        if self.batch.missing[name]:
            column = [view.name for view in self.batch.views].index(name)
            values[~self.present(block)[:, column]] = 0
        self.bytes_read[name] = self.bytes_read.get(name, 0) + values.nbytes
        return values

    def _checksum(self, name: str, block: int) -> int:
        part, row = divmod(block, CHECKSUM_ROWS)
        if part not in self._checksums:
            key = chunk_name(self.batch.name, "checksum", part)
            rows = slice(part * CHECKSUM_ROWS, min((part + 1) * CHECKSUM_ROWS, self.batch.blocks))
            self._checksums[part] = self._decode("checksum", key, None, rows)
        return int(self._checksums[part][row, self.batch.arrays.index(name)])

    def _decode(self, name: str, key: str, crc: int | None, rows: slice) -> np.ndarray:
        array = self._array(name)
        with self._store.expecting(key, crc), storage_errors(f"reading {key} of {self.path}"):
            try:
                values = np.asarray(array[rows])
            except (ValueError, RuntimeError, TypeError) as error:
                raise damage("torn", self.path, key) from error
        self.bytes_read[name] = self.bytes_read.get(name, 0) + values.nbytes
        return values

    def _array(self, name: str) -> "zarr.Array[Any]":
        if name not in self._arrays:
            path = f"{self.batch.path}/{name}"
            with storage_errors(f"opening {path} of {self.path}"):
                try:
                    array = zarr.open_array(store=self._store, path=path, mode="r", zarr_format=3)
                except FileNotFoundError as error:
                    raise damage("missing", self.path, f"{path}/zarr.json") from error
                except (OSError, MemoryError):
                    raise
                except Exception as error:
                    # zarr does not say what it raises for damaged metadata: AttributeError is among it.
                    raise damage("torn", self.path, f"{path}/zarr.json") from error
            self._check_array(name, array)
            self._arrays[name] = array
        return self._arrays[name]

    def _check_array(self, name: str, array: "zarr.Array[Any]") -> None:
        shape, rows, dtype = self._expected(name)
        found, expected = (array.shape, array.chunks, array.dtype), (shape, (rows, *shape[1:]), dtype)
        if found != expected:
            said = ["shape {}, chunks {}, dtype {}".format(*each) for each in (found, expected)]
            raise StorageError(
                f"{name!r} in batch {self.batch.name!r} of archive {self.path} has {said[0]}, and the "
                f"manifest says {said[1]}",
                f"Restore {self.batch.path}/{name}/zarr.json from a backup.",
            )

    def _expected(self, name: str) -> tuple[tuple[int, ...], int, np.dtype[Any]]:
        """(shape, rows a chunk, dtype) of an array."""
        batch = self.batch
        if name == "present":
            return (batch.rows, len(batch.views)), batch.block_rows, np.dtype(bool)
        if name == "checksum":
            return (batch.blocks, len(batch.arrays)), min(batch.blocks, CHECKSUM_ROWS), np.dtype(np.uint32)
        if name in ("sample", "label"):
            kind = batch.ids.kind if name == "sample" else batch.labels
            return (batch.rows,), batch.block_rows, np.dtype(np.int64) if kind == "int" else STRING
        view = self._view(name)
        return (batch.rows, view.features), batch.block_rows, np.dtype(view.dtype)
