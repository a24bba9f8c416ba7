"""Two runs side by side: rows that moved, flows between clusters, sizes, and how the clusters match."""

from __future__ import annotations

from typing import Any

import numpy as np

from aweigh.algorithms import matching, scores
from aweigh.algorithms.contract import Array
from aweigh.io.archive import Archive, Batch
from aweigh.io.errors import DataError
from aweigh.io.rows import ZarrRows
from aweigh.io.runs import RunFolder
from aweigh.pipeline.results import batches_of


def shared_table(archive: Archive, one: RunFolder, two: RunFolder) -> tuple[Array, tuple[Batch, ...]]:
    """Return the counts of rows by number in `one` and number in `two`, over the batches that both have labelled."""
    batches = tuple(batch for batch in batches_of(archive, one) if batch in batches_of(archive, two))
    first, second = ZarrRows(archive.path, one.folder), ZarrRows(archive.path, two.folder)
    table = np.zeros((1, 1), np.int64)
    for batch in batches:
        for block in range(batch.blocks):
            a, b = first.read("labels", batch, block), second.read("labels", batch, block)
            shape = (max(len(table), int(a.max()) + 1), max(table.shape[1], int(b.max()) + 1))
            table = np.pad(table, [(0, n - m) for n, m in zip(shape, table.shape, strict=True)])
            table += scores.contingency(a, b, *shape)
    return table, batches


def compare(archive: Archive, one: RunFolder, two: RunFolder) -> dict[str, Any]:
    """Return what moved from run `one` to run `two`, JSON-ready; DataError where they share no batch.

    `moved` is the share of shared rows whose number differs; `flows` lists (from, to, rows); `matched` pairs numbers
    by the assignment that keeps most rows, for runs whose numbers have nothing to do with each other.
    """
    table, batches = shared_table(archive, one, two)
    rows = int(table.sum())
    if not rows:
        raise DataError(f"runs {one.name!r} and {two.name!r} share no batch", "compare runs of the same batches")
    old, new = np.flatnonzero(table.sum(1)), np.flatnonzero(table.sum(0))
    found = matching.match(table[np.ix_(old, new)], old, int(max(table.shape)))
    pairs = [(int(n), int(j)) for n, j in zip(found.numbers, new, strict=True) if n in old]
    stayed = int(np.trace(table[: min(table.shape), : min(table.shape)]))
    measured = scores.scores(table)
    return {
        "runs": [one.name, two.name],
        "batches": [batch.name for batch in batches],
        "samples": rows,
        "moved": 1 - stayed / rows,
        "moved_after_matching": 1 - sum(int(table[a, b]) for a, b in pairs) / rows,
        "ari": measured["ari"],
        "nmi": measured["nmi"],
        "sizes": {str(n): [int(table[n].sum()) if n < len(table) else 0,
                           int(table[:, n].sum()) if n < table.shape[1] else 0]
                  for n in sorted({*old.tolist(), *new.tolist()})},
        "matched": pairs,
        "births": found.births,
        "deaths": found.deaths,
        "splits": found.splits,
        "merges": found.merges,
        "flows": [
            (int(a), int(b), int(table[a, b])) for a, b in zip(*np.nonzero(table), strict=True) if a != b
        ],
    }  # fmt: skip


def lines(found: dict[str, Any], most: int = 12) -> list[str]:
    """Return a comparison as lines for people, the largest flows first."""
    one, two = found["runs"]
    told = [
        f"{found['samples']} samples in both {one} and {two}: {found['moved']:.2%} have another number "
        f"({found['moved_after_matching']:.2%} once clusters are matched), ARI {found['ari']:.3f}",
        f"{'cluster':>8}{'before':>10}{'after':>10}",
    ]
    told += [f"{n:>8}{before:>10}{after:>10}" for n, (before, after) in found["sizes"].items()]
    flows = sorted(found["flows"], key=lambda flow: (-flow[2], flow))
    told += [f"  {rows} samples moved from {a} to {b}" for a, b, rows in flows[:most]]
    if len(flows) > most:
        told.append(f"  and {len(flows) - most} smaller flows")
    return told
