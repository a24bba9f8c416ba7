"""Shared test helpers: `oracles` importable, and the optional data folder beside the repository."""

import sys
from pathlib import Path

import numpy as np
import pytest

TESTS = Path(__file__).resolve().parent
DATA = TESTS.parent.parent / "shared" / "data"

if str(TESTS) not in sys.path:
    sys.path.insert(0, str(TESTS))


def load_shared(name):
    """All arrays of `../shared/data/NAME.npz` as a dict, CSR views as dense float64; skips if missing.

    `views` lists the views in order (float64); every other array is kept as stored.
    """
    path = DATA / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"optional data set {name} is not in {DATA}")
    with np.load(path) as stored:
        arrays = {key: stored[key] for key in stored.files}
    views = []
    while True:
        key = f"view{len(views)}"
        if key in arrays:
            views.append(arrays.pop(key).astype(np.float64))
        elif f"{key}_data" in arrays:
            parts = [arrays.pop(f"{key}_{part}") for part in ("data", "indices", "indptr", "shape")]
            views.append(_dense(*parts))
        else:
            break
    return arrays | {"views": views}


def _dense(data, indices, indptr, shape):
    """The (n, d) float64 array of CSR parts."""
    X = np.zeros(tuple(shape))
    for i in range(len(indptr) - 1):
        row = slice(indptr[i], indptr[i + 1])
        X[i, indices[row]] = data[row]
    return X


@pytest.fixture(scope="session")
def shared_data():
    """The loader `shared_data(name)`, see `load_shared`."""
    return load_shared
