"""A run as one table or dataset, by sample id: CSV, Parquet, netCDF, Zarr, and obs of AnnData and MuData."""

from __future__ import annotations

import contextlib
import csv
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aweigh.algorithms.contract import Array
from aweigh.io.archive import Archive
from aweigh.io.errors import DataError, UsageError
from aweigh.io.location import storage_errors
from aweigh.io.model import STRING
from aweigh.io.rows import ZarrRows
from aweigh.io.runs import RECORD, RunFolder
from aweigh.io.sources import anndata
from aweigh.io.sources.extras import needed
from aweigh.pipeline.results import Labelled, batches_of, labelled

NAME = "aweigh"
Block = tuple[Labelled, Array | None]


@dataclass(frozen=True)
class Rows:
    """The labelled rows of a run and, where asked for, their embedding."""

    archive: Archive
    run: RunFolder
    embedding: bool = False

    def blocks(self) -> Iterator[Block]:
        """Yield the rows, a block at a time, in order: ids, labels, confidence; and the embedding or None."""
        batches = batches_of(self.archive, self.run)
        rows, found = ZarrRows(self.archive.path, self.run.folder), labelled(self.archive, self.run, batches)
        for batch in batches:
            for block in range(batch.blocks):
                yield next(found), rows.read("embedding", batch, block) if self.embedding else None

    def columns(self) -> dict[str, tuple[Any, tuple[int, ...]]]:
        """Return {name: (dtype, shape)} of what the blocks hold together."""
        batches = batches_of(self.archive, self.run)
        n = sum(batch.rows for batch in batches)
        ids = np.dtype("int64") if batches[0].ids.kind == "int" else STRING
        found: dict[str, tuple[Any, tuple[int, ...]]] = {
            "id": (ids, (n,)),
            "label": (np.dtype("int32"), (n,)),
            "confidence": (np.dtype("float32"), (n,)),
        }
        if self.embedding:
            first = ZarrRows(self.archive.path, self.run.folder).read("embedding", batches[0], 0)
            found["embedding"] = (first.dtype, (n, first.shape[1]))
        return found

    def attributes(self) -> dict[str, Any]:
        """Return what a file says of where its columns come from."""
        record = self.run.read_json(RECORD)
        return {"aweigh_run": self.run.name, "method": record["method"]}


def export(rows: Rows, target: str, name: str = NAME) -> int:
    """Write a run to `target`, whose suffix says the format, and return the number of rows written.

    A file that is there is replaced, whole or not at all; AnnData and MuData keep all that they hold and get the
    columns `name` and `name`_confidence in obs, and the embedding as obsm["X_" + name].  UsageError for another suffix,
    for a Zarr folder that holds something else, and where a format's package is not installed.
    """
    path = Path(target).resolve()
    write = writer_of(path, target)
    with storage_errors(f"writing {target}"):
        return write(rows, path, name)


def writer_of(path: Path, target: str) -> Callable[[Rows, Path, str], int]:
    """Return what writes the format that a path's suffix names."""
    found = WRITERS.get(path.suffix.lower())
    if found is None:
        raise UsageError(f"--to {target!r}: its suffix names no format", f"end it in one of {', '.join(WRITERS)}")
    if path.suffix.lower() == ".zarr" and path.exists():
        if anndata.is_anndata(str(path)):
            return _cells_in_zarr
        raise UsageError(f"{target} is there, and is neither AnnData nor MuData", "give the name of a new folder")
    if path.suffix.lower() in (".h5ad", ".h5mu") and not path.exists():
        raise UsageError(f"there is no {target} whose obs could get the labels", "give the file that was imported")
    if path.is_dir() and path.suffix.lower() != ".zarr":
        raise UsageError(f"{target} is a folder", "give the name of a file")
    return found


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Give a name beside `path` to write under; what lies there becomes `path` in the end, or goes."""
    folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".partial"))
    try:
        yield folder / path.name
        os.replace(folder / path.name, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _csv(rows: Rows, path: Path, _: str) -> int:
    """Cells that a spreadsheet would run as a formula are quoted with an apostrophe."""
    width = rows.columns()["embedding"][1][1] if rows.embedding else 0
    written = 0
    with _replacing(path) as partial, partial.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["id", "label", "confidence", *(f"embedding_{at}" for at in range(width))])
        for block, embedding in rows.blocks():
            columns = [
                map(_harmless, map(str, block.ids)),
                block.labels.tolist(),
                (f"{c:.6g}" for c in block.confidence),
            ]
            if embedding is not None:
                columns += [(str(value) for value in column) for column in embedding.T]
            writer.writerows(zip(*columns, strict=True))
            written += len(block.labels)
    return written


def _parquet(rows: Rows, path: Path, _: str) -> int:
    """One row group a block; the embedding is a column of fixed-size lists."""
    needed("pyarrow", "parquet", path.name)
    import pyarrow
    from pyarrow import parquet

    def column(name: str, values: Array) -> Any:
        if values.ndim == 2:
            return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(values.reshape(-1)), values.shape[1])
        return pyarrow.array(values.tolist(), pyarrow.string()) if name == "id" and values.dtype.kind != "i" else values

    written = 0
    with _replacing(path) as partial, contextlib.ExitStack() as stack:
        writer = None
        for block in rows.blocks():
            table = pyarrow.table({name: column(name, values) for name, values in _named(block)})
            if writer is None:
                schema = table.schema.with_metadata(rows.attributes())
                writer = stack.enter_context(parquet.ParquetWriter(partial, schema))
            writer.write_table(table.replace_schema_metadata(schema.metadata))
            written += len(table)
        stack.close()
    return written


def _netcdf(rows: Rows, path: Path, _: str) -> int:
    """A dataset over the dimension sample, with id as its coordinate."""
    needed("h5netcdf", "netcdf", path.name)
    import h5netcdf
    import h5py

    columns = rows.columns()
    with _replacing(path) as partial, h5netcdf.File(partial, "w") as file:
        file.attrs.update(rows.attributes())
        file.dimensions = dict(
            zip(DIMENSIONS, max(columns.values(), key=lambda column: len(column[1]))[1], strict=False)
        )
        for name, (dtype, shape) in columns.items():
            kind = h5py.string_dtype() if dtype == STRING else dtype
            variable = file.create_variable(name, DIMENSIONS[: len(shape)], kind)
            if name != "id":
                variable.attrs["coordinates"] = "id"
        return _filled(rows, file.variables)


def _zarr(rows: Rows, path: Path, _: str) -> int:
    """The same as a Zarr folder."""
    import zarr

    with _replacing(path) as partial:
        group = zarr.create_group(str(partial), attributes=rows.attributes())
        for name, (dtype, shape) in rows.columns().items():
            group.create_array(
                name,
                shape=shape,
                chunks=(min(shape[0], CHUNK), *shape[1:]),
                dtype="string" if dtype == STRING else dtype,
                dimension_names=DIMENSIONS[: len(shape)],
                attributes={} if name == "id" else {"coordinates": "id"},
            )
        return _filled(rows, group)


def _filled(rows: Rows, arrays: Any) -> int:
    """Write the blocks into arrays by name, one after the other."""
    start = 0
    for block in rows.blocks():
        stop = start + len(block[0].labels)
        for name, values in _named(block):
            arrays[name][start:stop] = values.astype(object) if values.dtype == STRING else values
        start = stop
    return start


def _named(block: Block) -> Iterator[tuple[str, Array]]:
    labelled, embedding = block
    yield from (("id", labelled.ids), ("label", labelled.labels), ("confidence", labelled.confidence))
    if embedding is not None:
        yield "embedding", embedding


def _cells_in_file(rows: Rows, path: Path, name: str) -> int:
    """Back into .h5ad or .h5mu: on a copy, which takes the file's place."""
    needed("h5py", "hdf5", path.name)
    import h5py

    with anndata.opened(str(path)):  # else it is refused before it is copied
        pass
    with _replacing(path) as partial:
        shutil.copy2(path, partial)
        with h5py.File(partial, "r+") as root:
            return _cells(rows, root, path, name)


