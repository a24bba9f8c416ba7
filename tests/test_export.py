"""A run exported is read back, by the library of each format, as the archive holds it."""

import csv
import json

import anndata
import mudata
import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest
import scipy.sparse
import xarray
from click.testing import CliRunner

from aweigh.io.archive import open_archive
from aweigh.io.rows import ZarrRows
from aweigh.io.runs import complete_run
from aweigh.pipeline.cli import main

ROWS, K = 120, 3
NAMES = np.array([f"cell-{at:03d}" for at in range(ROWS)])

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # anndata's and mudata's, of their own future defaults
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def run(*words, code=0):
    found = CliRunner().invoke(main, [*map(str, words)])
    assert found.exit_code == code, found.output
    return found


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """An archive of two views with named cells in two batches, and what its run holds."""
    folder = tmp_path_factory.mktemp("fitted")
    rng = np.random.default_rng(0)
    classes = rng.integers(0, K, ROWS)
    views = {name: rng.normal(size=(ROWS, d)) + 6 * classes[:, None] for name, d in (("rna", 6), ("atac", 4))}
    for batch, rows in (("one", slice(0, 70)), ("two", slice(70, None))):
        for name, X in views.items():
            np.save(folder / f"{name}.npy", X[rows])
        np.savetxt(folder / "ids.csv", NAMES[rows], fmt="%s", header="id", comments="")
        words = [f"--view={name}={folder}/{name}.npy" for name in views]
        run("import", folder / "a.zarr", *words, "--ids", f"{folder}/ids.csv:id", "--batch", batch)
    run("fit", folder / "a.zarr", "-k", K)
    archive = open_archive(folder / "a.zarr")
    rows = ZarrRows(archive.path, complete_run(archive, None).folder)
    read = {
        name: np.concatenate(
            [rows.read(name, batch, block) for batch in archive.batches for block in range(batch.blocks)]
        )
        for name in ("labels", "confidence", "embedding")
    }
    return folder / "a.zarr", views, read


def by_csv(path):
    with path.open(newline="") as file:
        _, *lines = csv.reader(file)
    found = np.array([line[1:] for line in lines], float)
    return [line[0] for line in lines], found[:, 0], found[:, 1], found[:, 2:]


def by_parquet(path):
    found = pyarrow.parquet.read_table(path)
    assert found.schema.field("embedding").type.list_size == found["embedding"].type.list_size
    vectors = np.array(found["embedding"].to_pylist())
    return found["id"].to_pylist(), found["label"].to_numpy(), found["confidence"].to_numpy(), vectors


def by_xarray(path):
    opened = xarray.open_zarr(path, consolidated=False) if path.suffix == ".zarr" else xarray.open_dataset(path)
    with opened as found:
        assert list(found.coords) == ["id"]
        assert found["embedding"].dims == ("sample", "component")
        assert found.attrs["method"] == "emvgc-lg"
        return found["id"].values.tolist(), *(found[name].values for name in ("label", "confidence", "embedding"))


@pytest.mark.parametrize(
    ("name", "read"),
    [("x.csv", by_csv), ("x.parquet", by_parquet), ("x.nc", by_xarray), ("x.zarr", by_xarray)],
)
def test_a_run_is_read_back_as_the_archive_holds_it(tmp_path, fitted, name, read):
    archive, _, held = fitted
    told = json.loads(run("export", archive, "--to", tmp_path / name, "--embedding", "--json").stdout)
    assert told["rows"] == ROWS
    ids, labels, confidence, embedding = read(tmp_path / name)
    assert ids == NAMES.tolist()
    np.testing.assert_array_equal(labels, held["labels"])
    np.testing.assert_allclose(confidence, held["confidence"], rtol=1e-5)
    np.testing.assert_array_equal(embedding, held["embedding"])
    assert [path.name for path in tmp_path.iterdir()] == [name]


def cells(views, rows):
    made = anndata.AnnData(views["rna"][rows], pd.DataFrame({"depth": np.arange(len(rows))}, index=NAMES[rows]))
    made.uns["kept"] = "as it was"
    return made


