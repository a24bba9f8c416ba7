"""Two runs side by side: rows that moved, flows between clusters, sizes, and how the clusters match."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from aweigh.algorithms import kmeans, matching, scores
from aweigh.algorithms.contract import Array
from aweigh.io.archive import Archive, Batch, BatchReader
from aweigh.io.rows import ZarrRows
from aweigh.io.runs import RECORD, RunFolder
from aweigh.pipeline import drift
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
    """Return what moved from run `one` to run `two`, JSON-ready.

    Where they share no batch nothing can have moved, and clusters are matched by their means in the views.

    `moved` is the share of shared rows whose number differs; `flows` lists (from, to, rows); `matched` pairs numbers
    by the assignment that keeps most rows, for runs whose numbers have nothing to do with each other.
    """
    table, batches = shared_table(archive, one, two)
    rows = int(table.sum())
    if not rows:
        return _apart(archive, one, two)
    old, new = np.flatnonzero(table.sum(1)), np.flatnonzero(table.sum(0))
    found = matching.match(table[np.ix_(old, new)], old, int(max(table.shape)))
    own = {int(n): int(j) for n, j in zip(found.numbers, new, strict=True)}
    pairs = [(n, j) for n, j in own.items() if n in old]
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
        "births": [own[n] for n in found.births],
        "deaths": found.deaths,
        "splits": [(n, [own[j] for j in parts]) for n, parts in found.splits],
        "merges": [(own[j], parts) for j, parts in found.merges],
        "small": found.small,
        **_of_records(one, two),
        "flows": [
            (int(a), int(b), int(table[a, b])) for a, b in zip(*np.nonzero(table), strict=True) if a != b
        ],
    }  # fmt: skip


def _of_records(one: RunFolder, two: RunFolder) -> dict[str, Any]:
    first, second = one.read_json(RECORD), two.read_json(RECORD)
    return {"view_weights": [r.get("view_weights") for r in (first, second)], "drift": second.get("drift")}


def _apart(archive: Archive, one: RunFolder, two: RunFolder) -> dict[str, Any]:
    """Return what can be said of two runs of different rows: sizes, and clusters matched by their means."""
    means = [_means(archive, run) for run in (one, two)]
    weights = np.concatenate([n for n, _, _ in means])
    centres = np.concatenate([M for _, M, _ in means])
    variance = sum(n.sum() * v for n, _, v in means) / weights.sum()
    spread = np.sqrt(variance + np.average((centres - np.average(centres, 0, weights)) ** 2, 0, weights))
    scaled = [M / np.where(spread > 0, spread, 1) for _, M, _ in means]
    used = [np.flatnonzero(n) for n, _, _ in means]
    a, b = (M[u] for M, u in zip(scaled, used, strict=True))
    distance = ((a[:, None] - b[None]) ** 2).mean(2)
    pairs = [(int(used[0][i]), int(used[1][j])) for i, j in zip(*linear_sum_assignment(distance), strict=True)]
    sizes = [
        dict(zip(u.tolist(), n[u].astype(int).tolist(), strict=True)) for u, (n, _, _) in zip(used, means, strict=True)
    ]
    matched = [set(side) for side in zip(*pairs, strict=True)]
    small = [n for n, rows in sizes[0].items() if rows < matching.FEW]
    return {
        "runs": [one.name, two.name], "batches": [], "samples": 0, "moved": None, "moved_after_matching": None,
        "ari": None, "nmi": None,
        "sizes": {str(n): [sizes[0].get(n, 0), sizes[1].get(n, 0)] for n in sorted({*sizes[0], *sizes[1]})},
        "matched": pairs, "births": [n for n in sizes[1] if n not in matched[1]],
        "deaths": [n for n in sizes[0] if n not in matched[0]], "splits": [], "merges": [], "small": small,
        **_of_records(one, two), "flows": [],
    }  # fmt: skip


def _means(archive: Archive, run: RunFolder) -> tuple[Array, Array, Array]:
    """Return rows by number (c,), the means (c, Σd) of the views side by side, and the variance within (Σd,)."""
    rows, batches = ZarrRows(archive.path, run.folder), batches_of(archive, run)
    c = int(max(rows.read("labels", batch, i).max() for batch in batches for i in range(batch.blocks))) + 1
    d = sum(view.features for view in archive.views.values())
    counts, total, squares = np.zeros(c), np.zeros((c, d)), np.zeros(d)
    for batch in batches:
        reader = BatchReader(archive.path, batch)
        for i in range(batch.blocks):
            labels = rows.read("labels", batch, i)
            X = np.hstack([reader.view(name, i) for name in archive.views]).astype(np.float64)
            counts += np.bincount(labels, minlength=c)
            total += kmeans.means(X, labels, c) * np.bincount(labels, minlength=c)[:, None]
            squares += (X**2).sum(0)
    means = total / np.maximum(counts, 1)[:, None]
    return counts, means, np.maximum(squares - (counts[:, None] * means**2).sum(0), 0) / counts.sum()


def lines(found: dict[str, Any], most: int = 12) -> list[str]:
    """Return a comparison as lines for people, the largest flows first."""
    one, two = found["runs"]
    if not found["samples"]:
        told = [f"{one} and {two} share no sample: clusters are matched by their means in the views"]
        return told + [f"  {a} of {one} is {b} of {two}" for a, b in found["matched"]]
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
    for name in ("births", "deaths", "splits", "merges", "small"):
        told += [f"  {name}: {found[name]}"] if found[name] else []
    for entry in found["drift"] or ():
        for view, figures in entry["views"].items():
            shown = drift.words(figures)
            told.append(f"  {'DRIFTED ' if figures['drifted'] else ''}view {view} of batch {entry['batch']}: {shown}")
    for name, weights in zip(found["runs"], found["view_weights"], strict=True):
        if weights:
            told.append(f"  view weights of {name}: " + ", ".join(f"{v} {w:.3f}" for v, w in weights.items()))
    return told
