"""Files written by each format's own library are read as they were written, and joined by their ids."""

import contextlib
import json
import pickle
import re

import anndata
import h5py
import mudata
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.io
import scipy.sparse
import xarray
import zarr
from click.testing import CliRunner

from aweigh.io.archive import BatchReader, open_archive
from aweigh.io.errors import AweighError, DataError, UsageError
from aweigh.io.sources import matlab5, open_column, open_source, parquet
from aweigh.io.sources.joined import gathered
from aweigh.pipeline.cli import main

ROWS, COLUMNS = 23, 5
NAMES = [f"c{i}" for i in range(ROWS)]
TYPES = [("b", "a", "ü")[i % 3] for i in range(ROWS)]

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # anndata's, of its own future defaults
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture
def table():
    """Half of the values are zero, so that the sparse forms are sparse."""
    values = np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype(np.float32)
    return np.where(values > 0, values, 0)


def blocks_of(source, rows_per_block):
    blocks = list(source.blocks(rows_per_block))
    assert [len(b) for b in blocks[:-1]] == [rows_per_block] * (len(blocks) - 1)
    assert all(b.flags.c_contiguous and b.dtype == source.dtype and b.dtype.isnative for b in blocks)
    whole = np.concatenate(blocks)
    assert whole.shape == (source.rows, source.columns)
    return whole


# Each writer saves x and returns the spec of the view.


def parquet_lists(folder, x):
    values = pa.FixedSizeListArray.from_arrays(x.reshape(-1), x.shape[1])
    pq.write_table(pa.table({"id": NAMES, "x": values}), folder / "x.parquet", row_group_size=6)
    return f"{folder / 'x.parquet'}:x"


def parquet_lists_of_any_length(folder, x):
    pq.write_table(pa.table({"x": pa.array(list(x), pa.list_(pa.float32()))}), folder / "x.pq")
    return folder / "x.pq"


def parquet_tensors(folder, x):
    values = pa.FixedShapeTensorArray.from_numpy_ndarray(x)
    pq.write_table(pa.table({"x": values}), folder / "x.parquet")
    return folder / "x.parquet"


def parquet_prefix(folder, x):
    frame = pd.DataFrame(x, columns=[f"pc_{i}" for i in range(x.shape[1])])
    frame.assign(other="text", pc=7).to_parquet(folder / "x.parquet", row_group_size=4)
    return f"{folder / 'x.parquet'}:pc_"


def parquet_indexed(folder, x):
    pd.DataFrame(x, NAMES).rename(columns=str).to_parquet(folder / "x.parquet")
    return folder / "x.parquet"


def parquet_files(folder, x):
    (folder / "x").mkdir()
    for part, rows in enumerate(np.array_split(x, 12)):
        pd.DataFrame(rows).rename(columns=str).to_parquet(folder / "x" / f"part.{part}.parquet")
    return folder / "x"


def parquet_pattern(folder, x):
    return parquet_files(folder, x) / "part.*.parquet"


def cells(x, rows=slice(None)):
    obs = pd.DataFrame({"type": pd.Categorical(TYPES)[rows], "n": np.arange(ROWS)[rows]}, index=NAMES[rows])
    return anndata.AnnData(None if x is None else x[rows], obs=obs)


def h5ad(folder, x):
    cells(x).write_h5ad(folder / "x.h5ad")
    return folder / "x.h5ad"


def h5ad_compressed(folder, x):
    cells(x).write_h5ad(folder / "x.h5ad", compression="gzip")
    return folder / "x.h5ad"


def h5ad_rows(folder, x):
    return h5ad(folder, scipy.sparse.csr_matrix(x))


def h5ad_columns(folder, x):
    return h5ad(folder, scipy.sparse.csc_matrix(x))


def h5ad_parts(folder, x):
    made = cells(x[:, :1])
    made.layers["counts"] = x[:, :1]
    made.obsm["pca"] = x
    made.obsm["frame"] = pd.DataFrame(x, made.obs_names).rename(columns=str)
    made.raw = anndata.AnnData(scipy.sparse.csr_matrix(x), obs=made.obs)
    made.write_h5ad(folder / "x.h5ad")


