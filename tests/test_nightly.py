"""Nights: idempotent, locked, resumable after every step, kept to `keep`, and checked before anything runs."""

import hashlib
import json
import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from aweigh.io.archive import open_archive
from aweigh.io.errors import BusyError, DataError
from aweigh.io.location import open_location
from aweigh.io.rows import ZarrRows
from aweigh.io.runs import RunFolder, latest_run, run_names
from aweigh.pipeline import night_config
from aweigh.pipeline import nightly as nights
from aweigh.pipeline.cli import main
from aweigh.pipeline.driver import SerialRunner
from aweigh.pipeline.events import Note, PassDone, silent
from aweigh.pipeline.results import batches_of

CONFIG = """
archive = "a.zarr"
keep = 3

[import]
views = { image = "in/{batch}/image.npy", text = "in/{batch}/text.npz:x" }

[fit]
clusters = 4
method = "METHOD"
max-sweeps = 6
"""


@contextmanager
def serial(emit):
    yield SerialRunner()


def put(folder, name, seed=0, rows=150, change=lambda views: views, k=4):
    """A batch of the same clusters in the incoming folder."""
    rng = np.random.default_rng([seed, 1])
    centres = [3 * np.random.default_rng(v).normal(size=(k, d)) for v, d in enumerate((12, 7))]
    labels = rng.integers(0, k, rows)
    views = change([c[labels] + rng.normal(size=(rows, c.shape[1])) for c in centres])
    (folder / "in" / name).mkdir(parents=True)
    np.save(folder / "in" / name / "image.npy", views[0])
    np.savez(folder / "in" / name / "text.npz", x=views[1])


def configured(folder, method="acmvc", more=""):
    (folder / "in").mkdir(exist_ok=True)
    (folder / "n.toml").write_text(CONFIG.replace("METHOD", method) + more)
    return night_config.read(str(folder / "n.toml"))


def night(folder, method="acmvc", more="", emit=silent, dry_run=False):
    return nights.nightly(configured(folder, method, more), serial, emit, dry_run)


def everything(folder):
    """Every file of the archive by name, as bytes."""
    root = folder / "a.zarr"
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def bits_of(folder, run):
    """A hash of all that a run holds of its rows, and of its objectives."""
    archive = open_archive(folder / "a.zarr")
    rows, record = ZarrRows(archive.path, f"runs/{run}"), RunFolder(archive, run).read_json("run.json")
    h = hashlib.sha256(repr([record["objective"], record["numbers"], record["drift"]]).encode())
    for batch in batches_of(archive, RunFolder(archive, run)):
        for name in ("labels", "embedding", "confidence"):
            for block in range(batch.blocks):
                h.update(rows.read(name, batch, block).tobytes())
    return h.hexdigest()


@pytest.mark.parametrize("method", ["acmvc", "emvgc-lg", "l2sc"])
def test_nights_go_on_and_the_same_night_twice_changes_nothing(tmp_path, method):
    for t in range(3):
        put(tmp_path, f"d{t}", t)
        told = night(tmp_path, method)
        assert (told["status"], told["imported"], told["samples"]) == ("published", [f"d{t}"], 150 * (t + 1))
        assert told["how"] == ["fit", "continue" if method != "emvgc-lg" else "refit"][t > 0]
        if t:
            assert told["moved"] < 0.1
    before = everything(tmp_path)
    assert night(tmp_path, method)["status"] == "unchanged"
    assert everything(tmp_path) == before
    json.dumps(told, allow_nan=False)


def test_the_same_content_under_another_name_is_known(tmp_path):
    put(tmp_path, "d0")
    night(tmp_path)
    shutil.copytree(tmp_path / "in" / "d0", tmp_path / "in" / "again")
    told = night(tmp_path)
    assert (told["status"], told["known"]) == ("unchanged", ["d0", "d0"])
    (tmp_path / "a.zarr" / "nightly.json").unlink()  # what was imported by hand is known by what it holds
    assert night(tmp_path)["known"] == ["d0", "d0"]
    assert len(open_archive(tmp_path / "a.zarr").batches) == 1


def test_other_data_under_a_known_name_are_refused(tmp_path):
    put(tmp_path, "d0")
    night(tmp_path)
    shutil.rmtree(tmp_path / "in" / "d0")
    put(tmp_path, "d0", seed=9)
    with pytest.raises(DataError, match="already"):
        night(tmp_path)


