"""Learning batch after batch: equal to one fit over all, old batches unread, cluster numbers kept."""

import json

import numpy as np
import pytest
from arrays import Rows, archive_of, blobs, fingerprint, results

from aweigh.algorithms.matching import match
from aweigh.algorithms.scores import contingency, scores
from aweigh.io.archive import open_archive
from aweigh.io.batches import import_batch
from aweigh.io.errors import DataError, UsageError
from aweigh.io.rows import ZarrRows
from aweigh.io.runs import RunFolder, complete_run
from aweigh.pipeline.assign import label_batches
from aweigh.pipeline.compare import compare, lines
from aweigh.pipeline.driver import SerialRunner
from aweigh.pipeline.events import PassDone
from aweigh.pipeline.freeze import frozen_run
from aweigh.pipeline.results import batches_of, open_dataset
from aweigh.pipeline.run import fit
from aweigh.pipeline.updating import update_job

NIGHTS = 4


@pytest.fixture(scope="module")
def data():
    return blobs(1200, (20, 9), 5, spread=1.2)


@pytest.fixture(scope="module")
def nights(tmp_path_factory, data):
    """An archive that grew by one batch a night, each learnt by `update`."""
    X, _ = data
    path = tmp_path_factory.mktemp("nights") / "a.zarr"
    records = []
    for t, rows in enumerate(np.array_split(np.arange(1200), NIGHTS)):
        import_batch(path, {f"v{i}": Rows(x[rows]) for i, x in enumerate(X)}, name=f"b{t}", block_rows=50)
        if t == 0:
            records.append(fit(str(path), 5, "acmvc", runner=SerialRunner(), run="n0"))
        else:
            records.append(update_job(str(path), run=f"n{t}").run(SerialRunner()))
    return str(path), records


def test_updates_equal_one_fit_over_all_batches(nights, data, tmp_path):
    path, records = nights
    whole = archive_of(tmp_path / "w.zarr", data[0], block_rows=50, batches=NIGHTS)
    once = fit(whole, 5, "acmvc", runner=SerialRunner(), run="whole")
    labels, embedding, _ = results(path, f"n{NIGHTS - 1}")
    expected, same, _ = results(whole, "whole")
    np.testing.assert_array_equal(embedding, same)
    assert records[-1]["objective"] == once["objective"]
    numbers = np.array(records[-1]["numbers"])
    np.testing.assert_array_equal(labels, numbers[expected])


def test_updates_read_no_old_views(nights):
    for record in nights[1][1:]:
        batch = 300 * 29 * 8
        read = [entry["view_bytes"] for entry in record["work"] if entry["pass"].startswith(("batch ", "drift"))]
        assert set(read) == {batch}
        others = {e["pass"] for e in record["work"] if not e["pass"].startswith(("batch ", "drift"))}
        assert others <= {"embeddings of earlier batches", "k-means: sample", "k-means", "match", "label"}


def test_numbers_stay(nights):
    path, _ = nights
    archive = open_archive(path)
    for t in range(1, NIGHTS):
        found = compare(archive, RunFolder(archive, f"n{t - 1}"), RunFolder(archive, f"n{t}"))
        assert found["moved"] < 0.1
        assert found["samples"] == 300 * t
        assert "samples in both" in lines(found)[0]
        json.dumps(found, allow_nan=False)


class Interrupted(Exception):
    """Raised in the place of a kill."""


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.7, 0.9])
def test_an_interrupted_update_resumes_to_the_same_bits(data, tmp_path, share):
    X, _ = data
    path = archive_of(tmp_path / "a.zarr", [x[:600] for x in X], block_rows=50)
    fit(path, 5, "acmvc", runner=SerialRunner(), run="old")
    import_batch(path, {f"v{i}": Rows(x[600:]) for i, x in enumerate(X)}, name="b1", block_rows=50)
    expected = update_job(path, run="whole").run(SerialRunner())
    seen, event = [], 1 + int(share * (len(expected["work"]) - 1))

    def emit(told):
        if isinstance(told, PassDone):
            seen.append(told.phase)
            if len(seen) == event:
                raise Interrupted

    with pytest.raises(Interrupted):
        update_job(path, "old", run="cut", emit=emit).run(SerialRunner())
    record = fit(path, 5, resume=True, run="cut", runner=SerialRunner())
    assert fingerprint(path, record) == fingerprint(path, expected)
    assert record["numbers"] == expected["numbers"]
    assert record["updated_from"] == "old"