def h5ad_obsm(folder, x):
    h5ad_parts(folder, x)
    return f"{folder / 'x.h5ad'}:obsm/pca"


def h5ad_frame(folder, x):
    h5ad_parts(folder, x)
    return f"{folder / 'x.h5ad'}:obsm/frame"


def h5ad_raw(folder, x):
    h5ad_parts(folder, x)
    return f"{folder / 'x.h5ad'}:raw/X"


def anndata_zarr(folder, x):
    cells(x).write_zarr(folder / "x.zarr")
    return folder / "x.zarr"


def anndata_zarr_sparse(folder, x):
    return anndata_zarr(folder, scipy.sparse.csr_matrix(x))


def anndata_zarr_columns(folder, x):
    return anndata_zarr(folder, scipy.sparse.csc_matrix(x))


def h5mu(folder, x):
    mudata.MuData({"a": cells(x), "b": cells(x[:, :2])}).write(folder / "x.h5mu")
    return f"{folder / 'x.h5mu'}:a"


def mudata_zarr(folder, x):
    mudata.MuData({"a": cells(x), "b": cells(x[:, :2])}).write_zarr(folder / "x.zarr")
    return f"{folder / 'x.zarr'}:a/X"


def hdf5(folder, x):
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("a/x", data=x, chunks=(4, 3), compression="lzf")
        file["a/y"] = x[:, 0]
    return f"{folder / 'x.h5'}:a/x"


def hdf5_sole(folder, x):
    with h5py.File(folder / "x.hdf5", "w") as file:
        file["x"] = x
    return folder / "x.hdf5"


def cell_array(*cells):
    array = np.empty((1, len(cells)), object)
    array[0] = cells
    return array


def mat5(folder, x):
    scipy.io.savemat(folder / "x.mat", {"X": cell_array(x, x[:, :2])}, do_compression=True)
    return f"{folder / 'x.mat'}:X{{1}}"


def mat5_by_columns(folder, x):
    sparse = scipy.sparse.csc_matrix(x.T.astype(float))
    scipy.io.savemat(folder / "x.mat", {"X": cell_array(x[:, :2].T, sparse)})
    return f"{folder / 'x.mat'}:X{{2}}"


def mat5_by_labels(folder, x):
    scipy.io.savemat(folder / "x.mat", {"data": {"X": x.T}, "gt": np.arange(float(len(x)))[:, None]})
    return f"{folder / 'x.mat'}:data.X"


def mat5_quoted(folder, x):
    scipy.io.savemat(folder / "x.mat", {"X": x.T})
    return f"{folder / 'x.mat'}:X'"


def mat73(folder, x):
    """A cell array as MATLAB writes it: dimensions reversed, cells in #refs#, sparse matrices by columns."""
    with h5py.File(folder / "x.mat", "w", userblock_size=512) as file:
        refs = file.create_group("#refs#")
        plain = refs.create_dataset("a", data=x.T, chunks=(2, 5))
        sparse, parts = refs.create_group("b"), scipy.sparse.csc_matrix(x)
        sparse["data"], sparse["ir"], sparse["jc"] = parts.data, parts.indices.astype("u8"), parts.indptr.astype("u8")
        sparse.attrs["MATLAB_sparse"] = np.uint64(len(x))
        texts = [refs.create_dataset(f"t{i}", data=np.array([[ord(c)] for c in t], "u2")) for i, t in enumerate(TYPES)]
        for text in texts:
            text.attrs["MATLAB_class"] = np.bytes_("char")
        file["X"] = np.array([[plain.ref], [sparse.ref]], dtype=h5py.ref_dtype)
        file["names"] = np.array([[text.ref for text in texts]], dtype=h5py.ref_dtype)
        file["gt"] = np.arange(float(len(x)))[None]
        for node, kind in ((plain, "single"), (sparse, "single"), (file["gt"], "double")):
            node.attrs["MATLAB_class"] = np.bytes_(kind)
        for name in ("X", "names"):
            file[name].attrs["MATLAB_class"] = np.bytes_("cell")
    with open(folder / "x.mat", "r+b") as raw:
        raw.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\0\2IM")
    return f"{folder / 'x.mat'}:X{{1}}"


