"""The one loop of all methods: run a pass, sum in a fixed order, solve, checkpoint, tell, test convergence."""

from __future__ import annotations

import functools
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import threadpoolctl

from aweigh.algorithms.contract import Model, Stats, settled
from aweigh.pipeline import plan, task
from aweigh.pipeline.events import Emit, PassDone, Progress, SweepDone, silent
from aweigh.pipeline.task import FAN_IN, Tally, Work

Solve = Callable[[Model, Stats], Model]


class Runner(Protocol):
    """Runs a pass over all blocks of a source, and small solves where they belong."""

    solved_on: str

    def run(self, work: Work, solve: Solve, progress: Callable[[int, int], None]) -> tuple[Model, Stats, Tally]: ...

    def call(self, function: Callable[..., Any], *args: Any) -> Any: ...

    def floors(self) -> dict[str, int]: ...

    def limit(self) -> int | None: ...

    def workers(self) -> dict[str, dict[str, Any]]: ...

    def forget(self) -> None: ...


@dataclass
class SerialRunner:
    """Everything in this process, in the grouping and order of the cluster: the oracle of the other runner."""

    solved_on: str = field(default_factory=lambda: f"driver (pid {os.getpid()} on {socket.gethostname()})")

    def run(self, work: Work, solve: Solve, progress: Callable[[int, int], None]) -> tuple[Model, Stats, Tally]:
        """Return the solved model, the summed statistics and what the pass cost."""
        with _blas().limit(limits=1, user_api="blas"):
            todo = task.groups(len(work.source.refs), work.source.most_tasks)
            parts = []
            for blocks in todo:
                parts.append(task.fold(work, blocks))
                progress(len(parts), len(todo))
            while len(parts) > FAN_IN:
                parts = [task.merge(*parts[i : i + FAN_IN]) for i in range(0, len(parts), FAN_IN)]
            return task.solved(parts, solve, work.model)

    def floors(self) -> dict[str, int]:
        """Return this process's resident bytes after a worker's imports."""
        return {"driver": plan.resident_after_imports()}

    def limit(self) -> int | None:
        """Return None: this process has no limit of ours."""
        return None

    def forget(self) -> None:
        """Keep nothing, so nothing is given back."""

    def workers(self) -> dict[str, dict[str, Any]]:
        """Return nothing: there are no workers."""
        return {}

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return function(*args), computed here."""
        with _blas().limit(limits=1, user_api="blas"):
            return function(*args)


@functools.cache
def _blas() -> threadpoolctl.ThreadpoolController:
    """Return the controller of this process's BLAS libraries, found once: looking for them costs milliseconds."""
    return threadpoolctl.ThreadpoolController()


class State(NamedTuple):
    """Where an iteration stands: `model` starts the next sweep; `point` and `stats` describe the last step taken.

    `slot` names the per-row array that the next pass reads, `read` the one that the last pass read, "" for none yet.
    """

    model: Any
    point: Any
    stats: Any
    history: tuple[float, ...]
    passes: int
    slot: str
    converged: bool
    read: str = ""


def begin(model: Model) -> State:
    """Return the state before the first sweep."""
    return State(model, model, None, (), 0, "", False)


def run_pass(runner: Runner, work: Work, solve: Solve, phase: str, emit: Emit = silent) -> tuple[Model, Stats, Tally]:
    """Return one pass's solved model, statistics and cost, telling its progress."""
    began = time.perf_counter()
    model, stats, tally = runner.run(work, solve, lambda done, of: emit(Progress(phase, done, of)))
    tally = tally._replace(seconds=time.perf_counter() - began)
    emit(PassDone(phase, tally))
    return model, stats, tally


def iterate(
    runner: Runner,
    method: Any,
    source: Any,
    state: State,
    *,
    rows: Any = None,
    phase: str,
    max_sweeps: int,
    tol: float,
    checkpoint: Callable[[State], None] = lambda state: None,
    pin: str = "",
    emit: Emit = silent,
) -> State:
    """Return the state after the sweeps of `method` over `source`, from any state on.

    Ends on a step: `point` with `stats` is what objective, Gram matrices and labels describe.
    """
    while not state.converged and len(state.history) < max_sweeps:
        state = _sweep(runner, method, source, state, rows, phase, emit, pin)
        previous = state.history[-2] if len(state.history) > 1 else float("inf")
        state = state._replace(converged=settled(previous, state.history[-1], tol))
        checkpoint(state)
        emit(SweepDone(phase, len(state.history), max_sweeps, state.history[-1], state.converged))
    return state


def _sweep(
    runner: Runner, method: Any, source: Any, state: State, rows: Any, phase: str, emit: Emit, pin: str
) -> State:
    model, point, stats, passes = state.model, state.point, state.stats, state.passes
    slot, read = state.slot, state.read
    for step, solve, views, _ in method.sweep:
        point, read = model, slot
        work = Work(source, step, model, rows, slot or None, method.width, other(slot), views, pin)
        model, stats, tally = run_pass(runner, work, solve, phase, emit)
        passes += 1
        slot = other(slot) if tally.rows_written else slot
    return state._replace(
        model=model, point=point, stats=stats, passes=passes, slot=slot, read=read,
        history=(*state.history, model.objective),
    )  # fmt: skip


def other(slot: str) -> str:
    """Return the per-row array that a pass reading `slot` writes: a task that runs twice changes nothing."""
    return "state-1" if slot == "state-0" else "state-0"


def last_read(state: State) -> str | None:
    """Return the per-row array that the last step read: it describes the same point as the statistics."""
    return state.read or None
