"""The command line: results, exit codes and messages; every failure leaves the archive as it was."""

import json
import os
import shutil

import numpy as np
import pytest
from arrays import archive_of, blobs
from click.testing import CliRunner

from aweigh.pipeline import cluster
from aweigh.pipeline.cli import main


@pytest.fixture(scope="module")
def scheduler():
    with cluster.embedded(1, cluster.parse_memory("2GiB"), processes=False, threads=2) as client:
        yield client.scheduler.address


@pytest.fixture
def aweigh(scheduler):
    """Run a command; `fit` and `assign` join the module's cluster unless they say where to run."""

    def run(*words):
        words = [str(word) for word in words]
        if words[0] in ("fit", "assign") and not {"--scheduler", "--workers", "--help"} & set(words):
            words += ["--scheduler", scheduler]
        return CliRunner().invoke(main, words)

    return run


@pytest.fixture
def files(tmp_path):
    X, labels = blobs(300, (8, 5), 3, spread=3.0)
    for i, x in enumerate(X):
        np.save(tmp_path / f"v{i}.npy", x)
    np.save(tmp_path / "labels.npy", labels)
    return tmp_path


def imported(aweigh, files, *more):
    return aweigh(
        "import", files / "a.zarr", "--view", f"a={files}/v0.npy", "--view", f"b={files}/v1.npy",
        "--labels", files / "labels.npy", *more,
    )  # fmt: skip


def failure(result, code, *words):
    """Assert an exit code, and that the message holds all words and no traceback."""
    assert result.exit_code == code, result.output
    for word in words:
        assert word in result.output, result.output
    assert "Traceback" not in result.output
    return result


def test_from_files_to_scores(aweigh, files):
    assert imported(aweigh, files, "--batch", "one").exit_code == 0
    told = json.loads(aweigh("info", files / "a.zarr", "--json").stdout)
    assert told["samples"] == 300
    assert told["views"] == {
        "a": {"features": 8, "dtype": "float64", "missing": 0.0},
        "b": {"features": 5, "dtype": "float64", "missing": 0.0},
    }
    record = json.loads(aweigh("fit", files / "a.zarr", "-k", 3, "--json", "--run", "r1").stdout)
    assert record["run"] == "r1"
    assert record["samples"] == 300
    assert record["clusters"] == 3
    assert record["passes"] > record["sweeps"]
    assert record["solved_on"].startswith("scheduler")
    assert set(record) >= {"method", "objective", "converged", "seconds", "peak_worker_bytes"}
    scores = json.loads(aweigh("score", files / "a.zarr", "--json").stdout)
    assert set(scores) == {"acc", "nmi", "purity", "ari", "f", "ri"}
    assert scores["acc"] > 0.95
    out = files / "labels.csv"
    assert aweigh("export", files / "a.zarr", "--to", out).exit_code == 0
    lines = out.read_text().splitlines()
    assert lines[0] == "id,label,confidence"
    assert len(lines) == 301
    assert aweigh("verify", files / "a.zarr").exit_code == 0


def test_assign_gives_fitted_rows_their_labels_back(aweigh, files):
    from aweigh.io.archive import open_archive
    from aweigh.io.rows import ZarrRows

    imported(aweigh, files, "--batch", "one")
    np.save(files / "ids.npy", np.arange(300) + 1000)
    assert imported(aweigh, files, "--batch", "two", "--ids", files / "ids.npy").exit_code == 0
    archive = open_archive(files / "a.zarr")
    one = archive.batches[0]
    for method in ("emvgc-lg", "imvc-cbg", "acmvc"):
        assert aweigh("fit", files / "a.zarr", "-k", 3, "-m", method, "--run", method).exit_code == 0
        done = json.loads(aweigh(
            "assign", files / "a.zarr", "--run", method, "--batch", "one", "--to", f"{method}-a", "--json"
        ).stdout)  # fmt: skip
        assert done["assigned_from"] == method
        fitted = ZarrRows(archive.path, f"runs/{method}").read("labels", one, 0)
        given = ZarrRows(archive.path, f"runs/{method}-a").read("labels", one, 0)
        np.testing.assert_array_equal(fitted, given)