def mat73_sparse(folder, x):
    return mat73(folder, x).replace("{1}", "{2}")


def netcdf4(folder, x):
    data = xarray.Dataset({"x": (("sample", "feature"), x), "y": ("sample", TYPES)})
    data.to_netcdf(folder / "x.nc", engine="h5netcdf", encoding={"x": {"chunksizes": (4, 3), "zlib": True}})
    return f"{folder / 'x.nc'}:x"


def netcdf3(folder, x):
    xarray.Dataset({"x": (("sample", "feature"), x)}).to_netcdf(folder / "x.nc", engine="scipy")
    return folder / "x.nc"


def xarray_zarr(folder, x):
    xarray.Dataset({"x": (("sample", "feature"), x)}).to_zarr(folder / "x.zarr", consolidated=False)
    return f"{folder / 'x.zarr'}:x"


WRITERS = [
    parquet_lists, parquet_lists_of_any_length, parquet_tensors, parquet_prefix, parquet_indexed, parquet_files,
    parquet_pattern, h5ad, h5ad_compressed, h5ad_rows, h5ad_columns, h5ad_obsm, h5ad_frame, h5ad_raw, anndata_zarr,
    anndata_zarr_sparse, anndata_zarr_columns, h5mu, mudata_zarr, hdf5, hdf5_sole, mat5, mat5_by_columns,
    mat5_by_labels, mat5_quoted, mat73, mat73_sparse, netcdf4, netcdf3, xarray_zarr,
]  # fmt: skip


@pytest.mark.parametrize("write", WRITERS)
def test_blocks_equal_the_array(tmp_path, table, write):
    spec = str(write(tmp_path, table))
    source = pickle.loads(pickle.dumps(open_source(spec)))
    dtype = "float64" if write is mat5_by_columns else "float32"  # MATLAB has no other sparse matrices
    assert f"{ROWS} x {COLUMNS}, {dtype}" in source.describe()
    for rows_per_block in (1, 7, ROWS, ROWS + 5):
        np.testing.assert_array_equal(blocks_of(source, rows_per_block), table)


@pytest.mark.parametrize(
    ("write", "key", "expected"),
    [
        (parquet_lists, "id", NAMES),
        (h5ad, "obs_names", NAMES),
        (h5ad, "obs/type", TYPES),
        (anndata_zarr, "type", TYPES),
        (anndata_zarr, "obs/n", list(range(ROWS))),
        (h5mu, "a/obs/type", TYPES),
        (h5mu, "obs_names", NAMES),
        (mudata_zarr, "a/obs/n", list(range(ROWS))),
        (mat5_by_labels, "gt", list(range(ROWS))),
        (mat73, "gt", list(range(ROWS))),
        (mat73, "names", TYPES),
        (netcdf4, "y", TYPES),
    ],
)
def test_columns(tmp_path, table, write, key, expected):
    path = re.sub(r":[^/].*", "", str(write(tmp_path, table)))
    assert open_column(f"{path}:{key}").tolist() == expected


def test_values_that_xarray_packed_are_unpacked(tmp_path, table):
    packed = {"x": {"dtype": "i2", "scale_factor": 0.001, "add_offset": 1.0, "_FillValue": -9}}
    table[3] = np.nan
    data = xarray.Dataset({"x": (("sample", "feature"), table)})
    data.to_netcdf(tmp_path / "x.nc", engine="h5netcdf", encoding=packed)
    data.to_zarr(tmp_path / "x.zarr", encoding=packed, consolidated=False)
    for name in ("x.nc", "x.zarr:x"):
        np.testing.assert_allclose(blocks_of(open_source(f"{tmp_path}/{name}"), 4), table, atol=0.0006)


def test_null_lists_are_missing_rows(tmp_path, table):
    rows = [None if i in (0, 7) else row for i, row in enumerate(table)]
    pq.write_table(pa.table({"x": pa.array(rows, pa.list_(pa.float32(), COLUMNS))}), tmp_path / "x.parquet")
    table[[0, 7]] = np.nan
    np.testing.assert_array_equal(blocks_of(open_source(str(tmp_path / "x.parquet")), 4), table)


