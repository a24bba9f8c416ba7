"""Import to labels for growing numbers of rows: the time split, memory, and what the plan on paper said before.

    python tests/bench/scale.py [--rows 1e5,1e6] [--features 512,256,64] [--workers 2] [--folder DIR] [--write]
    python tests/bench/scale.py --rows 1e7 --features 64

The constants of the plan are measured first, by `aweigh bench`.  Every fit is a process of its own; for the first
number of rows it is run twice, so that kernels are compiled.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from harness import write_section
from memory import MIB, fit
from synthetic import make

KINDS = ("read", "compute", "sum", "solve", "write")


def command(*words: str) -> dict[str, Any]:
    """Return what an `aweigh` command prints with --json."""
    whole = [sys.executable, "-m", "aweigh.pipeline.cli", *words, "--json"]
    return json.loads(subprocess.run(whole, check=True, stdout=subprocess.PIPE, text=True).stdout)


def split(record: dict[str, Any], workers: int) -> dict[str, float]:
    """Return the fit's seconds by kind: those of tasks are shared by the workers, the rest is the scheduler's."""
    total = {kind: sum(entry[f"{kind}_seconds"] for entry in record["work"]) for kind in KINDS}
    shared = {kind: seconds if kind == "solve" else seconds / workers for kind, seconds in total.items()}
    return {**shared, "other": record["seconds"] - sum(shared.values())}


def sweep_seconds(record: dict[str, Any]) -> float:
    """Return the median seconds of a sweep but the first."""
    took = [entry["seconds"] for entry in record["work"] if entry["pass"] == "sweep"]
    return statistics.median(took[1:] or took)


def measured(folder: Path, rows: int, given: argparse.Namespace, constants: Path, again: bool) -> tuple[str, str]:
    """Return the lines of one number of rows: what it took, and how the plan on paper compares."""
    archive, features = folder / f"scale-{rows}-{given.features}.zarr", [int(d) for d in given.features.split(",")]
    began = time.perf_counter()
    if not (archive / "manifest.json").exists():
        make(str(archive), rows, features, given.k)
    imported = time.perf_counter() - began
    options = ("-k", str(given.k), "-m", given.method)
    if again:
        fit(archive, *options, "--workers", str(given.workers))
    record = fit(archive, *options, "--workers", str(given.workers))
    paper = command(
        "plan", "--samples", str(rows), "--features", given.features, "--constants", str(constants), *options,
        "--workers", str(given.workers), *(("--cached",) if record["plan"]["cached"] else ()),
    )  # fmt: skip
    parts = " | ".join(f"{seconds:.1f}" for seconds in split(record, given.workers).values())
    peak, sweep = max(w["peak_bytes"] for w in record["workers"].values()), sweep_seconds(record)
    first = (
        f"| {rows:,} | {imported:.1f} | {record['seconds']:.1f} | {record['sweeps']} | {record['passes']} | {parts} | "
        f"{peak / MIB:.0f} |"
    )
    second = (
        f"| {rows:,} | {sweep:.2f} | {paper['sweep_seconds']:.2f} | {paper['sweep_seconds'] / sweep:.2f} | "
        f"{peak / MIB:.0f} | {paper['worker_peak_bytes'] / MIB:.0f} | {paper['worker_peak_bytes'] / peak:.2f} |"
    )
    return first, second


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1e5,1e6", help="numbers of rows, such as 1e5,1e6")
    parser.add_argument("--features", default="512,256,64")
    parser.add_argument("-k", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--method", default="emvgc-lg")
    parser.add_argument("--folder", help="where to keep the archives between runs")
    parser.add_argument("--write", action="store_true", help="put the tables into RESULTS.md")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(given.folder or temporary)
        constants = Path(temporary) / "bench.json"
        command("bench", "--folder", str(folder), "--to", str(constants), "--workers", str(given.workers))
        numbers = [int(float(text)) for text in given.rows.split(",")]
        found = [measured(folder, rows, given, constants, i == 0) for i, rows in enumerate(numbers)]
    packages = ", ".join(f"{p} {version(p)}" for p in ("aweigh", "numpy", "numba", "zarr", "distributed"))
    text = "\n".join(
        [
            f"## Scale: rows of ({given.features}) float32, import to labels",
            "",
            f"`python tests/bench/scale.py --rows {given.rows} --features {given.features}`: {given.method}, "
            f"k = {given.k}, {given.workers} workers;",
            f"Python {platform.python_version()}, {packages}.  Seconds; those of tasks divided by the workers.",
            "",
            "| rows | import | fit | sweeps | passes | " + " | ".join(KINDS) + " | other | worker peak, MiB |",
            "|" + "---|" * (len(KINDS) + 7),
            *(first for first, _ in found),
            "",
            "The plan on paper, from constants measured just before (`aweigh bench`):",
            "",
            "| rows | a sweep | on paper | ratio | worker peak, MiB | on paper | ratio |",
            "|---|---|---|---|---|---|---|",
            *(second for _, second in found),
        ]
    )
    print(text)
    if given.write:
        write_section(f"scale-{given.features}", text)


if __name__ == "__main__":
    main()
