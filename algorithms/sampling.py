"""A seeded sample of rows that does not depend on blocks, workers or the order of batches read.

A row is in the sample when the hash of its position is among the smallest: rows added later leave the choice among
the old ones alone.
"""

from __future__ import annotations

import numpy as np

from aweigh.algorithms.contract import Array

_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


def position_hash(positions: Array, seed: int) -> Array:
    """Return a uint64 hash (rows,) of the row positions: splitmix64 of position + seed * an odd constant."""
    with np.errstate(over="ignore"):
        x = positions.astype(np.uint64) + np.uint64((seed * 0xD1342543DE82EF95 + 0x9E3779B97F4A7C15) & int(_ALL))
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def threshold(rows: int, size: int) -> int:
    """Return the hash bound that `size` of `rows` positions pass, with room so that too few hardly ever do."""
    if size >= rows:
        return int(_ALL)
    expected = size + 6.0 * size**0.5 + 16.0
    return min(int(_ALL), int(expected / rows * float(int(_ALL))))


def smallest(positions: Array, seed: int, size: int) -> Array:
    """Return the indices, in order of position, of the `size` positions with the smallest hashes."""
    by_hash = np.argsort(position_hash(positions, seed), kind="stable")[:size]
    return by_hash[np.argsort(positions[by_hash], kind="stable")]


def sample_size(rows: int, row_bytes: int, most_rows: int = 16384, most_bytes: int = 32 << 20) -> int:
    """Return how many rows a sample holds: all of them where they are few, bounded in rows and in bytes."""
    return int(max(1, min(rows, most_rows, most_bytes // max(row_bytes, 1))))