@pytest.mark.parametrize("rows_per_block", [1, 7, ROWS, ROWS + 5])
def test_a_wide_row_group_is_read_in_strips(tmp_path, monkeypatch, rows_per_block):
    wide = np.random.default_rng(2).normal(size=(ROWS, 11))
    frame = pd.DataFrame(wide).rename(columns=str)
    frame.to_parquet(tmp_path / "x.parquet", row_group_size=9)
    monkeypatch.setattr(parquet, "LARGE", 0)
    monkeypatch.setattr(parquet, "STRIP", 4)
    np.testing.assert_array_equal(blocks_of(open_source(f"{tmp_path}/x.parquet"), rows_per_block), wide)
    frame.loc[20, "9"] = np.nan
    frame.convert_dtypes().to_parquet(tmp_path / "y.parquet", row_group_size=9)
    given = frame.to_numpy()
    np.testing.assert_array_equal(blocks_of(open_source(f"{tmp_path}/y.parquet"), rows_per_block), given)


def test_ids_and_labels_in_the_view_s_own_table_are_no_features(tmp_path, table):
    frame = pd.DataFrame(table).rename(columns=str).assign(id=range(100, 100 + ROWS), y=TYPES)
    for write, name in ((frame.to_parquet, "x.parquet"), (lambda path: frame.to_csv(path, index=False), "x.csv")):
        write(tmp_path / name)
        found = gathered({"v": f"{tmp_path}/{name}"}, [f"{tmp_path}/{name}:id"], f"{tmp_path}/{name}:y")
        np.testing.assert_allclose(blocks_of(found.views["v"], 4), table, rtol=1e-6)
        assert (found.ids.tolist(), found.labels.tolist()) == (list(range(100, 100 + ROWS)), TYPES)


# Rows joined by id.


def rows_by_id(found, view, rows_per_block=4):
    """{id: row} of the samples that a view has."""
    values = blocks_of(found.views[view], rows_per_block)
    return {name: row for name, row in zip(found.ids.tolist(), values, strict=True) if not np.isnan(row).any()}


@pytest.mark.parametrize("store", ["x.h5mu", "x.zarr"])
def test_cells_that_a_modality_lacks_are_missing_rows(tmp_path, table, store):
    rng = np.random.default_rng(1)
    parts = {"a": slice(0, 15), "b": rng.permutation(ROWS)[:17], "c": slice(4, None, 2)}
    kinds = {"a": np.asarray, "b": scipy.sparse.csr_matrix, "c": np.asarray}
    made = mudata.MuData(
        {
            name: anndata.AnnData(kinds[name](table[rows]), pd.DataFrame(index=np.array(NAMES)[rows]))
            for name, rows in parts.items()
        }
    )
    made.obs["type"] = [TYPES[int(name[1:])] for name in made.obs_names]
    (made.write if store.endswith("h5mu") else made.write_zarr)(tmp_path / store)
    path = tmp_path / store
    found = gathered({name: f"{path}:{name}" for name in parts}, labels=f"{path}:obs/type")
    assert sorted(found.ids.tolist()) == sorted(made.obs_names)
    assert found.labels.tolist() == [TYPES[int(name[1:])] for name in found.ids.tolist()]
    for name, rows in parts.items():
        expected = {NAMES[i]: table[i] for i in np.arange(ROWS)[rows]}
        assert rows_by_id(found, name).keys() == expected.keys()
        for cell, row in rows_by_id(found, name).items():
            np.testing.assert_array_equal(row, expected[cell])


def test_joined_rows_stay_in_every_source_s_order_where_one_order_is_all_of_theirs(tmp_path):
    for name, ids in {"a": "abd", "b": "acde", "c": "zae"}.items():
        lines = "".join(f"{c},{ord(c)}\n" for c in ids)
        (tmp_path / f"{name}.csv").write_text(f"cell,v\n{lines}")
    found = gathered({name: f"{tmp_path}/{name}.csv" for name in "abc"})
    assert found.ids.tolist() == list("zacbde")
    assert [list(rows_by_id(found, name)) for name in "abc"] == [["a", "b", "d"], ["a", "c", "d", "e"], ["z", "a", "e"]]