def test_a_source_that_is_written_over_every_night(tmp_path):
    rng = np.random.default_rng(0)
    text = CONFIG.replace("METHOD", "acmvc").replace("in/{batch}/", "")
    for t in range(2):
        np.save(tmp_path / "image.npy", rng.normal(size=(90, 6)))
        np.savez(tmp_path / "text.npz", x=rng.normal(size=(90, 5)))
        (tmp_path / "n.toml").write_text(text)
        config = night_config.read(str(tmp_path / "n.toml"))
        assert nights.nightly(config, serial, silent)["imported"] == [f"batch-{t + 1:04d}"]
        assert nights.nightly(config, serial, silent)["status"] == "unchanged"


class Cut(BaseException):
    """Raised in the place of a kill: nothing catches it."""


@pytest.mark.parametrize("how", ["acmvc", "emvgc-lg", "freeze"])
def test_a_night_that_is_cut_at_any_step_ends_as_if_it_had_not_been(tmp_path, monkeypatch, how):
    method, more = ("emvgc-lg", '[update]\npolicy = "freeze"\n') if how == "freeze" else (how, "")
    for t in range(4):
        put(tmp_path / "calm", f"d{t}", t)
        night(tmp_path / "calm", method, more)
    calm = [bits_of(tmp_path / "calm", f"night-{n:05d}") for n in (2, 3, 4)]
    writes = [0]
    real = type(open_location(tmp_path)).write

    def write(self, name, data):
        writes[0] -= 1
        if writes[0] == 0:
            raise Cut
        real(self, name, data)

    put(tmp_path / "base", "d0")
    night(tmp_path / "base", method, more)
    for t in range(1, 4):
        put(tmp_path / "base", f"d{t}", t)
        if t < 3:
            night(tmp_path / "base", method, more)
    monkeypatch.setattr(type(open_location(tmp_path)), "write", write)
    cut = 0
    for at in range(1, 40, 3):
        work = tmp_path / f"w{at}"
        shutil.copytree(tmp_path / "base", work)
        writes[0] = at
        try:
            night(work, method, more)
        except Cut:
            cut += 1
            archive = open_archive(work / "a.zarr")
            assert RunFolder(archive, latest_run(archive)).complete
            writes[0] = 0
            night(work, method, more)
        archive = open_archive(work / "a.zarr")
        assert [batch.name for batch in archive.batches] == ["d0", "d1", "d2", "d3"]
        assert latest_run(archive) == "night-00004"
        assert [bits_of(work, f"night-{n:05d}") for n in (2, 3, 4)] == calm
        assert run_names(archive) == ["night-00002", "night-00003", "night-00004"]
        shutil.rmtree(work)
        if writes[0] > 0:
            break
    assert cut > 2


def test_a_second_night_says_who_holds_the_lock(tmp_path):
    put(tmp_path, "d0")
    with (
        open_location(tmp_path / "a.zarr").lock("nightly.lock", "aweigh nightly other.toml"),
        pytest.raises(BusyError, match=rf"other.toml, process {os.getpid()}"),
    ):
        night(tmp_path)
    assert night(tmp_path)["status"] == "published"


def test_a_dry_run_writes_nothing(tmp_path):
    put(tmp_path, "d0")
    told = night(tmp_path, dry_run=True)
    assert (told["status"], told["imported"], told["how"]) == ("dry-run", ["d0"], "fit")
    assert not (tmp_path / "a.zarr").exists()
    night(tmp_path)
    put(tmp_path, "d1", 1)
    before = everything(tmp_path)
    told = night(tmp_path, dry_run=True)
    assert (told["imported"], told["how"]) == (["d1"], "continue")
    assert everything(tmp_path) == before


def test_the_report_hook_is_run_and_its_failure_told(tmp_path):
    put(tmp_path, "d0")
    told = night(
        tmp_path, more='[report]\ncommand = ["sh", "-c", "echo {run} > page"]\n'.replace("page", f"{tmp_path}/p")
    )
    assert told["report"]["failed"] is None
    assert (tmp_path / "p").read_text() == "night-00001\n"
    put(tmp_path, "d1", 1)
    with pytest.raises(nights.HookError, match="night-00002 is published, and its report failed: sh ended with 3: no"):
        night(tmp_path, more='[report]\ncommand = ["sh", "-c", "echo no; exit 3"]\n')
    assert latest_run(open_archive(tmp_path / "a.zarr")) == "night-00002"


