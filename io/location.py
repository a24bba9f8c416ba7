"""Where an archive lies: whole-object reads, atomic durable writes, listing and locks.

All code reaches an archive through these methods, so that an object store can stand in for a folder.
"""

import os
import re
import shutil
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from itertools import islice
from urllib.parse import unquote, urlsplit

from zarr.abc.store import Store
from zarr.storage import LocalStore

from aweigh.io.errors import DataError, UsageError
from aweigh.io.locks import locked, storage_errors

__all__ = ["PARTIAL", "LocalLocation", "open_location", "storage_errors"]

PARTIAL = ".partial"


@dataclass(frozen=True)
class LocalLocation:
    """A folder; names are relative, with `/` between their parts."""

    path: str

    @property
    def url(self) -> str:
        return f"file://{self.path}"

    def read(self, name: str) -> bytes | None:
        """The bytes of one object, or None where there is none."""
        with storage_errors(f"reading {self._full(name)}"):
            try:
                with open(self._full(name), "rb") as file:
                    return file.read()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def write(self, name: str, data: bytes) -> None:
        """Replace one object: after a crash it has the old bytes or the new ones, on return the new."""
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

    def exists(self, name: str) -> bool:
        return os.path.exists(self._full(name))

    def size(self, name: str) -> int | None:
        """Bytes of one object, or None where there is none."""
        with storage_errors(f"looking at {self._full(name)}"):
            try:
                return os.stat(self._full(name)).st_size
            except (FileNotFoundError, NotADirectoryError):
                return None

    def list(self, prefix: str = "") -> list[str]:
        """The names directly under a prefix, sorted; empty where there is nothing."""
        with storage_errors(f"listing {self._full(prefix)}"):
            try:
                return sorted(os.listdir(self._full(prefix)))
            except (FileNotFoundError, NotADirectoryError):
                return []

    def walk(self, prefix: str = "") -> Iterator[str]:
        """Every object's name under a prefix, at any depth."""
        for folder, _, files in os.walk(self._full(prefix)):
            inside = os.path.relpath(folder, self.path)
            for file in files:
                yield file if inside == "." else f"{inside}/{file}".replace(os.sep, "/")

    def delete(self, prefix: str) -> None:
        """Remove an object, or a folder with all in it; nothing there is no error."""
        full = self._full(prefix)
        if full == self.path:
            raise ValueError("the whole location cannot be deleted")
        with storage_errors(f"deleting {full}"), suppress(FileNotFoundError):
            if os.path.isdir(full) and not os.path.islink(full):
                shutil.rmtree(full)
            else:
                os.unlink(full)

    def sync(self, prefix: str) -> None:
        """Make every object under a prefix, and the folders from it up to the root, outlast a power cut."""
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

    def lock(self, name: str, holder: str) -> AbstractContextManager[None]:
        """A context that one process at a time can enter; freed when the process ends, even by kill -9.

        Raises BusyError at once, naming the holder, where another process (or another caller here) is inside.
        """
        full = self._full(name)
        with storage_errors(f"locking {full}"):
            _make_folder(os.path.dirname(full))
        return locked(full, holder)

    def zarr_store(self, read_only: bool = True) -> Store:
        """A Zarr store of the whole location."""
        return LocalStore(self.path, read_only=read_only)

    def _full(self, name: str) -> str:
        parts = name.split("/") if name else []
        if any(part in ("", ".", "..") for part in parts):
            raise ValueError(f"{name!r} is no relative name")
        return os.path.join(self.path, *parts)


def open_location(path_or_url: "str | os.PathLike[str] | LocalLocation") -> LocalLocation:
    """The location of a path or URL, made absolute; UsageError for what is not supported.

    URLs with credentials or parameters are refused and never repeated in a message.
    """
    if isinstance(path_or_url, LocalLocation):
        return path_or_url
    text = os.fspath(path_or_url)
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", text):
        return _folder(text)
    parts = urlsplit(text)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise UsageError(
            f"a {parts.scheme}:// URL with credentials or parameters was given; they are refused, since "
            "URLs end up in logs and process lists",
            "Give the bare URL, and the credentials through the environment or a profile.",
        )
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return _folder(unquote(parts.path))
    raise UsageError(
        f"{text} is not supported: an archive is a folder (a path or a file:// URL) in this version",
        "Give a path; mount the bucket, or copy the archive to a disk that every worker sees.",
    )


def _folder(path: str) -> LocalLocation:
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
