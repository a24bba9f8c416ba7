"""Views and columns from datasets of HDF5 files."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from aweigh.io.model import STRING
from aweigh.io.sources.arrays import ArraySource
from aweigh.io.sources.base import as_column, check_column, check_view_shape, view_dtype
from aweigh.io.sources.extras import needed
from aweigh.io.sources.failures import missing_key, not_a, only, reading, shown
from aweigh.io.sources.files import checked_file

if TYPE_CHECKING:
    import h5py

DAMAGE = (OSError, RuntimeError, KeyError, ValueError, TypeError)
HINT = (
    "Check that h5py reads it: copy it anew where it is cut off; where a filter is missing, write it again with gzip."
)


@dataclass(frozen=True)
class DatasetOpener:
    """Opens a dataset or group of a file; a class and not a closure, because sources are pickled."""

    path: str
    key: str

    @contextmanager
    def __call__(self) -> Iterator[Any]:
        with opened(self.path) as file, reading(f"{self.path}:{shown(self.key)}", DAMAGE, HINT):
            yield file[self.key]


def open_view(path: str, key: str | None) -> ArraySource:
    """The view in the dataset KEY, or in the only one of two dimensions."""
    with opened(path) as file:
        key, dataset = find(path, file, key, 2)
        name = f"{path}:{shown(key)}"
        check_view_shape(dataset.shape, name)
        view_dtype(plain_dtype(dataset), name)
        return ArraySource(name, DatasetOpener(path, key), dataset.shape, dataset.dtype)


def open_column(path: str, key: str | None) -> np.ndarray:
    """The ids or labels in the dataset KEY, or in the only one of one dimension."""
    with opened(path) as file:
        key, dataset = find(path, file, key, 1)
        name = f"{path}:{shown(key)}"
        check_column(dataset.shape, plain_dtype(dataset), name)
        with reading(name, DAMAGE, HINT):
            return as_column(values_of(dataset), name)


@contextmanager
def opened(path: str) -> "Iterator[h5py.File]":
    """The file; damage to it is a DataError that names it."""
    head = checked_file(path)
    needed("h5py", "hdf5", path)
    import h5py

    with reading(path, DAMAGE, HINT):
        if not h5py.is_hdf5(path):
            raise not_a(path, "an HDF5 file", head)
        with h5py.File(path, "r", rdcc_nbytes=32 << 20) as file:
            yield file


def find(path: str, file: "h5py.File", key: str | None, dimensions: int) -> "tuple[str, h5py.Dataset]":
    """The key and the dataset that a key means."""
    import h5py

    there = datasets(file)
    if key is None:
        wanted = {1: "one-dimensional dataset", 2: "two-dimensional dataset"}[dimensions]
        fitting = [name for name, dataset in there.items() if dataset.ndim == dimensions]
        key = only(path, wanted, fitting, there)
    node = file.get(key) if key else None
    if not isinstance(node, h5py.Dataset):
        raise missing_key(path, key, there)
    return key, node


def datasets(file: "h5py.File") -> "dict[str, h5py.Dataset]":
    """All datasets of a file by their path."""
    import h5py

    found: dict[str, h5py.Dataset] = {}
    file.visititems(lambda name, node: found.update({name: node}) if isinstance(node, h5py.Dataset) else None)
    return found


def plain_dtype(dataset: "h5py.Dataset") -> np.dtype:
    """The dataset's dtype; that of text of any length is numpy's."""
    import h5py

    return STRING if h5py.check_string_dtype(dataset.dtype) else dataset.dtype


def values_of(dataset: "h5py.Dataset") -> np.ndarray:
    """All values; text is decoded."""
    if plain_dtype(dataset) == STRING:
        return np.array(dataset.asstr()[()], STRING)
    return np.asarray(dataset[()])
