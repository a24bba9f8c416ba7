"""Damage done to stored files: every kind is refused when read, and found by verify."""

import shutil

import numpy as np
import pytest
import zarr
from archive_helpers import Rows, counts, noise, with_gaps

from aweigh.io.archive import BatchReader, open_archive
from aweigh.io.batches import import_batch
from aweigh.io.errors import StorageError
from aweigh.io.verify import verify

ARRAYS = ("raw", "packed", "present", "sample", "label")
GROUP = "batches/batch-0001"


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """An archive of two batches, five blocks of 20 rows each; view `packed` lacks its last two blocks."""
    path = tmp_path_factory.mktemp("original") / "archive.zarr"
    for seed in (1, 2):
        packed = with_gaps(counts(100, 40, seed=seed), slice(60, None))
        views = {"raw": Rows(noise(100, 6, seed=seed)), "packed": Rows(packed)}
        ids = np.array([f"{seed}-{row}" for row in range(100)])
        import_batch(path, views, ids=ids, labels=np.arange(100) * seed, block_rows=20)
    assert verify(path).ok
    return path


@pytest.fixture
def path(original, tmp_path):
    return shutil.copytree(original, tmp_path / "archive.zarr")


def chunk(path, array, block, batch="batch-0001"):
    return path / "batches" / batch / array / "c" / (f"{block}" if array in ("sample", "label") else f"{block}/0")


def read(path, array, block=1):
    handle = BatchReader(str(path), open_archive(path).batches[0])
    start, stop = handle.batch.block_range(block)
    if array == "present":
        return handle.present(block)
    if array == "sample":
        return handle.ids(start, stop)
    if array == "label":
        return handle.labels(start, stop)
    return handle.view(array, block)


def check(path, array, kind, block=1):
    """Reading raises and says where; all else still reads; verify finds this one problem."""
    what = f"array '{array}'" if array in ARRAYS[2:] else f"view '{array}'"
    message = rf"chunk {block} of {what} in batch 'batch-0001' of archive {path} is {kind}: "
    with pytest.raises(StorageError, match=message) as caught:
        read(path, array, block)
    assert caught.value.exit_code == 6
    assert "aweigh verify" in caught.value.hint
    for other in ARRAYS:
        read(path, other, 0)
        if other != array:
            read(path, other, block)
    problems = verify(path, repair=True).problems
    assert [(each.kind, each.batch, each.view, each.chunk) for each in problems] == [(kind, "batch-0001", array, block)]
    assert not problems[0].repaired


@pytest.mark.parametrize("array", ARRAYS)
def test_a_chunk_deleted(path, array):
    chunk(path, array, 1).unlink()
    check(path, array, "missing")


