"""A folder as a location: files that a crash leaves whole and a power cut keeps, locked by flock."""

import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from itertools import islice

from zarr.abc.store import Store
from zarr.storage import LocalStore

from aweigh.io.errors import DataError
from aweigh.io.locks import PARTIAL, conflict, locked, storage_errors
from aweigh.io.names import parts


@dataclass(frozen=True)
class LocalLocation:
    """A folder; the methods are those of `Location`."""

    path: str

    def read(self, name: str) -> bytes | None:
        with storage_errors(f"reading {self._full(name)}"):
            try:
                with open(self._full(name), "rb") as file:
                    return file.read()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def write(self, name: str, data: bytes) -> None:
        full = self._full(name)
        temporary = f"{full}.{uuid.uuid4().hex}{PARTIAL}"
        with storage_errors(f"writing {full}"):
            _make_folder(os.path.dirname(full))
            try:
                with open(temporary, "xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, full)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary)
                raise
            _sync(os.path.dirname(full))

    def read_version(self, name: str) -> tuple[bytes | None, str | None]:
        data = self.read(name)
        return data, None if data is None else hashlib.sha256(data).hexdigest()

    def replace(self, name: str, data: bytes, version: str | None) -> str:
        """As in `Location`; where the caller holds no lock, a change in the last instant goes unseen."""
        if self.read_version(name)[1] != version:
            raise conflict(self.path, name)
        self.write(name, data)
        return hashlib.sha256(data).hexdigest()

    def stamp(self, name: str) -> str | None:
        """Its size and the time it was changed."""
        with storage_errors(f"looking at {self._full(name)}"):
            try:
                found = os.stat(self._full(name))
            except (FileNotFoundError, NotADirectoryError):
                return None
            return f"{found.st_size}-{found.st_mtime_ns}"

    def exists(self, name: str) -> bool:
        return os.path.exists(self._full(name))

    def list(self, prefix: str = "") -> list[str]:
        with storage_errors(f"listing {self._full(prefix)}"):
            try:
                return sorted(os.listdir(self._full(prefix)))
            except (FileNotFoundError, NotADirectoryError):
                return []

    def sizes(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        for folder, _, files in os.walk(self._full(prefix)):
            inside = os.path.relpath(folder, self.path)
            for file in files:
                name = file if inside == "." else f"{inside}/{file}".replace(os.sep, "/")
                with storage_errors(f"looking at {self._full(name)}"), suppress(FileNotFoundError):
                    yield name, os.stat(self._full(name)).st_size

    def delete(self, prefix: str) -> None:
        full = self._full(prefix)
        if full == self.path:
            raise ValueError("the whole location cannot be deleted")
        with storage_errors(f"deleting {full}"), suppress(FileNotFoundError):
            if os.path.isdir(full) and not os.path.islink(full):
                shutil.rmtree(full)
            else:
                os.unlink(full)

    def sync(self, prefix: str) -> None:
        full = self._full(prefix)
        with storage_errors(f"flushing {full} to the disk"):
            paths = _beneath(full)
            # File systems join flushes that wait together: with threads it takes a fifth of the time.
            with ThreadPoolExecutor(8) as pool:
                while some := list(islice(paths, 1000)):
                    list(pool.map(_sync, some))
            while full != self.path:
                full = os.path.dirname(full)
                _sync(full)

    def lock(self, name: str, holder: str) -> AbstractContextManager[Callable[[], None]]:
        """As in `Location`; freed when the process ends, even by kill -9."""
        full = self._full(name)
        with storage_errors(f"locking {full}"):
            _make_folder(os.path.dirname(full))
        return locked(full, holder)

    def zarr_store(self, read_only: bool = True) -> Store:
        return LocalStore(self.path, read_only=read_only)

    def _full(self, name: str) -> str:
        return os.path.join(self.path, *parts(name))


def folder(path: str) -> LocalLocation:
    """The location of a folder that is there or may be made; DataError where a file is in its place."""
    path = os.path.abspath(path)
    if os.path.exists(path) and not os.path.isdir(path):
        raise DataError(f"{path} is a file; an archive is a folder", "Give the path of a folder.")
    return LocalLocation(path)


def _beneath(full: str) -> Iterator[str]:
    for folder, _, files in os.walk(full):
        yield folder
        yield from (os.path.join(folder, file) for file in files)


def _make_folder(folder: str) -> None:
    new = []
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):
        new.append(folder)
        folder = os.path.dirname(folder)
    for each in reversed(new):
        os.makedirs(each, exist_ok=True)
        _sync(os.path.dirname(each))


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
