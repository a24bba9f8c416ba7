"""Rows kept in a temporary file, for what arrives in another order than the one in which it is wanted."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from aweigh.io.errors import StorageError


class Spool:
    """Records of one dtype in a file that has no name; they are read and written, never mapped."""

    def __init__(self, file: Any, dtype: np.dtype, name: str) -> None:
        self.file, self.dtype, self.name = file, dtype, name

    def write(self, at: int, records: np.ndarray) -> None:
        """Keep records from place `at` on; StorageError where the disk is full."""
        data, offset = _bytes(np.ascontiguousarray(records)), at * self.dtype.itemsize
        while data:
            try:
                done = os.pwrite(self.file.fileno(), data, offset)
            except OSError as error:
                raise StorageError(
                    f"{self.name} is brought to another order in {tempfile.gettempdir()}, which refused: "
                    f"{error.strerror}",
                    "Free space there, or set TMPDIR to a larger disk.",
                ) from error
            data, offset = data[done:], offset + done

    def read(self, at: int, count: int) -> np.ndarray:
        """`count` records from place `at` on."""
        records = np.empty(count, self.dtype)
        data, offset = _bytes(records), at * self.dtype.itemsize
        while data:
            done = os.preadv(self.file.fileno(), [data], offset)
            if not done:
                raise StorageError(f"{self.name}: its temporary file was cut off", "Check the disk of TMPDIR.")
            data, offset = data[done:], offset + done
        return records


def _bytes(records: np.ndarray) -> memoryview:
    return memoryview(records.reshape(-1).view(np.uint8))  # type: ignore[arg-type]


@contextmanager
def spooled(dtype: np.dtype, name: str) -> Iterator[Spool]:
    """A context with an empty spool for what messages call `name`."""
    with tempfile.TemporaryFile(buffering=0) as file:
        yield Spool(file, dtype, name)
