"""A bucket of an object store as a location, by obstore, which the extra `s3` brings.

Credentials come from the environment or from AWS's own files, never from a URL; the instance's metadata server is
asked only where AWS_METADATA_ENDPOINT names it.  The endpoint is AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import re
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from typing import Any, TypeVar
from urllib.parse import urlsplit

from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype

from aweigh.io.errors import UsageError
from aweigh.io.lease import leased
from aweigh.io.locks import PARTIAL, conflict, storage_errors
from aweigh.io.names import parts
from aweigh.io.store import Delegate

T = TypeVar("T")
Bytes = bytes | bytearray | memoryview
PATIENCE = timedelta(seconds=60)  # how long a request is repeated while the store is away or answers 5xx
RETRIES = {
    "max_retries": 1000,
    "retry_timeout": PATIENCE,
    "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=4), "base": 2},
}
PAGE = 1000  # names a listing
TIMEOUT = "60s"  # of one request with its body; chunks have 8 to 16 MiB
GIVEN = (
    "AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_METADATA_ENDPOINT", "AWS_SKIP_SIGNATURE",
)  # fmt: skip
FILES = {"AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials", "AWS_CONFIG_FILE": "~/.aws/config"}


@dataclass(frozen=True)
class ObjectLocation:
    """The objects of a bucket under a prefix; the methods are those of `Location`."""

    bucket: str
    prefix: str

    @property
    def path(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def read(self, name: str) -> bytes | None:
        return self.read_version(name)[0]

    def read_version(self, name: str) -> tuple[bytes | None, str | None]:
        import obstore

        def ask() -> tuple[bytes | None, str | None]:
            try:
                found = obstore.get(self.client(), _key(name))
                return bytes(found.bytes()), found.meta["e_tag"]
            except FileNotFoundError as error:
                _refuse_no_bucket(error)
                return None, None

        return self._answer("reading", name, ask)

    def write(self, name: str, data: Bytes) -> None:
        self._put(name, data, "overwrite")

    def replace(self, name: str, data: bytes, version: str | None) -> str:
        import obstore.exceptions

        try:
            return self._put(name, data, "create" if version is None else {"e_tag": version})
        except (obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError):
            # A repeated request, whose first answer was lost, meets what it wrote itself.
            found, now = self.read_version(name)
            if found == data and now is not None:
                return now
            raise conflict(self.path, name) from None

    def stamp(self, name: str) -> str | None:
        """Its size and entity tag."""
        found = self._head(name)
        return None if found is None else f"{found['size']}-{found['e_tag']}"

    def exists(self, name: str) -> bool:
        return (bool(name) and self._head(name) is not None) or any(True for _ in self.sizes(name))

    def list(self, prefix: str = "") -> list[str]:
        import obstore

        found = self._answer(
            "listing", prefix, lambda: obstore.list_with_delimiter(self.client(), prefix=_key(prefix) or None)
        )
        keys = [*found["common_prefixes"], *(each["path"] for each in found["objects"])]
        return sorted(key.rpartition("/")[2] for key in keys)

    def sizes(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        import obstore

        def page(after: str | None) -> Any:
            listed = functools.partial(obstore.list, prefix=_key(prefix) or None, offset=after, chunk_size=PAGE)
            return self._answer("listing", prefix, lambda: next(iter(listed(self.client())), []))

        # Each page is asked for after the name that the one before it ended with: a broken stream does not go on.
        some = page(None)
        while some:
            yield from ((each["path"], each["size"]) for each in some)
            some = page(some[-1]["path"])

    def delete(self, prefix: str) -> None:
        import obstore

        if not prefix:
            raise ValueError("the whole location cannot be deleted")
        names = [_key(prefix), *(name for name, _ in self.sizes(prefix))]
        self._answer("deleting", prefix, lambda: obstore.delete(self.client(), names))

    def sync(self, prefix: str) -> None:
        """Nothing to do: a put that was answered lasts."""

    def lock(self, name: str, holder: str) -> AbstractContextManager[Callable[[], None]]:
        """As in `Location`; where the holder was killed, it is free again after half a minute."""
        return leased(self, name, holder)

    def age(self, name: str) -> float:
        """Seconds since an object was written, by the store's own clock; infinite where there is none."""
        probe = f"{name}.{uuid.uuid4().hex}{PARTIAL}"
        self.write(probe, b"")
        now, written = self._head(probe), self._head(name)
        self.delete(probe)
        if now is None or written is None:
            return float("inf")
        return float((now["last_modified"] - written["last_modified"]).total_seconds())

    def open(self, name: str, buffered: int) -> Reading:
        """One object as a stream that is read `buffered` bytes a request; FileNotFoundError where there is none."""
        import obstore

        with as_os_errors():
            return Reading(obstore.open_reader(self.client(), _key(name), buffer_size=buffered))

    def zarr_store(self, read_only: bool = True) -> Store:
        return ObjectZarrStore(self, read_only)

    def client(self) -> Any:
        """The obstore client of this place, shared by all that use it in this process."""
        told = tuple(sorted((name, value) for name, value in os.environ.items() if name.startswith("AWS_")))
        return _client(self.bucket, self.prefix, told)

    def _head(self, name: str) -> Any:
        import obstore

        def ask() -> Any:
            try:
                return obstore.head(self.client(), _key(name))
            except FileNotFoundError as error:
                return _refuse_no_bucket(error)

        return self._answer("looking at", name, ask)

    def _put(self, name: str, data: Bytes, mode: Any) -> str:
        import obstore

        put = functools.partial(obstore.put, mode=mode, use_multipart=False)
        return str(self._answer("writing", name, lambda: put(self.client(), _key(name), data))["e_tag"])

    def _answer(self, doing: str, name: str, ask: Callable[[], T]) -> T:
        """What the store answers; asked again where the connection broke, as obstore does only for some requests."""
        pauses = _pauses()
        with storage_errors(f"{doing} {self.path}/{name}".rstrip("/")):
            while True:
                try:
                    with as_os_errors():
                        return ask()
                except ConnectionError:
                    if (pause := next(pauses, None)) is None:
                        raise
                time.sleep(pause)


