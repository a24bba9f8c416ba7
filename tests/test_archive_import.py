"""Importing: what is refused and in which words, and that a refused import leaves the archive as it was."""

import errno
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest
from archive_helpers import Rows, counts, noise, with_gaps

from aweigh.io import local
from aweigh.io.archive import BatchReader, check_name, create_archive, open_archive
from aweigh.io.batches import import_batch
from aweigh.io.errors import BusyError, DataError, StorageError, UsageError
from aweigh.io.location import open_location
from aweigh.io.manifest import MANIFEST, Manifest, decode, encode
from aweigh.io.verify import verify


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "archive.zarr")


@pytest.fixture
def archive(path):
    """An archive with one batch: a (20, 3) float32 and b (20, 2) float64, integer labels and ids 0 to 19."""
    import_batch(path, {"a": Rows(noise(20, 3)), "b": Rows(counts(20, 2, np.float64))}, labels=np.arange(20))
    return path


def spoiled(row, column, value, rows=20, columns=3):
    values = noise(rows, columns)
    values[row, column] = value
    return values


A, B = noise(20, 3), noise(20, 2, np.float64)
NOWHERE = [np.where(np.arange(20)[:, None] % 5 == 4, np.nan, values) for values in (A, B)]
REFUSED = {
    "rows": ({"a": A, "b": B[:19]}, {}, r"different numbers of rows: a 20, b 19"),
    "no view": ({}, {}, r"no view was given"),
    "empty": ({"a": A[:0]}, {}, r"'a' has shape \(0, 3\)"),
    "dtype": ({"a": counts(20, 3, np.float16)}, {}, r"'a' has dtype float16; float32 and float64"),
    "width": ({"a": noise(20, 4)}, {}, r"'a' has shape \(20, 4\).* fixed \(rows, 3\)"),
    "float64": ({"a": A.astype(np.float64)}, {}, r"'a' is float64.*fixed float32.*lost"),
    "unknown view": ({"a": A, "c": A}, {}, r"'c' is not in .*fixed the views a, b"),
    "reserved": ({"sample": A}, {}, r"'sample' cannot name a view.*reserved"),
    "view name": ({"a/b": A}, {}, r"'a/b' cannot name a view: names have 1 to 64"),
    "batch name": ({"a": A}, {"name": "../x"}, r"'../x' cannot name a batch"),
    "taken": ({"a": A}, {"name": "batch-0001"}, r"a batch 'batch-0001' in .* already, and batches are never"),
    "infinite": (
        {"a": spoiled([3, 7], [1, 0], np.inf)},
        {},
        r"2 infinite values, the first in row 3, column 1",
    ),
    "minus": ({"a": spoiled(19, 2, -np.inf)}, {}, r"1 infinite values, the first in row 19, column 2"),
    "ragged": (
        {"a": spoiled([9, 12], [2, 1], np.nan)},
        {},
        r"2 rows in which .* first in row 9, column 2(?s:.*)Fill",
    ),
    "both": ({"a": spoiled([2, 9], 1, [np.inf, np.nan])}, {}, r"1 infinite.*row 2(?s:.*)1 rows .* row 9"),
    "nowhere": (
        {"a": NOWHERE[0], "b": NOWHERE[1]},
        {},
        r"4 samples are missing .*first in row 4 .*with id 24",
    ),
    "all nowhere": (
        {"a": with_gaps(A, slice(None))},
        {},
        r"20 samples are missing .* every view, the first in row 0",
    ),
    "ids length": ({"a": A}, {"ids": np.arange(19)}, r"ids of shape \(19,\) were given for 20 rows"),
    "ids shape": ({"a": A}, {"ids": np.ones((20, 1), int)}, r"ids of shape \(20, 1\) were given"),
    "ids dtype": ({"a": A}, {"ids": np.arange(20.0)}, r"ids of dtype float64 .* integers and strings"),
    "ids kind": (
        {"a": A},
        {"ids": np.arange(20).astype(str)},
        r"ids of this batch are strings.*earlier.*integers",
    ),
    "ids unicode": ({"a": A}, {"ids": ["\ud800"] * 20}, r"ids hold text that is not valid Unicode"),
    "ids large": (
        {"a": A},
        {"ids": np.full(20, 2**63, np.uint64)},
        r"ids up to 9223372036854775808 do not fit",
    ),
    "ids twice": (
        {"a": A},
        {"ids": [*range(90, 99), 95, 91, *range(50, 59)]},
        r"id 95 appears in row 5 and again in row 9, .*\(2 repeated in all\)",
    ),
    "ids known": (
        {"a": A},
        {"ids": np.arange(15, 35)},
        r"id 15 is in the archive already \(batch 'batch-0001', row 15\)",
    ),
    "labels length": ({"a": A}, {"labels": [1, 2]}, r"labels of shape \(2,\) were given for 20 rows"),
    "labels kind": ({"a": A}, {"labels": ["x"] * 20}, r"labels of this batch are strings"),
    "block_rows": ({"a": A}, {"block_rows": 0}, r"block_rows is 0; 1 to 89478485 are allowed"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(archive, case):
    views, options, message = REFUSED[case]
    before = sorted(name for name, _ in open_location(archive).sizes())
    with pytest.raises((DataError, UsageError), match=message) as caught:
        import_batch(archive, {name: Rows(values) for name, values in views.items()}, **{"block_rows": 4, **options})
    assert caught.value.hint
    assert sorted(name for name, _ in open_location(archive).sizes()) == before
    assert verify(archive).ok


def test_string_ids_are_unique_over_batches(path):
    import_batch(path, {"a": Rows(noise(4, 2))}, ids=["d", "b", "ü", "c"], block_rows=2)
    with pytest.raises(DataError, match=r"id 'ü' is in the archive already \(batch 'batch-0001', row 2\)"):
        import_batch(path, {"a": Rows(noise(3, 2))}, ids=["x", "ü", "y"])
    with pytest.raises(DataError, match=r"id 'x' appears in row 0 and again in row 2"):
        import_batch(path, {"a": Rows(noise(3, 2))}, ids=["x", "ü", "x"])
    with pytest.raises(DataError, match=r"ids of this batch are integers, .* earlier batches are strings"):
        import_batch(path, {"a": Rows(noise(3, 2))})
    assert import_batch(path, {"a": Rows(noise(2, 2))}, ids=["a", "z"]).name == "batch-0002"


def test_default_ids_that_are_taken(path):
    import_batch(path, {"a": Rows(noise(3, 2))}, ids=[7, 5, 6])
    import_batch(path, {"a": Rows(noise(1, 2))})
    with pytest.raises(DataError, match=r"id 5 is in the archive already"):
        import_batch(path, {"a": Rows(noise(2, 2))})


def test_a_first_batch_needs_every_view(path):
    with pytest.raises(DataError, match=r"'b' is missing .* every row of the archive's first batch"):
        import_batch(path, {"a": Rows(A), "b": Rows(with_gaps(B, slice(None)))})


@pytest.mark.parametrize("real", [0, 17, 25])
def test_sources_that_do_not_keep_their_word(archive, real):
    source = Rows(noise(real, 3), piece=3)
    source.rows = 20
    with pytest.raises(DataError, match=rf"announced \(20, 3\) float32 and yielded {min(real, 21)} rows"):
        import_batch(archive, {"a": source, "b": Rows(B)}, block_rows=4)
    source = Rows(noise(20, 3))
    source.dtype = np.dtype(np.float64)
    with pytest.raises(DataError, match=r"yielded a block of \(16, 3\) float32 after 0 rows"):
        import_batch(archive.replace("archive", "other"), {"a": source}, block_rows=16)


def test_what_is_no_archive(tmp_path, archive):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "today.txt").write_text("words")
    (tmp_path / "group").mkdir()
    (tmp_path / "group" / "zarr.json").write_text("{}")
    for name, holds in {"notes": "today.txt", "group": "zarr.json"}.items():
        for make in (create_archive, lambda at: import_batch(at, {"a": Rows(A)})):
            with pytest.raises(DataError, match=rf"is no archive and is not empty \(it holds {holds}\)"):
                make(tmp_path / name)
    with pytest.raises(DataError, match=r"notes is no archive: it has no manifest.json\n.*aweigh import"):
        open_archive(tmp_path / "notes")
    with pytest.raises(DataError, match=r"nowhere does not exist"):
        open_archive(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"today.txt is a file; an archive is a folder"):
        open_archive(tmp_path / "notes" / "today.txt")
    with pytest.raises(DataError, match=r"is not empty|is an archive already"):
        create_archive(archive)
    with pytest.raises(DataError, match=r"there is no batch 'x' in .*its batches are: batch-0001"):
        open_archive(archive).batch("x")
    handle = BatchReader(archive, open_archive(archive).batches[0])
    with pytest.raises(DataError, match=r"there is no view 'x' in .*views are a, b"):
        handle.view("x", 0)
    with pytest.raises(IndexError, match=r"block 1 of batch 'batch-0001', which has blocks 0 to 0"):
        handle.view("a", 1)
    with pytest.raises(IndexError, match=r"rows 5 to 21 of batch"):
        handle.rows("a", 5, 21)
    unlabelled = import_batch(archive, {"a": Rows(A)})
    with pytest.raises(DataError, match=r"batch 'batch-0002' .* has no labels"):
        BatchReader(archive, unlabelled).labels(0, 1)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("gs://bucket/archive.zarr", r"gs://bucket/archive.zarr is not supported.*a path or a file:// URL"),
        ("s3://host:9000/archive.zarr", r"is no s3:// URL: s3://BUCKET/PREFIX is, without a port"),
        ("s3://bucket/a/../b", r"is no s3:// URL"),
        ("s3://me:secret@bucket/x", r"s3:// URL with credentials"),
        ("https://host/x?token=secret", r"https:// URL with credentials or parameters"),
    ],
)
def test_urls(url, message):
    with pytest.raises(UsageError, match=message) as caught:
        open_archive(url)
    assert "secret" not in str(caught.value)