def test_ids_of_each_view_and_of_the_labels(tmp_path, table):
    order = np.random.default_rng(2).permutation(ROWS)
    np.save(tmp_path / "a.npy", table)
    np.save(tmp_path / "b.npy", table[order[:9]])
    np.save(tmp_path / "i.npy", np.arange(ROWS))
    np.save(tmp_path / "j.npy", order[:9])
    np.save(tmp_path / "y.npy", (np.arange(ROWS) * 10)[order])
    np.save(tmp_path / "k.npy", order)
    views = {"a": f"{tmp_path}/a.npy", "b": f"{tmp_path}/b.npy"}
    ids = [f"{name}={tmp_path}/{file}.npy" for name, file in (("a", "i"), ("b", "j"), ("labels", "k"))]
    found = gathered(views, ids, f"{tmp_path}/y.npy")
    assert found.labels.tolist() == (found.ids * 10).tolist()
    assert rows_by_id(found, "b").keys() == set(order[:9].tolist())
    for row, values in rows_by_id(found, "b").items():
        np.testing.assert_array_equal(values, table[row])
    with pytest.raises(UsageError, match=r"labels without ids\nGive them: --ids labels=SOURCE"):
        gathered(views, ids[:2], f"{tmp_path}/y.npy")
    with pytest.raises(UsageError, match=r"'a' comes with ids and view 'b' does not.*\n.*--ids b=SOURCE"):
        gathered(views, ids[:1])
    with pytest.raises(UsageError, match="another --ids beside it"):
        gathered(views, [*ids, f"{tmp_path}/i.npy"])
    np.save(tmp_path / "k.npy", order + 1)
    with pytest.raises(DataError, match=r"no label for 1 of 23 samples, the first with id 0\n"):
        gathered(views, ids, f"{tmp_path}/y.npy")


# What is refused names the file, the column and the row, and leaves the archive as it was.


def write_table(path, **columns):
    pq.write_table(pa.table(columns), path)


def bad_parquet_truncated(folder, x):
    spec = parquet_prefix(folder, x)
    path = folder / "x.parquet"
    path.write_bytes(path.read_bytes()[:-40])
    return spec, r"x\.parquet is damaged"


def bad_parquet_torn(folder, x):
    pq.write_table(pa.table({"x": np.arange(5000.0)}), folder / "x.parquet", compression="zstd", use_dictionary=False)
    data = bytearray((folder / "x.parquet").read_bytes())
    data[2000:2100] = bytes(100)
    (folder / "x.parquet").write_bytes(data)
    return folder / "x.parquet", r"x\.parquet is damaged"


def bad_parquet_empty(folder, x):
    (folder / "x.parquet").touch()
    return folder / "x.parquet", r"x\.parquet is empty \(0 bytes\)"


def bad_parquet_without_rows(folder, x):
    write_table(folder / "x.parquet", a=pa.array([], pa.float32()))
    return folder / "x.parquet", r"x\.parquet has 0 rows"


def bad_parquet_other(folder, x):
    (folder / "x.parquet").write_text("a,b\n1,2\n")
    return folder / "x.parquet", r"x\.parquet is not a Parquet file but text"


def bad_parquet_text(folder, x):
    write_table(folder / "x.parquet", a=[1.0, 2.0], city=["Bern", "Rome"])
    return folder / "x.parquet", r"x\.parquet, column 'city' holds string, but a view holds numbers"


def bad_parquet_dates(folder, x):
    write_table(folder / "x.parquet", when=pa.array([0, 1], pa.timestamp("s")))
    return folder / "x.parquet", r"column 'when' holds timestamp"


def bad_parquet_ragged(folder, x):
    write_table(folder / "x.parquet", x=[[1.0, 2.0], None, [3.0, 4.0], [1.0]])
    return folder / "x.parquet", r"x\.parquet, column 'x', row 3 \(counted from 0\) is a list of 1 numbers, .* has 2"


