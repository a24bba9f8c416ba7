"""Measured peaks of every process of an out-of-core fit, beside the plan's projection.

python tests/bench/memory.py [--gigabytes 8] [--workers 2] [--memory 1GiB] [--folder DIR] [--write]
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import recorded
from synthetic import make

MIB = 1 << 20


def fit(archive: Path, *options: str) -> dict:
    """Run one `aweigh fit` as its own process; return the run's record with the driver's own peak."""
    command = [sys.executable, "-m", "aweigh.pipeline.cli", "fit", str(archive), "--json", *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"fit failed ({done.returncode}): {done.stdout}")
    run = json.loads(done.stdout)["run"]
    return json.loads((archive / "runs" / run / "run.json").read_text())


def show(record: dict) -> bool:
    """Print peaks beside projections; return whether all are at or under them, and over two thirds."""
    plan, ok = record["plan"], True
    projected = plan["worker_peak_bytes"]
    rows = [(f"worker {address}", w["peak_bytes"], projected) for address, w in record["workers"].items()]
    rows.append(("driver and scheduler", record["driver_peak_bytes"], plan["driver_peak_bytes"]))
    for name, peak, projected in rows:
        ok &= peak <= projected <= 1.5 * peak
        print(f"{name:40} peak {peak / MIB:7.0f} MiB   projected {projected / MIB:7.0f} MiB   {projected / peak:.2f}")
    print(
        f"{record['samples']} samples, {plan['pass_bytes'] / 1e9:.2f} GB a pass, {record['sweeps']} sweeps, "
        f"{record['passes']} passes, {record['seconds']:.0f} s; spilled {record['spilled_bytes']} bytes, "
        f"workers restarted {record['restarted_workers']}"
    )
    return ok and not record["spilled_bytes"] and not record["restarted_workers"]


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=8.0)
    parser.add_argument("--workers", default="2")
    parser.add_argument("--memory", default="1GiB")
    parser.add_argument("--method", default="emvgc-lg")
    parser.add_argument("--folder", help="where to keep the archive between runs")
    parser.add_argument("--write", action="store_true", help="put the figures into RESULTS.md")
    given = parser.parse_args()
    folder = Path(given.folder or tempfile.mkdtemp())
    archive = folder / f"synthetic-{given.gigabytes:g}.zarr"
    try:
        if not (archive / "manifest.json").exists():
            make(str(archive), int(given.gigabytes * 1e9 / (832 * 4)), [512, 256, 64], 20)
        imported = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"import: peak of its process {imported:.0f} MiB")
        record = fit(archive, "-k", "20", "-m", given.method, "--workers", given.workers, "--memory", given.memory)
        with recorded(
            "memory", f"Memory: {given.gigabytes:g} GB, {given.workers} workers of {given.memory}", given.write
        ):
            ok = show(record)
        sys.exit(0 if ok else 1)
    finally:
        if not given.folder:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
