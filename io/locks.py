"""A lock on a local file that says who holds it, what every lock says, and OSErrors turned into StorageErrors."""

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from aweigh.io.errors import BusyError, ConflictError, StorageError

PARTIAL = ".partial"
_FULL = {errno.ENOSPC, errno.EDQUOT}
_DENIED = {errno.EACCES, errno.EPERM}


def storage_error(error: OSError, doing: str) -> StorageError:
    """The StorageError that says what went wrong while `doing`, and what to do about it."""
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return StorageError(
            f"disk full while {doing}: {reason}",
            "Free some space and repeat; what was committed before is unharmed.",
        )
    if error.errno == errno.EFBIG:
        return StorageError(
            f"file size limit reached while {doing}: {reason}",
            "Raise the limit (`ulimit -f`) and repeat; what was committed before is unharmed.",
        )
    if error.errno in _DENIED:
        return StorageError(
            f"no permission while {doing}: {reason}",
            "Check the owner and the mode of the archive's folder, or what the credentials for the bucket allow.",
        )
    if error.errno == errno.EROFS:
        return StorageError(
            f"read-only file system while {doing}: {reason}",
            "Mount it for writing, or work on a copy of the archive.",
        )
    return StorageError(f"failed while {doing}: {reason}")


@contextmanager
def storage_errors(doing: str) -> Iterator[None]:
    """A context in which an OSError becomes a StorageError; use it round our own reads and writes only."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, doing) from error


@contextmanager
def locked(path: str, holder: str) -> Iterator[Callable[[], None]]:
    """A context that one process at a time can enter, by flock on the file, which says who is inside."""
    with storage_errors(f"locking {path}"):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        with storage_errors(f"locking {path}"):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise busy(os.path.dirname(path), os.pread(descriptor, 4096, 0), UNTIL_IT_ENDS) from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(signature(holder)).encode(), 0)
        yield lambda: None
        # The file stays: were it removed, one process could lock a new file and another this one, still open.
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


UNTIL_IT_ENDS = "the lock is freed when that process ends"


def busy(path: str, signed: bytes, freed: str) -> BusyError:
    """The error for a place that is locked by whoever signed."""
    try:
        who = json.loads(signed)
        holder = f"{who['what']}, process {who['pid']} on {who['host']}, since {who['since']}"
    except (ValueError, KeyError, TypeError):
        holder = "another process, which has only just begun"
    return BusyError(f"{path} is locked by {holder}", f"Wait until it is done, or stop it: {freed}.")


def signature(holder: str) -> dict[str, Any]:
    """What a lock says of its holder."""
    since = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    return {"pid": os.getpid(), "host": socket.gethostname(), "what": holder, "since": since}


def conflict(path: str, name: str) -> ConflictError:
    """The error for an object that another process replaced first."""
    return ConflictError(
        f"another process wrote {name} of {path} at the same time and was first; nothing of it was replaced",
        "Repeat the command: it then begins from what the other one wrote.",
    )
