"""Test helpers: arrays in memory as a source cut into blocks, and the sweeps of a method over it."""

import numpy as np

from aweigh.io.archive import Batch, View
from aweigh.io.model import Ids
from aweigh.io.rows import MemoryRows
from aweigh.pipeline.driver import SerialRunner, begin, iterate
from aweigh.pipeline.task import MemorySource


def source_of(batches, block_rows, present=None):
    """A MemorySource of batches, [batch][view] (rows, d_v), each cut into blocks of `block_rows` rows."""
    found, arrays, start = [], {}, 0
    for t, X in enumerate(batches):
        views = tuple(View(f"v{i}", x.shape[1], str(x.dtype)) for i, x in enumerate(X))
        n, name = len(X[0]), f"b{t}"
        ids = Ids("int", start, start + n - 1)
        found.append(Batch(name, n, start, min(block_rows, n), views, ids, None, "", {}, {}))
        mask = np.ones((n, len(X)), bool) if present is None else np.asarray(present, bool)
        arrays[name] = (tuple(X), mask)
        start += n
    return MemorySource(arrays, tuple(found))


def sweeps(method, source, model, count, runner=None):
    """The states after each of `count` sweeps from `model`, and the rows that the method carries."""
    rows, states = MemoryRows(), []
    iterate(
        runner or SerialRunner(),
        method,
        source,
        begin(model),
        rows=rows,
        phase="test",
        max_sweeps=count,
        tol=-1.0,
        checkpoint=states.append,
    )
    return states, rows


def prepared(method, source, model, runner=None, prior=None):
    """The model after the method's preparing passes."""
    from aweigh.pipeline.task import Work

    for step, solve, views, first in method.prepare:
        if first and prior is not None:
            continue
        work = Work(source, step, model, MemoryRows(), None, method.width, None, views)
        model, _, _ = (runner or SerialRunner()).run(work, solve, lambda done, of: None)
    return model


def graph(method, source, model):
    """Z (n, m) of a method that carries nothing, at a model."""
    from aweigh.algorithms.contract import Block

    out = []
    for batch, i in source.refs:
        views, present, _ = source.load(batch, i)
        first, last = batch.block_range(i)
        within = np.arange(first, last)
        block = Block(views, present, within + batch.start, within, np.zeros((last - first, 0)))
        out.append(method.graph(model, block))
    return np.vstack(out)
