"""What a run tells while it works: typed events, given to one callable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Progress(NamedTuple):
    """Tasks done of a pass under way."""

    phase: str
    done: int
    of: int


class PassDone(NamedTuple):
    """A pass ended; its tally says what it read and took."""

    phase: str
    tally: Any


class SweepDone(NamedTuple):
    """A sweep ended at an objective."""

    phase: str
    sweep: int
    most: int
    objective: float
    converged: bool


class Note(NamedTuple):
    """A sentence for the reader: a choice made, a wait, a recovery."""

    text: str
    warning: bool = False


Event = Progress | PassDone | SweepDone | Note
Emit = Callable[[Event], None]


def silent(event: Event) -> None:
    """Tell nobody."""