def test_names():
    for name in ("a", "0", "A.b-c_d", "x" * 64):
        assert check_name("run", name) == name
    for name in ("", ".a", "-a", "a b", "a/b", "x" * 65, "a\n", "é", 3, "zarr.json", "x.partial"):
        with pytest.raises(UsageError, match="cannot name a run"):
            check_name("run", name)


def test_manifests_that_cannot_be_read(archive):
    at = open_location(archive)
    data = at.read(MANIFEST)
    for bad in (
        data[:-9],
        data.replace(b'"rows":20', b'"rows":21'),
        b"",
        b"[]",
        b"{}",
        data[:50] + b"\xff" + data[51:],
    ):
        at.write(MANIFEST, bad)
        with pytest.raises(StorageError, match=r"archive.zarr/manifest.json is torn or was edited by hand"):
            open_archive(archive)
    newer = encode(Manifest()).replace(b'"schema":1,"needs":"aweigh 0.1"', b'"schema":2,"needs":"aweigh 3.5"')
    with pytest.raises(DataError, match=r"has schema 2, and this .* up to 1\n.*aweigh 3.5 or later"):
        decode(newer, "manifest.json")


def fail_at(monkeypatch, owner, name, number, code):
    """Make the number-th call of owner.name raise an OSError."""
    real, calls = getattr(owner, name), []

    def failing(*arguments, **options):
        calls.append(arguments)
        if len(calls) == number:
            raise OSError(code, os.strerror(code))
        return real(*arguments, **options)

    monkeypatch.setattr(owner, name, failing)
    return calls


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (errno.ENOSPC, "disk full while writing"),
        (errno.EDQUOT, "disk full while writing"),
        (errno.EACCES, "no permission while writing"),
        (errno.EROFS, "read-only file system while writing"),
        (errno.EIO, "failed while writing"),
    ],
)
@pytest.mark.parametrize("number", [1, 4, 9])
def test_a_disk_that_refuses_a_chunk(archive, monkeypatch, code, message, number):
    before = open_archive(archive)
    with monkeypatch.context() as patch:
        fail_at(patch, pathlib.Path, "replace", number, code)
        with pytest.raises(StorageError, match=message):
            import_batch(archive, {"a": Rows(A)}, block_rows=5)
    assert open_archive(archive) == before
    assert verify(archive).ok
    import_batch(archive, {"a": Rows(A)}, block_rows=5)


