"""Import sources: open_source gives a view and open_column ids or labels, from PATH or PATH:KEY.

| format | view | KEY |
|---|---|---|
| .npy | the array | none |
| .npz | an array; CSR parts KEY_data, KEY_indices, KEY_indptr, KEY_shape; a scipy.sparse file | the array |
| .csv, .tsv | columns of numbers | a column, or what the columns' names begin with |
| .parquet, .pq | a column of lists, or columns of numbers | likewise |
| .h5ad, .h5mu, their Zarr forms | X, layers/L, obsm/O, raw/X; a modality before it | that; for labels obs/COLUMN |
| .h5, .hdf5 | a dataset | the dataset's path in the file |
| .mat | a matrix | X, S.X or X{1}, with ' at its end where columns are samples |
| .nc, .nc4, .netcdf | a variable | its name |
| Zarr folder | an array | the array's path in the store |

A folder that holds Parquet files, and a pattern such as parts/*.parquet, is one table of many files.

PATH may be an s3:// URL of a .npy file or a Zarr store.
"""

import os
import re
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import numpy as np

from aweigh.io.errors import DataError, UsageError
from aweigh.io.names import scheme
from aweigh.io.sources import anndata, csv, hdf5, matlab, netcdf, npy, npz, parquet, zarr_array
from aweigh.io.sources.base import Source
from aweigh.io.sources.failures import no_file

__all__ = ["Source", "column_ids", "open_column", "open_source", "split_spec"]


def no_ids(path: str, key: str | None) -> None:
    """None, for the formats whose columns come without ids."""


class Format(NamedTuple):
    """How a format opens a view, a column, and the ids that a column comes with, all from a path and a key."""

    view: Callable[[str, str | None], Source]
    column: Callable[[str, str | None], np.ndarray]
    ids: Callable[[str, str | None], np.ndarray | None] = no_ids


ZARR = Format(zarr_array.open_view, zarr_array.open_column)
ANNDATA = Format(anndata.open_view, anndata.open_column, anndata.column_ids)
PARQUET = Format(parquet.open_view, parquet.open_column, parquet.column_ids)
TEXT = Format(csv.open_view, csv.open_column, csv.column_ids)
HDF5 = Format(hdf5.open_view, hdf5.open_column)
NETCDF = Format(netcdf.open_view, netcdf.open_column)
FORMATS = {
    ".npy": Format(npy.open_view, npy.open_column),
    ".npz": Format(npz.open_view, npz.open_column),
    ".csv": TEXT,
    ".tsv": TEXT,
    ".parquet": PARQUET,
    ".pq": PARQUET,
    ".h5ad": ANNDATA,
    ".h5mu": ANNDATA,
    ".h5": HDF5,
    ".hdf5": HDF5,
    ".mat": Format(matlab.open_view, matlab.open_column),
    ".nc": NETCDF,
    ".nc4": NETCDF,
    ".netcdf": NETCDF,
    ".zarr": ZARR,
}
STREAMED = (".npy", ".zarr")


def open_source(spec: str) -> Source:
    """The view that PATH or PATH:KEY means."""
    path, key = split_spec(spec)
    return format_of(path).view(path, key)


def open_column(spec: str) -> np.ndarray:
    """The ids or labels that PATH or PATH:KEY means: one dimension of int64, float64, bool or str."""
    path, key = split_spec(spec)
    return format_of(path).column(path, key)


def column_ids(spec: str) -> np.ndarray | None:
    """The ids that the ids or labels of PATH or PATH:KEY come with, None where they come without."""
    path, key = split_spec(spec)
    return format_of(path).ids(path, key)


def split_spec(spec: str) -> tuple[str, str | None]:
    r"""The path and the key of PATH or PATH:KEY.

    A path that exists wins, the longest first. Where none does, the path ends at the first known suffix, else
    at the last colon. The colons of C:\ and of s3://host:9000 belong to the path.
    """
    spec = local_path(spec)
    if os.path.exists(spec):
        return spec, None
    cuts = [(spec[:at], spec[at + 1 :]) for at in colons(spec)]
    there = [cut for cut in reversed(cuts) if os.path.exists(cut[0])]
    named = [cut for cut in cuts if suffix_of(cut[0]) in FORMATS]
    if there or named:
        return (there or named)[0]
    if not cuts or suffix_of(spec) in FORMATS:
        return spec, None
    return cuts[-1]


def local_path(spec: str) -> str:
    """The spec with file:// or a leading ~ resolved; shells leave the ~ of --view NAME=~/x.npy alone."""
    if spec.startswith("file://"):
        return unquote(urlsplit(spec, allow_fragments=False).path)
    return os.path.expanduser(spec) if spec.startswith("~") and not os.path.exists(spec) else spec


def colons(spec: str) -> list[int]:
    """Where the colon before a key may stand."""
    fixed = re.match(r"[A-Za-z][A-Za-z0-9+.-]+://[^/]*|[A-Za-z]:(?=[\\/])", spec)
    return [at for at, c in enumerate(spec) if c == ":" and at >= (fixed.end() if fixed else 0)]


def suffix_of(path: str) -> str:
    """The suffix of a path in small letters, with its dot."""
    return os.path.splitext(path.rstrip("/"))[1].lower()


def format_of(path: str) -> Format:
    """The format of a path: what a folder holds, Zarr for what lies below a .zarr, else what its suffix says.

    In a bucket, a .npy file or else Zarr.  UsageError for other URLs, and for those with credentials.
    """
    kind = scheme(path)
    if kind and (kind != "s3" or (suffix_of(path) in FORMATS and suffix_of(path) not in STREAMED)):
        raise UsageError(
            f"{path} was given, but a source is a path, a file:// URL, or an s3:// URL of a .npy file or a Zarr store",
            "Copy the data to a disk, and give its path.",
        )
    if kind:
        return FORMATS.get(suffix_of(path), ZARR)
    if os.path.isdir(path):
        return ANNDATA if anndata.is_anndata(path) else PARQUET if parquet.is_table(path) else ZARR
    if suffix_of(path) in FORMATS:
        return FORMATS[suffix_of(path)]
    if ".zarr/" in path.lower():
        return ZARR
    if not os.path.exists(path):
        raise no_file(path)
    raise DataError(
        f"{path} has the suffix {suffix_of(path)!r}, but a source is one of {', '.join(FORMATS)}",
        "Convert it, for example with numpy.save or to .csv, and unpack compressed files first.",
    )