@pytest.mark.parametrize("store", ["x.h5ad", "x.zarr"])
def test_labels_go_back_into_the_cells_of_an_anndata(tmp_path, fitted, store):
    archive, views, held = fitted
    rows = np.random.default_rng(1).permutation(ROWS)[:90]
    made = cells(views, rows)
    made.obs = pd.concat([made.obs, pd.DataFrame({"depth": [7]}, index=["stranger"])]).iloc[:90]
    (made.write_h5ad if store == "x.h5ad" else made.write_zarr)(tmp_path / store)
    for name in ("aweigh", "coarse", "aweigh"):
        told = json.loads(
            run("export", archive, "--to", tmp_path / store, "--embedding", "--name", name, "--json").stdout
        )
        assert told["rows"] == 90
    found = (anndata.read_h5ad if store == "x.h5ad" else anndata.read_zarr)(tmp_path / store)
    assert found.obs.columns.tolist() == ["depth", "coarse", "coarse_confidence", "aweigh", "aweigh_confidence"]
    assert found.obs["aweigh"].astype(int).tolist() == held["labels"][rows].tolist()
    assert found.obs["aweigh"].dtype == "category"
    np.testing.assert_array_equal(found.obs["aweigh_confidence"], held["confidence"][rows])
    np.testing.assert_array_equal(found.obsm["X_aweigh"], held["embedding"][rows].astype(np.float32))
    np.testing.assert_array_equal(found.X, made.X)
    assert found.uns["kept"] == "as it was"


def test_cells_that_were_not_clustered_have_no_label(tmp_path, fitted):
    archive, views, held = fitted
    made = cells(views, np.arange(5))
    made.obs_names = [*NAMES[:3], "new-1", "new-2"]
    made.write_h5ad(tmp_path / "x.h5ad")
    assert "3 rows" in run("export", archive, "--to", tmp_path / "x.h5ad").stdout
    found = anndata.read_h5ad(tmp_path / "x.h5ad").obs["aweigh"]
    assert found.isna().tolist() == [False, False, False, True, True]
    assert found[:3].astype(int).tolist() == held["labels"][:3].tolist()


@pytest.mark.parametrize("store", ["x.h5mu", "x.zarr"])
def test_a_mudata_of_which_modalities_miss_cells_gets_its_clusters_back(tmp_path, fitted, store):
    _, views, _ = fitted
    parts = {"rna": np.arange(100), "atac": np.arange(20, ROWS)}
    made = mudata.MuData(
        {
            name: anndata.AnnData(scipy.sparse.csr_matrix(views[name][rows]), pd.DataFrame(index=NAMES[rows]))
            for name, rows in parts.items()
        }
    )
    (made.write if store == "x.h5mu" else made.write_zarr)(tmp_path / store)
    views = [f"--view={name}={tmp_path / store}:{name}" for name in parts]
    run("import", tmp_path / "a.zarr", *views)
    told = json.loads(run("fit", tmp_path / "a.zarr", "-k", K, "--json").stdout)
    assert told["method"] == "imvc-cbg"
    run("export", tmp_path / "a.zarr", "--to", tmp_path / store)
    found = (mudata.read if store == "x.h5mu" else mudata.read_zarr)(tmp_path / store)
    archive = open_archive(tmp_path / "a.zarr")
    batch = archive.batches[0]
    labels = ZarrRows(archive.path, complete_run(archive, None).folder).read("labels", batch, 0)
    ids = [line.split(",")[0] for line in _csv(tmp_path)]
    assert found.obs["aweigh"].astype(int).loc[ids].tolist() == labels.tolist()
    np.testing.assert_array_equal(found["rna"].X.toarray(), made["rna"].X.toarray())


def _csv(folder):
    run("export", folder / "a.zarr", "--to", folder / "x.csv")
    return (folder / "x.csv").read_text().splitlines()[1:]


@pytest.mark.parametrize(
    ("name", "words", "code"),
    [
        ("x.xls", ".parquet", 2),
        ("absent.h5ad", "give the file that was imported", 2),
        ("folder.zarr", "name of a new folder", 2),
        ("folder.csv", "name of a file", 2),
        ("no/folder/x.csv", "", 6),
        ("garbage.h5ad", "garbage.h5ad", 3),
        ("strangers.h5ad", "named like 'a', the samples like 'cell-000'", 3),
        ("twice.h5ad", "names cells twice, the first 'cell-000'", 3),
    ],
)
def test_what_cannot_be_written_is_refused_and_nothing_changes(tmp_path, fitted, name, words, code):
    archive, views, _ = fitted
    (tmp_path / "folder.zarr").mkdir()
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "garbage.h5ad").write_bytes(b"no HDF5 at all")
    for file, index in (("strangers.h5ad", ["a", "b"]), ("twice.h5ad", ["cell-000", "cell-000"])):
        anndata.AnnData(views["rna"][:2], pd.DataFrame(index=index)).write_h5ad(tmp_path / file)
    before = {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}
    assert words in run("export", archive, "--to", tmp_path / name, code=code).stderr
    assert {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")} == before