class ObjectZarrStore(Delegate):
    """The Zarr store of a location; it pickles as the location's name, without credentials."""

    def __init__(self, location: ObjectLocation, read_only: bool) -> None:
        from zarr.storage import ObjectStore

        self._location = location
        with storage_errors(f"opening {location.path}"):
            super().__init__(ObjectStore(location.client(), read_only=read_only))

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectZarrStore, (self._location, self.read_only)

    def __str__(self) -> str:
        return self._location.path

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        pauses = _pauses()
        while True:
            try:
                with as_os_errors():
                    return await super().get(key, prototype, byte_range)
            except ConnectionError:
                if (pause := next(pauses, None)) is None:
                    raise
            await asyncio.sleep(pause)

    async def exists(self, key: str) -> bool:
        return await asyncio.to_thread(self._location.exists, key)

    async def set(self, key: str, value: Buffer) -> None:
        self._check_writable()
        # In one request, where zarr's own store would send 5 MiB a part: a part of a chunk is of no use.
        await asyncio.to_thread(self._location.write, key, value.as_buffer_like())

    async def delete(self, key: str) -> None:
        await self.delete_dir(key)

    async def delete_dir(self, prefix: str) -> None:
        self._check_writable()
        await asyncio.to_thread(self._location.delete, prefix)

    async def list(self) -> AsyncIterator[str]:
        async for name in self.list_prefix(""):
            yield name

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        for name, _ in await asyncio.to_thread(list, self._location.sizes(prefix.rstrip("/"))):
            yield name

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        for name in await asyncio.to_thread(self._location.list, prefix.rstrip("/")):
            yield name


class Reading:
    """A stream of one object, whose failures are OSErrors."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    @property
    def size(self) -> int:
        """The bytes of the whole object."""
        return int(self._inner.size)

    def read(self, count: int) -> bytes:
        """The next bytes, fewer at the end."""
        with as_os_errors():
            return bytes(self._inner.read(count))


def bucket(url: str) -> ObjectLocation:
    """The location of an s3:// URL; UsageError where it is none, or obstore is not installed."""
    found = re.fullmatch(r"[sS]3://([A-Za-z0-9][A-Za-z0-9._-]{1,62})(?:/(.*?))?/*", url)
    try:
        prefix = "/".join(parts(found[2] or "")) if found else None
    except ValueError:
        prefix = None
    if found is None or prefix is None:
        raise UsageError(
            f"{url} is no s3:// URL: s3://BUCKET/PREFIX is, without a port, empty parts, `.` or `..`",
            "Name a server other than Amazon's in the environment, as AWS_ENDPOINT_URL.",
        )
    if find_spec("obstore") is None:
        raise UsageError(f"{url} needs the package obstore, which is not installed", "pip install 'aweigh[s3]'")
    return ObjectLocation(found[1], prefix)


