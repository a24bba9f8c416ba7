"""One clustering of one data set, scored; many of them over two processes, each remembered in a JSON file."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import json
import multiprocessing
import os
import platform
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import threadpoolctl
from data import FOLDER, DataSet, load, masked

from aweigh import algorithms
from aweigh.algorithms import kmeans, scaling
from aweigh.algorithms.scores import contingency, scores
from aweigh.pipeline.estimator import MultiViewClustering

METRICS = ("acc", "nmi", "ari", "purity", "ri")
RESULTS = Path(__file__).resolve().parent / "RESULTS.md"
CACHE = Path(tempfile.gettempdir()) / "aweigh-bench.json"


@dataclass(frozen=True)
class Job:
    """A data set (`name`, `name@SHARE` under a mask, `views` of it), a method with its settings, a seed.

    `batches`: how many random batches the rows come in, one after the other; "stored" for those that are published,
    "task" for the tasks of the data set.  `each` scores every batch by itself and takes the mean.  `method` "kmeans" is
    k-means of the scaled views side by side.
    """

    data: str
    method: str
    seed: int
    settings: tuple[tuple[str, Any], ...] = ()
    scale: str = "auto"
    batches: int | str = 1
    views: tuple[int, ...] | None = None
    tol: float | None = None
    each: bool = False

    @property
    def key(self) -> str:
        """Name of the result: every parameter of the method, so that a changed default is measured anew."""
        given = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if getattr(self, f.name) != f.default}
        return json.dumps(given | {"parameters": _parameters(self.method)}, sort_keys=True)


def _parameters(method: str) -> dict[str, Any]:
    if method == "kmeans":
        return {}
    kind = algorithms.METHODS[method]
    return {
        "tol": kind.tol,
        "max_sweeps": kind.max_sweeps,
        "m": getattr(kind(10), "m", None),
        **algorithms.parameters(method),
    }


@functools.cache
def automatic() -> str:
    """Return the method that `-m auto` takes for complete data."""
    X = np.random.default_rng(0).normal(size=(40, 3))
    return MultiViewClustering(2, max_sweeps=1).fit([X, X + 1]).method_


@dataclass
class Cache:
    """Results by key in one JSON file, written as they come."""

    path: Path
    found: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path.is_file():
            self.found = json.loads(self.path.read_text())

    def add(self, job: Job, result: list[float]) -> None:
        """Keep one result."""
        self.found[job.key] = result
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps(self.found))
        os.replace(fresh, self.path)

    def scores(self, jobs: Iterable[Job], metrics: tuple[str, ...]) -> np.ndarray:
        """Return the scores asked for (jobs, metrics)."""
        return np.array([[self.found[job.key][METRICS.index(m)] for m in metrics] for job in jobs])


def run(jobs: Iterable[Job], cache: Cache, folder: Path = FOLDER, processes: int = 2, tell: Any = print) -> None:
    """Run the jobs that the cache lacks, `processes` at a time."""
    todo = [job for job in dict.fromkeys(jobs) if job.key not in cache.found]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        work = functools.partial(_result, folder=folder)
        for done, (job, result) in enumerate(pool.imap_unordered(work, todo), 1):
            cache.add(job, result)
            if tell and (done % 50 == 0 or done == len(todo)):
                tell(f"{done} of {len(todo)}", flush=True)


def _result(job: Job, folder: Path) -> tuple[Job, list[float]]:
    data = _load(job.data, job.views, folder)
    parts = _parts(data, job, folder)
    with threadpoolctl.threadpool_limits(1):
        labels = cluster(data, job, parts)
    size = max(data.k, int(labels.max()) + 1)
    whole = [np.concatenate(parts)]
    found = []
    for part in parts if job.each else whole:
        score = scores(contingency(labels[part], data.labels[part], size, size))
        found.append([score[metric] for metric in METRICS])
    return job, np.mean(found, axis=0).tolist()


@functools.lru_cache(maxsize=2)
def _load(name: str, views: tuple[int, ...] | None, folder: Path) -> DataSet:
    name, _, share = name.partition("@")
    data = load(name, folder)
    data = masked(data, share, folder) if share else data
    return data.choose(views) if views else data


def cluster(data: DataSet, job: Job, parts: list[np.ndarray]) -> np.ndarray:
    """Return the cluster number of every row of the data set; `parts` are the batches' rows."""
    if job.method == "kmeans":
        rows = np.hstack(scaled(data.views, job.scale))
        return kmeans.cluster(rows, data.k, np.random.default_rng(job.seed), starts=10)
    model = MultiViewClustering(
        data.k, method=job.method, scale=job.scale, settings=dict(job.settings), tol=job.tol, random_state=job.seed
    )
    for part in parts:
        model.partial_fit([X[part] for X in data.views])
    labels = np.empty(len(data.labels), np.int64)
    labels[np.concatenate(parts)] = model.labels_
    return labels


def _parts(data: DataSet, job: Job, folder: Path) -> list[np.ndarray]:
    n = len(data.labels)
    if job.batches == 1:
        return [np.arange(n)]
    if job.batches == "task":
        return [np.flatnonzero(data.others["task"] == t) for t in np.unique(data.others["task"])]
    if job.batches == "stored":
        stored = load_batches(data.name, folder)
        return [stored["order"][stored["batch"] == t] for t in range(int(stored["batch"].max()) + 1)]
    return np.array_split(np.random.default_rng(job.seed).permutation(n), job.batches)


def load_batches(name: str, folder: Path = FOLDER) -> dict[str, np.ndarray]:
    """Return the published order of a set's rows and the batch of each."""
    with np.load(folder / f"{name}_batches.npz", allow_pickle=False) as stored:
        return {key: stored[key] for key in ("order", "batch")}


def scaled(views: tuple[np.ndarray, ...], kind: str) -> list[np.ndarray]:
    """Return the views as a fit would scale them; a missing row is zero."""
    out = []
    for X in views:
        present = ~np.isnan(X).all(axis=1)
        X = np.where(present[:, None], X, 0).astype(X.dtype)
        shift = X[present].mean(axis=0, dtype=np.float64)
        chosen = scaling.choose(kind, *scaling.survey_view(X, present, shift), shift=shift)
        out.append(scaling.apply(chosen, X, present))
    return out


def write_section(name: str, text: str, path: Path = RESULTS) -> None:
    """Put `text` between the markers of a section of RESULTS.md, at its end where it has none."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    old = path.read_text() if path.is_file() else "# Results of the benches\n"
    section = f"{begin}\n{text}\n{end}"
    if begin in old:
        head, rest = old.split(begin, 1)
        new = head + section + rest.split(end, 1)[1]
    else:
        new = f"{old.rstrip()}\n\n{section}\n"
    path.write_text(new)


@contextlib.contextmanager
def recorded(name: str, title: str, write: bool) -> Iterator[None]:
    """A context whose prints are shown, and put into a section of RESULTS.md with the versions where `write`."""
    told = io.StringIO()

    class Both(io.TextIOBase):
        def write(self, text: str) -> int:
            sys.__stdout__.write(text)  # type: ignore[union-attr]
            return told.write(text)

    with contextlib.redirect_stdout(Both()):
        yield
    if write:
        packages = ", ".join(f"{p} {version(p)}" for p in ("aweigh", "numpy", "numba", "zarr", "distributed"))
        words = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
        how = f"`python tests/bench/{words}`, Python {platform.python_version()}, {packages}."
        write_section(name, f"## {title}\n\n{how}\n\n```text\n{told.getvalue().rstrip()}\n```")
