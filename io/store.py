"""Zarr stores that see each chunk as stored: one refuses damage when reading, one notes what it wrote."""

import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager

import google_crc32c
import numpy as np
from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype

from aweigh.io.errors import StorageError

KINDS = {
    "missing": "is missing: the manifest lists it, and the store does not have it",
    "torn": "is torn: its bytes do not match the checksum that they end with",
    "foreign": "is foreign: whole in itself, but not the chunk that was imported (its checksum differs)",
}


def stored_crc(data: bytes | np.ndarray) -> int:
    """The crc32c that a stored chunk ends with."""
    return int.from_bytes(bytes(data[-4:]), "little")


def diagnose(data: bytes | None, expected: int | None) -> str | None:
    """What is wrong with a stored chunk: "missing", "torn", "foreign" or None; `expected` None is unknown."""
    if data is None:
        return "missing"
    if len(data) < 4 or google_crc32c.value(data[:-4]) != stored_crc(data):
        return "torn"
    return "foreign" if expected is not None and stored_crc(data) != expected else None


class DamageError(StorageError):
    """A StorageError about one object of an archive: its `kind` is "missing", "torn" or "foreign"."""

    kind = ""


def damage(kind: str, archive: str, key: str) -> DamageError:
    """The error for one damaged chunk or array, by its name in the archive."""
    _, batch, array, *rest = key.split("/")
    kept = array in ("sample", "present", "label", "checksum")
    what = f"array {array!r}" if kept else f"view {array!r}"
    part = f"chunk {rest[1]} of {what}" if rest[:1] == ["c"] else f"the metadata of {what}"
    error = DamageError(
        f"{part} in batch {batch!r} of archive {archive} {KINDS[kind]} ({key})",
        f"List all damage with `aweigh verify {archive}`, then restore these files from a backup.",
    )
    error.kind = kind
    return error


class Delegate(Store):
    """A store that passes everything on.

    zarr's own WrapperStore also passes on the batched, ranged and synchronous calls that newer versions add,
    past an overridden `get`; here all of them end in `get` and `set`.
    """

    def __init__(self, inner: Store) -> None:
        super().__init__(read_only=inner.read_only)
        self._inner = inner

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._inner == self._inner

    __hash__ = None  # type: ignore[assignment]

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        return await self._inner.get(key, prototype, byte_range)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        return [await self.get(key, prototype, byte_range) for key, byte_range in key_ranges]

    async def exists(self, key: str) -> bool:
        return await self._inner.exists(key)

    async def set(self, key: str, value: Buffer) -> None:
        await self._inner.set(key, value)

    async def delete(self, key: str) -> None:
        await self._inner.delete(key)

    def list(self) -> AsyncIterator[str]:
        return self._inner.list()

    def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        return self._inner.list_prefix(prefix)

    def list_dir(self, prefix: str) -> AsyncIterator[str]:
        return self._inner.list_dir(prefix)

    @property
    def supports_writes(self) -> bool:
        return self._inner.supports_writes

    @property
    def supports_deletes(self) -> bool:
        return self._inner.supports_deletes

    @property
    def supports_listing(self) -> bool:
        return self._inner.supports_listing


class CheckedStore(Delegate):
    """A read-only store in which a chunk that is missing, or not the one expected, is an error and not zeros.

    `stored` counts the bytes read, by array.
    """

    def __init__(self, inner: Store, archive: str) -> None:
        super().__init__(inner)
        self._archive = archive
        self._expected: dict[str, int] = {}
        self.stored: dict[str, int] = {}

    @contextmanager
    def expecting(self, key: str, crc: int | None) -> Iterator[None]:
        """A context in which the chunk must carry this crc32c; None where it is not known."""
        if crc is not None:
            self._expected[key] = crc
        try:
            yield
        finally:
            self._expected.pop(key, None)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        buffer = await self._inner.get(key, prototype, byte_range)
        parts = key.split("/")
        if len(parts) < 5 or parts[3] != "c":
            return buffer
        if buffer is None:
            raise damage("missing", self._archive, key)
        self.stored[parts[2]] = self.stored.get(parts[2], 0) + len(buffer)
        expected = self._expected.get(key)
        # zarr compares the bytes with this ending when it decodes; only another ending is looked into here.
        if expected is not None and stored_crc(buffer.as_numpy_array()[-4:]) != expected:
            raise damage(diagnose(buffer.to_bytes(), expected) or "torn", self._archive, key)
        return buffer


class RecordingStore(Delegate):
    """A writable store that notes (size, crc32c) of each object it wrote, in `written`, until it is taken."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.written: dict[str, tuple[int, int]] = {}
        self._under_way = 0
        self._stopped = False

    async def set(self, key: str, value: Buffer) -> None:
        # Counted before it looks, so that `stop` either sees this write or is seen by it.
        self._under_way += 1
        try:
            if self._stopped:
                raise StorageError(f"{key} was not written: the import has ended")
            await self._inner.set(key, value)
            self.written[key] = (len(value), stored_crc(value.as_numpy_array()[-4:]))
        finally:
            self._under_way -= 1

    def stop(self) -> None:
        """Refuse further writes and wait for those under way: zarr leaves some running when one has failed."""
        self._stopped = True
        while self._under_way:
            time.sleep(0.001)
