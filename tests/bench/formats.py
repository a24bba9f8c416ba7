"""Imports of large files in bounded memory: a table of Parquet and an .h5ad, each written by its own library.

python tests/bench/formats.py [--gigabytes 3] [--folder DIR] [--write]
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

import anndata
import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from harness import recorded
from watch import watch

COLUMNS, PIECE = 512, 20_000
AWEIGH = [sys.executable, "-P", "-m", "aweigh.pipeline.cli"]


def pieces(rows: int):
    """Yield the rows of a table a piece at a time, so that writing it takes little memory."""
    for start in range(0, rows, PIECE):
        yield np.random.default_rng(start).normal(size=(min(PIECE, rows - start), COLUMNS)).astype(np.float32)


def parquet_lists(path: Path, rows: int) -> str:
    """Write embeddings as lists of fixed size, in the row groups that pyarrow makes by itself: a million rows each."""
    X = np.concatenate(list(pieces(rows)))
    values = pa.FixedSizeListArray.from_arrays(X.reshape(-1), COLUMNS)
    pq.write_table(pa.table({"id": np.arange(rows), "x": values}), path)
    return f"{path}:x"


def parquet_columns(path: Path, rows: int) -> str:
    """Write a column a feature, likewise."""
    X = np.concatenate(list(pieces(rows)))
    pq.write_table(pa.table(list(X.T.copy()), [f"pc_{at}" for at in range(COLUMNS)]), path)
    return f"{path}:pc_"


def h5ad(path: Path, rows: int) -> str:
    """Write cells with a dense X: the frame by anndata, X piece by piece in its layout."""
    obs = pd.DataFrame(index=[f"cell-{at}" for at in range(rows)])
    anndata.AnnData(obs=obs, var=pd.DataFrame(index=[f"gene-{at}" for at in range(COLUMNS)])).write_h5ad(path)
    with h5py.File(path, "r+") as file:
        X = file.create_dataset("X", (rows, COLUMNS), np.float32, chunks=(2000, COLUMNS))
        X.attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})
        for at, piece in enumerate(pieces(rows)):
            X[at * PIECE : at * PIECE + len(piece)] = piece
    assert anndata.read_h5ad(path, backed="r").shape == (rows, COLUMNS)
    return str(path)


def h5ad_sparse(path: Path, rows: int) -> str:
    """Write cells with a sparse X of a tenth of the values, twice the columns: as many bytes again."""
    obs = pd.DataFrame(index=[f"cell-{at}" for at in range(rows)])
    anndata.AnnData(obs=obs, var=pd.DataFrame(index=[f"gene-{at}" for at in range(COLUMNS * 4)])).write_h5ad(path)
    each = COLUMNS // 2  # values a row, of 12 bytes: float32 and int64
    with h5py.File(path, "r+") as file:
        X = file.create_group("X")
        X.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": (rows, COLUMNS * 4)})
        X["indptr"] = np.arange(0, (rows + 1) * each, each)
        data = X.create_dataset("data", (rows * each,), np.float32, chunks=(1 << 20,))
        indices = X.create_dataset("indices", (rows * each,), np.int64, chunks=(1 << 20,))
        for at, piece in enumerate(pieces(rows)):
            part = slice(at * PIECE * each, (at * PIECE + len(piece)) * each)
            data[part] = np.abs(piece[:, :each]).reshape(-1)
            indices[part] = np.tile(np.arange(0, COLUMNS * 4, COLUMNS * 4 // each), len(piece))
    assert anndata.read_h5ad(path, backed="r").shape == (rows, COLUMNS * 4)
    return str(path)


WRITERS = {"x.parquet": parquet_lists, "columns.parquet": parquet_columns, "x.h5ad": h5ad, "sparse.h5ad": h5ad_sparse}


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=3)
    parser.add_argument("--folder", help="where the files are made [default: a temporary folder]")
    parser.add_argument("--write", action="store_true", help="write the section of RESULTS.md")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=given.folder))
    rows = int(given.gigabytes * 1e9 / (COLUMNS * 4))
    try:
        with recorded("formats", f"Imports of {given.gigabytes:g} GB in bounded memory", given.write):
            print("| file | size | samples | peak of the process | seconds |\n|---|---|---|---|---|")
            for name, write in WRITERS.items():
                spec = write(folder / name, rows)
                size = (folder / name).stat().st_size / 1e9
                done = watch([*AWEIGH, "import", str(folder / "a.zarr"), "--view", f"x={spec}", "--json"])
                if done.code:
                    sys.exit("\n".join(line for _, line in done.lines))
                told, peak = json.loads(done.out), max(done.peaks.values()) / 1e6
                print(
                    f"| {name} | {size:.1f} GB | {told['samples']:,} | {peak:.0f} MB | {done.seconds:.0f} |", flush=True
                )
                shutil.rmtree(folder / "a.zarr")
                (folder / name).unlink()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
