"""Labels of rows that were not in a fit, by its frozen model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


from aweigh.algorithms import kmeans
from aweigh.algorithms.contract import Array, Block
from aweigh.pipeline.driver import Runner, run_pass
from aweigh.pipeline.events import Emit, silent
from aweigh.pipeline.fit import Fitted, Sizes, keep, labels_of
from aweigh.pipeline.task import Work


@dataclass(frozen=True)
class PlaceRows:
    """The step that embeds a block by the frozen model and labels it by the nearest centre."""

    method: Any

    def __call__(self, fitted: Fitted, block: Block) -> tuple[Sizes, tuple[tuple[str, Array], ...]]:
        rows = self.method.place(fitted.point, fitted.stats, block)
        return labels_of(*kmeans.nearest_two(rows, fitted.centres), len(fitted.centres))


def assign(runner: Runner, source: Any, method: Any, fitted: Fitted, rows: Any, emit: Emit = silent) -> Sizes:
    """Return the cluster sizes of a source's rows; labels and confidence are in `rows` then."""
    for name, dtype in (("labels", "int32"), ("confidence", "float32")):
        rows.create(name, source.batches, None, dtype)
    work = Work(source, PlaceRows(method), fitted, rows, None, method.width, "labels")
    _, sizes, _ = run_pass(runner, work, keep, "assign", emit)
    return sizes


def check(fitted: Fitted, widths: tuple[int, ...]) -> None:
    """Raise ValueError where the views' widths are not those of the fit."""
    expected = tuple(len(s.shift) for s in fitted.scaling)
    if expected != widths:
        raise ValueError(f"views of widths {widths} were given to a model of views of widths {expected}")


