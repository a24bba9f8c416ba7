"""A whole default fit against what people would use instead, on the same rows: seconds, memory, NMI, side by side.

    python tests/bench/peers.py [--rows 1e5] [-k 20] [--python ENV/bin/python] [--only NAME,NAME] [--write]

Every program is a process of its own, from its start to labels on disk; the peak is that of all its processes.
scikit-learn runs on the views side by side in memory, dask-ml on the same Zarr arrays, polyview on 20,000 rows and
three iterations, its seconds an iteration multiplied up.  What is not installed is left out.  dask-ml and polyview may
have an environment of their own, whose Python --python names:

    python -m venv ENV && ENV/bin/pip install dask-ml polyview zarr
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from harness import write_section
from peer import PEERS
from synthetic import labels, make
from watch import Watched, watch

from aweigh.algorithms.scores import contingency, scores
from aweigh.io.archive import open_archive
from aweigh.io.rows import ZarrRows

FEATURES, MIB, PART = (512, 256, 64), 1 << 20, 20_000
OURS = "aweigh fit"
MODULES = {"scikit-learn": "sklearn", "dask-ml": "dask_ml", "polyview": "polyview"}


def python_for(name: str, own: str) -> str | None:
    """Return a Python that has the peer's package: this one, or the one given; None where neither has it."""
    module = MODULES[name.split()[0]]
    for python in (sys.executable, own):
        if not subprocess.run([python, "-c", f"import {module}"], capture_output=True).returncode:
            return python
    return None


def nmi(found: np.ndarray, k: int) -> float:
    """Return the NMI of labels with the classes of the synthetic rows."""
    return scores(contingency(found, labels(np.arange(len(found)), k), k, k))["nmi"]


def our_fit(archive: Path, k: int) -> tuple[Watched, dict[str, Any]]:
    """Return a default fit by the command line, as every program is run."""
    done = watch([sys.executable, "-m", "aweigh.pipeline.cli", "fit", str(archive), "-k", str(k), "--json"])
    if done.code:
        raise SystemExit(f"the fit failed ({done.code}): {done.out}")
    run = json.loads(done.out)["run"]
    record = json.loads((archive / "runs" / run / "run.json").read_text())
    opened, rows = open_archive(str(archive)), ZarrRows(str(archive), f"runs/{run}")
    found = np.concatenate([rows.read("labels", b, i) for b in opened.batches for i in range(b.blocks)])
    took = [
        entry["seconds"] for entry in record["work"] if entry["pass"].startswith("sweep") and ":" not in entry["pass"]
    ]
    return done, {"iterations": record["sweeps"], "sweep": statistics.median(took), "nmi": nmi(found, k)}


def their_fit(name: str, python: str, archive: Path, k: int, folder: Path) -> tuple[Watched, dict[str, Any]]:
    """Return a peer's fit."""
    out = folder / "labels.npy"
    peer = Path(__file__).with_name("peer.py")
    done = watch([python, str(peer), name, str(archive), "-k", str(k), "--out", str(out), "--rows", str(PART)])
    if done.code:
        raise SystemExit(f"{name} failed ({done.code}): {done.lines[-3:]}")
    told = json.loads(done.out.splitlines()[-1])
    told["sweep"] = told["seconds"] / told["iterations"]
    return done, {**told, "nmi": nmi(np.load(out), k)}


def row(name: str, done: Watched, told: dict[str, Any], ours: Watched) -> str:
    """Return one line of the table."""
    peak = sum(done.peaks.values())
    return (
        f"| {name} | {done.seconds:.1f} | {done.seconds / ours.seconds:.2f} | {told['iterations']} | "
        f"{told['sweep']:.2f} | {peak / MIB:.0f} | {done.rss / MIB:.0f} | {done.pss / MIB:.0f} | {told['nmi']:.3f} |"
    )


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=lambda text: int(float(text)), default=100_000)
    parser.add_argument("-k", type=int, default=20)
    parser.add_argument("--python", default=sys.executable, help="a Python that has dask-ml and polyview")
    parser.add_argument("--only", default=",".join(PEERS), help="names of peers, as far as they are unlike")
    parser.add_argument("--folder", help="where to keep the archive between runs")
    parser.add_argument("--write", action="store_true", help="put the table into RESULTS.md")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        archive = Path(given.folder or temporary) / f"peers-{given.rows}.zarr"
        if not (archive / "manifest.json").exists():
            make(str(archive), given.rows, list(FEATURES), given.k)
        text = compare(archive, given, Path(temporary))
    print(text)
    if given.write:
        write_section(f"peers-{given.rows}", text)


def compare(archive: Path, given: argparse.Namespace, folder: Path) -> str:
    """Return the table, and what of D3 it shows."""
    our_fit(archive, given.k)  # compiled kernels and the page cache are everybody's
    runs = [our_fit(archive, given.k) for _ in range(3)]
    ours, told = sorted(runs, key=lambda run: run[0].seconds)[1]
    found = {OURS: (ours, told)}
    lines, missing = [row(OURS, ours, told, ours)], []
    for name in (peer for peer in PEERS if any(only.strip() in peer for only in given.only.split(","))):
        python = python_for(name, given.python)
        if python is None:
            missing.append(name)
            continue
        found[name] = their_fit(name, python, archive, given.k, folder)
        if name.startswith("polyview"):
            found[name][1]["sweep"] *= max(1.0, given.rows / PART)
        lines.append(row(name, *found[name], ours))
        print(lines[-1], file=sys.stderr, flush=True)
    packages = ", ".join(f"{p} {version(p)}" for p in ("aweigh", "numpy", "numba", "scikit-learn", "dask"))
    return "\n".join(
        [
            f"## Peers: {given.rows:,} x {FEATURES} float32, k = {given.k}",
            "",
            f"`python tests/bench/peers.py --rows {given.rows}`, Python {platform.python_version()}, {packages}.  "
            "Whole processes, one run, ours the median of three; memory in MiB of all processes together.  polyview: "
            f"{min(PART, given.rows):,} rows, three iterations, its seconds a sweep multiplied up to all rows.",
            "",
            "| program | seconds | x ours | iterations | s a sweep | sum of peaks | RSS | PSS | NMI |",
            "|---|---|---|---|---|---|---|---|---|",
            *lines,
            "",
            *verdict(found),
            *([f"Not installed, so not measured: {', '.join(missing)}."] if missing else []),
        ]
    )


def verdict(found: dict[str, tuple[Watched, dict[str, Any]]]) -> list[str]:
    """Return the ratios that count, as far as they were measured."""
    ours, told = found[OURS]
    out = []
    for name, (done, theirs) in found.items():
        if name == "scikit-learn KMeans":
            alone, whole = ours.seconds / theirs["seconds"], ours.seconds / done.seconds
            peak = sum(done.peaks.values()) / sum(ours.peaks.values())
            out.append(f"Our time is {alone:.2f} of {name}'s `fit` alone and {whole:.2f} of its whole process;")
            out.append(f"its peak is {peak:.1f} times ours.")
        elif name.startswith("polyview"):
            out.append(f"A sweep of polyview takes {theirs['sweep'] / told['sweep']:.0f} times one of ours.")
        elif name.startswith("dask-ml"):
            out.append(f"Our time is {ours.seconds / done.seconds:.2f} of that of {name}.")
    return out


if __name__ == "__main__":
    main()
