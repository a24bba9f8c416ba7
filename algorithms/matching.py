"""Stable cluster numbers: the clusters of one run matched to those of another, from the table of shared rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from aweigh.algorithms.contract import Array

FEW = 5  # shared rows


class Matching(NamedTuple):
    """New numbers of the new run's clusters, and what became of the old ones.

    `numbers` (k_new,) gives each new cluster the number of the old one it matches, or a number never used before;
    `births` are new numbers without an old cluster, `deaths` old numbers without a new one; `splits` and `merges` are
    (old, (new, …)) and (new, (old, …)) where at least `share` of the one lies in the others; `small` are old numbers
    with fewer than `FEW` shared rows: whether such a cluster is still the same, chance decides.
    """

    numbers: Array
    births: tuple[int, ...]
    deaths: tuple[int, ...]
    splits: tuple[tuple[int, tuple[int, ...]], ...]
    merges: tuple[tuple[int, tuple[int, ...]], ...]
    small: tuple[int, ...]


def match(table: Array, old_numbers: Array, first_free: int, fewest: int = 1, share: float = 0.25) -> Matching:
    """Return the matching of new clusters to old ones by the (k_old, k_new) counts of shared rows.

    The assignment maximises the rows that keep their number (Hungarian); a pair that shares fewer than `fewest` rows
    is no match.  `old_numbers` (k_old,) are the numbers in use, `first_free` the smallest never used: numbers of
    clusters that died are not given again.
    """
    matches = pairs(table, fewest)
    kept = {j: int(old_numbers[i]) for i, j in matches}
    numbers, free = np.empty(table.shape[1], np.int64), first_free
    for j in range(table.shape[1]):
        if j in kept:
            numbers[j] = kept[j]
        else:
            numbers[j], free = free, free + 1
    matched = {i for i, _ in matches}
    deaths = tuple(int(n) for i, n in enumerate(old_numbers) if i not in matched)
    small = tuple(int(n) for i, n in enumerate(old_numbers) if table[i].sum() < FEW)
    births = tuple(int(n) for j, n in enumerate(numbers) if j not in kept)
    return Matching(
        numbers,
        births,
        deaths,
        _flows(table, old_numbers, numbers, share),
        _flows(table.T, numbers, old_numbers, share),
        small,
    )


def pairs(table: Array, fewest: int = 1) -> list[tuple[int, int]]:
    """Return the (row, column) pairs of the assignment that keeps most, those that share at least `fewest`."""
    return [(int(i), int(j)) for i, j in zip(*linear_sum_assignment(-table), strict=True) if table[i, j] >= fewest]


def _flows(table: Array, rows: Array, columns: Array, share: float) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Return the rows of which at least two columns each hold `share`: splits of rows over columns."""
    parts = table / np.maximum(table.sum(1, keepdims=True), 1) >= share
    return tuple(
        (int(rows[i]), tuple(int(columns[j]) for j in np.flatnonzero(part)))
        for i, part in enumerate(parts)
        if part.sum() > 1
    )
