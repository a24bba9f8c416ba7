"""Archives and sources in a bucket: as on a disk, whatever the server does; one publisher wins, the other says so."""

import json
import os
import pickle
import subprocess
import sys
import threading
import time
from contextlib import nullcontext

import numpy as np
import pytest
import zarr
from arrays import Rows, archive_of, blobs, fingerprint
from s3 import BUCKET, SECRET, Proxy, environment, free_port, in_environment, server

from aweigh.io import lease, objects
from aweigh.io.archive import BatchReader, commit, create_archive, open_archive
from aweigh.io.batches import import_batch
from aweigh.io.errors import BusyError, ConflictError, DataError, StorageError, UsageError
from aweigh.io.location import open_location
from aweigh.io.runs import RunFolder, latest_run, run_names
from aweigh.io.sources import open_column, open_source
from aweigh.io.verify import verify
from aweigh.pipeline.compare import compare
from aweigh.pipeline.driver import SerialRunner
from aweigh.pipeline.results import open_dataset
from aweigh.pipeline.run import embedded_runner, fit
from aweigh.pipeline.updating import update_job


@pytest.fixture(scope="module")
def port():
    with server() as port:
        yield port


@pytest.fixture(autouse=True)
def _client(port):
    with in_environment(environment(port)):
        yield


@pytest.fixture
def url(request):
    """A place of the test's own."""
    return f"s3://{BUCKET}/{request.node.name}/a.zarr".translate(str.maketrans("[]", "--"))


def batches(X, parts):
    for t, rows in enumerate(np.array_split(np.arange(len(X[0])), parts)):
        yield {f"v{i}": Rows(x[rows]) for i, x in enumerate(X)}, f"b{t}"


@pytest.fixture(params=["disk", "bucket"])
def place(request, tmp_path, url):
    return open_location(tmp_path / "a" if request.param == "disk" else url)


def test_the_methods_of_a_location(place):
    assert (place.read("x/y"), place.list("x"), list(place.sizes()), place.exists("")) == (None, [], [], False)
    place.write("x/y", b"1")
    place.write("x/y", b"22")
    place.write("x/z/w", b"")
    assert (place.read("x/y"), place.list("x"), place.list()) == (b"22", ["y", "z"], ["x"])
    assert sorted(place.sizes("x")) == [("x/y", 2), ("x/z/w", 0)]
    assert [place.exists(name) for name in ("", "x", "x/y")] == [True, True, True]
    assert (place.exists("w"), place.exists("x/yy")) == (False, False)
    for name in ("../x", "a//b", "/a"):
        with pytest.raises(ValueError, match="is no relative name"):
            place.read(name)
    with pytest.raises(ValueError, match="cannot be deleted"):
        place.delete("")
    place.delete("x/y")
    place.delete("x/y")
    assert place.list("x") == ["z"]
    place.delete("x")
    assert list(place.sizes()) == []
    assert open_location(place.path) == place


def test_a_version_is_replaced_once(place):
    first = place.replace("m", b"1", None)
    assert place.read_version("m") == (b"1", first)
    assert place.replace("m", b"2", first) != first
    for version in (None, first):
        with pytest.raises(ConflictError, match=r"another process wrote m of .* was first"):
            place.replace("m", b"3", version)
    with pytest.raises(ConflictError):
        place.replace("none", b"3", first)
    assert (place.read("m"), place.exists("none")) == (b"2", False)


def test_pages_of_a_listing(url, monkeypatch):
    monkeypatch.setattr(objects, "PAGE", 4)
    place = open_location(url)
    names = [f"{i:02d}" for i in range(11)]
    for name in names:
        place.write(f"x/{name}", b"")
    assert [name for name, _ in place.sizes("x")] == [f"x/{name}" for name in names]
    assert place.list("x") == names
    place.delete("x")
    assert not place.exists("x")


@pytest.fixture(scope="module")
def data():
    return blobs(900, (20, 9), 4, spread=1.2)[0]


def test_nights_on_two_workers_are_those_of_a_disk(url, data, tmp_path):
    """Import, fit, update, compare, verify: separate worker processes, the same bits as in a folder by one process."""
    disk = str(tmp_path / "a.zarr")
    for path in (disk, url):
        with embedded_runner(2, "1GiB") if path == url else nullcontext(SerialRunner()) as runner:
            (views, name), (more, other) = batches(data, 2)
            import_batch(path, views, name=name, block_rows=50)
            fit(path, 4, "acmvc", run="first", runner=runner, max_sweeps=3)
            import_batch(path, more, name=other, block_rows=50)
            record = update_job(path, run="night").run(runner)
        assert verify(path).ok
    assert fingerprint(url, record) == fingerprint(disk, record)
    opened = open_archive(url)
    assert (latest_run(opened), run_names(opened)) == ("night", ["first", "night"])
    assert compare(opened, RunFolder(opened, "first"), RunFolder(opened, "night"))["samples"] == 450
    assert open_dataset(opened, "b1", RunFolder(opened, "night"))["labels"].sizes == {"sample": 450}
    stored = b"".join(opened.location.read(name) for name, _ in opened.location.sizes())
    assert SECRET.encode() not in stored


