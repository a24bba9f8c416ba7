"""Many settings in the same passes: each equal to its own fit, read once; criteria, recommendation, consensus."""

import json
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from arrays import archive_of, blobs, fingerprint, results
from click.testing import CliRunner
from sklearn import metrics

from aweigh import algorithms
from aweigh.algorithms import criteria
from aweigh.algorithms.contract import Block, Sample, combine
from aweigh.algorithms.half import Half
from aweigh.io.archive import open_archive
from aweigh.io.errors import DataError, UsageError
from aweigh.io.runs import RECORD, RunFolder, run_names
from aweigh.pipeline import cluster, grid, plan, tune, tuned
from aweigh.pipeline.assign import label_batches
from aweigh.pipeline.cli import main
from aweigh.pipeline.driver import SerialRunner
from aweigh.pipeline.events import PassDone
from aweigh.pipeline.run import fit
from aweigh.pipeline.tune import Options, prepared

SWEEPS = 8
GRID = [
    *grid.settings(["emvgc-lg"], "3:5", None, ["lambda=0.01,1"]),
    *grid.settings(["imvc-cbg"], "4", "1k,2k", []),
    *grid.settings(["acmvc"], "3,4", None, []),
    *grid.settings(["emvgc-lg"], "6,7", "3k", []),
]


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    # Float64, so that another order of sums would show.
    X, labels = blobs(640, (20, 9, 6), 4, spread=1.5)
    return archive_of(tmp_path_factory.mktemp("tune") / "a.zarr", X, labels, block_rows=80)


@pytest.fixture(scope="module")
def own(archive):
    return [
        fit(archive, s.clusters, s.method, settings=s.settings, seed=3, max_sweeps=SWEEPS, runner=SerialRunner())
        for s in GRID
    ]


def tuned_record(archive, name, runner=None, settings=GRID, **more):
    options = Options(seed=3, max_sweeps=SWEEPS, seeds=more.pop("seeds", 1), halves=more.pop("halves", False))
    return prepared(archive, settings, options, name=name, **more).run(runner or SerialRunner())


def runs_of(archive, record):
    opened = open_archive(archive)
    return [RunFolder(opened, row["run"]).read_json(RECORD) for row in record["settings"]]


def same(archive, record, own):
    return [
        fingerprint(archive, a) == fingerprint(archive, b) for a, b in zip(runs_of(archive, record), own, strict=True)
    ]


def test_each_setting_equals_its_own_fit_and_the_views_are_read_once_for_all(archive, own):
    record = tuned_record(archive, "serial")
    assert len(GRID) == 12
    assert same(archive, record, own) == [True] * 12
    assert len({r["sweeps"] for r in own}) > 2, "settings must stop at different sweeps for this to be a test"
    longest = max(sum(e["view_bytes"] for e in r["work"] if not e["pass"].startswith(("k-", "label"))) for r in own)
    assert longest <= record["view_bytes"] <= 1.2 * longest


def test_workers_give_the_same_bits(archive, own):
    with cluster.embedded(1, 0, processes=False, threads=3) as client:
        record = tuned_record(archive, "dask", cluster.DaskRunner(client), GRID[::3])
    assert same(archive, record, own[::3]) == [True] * 4
    assert runs_of(archive, record)[0]["solved_on"].startswith("scheduler")


def test_methods_that_need_other_scalings_share_the_reading(tmp_path):
    X, _ = blobs(300, (8, 5), 3)
    path = archive_of(tmp_path / "a.zarr", X, block_rows=100)
    settings = [grid.Setting("l2sc", 3, {"steps": 2}), grid.Setting("emvgc-lg", 3, {})]
    own = [fit(path, s.clusters, s.method, settings=s.settings, seed=3, max_sweeps=4, runner=SerialRunner())
           for s in settings]  # fmt: skip
    record = prepared(path, settings, Options(seed=3, max_sweeps=4, seeds=1), name="t").run(SerialRunner())
    assert same(path, record, own) == [True, True]


def test_views_kept_in_memory_are_read_once(archive, own):
    with cluster.embedded(1, cluster.parse_memory("3GiB"), processes=False, threads=1) as client:
        record = tuned_record(archive, "kept", cluster.DaskRunner(client), GRID[:2])
    assert same(archive, record, own[:2]) == [True] * 2
    whole = 640 * (20 + 9 + 6) * 8
    assert record["view_bytes"] < 4 * whole  # probe and survey read raw blocks, the first sweep those that are kept


