"""Criteria of finished runs without labels: passes over their labels and embeddings, joined where they can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from aweigh.algorithms import criteria, sampling, scores
from aweigh.algorithms.contract import Array, Block, Gather, Sum
from aweigh.io.archive import Batch
from aweigh.pipeline.driver import Runner, run_pass
from aweigh.pipeline.events import Emit, silent
from aweigh.pipeline.fitting import keep
from aweigh.pipeline.task import RowsSource, Work

SAMPLE = 1024  # rows, about, that silhouettes and co-associations, which compare all with all, are taken of


class Judged(NamedTuple):
    """Criteria of one run; None where one is not defined for it."""

    silhouette: float | None
    calinski_harabasz: float | None
    davies_bouldin: float | None


def judge(runner: Runner, rows: Any, batches: tuple[Batch, ...], clusters: int, row_bytes: int, seed: int) -> Judged:
    """Return the criteria of one run's labels over its embedding: two passes over `rows`."""
    source = RowsSource(((rows, "embedding"), (rows, "labels")), batches, row_bytes + 4)
    step = criteria.MomentsOf(clusters, seed, sampling.threshold(source.rows, min(source.rows, SAMPLE)))
    _, moments, _ = run_pass(runner, Work(source, step, None), keep, "criteria")
    means = moments.rows / np.maximum(moments.counts, 1)[:, None]
    _, spread, _ = run_pass(runner, Work(source, criteria.SpreadOf(), means), keep, "criteria")
    return Judged(
        runner.call(criteria.silhouette, moments.sample, moments.labels),
        criteria.calinski_harabasz(moments, spread),
        criteria.davies_bouldin(moments, spread),
    )


class Compared(NamedTuple):
    """Counts of rows by the labels of two runs (k, k'), a pair at a time, and all runs' labels of a seeded sample."""

    tables: Sum
    labels: Gather


@dataclass(frozen=True)
class CompareLabels:
    """The step that compares runs; views are the labels of each."""

    clusters: tuple[int, ...]
    pairs: tuple[tuple[int, int], ...]
    seed: int
    bound: int

    def __call__(self, model: None, block: Block) -> tuple[Compared, None]:
        labels, k = block.views, self.clusters
        tables = tuple(scores.contingency(labels[i], labels[j], k[i], k[j]) for i, j in self.pairs)
        chosen = sampling.position_hash(block.positions, self.seed) <= np.uint64(self.bound)
        return Compared(tables, np.column_stack([x[chosen] for x in labels])), None


def compare(
    runner: Runner,
    runs: Sequence[Any],
    batches: tuple[Batch, ...],
    clusters: Sequence[int],
    pairs: Sequence[tuple[int, int]],
    seed: int,
    emit: Emit = silent,
) -> tuple[list[float], Array]:
    """Return the ARI of each pair of runs over all rows, and the labels (s, runs) of a seeded sample."""
    source = RowsSource(tuple((rows, "labels") for rows in runs), batches, 4 * len(runs))
    bound = sampling.threshold(source.rows, min(source.rows, SAMPLE))
    step = CompareLabels(tuple(clusters), tuple(pairs), seed, bound)
    _, found, _ = run_pass(runner, Work(source, step, None), keep, "stability", emit)
    return [scores.scores(table)["ari"] for table in found.tables], found.labels
