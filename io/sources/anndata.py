"""Views and columns of AnnData and MuData, in .h5ad and .h5mu files and in Zarr stores, read by their published layout.

A view is X, a layer, an entry of obsm, or raw/X; in MuData the modality stands before it, and alone means its X. A
column is one of obs. Both come with the cells' names; those of a modality are the whole's, by its obsmap.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import zarr

from aweigh.io.errors import DataError
from aweigh.io.model import STRING
from aweigh.io.sources import hdf5
from aweigh.io.sources.arrays import ArraySource, Opener
from aweigh.io.sources.base import Source, as_column, block_bounds, check_view_shape, described, view_dtype
from aweigh.io.sources.failures import listed, missing_key, reading, shown
from aweigh.io.sources.sparse import sparse_view
from aweigh.io.sources.zarr_array import zarr_errors

NAMES = ("obs_names", "obs/index", "obs/_index", "index")
HINT = "Write it again with a current anndata or mudata, whose read functions then read it."


@dataclass(frozen=True)
class NodeOpener:
    """Opens the file or store and gives what lies at `key`; a class and not a closure, because sources are pickled."""

    path: str
    key: str = ""

    @contextmanager
    def __call__(self) -> Iterator[Any]:
        with opened(self.path) as root, reading(f"{self.path}:{shown(self.key)}", (Exception,), HINT):
            yield root[self.key] if self.key else root


@dataclass(frozen=True)
class Cells:
    """A view with the names of its rows."""

    source: Source
    path: str
    part: str

    @property
    def rows(self) -> int:
        return self.source.rows

    @property
    def columns(self) -> int:
        return self.source.columns

    @property
    def dtype(self) -> np.dtype:
        return self.source.dtype

    def describe(self) -> str:
        return self.source.describe()

    def blocks(self, rows_per_block: int) -> Iterator[np.ndarray]:
        return self.source.blocks(rows_per_block)

    def ids(self) -> np.ndarray:
        """The names of the cells."""
        with opened(self.path) as root, reading(self.path, (Exception,), HINT):
            return names(root, self.path, self.part)


@dataclass(frozen=True)
class FrameSource:
    """A view in a data frame: its columns are the features."""

    name: str
    opener: Opener
    rows: int
    order: tuple[str, ...]
    dtype: np.dtype

    @property
    def columns(self) -> int:
        return len(self.order)

    def describe(self) -> str:
        return described(self, self.name)

    def blocks(self, rows_per_block: int) -> Iterator[np.ndarray]:
        with self.opener() as frame:
            for start, stop in block_bounds(self.rows, rows_per_block):
                columns = [np.asarray(frame[name][start:stop], self.dtype) for name in self.order]
                yield np.ascontiguousarray(np.stack(columns, 1))


class Place(NamedTuple):
    """A key taken apart: the modality's group with a slash at its end, "" for the whole; the rest."""

    part: str
    rest: str


def is_anndata(folder: str) -> bool:
    """Whether a folder is the Zarr form of AnnData or MuData."""
    try:
        root = zarr.open_group(folder, mode="r")
    except Exception:  # whatever it is, another format says what is wrong with it
        return False
    return encoding(root) in ("anndata", "MuData")


@contextmanager
def opened(path: str) -> Iterator[Any]:
    """The root group of a file or store; DataError where it is neither AnnData nor MuData."""
    if os.path.isdir(path):
        with zarr_errors(path):
            root = zarr.open_group(path, mode="r")
        yield checked(root, path)
    else:
        with hdf5.opened(path) as file:
            yield checked(file, path)


def checked(root: Any, path: str) -> Any:
    """The root group, unless it lacks what AnnData has."""
    if "obs" not in root:
        raise DataError(f"{path} holds {listed(sorted(root))}, but no obs, so it is not AnnData", HINT)
    if not hasattr(root["obs"], "keys"):
        raise DataError(f"{path} was written by an anndata before 0.7, whose layout is not read", HINT)
    return root


