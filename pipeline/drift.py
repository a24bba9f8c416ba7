"""Measuring drift: the new batches' figures beside those of the batches before them, kept with every run."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from aweigh.algorithms import drift, scaling
from aweigh.algorithms.contract import Array
from aweigh.io import trees
from aweigh.io.archive import Batch
from aweigh.io.runs import RunFolder
from aweigh.pipeline import task
from aweigh.pipeline.driver import Runner, run_pass
from aweigh.pipeline.events import Emit, Note, silent
from aweigh.pipeline.fitting import Fitted
from aweigh.pipeline.task import ArchiveSource, Work

DRIFT = "drift.npz"
PASS = "drift"
MOST_PAST = 400  # batches whose figures are kept, the newest


class State(NamedTuple):
    """What a run knows of drift: the reference and its scaling, the sums of all batches so far, each one's figures."""

    views: tuple[str, ...]
    scaling: tuple[scaling.ViewScaling, ...]
    reference: drift.Reference
    history: Any
    past: tuple[drift.Past, ...]


class Measured(NamedTuple):
    """The state after some batches, and what is told of them."""

    state: State | None
    told: list[dict[str, Any]]


RECORDS = (State, scaling.ViewScaling, drift.Reference, drift.Sums, drift.Past)


def measured(
    run: RunFolder, source: ArchiveSource, batches: tuple[Batch, ...], runner: Runner, emit: Emit = silent
) -> Measured | None:
    """Return how new batches lie beside those that a run knows; None where the run has measured nothing yet."""
    data = run.read(DRIFT)
    if data is None:
        return None
    state, told = trees.loads(data, RECORDS), []
    for batch in batches:
        state, entry = _measure(state, task.restrict(source, (batch,)), runner, emit)
        told.append(entry)
        for view, found in entry["views"].items():
            if found["drifted"]:
                emit(Note(f"view {view} of batch {batch.name} has drifted: {words(found)}", warning=True))
    return Measured(state, told)


def begun(
    source: ArchiveSource, rows: Any, method: Any, fitted: Fitted, runner: Runner, emit: Emit = silent
) -> Measured:
    """Return the first measuring, over a source whose rows are labelled: its model is the reference from now on."""
    features = tuple(len(s.shift) for s in fitted.scaling)
    bases = drift.bases(method.landmarks(fitted.model, features))
    source = ArchiveSource(source.path, source.batches, source.views, source.columns, fitted.scaling)
    step, nothing = drift.Profile(fitted.numbers), drift.Reference(bases, ())
    _, sums, _ = run_pass(runner, Work(source, step, nothing, rows), _keep, PASS, emit)
    state = State(source.views, fitted.scaling, drift.Reference(bases, drift.means(sums)), None, ())
    told = []
    for batch in source.batches:
        state, entry = _measure(state, task.restrict(source, (batch,)), runner, emit)
        told.append(entry)
    return Measured(state, told)


def keep(folder: RunFolder, found: Measured | None) -> list[dict[str, Any]] | None:
    """Store the state with a run; return what is told of its new batches."""
    if found is None:
        return None
    folder.write(DRIFT, trees.dumps(found.state))
    return found.told


def _measure(state: State, source: ArchiveSource, runner: Runner, emit: Emit) -> tuple[State, dict[str, Any]]:
    source = ArchiveSource(source.path, source.batches, state.views, source.columns, state.scaling)
    _, sums, _ = run_pass(runner, Work(source, drift.Profile(), state.reference), _keep, PASS, emit)
    distance, now = drift.figures(sums, state.history)
    found = drift.drifted(distance, now, state.past)
    name = source.batches[0].name
    views = {
        view: {
            "distance": _number(distance[v]),
            "outside": _number(now.outside[v]),
            "unexplained": _number(now.unexplained[v]),
            "drifted": bool(found[v]),
        }
        for v, view in enumerate(state.views)
    }
    past = (*state.past, now._replace(batch=name))[-MOST_PAST:]
    return state._replace(history=drift.joined(state.history, sums), past=past), {"batch": name, "views": views}


def _keep(model: Any, sums: Any) -> Any:
    return model


def _number(value: Array) -> float | None:
    return float(value) if np.isfinite(value) else None


def alarms(told: list[dict[str, Any]] | None) -> list[str]:
    """Return the names of the views that have drifted, the farthest first."""
    far: dict[str, float] = {}
    for entry in told or ():
        for view, found in entry["views"].items():
            if found["drifted"]:
                far[view] = max(far.get(view, 0.0), found["distance"] or 0.0)
    return sorted(far, key=lambda view: -far[view])


def farthest(told: list[dict[str, Any]] | None) -> float:
    """Return the largest distance of any view."""
    values = [found["distance"] or 0.0 for entry in told or () for found in entry["views"].values()]
    return max(values, default=0.0)


def words(found: dict[str, Any]) -> str:
    """Return one view's figures for people."""
    shown = [f"{name} {found[name]:.3f}" for name in ("distance", "outside", "unexplained") if found[name] is not None]
    return ", ".join(shown)