def test_zarr_writes_nothing_after_the_clean_up(archive, monkeypatch):
    """zarr writes an array's metadata and looks for its parents' at the same time; where the write fails, it may
    look after the clean-up, and make the parents anew."""
    real = pathlib.Path.is_file

    def slow(self):
        time.sleep(0.2)
        return real(self)

    with monkeypatch.context() as patch:
        patch.setattr(pathlib.Path, "is_file", slow)
        fail_at(patch, pathlib.Path, "replace", 2, errno.ENOSPC)
        with pytest.raises(StorageError, match="disk full"):
            import_batch(archive, {"a": Rows(A)}, block_rows=5)
        time.sleep(0.4)
    assert verify(archive).ok


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_is_full_when_the_manifest_is_due(archive, monkeypatch, call):
    before = open_archive(archive)
    with monkeypatch.context() as patch:
        calls = fail_at(patch, local.os, call, -1, errno.ENOSPC)
        import_batch(archive, {"a": Rows(A)}, name="trial")
    number = len(calls) - (call == "fsync")
    before = open_archive(archive)
    with monkeypatch.context() as patch:
        fail_at(patch, local.os, call, number, errno.ENOSPC)
        with pytest.raises(StorageError, match=r"disk full while writing .*manifest.json"):
            import_batch(archive, {"a": Rows(A)}, name="other")
    assert open_archive(archive) == before
    assert verify(archive).ok


