"""Time and memory against the number of rows: four times the rows, the same sweeps.

python tests/bench/linear.py [--rows 250000] [--workers 2]
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from memory import MIB, fit
from synthetic import make


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=lambda text: int(float(text)), default=250_000)
    parser.add_argument("--workers", default="2")
    parser.add_argument("--method", default="emvgc-lg")
    given = parser.parse_args()
    folder, found = Path(tempfile.mkdtemp()), []
    try:
        for rows in (given.rows, 4 * given.rows):
            archive = folder / f"{rows}.zarr"
            make(str(archive), rows, [512, 256, 64], 20)
            options = ("-k", "20", "-m", given.method, "--max-sweeps", "10", "--tol", "0", "--cache", "off")
            options = (*options, "--workers", given.workers)
            fit(archive, *options)  # the first one warms the page cache and the compiled kernels
            record = fit(archive, *options)
            peak = max(w["peak_bytes"] for w in record["workers"].values())
            found.append((rows, record["seconds"], peak))
            told = f"{record['seconds']:7.2f} s, {record['passes']} passes, worker peak {peak / MIB:.0f} MiB"
            print(f"{rows:>10} rows: {told}")
        (_, t1, p1), (_, t4, p4) = found
        print(f"four times the rows: time x {t4 / t1:.2f}, peak x {p4 / p1:.3f}")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
