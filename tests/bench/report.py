"""Seconds and bytes of `aweigh report` on many rows, ids being strings.

python tests/bench/report.py [--rows 1e7] [--workers 2] [--folder DIR]
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from memory import MIB, fit
from synthetic import Clusters, labels

from aweigh.io.batches import import_batch


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=lambda text: int(float(text)), default=10_000_000)
    parser.add_argument("--workers", default="2")
    parser.add_argument("--folder", help="where to keep the archive between runs")
    given = parser.parse_args()
    folder = Path(given.folder or tempfile.mkdtemp())
    archive = folder / f"{given.rows}.zarr"
    try:
        if not (archive / "latest").exists():
            views = {f"v{i}": Clusters(given.rows, d, 20, i) for i, d in enumerate((64, 32, 16))}
            ids = np.array([f"sample-{i:09d}" for i in range(given.rows)])
            import_batch(archive, views, ids=ids, labels=labels(np.arange(given.rows), 20))
            del ids
            fit(archive, "-k", "20", "-m", "imvc-cbg", "--max-sweeps", "2", "--workers", given.workers)
        command = [sys.executable, "-m", "aweigh.pipeline.cli", "report", str(archive), "--json"]
        command += ["-o", str(folder / "report.html"), "--workers", given.workers]
        done = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
        print(f"{given.rows} rows: {done['seconds']:.1f} s, {done['bytes'] / MIB:.2f} MiB")
    finally:
        if not given.folder:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
