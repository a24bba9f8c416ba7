"""Archives: what is imported comes back, for our reader, plain zarr and xarray."""

import pickle

import numpy as np
import pytest
import xarray
import zarr
from archive_helpers import Rows, counts, noise, with_gaps

from aweigh.io import reader, verify, writer
from aweigh.io.archive import Batch, BatchReader, create_archive, open_archive
from aweigh.io.batches import block_rows_for, import_batch
from aweigh.io.manifest import Ids, Manifest, View, decode, encode

INTS = np.arange(100, 0, -1)
TEXTS = np.array([f"é{i}" * (i % 3) or f"row {i}" for i in range(100)])


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "archive.zarr")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("block_rows", [7, 64, None])
@pytest.mark.parametrize("column", [INTS, TEXTS, INTS.astype(np.uint8), TEXTS.astype(object)])
def test_round_trip(path, dtype, block_rows, column):
    gaps = [0, 3, *range(20, 64), 99]
    a, b = noise(100, 5, dtype), counts(100, 3, dtype)
    views = {"a": Rows(a, piece=13), "b": Rows(with_gaps(b, gaps))}
    batch = import_batch(path, views, ids=column, labels=column[::-1], block_rows=block_rows)
    assert open_archive(path).batches == (batch,)
    assert (batch.missing, batch.block_rows) == ({"a": 0, "b": len(gaps)}, block_rows or 100)
    b[gaps] = 0
    handle = BatchReader(path, batch)
    blocks = [batch.block_range(block) for block in range(batch.blocks)]
    assert [stop for _, stop in blocks[:-1]] == [start for start, _ in blocks[1:]]
    for block, (start, stop) in enumerate(blocks):
        for name, values in {"a": a, "b": b}.items():
            got = handle.view(name, block)
            assert got.dtype == dtype
            assert got.flags.c_contiguous
            assert got.dtype.isnative
            np.testing.assert_array_equal(got, values[start:stop])
        expected = [[True, row not in gaps] for row in range(start, stop)]
        np.testing.assert_array_equal(handle.present(block), expected)
    np.testing.assert_array_equal(handle.rows("b", 5, 93), b[5:93])
    assert handle.ids(3, 80).tolist() == column[3:80].tolist()
    assert handle.labels(0, 100).tolist() == column[::-1].tolist()
    assert handle.ids(4, 4).shape == (0,)
    assert verify.verify(path).ok


def test_blocks_of_one_row(path):
    batch = import_batch(path, {"a": Rows(with_gaps(noise(6, 3), [2])), "b": Rows(noise(6, 1))}, block_rows=1)
    assert (batch.blocks, batch.absent["a"]) == (6, ((2, 2),))
    np.testing.assert_array_equal(BatchReader(path, batch).view("a", 5), noise(6, 3)[5:])


def test_wholly_missing_blocks_are_neither_stored_nor_read(path, tmp_path):
    b = with_gaps(counts(100, 3), [*range(20), *range(25, 30), *range(60, 100)])
    batch = import_batch(path, {"a": Rows(noise(100, 5)), "b": Rows(b)}, block_rows=10)
    assert batch.absent == {"a": (), "b": ((0, 1), (6, 9))}
    assert len(list((tmp_path / "archive.zarr/batches/batch-0001/b/c").iterdir())) == 4
    handle = BatchReader(path, batch)
    assert not handle.view("b", 9).any()
    assert handle.view("b", 9).shape == (10, 3)
    assert handle.bytes_read == {}


def test_views_missing_from_later_batches(path):
    a, b = noise(20, 2), counts(20, 3)
    import_batch(path, {"a": Rows(a), "b": Rows(b)})
    without = import_batch(path, {"b": Rows(b)}, block_rows=8)
    empty = import_batch(path, {"b": Rows(b), "a": Rows(with_gaps(a, slice(None)))}, block_rows=8)
    for batch in (without, empty):
        assert batch.missing == {"a": 20, "b": 0}
        assert batch.absent == {"a": ((0, 2),), "b": ()}
        handle = BatchReader(path, batch)
        assert not handle.rows("a", 0, 20).any()
        np.testing.assert_array_equal(handle.present(1), [[False, True]] * 8)
        assert not zarr.open_array(path, path=f"{batch.path}/a", mode="r")[:].any()
    archive = open_archive(path)
    assert [batch.start for batch in archive.batches] == [0, 20, 40]
    assert BatchReader(path, empty).ids(0, 2).tolist() == [40, 41]
    assert verify.verify(path).ok


def test_float32_goes_exactly_into_a_float64_view(path):
    import_batch(path, {"a": Rows(noise(20, 2, np.float64))})
    batch = import_batch(path, {"a": Rows(noise(20, 2))})
    got = BatchReader(path, batch).view("a", 0)
    assert got.dtype == np.float64
    np.testing.assert_array_equal(got, noise(20, 2).astype(np.float64))


