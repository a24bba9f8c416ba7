"""Views and columns from variables of netCDF files and of Zarr stores that xarray wrote, decoded by xarray.

The first dimension is the samples. Packed values are unpacked, and what `_FillValue` marks is NaN.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from aweigh.io.model import STRING
from aweigh.io.sources.arrays import ArraySource
from aweigh.io.sources.base import as_column, check_column, check_view_shape, view_dtype
from aweigh.io.sources.extras import needed
from aweigh.io.sources.failures import missing_key, not_a, only, reading, shown
from aweigh.io.sources.files import checked_file

HINT = "Check that xarray.open_dataset reads it; copy it anew or write it again where it does not."
CLASSIC = b"CDF"


@dataclass(frozen=True)
class VariableOpener:
    """Opens a variable; a class and not a closure, because sources are pickled."""

    path: str
    key: str

    @contextmanager
    def __call__(self) -> Iterator[Any]:
        with opened(self.path) as dataset:
            yield Sliced(dataset.variables[self.key], f"{self.path}:{shown(self.key)}")


class Sliced:
    """A variable that gives arrays, and says how they are stored."""

    def __init__(self, variable: Any, name: str) -> None:
        self.variable, self.name = variable, name
        self.shape, self.dtype = variable.shape, variable.dtype
        self.chunks = variable.encoding.get("chunksizes") or variable.encoding.get("chunks")

    def __getitem__(self, at: Any) -> np.ndarray:
        with reading(self.name, (Exception,), HINT):
            return np.asarray(self.variable[at].values)


def open_view(path: str, key: str | None) -> ArraySource:
    """The view in the variable KEY, or in the only one of two dimensions."""
    with opened(path) as dataset:
        key = named(path, dataset, key, 2, "two-dimensional variable")
        name, variable = f"{path}:{shown(key)}", dataset.variables[key]
        check_view_shape(variable.shape, name)
        view_dtype(variable.dtype, name)
        return ArraySource(name, VariableOpener(path, key), variable.shape, variable.dtype)


def packed_view(name: str, array: str) -> ArraySource:
    """The view in an array of a Zarr store that xarray wrote with packed values, or with a value for missing ones."""
    folder, key = os.path.split(array.rstrip("/"))
    with opened(folder) as dataset:
        variable = dataset.variables[key]
        check_view_shape(variable.shape, name)
        view_dtype(variable.dtype, name)
        return ArraySource(name, VariableOpener(folder, key), variable.shape, variable.dtype)


def open_column(path: str, key: str | None) -> np.ndarray:
    """The ids or labels in the variable KEY, or in the only one of one dimension."""
    with opened(path) as dataset:
        key = named(path, dataset, key, 1, "one-dimensional variable")
        return values_of(dataset.variables[key], f"{path}:{shown(key)}")


def values_of(variable: Any, name: str) -> np.ndarray:
    """All values of a variable; those of text as numpy's text."""
    with reading(name, (Exception,), HINT):
        values = np.asarray(variable.values)
    if values.dtype.kind == "O" and all(isinstance(value, str) for value in values.flat):
        values = values.astype(STRING)
    check_column(values.shape, values.dtype, name)
    return as_column(values, name)


def named(path: str, dataset: Any, key: str | None, dimensions: int, wanted: str) -> str:
    """The name of the variable that a key means."""
    every = list(dataset.variables)
    if key is None:
        return only(path, wanted, [n for n, v in dataset.data_vars.items() if v.ndim == dimensions], every)
    if key not in every:
        raise missing_key(path, key, every)
    return key


@contextmanager
def opened(path: str) -> Iterator[Any]:
    """The xarray dataset of a file, or of a Zarr group in a folder; damage to it is a DataError that names it."""
    import xarray

    if os.path.isdir(path):
        with reading(path, (Exception,), HINT), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield xarray.open_zarr(path, chunks=None, consolidated=False, decode_times=False)
        return
    head = checked_file(path)
    classic = head.startswith(CLASSIC)
    if not classic:
        needed("h5netcdf", "netcdf", path)
        if not head.startswith(b"\x89HDF"):
            raise not_a(path, "a netCDF file", head)
    with reading(path, (Exception,), HINT), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fill values and time that no view has a use for
        engine = "scipy" if classic else "h5netcdf"
        with xarray.open_dataset(path, engine=engine, chunks=None, cache=False, decode_times=False) as dataset:
            yield dataset