class Slow(Rows):
    """Rows of which the second half waits to be asked for."""

    def __init__(self, x):
        super().__init__(x)
        self.inside, self.go_on = threading.Event(), threading.Event()

    def blocks(self, rows):
        for number, block in enumerate(super().blocks(rows)):
            if number == 1:
                self.inside.set()
                assert self.go_on.wait(60)
            yield block


@pytest.fixture
def under_way(url, data):
    """An import that has the lock, its source, and its thread's failures."""
    create_archive(url)
    source, failures = Slow(data[0]), []

    def run():
        try:
            import_batch(url, {"v0": source}, name="slow", block_rows=300)
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert source.inside.wait(60)
    yield source, failures, thread
    source.go_on.set()
    thread.join()


def test_of_two_imports_at_once_one_wins_and_the_other_says_so(url, data, under_way):
    source, failures, thread = under_way
    begun = time.monotonic()
    with pytest.raises(BusyError, match=r"a\.zarr is locked by import of batch slow, process \d+ on .*since"):
        import_batch(url, {"v0": Rows(data[0])}, name="other")
    assert time.monotonic() - begun < 5
    with pytest.raises(BusyError):
        verify(url, repair=True)
    source.go_on.set()
    thread.join()
    assert not failures
    import_batch(url, {"v0": Rows(data[0])}, name="other")
    assert [batch.name for batch in open_archive(url).batches] == ["slow", "other"]
    assert verify(url).problems == []


def test_a_lease_that_was_not_renewed_is_taken_and_its_holder_stops(url, data, under_way, monkeypatch):
    source, failures, thread = under_way
    monkeypatch.setattr(lease, "LASTS", 0.0)
    import_batch(url, {"v0": Rows(data[0])}, name="slow", block_rows=300)
    monkeypatch.setattr(lease, "RENEWED", -1.0)
    source.go_on.set()
    thread.join()
    assert isinstance(failures[0], BusyError)
    assert "took the lock" in str(failures[0])
    assert [batch.name for batch in open_archive(url).batches] == ["slow"]
    assert verify(url).problems == []
    np.testing.assert_array_equal(
        BatchReader(url, open_archive(url).batches[0]).rows("v0", 0, 900), data[0].astype(np.float64)
    )


def test_a_lease_is_kept_by_renewing_it(url, monkeypatch):
    monkeypatch.setattr(lease, "RENEWED", 0.2)
    monkeypatch.setattr(lease, "LASTS", 2.0)
    place = open_location(url)
    with place.lock("l", "x") as still_held:
        time.sleep(3.5)
        still_held()
        with pytest.raises(BusyError), place.lock("l", "y"):
            pass
    with place.lock("l", "z"):
        pass
    assert place.list() == ["l"]


def test_of_two_commits_to_one_manifest_the_second_fails(url, data):
    (views, name), (more, other) = batches(data, 2)
    import_batch(url, views, name=name)
    old = open_archive(url)
    import_batch(url, more, name=other)
    with pytest.raises(ConflictError, match=r"manifest\.json"):
        commit(old, old.batches[0])
    assert len(open_archive(url).batches) == 2


def test_of_two_runs_finished_at_once_both_are_whole_and_one_is_the_latest(place, data, monkeypatch):
    archive_of(place.path, data, block_rows=300)
    told = []
    fit(place.path, 4, runner=SerialRunner(), run="one", max_sweeps=2)
    finish = RunFolder.write_json

    def overtaken(folder, name, value):
        finish(folder, name, value)
        if folder.name == "two" and name == "run.json":
            fit(place.path, 4, runner=SerialRunner(), run="three", max_sweeps=2)

    monkeypatch.setattr(RunFolder, "write_json", overtaken)
    record = fit(place.path, 4, runner=SerialRunner(), run="two", max_sweeps=2, emit=told.append)
    archive = open_archive(place.path)
    assert (record["run"], latest_run(archive)) == ("two", "three")
    assert all(RunFolder(archive, name).complete for name in ("one", "two", "three"))
    assert "run three was finished at the same moment" in str(told)
    with pytest.raises(ConflictError):
        RunFolder(archive, "two").begin({})


