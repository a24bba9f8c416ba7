"""The plan on paper: arithmetic over stored constants, and the same shape as the plan of an archive."""

import dataclasses
import json

import numpy as np
import pytest
from arrays import archive_of, blobs
from click.testing import CliRunner

from aweigh.pipeline import bench
from aweigh.pipeline.cli import main

CONSTANTS = bench.Constants(
    read_bytes_per_second=1e9,
    disk_bytes_per_second=5e8,
    survey_bytes_per_second=5e8,
    write_bytes_per_second=1e9,
    multiply_adds_per_second=2e10,
    row_seconds={"emvgc-lg": {"10": 1e-6, "40": 4e-6, "120": 12e-6}, "imvc-cbg": {"10": 1e-7, "40": 4e-7}},
    clustering_multiply_adds_per_second=1e9,
    svd_multiply_adds_per_second=1e9,
    task_seconds=2e-3,
    pass_seconds=1e-2,
    messages_per_task=8.0,
    floor_bytes=200 << 20,
    workers=2,
    versions={},
)


def invoke(*words):
    return CliRunner().invoke(main, ["plan", *map(str, words)])


@pytest.fixture
def stored(tmp_path):
    bench.save(CONSTANTS, tmp_path / "there" / "bench.json")
    return tmp_path / "there" / "bench.json"


def told(*words):
    done = invoke(*words, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_constants_come_back_as_they_were_stored(stored):
    assert bench.load(stored) == CONSTANTS


def test_seconds_a_row_lie_between_the_measured_anchors_by_powers():
    assert CONSTANTS.seconds_a_row("emvgc-lg", 40) == pytest.approx(4e-6)
    assert CONSTANTS.seconds_a_row("emvgc-lg", 20) == pytest.approx(2e-6)
    assert CONSTANTS.seconds_a_row("imvc-cbg", 400) == pytest.approx(4e-6)


def test_a_billion_rows_on_256_workers(stored):
    found = told("--samples", "1e9", "--features", "1024,768", "--workers", 256, "--constants", stored)
    assert found["pass_bytes"] == 10**9 * (1024 + 768) * 4
    assert found["messages"] == round(found["tasks"] * 9 / 8 * 8)
    parts = ("read_seconds", "compute_seconds", "sum_seconds", "solve_seconds", "scheduler_seconds")
    assert found["sweep_seconds"] == pytest.approx(sum(found[part] for part in parts))
    assert found["scheduler_seconds"] < 0.05 * found["sweep_seconds"]
    fewer = told("--samples", "1e9", "--features", "1024,768", "--workers", 128, "--constants", stored)
    assert 1.5 < fewer["compute_seconds"] / found["compute_seconds"] < 2.5


def test_the_shape_is_that_of_an_archive_of_the_same_rows(stored, tmp_path):
    X, _ = blobs(5000, (30, 12), 4, dtype=np.float32)
    real = told(archive_of(tmp_path / "a.zarr", X), "-k", 4)
    paper = told("--samples", 5000, "--features", "30,12", "-k", 4, "--constants", stored)
    for name in ("samples", "views", "blocks", "block_bytes", "tasks", "pass_bytes", "passes", "result_bytes"):
        assert paper[name] == real[name], name
    floors = paper["worker_floor_bytes"] - real["worker_floor_bytes"]
    assert paper["worker_peak_bytes"] - real["worker_peak_bytes"] == floors


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "a plan is of an ARCHIVE, or on paper"),
        (("--samples", "1e6"), "a plan is of an ARCHIVE, or on paper"),
        (("a.zarr", "--samples", "1e6", "--features", "3"), "a plan is of an ARCHIVE, or on paper"),
        (("a.zarr", "--workers", "3"), "of a plan on paper"),
        (("--samples", "0.5", "--features", "3"), "is no number of rows"),
        (("--samples", "1e6", "--features", "3,x"), "is not the columns of each view"),
        (("--samples", "1e6", "--features", "0"), "is not the columns of each view"),
        (("--samples", "1e6", "--features", "3", "--views", "a"), "there is none"),
        (("--samples", "1e6", "--features", "3", "-m", "l2sc"), "compares rows with rows"),
        (("--samples", "1e6", "--features", "3", "--constants", "nowhere.json"), "measure them with `aweigh bench`"),
        (("--samples", "1e6", "--features", "3", "--constants", "other.json"), "holds no constants"),
    ],
)
def test_what_makes_no_plan_is_refused(stored, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    bench.save(CONSTANTS, bench.default_path())
    (tmp_path / "other.json").write_text('{"read_bytes_per_second": 1}')
    done = invoke(*words)
    assert done.exit_code == 2
    assert message in done.stderr


def test_more_than_the_memory_is_refused(stored):
    done = invoke("--samples", "1e6", "--features", "64", "--constants", stored, "--memory", "100MiB")
    assert done.exit_code == 3
    assert "its limit is 100 MiB" in done.stderr


@pytest.mark.slow
def test_bench_measures_positive_constants_and_leaves_its_folder_empty(tmp_path):
    (tmp_path / "disk").mkdir()
    words = ["bench", "--folder", str(tmp_path / "disk"), "--to", str(tmp_path / "c.json"), "--workers", "1", "--json"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    found = bench.load(tmp_path / "c.json")
    assert {**dataclasses.asdict(found), "path": str(tmp_path / "c.json")} == json.loads(done.stdout)
    assert not list((tmp_path / "disk").iterdir())
    assert all(value > 0 for by in found.row_seconds.values() for value in by.values())
    assert found.floor_bytes > 50 << 20
