"""The labelled sets of a folder: one `NAME.npz` each, views dense or as CSR parts, rows aligned over the views."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "data"
COMPLETE = (
    "mfeat", "bbcsport", "ngs", "bdgp", "webkb4", "reuters1200", "3sources", "msrcv1_5v", "100leaves", "hdigit",
    "mnist4",
)  # fmt: skip
MASKED = ("ngs", "bdgp")
SHARES = tuple(f"0.{i}" for i in range(1, 10))  # of samples that are complete, in the masks' names


@dataclass(frozen=True)
class DataSet:
    """Views (n, d_v), true labels (n,) from 0, and whatever else the file holds (masks, tasks)."""

    name: str
    views: tuple[np.ndarray, ...]
    labels: np.ndarray
    others: dict[str, np.ndarray]

    @property
    def k(self) -> int:
        """Number of classes."""
        return int(self.labels.max()) + 1

    def choose(self, columns: tuple[int, ...]) -> DataSet:
        """Return the set with some of its views."""
        return replace(self, views=tuple(self.views[c] for c in columns))


def load(name: str, folder: Path = FOLDER, dtype: type = np.float32) -> DataSet:
    """Return one set; raise FileNotFoundError where the folder has none of this name."""
    with np.load(folder / f"{name}.npz", allow_pickle=False) as stored:
        arrays = {key: stored[key] for key in stored.files}
    views = []
    while (view := _take(arrays, f"view{len(views)}", dtype)) is not None:
        views.append(view)
    labels = arrays.pop("labels").astype(np.int64)
    return DataSet(name, tuple(views), labels, arrays)


def available(names: tuple[str, ...] = COMPLETE, folder: Path = FOLDER) -> tuple[str, ...]:
    """Return the names whose files are there, in the same order."""
    return tuple(name for name in names if (folder / f"{name}.npz").is_file())


def masked(data: DataSet, share: str, folder: Path = FOLDER) -> DataSet:
    """Return the set with the rows that its mask of this share of complete samples hides made NaN."""
    with np.load(folder / f"{data.name}_masks.npz", allow_pickle=False) as stored:
        present = stored[f"present_{share}"].astype(bool)
    views = tuple(np.where(present[:, [v]], X, np.float32(np.nan)) for v, X in enumerate(data.views))
    return replace(data, name=f"{data.name}@{share}", views=views)


def _take(arrays: dict[str, np.ndarray], key: str, dtype: type) -> np.ndarray | None:
    if key in arrays:
        return np.ascontiguousarray(arrays.pop(key), dtype)
    if f"{key}_data" not in arrays:
        return None
    values, indices, indptr, shape = (arrays.pop(f"{key}_{part}") for part in ("data", "indices", "indptr", "shape"))
    return csr_array((values.astype(dtype), indices, indptr), shape=tuple(shape)).toarray()
