"""A lock on an object store: a lease in an object that is put conditionally and renewed while its holder lives."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from aweigh.io.errors import AweighError, BusyError, ConflictError, StorageError
from aweigh.io.locks import busy, signature

LASTS = 30.0  # seconds without a renewal after which another process may take the lease
RENEWED = 8.0  # seconds between renewals


class Place(Protocol):
    """What a lease needs of a location."""

    @property
    def path(self) -> str: ...

    def read_version(self, name: str) -> tuple[bytes | None, str | None]: ...

    def replace(self, name: str, data: bytes, version: str | None) -> str: ...

    def age(self, name: str) -> float: ...


class Lease:
    """The holder's side: every renewal replaces the very object that the one before it wrote, or fails."""

    def __init__(self, place: Place, name: str, holder: str) -> None:
        self._place, self._name = place, name
        self._who = signature(holder) | {"token": uuid.uuid4().hex}
        self._renewals = 0
        self._renewed = 0.0
        self._lost = False
        self._one_at_a_time = threading.Lock()
        data, version = place.read_version(name)
        if data and place.age(name) < LASTS:
            raise self._busy(data)
        self._version = version
        try:
            self._renew()
        except ConflictError:
            raise self._busy(place.read_version(name)[0] or b"") from None

    def check(self) -> None:
        """Raise BusyError where another process has taken the lease: what was begun under it must stop."""
        if not self._lost and time.monotonic() - self._renewed > 2 * RENEWED:
            with suppress(ConflictError):
                self._renew()
        if self._lost:
            raise BusyError(
                f"another process took the lock of {self._place.path}, since it was not renewed for {LASTS:.0f} s",
                "Repeat the command; was this process stopped, or the store away?",
            )

    def keep(self, ended: threading.Event) -> None:
        """Renew until the end; what fails is tried again, and told by `check`."""
        while not ended.wait(RENEWED) and not self._lost:
            with suppress(AweighError):
                self._renew()

    def release(self) -> None:
        """Free the lease, where it is still ours and the store answers."""
        with self._one_at_a_time, suppress(ConflictError, StorageError):
            self._place.replace(self._name, b"", self._version)

    def _renew(self) -> None:
        with self._one_at_a_time:
            began = time.monotonic()
            self._renewals += 1
            data = json.dumps({**self._who, "renewals": self._renewals}).encode()
            try:
                self._version = self._place.replace(self._name, data, self._version)
            except ConflictError:
                self._lost = True
                raise
            self._renewed = began

    def _busy(self, signed: bytes) -> BusyError:
        return busy(self._place.path, signed, f"the lock is free {LASTS:.0f} s after that process ended")


@contextmanager
def leased(place: Place, name: str, holder: str) -> Iterator[Callable[[], None]]:
    """A context that one process at a time can enter, anywhere; its value raises BusyError where another one has."""
    lease, ended = Lease(place, name, holder), threading.Event()
    keeper = threading.Thread(target=lease.keep, args=(ended,), daemon=True, name=f"lease of {name}")
    keeper.start()
    try:
        yield lease.check
    finally:
        ended.set()
        keeper.join()
        lease.release()