@pytest.mark.parametrize(("k", "code"), [(0, 2), (1, 2), (-3, 2), (301, 3)])
def test_impossible_numbers_of_clusters(aweigh, files, k, code):
    imported(aweigh, files)
    failure(aweigh("fit", files / "a.zarr", "-k", k), code, f"k={k}")
    assert not (files / "a.zarr" / "runs").exists()


def test_wrong_usage(aweigh, files):
    imported(aweigh, files)
    archive = files / "a.zarr"
    failure(aweigh("fit", archive, "-k", 3, "--anchors", 301), 3, "301 anchors", "300")
    failure(aweigh("fit", archive, "-k", 3, "-m", "nothing"), 2, "no method 'nothing'", "emvgc-lg")
    failure(aweigh("fit", archive, "-k", 3, "--views", "a,zzz"), 2, "no view 'zzz'", "a, b")
    failure(aweigh("fit", archive, "-k", 3, "--views", "a,a"), 2, "twice")
    failure(aweigh("fit", archive, "-k", 3, "-m", "emvgc-lg", "--set", "nothing=1"), 2, "no parameter 'nothing'")
    failure(aweigh("fit", archive, "-k", 3, "-m", "emvgc-lg", "--set", "lambda=abc"), 2, "lambda", "float")
    failure(aweigh("fit", archive, "-k", 3, "--set", "lambda"), 2, "NAME=VALUE")
    failure(aweigh("fit", archive, "-k", 3, "--scale", "bold"), 2, "bold")
    failure(aweigh("fit", archive, "-k", 3, "--run", "../up"), 2, "../up")
    failure(aweigh("fit", archive, "-k", 3, "--resume"), 2, "no incomplete run")
    failure(aweigh("fit", archive, "-k", 3, "--memory", "lots", "--workers", 1), 2, "lots")
    failure(aweigh("fit", archive, "-k", 3, "--scheduler", "tcp://127.0.0.1:1"), 4, "no Dask scheduler")
    failure(aweigh("fit", files / "nowhere", "-k", 3), 3, "does not exist")
    failure(aweigh("score", archive), 3, "no complete run")
    failure(aweigh("export", archive, "--to", files / "x.xls"), 2, ".csv")
    told = json.loads(failure(aweigh("fit", archive, "-k", 301, "--json"), 3).stdout)
    assert set(told["error"]) == {"code", "message", "hint"}
    assert json.loads(aweigh("fit", archive, "--json").stdout)["error"]["code"] == "usage"


def test_a_run_name_is_used_once(aweigh, files):
    imported(aweigh, files)
    assert aweigh("fit", files / "a.zarr", "-k", 3, "--run", "r").exit_code == 0
    failure(aweigh("fit", files / "a.zarr", "-k", 3, "--run", "r"), 2, "'r'", "complete")


def test_strict_says_that_it_did_not_converge(aweigh, files):
    imported(aweigh, files)
    words = ("fit", files / "a.zarr", "-k", 3, "-m", "emvgc-lg", "--max-sweeps", 1)
    assert aweigh(*words).exit_code == 0
    assert aweigh(*words, "--strict").exit_code == 5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: x[:-1], ("different numbers of rows",)),
        (lambda x: x[:, :0], ("0",)),
        (lambda x: np.where(np.arange(x.size).reshape(x.shape) == 17, np.inf, x), ("infinite", "row 2, column 1")),
        (lambda x: np.where(np.arange(x.size).reshape(x.shape) == 17, np.nan, x), ("NaN", "row 2, column 1")),
    ],
)
def test_bad_values_are_refused_and_nothing_stays(aweigh, files, change, words):
    np.save(files / "v0.npy", change(np.load(files / "v0.npy")))
    failure(imported(aweigh, files), 3, *words)
    assert [p.name for p in files.glob("a.zarr/batches/*") if p.is_dir()] == []


def test_a_sample_without_any_view_is_refused(aweigh, files):
    for name in ("v0.npy", "v1.npy"):
        x = np.load(files / name)
        x[7] = np.nan
        np.save(files / name, x)
    failure(imported(aweigh, files), 3, "missing", "every view")


def test_a_sample_without_the_chosen_views_is_refused(aweigh, files):
    x = np.load(files / "v0.npy")
    x[7] = np.nan
    np.save(files / "v0.npy", x)
    assert imported(aweigh, files).exit_code == 0
    failure(aweigh("fit", files / "a.zarr", "-k", 3, "-m", "imvc-cbg", "--views", "a"), 3, "1 samples are missing")
    failure(aweigh("fit", files / "a.zarr", "-k", 3, "-m", "emvgc-lg"), 3, "a: 1", "imvc-cbg")
    assert json.loads(aweigh("fit", files / "a.zarr", "-k", 3, "--json").stdout)["method"] == "imvc-cbg"


