"""Progress for people, on stderr: a live line on a terminal, plain lines otherwise."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from aweigh.pipeline.events import Event, Note, PassDone, SweepDone
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
        self._rate = ""
        self._began = time.monotonic()

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
            self._began = now
        elif isinstance(event, SweepDone):
            told = f"sweep {event.sweep} of at most {event.most}, objective {event.objective:.6g}, {self._rate}"
            self._bars.update(self._task, told=told)
            if not self._console.is_terminal:
                print(f"{event.phase}: {told}{', converged' if event.converged else ''}", file=sys.stderr)


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
