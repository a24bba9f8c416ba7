"""Views and columns in MATLAB files: matrices, sparse ones, and the cells of the arrays in which benchmarks ship.

KEY is a variable, a field `S.NAME` of a structure, a cell `X{2}` counted from 1, or any chain of these; at its end,
`'` says that the columns are the samples. Without it the samples are

1. the dimension in which all cells of the array agree, where they agree in one only;
2. else the dimension that is as long as the labels: a vector with one of the names in LABELS;
3. else the rows.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from aweigh.io.errors import DataError
from aweigh.io.sources import matlab5, matlab73
from aweigh.io.sources.base import Source, as_column, check_view_shape
from aweigh.io.sources.failures import missing_key, only, shown
from aweigh.io.sources.files import checked_file

LABELS = ("gt", "gnd", "y", "label", "labels", "truth", "truelabel", "truelabels", "class", "classes", "ground_truth")
STEP = re.compile(r"\.?([A-Za-z]\w*)|\{(\d+)\}")


class Variable(Protocol):
    """A value in a file of either version."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def kind(self) -> str:
        """ "matrix", "cell", "struct", or what else MATLAB calls it."""
        ...

    def cells(self) -> "Sequence[Variable]":
        """The cells of a cell array, column by column."""
        ...

    def fields(self) -> "Mapping[str, Variable]":
        """The fields of a structure."""
        ...

    def values(self) -> np.ndarray:
        """All values of a matrix, or the texts of a cell array."""
        ...

    def view(self, name: str, by_columns: bool) -> Source:
        """The matrix as a view."""
        ...


class Key(NamedTuple):
    """A key taken apart: its steps, fields as text and cells as numbers, and whether `'` ends it."""

    steps: tuple[str | int, ...]
    quoted: bool


def open_view(path: str, key: str | None) -> Source:
    """The view KEY, or the only matrix."""
    variables = opened(path)
    if key is None:
        key = only(path, "matrix", [each for each, v in variables.items() if is_matrix(v)], variables)
    name, (steps, quoted) = f"{path}:{shown(key)}", parsed(path, key)
    found, siblings = followed(path, variables, key, steps)
    if found.kind != "matrix":
        hint = f"Give one cell, as {path}:{key}{{1}}." if found.kind == "cell" else "Give the key of a matrix."
        raise DataError(f"{name} is a MATLAB {shown(found.kind)}, but a view is a matrix of numbers", hint)
    check_view_shape(found.shape, name)
    return found.view(name, quoted or samples_are_columns(found, siblings, labels_length(variables)))


def open_column(path: str, key: str | None) -> np.ndarray:
    """The ids or labels KEY, a vector or a cell array of texts, or the only one; whole numbers are integers."""
    variables = opened(path)
    if key is None:
        vectors = [each for each, v in variables.items() if is_vector(v) and v.kind == "matrix"]
        key = only(path, "vector", [each for each in vectors if each.lower() in LABELS] or vectors, variables)
    name = f"{path}:{shown(key)}"
    found, _ = followed(path, variables, key, parsed(path, key).steps)
    texts = found.kind == "cell" and all(cell.kind == "char" for cell in found.cells())
    if not (is_vector(found) and (texts or found.kind == "matrix")):
        raise DataError(
            f"{name} is a MATLAB {shown(found.kind)} of the shape {found.shape}, but ids and labels are one value a "
            "sample, in a vector",
            "Save a vector, or a cell array of texts.",
        )
    values = found.values().reshape(-1)
    if values.dtype.kind == "f" and np.array_equal(values, np.trunc(values)) and np.abs(values).max() <= 2**53:
        values = values.astype(np.int64)  # MATLAB's numbers are floats unless told otherwise
    return as_column(values, name)


def opened(path: str) -> Mapping[str, Variable]:
    """The variables of a file of either version."""
    head = checked_file(path)
    return matlab73.variables(path) if is_hdf5(head) else matlab5.variables(path, head)


def is_hdf5(head: bytes) -> bool:
    """Whether the file is of version 7.3, which is HDF5 behind 512 bytes of its own."""
    return head[:10] == b"MATLAB 7.3" or head[:4] == b"\x89HDF"


def parsed(path: str, key: str) -> Key:
    """The steps of a key."""
    text = key.removesuffix("'")
    if not re.fullmatch(rf"(?:{STEP.pattern})+", text) or text[0] in ".{":
        raise DataError(
            f"{path} was given the key {shown(key)!r}",
            f"Give a variable, a field or a cell of it: {path}:X, {path}:S.X or {path}:X{{1}}.",
        )
    steps = [field or int(cell) for field, cell in STEP.findall(text)]
    return Key(tuple(steps), key != text)


def followed(
    path: str, variables: Mapping[str, Variable], key: str, steps: Iterable[str | int]
) -> tuple[Variable, Sequence[Variable]]:
    """What the steps lead to, and the cells among which it is, itself alone where it is in no cell array."""
    there, so_far = variables, ""
    found: Variable | None = None
    siblings: Sequence[Variable] = ()
    for step in steps:
        if isinstance(step, int):
            siblings = found.cells() if found is not None and found.kind == "cell" else ()
            if not 1 <= step <= len(siblings):
                raise DataError(
                    f"{path}:{shown(key)} asks for cell {step} of {shown(so_far)}, which has {len(siblings)}",
                    "Cells are counted from 1.",
                )
            found, so_far = siblings[step - 1], f"{so_far}{{{step}}}"
        else:
            if found is not None:
                there = found.fields() if found.kind == "struct" else {}
            if step not in there:
                raise missing_key(path, key, [f"{so_far}.{name}" if so_far else name for name in there])
            found, siblings, so_far = there[step], (), f"{so_far}.{step}" if so_far else step
    assert found is not None
    return found, siblings or [found]


def samples_are_columns(found: Variable, siblings: Sequence[Variable], labels: int | None) -> bool:
    """Whether the columns are the samples, by the rule of this module."""
    shapes = {each.shape for each in siblings if each.kind == "matrix"}
    rows, columns = ({shape[axis] for shape in shapes} for axis in (0, 1))
    if (len(rows) == 1) != (len(columns) == 1):
        return len(columns) == 1
    return labels == found.shape[1] != found.shape[0]


def labels_length(variables: Mapping[str, Variable]) -> int | None:
    """The length of the labels, where the file has such a vector."""
    found = [v for name, v in variables.items() if name.lower() in LABELS and is_vector(v)]
    return max(found[0].shape) if found else None


def is_vector(variable: Variable) -> bool:
    """Whether it is one value a sample."""
    return len(variable.shape) == 2 and min(variable.shape) == 1 and variable.kind in ("matrix", "cell")


def is_matrix(variable: Variable) -> bool:
    """Whether it may be a view."""
    return variable.kind == "matrix" and len(variable.shape) == 2 and not is_vector(variable)