@pytest.mark.parametrize("array", ARRAYS)
def test_chunks_truncated(path, array):
    file = chunk(path, array, 1)
    data = file.read_bytes()
    for keep in (0, 3, 4, len(data) // 2, len(data) - 1):
        file.write_bytes(data[:keep])
        check(path, array, "torn")
    file.write_bytes(data + b"\0")
    check(path, array, "torn")


@pytest.mark.parametrize("array", ARRAYS)
def test_a_byte_flipped(path, array):
    file = chunk(path, array, 1)
    data = file.read_bytes()
    for at in (0, 5, len(data) // 2, len(data) - 5, len(data) - 4, len(data) - 1):
        file.write_bytes(data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :])
        check(path, array, "torn")


@pytest.mark.parametrize("array", ARRAYS)
def test_a_valid_chunk_pasted_over_another(path, array):
    if array != "present":
        shutil.copy(chunk(path, array, 2), chunk(path, array, 1))
        check(path, array, "foreign")
        shutil.copy(chunk(path, array, 1, "batch-0002"), chunk(path, array, 1))
    else:
        shutil.copy(chunk(path, array, 4), chunk(path, array, 1))
    check(path, array, "foreign")


def test_plain_zarr_sees_torn_chunks_too(path):
    for array in ("raw", "packed"):
        file = chunk(path, array, 1)
        file.write_bytes(file.read_bytes()[:-1] + b"?")
        with pytest.raises(ValueError, match="checksum"):
            zarr.open_array(path, path=f"{GROUP}/{array}", mode="r")[:]


def test_a_chunk_where_there_should_be_none(path):
    chunk(path, "packed", 3).parent.mkdir(exist_ok=True)
    shutil.copy(chunk(path, "packed", 1), chunk(path, "packed", 3))
    assert not read(path, "packed", 3).any()
    assert [(each.kind, each.chunk) for each in verify(path).problems] == [("foreign", 3)]


@pytest.mark.parametrize("kind", ["missing", "torn", "foreign"])
def test_the_checksums_themselves(path, kind):
    file = path / GROUP / "checksum/c/0/0"
    if kind == "missing":
        file.unlink()
    elif kind == "torn":
        file.write_bytes(file.read_bytes()[:-2])
    else:
        shutil.copy(path / "batches/batch-0002/checksum/c/0/0", file)
    wrong = "chunk 1 of view 'raw'" if kind == "foreign" else "chunk 0 of array 'checksum'"
    with pytest.raises(StorageError, match=f"{wrong} in batch 'batch-0001' of .* is {kind}"):
        read(path, "raw")
    assert [(each.kind, each.view) for each in verify(path).problems] == [(kind, "checksum")]


@pytest.mark.parametrize("array", [*ARRAYS, "checksum"])
def test_metadata(path, array):
    file = path / GROUP / array / "zarr.json"
    data = file.read_bytes()
    what = "raw" if array == "checksum" else array
    file.unlink()
    with pytest.raises(StorageError, match=rf"the metadata of (view|array) '{array}' .* is missing"):
        read(path, what)
    assert {(each.kind, each.view) for each in verify(path).problems} == {("missing", array)}
    for torn in (data[:40], b"", b"\xff", b"[]", b'{"zarr_format": 3, "node_type": "group"}'):
        file.write_bytes(torn)
        with pytest.raises(StorageError, match=rf"the metadata of (view|array) '{array}' .* is torn"):
            read(path, what)
        assert {(each.kind, each.view) for each in verify(path).problems} == {("torn", array)}
    file.write_bytes(
        data.replace(b"100" if array != "checksum" else b"5,", b"101" if array != "checksum" else b"6,", 1)
    )
    with pytest.raises(StorageError, match=rf"'{array}' in batch .* has shape .* and the manifest says shape"):
        read(path, what)
    assert {(each.kind, each.view) for each in verify(path).problems} == {("foreign", array)}


def test_group_metadata(path):
    for name in ("zarr.json", "batches/zarr.json", f"{GROUP}/zarr.json"):
        data = (path / name).read_bytes()
        (path / name).write_bytes(data[:20])
        assert [(each.kind, each.name) for each in verify(path).problems] == [("torn", name)]
        (path / name).unlink()
        assert [(each.kind, each.name) for each in verify(path).problems] == [("missing", name)]
        (path / name).write_bytes(data)
    assert verify(path).ok


def test_a_batch_that_is_gone(path):
    shutil.rmtree(path / GROUP)
    with pytest.raises(StorageError, match="is missing"):
        read(path, "raw")
    report = verify(path, repair=True)
    assert {each.kind for each in report.problems} == {"missing"}
    assert not report.ok


def test_leftovers(path):
    (path / "batches/dead/raw").mkdir(parents=True)
    (path / "batches/dead/raw/0.1.partial").write_bytes(b"x")
    (path / "manifest.json.1.partial").write_bytes(b"x")
    (chunk(path, "raw", 1).parent / "0.2.partial").write_bytes(b"x")
    (path / "batches/zarr.3.partial").write_bytes(b"x")
    (path / "runs").mkdir()
    (path / "runs/other.partial").write_bytes(b"x")
    expected = [("uncommitted", "batches/dead"), ("partial", "manifest.json.1.partial")]
    expected += [("partial", f"{GROUP}/raw/c/1/0.2.partial"), ("partial", "batches/zarr.3.partial")]
    seen = []
    report = verify(path, progress=lambda done, total: seen.append((done, total)))
    assert sorted((each.kind, each.name) for each in report.problems) == sorted(expected)
    assert not report.ok
    assert seen[-1] == (50, 50) == (report.chunks, len(seen))
    report = verify(path, repair=True)
    assert len(report.problems) == 4
    assert report.ok
    assert verify(path).problems == []
    assert (path / "runs/other.partial").exists()