def test_plain_zarr_reads_it_and_codecs_fit_the_data(path):
    import_batch(path, {"a": Rows(noise(2000, 5)), "b": Rows(counts(2000, 3))}, ids=np.arange(2000).astype(str))
    group = zarr.open_group(path, path="batches/batch-0001", mode="r")
    np.testing.assert_array_equal(group["a"][:], noise(2000, 5))
    assert group["sample"][:3].tolist() == ["0", "1", "2"]
    assert zarr.open_group(path, mode="r").attrs["aweigh"] == {"schema": 1}
    for name, codecs in {"a": ["crc32c"], "b": ["blosc", "crc32c"], "sample": ["crc32c"]}.items():
        assert [codec.to_dict()["name"] for codec in group[name].compressors] == codecs
        assert not group[name].fill_value
    assert group["b"].compressors[0].to_dict()["configuration"]["cname"] == "lz4"
    assert group["b"].compressors[0].to_dict()["configuration"]["shuffle"] == "shuffle"
    assert group["checksum"].attrs["arrays"] == ["a", "b", "present", "sample"]


@pytest.mark.parametrize("ids", [None, np.arange(50).astype(str)])
def test_xarray_reads_it(path, ids):
    labels = np.array(["x", "y"] * 25)
    views = {"a": Rows(noise(50, 3)), "b": Rows(counts(50, 3)), "feature_a": Rows(counts(50, 2))}
    import_batch(path, views, ids=ids, labels=labels, block_rows=8)
    with xarray.open_zarr(path, group="batches/batch-0001", consolidated=False) as data:
        assert data["a"].dims == ("sample", "feature_a")
        assert data["present"].dims == ("sample", "view")
        np.testing.assert_array_equal(data["a"], noise(50, 3))
        one = data.sel(sample=7 if ids is None else "7")
        np.testing.assert_array_equal(one["b"], counts(50, 3)[7])
        assert data["label"].values.tolist() == labels.tolist()


def test_handles_are_small_values(path):
    batch = import_batch(path, {"a": Rows(noise(100, 5))}, labels=np.arange(100), block_rows=30)
    archive = open_archive(path)
    assert repr(batch) == "<Batch 'batch-0001': 100 rows from 0, 4 blocks of 30>"
    assert "100 rows in 1 batches, views (a: 5 float32)>" in repr(archive)
    assert pickle.loads(pickle.dumps(batch)) == batch == archive.batch("batch-0001")
    assert len({batch, archive.batches[0]}) == 1
    assert batch.has_labels
    handle = pickle.loads(pickle.dumps(BatchReader(path, batch)))
    assert "batch-0001" in repr(handle)
    np.testing.assert_array_equal(handle.view("a", 3), noise(100, 5)[90:])
    assert handle.bytes_read == {"checksum": 4 * 4 * 4, "a": 200}
    assert handle.stored_bytes == {"checksum": 68, "a": 30 * 20 + 4}


def test_a_snapshot_does_not_move(path):
    create_archive(path)
    before = open_archive(path)
    import_batch(path, {"a": Rows(noise(10, 2))}, name="monday")
    import_batch(path, {"a": Rows(noise(10, 2))})
    import_batch(path, {"a": Rows(noise(10, 2))}, name="batch-0010")
    import_batch(path, {"a": Rows(noise(10, 2))})
    assert (before.rows, before.batches) == (0, ())
    names = [batch.name for batch in open_archive(f"file://{path}").batches]
    assert names == ["monday", "batch-0001", "batch-0010", "batch-0011"]


def test_many_checksums_lie_in_several_chunks(path, monkeypatch):
    for module in (reader, writer, verify):
        monkeypatch.setattr(module, "CHECKSUM_ROWS", 4)
    batch = import_batch(path, {"a": Rows(noise(30, 2))}, block_rows=3)
    handle = BatchReader(path, batch)
    np.testing.assert_array_equal(handle.rows("a", 14, 28), noise(30, 2)[14:28])
    assert handle.checksums().shape == (10, 3)
    assert verify.verify(path).ok


def test_the_digest_tells_contents_apart(tmp_path):
    def digest(folder, values, **options):
        return import_batch(tmp_path / folder, {"a": Rows(values)}, **options).digest

    same = [digest("1", noise(20, 2)), digest("2", noise(20, 2), name="other")]
    others = [digest("3", noise(20, 2, seed=1)), digest("4", noise(20, 2), ids=np.arange(1, 21))]
    assert same[0] == same[1]
    assert len({same[0], *others}) == 3


def test_the_manifest_stays_small():
    view = View("a", 8, "float32")
    batch = Batch("b", 10**8, 0, 1000, (view,), Ids("int", 0, 10**8), None, "0" * 64, {"a": 0}, {"a": ((5, 99999),)})
    data = encode(Manifest((view,), (batch,)))
    assert len(data) < 600
    assert decode(data, "here").batches == (batch,)
    assert [batch.is_absent("a", block) for block in (0, 4, 5, 6, 99999)] == [False, False, True, True, True]


def test_blocks_take_8_to_16_mib():
    for row_bytes in [
        4,
        12,
        832,
        3328,
        50_000,
        131_072,
        262_145,
        500_000,
        3_000_000,
        2**24,
        2**24 + 1,
        2**30,
    ]:
        rows = block_rows_for(row_bytes)
        assert rows == 1 or 2**23 <= rows * row_bytes <= 2**24
        assert rows % 64 == 0 or row_bytes > 2**24 / 64
    assert block_rows_for(12 * 2**20) == 1
    assert block_rows_for(3 * 2**12) == 1024
    assert block_rows_for(2**12) == 3072
