"""The same seed gives the same bits: serial, processes, threads, any number of workers, any memory limit, resumed.

Float64 data throughout: float32 block sums added in float64 are exact under any grouping, so they could not fail.
"""

import os

import numpy as np
import pytest
from arrays import archive_of, blobs, fingerprint

from aweigh.pipeline import cluster
from aweigh.pipeline.driver import SerialRunner
from aweigh.pipeline.run import fit

METHODS = ("emvgc-lg", "imvc-cbg", "acmvc")


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    X, labels = blobs(3000, (30, 12, 7), 6, spread=1.0)
    return archive_of(tmp_path_factory.mktemp("identity") / "a.zarr", X, labels, block_rows=70)


@pytest.fixture(scope="module")
def expected(archive):
    return {m: fingerprint(archive, fit(archive, 6, m, seed=3, runner=SerialRunner(), max_sweeps=5)) for m in METHODS}


def fitted(archive, client, method):
    return fingerprint(archive, fit(archive, 6, method, seed=3, runner=cluster.DaskRunner(client), max_sweeps=5))


@pytest.mark.parametrize("method", METHODS)
def test_the_serial_runner_repeats_itself(archive, expected, method):
    again = fit(archive, 6, method, seed=3, runner=SerialRunner(), max_sweeps=5)
    assert fingerprint(archive, again) == expected[method]


@pytest.mark.parametrize(("workers", "memory"), [(1, "2GiB"), (2, "1GiB"), (4, "700MiB")])
def test_processes_give_the_serial_bits(archive, expected, workers, memory):
    with cluster.embedded(workers, cluster.parse_memory(memory)) as client:
        for method in METHODS:
            assert fitted(archive, client, method) == expected[method], method


def test_blocks_kept_in_memory_give_the_same_bits_and_are_read_once(archive, expected):
    with cluster.embedded(2, cluster.parse_memory("2GiB")) as client:
        for cache, later in (("auto", 0), ("off", 3000 * (30 + 12 + 7) * 8)):
            record = fit(archive, 6, "emvgc-lg", seed=3, runner=cluster.DaskRunner(client), max_sweeps=5, cache=cache)
            assert fingerprint(archive, record) == expected["emvgc-lg"]
            assert [e["view_bytes"] for e in record["work"] if e["pass"] == "sweep"][1:] == [later] * 4


def test_threads_of_one_process_give_the_serial_bits(archive, expected, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with cluster.embedded(1, 0, processes=False, threads=4) as client:
        for _ in range(2):
            for method in METHODS:
                assert fitted(archive, client, method) == expected[method], method
    assert "OMP_NUM_THREADS" not in os.environ


def test_another_seed_gives_other_bits(archive, expected):
    other = fit(archive, 6, "emvgc-lg", seed=4, runner=SerialRunner(), max_sweeps=5)
    assert fingerprint(archive, other) != expected["emvgc-lg"]


class Interrupted(Exception):
    """Raised in the place of a kill."""


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("event", range(1, 13, 3))
def test_an_interrupted_run_resumes_to_the_same_bits(archive, expected, method, event):
    from aweigh.pipeline.events import PassDone

    seen = []

    def emit(told):
        if isinstance(told, PassDone):
            seen.append(told.phase)
            if len(seen) == event:
                raise Interrupted

    name = f"cut-{method}-{event}"
    with pytest.raises(Interrupted):
        fit(archive, 6, method, seed=3, runner=SerialRunner(), max_sweeps=5, run=name, emit=emit)
    record = fit(archive, 6, resume=True, run=name, runner=SerialRunner())
    assert fingerprint(archive, record) == expected[method]


def test_a_sweep_reads_the_views_exactly_once(archive):
    record = fit(archive, 6, "emvgc-lg", seed=3, runner=SerialRunner(), max_sweeps=3)
    whole = 3000 * (30 + 12 + 7) * 8
    work = {}
    for entry in record["work"]:
        work.setdefault(entry["pass"], []).append(entry)
    assert [e["view_bytes"] for e in work["sweep"]] == [whole] * 3
    assert [e["row_bytes"] for e in work["sweep"]] == [0] * 3
    assert [e["view_bytes"] for e in work["survey"]] == [whole]
    assert [e["view_bytes"] for e in work["sweep: embed"]] == [whole]
    assert record["passes"] == len(record["work"])


def test_carried_rows_are_counted_apart(archive):
    record = fit(archive, 6, "acmvc", seed=3, runner=SerialRunner(), max_sweeps=3)
    sweeps = [e for e in record["work"] if e["pass"] == "batch b0"]
    assert [e["view_bytes"] for e in sweeps] == [3000 * (30 + 12 + 7) * 8] * 3
    assert [e["row_bytes"] for e in sweeps] == [0, 3000 * 6 * 8, 3000 * 6 * 8]
    assert [e["rows_written"] for e in sweeps] == [3000 * 6 * 8] * 3


def test_groups_depend_on_the_number_of_blocks_alone():
    from aweigh.pipeline.task import groups

    for blocks in (1, 2, 19, 20, 21, 400, 12345):
        made = groups(blocks)
        assert np.concatenate([list(g) for g in made]).tolist() == list(range(blocks))