class Interrupted(Exception):
    """Raised in the place of a kill."""


@pytest.mark.parametrize("stop", [2, 9])
def test_an_interrupted_tune_goes_on_to_the_same_bits(archive, own, stop):
    seen = []

    def emit(event):
        seen.append(event) if isinstance(event, PassDone) else None
        if len(seen) == stop:
            raise Interrupted

    name = f"cut{stop}"
    with pytest.raises(Interrupted):
        tuned_record(archive, name, settings=GRID[:3], emit=emit)
    record = tuned_record(archive, name, settings=GRID[:3], resume=True)
    assert same(archive, record, own[:3]) == [True] * 3
    again = tuned_record(archive, name, settings=GRID[:3], resume=True)  # all complete: judged anew
    assert again["settings"] == record["settings"]
    assert again["view_bytes"] == 0
    with pytest.raises(UsageError, match="begun with other settings"):
        tuned_record(archive, name, settings=GRID[1:3], resume=True)


class Small(SerialRunner):
    """A runner whose workers have a limit."""

    def __init__(self, limit):
        super().__init__()
        self.most = limit

    def limit(self):
        return self.most


def test_settings_go_in_as_few_groups_as_memory_takes(archive, own):
    made = prepared(archive, GRID[:4], Options(seed=3, max_sweeps=SWEEPS, seeds=1), name="groups")
    floors = SerialRunner().floors()
    floored = tune._Floored(Small(None), floors)
    plans = [plan.fit_plan(made.archive, t.job.source, t.job.method, floored) for t in made.trials]
    assert plan.joint(plans).worker_peak_bytes > plan.joint(plans[:2]).worker_peak_bytes > plans[0].worker_peak_bytes
    pair = max(plan.joint(plans[:2]).worker_peak_bytes, plan.joint(plans[2:]).worker_peak_bytes)
    groups = made._groups(Small(pair), floors)
    assert [len(group) for group, _ in groups] == [2, 2]
    assert [len(group) for group, _ in made._groups(Small(None), floors)] == [4]
    with pytest.raises(DataError, match="a worker would hold"):
        made._groups(Small(plans[0].worker_peak_bytes // 2), floors)
    runner = Small(pair + (64 << 20))
    record = made.run(runner)
    assert same(archive, record, own[:4]) == [True] * 4


def test_criteria_are_those_of_scikit_learn(archive):
    record = tuned_record(archive, "criteria", settings=GRID[1:3], seeds=2, halves=True)
    for row in record["settings"]:
        labels, embedding, _ = results(archive, row["run"])
        assert row["calinski_harabasz"] == pytest.approx(metrics.calinski_harabasz_score(embedding, labels))
        assert row["davies_bouldin"] == pytest.approx(metrics.davies_bouldin_score(embedding, labels))
        assert row["silhouette"] == pytest.approx(metrics.silhouette_score(embedding, labels))
        seeded = fit(archive, row["clusters"], row["method"], settings=row["settings"], seed=4, max_sweeps=SWEEPS,
                     runner=SerialRunner())  # fmt: skip
        other = results(archive, seeded["run"])[0]
        assert row["stability"] == pytest.approx(metrics.adjusted_rand_score(labels, other))
        assert -0.5 < row["half_stability"] <= 1
    assert not [
        name for name in run_names(open_archive(archive)) if name.startswith("criteria-") and name.count("-") > 1
    ]


def test_silhouettes_of_odd_labels():
    X = np.random.default_rng(0).normal(size=(30, 3))
    labels = np.repeat([0, 1, 7], [1, 14, 15])
    assert criteria.silhouette(X, labels) == pytest.approx(metrics.silhouette_score(X, labels))
    assert criteria.silhouette(X, np.zeros(30, int)) is None
    assert criteria.silhouette(X[:3], np.arange(3)) is None


def test_the_eigengap_of_a_graph_in_pieces():
    Z = np.kron(np.eye(3), np.full((10, 2), 0.5))  # three groups of samples, two anchors each
    G = Z.T @ Z
    assert criteria.graph_eigenvalues(G) == pytest.approx([1, 1, 1, 0, 0, 0])
    assert criteria.eigengap(G, 3) == pytest.approx(1)
    assert criteria.eigengap(G, 2) == pytest.approx(0)
    assert criteria.eigengap(G, 6) is None


def test_the_consensus_gap_finds_the_number_that_clusterings_share():
    true = np.repeat(np.arange(4), 20)
    finer = true * 2 + np.tile([0, 1], 40)
    coarser = np.minimum(true, 2)
    gaps = criteria.consensus_gaps(np.column_stack([true, finer, coarser, true]), range(2, 9))
    assert max(gaps, key=gaps.get) == 4
    assert criteria.consensus_gaps(np.arange(3)[:, None], [2, 3])[3] is None


def test_halves_add_up_to_the_whole():
    X, _ = blobs(200, (6, 4), 3)
    block = Block(tuple(X), np.ones((200, 2), bool), np.arange(200), np.arange(200), np.zeros((200, 0)))
    method = algorithms.make("emvgc-lg", 3)
    model = method.start(Sample(tuple(X), block.present, block.positions), np.random.default_rng(0))
    parts = [Half(method, part, 5).sweep[0].step(model, block)[0] for part in (0, 1)]
    whole = method.step(model, block)[0]
    for a, b in zip(combine(*parts).ZtX, whole.ZtX, strict=True):
        np.testing.assert_allclose(a, b)
    assert 60 < parts[0].s.sum() < 140  # each row's weights sum to 1
    one = Block(*(tuple(x[:1] for x in field) if isinstance(field, tuple) else field[:1] for field in block[:5]))
    alone = [Half(method, part, 5).sweep[0].step(model, one)[0].s.sum() for part in (0, 1)]
    assert sorted(alone) == pytest.approx([0, 1])
    with pytest.raises(ValueError, match="no halves"):
        Half(algorithms.make("acmvc", 3), 0, 0)


def test_the_consensus_is_a_run_that_labels_new_rows(tmp_path):
    X, labels = blobs(500, (12, 7), 4, spread=2.0)
    path = archive_of(tmp_path / "a.zarr", [x[:400] for x in X], labels[:400], block_rows=90)
    settings = grid.settings(["emvgc-lg", "acmvc"], "3:5", None, ["emvgc-lg.lambda=0.01,0.1"])
    record = prepared(path, settings, Options(), name="t", combined="both").run(SerialRunner())
    assert record["recommended"]["clusters"] == 4
    found, embedding, _ = results(path, "both")
    assert metrics.adjusted_rand_score(found, labels[:400]) > 0.95
    assert record["consensus"]["run"] == "both"
    widths = [results(path, f"t-{i:03d}")[1].shape[1] for i in (2, 2, 5, 5, 8, 8) if i]
    assert embedding.shape == (400, sum(widths))
    np.testing.assert_allclose(np.linalg.norm(embedding, axis=1), np.sqrt(6), rtol=1e-6)

    from arrays import Rows

    from aweigh.io.batches import import_batch

    import_batch(path, {f"v{i}": Rows(x[400:]) for i, x in enumerate(X)}, name="new", labels=labels[400:])
    label_batches(path, "both", (), "placed", SerialRunner())
    batch = open_archive(path).batches[1]
    from aweigh.io.rows import ZarrRows

    placed = np.concatenate([ZarrRows(path, "runs/placed").read("labels", batch, i) for i in range(batch.blocks)])
    joined = metrics.adjusted_rand_score(np.append(found, placed), labels)
    assert joined > 0.95
    label_batches(path, "both", ("b0",), "back", SerialRunner())
    old = open_archive(path).batches[0]
    back = np.concatenate([ZarrRows(path, "runs/back").read("labels", old, i) for i in range(old.blocks)])
    np.testing.assert_array_equal(back, found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("5", (5,)), ("5:8", (5, 6, 7, 8)), ("2:10:4,3,2", (2, 6, 10, 3))],
)
def test_ranges(text, expected):
    assert grid.numbers(text) == expected


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["-k", "7:3"], 2, "ends before it begins"),
        (["-k", "3:x"], 2, "neither a number nor a range"),
        (["-k", "3:9:0"], 2, "steps of 1 or more"),
        (["-k", ""], 2, "neither a number nor a range"),
        (["-k", "2:100000"], 2, "more than 1000"),
        (["-k", "1:3"], 2, "at least 2 clusters"),
        (["-k", "3,901"], 3, "901 clusters were asked of 900"),
        (["-k", "3", "--set", "nothing=1,2"], 2, "no parameter 'nothing'"),
        (["-k", "3", "-m", "emvgc-lg,acmvc", "--set", "lambda=1,2"], 2, "write emvgc-lg.lambda"),
        (["-k", "3", "--set", "acmvc.alpha=1"], 2, "not one of the methods"),
        (["-k", "3", "--set", "lambda"], 2, "NAME=VALUES"),
        (["-k", "3", "--set", "lambda=1,,2"], 2, "empty value"),
        (["-k", "3", "--set", "lambda=x"], 2, "lambda='x'"),
        (["-k", "3:5", "--anchors", "4"], 2, "anchors=4 is less than k=5"),
        (["-k", "3:5", "--anchors", "xk"], 2, "multiple of k"),
        (["-k", "3", "-m", "nosuch"], 2, "no method 'nosuch'"),
        (["-k", "3", "--seeds", "1", "--consensus", "c"], 2, "two fits of the same k"),
        (["-k", "3", "--resume"], 2, "--run NAME"),
        (["-k", "3", "--run", "a/b"], 2, "a/b"),
        (["-k", "3", "-o", "nowhere/x.html"], 2, "nowhere/x.html"),
    ],
)
def test_bad_input_is_told_and_nothing_is_written(tmp_path, words, code, told):
    X, _ = blobs(900, (6, 5), 3)
    path = archive_of(tmp_path / "a.zarr", X)
    result = CliRunner().invoke(main, ["tune", path, *words])
    assert (result.exit_code, "Traceback" in result.output) == (code, False), result.output
    assert told in result.output
    assert not (tmp_path / "a.zarr" / "runs").exists()