def test_a_commit_that_was_interrupted_too_late_stays(archive, monkeypatch):
    def interrupted(folder):
        if folder == archive and len(open_archive(archive).batches) == 2:
            raise KeyboardInterrupt
        sync(folder)

    sync = local._sync
    monkeypatch.setattr(local, "_sync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        import_batch(archive, {"a": Rows(A)})
    assert len(open_archive(archive).batches) == 2
    assert verify(archive).ok


def test_errors_of_the_caller_pass_and_leave_nothing(archive):
    def stop(done, rows):
        raise RuntimeError(f"{done} of {rows}")

    with pytest.raises(RuntimeError, match="5 of 20"):
        import_batch(archive, {"a": Rows(A)}, block_rows=5, progress=stop)
    assert verify(archive).ok
    assert len(open_archive(archive).batches) == 1


def test_progress_and_the_lock(archive):
    seen = []

    def look(done, rows):
        seen.append((done, rows))
        with pytest.raises(BusyError, match=rf"import of batch b, process {os.getpid()} on .*, since \d") as caught:
            import_batch(archive, {"a": Rows(A)})
        assert caught.value.exit_code == 75
        with pytest.raises(BusyError, match=r"archive.zarr is locked by"):
            verify(archive, repair=True)

    import_batch(archive, {"a": Rows(A)}, name="b", block_rows=8, progress=look)
    assert seen == [(8, 20), (16, 20), (20, 20)]


def test_locks_without_a_signature(tmp_path):
    at = open_location(tmp_path)
    with at.lock("l", "x"):
        (tmp_path / "l").write_bytes(b"\xff{")
        with pytest.raises(BusyError, match="another process, which has only just begun"), at.lock("l", "y"):
            pass
    with at.lock("l", "z"):
        pass


def test_names_stay_inside(tmp_path):
    at = open_location(tmp_path / "inside")
    for name in ("../x", "a/../x", "/etc", "a//b", "."):
        with pytest.raises(ValueError, match="is no relative name"):
            at.read(name)
    with pytest.raises(ValueError, match="cannot be deleted"):
        at.delete("")
    at.write("deep/er/x", b"1")
    assert (at.read("deep/er/x"), at.read("deep/er/x/y"), at.read("none")) == (b"1", None, None)
    assert (at.list("deep"), at.list("none"), list(at.sizes("deep"))) == (["er"], [], [("deep/er/x", 1)])
    assert (list(at.sizes("none")), at.exists("none"), at.exists("deep")) == ([], False, True)
    at.delete("deep")
    at.delete("deep")
    assert at.list() == []


MEMORY = """
import sys
from archive_helpers import Stream
from aweigh.io.batches import import_batch
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
before = peak()
import_batch(sys.argv[1], {"a": Stream(1_000_000, 64), "b": Stream(1_000_000, 32)})
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow_with_the_batch(path):
    where = {"PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *filter(None, sys.path)])}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", MEMORY, path],
        env=os.environ | where,
        cwd=os.path.dirname(path),
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(done.stdout) < 180, "MiB for a batch of 366 MiB in blocks of 12"