def bad_parquet_null_inside(folder, x):
    write_table(folder / "x.parquet", x=[[1.0, 2.0], None, [None, 4.0]])
    return folder / "x.parquet", r"x\.parquet, column 'x', row 2 \(counted from 0\) has a null at place 0"


def bad_parquet_null_cell(folder, x):
    write_table(folder / "x.parquet", a=[1.0, None], b=[3.0, 4.0])
    return folder / "x.parquet", r"the first in row 1, column 0 .*x\.parquet"


def bad_parquet_unlike(folder, x):
    (folder / "x").mkdir()
    write_table(folder / "x" / "0.parquet", a=[1.0])
    write_table(folder / "x" / "1.parquet", a=["b"])
    return folder / "x", r"1\.parquet has the column a of type string, unlike .*0\.parquet"


def bad_parquet_encrypted(folder, x):
    (folder / "x.parquet").write_bytes(b"PARE" + bytes(range(200)) + b"PARE")
    return folder / "x.parquet", r"x\.parquet is encrypted"


def bad_h5ad_truncated(folder, x):
    path = h5ad(folder, x)
    path.write_bytes(path.read_bytes()[:-4000])
    return path, r"x\.h5ad is damaged: .*truncated"


def bad_h5ad_other(folder, x):
    (folder / "x.h5ad").write_text("x" * 100)
    return folder / "x.h5ad", r"x\.h5ad is not an HDF5 file but text"


def bad_h5ad_empty(folder, x):
    (folder / "x.h5ad").touch()
    return folder / "x.h5ad", r"x\.h5ad is empty"


def bad_h5ad_plain(folder, x):
    with h5py.File(folder / "x.h5ad", "w") as file:
        file["y"] = x
    return folder / "x.h5ad", r"x\.h5ad holds y, but no obs, so it is not AnnData"


def bad_h5ad_without_x(folder, x):
    made = cells(None)
    made.obsm["pca"] = x
    made.write_h5ad(folder / "x.h5ad")
    return folder / "x.h5ad", r"has no 'X'; it holds obsm/pca"


def bad_h5ad_sparse(folder, x):
    h5ad_rows(folder, x)
    with h5py.File(folder / "x.h5ad", "r+") as file:
        file["X/indices"][3] = 99
    return folder / "x.h5ad", r"x\.h5ad:X is no valid sparse matrix: an index lies outside 0 to 4"


def bad_h5ad_pointers(folder, x):
    h5ad_rows(folder, x)
    with h5py.File(folder / "x.h5ad", "r+") as file:
        file["X/indptr"][3] = 0
    return folder / "x.h5ad", r"x\.h5ad:X is no valid sparse matrix: its pointers do not rise"


def bad_h5ad_columns(folder, x):
    h5ad_columns(folder, x)
    with h5py.File(folder / "x.h5ad", "r+") as file:
        file["X/indices"][3] = ROWS
    return folder / "x.h5ad", r"x\.h5ad:X is no valid sparse matrix: an index lies outside 0 to 22"


def bad_h5ad_ids(folder, x):
    made = cells(x)
    made.obs_names = ["c0", *NAMES[:-1]]
    made.write_h5ad(folder / "x.h5ad")
    return folder / "x.h5ad", r"x\.h5ad:X .*: id 'c0' appears in row 0 and again in row 1"


def bad_h5mu_obsmap(folder, x):
    spec = h5mu(folder, x)
    with h5py.File(folder / "x.h5mu", "r+") as file:
        file["obsmap/a"][0] = 5
    return spec, r"x\.h5mu:obsmap/a does not give each of the 23 cells"


def bad_h5mu_unsaid(folder, x):
    h5mu(folder, x)
    return folder / "x.h5mu", r"holds the modalities a, b\nSay which one"


def bad_hdf5_objects(folder, x):
    with h5py.File(folder / "x.h5", "w") as file:
        file["x"] = np.array([["a", "b"]], h5py.string_dtype())
    return folder / "x.h5", r"x\.h5:x holds text"


def bad_hdf5_infinite(folder, x):
    x[2, 1] = np.inf
    return hdf5_sole(folder, x), r"row 2, column 1 .*x\.hdf5"