def test_a_batch_imported_meanwhile_stops_a_resumed_tune(tmp_path):
    from arrays import Rows

    from aweigh.io.batches import import_batch

    X, _ = blobs(200, (6, 5), 3)
    path = archive_of(tmp_path / "a.zarr", X)
    prepared(path, GRID[:1], Options(seeds=1), name="t").run(SerialRunner())
    import_batch(path, {f"v{i}": Rows(x) for i, x in enumerate(X)}, name="more", ids=None)
    with pytest.raises(DataError, match="imported since"):
        prepared(path, GRID[:1], Options(seeds=1), name="t", resume=True)


class Tags(HTMLParser):
    """Every start tag with its attributes."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def test_from_the_command_line_to_a_page(tmp_path):
    X, _ = blobs(300, (8, 5), 3, spread=3.0)
    path = archive_of(tmp_path / "a.zarr", X)
    words = ["tune", path, "-k", "2:5", "--json", "--run", "t", "-o", str(tmp_path / "t.html"), "--workers", "1"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record["recommended"]["clusters"] == 3
    assert record["recommended"]["run"] == "t-002"
    assert [row["clusters"] for row in record["settings"]] == [2, 3, 4, 5]
    text = (tmp_path / "t.html").read_text("utf-8")
    tags = Tags(text).found
    assert sum(tag == "svg" for tag, _ in tags) == len(tuned.shown(record))
    assert not {tag for tag, _ in tags} & {"script", "link", "img", "iframe"}
    assert not [a for _, a in tags if {"src", "href", "onload"} & set(a)]
    shown = tuned.table(record)
    assert "recommended: emvgc-lg k=3 (run t-002)" in shown
    scored = CliRunner().invoke(main, ["export", path, "--run", "t-002", "--to", str(tmp_path / "x.csv")])
    assert scored.exit_code == 0, scored.output


def test_values_in_the_page_are_text(archive):
    record = tuned_record(archive, "page", settings=GRID[:1])
    row = {**record["settings"][0], "settings": {"lambda": '"><script>alert(1)</script>'}}
    text = tuned.page(
        {**record, "settings": [row], "recommended": {**record["recommended"], "settings": row["settings"]}}
    )
    assert not [tag for tag, _ in Tags(text).found if tag == "script"]


def test_a_failing_fit_stops_the_others(archive, monkeypatch):
    made = prepared(archive, GRID[:3], Options(seeds=1), name="failing")
    made.trials[1].job.request = replace(made.trials[1].job.request, scale="minmax")
    monkeypatch.setattr(made.trials[1].job, "run", lambda runner: (_ for _ in ()).throw(DataError("broken on purpose")))
    with pytest.raises(DataError, match="broken on purpose"):
        made.run(SerialRunner())