def test_damage_is_seen(url, data):
    archive_of(url, data, block_rows=300)
    place = open_location(url)
    place.delete("batches/b0/v0/c/1/0")
    torn = place.read("batches/b0/v1/c/2/0")
    place.write("batches/b0/v1/c/2/0", torn[:-1] + bytes([torn[-1] ^ 1]))
    with pytest.raises(StorageError, match=r"chunk 1 of view 'v0' in batch 'b0' of archive s3://.* is missing"):
        fit(url, 4, runner=SerialRunner())
    assert {(each.kind, each.view, each.chunk) for each in verify(url).problems} == {
        ("missing", "v0", 1),
        ("torn", "v1", 2),
    }


def test_leftovers_are_swept_away(url, data):
    archive_of(url, data)
    place = open_location(url)
    place.write("batches/dead/v0/c/0/0", b"1")
    assert [each.name for each in verify(url).problems] == ["batches/dead"]
    assert verify(url, repair=True).ok
    assert not place.exists("batches/dead")


def test_sources(url, data, tmp_path):
    place = open_location(url)
    np.save(tmp_path / "x.npy", data[0])
    np.save(tmp_path / "columns.npy", np.asfortranarray(data[0]))
    for name in ("x.npy", "columns.npy"):
        place.write(name, (tmp_path / name).read_bytes())
    place.write("ids.npy", (np.save(tmp_path / "i.npy", np.arange(900)), (tmp_path / "i.npy").read_bytes())[1])
    place.write("empty.npy", b"")
    group = zarr.create_group(store=place.zarr_store(read_only=False), path="g")
    group.create_array("deep/y", data=data[1], chunks=(100, 9))
    for spec, expected in (
        ("x.npy", data[0]), ("g:deep/y", data[1]), ("g/deep/y", data[1]), ("g", data[1]),
    ):  # fmt: skip
        source = pickle.loads(pickle.dumps(open_source(f"{url}/{spec}")))
        np.testing.assert_array_equal(np.concatenate(list(source.blocks(250))), expected)
    assert SECRET.encode() not in pickle.dumps(open_source(f"{url}/g"))
    np.testing.assert_array_equal(open_column(f"{url}/ids.npy"), np.arange(900))
    for spec, message in {
        "columns.npy": "lies column by column",
        "none.npy": "does not exist",
        "none": "holds no Zarr array or group",
        "empty.npy": "is empty",
        "g:none": r"has no 'none'; it holds deep/y",
    }.items():
        with pytest.raises(DataError, match=message):
            open_source(f"{url}/{spec}")


def test_what_is_not_there(url):
    with pytest.raises(DataError, match=r"s3://.*/a\.zarr does not exist"):
        open_archive(url)
    with pytest.raises(StorageError, match="there is no such bucket"):
        open_archive("s3://no-such-bucket/a.zarr")
    with pytest.raises(StorageError, match="there is no such bucket"):
        import_batch("s3://no-such-bucket/a.zarr", {"a": Rows(np.ones((3, 2)))})
    open_location(url).write("other", b"1")
    with pytest.raises(DataError, match=r"is no archive and is not empty \(it holds other\)"):
        import_batch(url, {"a": Rows(np.ones((3, 2)))})


def aweigh(*words, **variables):
    command = [sys.executable, "-P", "-m", "aweigh.pipeline.cli", *map(str, words)]
    return subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=300)


def test_credentials_are_in_no_message(url, monkeypatch, port, tmp_path):
    monkeypatch.setattr(objects, "PATIENCE", objects.timedelta(seconds=1))
    monkeypatch.setitem(objects.RETRIES, "retry_timeout", objects.PATIENCE)
    with (
        in_environment(environment(free_port())),
        pytest.raises(StorageError, match=r"failed while reading s3://.*: the store does not answer") as caught,
    ):
        open_archive(url)
    assert not {SECRET, "127.0.0.1"} & set(str(caught.value).replace("/", " ").split())
    done = aweigh("info", f"s3://me:{SECRET}@{BUCKET}/a.zarr", "--json", "--debug")
    assert (done.returncode, json.loads(done.stdout)["error"]["code"]) == (2, "usage")
    assert SECRET not in done.stdout + done.stderr
    with in_environment({**environment(port), "AWS_ENDPOINT_URL": f"http://me:{SECRET}@127.0.0.1:{port}"}):
        with pytest.raises(UsageError, match=r"AWS_ENDPOINT_URL .* holds credentials") as caught:
            open_archive(url)
        assert SECRET not in str(caught.value)


