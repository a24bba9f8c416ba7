"""Imports that are killed, run twice at once, meet a full disk, or are watched by readers."""

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from archive_helpers import Rows, counts, noise

from aweigh.io.archive import BatchReader, open_archive
from aweigh.io.batches import import_batch
from aweigh.io.errors import BusyError, DataError, StorageError
from aweigh.io.verify import verify

CHILD = """
import os, pathlib, resource, signal, sys, time
from archive_helpers import Rows, counts, noise
from aweigh.io import location
from aweigh.io.batches import import_batch
path, instant = sys.argv[1:]

def die(*ignored):
    os.kill(os.getpid(), signal.SIGKILL)

def die_after(owner, name, number):
    real, left = getattr(owner, name), [number]
    def replaced(*arguments, **options):
        left[0] -= 1
        if left[0] < 0:
            die()
        return real(*arguments, **options)
    setattr(owner, name, replaced)

def wait(done, rows):
    print("inside", flush=True)
    time.sleep(60)

progress = None
if instant == "between blocks":
    progress = lambda done, rows: die() if done == 40 else None
elif instant == "wait":
    progress = wait
elif instant == "group made":
    die_after(pathlib.Path, "replace", 2)
elif instant == "chunk half written":
    die_after(pathlib.Path, "replace", 11)
elif instant == "before the count":
    die_after(location.LocalLocation, "sizes", 0)
elif instant == "flushing":
    die_after(os, "fsync", 5)
elif instant == "manifest written":
    real = os.replace
    os.replace = lambda old, new: die() if str(new).endswith("manifest.json") else real(old, new)
elif instant == "manifest replaced":
    real = os.replace
    os.replace = lambda old, new: (real(old, new), str(new).endswith("manifest.json") and die())
elif instant == "file size":
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
views = {"a": Rows(noise(100, 50)), "b": Rows(counts(100, 3))}
import_batch(path, views, name="b", block_rows=20, progress=progress)
"""


def start(path, instant):
    search = os.pathsep.join([os.path.dirname(__file__), *filter(None, sys.path)])
    command = [sys.executable, "-W", "error", "-c", CHILD, str(path), instant]
    return subprocess.Popen(
        command,
        env=os.environ | {"PYTHONPATH": search},
        cwd=path.parent,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "archive.zarr"
    import_batch(path, views(), name="first")
    return path


def views(rows=100):
    return {"a": Rows(noise(rows, 50)), "b": Rows(counts(rows, 3))}


def check(path, names):
    archive = open_archive(path)
    assert [batch.name for batch in archive.batches] == names
    check_values(archive)


def check_values(archive):
    for batch in archive.batches:
        handle = BatchReader(archive.path, batch)
        np.testing.assert_array_equal(handle.rows("a", 0, batch.rows), noise(batch.rows, 50))
        np.testing.assert_array_equal(handle.rows("b", 0, batch.rows), counts(batch.rows, 3))
        np.testing.assert_array_equal(handle.ids(0, batch.rows), batch.start + np.arange(batch.rows))


INSTANTS = [
    "between blocks",
    "group made",
    "chunk half written",
    "before the count",
    "flushing",
    "manifest written",
]


@pytest.mark.parametrize("instant", INSTANTS)
def test_killed_and_retried(path, instant):
    with start(path, instant) as child:
        child.communicate()
    assert child.returncode == -signal.SIGKILL
    check(path, ["first"])
    problems = verify(path).problems
    assert ("uncommitted", "b") in [(each.kind, each.batch) for each in problems]
    assert ("partial" in {each.kind for each in problems}) == (instant == "manifest written")
    import_batch(path, views(), name="b", block_rows=30)
    check(path, ["first", "b"])
    assert verify(path, repair=True).ok
    check(path, ["first", "b"])
    assert verify(path).problems == []


def test_killed_once_the_manifest_is_replaced(path):
    with start(path, "manifest replaced") as child:
        child.communicate()
    assert child.returncode == -signal.SIGKILL
    check(path, ["first", "b"])
    assert verify(path).problems == []
    with pytest.raises(DataError, match=r"a batch 'b' in .* already"):
        import_batch(path, views(), name="b")


def test_killed_while_the_archive_is_made(tmp_path):
    path = tmp_path / "archive.zarr"
    for instant in ("manifest written", "manifest replaced"):
        with start(path, instant) as child:
            child.communicate()
        assert child.returncode == -signal.SIGKILL
    import_batch(path, views(), name="b")
    check(path, ["b"])


def test_two_at_once(path):
    with start(path, "wait") as child:
        assert child.stdout.readline() == "inside\n"
        with pytest.raises(BusyError, match=rf"is locked by import of batch b, process {child.pid} on "):
            import_batch(path, views())
        assert [(each.kind, each.batch) for each in verify(path).problems] == [("uncommitted", "b")]
        with pytest.raises(BusyError, match="Wait until it is done"):
            verify(path, repair=True)
        check(path, ["first"])
        child.kill()
        child.communicate()
    import_batch(path, views(), name="other")
    check(path, ["first", "other"])
    assert verify(path, repair=True).ok


def test_file_size_limit(path):
    with start(path, "file size") as child:
        _, errors = child.communicate()
    assert "StorageError: file size limit reached while writing batch 'b'" in errors
    check(path, ["first"])
    assert verify(path).problems == []


def test_a_disk_that_is_really_full(tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small], check=False).returncode
    ):
        pytest.skip("a small file system cannot be mounted")
    try:
        import_batch(small / "archive.zarr", views(), name="first")
        with pytest.raises(StorageError, match=r"disk full while writing batch 'b'.*\n.*unharmed"):
            import_batch(small / "archive.zarr", views(10_000), name="b", block_rows=500)
        check(small / "archive.zarr", ["first"])
        assert verify(small / "archive.zarr").problems == []
        import_batch(small / "archive.zarr", views(), name="b")
        check(small / "archive.zarr", ["first", "b"])
    finally:
        subprocess.run(["umount", small], check=True)


def test_readers_never_see_half_a_batch(path):
    names = ["first", *(f"n{number}" for number in range(8))]
    failures = []

    def write():
        try:
            for name in names[1:]:
                import_batch(path, views(), name=name, block_rows=30)
        except BaseException as error:
            failures.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    seen = set()
    while writer.is_alive():
        archive = open_archive(path)
        check_values(archive)
        assert [batch.name for batch in archive.batches] == names[: len(archive.batches)]
        seen.add(len(archive.batches))
    writer.join()
    assert not failures
    check(path, names)
    assert len(seen) > 2