def test_nothing_new_is_said_so(nights):
    with pytest.raises(DataError, match="has learnt every batch"):
        update_job(nights[0])


def test_a_method_that_learns_all_rows_together_does_not_update(data, tmp_path):
    path = archive_of(tmp_path / "a.zarr", data[0], block_rows=100)
    fit(path, 5, "emvgc-lg", runner=SerialRunner())
    with pytest.raises(UsageError, match="learns all rows together"):
        update_job(path)


def test_runs_without_a_shared_batch_do_not_compare(nights, tmp_path):
    archive = open_archive(nights[0])
    first, last = complete_run(archive, "n0"), complete_run(archive, f"n{NIGHTS - 1}")
    assert compare(archive, first, last)["batches"] == ["b0"]


def test_matching_keeps_numbers_and_never_gives_one_again():
    table = np.array([[50, 0, 2], [0, 0, 40], [0, 0, 0]])
    found = match(table, np.array([4, 7, 9]), 10)
    assert found.numbers.tolist() == [4, 10, 7]
    assert found.births == (10,)
    assert found.deaths == (9,)
    assert found.small == (9,)


def test_matching_names_splits_and_merges():
    found = match(np.array([[30, 30, 0], [0, 0, 20], [0, 0, 20]]), np.arange(3), 3)
    assert found.splits == ((0, (0, 3)),) or found.splits[0][0] == 0
    assert found.merges[0][1] == (1, 2)


def test_a_run_opens_with_xarray_beside_its_batch(nights):
    archive = open_archive(nights[0])
    found = open_dataset(archive, "b3", complete_run(archive, f"n{NIGHTS - 1}"))
    assert found["v0"].dims == ("sample", "feature_v0")
    assert found["labels"].dims == found["confidence"].dims == ("sample",)
    np.testing.assert_array_equal(found["labels"].values, results(nights[0], f"n{NIGHTS - 1}")[0][900:])


def grown(path, X, method, nights=3, **more):
    """An archive of two batches with a fit of the first one, named "old"."""
    first, *others = np.array_split(np.arange(len(X[0])), nights)
    import_batch(path, {f"v{i}": Rows(x[first]) for i, x in enumerate(X)}, name="b0", block_rows=50)
    record = fit(str(path), 5, method, runner=SerialRunner(), run="old", **more)
    for t, rows in enumerate(others):
        import_batch(path, {f"v{i}": Rows(x[rows]) for i, x in enumerate(X)}, name=f"b{t + 1}", block_rows=50)
    return record


def of_run(path, run, names=("labels", "embedding")):
    """{batch: (labels, embedding)} of a run."""
    archive = open_archive(path)
    rows, found = ZarrRows(archive.path, f"runs/{run}"), {}
    for batch in batches_of(archive, RunFolder(archive, run)):
        found[batch.name] = [np.concatenate([rows.read(name, batch, i) for i in range(batch.blocks)]) for name in names]
    return found


@pytest.mark.parametrize("method", ["emvgc-lg", "imvc-cbg"])
def test_a_refit_goes_on_from_the_model_and_keeps_numbers(data, tmp_path, method):
    X, classes = data
    path = str(tmp_path / "a.zarr")
    grown(path, X, method)
    record = update_job(path, how="refit", run="new").run(SerialRunner())
    cold = fit(path, 5, method, runner=SerialRunner(), run="cold")
    assert record["objective"][0] < 1.05 * cold["objective"][-1]
    found = compare(open_archive(path), *(RunFolder(open_archive(path), run) for run in ("old", "new")))
    assert found["moved"] < 0.05
    labels = np.concatenate([labels for labels, _ in of_run(path, "new").values()])
    assert scores(contingency(labels, classes, 5, 5))["acc"] > 0.95
    assert not any("scaling" in e["pass"] or e["pass"] == "survey" for e in record["work"])


