"""A sweep of each method against the bare pass: read every chunk, X A', Z'X, in as many plain processes.

python tests/bench/roofline.py [--rows 1000000] [--workers 2] [--repeats 3] [--cached]
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import threadpoolctl
from synthetic import make

from aweigh.io.archive import BatchReader, open_archive
from aweigh.pipeline import cluster
from aweigh.pipeline.events import SweepDone
from aweigh.pipeline.run import fit

FEATURES, K, M = (512, 256, 64), 20, 40
KEPT: dict[int, list] = {}


def bare(path: str, first: int, last: int, kept: bool) -> float:
    """Return the seconds of the bare pass over some blocks, from the disk or from blocks kept in this process."""
    threadpoolctl.threadpool_limits(1, user_api="blas")
    archive = open_archive(path)
    reader = BatchReader(path, archive.batches[0])
    rng = np.random.default_rng(0)
    A = [rng.normal(size=(M, d)).astype(np.float32) for d in FEATURES]
    sums = [np.zeros((M, d)) for d in FEATURES]
    began = time.perf_counter()
    for block in range(first, last):
        views = KEPT.get(block) if kept else None
        if views is None:
            views = [reader.view(name, block) for name in archive.views]
            if kept:
                KEPT[block] = views
        Z = sum(X @ a.T for X, a in zip(views, A, strict=True))
        for total, X in zip(sums, views, strict=True):
            total += Z.T @ X
    return time.perf_counter() - began


def bare_pass(pool: list, path: str, kept: bool) -> float:
    """Return the wall seconds of one bare pass over all blocks in all processes."""
    blocks = open_archive(path).batches[0].blocks
    cuts = np.linspace(0, blocks, len(pool) + 1).astype(int)
    began = time.perf_counter()
    asked = [
        one.apply_async(bare, (path, int(a), int(b), kept)) for one, a, b in zip(pool, cuts, cuts[1:], strict=False)
    ]
    [one.get() for one in asked]
    return time.perf_counter() - began


def sweeps(path: str, client: object, method: str, settings: dict, scale: str, cache: str, count: int) -> list[float]:
    """Return the wall seconds of each sweep but the first, which warms and fills what is kept."""
    at: list[float] = []

    def emit(event: object) -> None:
        if isinstance(event, SweepDone) and event.phase != "k-means":
            at.append(time.perf_counter())

    fit(
        path, K, method, scale=scale, settings=settings, max_sweeps=count + 1, tol=-1.0,
        runner=cluster.DaskRunner(client), cache=cache, emit=emit,
    )  # fmt: skip
    return np.diff(at).tolist()


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=lambda text: int(float(text)), default=1_000_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cached", action="store_true", help="keep the blocks in memory on both sides")
    parser.add_argument("--folder")
    given = parser.parse_args()
    folder = Path(given.folder or tempfile.mkdtemp())
    path = str(folder / f"roofline-{given.rows}.zarr")
    if not Path(path, "manifest.json").exists():
        make(path, given.rows, list(FEATURES), K, labelled=False)
    cache = "on" if given.cached else "off"
    pool = [multiprocessing.get_context("spawn").Pool(1) for _ in range(given.workers)]
    bare_pass(pool, path, given.cached)
    cases = [
        ("imvc-cbg", {"anchors": M}, "none"), ("acmvc", {"anchors": M}, "none"), ("emvgc-lg", {"anchors": M}, "none"),
        ("imvc-cbg", {"anchors": M}, "zunit"), ("emvgc-lg", {"anchors": M}, "zunit"),
    ]  # fmt: skip
    kind = "cached" if given.cached else "uncached"
    print(f"{given.rows} rows of {FEATURES}, m = {M}, {given.workers} processes, {kind}")
    with cluster.embedded(given.workers, cluster.parse_memory("8GiB")) as client:
        for method, settings, scale in cases:
            before = [bare_pass(pool, path, given.cached) for _ in range(given.repeats)]
            times = sweeps(path, client, method, settings, scale, cache, given.repeats)
            after = [bare_pass(pool, path, given.cached) for _ in range(given.repeats)]
            floor, sweep = statistics.median(before + after), statistics.median(times)
            print(f"{method:10} {scale:6} sweep {sweep:6.2f} s   bare pass {floor:6.2f} s   ratio {sweep / floor:.2f}")


if __name__ == "__main__":
    main()
