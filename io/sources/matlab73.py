"""MATLAB files of version 7.3, which are HDF5 and read in parts; arrays lie in them with their dimensions reversed."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from aweigh.io.model import STRING
from aweigh.io.sources import hdf5
from aweigh.io.sources.arrays import ArraySource
from aweigh.io.sources.base import Source, view_dtype
from aweigh.io.sources.failures import reading
from aweigh.io.sources.sparse import sparse_view

if TYPE_CHECKING:
    import h5py

NUMBERS = {"double", "single", "logical", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))}
SPARSE = ("data", "ir", "jc")


@dataclass(frozen=True)
class Node:
    """A dataset or group of a file, which is opened whenever something is asked of it."""

    path: str
    at: str
    shape: tuple[int, ...]
    kind: str

    def cells(self) -> "list[Node]":
        with self() as dataset:
            return [node_of(self.path, dataset.file[reference]) for reference in np.asarray(dataset[()]).reshape(-1)]

    def fields(self) -> "dict[str, Node]":
        with self() as group:
            return {name: node_of(self.path, group[name]) for name in group} if hasattr(group, "keys") else {}

    def values(self) -> np.ndarray:
        if self.kind == "cell":
            return np.array([cell.text() for cell in self.cells()], STRING)
        with self() as dataset:
            return np.asarray(dataset[()]).T

    def text(self) -> str:
        """The text of a char array."""
        with self() as dataset:
            return "".join(map(chr, np.asarray(dataset[()]).reshape(-1).tolist())) if self.shape[-1] else ""

    def view(self, name: str, by_columns: bool) -> Source:
        opener = hdf5.DatasetOpener(self.path, self.at)
        with self() as node:
            if "MATLAB_sparse" in node.attrs:
                shape = self.shape[::-1] if by_columns else self.shape
                return sparse_view(name, opener, node, (shape[0], shape[1]), not by_columns, SPARSE)
            view_dtype(node.dtype, name)
            # The file has the dimensions reversed: its columns are MATLAB's rows.
            return ArraySource(name, opener, node.shape, node.dtype, by_columns=not by_columns)

    @contextmanager
    def __call__(self) -> Iterator[Any]:
        with hdf5.opened(self.path) as file, reading(f"{self.path}:{self.at}", hdf5.DAMAGE, hdf5.HINT):
            yield file[self.at]


def variables(path: str) -> dict[str, Node]:
    """The variables of a file."""
    with hdf5.opened(path) as file:
        return {name: node_of(path, file[name]) for name in file if not name.startswith("#")}


def node_of(path: str, node: "h5py.Dataset | h5py.Group") -> Node:
    """What an HDF5 object means to MATLAB."""
    stored = node.attrs.get("MATLAB_class", b"")
    said = stored.decode() if isinstance(stored, bytes) else str(stored)
    if "MATLAB_sparse" in node.attrs:
        shape = int(node.attrs["MATLAB_sparse"]), len(node["jc"]) - 1
        return Node(path, node.name, shape, "matrix")
    kind = "matrix" if said in NUMBERS else said
    if hasattr(node, "keys"):
        return Node(path, node.name, (1, 1), kind or "struct")
    if "MATLAB_empty" in node.attrs:
        return Node(path, node.name, (0, 0), kind)
    if not kind:  # written by another program, such as hdf5storage or h5py
        kind = "cell" if node.dtype.kind == "O" else "matrix"
    return Node(path, node.name, tuple(reversed(node.shape)), kind)