@pytest.mark.parametrize("method", ["emvgc-lg", "acmvc"])
def test_a_frozen_run_covers_all_rows_and_leaves_old_ones(data, tmp_path, method):
    path = str(tmp_path / "a.zarr")
    grown(path, data[0], method)
    record = frozen_run(path, None, run="new", runner=SerialRunner())
    assert record["samples"] == sum(record["sizes"]) == 1200
    old, new = of_run(path, "old"), of_run(path, "new")
    assert list(new) == ["b0", "b1", "b2"]
    for a, b in zip(old["b0"], new["b0"], strict=True):
        np.testing.assert_array_equal(a, b)
    placed = label_batches(path, "old", ("b1", "b2"), "placed", SerialRunner())
    assert placed["samples"] == 800
    for name, (labels,) in of_run(path, "placed", ("labels",)).items():
        np.testing.assert_array_equal(labels, new[name][0])
    with pytest.raises(DataError, match="has labelled every batch"):
        frozen_run(path, "new", runner=SerialRunner())


def test_frozen_batches_are_learnt_by_the_next_update(data, tmp_path):
    path = str(tmp_path / "a.zarr")
    grown(path, data[0], "acmvc")
    frozen_run(path, None, run="ice", runner=SerialRunner())
    thawed = update_job(path, "ice", run="thawed").run(SerialRunner())
    straight = update_job(path, "old", run="straight").run(SerialRunner())
    assert thawed["objective"] == straight["objective"]
    for name, (_, embedding) in of_run(path, "thawed").items():
        np.testing.assert_array_equal(embedding, of_run(path, "straight")[name][1])


def test_a_refit_is_not_for_methods_that_learn_batch_after_batch(nights):
    with pytest.raises(UsageError, match="would give the same"):
        update_job(nights[0], "n0", how="refit")


def test_runs_of_different_rows_are_matched_by_their_means(data, tmp_path):
    path = str(tmp_path / "a.zarr")
    grown(path, data[0], "acmvc", nights=2)
    label_batches(path, "old", ("b1",), "other", SerialRunner())
    archive = open_archive(path)
    found = compare(archive, RunFolder(archive, "old"), RunFolder(archive, "other"))
    assert found["matched"] == [(i, i) for i in range(5)]
    assert (found["samples"], found["moved"], found["births"], found["deaths"]) == (0, None, [], [])
    assert "share no sample" in lines(found)[0]
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("reencode", [False, True])
def test_l2sc_updates_equal_one_fit(data, tmp_path, reencode):
    path = str(tmp_path / "a.zarr")
    more = {"settings": {"reencode": reencode, "steps": 3}, "max_sweeps": 2, "scale": "none"}
    X = [np.abs(x[:360]) for x in data[0]]
    whole = archive_of(tmp_path / "v.zarr", X, block_rows=40, batches=3)
    once = fit(whole, 5, "l2sc", runner=SerialRunner(), run="whole", **more)
    for t, rows in enumerate(np.array_split(np.arange(360), 3)):
        import_batch(path, {f"v{i}": Rows(x[rows]) for i, x in enumerate(X)}, name=f"b{t}", block_rows=40)
        record = (
            update_job(path, run=f"n{t}").run(SerialRunner())
            if t
            else fit(path, 5, "l2sc", runner=SerialRunner(), run="n0", **more)
        )
    labels, embedding, _ = results(path, "n2")
    expected, same, _ = results(whole, "whole")
    np.testing.assert_array_equal(embedding, same)
    np.testing.assert_array_equal(labels, np.array(record["numbers"])[expected])
    assert record["objective"] == once["objective"]
    old = {e["pass"] for e in record["work"] if e["pass"].startswith(("batch b0", "batch b1"))}
    assert bool(old) == reencode  # earlier tasks are read again only to be brought up to date


@pytest.mark.parametrize("method", ["acmvc", "l2sc"])
def test_a_task_with_fewer_true_clusters(tmp_path, method):
    X, classes = blobs(600, (20, 9), 5, spread=3.0)
    order = np.r_[np.arange(400), 400 + np.flatnonzero(classes[400:] < 3)]
    X, classes = [x[order] - min(0, x.min()) for x in X], classes[order]
    path = str(tmp_path / "a.zarr")
    for t, rows in enumerate((np.arange(400), np.arange(400, len(order)))):
        import_batch(path, {f"v{i}": Rows(x[rows]) for i, x in enumerate(X)}, name=f"b{t}", labels=classes[rows])
        if not t:
            fit(path, 5, method, runner=SerialRunner(), run="n0")
    update_job(path, run="n1").run(SerialRunner())
    found = np.concatenate([labels for labels, _ in of_run(path, "n1").values()])
    assert scores(contingency(found[400:], classes[400:], 5, 5))["purity"] > 0.9
    assert scores(contingency(found, classes, 5, 5))["acc"] > 0.9