def open_view(path: str, key: str | None) -> Cells:
    """The view KEY; X of AnnData where it is left out, and of the only modality of MuData."""
    with opened(path) as root, reading(path, (Exception,), HINT):
        place = view_place(root, path, key)
        at = place.part + place.rest
        name, opener = f"{path}:{shown(at)}", NodeOpener(path, at)
        return Cells(element(name, opener, root[at]), path, place.part)


def open_column(path: str, key: str | None) -> np.ndarray:
    """The column KEY of obs, or the names of the cells where KEY is obs_names."""
    with opened(path) as root, reading(path, (Exception,), HINT):
        if key is None:
            raise DataError(
                f"{path} was given for ids or labels without a column; obs holds {listed(columns_of(root['obs']))}",
                f"Give {path}:obs/COLUMN, or {path}:obs_names.",
            )
        place = column_place(root, path, key)
        if place.rest in NAMES:
            return names(root, path, place.part)
        column = place.rest.removeprefix("obs/")
        obs = root[f"{place.part}obs"]
        if column not in columns_of(obs):
            there = [f"{place.part}obs/{each}" for each in columns_of(obs)]
            raise missing_key(path, key, [*there, f"{place.part}obs_names"])
        return values_of(obs[column], f"{path}:{shown(place.part)}obs/{shown(column)}")


def column_ids(path: str, key: str | None) -> np.ndarray | None:
    """The names of the cells that a column comes with."""
    with opened(path) as root, reading(path, (Exception,), HINT):
        return names(root, path, column_place(root, path, key or "").part)


def column_place(root: Any, path: str, key: str) -> Place:
    """The place of a column: obs/COLUMN, or COLUMN alone, after a modality's name or not."""
    for part in modalities(root):
        for before in (f"mod/{part}/", f"{part}/"):
            if key.startswith(before):
                return Place(f"mod/{part}/", key.removeprefix(before))
    return Place("", key)


def view_place(root: Any, path: str, key: str | None) -> Place:
    """The place of a view, which is there."""
    parts = modalities(root)
    if not parts:
        place = Place("", key or "X")
    elif key is None and len(parts) > 1:
        raise DataError(f"{path} holds the modalities {listed(parts)}", f"Say which one with {path}:NAME.")
    else:
        words = (key or parts[0]).removeprefix("mod/").split("/", 1)
        place = Place("", key or "") if words[0] not in parts else Place(f"mod/{words[0]}/", (*words, "X")[1])
    there = matrices(root) + [f"mod/{part}/{rest}" for part in parts for rest in matrices(root["mod"][part])]
    if place.part + place.rest not in there:
        raise missing_key(path, key or "X", [each.removeprefix("mod/") for each in there])
    return place


def modalities(root: Any) -> list[str]:
    """The names of MuData's modalities, in their order; none for AnnData."""
    if encoding(root) != "MuData" and "mod" not in root:
        return []
    order = root["mod"].attrs.get("mod-order", None)
    return [str(name) for name in (sorted(root["mod"]) if order is None else order)]


def matrices(group: Any) -> list[str]:
    """What may be a view in an AnnData group."""
    found = ["X"] if "X" in group and encoding(group["X"]) != "null" else []
    for folder in ("layers", "obsm"):
        found += [f"{folder}/{name}" for name in sorted(group[folder])] if folder in group else []
    return found + (["raw/X"] if "raw" in group and "X" in group["raw"] else [])


def element(name: str, opener: Opener, node: Any) -> Source:
    """The source of a dense array, a sparse matrix or a data frame."""
    kind = encoding(node)
    if kind in ("csr_matrix", "csc_matrix"):
        rows, columns = map(int, node.attrs["shape"])
        return sparse_view(name, opener, node, (rows, columns), kind == "csc_matrix")
    if kind == "dataframe":
        order = tuple(columns_of(node))
        check_view_shape((index_of(node, name).shape[0], len(order)), name)
        dtypes = [frame_dtype(node[column], f"{name}, column {shown(column)!r}") for column in order]
        return FrameSource(name, opener, index_of(node, name).shape[0], order, np.result_type(*dtypes))
    if not hasattr(node, "shape"):
        raise DataError(f"{name} is stored as {shown(kind or 'a group')}, which is no matrix", "Give another key.")
    check_view_shape(node.shape, name)
    view_dtype(np.dtype(node.dtype), name)
    return ArraySource(name, opener, tuple(node.shape), np.dtype(node.dtype))


