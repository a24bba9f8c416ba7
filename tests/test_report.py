"""The report: its sums against plain numpy, its page in any case that a run can be in, names as text."""

import json
import re

import hostile
import numpy as np
import pytest
from arrays import Rows, archive_of, blobs, results
from click.testing import CliRunner

from aweigh.algorithms import profile
from aweigh.algorithms.contract import combine
from aweigh.io.archive import open_archive
from aweigh.io.batches import import_batch
from aweigh.io.runs import complete_run
from aweigh.pipeline import cluster, page, report
from aweigh.pipeline.assign import label_batches
from aweigh.pipeline.cli import main
from aweigh.pipeline.driver import SerialRunner
from aweigh.pipeline.run import fit
from aweigh.pipeline.updating import update_job


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Views, classes and the path of an archive in three blocks a batch, with a fit of three clusters."""
    X, classes = blobs(900, (7, 4), 3, spread=3.0)
    X[1][::5] = np.nan
    X[0][:, 3] = 1e9 + X[0][:, 3]
    path = archive_of(tmp_path_factory.mktemp("report") / "a.zarr", X, classes, block_rows=150, batches=2)
    fit(path, 3, "imvc-cbg", run="one", seed=1, runner=SerialRunner())
    fit(path, 3, "imvc-cbg", run="two", runner=SerialRunner())
    return X, classes, path


@pytest.fixture(scope="module")
def found(data):
    """The facts of the second run."""
    return gathered(data[-1], "two")


def gathered(path, run, runner=None):
    archive = open_archive(path)
    return report.gather(archive, complete_run(archive, run), runner or SerialRunner())


def test_the_differences_are_those_of_numpy(data, found):
    X, _, path = data
    labels = results(path, "two")[0]
    assert found["blocks"] == (6, 6)
    for v, view in enumerate(found["views"]):
        mean, deviation = np.nanmean(X[v], axis=0), np.nanstd(X[v], axis=0)
        for number in range(3):
            means = np.nanmean(X[v][labels == number], axis=0)
            effect = (means - mean) / deviation
            top = view["top"][number]
            assert [f["feature"] for f in top] == list(np.argsort(-np.abs(effect))[: report.FEATURES])
            np.testing.assert_allclose([f["effect"] for f in top], effect[[f["feature"] for f in top]], rtol=1e-6)
            np.testing.assert_allclose([f["mean"] for f in top], means[[f["feature"] for f in top]], rtol=1e-9)
        there = ~np.isnan(X[v][:, 0])
        groups = [X[v][there & (labels == number)] for number in range(3)]
        between = sum(len(g) * (g.mean(0) - mean) ** 2 for g in groups) / there.sum() / deviation**2
        assert view["explained"] == pytest.approx(between.mean(), rel=1e-6)
    assert found["views"][1]["missing"] == pytest.approx(0.2)
    assert sum(view["weight"] for view in found["views"]) == pytest.approx(1)


def test_sizes_confidence_and_the_nearest_are_those_of_numpy(data, found):
    _, classes, path = data
    labels, embedding, confidence = results(path, "two")
    assert dict(found["sizes"]) == {n: int((labels == n).sum()) for n in range(3)}
    np.testing.assert_array_equal(
        found["confidence"]["bins"], np.histogram(np.float64(confidence), profile.BINS, (0, 1))[0]
    )
    for number in range(3):
        rows = np.flatnonzero(labels == number)
        assert found["confidence"]["means"][number] == pytest.approx(confidence[rows].mean(dtype=float))
        centre = embedding[rows].mean(axis=0)
        nearest = rows[np.argsort(((embedding[rows] - centre) ** 2).sum(axis=1))[: report.NEAREST]]
        assert {row["id"] for row in found["nearest"][number]} == {str(i) for i in nearest}
        assert [row["class"] for row in found["nearest"][number]] == [
            str(classes[int(row["id"])]) for row in found["nearest"][number]
        ]
    shown = found["picture"]
    assert shown["ids"] == [str(i) for i in range(900)]
    assert shown["clusters"] == labels.tolist()


def test_processes_find_the_same_as_this_process(data, found):
    with cluster.embedded(2, cluster.parse_memory("2GiB")) as client:
        again = gathered(data[-1], "two", cluster.DaskRunner(client))
    assert {**found, "made": ""} == {**again, "made": ""}


def test_the_lowest_rows_are_kept_whatever_the_order_of_parts():
    rng = np.random.default_rng(0)
    whole = np.stack([rng.integers(0, 4, (3, 12)), np.argsort(rng.random((3, 12)), axis=1)], axis=-1).astype(float)
    expected = [sorted(map(tuple, rows))[:4] for rows in whole]
    nothing = (np.zeros(1), np.zeros(1))
    parts = [profile.Placement(*nothing, piece, *[np.zeros(0)] * 4) for piece in np.split(whole, 3, axis=1)]
    for order in ([0, 1, 2], [2, 0, 1]):
        merged = combine(*(parts[i] for i in order)).nearest
        assert [[tuple(row) for row in rows] for rows in merged] == expected


def test_a_constant_feature_far_from_zero_differs_nowhere():
    X = np.full((40, 2), 1e9)
    X[:, 1] += np.arange(40)
    rows, total, square = np.array([20.0, 20.0]), np.stack([X[:20].sum(0), X[20:].sum(0)]) - 20 * X[0], None
    square = ((X - X[0]) ** 2).sum(0)
    found = profile.differences(X[0], rows, total, square)
    assert found.effect[:, 0].tolist() == [0, 0]
    assert found.effect[1, 1] == -found.effect[0, 1] > 0.8


def test_the_report_names_the_run_before(data, found):
    assert found["previous"]["runs"] == ["one", "two"]
    archive = open_archive(data[-1])
    assert report.previous_run(archive, complete_run(archive, "one")) is None


def test_labels_stand_on_the_diagonal(found):
    truth = found["truth"]
    assert np.argmax(truth["counts"], axis=1).tolist() == [0, 1, 2]
    assert truth["samples"] == truth["shown"] == 900


def test_runs_that_update_and_that_assign_have_a_page_too(tmp_path):
    X, _ = blobs(400, (6, 5), 3, spread=3.0)
    path = archive_of(tmp_path / "a.zarr", X, block_rows=90, batches=2)
    import_batch(path, {f"v{i}": Rows(x[:100] + 0.01) for i, x in enumerate(X)}, name="new")
    archive = open_archive(path)
    old = open_archive(path).batches[:2]
    assert [b.name for b in old] == ["b0", "b1"]
    fit(path, 3, "acmvc", run="first", runner=SerialRunner())
    import_batch(path, {f"v{i}": Rows(x[:60] - 0.01) for i, x in enumerate(X)}, name="newer")
    update_job(path, run="second").run(SerialRunner())
    found = gathered(path, "second")
    assert found["previous"]["runs"] == ["first", "second"]
    html = page.render(found)
    assert "batch newer, sweep 1" in html
    assert "went on from" in html
    archive = open_archive(path)
    label_batches(archive.path, "first", ("newer",), "given", SerialRunner())
    html = page.render(gathered(path, "given"))
    assert "frozen model of run first" in html
    assert 'class="plot map"' not in html


def test_names_from_the_data_are_text(tmp_path):
    html = page.render(gathered(hostile.fitted_archive(tmp_path), "one"))
    assert html.count("<script") == html.count("</script") == 1
    assert not re.search("<(img|b onclick|b>it)", html)
    assert "{{ 7 * 7 }}" in html
    assert "bell␇" in html
    assert "x" * 300 not in html


def test_the_command_writes_a_page_that_asks_for_nothing(data, tmp_path, monkeypatch):
    *_, path = data
    monkeypatch.chdir(tmp_path)
    with cluster.embedded(1, 0, processes=False, threads=2) as client:
        where = ("--scheduler", client.scheduler.address)
        done = CliRunner().invoke(main, ["report", path, "--json", *where])
        assert done.exit_code == 0, done.output
        told = json.loads(done.stdout)
        assert told["run"] == "two"
        assert told["file"] == str(tmp_path / "a-two.html")
        html = (tmp_path / "a-two.html").read_text("utf-8")
        assert told["bytes"] == len(html.encode()) < 1 << 20
        assert not re.search(r"(src|href)=\"(?!#|data:,)|url\(|@import|https?:", html)
        assert CliRunner().invoke(main, ["report", path, "-o", "x.pdf", *where]).exit_code == 2
        assert CliRunner().invoke(main, ["report", path, "--run", "none", *where]).exit_code == 3
        assert CliRunner().invoke(main, ["report", path, "-o", "/proc/no/x.html", *where]).exit_code == 6


@pytest.mark.parametrize("n", [2, 3, 12])
def test_very_few_samples(tmp_path, n):
    X, _ = blobs(n, (4, 3), 2, spread=3.0)
    path = archive_of(tmp_path / "a.zarr", X)
    fit(path, 2, run="one", settings={"anchors": 2}, runner=SerialRunner())
    assert page.render(gathered(path, "one")).count("<circle") > n


def test_equal_samples(tmp_path):
    X = [np.repeat(np.eye(3), 40, axis=0), np.repeat(np.eye(3), 40, axis=0)]
    path = archive_of(tmp_path / "a.zarr", X)
    fit(path, 3, run="one", runner=SerialRunner())
    assert "<svg" in page.render(gathered(path, "one"))
