"""L2SC against its dense oracle for any cut into blocks, its graph against brute force, and the published figures."""

from typing import NamedTuple

import numpy as np
import pytest
from aweigh.algorithms import graph, scores
from aweigh.algorithms.contract import Sample
from aweigh.algorithms.l2sc import L2SC
from aweigh.io.rows import MemoryRows
from aweigh.pipeline.driver import SerialRunner, begin, iterate
from aweigh.pipeline.fit import Fit, Request
from aweigh.pipeline.task import MemorySource, Work
from blocks import source_of
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import common
from oracles import l2sc as oracle

CUTS = (1, 7, 33, 45)
TOPICS, WORDS = 3, 60


def documents(seed, n=45):
    """(X, labels): word counts of n documents on three topics that overlap, so that their graph is connected."""
    topics = np.random.default_rng(99).dirichlet(np.full(WORDS, 0.4), TOPICS) + 0.5 / WORDS
    topics /= topics.sum(axis=1, keepdims=True)
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % TOPICS
    return np.array([rng.multinomial(60, topics[j]) for j in labels]).astype(float), labels


class Learnt(NamedTuple):
    """A task's states after each sweep, its source and per-row arrays."""

    states: list
    source: MemorySource
    rows: MemoryRows

    @property
    def E(self):
        """E (n, k) at the last sweep."""
        state, batch = self.states[-1], self.source.batches[0]
        return np.vstack([self.rows.read(state.read, batch, i) for i in range(batch.blocks)]) @ state.point.G


def learn(method, source, prior=None, sweeps=10, tol=1e-5):
    """A task learnt from a prior model, in the order of a fit."""
    rows, runner = MemoryRows(), SerialRunner()
    widths = [v.features for v in source.batches[0].views]
    sample = Sample(tuple(np.ones((1, d)) for d in widths), np.ones((1, len(widths)), bool), np.zeros(1, int))
    model = method.start(sample, np.random.default_rng(0), prior)
    for step, solve, views in method.prepare:
        work = Work(source, step, model, rows, None, method.width, None, views)
        model, _, _ = runner.run(work, solve, lambda done, of: None)
    states = []
    iterate(
        runner, method, source, begin(model), rows=rows, phase="test", max_sweeps=sweeps, tol=tol,
        checkpoint=states.append,
    )  # fmt: skip
    return Learnt(states, source, rows)


def one(source, t):
    return type(source)(source.arrays, (source.batches[t],))


def close(a, b, rtol=1e-10):
    np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * max(float(np.abs(b).max()), 1e-300))


def dense_task(X, F=None):
    return oracle.normalised(oracle.affinity(X if F is None else F)), oracle.co_cluster(X)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("affinity", ["same", "tfidf"])
@pytest.mark.parametrize("b", ["procrustes", "eigen"])
def test_equals_oracle_over_tasks_and_a_revisit(cut, affinity, b):
    tasks = [documents(seed)[0] for seed in range(3)]
    source = source_of([[X] for X in tasks], cut)
    method = L2SC(TOPICS, lambda_=1.0, mu=0.1, affinity=affinity, b=b)
    library, prior = oracle.empty(WORDS, TOPICS), None
    for t in (0, 1, 2, 0):
        K, Xh = dense_task(tasks[t], common.tfidf(tasks[t]) if affinity == "tfidf" else None)
        library, expected = oracle.learn(library, t, K, Xh, 1.0, 0.1, b=b)
        learnt = learn(method, one(source, t), prior)
        assert len(learnt.states) == len(expected)
        for state, record in zip(learnt.states, expected, strict=True):
            close(state.history[-1], record.objective)
            close(state.model.B, record.B)
            close(state.model.L, record.L)
        close(learnt.E, expected[-1].E)
        prior = learnt.states[-1].model
        kept = {**dict(zip(prior.tasks, zip(prior.M, prior.C, strict=True), strict=True))}
        kept[int(prior.task)] = (prior.own_M, prior.own_C)
        assert sorted(kept) == [source.batches[i].start for i in sorted(library.records)]
        for i, (M, C) in library.records.items():
            close(kept[source.batches[i].start][0], M)
            close(kept[source.batches[i].start][1], C)