def frame_dtype(node: Any, name: str) -> np.dtype:
    """The dtype in which a data frame's column is delivered; DataError unless it is a plain one of numbers."""
    if not hasattr(node, "dtype"):
        raise DataError(
            f"{name} is stored as {shown(encoding(node))}, but a view holds plain numbers",
            "Convert it to numbers, or leave it out of the data frame.",
        )
    return view_dtype(np.dtype(node.dtype), name)


def names(root: Any, path: str, part: str) -> np.ndarray:
    """The names of the rows of AnnData, or of a modality: the whole's names where its obsmap is not 0."""
    own = as_column(values_of(index_of(root[f"{part}obs"], path), f"{path}:{part}obs_names"), path)
    where = f"obsmap/{part.split('/')[1]}" if part else ""
    if not part or "obsmap" not in root or where not in root:
        return own
    every = as_column(values_of(index_of(root["obs"], path), f"{path}:obs_names"), path)
    places = np.asarray(root[where][...]).reshape(-1).astype(np.int64)
    there = np.flatnonzero(places > 0)
    if len(places) != len(every) or not np.array_equal(np.sort(places[there]), np.arange(1, len(own) + 1)):
        raise DataError(
            f"{path}:{where} does not give each of the {len(own)} cells of its modality one of the {len(every)} rows",
            "Call MuData's update() and write it again.",
        )
    return every[there[np.argsort(places[there])]]


def columns_of(obs: Any) -> list[str]:
    """The names of a data frame's columns, in their order."""
    index = obs.attrs.get("_index", "_index")
    order = [str(name) for name in obs.attrs.get("column-order", ())]
    return order or sorted(name for name in obs if name not in (index, "__categories"))


def index_of(obs: Any, path: str) -> Any:
    """The array with a data frame's row names."""
    index = obs.attrs.get("_index", "_index")
    if index not in obs:
        raise DataError(f"{path}: a data frame lacks its row names, {shown(index)}", HINT)
    return obs[index]


def encoding(node: Any) -> str:
    """What a group or array says that it is."""
    kind = node.attrs.get("encoding-type", "")
    return kind.decode() if isinstance(kind, bytes) else str(kind)


def values_of(node: Any, name: str) -> np.ndarray:
    """A column as anndata stores it: plain, categorical or nullable; DataError for a missing value."""
    kind = encoding(node)
    if kind == "categorical":
        codes = np.asarray(node["codes"][...])
        refuse_missing(codes < 0, name)
        return as_column(values_of(node["categories"], name)[codes], name)
    if kind.startswith("nullable"):
        refuse_missing(np.asarray(node["mask"][...]), name)
        return values_of(node["values"], name)
    if not hasattr(node, "dtype"):
        raise DataError(f"{name} is stored as {shown(kind)}, which is no column of ids or labels", "Give another one.")
    if hasattr(node, "asstr"):
        return as_column(hdf5.values_of(node), name)
    values = np.asarray(node[...])
    return as_column(np.array(values.tolist(), STRING) if values.dtype.kind in "OT" else values, name)


def refuse_missing(missing: np.ndarray, name: str) -> None:
    """DataError for the first row that has no value."""
    if missing.any():
        raise DataError(
            f"{name} has no value in {np.count_nonzero(missing)} rows, the first in row {np.argmax(missing)} (counted "
            "from 0)",
            "Give every cell a value, for example with .cat.add_categories('unknown').fillna('unknown').",
        )
