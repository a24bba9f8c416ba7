"""What the archive's tests share: sources made of arrays, and archives to damage."""

import numpy as np


class Rows:
    """A source over an array; it yields pieces of `piece` rows, or of what is asked for."""

    def __init__(self, array, piece=None):
        self.array, self.piece = array, piece
        self.rows, self.columns = array.shape
        self.dtype = array.dtype

    def blocks(self, rows_per_block):
        size = self.piece or rows_per_block
        for start in range(0, self.rows, size):
            yield self.array[start : start + size]

    def describe(self):
        return "rows"


class Stream(Rows):
    """A source of `rows` pseudo-random rows that never holds more than one piece."""

    def __init__(self, rows, columns):
        self.rows, self.columns, self.dtype = rows, columns, np.dtype(np.float32)

    def blocks(self, rows_per_block):
        rng = np.random.default_rng(0)
        for start in range(0, self.rows, rows_per_block):
            size = min(rows_per_block, self.rows - start), self.columns
            yield rng.integers(0, 1000, size).astype(np.float32)


def noise(rows, columns, dtype=np.float32, seed=0):
    """Finite values that no codec can shrink."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2**31, (rows, columns, np.dtype(dtype).itemsize // 4), dtype=np.uint32)
    values = bits.view(dtype)[..., 0]
    return np.where(np.isfinite(values), values, dtype(1))


def counts(rows, columns, dtype=np.float32, seed=0):
    """Sparse counts, which shrink."""
    return np.random.default_rng(seed).poisson(0.2, (rows, columns)).astype(dtype)


def with_gaps(values, rows):
    """The values with these rows missing."""
    values = values.copy()
    values[rows] = np.nan
    return values