def bad_mat_truncated(folder, x):
    spec = mat5(folder, x)
    (folder / "x.mat").write_bytes((folder / "x.mat").read_bytes()[:300])
    return spec, r"x\.mat is damaged"


def bad_mat_other(folder, x):
    (folder / "x.mat").write_text("1 2 3\n" * 50)
    return folder / "x.mat", r"x\.mat is not a MATLAB file but text"


def bad_mat_cell(folder, x):
    return mat5(folder, x).replace("{1}", "{3}"), r"asks for cell 3 of X, which has 2"


def bad_mat_cells(folder, x):
    return mat5(folder, x).replace("{1}", ""), r"x\.mat:X is a MATLAB cell, .*\nGive one cell"


def bad_mat_words(folder, x):
    scipy.io.savemat(folder / "x.mat", {"X": "text"})
    return f"{folder / 'x.mat'}:X", r"x\.mat:X is a MATLAB char"


def bad_mat73_truncated(folder, x):
    spec = mat73(folder, x)
    (folder / "x.mat").write_bytes((folder / "x.mat").read_bytes()[:-2000])
    return spec, r"x\.mat is damaged: .*truncated"


def bad_netcdf_truncated(folder, x):
    spec = netcdf4(folder, x)
    (folder / "x.nc").write_bytes((folder / "x.nc").read_bytes()[:-2000])
    return spec, r"x\.nc is damaged"


def bad_netcdf_classic(folder, x):
    spec = netcdf3(folder, x)
    spec.write_bytes(spec.read_bytes()[:-100])
    return spec, r"x\.nc is damaged"


def bad_netcdf_cube(folder, x):
    xarray.Dataset({"x": (("a", "b", "c"), x[None])}).to_netcdf(folder / "x.nc", engine="h5netcdf")
    return f"{folder / 'x.nc'}:x", r"x\.nc:x has 3 dimensions"


def bad_csv_ids(folder, x):
    (folder / "x.csv").write_text("id,v\na,1\nb,2\na,3\n")
    return folder / "x.csv", r"x\.csv .*: id 'a' appears in row 0 and again in row 2"


def bad_csv_mixed(folder, x):
    (folder / "x.csv").write_text("a,b\nx,1\n3,2\n")
    return folder / "x.csv", r"x\.csv, column 1 \(a\) names the rows with text, but row 1 .* has '3'"


BAD = {name: function for name, function in globals().items() if name.startswith("bad_")}


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    folder = tmp_path_factory.mktemp("archive")
    np.save(folder / "x.npy", np.random.default_rng(0).normal(size=(9, 3)))
    done = CliRunner().invoke(main, ["import", f"{folder}/a.zarr", "--view", f"v={folder}/x.npy"])
    assert done.exit_code == 0, done.output
    return folder / "a.zarr"


def state(archive):
    files = (path for path in archive.rglob("*") if path.is_file() and path.name != "import.lock")
    return {path.relative_to(archive): path.read_bytes() for path in files}


@pytest.mark.parametrize("write", BAD.values(), ids=BAD)
def test_bad_files_leave_the_archive_as_it_was(tmp_path, table, archive, write):
    spec, match = write(tmp_path, table)
    before = state(archive)
    for path in (archive, tmp_path / "new.zarr"):
        done = CliRunner().invoke(main, ["import", str(path), "--view", f"v={spec}", "--json"])
        told = json.loads(done.stdout)["error"]
        assert done.exit_code == 3, done.output
        assert told["hint"]
        if path != archive:  # whose own view has another shape, which may be told first
            assert re.search(match, f"{told['message']}\n{told['hint']}", re.DOTALL), told
    assert state(archive) == before


@pytest.mark.parametrize(
    ("write", "key", "match"),
    [
        (h5ad, "nothing", r"has no 'nothing'; it holds obs/type, obs/n, obs_names"),
        (h5ad, None, r"without a column; obs holds type, n\nGive .*:obs/COLUMN"),
        (parquet_lists, "x", r"column 'x' holds fixed_size_list"),
        (mat5, "X", r"is a MATLAB cell of the shape \(1, 2\), but ids and labels are one value"),
        (hdf5, "a/x", r"has the shape \(23, 5\), but ids and labels"),
        (netcdf4, "x", r"has the shape \(23, 5\), but ids and labels"),
    ],
)
def test_columns_that_are_refused(tmp_path, table, write, key, match):
    path = re.sub(r":[^/].*", "", str(write(tmp_path, table)))
    with pytest.raises(DataError, match=match):
        open_column(path if key is None else f"{path}:{key}")


