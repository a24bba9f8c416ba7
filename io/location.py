"""Where an archive lies: a place that holds bytes under names, whether a folder or a bucket of an object store.

All code reaches an archive through these methods; nothing else asks what kind of place it is.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol
from urllib.parse import unquote, urlsplit

from zarr.abc.store import Store

from aweigh.io.errors import UsageError
from aweigh.io.local import LocalLocation, folder
from aweigh.io.locks import PARTIAL, storage_errors
from aweigh.io.names import scheme
from aweigh.io.objects import bucket

__all__ = ["PARTIAL", "LocalLocation", "Location", "open_location", "storage_errors"]


class Location(Protocol):
    """A place; names are relative to it, with `/` between their parts.  What goes wrong is a StorageError.

    `path` is what opens it again, in any process, and what messages call it.
    """

    @property
    def path(self) -> str: ...

    def read(self, name: str) -> bytes | None:
        """The bytes of one object, or None where there is none."""

    def read_version(self, name: str) -> tuple[bytes | None, str | None]:
        """The bytes of one object and their version, which differs from that of any other bytes."""

    def write(self, name: str, data: bytes) -> None:
        """Replace one object: after a crash it has the old bytes or the new ones, on return the new."""

    def replace(self, name: str, data: bytes, version: str | None) -> str:
        """The new version of an object written where it still had this one, None where there was none.

        Raises ConflictError, and changes nothing, where another process was faster.
        """

    def stamp(self, name: str) -> str | None:
        """What changes when an object is written anew, without reading it; None where there is none."""

    def exists(self, name: str) -> bool:
        """Whether there is an object of this name, or any below it."""

    def list(self, prefix: str = "") -> list[str]:
        """The names directly under a prefix, sorted; empty where there is nothing."""

    def sizes(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """The name and bytes of every object under a prefix, at any depth."""

    def delete(self, prefix: str) -> None:
        """Remove an object, and all below it; nothing there is no error."""

    def sync(self, prefix: str) -> None:
        """Make every object under a prefix outlast a power cut."""

    def lock(self, name: str, holder: str) -> AbstractContextManager[Callable[[], None]]:
        """A context that one process at a time can enter; its value raises BusyError where the lock was lost.

        Raises BusyError at once, naming the holder, where another process (or another caller here) is inside.
        """

    def zarr_store(self, read_only: bool = True) -> Store:
        """A Zarr store of the whole location, whose failures are OSErrors."""


def open_location(path_or_url: "str | os.PathLike[str] | Location") -> Location:
    """The location of a path or URL, made absolute; UsageError for what is not supported."""
    if not isinstance(path_or_url, str | os.PathLike):
        return path_or_url
    text = os.fspath(path_or_url)
    kind = scheme(text)
    if not kind:
        return folder(text)
    if kind == "file" and urlsplit(text).netloc in ("", "localhost"):
        return folder(unquote(urlsplit(text).path))
    if kind == "s3":
        return bucket(text)
    raise UsageError(
        f"{text} is not supported: an archive is a folder (a path or a file:// URL) or lies in a bucket (s3://)",
        "Give a path or an s3:// URL; a store of another kind can often be mounted, or speaks the S3 protocol too.",
    )