def _cells_in_zarr(rows: Rows, path: Path, name: str) -> int:
    """Back into the Zarr form; the columns count once all of them are written."""
    import zarr

    consolidated = zarr.open_group(str(path), mode="r").metadata.consolidated_metadata
    written = _cells(rows, zarr.open_group(str(path), mode="r+", use_consolidated=False), path, name)
    if consolidated:
        zarr.consolidate_metadata(str(path))
    return written


def _cells(rows: Rows, root: Any, path: Path, name: str) -> int:
    """Write label, confidence and embedding beside the cells whose names are the samples' ids."""
    needed("anndata", "anndata", path.name)
    import pandas
    from anndata.io import write_elem

    cells = pandas.Index(anndata.names(root, str(path), "").tolist())
    if not cells.is_unique:
        raise DataError(
            f"{path} names cells twice, the first {cells[cells.duplicated()][0]!r}", "make obs_names unique"
        )
    labels, confidence = np.full(len(cells), -1, np.int64), np.full(len(cells), np.nan, np.float32)
    embedding = np.full((len(cells), rows.columns()["embedding"][1][1]), np.nan, np.float32) if rows.embedding else None
    written = 0
    for block, vectors in rows.blocks():
        at = cells.get_indexer(list(map(str, block.ids.tolist())))
        there = at >= 0
        labels[at[there]], confidence[at[there]] = block.labels[there], block.confidence[there]
        if embedding is not None and vectors is not None:
            embedding[at[there]] = vectors[there]
        written += int(there.sum())
    if not written:
        raise DataError(
            f"{path} has no cell that is a sample of run {rows.run.name}: its cells are named like {cells[0]!r}, the "
            f"samples like {str(next(rows.blocks())[0].ids.tolist()[0])!r}",
            "export into the file that was imported",
        )
    found = np.unique(labels[labels >= 0])
    codes = np.where(labels < 0, -1, np.searchsorted(found, labels))
    columns = {name: pandas.Categorical.from_codes(codes, found.astype(str)), f"{name}_confidence": confidence}
    obs = root["obs"]
    others = [column for column in anndata.columns_of(obs) if column not in columns]
    obs.attrs["column-order"] = others
    for column, values in columns.items():
        write_elem(obs, column, values)
    if embedding is not None:
        write_elem(root.require_group("obsm"), f"X_{name}", embedding)
    obs.attrs["column-order"] = [*others, *columns]
    return written


def _harmless(text: str) -> str:
    """Return a cell that no spreadsheet runs: ids such as -5 stay numbers."""
    if text[:1] in "=+-@\t\r" and text:
        try:
            float(text)
        except ValueError:
            return "'" + text
    return text


CHUNK = 1 << 20  # rows of a Zarr chunk
DIMENSIONS: Sequence[str] = ("sample", "component")
WRITERS: dict[str, Callable[[Rows, Path, str], int]] = {
    ".csv": _csv,
    ".parquet": _parquet,
    ".nc": _netcdf,
    ".zarr": _zarr,
    ".h5ad": _cells_in_file,
    ".h5mu": _cells_in_file,
}
