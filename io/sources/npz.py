"""Views and columns from .npz files: plain arrays, CSR parts and scipy.sparse files, all streamed."""

import zipfile
from collections.abc import Iterable

import numpy as np

from aweigh.io.sources.base import Source
from aweigh.io.sources.failures import missing_key, not_a, only
from aweigh.io.sources.files import checked_file
from aweigh.io.sources.members import (
    MemberOpener,
    array_keys,
    member_column,
    member_header,
    member_name,
    opened_zip,
)
from aweigh.io.sources.npy import view
from aweigh.io.sources.npz_csr import PARTS, csr_keys, csr_view, scipy_view


def open_view(path: str, key: str | None) -> Source:
    """The plain or sparse view KEY of an .npz file, or its only one where KEY is left out."""
    check_zip(path)
    with opened_zip(path) as archive:
        keys = array_keys(archive)
        sparse = csr_keys(keys)
        if key is None and {"format", "shape", "data"} <= set(keys):
            return scipy_view(archive, path, keys)
        if key is None:
            fitting = keys if len(keys) == 1 else [*sparse, *of_dimension(archive, path, keys, 2)]
            key = only(path, "two-dimensional array", fitting, keys)
        if key in keys:
            header = member_header(archive, path, key)
            return view(member_name(path, key), header, MemberOpener(path, key, header.by_columns))
        if key in sparse:
            return csr_view(archive, path, key + "_", member_name(path, key))
        raise missing_key(path, key, [*sparse, *without_parts(keys)])


def open_column(path: str, key: str | None) -> np.ndarray:
    """The ids or labels KEY of an .npz file, or its only one-dimensional array where KEY is left out."""
    check_zip(path)
    with opened_zip(path) as archive:
        keys = array_keys(archive)
        if key is None:
            fitting = keys if len(keys) == 1 else of_dimension(archive, path, without_parts(keys), 1)
            key = only(path, "one-dimensional array", fitting, without_parts(keys))
        if key not in keys:
            raise missing_key(path, key, without_parts(keys))
        return member_column(archive, path, key, member_header(archive, path, key))


def check_zip(path: str) -> None:
    """Raises DataError unless the file begins as a zip archive does."""
    head = checked_file(path)
    if not head.startswith(b"PK"):
        raise not_a(path, "an .npz file", head)


def without_parts(keys: list[str]) -> list[str]:
    """The keys that are no part of a sparse view."""
    parts = {f"{key}_{part}" for key in csr_keys(keys) for part in PARTS}
    return [key for key in keys if key not in parts]


def of_dimension(archive: zipfile.ZipFile, path: str, keys: Iterable[str], dimensions: int) -> list[str]:
    """The keys of the arrays with so many dimensions."""
    return [key for key in keys if len(member_header(archive, path, key).shape) == dimensions]
