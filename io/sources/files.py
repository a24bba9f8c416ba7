"""Source files, checked and opened: on a disk, or in a bucket, from where they are read as they stream by."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

from aweigh.io.errors import DataError
from aweigh.io.names import scheme
from aweigh.io.objects import ObjectLocation, Reading, bucket
from aweigh.io.sources.failures import no_file, reading

BUFFER = 8 << 20


def checked_file(path: str) -> bytes:
    """The first 4 KiB of a regular file that exists, is not empty and may be read."""
    with reading(path):
        head = _remote(path, 4096).read(4096) if scheme(path) else _local_head(path)
    if not head:
        raise DataError(f"{path} is empty (0 bytes)", "Write it again: what made it may have failed.")
    return head


def file_size(path: str) -> int:
    """The bytes of a file."""
    with reading(path):
        return _remote(path, 4096).size if scheme(path) else os.path.getsize(path)


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """A context with the file as a stream; one in a bucket only runs forwards."""
    if scheme(path):
        yield cast(BinaryIO, _remote(path, BUFFER))
        return
    with open(path, "rb") as file:
        yield file


def _remote(path: str, buffered: int) -> Reading:
    whole = bucket(path)
    folder, _, name = whole.prefix.rpartition("/")
    if not name:
        raise DataError(f"{path} is a whole bucket, not a file", "Give the path of a file in it.")
    try:
        return ObjectLocation(whole.bucket, folder).open(name, buffered)
    except FileNotFoundError as error:
        raise no_file(path) from error


def _local_head(path: str) -> bytes:
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        raise no_file(path) from error
    if stat.S_ISDIR(mode):
        raise DataError(f"{path} is a folder, not a file", "Give the path of a file in it.")
    if not stat.S_ISREG(mode):
        raise DataError(
            f"{path} is no regular file, but a source is read more than once",
            "Write the stream to a file and give its path.",
        )
    with open(path, "rb") as file:
        return file.read(4096)
