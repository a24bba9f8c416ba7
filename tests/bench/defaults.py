"""Which settings do well over all labelled sets, none of them chosen a set at a time: mean ACC, NMI and ARI.

    python tests/bench/defaults.py [--folder DIR] [--seeds 5] [--sets mfeat,ngs] [--only "EMVGC-LG;IMVC-CBG"] [--write]

The candidates stand below.  Labels score the outcome and choose nothing inside a fit.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np
from data import COMPLETE, FOLDER, available, load
from harness import CACHE, Cache, Job, automatic, run, write_section

METRICS = ("acc", "nmi", "ari")
INTRODUCTION = """## Defaults without labels

Mean over {sets}; {seeds} seeds; ± is the deviation of the mean ACC over the seeds
(`python tests/bench/defaults.py --each --write`).  A row without settings is a method's default; the others change what
they name.

"""


class Candidate(NamedTuple):
    """A method and its settings; `anchors` in clusters (2.0 is m = 2k)."""

    title: str
    method: str
    settings: tuple[tuple[str, object], ...] = ()
    anchors: float | None = None
    scale: str = "auto"
    batches: int = 1
    tol: float | None = None

    def jobs(self, sets: tuple[str, ...], clusters: dict[str, int], seeds: int) -> list[list[Job]]:
        """Return the jobs, a list a data set."""
        return [[self._job(name, clusters[name], seed) for seed in range(seeds)] for name in sets]

    def _job(self, name: str, k: int, seed: int) -> Job:
        anchors = () if self.anchors is None else (("anchors", round(self.anchors * k)),)
        return Job(name, self.method, seed, self.settings + anchors, self.scale, self.batches, tol=self.tol)


def candidates() -> list[Candidate]:
    """Return what is compared: each method's default first, then one thing changed at a time."""
    return [
        Candidate("k-means of the same scaled views", "kmeans"),
        Candidate(f"auto (complete data: {automatic()})", automatic()),
        Candidate("EMVGC-LG", "emvgc-lg"),
        Candidate("EMVGC-LG, first k vectors", "emvgc-lg", (("vectors", "k"),)),
        Candidate("EMVGC-LG, all m vectors", "emvgc-lg", (("vectors", "all"),)),
        *(
            Candidate(f"EMVGC-LG, m = {m}k, λ = {la}, μ = {mu}", "emvgc-lg", (("lambda", la), ("mu", mu)), m)
            for m, la, mu in ((2, 0.1, 1.0), (2, 0.01, 1.0), (3, 0.01, 0.1), (5, 0.1, 1.0))
        ),
        Candidate("EMVGC-LG, tolerance 1e-3", "emvgc-lg", tol=1e-3),
        Candidate("EMVGC-LG, tolerance 1e-4", "emvgc-lg", tol=1e-4),
        Candidate("IMVC-CBG", "imvc-cbg"),
        Candidate("IMVC-CBG, first k vectors", "imvc-cbg", (("vectors", "k"),)),
        *(
            Candidate(f"IMVC-CBG, m = {m}k, λ = {la}", "imvc-cbg", (("lambda", la),), m)
            for m, la in ((1, 0.1), (2, 1.0), (2, 0.1))
        ),
        Candidate("IMVC-CBG, tolerance 1e-3", "imvc-cbg", tol=1e-3),
        *(
            Candidate(f"ACMVC, {_batches(b)}{name}", "acmvc", settings, anchors, batches=b)
            for b in (1, 4)
            for name, settings, anchors in (
                ("", (), None),
                (", rows of F", (("vectors", "f"),), None),
                (", start from samples", (("init", "samples"),), None),
                (", m = 2k", (), 2.0),
                (", α = 10", (("alpha", 10.0),), None),
                (", β = 1", (("beta", 1.0),), None),
                (", β = 100", (("beta", 100.0),), None),
            )
            if b > 1 or "β" not in name
        ),
        *(
            Candidate(f"EMVGC-LG, {s} for every view", "emvgc-lg", scale=s) for s in ("unit", "zscore", "zunit")
        ),
        *(
            Candidate(f"k-means, {s} for every view", "kmeans", scale=s) for s in ("none", "unit", "zscore", "zunit")
        ),
    ]  # fmt: skip


def _batches(count: int) -> str:
    return "one batch" if count == 1 else f"{count} random batches"


def feasible(jobs: list[Job], rows: dict[str, int]) -> bool:
    """Return whether the first batch has as many rows as the method has anchors."""
    anchors = dict(jobs[0].settings).get("anchors", 0)
    return anchors * jobs[0].batches <= rows[jobs[0].data]


def table(found: list[tuple[str, np.ndarray]], sets: tuple[str, ...], each: bool) -> str:
    """Return Markdown: a row a candidate, means over the sets that it ran on; `found` holds (sets, seeds, 3)."""
    heads = ["", *(m.upper() for m in METRICS), "±", *(sets if each else ())]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for title, values in found:
        means = np.nanmean(values, axis=0)  # over the sets: (seeds, 3)
        cells = [f"{x:.3f}" for x in means.mean(axis=0)] + [f"{means[:, 0].std():.3f}"]
        cells += [f"{x:.3f}" for x in values[:, :, 0].mean(axis=1)] if each else []
        lines.append("| " + " | ".join([title, *cells]) + " |")
    return "\n".join(lines)


def measure(
    chosen: list[Candidate], sets: tuple[str, ...], seeds: int, cache: Cache, folder: Path
) -> list[tuple[str, np.ndarray]]:
    """Return each candidate's title and scores (sets, seeds, 3), NaN where it has more anchors than a batch rows."""
    loaded = {name: load(name, folder) for name in sets}
    rows, clusters = {n: len(d.labels) for n, d in loaded.items()}, {n: d.k for n, d in loaded.items()}
    del loaded
    plans = [[jobs if feasible(jobs, rows) else None for jobs in c.jobs(sets, clusters, seeds)] for c in chosen]
    run((job for plan in plans for jobs in plan for job in jobs or ()), cache, folder)
    blank = np.full((seeds, len(METRICS)), np.nan)
    return [
        (c.title, np.array([blank if jobs is None else cache.scores(jobs, METRICS) for jobs in plan]))
        for c, plan in zip(chosen, plans, strict=True)
    ]


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sets", default=",".join(COMPLETE))
    parser.add_argument("--only", default="", help="titles of candidates, with ; between them")
    parser.add_argument("--each", action="store_true", help="show ACC a data set")
    parser.add_argument("--write", action="store_true", help="write the section of RESULTS.md")
    given = parser.parse_args()
    sets = available(tuple(given.sets.split(",")), given.folder)
    if not sets:
        raise SystemExit(f"no data set of {given.sets} in {given.folder}")
    chosen = [c for c in candidates() if (c.title in given.only.split(";") if given.only else True)]
    found = measure(chosen, sets, given.seeds, Cache(given.cache), given.folder)
    text = table(found, sets, given.each)
    print(text)
    if given.write:
        write_section("defaults", INTRODUCTION.format(sets=", ".join(sets), seeds=given.seeds) + text)


if __name__ == "__main__":
    main()