def test_the_report_shows_what_changed_since_the_night_before(tmp_path):
    more = '[report]\nfile = "out/clusters.html"\ncommand = ["cp", "out/clusters.html", "page"]\n'
    more = more.replace('"out', f'"{tmp_path}/out').replace('"page', f'"{tmp_path}/page')
    for t in range(2):
        put(tmp_path, f"d{t}", t)
        told = night(tmp_path, more=more)
        page = (tmp_path / "out" / "clusters.html").read_text()
        assert (tmp_path / "page").read_text() == page
        assert told["report"] == {"file": f"{tmp_path}/out/clusters.html", "failed": None}
        assert f"night-{t + 1:05d}" in page
        assert ("What changed since the last run" in page and "Run <b>night-00001</b> came before" in page) == (t == 1)
    put(tmp_path, "d2", 2)
    (tmp_path / "taken").touch()
    with pytest.raises(nights.HookError, match=r"night-00003 is published, and its report failed: .*/taken"):
        night(tmp_path, more=more.replace("out/", "taken/"))
    assert latest_run(open_archive(tmp_path / "a.zarr")) == "night-00003"


def test_what_an_interrupted_night_has_imported_is_read_once_more_and_no_more(tmp_path, monkeypatch):
    put(tmp_path, "d0")
    night(tmp_path)
    (tmp_path / "a.zarr" / "nightly.json").unlink()
    night(tmp_path)
    monkeypatch.setattr(nights.contents, "of_sources", None)
    assert night(tmp_path)["known"] == ["d0"]


def refused(folder, words, more=""):
    """Assert that a night ends with exit code 3 and changes neither batches nor runs."""
    before = {n: b for n, b in everything(folder).items() if not n.endswith(".lock")}
    with pytest.raises(DataError, match=words):
        night(folder, more=more)
    assert {n: b for n, b in everything(folder).items() if not n.endswith(".lock")} == before


def gone(v):
    return lambda views: [np.full_like(x, np.nan) if i == v else x for i, x in enumerate(views)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda views: [views[0][:, :5], views[1]], "has shape"),
        (lambda views: [views[0][:0], views[1][:0]], "0 rows"),
        (lambda views: [views[0], views[1][:9]], "different numbers of rows"),
        (gone(1), "missing"),
        (lambda views: [x * np.inf for x in views], "infinite"),
    ],
)
def test_a_bad_batch_is_refused_and_nothing_changes(tmp_path, change, words):
    put(tmp_path, "d0")
    night(tmp_path)
    put(tmp_path, "d1", 1, change=change)
    refused(tmp_path, words)