def test_columns_with_gaps_name_the_first(tmp_path, table):
    made = cells(table)
    made.obs["type"] = pd.Categorical([None if i == 5 else t for i, t in enumerate(TYPES)])
    made.obs["n"] = pd.array([None, *range(ROWS - 1)], "Int64")
    made.write_h5ad(tmp_path / "x.h5ad")
    with pytest.raises(DataError, match=r"x\.h5ad:obs/type has no value in 1 rows, the first in row 5"):
        open_column(f"{tmp_path}/x.h5ad:obs/type")
    with pytest.raises(DataError, match=r"x\.h5ad:obs/n has no value in 1 rows, the first in row 0"):
        open_column(f"{tmp_path}/x.h5ad:obs/n")
    write_table(tmp_path / "x.parquet", y=["a", None])
    with pytest.raises(DataError, match=r"x\.parquet, column 'y', row 1 \(counted from 0\) is null"):
        open_column(f"{tmp_path}/x.parquet:y")


def test_a_matlab_file_too_large_to_be_read_whole(tmp_path, table, monkeypatch):
    monkeypatch.setattr(matlab5, "LARGEST", 1000)
    zeros = {"X": np.zeros((1000, 50))}
    for compressed in (True, False):
        scipy.io.savemat(tmp_path / "x.mat", zeros, do_compression=compressed)
        with pytest.raises(DataError, match=r"cannot be read in parts.*\n.*-v7\.3"):
            open_source(f"{tmp_path}/x.mat:X")


@pytest.mark.parametrize(
    ("package", "name", "extra"),
    [("pyarrow", "x.parquet", "parquet"), ("h5py", "x.h5ad", "hdf5"), ("h5netcdf", "x.nc", "netcdf")],
)
def test_what_is_not_installed_is_named(tmp_path, monkeypatch, package, name, extra):
    (tmp_path / name).write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    monkeypatch.setattr("aweigh.io.sources.extras.find_spec", lambda wanted: None if wanted == package else True)
    with pytest.raises(UsageError, match=rf"needs the package {package}.*\npip install 'aweigh\[{extra}\]'"):
        open_source(str(tmp_path / name))


@pytest.mark.parametrize("write", [h5ad_rows, parquet_lists, mat73, netcdf4])
def test_any_flipped_byte_is_an_aweigh_error_or_harmless(tmp_path, table, write):
    spec = str(write(tmp_path, table))
    path = next(path for path in tmp_path.iterdir() if path.is_file())
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    for at in rng.integers(0, len(whole), 60):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        with contextlib.suppress(AweighError):
            for _ in open_source(spec).blocks(7):
                pass


def test_the_archive_holds_what_a_mudata_file_held(tmp_path, table):
    made = mudata.MuData({"a": cells(table, slice(0, 15)), "b": cells(table * 2, slice(6, None))})
    made.write(tmp_path / "x.h5mu")
    views = [f"--view={name}={tmp_path}/x.h5mu:{name}" for name in "ab"]
    done = CliRunner().invoke(main, ["import", f"{tmp_path}/a.zarr", *views, "--json"])
    assert json.loads(done.stdout)["missing"] == {"a": 8, "b": 6}, done.output
    batch = open_archive(tmp_path / "a.zarr").batches[0]
    reader = BatchReader(tmp_path / "a.zarr", batch)
    assert reader.ids(0, ROWS).tolist() == NAMES
    np.testing.assert_array_equal(reader.present(0), [[i < 15, i >= 6] for i in range(ROWS)])
    np.testing.assert_array_equal(reader.view("a", 0)[:15], table[:15])
    np.testing.assert_array_equal(reader.view("b", 0)[6:], table[6:] * 2)
    assert zarr.open_group(tmp_path / "a.zarr", mode="r")
