"""How often the recommended number of clusters is right, and what a consensus gains, over the complete labelled sets.

    python tests/bench/tune.py [--folder DIR] [--sets mfeat,ngs] [-k 2:20] [--part k|consensus|both] [--write]

Labels score the outcome and choose nothing.  `aweigh tune` runs as it stands, on the serial runner.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from data import COMPLETE, FOLDER, DataSet, available, load
from harness import write_section

from aweigh.io.archive import open_archive
from aweigh.io.batches import import_batch
from aweigh.io.runs import RunFolder
from aweigh.pipeline import grid, results
from aweigh.pipeline.driver import SerialRunner
from aweigh.pipeline.tune import CRITERIA, RULE, Options, prepared

KEPT = Path(tempfile.gettempdir()) / "aweigh-bench-tune.json"
MOST = 20  # a range that stops here says nothing of a set with more classes
METRICS = ("acc", "nmi", "ari")
CONSENSUSES = {
    "EMVGC-LG, 8 settings": (["emvgc-lg"], "1k,2k,3k,5k", ["emvgc-lg.lambda=0.01,0.1"]),
    "ACMVC, 2 settings": (["acmvc"], "3k,5k", []),
    "EMVGC-LG and ACMVC, 2 settings each": (["emvgc-lg", "acmvc"], "3k,5k", []),
    "EMVGC-LG, ACMVC and IMVC-CBG, defaults": (["emvgc-lg", "acmvc", "imvc-cbg"], None, []),
}
SINGLES = {"EMVGC-LG, default": "emvgc-lg", "ACMVC, default": "acmvc", "IMVC-CBG, default": "imvc-cbg"}


class Rows:
    """An import source over an array in memory."""

    def __init__(self, x: np.ndarray) -> None:
        self.array, self.rows, self.columns, self.dtype = x, *x.shape, x.dtype

    def blocks(self, rows: int) -> Any:
        """Yield pieces of so many rows."""
        for first in range(0, self.rows, rows):
            yield np.ascontiguousarray(self.array[first : first + rows])

    def describe(self) -> str:
        """Return what it is."""
        return "an array"


def imported(data: DataSet, folder: str) -> str:
    """Return the path of an archive of one set."""
    path = f"{folder}/{data.name}.zarr"
    import_batch(path, {f"v{i}": Rows(x) for i, x in enumerate(data.views)}, name="all", labels=data.labels)
    return path


def chosen_k(data: DataSet, ks: str, method: str, seed: int) -> dict[str, int]:
    """Return the k that each criterion takes."""
    with tempfile.TemporaryDirectory() as folder:
        settings = grid.settings([method], ks, None, [])
        record = prepared(imported(data, folder), settings, Options(seed=seed, halves=True), name="t").run(
            SerialRunner()
        )
    return dict(record["recommended"]["choices"])


def scored(data: DataSet, seed: int) -> dict[str, list[float]]:
    """Return the scores at the true k of single defaults and of consensuses."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        path = imported(data, folder)
        for number, (title, (methods, anchors, sets)) in enumerate(CONSENSUSES.items()):
            settings = grid.settings(methods, str(data.k), anchors, sets)
            settings = [s for s in settings if int(s.settings.get("anchors", 0)) <= len(data.labels)]
            prepared(path, settings, Options(seed=seed), name=f"t{number}", combined=f"c{number}").run(SerialRunner())
            found[title] = _scores(path, f"c{number}")
        for title, method in SINGLES.items():
            settings = grid.settings([method], str(data.k), None, [])
            record = prepared(path, settings, Options(seed=seed, seeds=1), name=method).run(SerialRunner())
            found[title] = _scores(path, record["recommended"]["run"])
    return found


def _scores(path: str, run: str) -> list[float]:
    opened = open_archive(path)
    values = results.score(opened, RunFolder(opened, run))
    return [values[metric] for metric in METRICS]


def table_of_k(found: dict[str, dict[str, int]], true: dict[str, int]) -> str:
    """Return Markdown: a row a criterion, its k a set, and in how many of the sets with k <= 20 it is within 1."""
    sets = list(found)
    lines = [
        "| criterion | within 1 | " + " | ".join(f"{n} ({true[n]})" for n in sets) + " |",
        "|---" * (len(sets) + 2) + "|",
    ]
    judged = [n for n in sets if true[n] <= MOST]
    for name in CRITERIA:
        right = sum(abs(found[n][name] - true[n]) <= 1 for n in judged if name in found[n])
        cells = [str(found[n].get(name, "-")) for n in sets]
        title = f"**{name}** (recommends)" if name == RULE else name
        lines.append(f"| {title} | {right} of {len(judged)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def table_of_scores(found: dict[str, dict[str, list[float]]]) -> str:
    """Return Markdown: a row a candidate, means over the sets."""
    sets = list(found)
    lines = ["| | ACC | NMI | ARI | " + " | ".join(sets) + " |", "|---" * (len(sets) + 4) + "|"]
    for title in [*SINGLES, *CONSENSUSES]:
        values = np.array([found[name][title] for name in sets])
        cells = [f"{x:.3f}" for x in (*values.mean(0), *values[:, 0])]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def kept(key: str, make: Any) -> Any:
    """Return a result from the file of results, made now where it is not there."""
    found = json.loads(KEPT.read_text()) if KEPT.is_file() else {}
    if key not in found:
        value = make()
        found = json.loads(KEPT.read_text()) if KEPT.is_file() else {}
        found[key] = value
        fresh = KEPT.with_suffix(".new")
        fresh.write_text(json.dumps(found))
        os.replace(fresh, KEPT)
    return found[key]


INTRODUCTION = """## Choosing k without labels, and the consensus

`python tests/bench/tune.py --write`: `aweigh tune -k {ks} --halves` on each complete set, seed {seed}; true numbers of
classes in brackets (100leaves has more than the range, and is not counted).

{first}

How the rule was chosen: on these sets with another harness of the same method, out of single criteria and of rank sums
and products of two or three; ranges 2:12, 2:15 and 2:20 and several samples of rows were compared, and what did well
in one of them alone was not taken.  Ten sets are few: the other rows show what each criterion alone would say.

At the true k, mean over the sets (ACC of each to the right), seed {seed}; a consensus takes two seeds of each setting:

{second}
"""


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--sets", default=",".join(COMPLETE))
    parser.add_argument("-k", dest="ks", default="2:20")
    parser.add_argument("-m", dest="method", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", choices=("k", "consensus", "both"), default="both")
    parser.add_argument("--write", action="store_true", help="write the section of RESULTS.md")
    given = parser.parse_args()
    sets = available(tuple(given.sets.split(",")), given.folder)
    if not sets:
        raise SystemExit(f"no data set of {given.sets} in {given.folder}")
    ks, scores, true = {}, {}, {}
    for name in sets:
        data = load(name, given.folder)
        true[name] = data.k
        if given.part != "consensus":
            key = f"{name} {given.ks} {given.method} {given.seed}"
            ks[name] = kept(key, lambda data=data: chosen_k(data, given.ks, given.method, given.seed))
            print(name, data.k, ks[name], flush=True)
        if given.part != "k":
            scores[name] = kept(f"{name} consensus {given.seed}", lambda data=data: scored(data, given.seed))
            print(name, {t: round(v[0], 3) for t, v in scores[name].items()}, flush=True)
    first, second = table_of_k(ks, true) if ks else "", table_of_scores(scores) if scores else ""
    print(f"\n{first}\n\n{second}")
    if given.write:
        write_section("tune", INTRODUCTION.format(ks=given.ks, seed=given.seed, first=first, second=second))


if __name__ == "__main__":
    main()