def test_bad_files_and_ids_are_refused(tmp_path):
    ids = 'ids = "in/{batch}/ids.npy"\n'
    more = CONFIG.replace("METHOD", "acmvc").replace("[fit]", f"{ids}[fit]")
    put(tmp_path, "d0")
    np.save(tmp_path / "in" / "d0" / "ids.npy", np.arange(150))
    (tmp_path / "n.toml").write_text(more)

    def run():
        return nights.nightly(night_config.read(str(tmp_path / "n.toml")), serial, silent)

    run()
    before = {n: b for n, b in everything(tmp_path).items() if not n.endswith(".lock")}
    put(tmp_path, "d1", 1)
    for values, words in ((np.zeros(150, int), "appears in row"), (np.arange(150) + 149, "in the archive already")):
        np.save(tmp_path / "in" / "d1" / "ids.npy", values)
        with pytest.raises(DataError, match=words):
            run()
    (tmp_path / "in" / "d1" / "ids.npy").unlink()
    with pytest.raises(DataError, match="nothing for ids"):
        run()
    np.save(tmp_path / "in" / "d1" / "ids.npy", np.arange(150) + 200)
    whole = (tmp_path / "in" / "d1" / "image.npy").read_bytes()
    (tmp_path / "in" / "d1" / "image.npy").write_bytes(whole[:500])
    with pytest.raises(DataError, match=r"image\.npy"):
        run()
    assert {n: b for n, b in everything(tmp_path).items() if not n.endswith(".lock")} == before


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("keep = 3", "kep = 3", 3, "no key 'kep'"),
        ("keep = 3", "keep = 1", 3, "at least 2"),
        ("keep = 3", 'keep = "3"', 3, "whole number"),
        ("clusters = 4", "clusters = 4.0", 9, "whole number"),
        ("clusters = 4\n", "", 8, "fit.clusters is not given"),
        ('"METHOD"', '"kmeans"', 10, "one of auto"),
        ("max-sweeps = 6", "max_sweeps = 6", 11, "max-sweeps"),
        ("max-sweeps = 6", "set = { lambda = 1 }", 11, "acmvc has no parameter 'lambda'"),
        ("max-sweeps = 6", "anchors = 2", 11, "anchors=2"),
        ("in/{batch}/image.npy", "none/{batch}/image.npy", 6, "none does not exist"),
        ("in/{batch}/image.npy", "in/image.npy", 6, "has no {batch}"),
        ("max-sweeps = 6", 'max-sweeps = 6\n[update]\npolicy = "refit"', 13, "batch after batch"),
        ("max-sweeps = 6", 'max-sweeps = 6\n[update]\npolicy = "never"', 13, "one of continue"),
        ("max-sweeps = 6", 'max-sweeps = 6\n[report]\ncommand = ["x", "{rum}"]', 13, "{run}"),
        ("keep = 3", "keep = = 3", 3, "line 3"),
    ],
)
def test_a_wrong_configuration_is_refused_with_its_line(tmp_path, old, new, line, words):
    (tmp_path / "in").mkdir()
    text = CONFIG.replace(old, new).replace("METHOD", "acmvc")
    (tmp_path / "n.toml").write_text(text)
    done = CliRunner().invoke(main, ["nightly", str(tmp_path / "n.toml"), "--json"])
    assert done.exit_code == 3, done.output
    message = json.loads(done.stdout.splitlines()[0])["error"]["message"]
    assert words in message
    assert f"n.toml:{line}:" in message or f"line {line}" in message
    assert not (tmp_path / "a.zarr").exists()


def test_noise_is_named_and_an_unchanged_stream_is_not(tmp_path):
    for t in range(8):
        noise = lambda views: [np.random.default_rng(5).normal(size=views[0].shape), views[1]]  # noqa: E731
        put(tmp_path, f"d{t}", t, rows=60, change=noise if t == 5 else lambda views: views)
        assert night(tmp_path)["alarms"] == (["image"] if t == 5 else [])


def test_a_view_whose_rows_are_shuffled_is_named(tmp_path):
    for t in range(6):
        shuffle = lambda views: [views[0], views[1][::-1]]  # noqa: E731
        put(tmp_path, f"d{t}", t, change=shuffle if t == 5 else lambda views: views)
        alarms = night(tmp_path)["alarms"]  # of two views that no longer agree, nothing says which one is wrong
        assert set(alarms) == ({"image", "text"} if t == 5 else set())


def test_refit_every_and_on_drift(tmp_path):
    for t in range(5):
        far = lambda views: [-x for x in views]  # noqa: E731
        put(tmp_path, f"d{t}", t, change=far if t == 4 else lambda views: views)
        how = night(tmp_path, "emvgc-lg", "[update]\nrefit-every = 3\nrefit-drift = 0.5\n")["how"]
        assert how == ["fit", "refit", "refit", "full", "full"][t]


def test_the_work_follows_the_new_rows(tmp_path):
    read = []
    for t in range(4):
        put(tmp_path, f"d{t}", t)
        seen = []
        night(tmp_path, emit=lambda e, seen=seen: seen.append(e) if isinstance(e, PassDone) else None)
        read.append({e.tally.view_bytes for e in seen if e.phase.startswith(("batch ", "drift"))})
    assert read == [{150 * (12 + 7) * 8}] * 4


def test_a_night_says_what_it_found_and_did(tmp_path):
    put(tmp_path, "d0")
    night(tmp_path)
    put(tmp_path, "d1", 1)
    notes = []
    told = night(tmp_path, emit=lambda e: notes.append(e.text) if isinstance(e, Note) else None)
    assert any("imported batch d1" in note for note in notes)
    assert "night-00002 (continue): 300 samples in 4 clusters" in nights.lines(told)[1]
    assert Path(told["archive"]) == tmp_path / "a.zarr"
    assert set(told["steps"]) == {"import", "verify", "update", "compare", "report", "publish"}
