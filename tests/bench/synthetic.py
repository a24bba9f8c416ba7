"""Make a synthetic archive of any size, a block at a time.

python tests/bench/synthetic.py ARCHIVE --rows 2500000 --features 512,256,64 -k 20
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from aweigh.io.batches import import_batch


class Clusters:
    """An import source: rows around k centres, the same for the same seed, made block by block."""

    dtype = np.dtype(np.float32)

    def __init__(self, rows: int, columns: int, k: int, view: int, seed: int = 0) -> None:
        self.rows, self.columns, self._k, self._view, self._seed = rows, columns, k, view, seed
        self._centres = np.random.default_rng([seed, view]).normal(size=(k, columns)).astype(np.float32)

    def blocks(self, rows_per_block: int):
        """Yield consecutive blocks; row i belongs to class labels(...)[i], whatever the block size."""
        noise = np.random.default_rng([self._seed, self._view, 1]).normal(size=(8192, self.columns)).astype(np.float32)
        for first in range(0, self.rows, rows_per_block):
            rows = np.arange(first, min(first + rows_per_block, self.rows))
            shift = (rows * 7919 + rows // 8192 * 31) % 8192
            yield self._centres[labels(rows, self._k)] + 2.0 * noise[shift]

    def describe(self) -> str:
        """Name it for messages."""
        return f"synthetic view {self._view}"


def labels(rows: np.ndarray, k: int) -> np.ndarray:
    """Return the class of each row number."""
    return ((rows * 2654435761) % 2**32 * k // 2**32).astype(np.int64)


def make(path: str, rows: int, features: list[int], k: int, name: str = "synthetic", labelled: bool = True) -> None:
    """Import one synthetic batch."""
    views = {f"v{i}": Clusters(rows, d, k, i) for i, d in enumerate(features)}
    import_batch(path, views, name=name, labels=labels(np.arange(rows), k) if labelled else None)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive")
    parser.add_argument("--rows", type=lambda text: int(float(text)), required=True)
    parser.add_argument("--features", type=lambda text: [int(d) for d in text.split(",")], default=[512, 256, 64])
    parser.add_argument("-k", type=int, default=20)
    given = parser.parse_args()
    make(given.archive, given.rows, given.features, given.k)
    print(f"{given.rows} rows of {given.features} in {given.archive}", file=sys.stderr)


if __name__ == "__main__":
    main()
