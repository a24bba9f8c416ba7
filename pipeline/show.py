"""Progress for people, on stderr: a live line on a terminal, plain lines otherwise; Dask's own windows on the work."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from aweigh.io.errors import UsageError
from aweigh.pipeline.events import Emit, Event, Note, PassDone, SweepDone
from aweigh.pipeline.events import Progress as PassProgress


class Watcher:
    """A callable that shows a run's events."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._bars = Bars(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[told]}"), TimeElapsedColumn(),
            console=self._console, transient=True, disable=not self._console.is_terminal,
        )  # fmt: skip
        self._task = self._bars.add_task("starting", total=None, told="")
        self._rate = self._phase = ""
        self._began = self._swept = time.monotonic()

    def __enter__(self) -> Watcher:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bars.stop()

    def __call__(self, event: Event) -> None:
        """Show one event."""
        if isinstance(event, Note):
            self._console.print(f"{'warning: ' if event.warning else ''}{event.text}", markup=False)
        elif isinstance(event, PassProgress):
            self._bars.update(self._task, description=event.phase, completed=event.done, total=event.of)
        elif isinstance(event, PassDone):
            now = time.monotonic()
            self._rate = f"{event.tally.rows / max(now - self._began, 1e-9):,.0f} rows/s"
            if event.phase != self._phase:  # the first pass of a phase began where the last pass ended
                self._phase, self._swept = event.phase, self._began
            self._began = now
        elif isinstance(event, SweepDone):
            told = f"sweep {event.sweep} of at most {event.most}, objective {event.objective:.6g}, {self._rate}"
            left = (event.most - event.sweep) * (time.monotonic() - self._swept)
            self._swept = time.monotonic()
            told += ", converged" if event.converged else f", at most {_duration(left)} left"
            self._bars.update(self._task, told=told)
            if not self._console.is_terminal:
                print(f"{event.phase}: {told}", file=sys.stderr)


def _duration(seconds: float) -> str:
    """Return a duration in the two units that say most.

    >>> [_duration(s) for s in (0.2, 75, 7320)]
    ['1 s', '1 min 15 s', '2 h 2 min']
    """
    whole = max(1, round(seconds))
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


class Progress:
    """A bar over rows or chunks, for imports and checks; silent without a terminal."""

    def __init__(self, what: str) -> None:
        console = Console(stderr=True)
        self._bars = Bars(console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bars.add_task(what, total=None)

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bars.stop()

    def update(self, done: int, of: int) -> None:
        """Show how much is done."""
        self._bars.update(self._task, completed=done, total=of)


@contextlib.contextmanager
def observed(client: Any, performance_report: str | None, emit: Emit) -> Iterator[None]:
    """Tell the dashboard's address, where the cluster has one; write Dask's report of the work to a file."""
    if find_spec("bokeh") and client.dashboard_link:
        emit(Note(f"Dask's dashboard, while this runs: {client.dashboard_link}"))
    if performance_report is None:
        yield
        return
    from distributed import performance_report as reporting

    with client.as_current(), reporting(performance_report, mode="inline"):
        yield
    emit(Note(f"Dask's performance report is in {performance_report}"))


def check_performance_report(file: str) -> None:
    """Raise UsageError where Dask could not write its report, before any work is done."""
    if not find_spec("bokeh"):
        raise UsageError("--performance-report needs bokeh, which is not installed", "pip install 'aweigh[dashboard]'")
    if not Path(file).absolute().parent.is_dir():
        raise UsageError(f"--performance-report {file}: there is no folder to write it to", "make the folder first")