def test_equal_rows_are_refused_and_a_constant_feature_works(aweigh, files):
    x = np.load(files / "v0.npy")
    x[:, 2] = 4.0
    np.save(files / "v0.npy", x)
    assert imported(aweigh, files).exit_code == 0
    assert aweigh("fit", files / "a.zarr", "-k", 3).exit_code == 0
    for name in ("v0.npy", "v1.npy"):
        np.save(files / name, np.ones_like(np.load(files / name)))
    shutil.rmtree(files / "a.zarr")
    assert imported(aweigh, files).exit_code == 0
    for method in ("emvgc-lg", "imvc-cbg", "acmvc"):
        failure(aweigh("fit", files / "a.zarr", "-k", 3, "-m", method), 3, "equal")


def test_a_file_that_is_not_what_its_name_says(aweigh, files):
    (files / "v0.npy").write_text("hello")
    failure(imported(aweigh, files), 3, "v0.npy")
    failure(aweigh("import", files / "a.zarr", "--view", f"a={files}/none.npy"), 3, "none.npy")
    failure(aweigh("import", files / "a.zarr", "--view", "a"), 2, "NAME=SOURCE")


def test_an_archive_of_a_newer_schema(aweigh, files):
    imported(aweigh, files)
    manifest = files / "a.zarr" / "manifest.json"
    told = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**told, "schema": 99, "needs": "9.0"}))
    failure(aweigh("fit", files / "a.zarr", "-k", 3), 3, "99")


@pytest.mark.parametrize("damage", ["deleted", "truncated", "flipped"])
def test_a_damaged_chunk_is_named(aweigh, tmp_path, damage):
    X, _ = blobs(300, (8, 5), 3)
    archive = archive_of(tmp_path / "a.zarr", X, block_rows=100)
    chunk = tmp_path / "a.zarr" / "batches" / "b0" / "v1" / "c" / "2" / "0"
    data = bytearray(chunk.read_bytes())
    if damage == "deleted":
        chunk.unlink()
    else:
        data[len(data) // 2] ^= 1
        chunk.write_bytes(data[:-9] if damage == "truncated" else data)
    failure(aweigh("fit", archive, "-k", 3), 6, "v1", "b0", "2")
    failure(aweigh("verify", archive), 6, "v1", "b0", "2")


def test_a_folder_that_cannot_be_written(aweigh, files):
    failure(aweigh("import", "/proc/aweigh/a.zarr", "--view", f"a={files}/v0.npy"), 6, "/proc/aweigh")


def test_two_imports_at_once(aweigh, files):
    from aweigh.io.location import open_location

    imported(aweigh, files)
    with open_location(files / "a.zarr").lock("import.lock", "another import"):
        result = imported(aweigh, files, "--batch", "second")
    failure(result, 75, str(os.getpid()))
    assert len(json.loads(aweigh("info", files / "a.zarr", "--json").stdout)["batches"]) == 1


def test_the_plan_refuses_what_does_not_fit(aweigh, files):
    imported(aweigh, files)
    assert "worker" in aweigh("plan", files / "a.zarr", "-k", 3).stdout
    failure(aweigh("plan", files / "a.zarr", "-k", 3, "--memory", "100MiB"), 3, "MiB", "--memory")


def test_formulas_are_quoted_on_export(aweigh, files):
    np.save(files / "ids.npy", np.array([f"=cmd|{i}" for i in range(300)]))
    imported(aweigh, files, "--ids", files / "ids.npy")
    aweigh("fit", files / "a.zarr", "-k", 3)
    aweigh("export", files / "a.zarr", "--to", files / "x.csv")
    assert (files / "x.csv").read_text().splitlines()[1].startswith("'=cmd|0,")


def test_every_command_explains_itself(aweigh):
    assert aweigh("--help").exit_code == 0
    for name in main.commands:
        told = CliRunner().invoke(main, [name, "--help"])
        assert told.exit_code == 0
        assert "Example:" in told.stdout, name
        assert max(map(len, told.stdout.splitlines())) <= 80, name
