"""Learning batch after batch: equal to one fit over all, old batches unread, cluster numbers kept."""

import json

import numpy as np
import pytest
from arrays import Rows, archive_of, blobs, fingerprint, results

from aweigh.algorithms.matching import match
from aweigh.io.archive import open_archive
from aweigh.io.batches import import_batch
from aweigh.io.errors import DataError, UsageError
from aweigh.io.runs import RunFolder, complete_run
from aweigh.pipeline.compare import compare, lines
from aweigh.pipeline.driver import SerialRunner
from aweigh.pipeline.events import PassDone
from aweigh.pipeline.results import open_dataset
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
    with pytest.raises(DataError, match="has seen every batch"):
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