@functools.lru_cache(maxsize=32)
def _client(bucket: str, prefix: str, told: tuple[tuple[str, str], ...]) -> Any:
    """The client of a place under the environment `told`, which decides where it is and who asks."""
    from obstore.store import S3Store

    environment = dict(told)
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    options: dict[str, Any] = {"client_options": {"timeout": TIMEOUT}, "retry_config": RETRIES}
    if endpoint:
        if urlsplit(endpoint).scheme not in ("http", "https") or "@" in endpoint:
            raise UsageError("AWS_ENDPOINT_URL is no http:// or https:// URL, or holds credentials", "Correct it.")
        options["endpoint"] = endpoint
        options["client_options"]["allow_http"] = endpoint.startswith("http://")
    if not any(environment.get(name) for name in GIVEN):
        options["credential_provider"] = _from_files(environment)
    return S3Store(bucket, prefix=prefix or None, **options)


def _from_files(environment: dict[str, str]) -> Any:
    """What fetches credentials of the profile in AWS's own files, as its command line does."""
    paths = [os.path.expanduser(environment.get(name) or usual) for name, usual in FILES.items()]
    if not any(os.path.exists(path) for path in paths):
        raise PermissionError(errno.EACCES, "there are no credentials in the environment or in ~/.aws")
    if find_spec("boto3") is None:
        raise UsageError(
            "credentials in AWS's own files need the package boto3, which is not installed",
            "pip install 'aweigh[s3]', or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
        )
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        return Boto3CredentialProvider()
    except Exception as error:  # botocore's own, which share no base with others
        raise PermissionError(errno.EACCES, f"AWS's own files give no credentials ({error})") from error


def _key(name: str) -> str:
    return "/".join(parts(name))


def _pauses() -> Iterator[float]:
    """The seconds to wait before each further try, until patience ends."""
    ends, pause = time.monotonic() + PATIENCE.total_seconds(), 0.1
    while time.monotonic() + pause <= ends:
        yield pause
        pause = min(2 * pause, 4.0)


@contextmanager
def as_os_errors() -> Iterator[None]:
    """A context in which obstore's failures are OSErrors, as a disk's are, in few words and without the request."""
    import obstore.exceptions

    conflicts = obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError
    denied = obstore.exceptions.PermissionDeniedError, obstore.exceptions.UnauthenticatedError
    try:
        yield
    except FileNotFoundError as error:
        _refuse_no_bucket(error)
        raise FileNotFoundError(errno.ENOENT, "there is no such object") from None
    except conflicts:
        raise
    except obstore.exceptions.BaseError as error:
        reason, answered = _reason(str(error))
        unanswered = errno.EIO if answered else errno.ECONNRESET
        raise OSError(errno.EACCES if isinstance(error, denied) else unanswered, reason) from None


def _refuse_no_bucket(error: FileNotFoundError) -> None:
    """Raise OSError where not the object but its bucket is not there."""
    if "NoSuchBucket" in str(error):
        raise OSError(errno.ENXIO, "there is no such bucket") from None


def _reason(text: str) -> tuple[str, bool]:
    """What obstore says went wrong, whose text holds the request and the answer, and whether the store answered."""
    first = text.partition("\n\n")[0]
    if "NoSuchBucket" in first:
        return "there is no such bucket", True
    status, code = re.search(r"status code: (\d{3}[ \w-]*)", first), re.search(r"<Code>([\w.]+)</Code>", first)
    said = f"the store answered {status[1].strip()}" if status else "the store does not answer"
    said += f" ({code[1]})" if code else ""
    repeated = re.search(r"after (\d+) retries", first)
    return said + (f", and so {repeated[1]} times more" if repeated else ""), bool(status)
