"""Views that stay in their own Zarr stores: the same clusters as a copy, and no change to them goes unseen."""

import os
import shutil

import numpy as np
import pytest
import zarr
from arrays import blobs
from click.testing import CliRunner
from zarr.codecs import Crc32cCodec

from aweigh.io.archive import BatchReader, open_archive
from aweigh.io.links import linked_block_rows
from aweigh.io.rows import ZarrRows
from aweigh.io.runs import RECORD, complete_run
from aweigh.pipeline import cluster, results
from aweigh.pipeline.cli import main

ROWS = 200


@pytest.fixture(scope="module")
def scheduler():
    with cluster.embedded(1, cluster.parse_memory("2GiB"), processes=False, threads=2) as client:
        yield client.scheduler.address


def run(*words, code=0):
    done = CliRunner().invoke(main, [*map(str, words)])
    assert done.exit_code == code, done.output
    return done


@pytest.fixture
def stores(tmp_path):
    """Two arrays of other chunks, in formats 2 and 3, one of which misses rows."""
    (a, b), _ = blobs(ROWS, (8, 5), 3, dtype=np.float32)
    a[30:90] = np.nan
    chunks = {"a": ((20, 3), 2, None), "b": ((30, 5), 3, [Crc32cCodec()])}
    for (name, (chunk, version, codecs)), X in zip(chunks.items(), (a, b), strict=True):
        options = {} if codecs is None else {"compressors": codecs}
        group = zarr.create_group(tmp_path / f"{name}-data.zarr", zarr_format=version)
        group.create_array("x", shape=X.shape, chunks=chunk, dtype=X.dtype, **options)[:] = X
    return tmp_path, {"a": a, "b": b}


def imported(folder, archive, *words, code=0):
    views = [f"--view={name}={folder / name}-data.zarr:x" for name in "ab"]
    return run("import", folder / archive, *views, *words, code=code)


def everything(archive, batch):
    reader = BatchReader(archive.path, batch)
    return {v.name: np.concatenate([reader.view(v.name, block) for block in range(batch.blocks)]) for v in batch.views}


def test_a_linked_batch_reads_as_a_copy(stores):
    folder, X = stores
    told = imported(folder, "linked.zarr", "--link")
    assert "linked without checksums: a;" in told.stderr
    archive = open_archive(folder / "linked.zarr")
    batch = archive.batches[0]
    assert batch.block_rows % 60 == 0 or batch.block_rows == ROWS
    assert batch.missing == {"a": 60, "b": 0}
    for name, values in everything(archive, batch).items():
        np.testing.assert_array_equal(values, np.nan_to_num(X[name]))
    assert not list((folder / "linked.zarr" / "batches").rglob("a/*"))
    run("verify", folder / "linked.zarr")
    data = results.open_dataset(archive, batch.name)
    assert data["a"].dims == ("sample", "feature_a")
    np.testing.assert_array_equal(data["a"].values, X["a"])


def test_a_fit_of_linked_views_gives_the_labels_of_a_copy(stores, scheduler):
    folder, _ = stores
    imported(folder, "linked.zarr", "--link")
    imported(folder, "copied.zarr")
    labels = []
    for name in ("linked.zarr", "copied.zarr"):
        run("fit", folder / name, "-k", 3, "--scheduler", scheduler)
        archive = open_archive(folder / name)
        done = complete_run(archive, None)
        assert done.read_json(RECORD)["linked_without_checksums"] == (["a"] if name == "linked.zarr" else [])
        rows = ZarrRows(archive.path, done.folder)
        labels.append(np.concatenate([rows.read("labels", b, i) for b in archive.batches for i in range(b.blocks)]))
    np.testing.assert_array_equal(*labels)


def overwritten(path):
    zarr.open_array(path, mode="r+")[150] = 0


def garbled(path):
    (path / "1.1").write_bytes(b"garbage")


def removed(path):
    os.unlink(path / "1.1")


def touched(path):
    os.utime(path / "1.1", ns=(1, 1))


def gone(path):
    shutil.rmtree(path)


@pytest.mark.parametrize("change", [overwritten, garbled, removed, touched, gone])
def test_a_change_of_linked_data_is_an_error(stores, scheduler, change):
    folder, _ = stores
    imported(folder, "a.zarr", "--link", "--batch", "one")
    run("fit", folder / "a.zarr", "-k", 3, "--scheduler", scheduler)
    change(folder / "a-data.zarr" / "x")
    failed = run("fit", folder / "a.zarr", "-k", 3, "--scheduler", scheduler, "--run", "two", code=6)
    assert "view 'a'" in failed.stderr
    assert "linked" in failed.stderr
    assert "a-data.zarr:x" in run("verify", folder / "a.zarr", code=6).output


def test_another_shape_of_linked_data_is_an_error(stores):
    folder, _ = stores
    imported(folder, "a.zarr", "--link")
    zarr.open_array(folder / "a-data.zarr" / "x", mode="r+").resize((ROWS + 20, 8))
    assert "'a'" in run("fit", folder / "a.zarr", "-k", 3, code=6).output


def test_what_cannot_be_linked_is_refused(stores):
    folder, X = stores
    np.save(folder / "c.npy", X["b"])
    refused = run("import", folder / "n.zarr", f"--view=c={folder}/c.npy", "--link", code=2)
    assert "view 'c'" in refused.stderr
    assert not (folder / "n.zarr" / "batches" / "batch-0001").exists()


def test_blocks_hold_whole_chunks():
    assert linked_block_rows({"a": 20, "b": 30}, 1000, 8, 100) == 60
    assert linked_block_rows({"a": 20, "b": 30}, 1000, 8, 130) == 120
    assert linked_block_rows({"a": 5000, "b": 30}, 1000, 8, 100) == 1000
    with pytest.raises(Exception, match=r"a 1001, b 1000 rows.*1001000 rows"):
        linked_block_rows({"a": 1001, "b": 1000}, 10**7, 4096, 100)