def test_credentials_from_files_or_none_at_all(url, tmp_path, port):
    (tmp_path / "credentials").write_text(f"[mine]\naws_access_key_id = a\naws_secret_access_key = {SECRET}\n")
    nothing = {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"), "AWS_CONFIG_FILE": str(tmp_path / "none")}
    base = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_REGION": "us-east-1"}
    files = {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials")}
    with in_environment({**base, **nothing, **files, "AWS_PROFILE": "mine"}):
        open_location(url).write("x", b"1")
    with (
        in_environment({**base, **nothing, **files, "AWS_PROFILE": "other"}),
        pytest.raises(StorageError, match=r"no permission .*give no credentials.*other"),
    ):
        open_location(url).read("x")
    with in_environment({**base, **nothing}), pytest.raises(StorageError, match="there are no credentials"):
        open_location(url).read("x")


def test_without_obstore(monkeypatch):
    monkeypatch.setattr(objects, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="needs the package obstore") as caught:
        open_archive(f"s3://{BUCKET}/a.zarr")
    assert caught.value.hint == "pip install 'aweigh[s3]'"


FAULTS = {"refuse": 0.08, "reset": 0.08, "lose": 0.08, "cut": 0.08}


def test_a_server_that_fails_a_third_of_the_time(url, data, port, tmp_path, monkeypatch):
    pauses = {"init_backoff": objects.timedelta(seconds=0.01), "max_backoff": objects.timedelta(seconds=0.1), "base": 2}
    monkeypatch.setitem(objects.RETRIES, "backoff", pauses)
    data = [x[:400] for x in data]
    disk = archive_of(tmp_path / "a.zarr", data, block_rows=200)
    expected = fit(disk, 4, runner=SerialRunner(), run="r", max_sweeps=2)
    with Proxy(port, **FAULTS) as proxy, in_environment(environment(proxy.port)):
        archive_of(url, data, block_rows=200)
        record = fit(url, 4, runner=SerialRunner(), run="r", max_sweeps=2)
        assert verify(url).problems == []
        assert proxy.faults > 30
    assert fingerprint(url, record) == fingerprint(disk, expected)


FIT = ("-k", 4, "-m", "acmvc", "--max-sweeps", 8, "--tol", 0, "--run", "r", "--json")


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory):
    """The fingerprint of the fit of FIT in a folder."""
    path = archive_of(tmp_path_factory.mktemp("disk") / "a.zarr", data, block_rows=100)
    return fingerprint(path, json.loads(aweigh("fit", path, *FIT, "--workers", 2).stdout))


@pytest.mark.slow
@pytest.mark.parametrize("for_good", [False, True])
def test_a_server_that_goes_away_during_a_fit(url, data, port, undisturbed, for_good):
    """Away for 10 s: waited for.  Until the fit gives up: exit 6, and --resume ends with the same bits."""
    archive_of(url, data, block_rows=100)
    command = [sys.executable, "-P", "-m", "aweigh.pipeline.cli", "fit", url, *map(str, FIT), "--workers", "2"]
    with Proxy(port, **dict.fromkeys(FAULTS, 0.01)) as proxy, in_environment(environment(proxy.port)):
        fitting = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while not any(name.endswith("checkpoint.npz") for name, _ in open_location(url).sizes("runs")):
            assert fitting.poll() is None
            time.sleep(0.2)
        proxy.go_away()
        time.sleep(10)
        if not for_good:
            proxy.come_back()
        told, errors = fitting.communicate(timeout=400)
        if for_good:
            proxy.come_back()
    assert fitting.returncode in ((4, 6) if for_good else (0,)), errors
    assert SECRET not in told + errors
    if for_good:
        assert "the store does not answer" in errors
        told = aweigh("fit", url, *FIT, "--resume", "--workers", 2).stdout
    assert fingerprint(url, json.loads(told)) == undisturbed


@pytest.mark.slow
def test_two_programs_import_at_once(url, data, tmp_path):
    np.save(tmp_path / "x.npy", np.repeat(data[0], 200, axis=0))
    command = [sys.executable, "-P", "-m", "aweigh.pipeline.cli", "import", url, "--view", f"v={tmp_path / 'x.npy'}"]
    both = [subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    told = [json.loads(each.communicate(timeout=120)[0]) for each in both]
    assert sorted(each.returncode for each in both) == [0, 75], told
    (lost,) = [each["error"] for each in told if "error" in each]
    assert "is locked by import of a batch" in lost["message"]
    assert aweigh(*command[4:]).returncode == 0
    assert [batch.name for batch in open_archive(url).batches] == ["batch-0001", "batch-0002"]
    assert verify(url).problems == []


@pytest.mark.slow
def test_an_import_that_was_killed_frees_its_lock_in_time(url, data):
    code = "import os, sys\nfrom aweigh.io.location import open_location\n"
    code += "with open_location(sys.argv[1]).lock('import.lock', 'x'): os.kill(os.getpid(), 9)"
    create_archive(url)
    subprocess.run([sys.executable, "-P", "-c", code, url], check=False)
    with pytest.raises(BusyError, match="is locked by x") as caught:
        import_batch(url, {"v0": Rows(data[0])})
    assert "free 30 s after that process ended" in caught.value.hint
    time.sleep(31)
    assert import_batch(url, {"v0": Rows(data[0])}).rows == 900
