"""The arrays in a zip archive as streams of .npy bytes."""

import lzma
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, cast

import numpy as np

from aweigh.io.errors import DataError, StorageError
from aweigh.io.sources.failures import changed, reading, shown
from aweigh.io.sources.npy import AGAIN, Header, check_size, read_column, read_header

DAMAGE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError, OSError)


@dataclass(frozen=True)
class MemberOpener:
    """Opens the array KEY; a class and not a closure, because sources are pickled.

    A stream in a zip file only runs forwards: what must be ``seekable`` is unpacked to a temporary file.
    """

    path: str
    key: str
    seekable: bool = False

    @contextmanager
    def __call__(self) -> Iterator[BinaryIO]:
        with opened_zip(self.path) as archive, opened_member(archive, self.path, self.key) as stream:
            if not self.seekable:
                yield stream
                return
            with tempfile.TemporaryFile() as file:
                unpack(stream, cast(BinaryIO, file), member_name(self.path, self.key))
                yield cast(BinaryIO, file)


@contextmanager
def opened_zip(path: str) -> Iterator[zipfile.ZipFile]:
    """The zip archive; damage to it is a DataError that names the file."""
    with reading(path, DAMAGE, AGAIN), zipfile.ZipFile(path) as archive:
        yield archive


@contextmanager
def opened_member(archive: zipfile.ZipFile, path: str, key: str) -> Iterator[BinaryIO]:
    """The stream of the array KEY; its CRC is checked when the last byte is read."""
    name = member_name(path, key)
    try:
        info = archive.getinfo(key + ".npy")
    except KeyError as error:
        raise changed(name) from error
    if info.flag_bits & 0x1:
        raise DataError(
            f"{name} is encrypted", "Unpack it with its password and save the arrays again with numpy.savez."
        )
    with reading(name, DAMAGE, AGAIN), archive.open(info) as stream:
        yield cast(BinaryIO, stream)


def unpack(stream: BinaryIO, file: BinaryIO, name: str) -> None:
    """Copies the stream to the file and goes back to its front; StorageError where the disk is full."""
    try:
        shutil.copyfileobj(stream, file, 1 << 20)
        file.seek(0)
    except OSError as error:
        if error.errno is None:
            raise
        raise StorageError(
            f"{name} lies column by column and cannot be unpacked to {tempfile.gettempdir()}: {error.strerror}",
            "Free space there, set TMPDIR to a larger disk, or save numpy.ascontiguousarray(x) instead.",
        ) from error


def member_name(path: str, key: str) -> str:
    """The name of an array for messages."""
    return f"{path}:{shown(key)}"


def array_keys(archive: zipfile.ZipFile) -> list[str]:
    """The keys of all arrays."""
    return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]


def member_header(archive: zipfile.ZipFile, path: str, key: str) -> Header:
    """The header of an array whose length agrees with it."""
    name = member_name(path, key)
    with opened_member(archive, path, key) as stream:
        header = read_header(stream, name)
    check_size(header, archive.getinfo(key + ".npy").file_size, name)
    return header


def member_column(archive: zipfile.ZipFile, path: str, key: str, header: Header) -> np.ndarray:
    """The values of a one-dimensional array."""
    name = member_name(path, key)
    with opened_member(archive, path, key) as stream:
        read_header(stream, name)
        return read_column(stream, header, name)
