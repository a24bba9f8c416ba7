"""A run made of other runs: their embeddings side by side, one k-means, a model that labels new rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from aweigh import algorithms
from aweigh.algorithms import scaling
from aweigh.algorithms.consensus import side_by_side
from aweigh.algorithms.contract import Array, Block
from aweigh.io.archive import Archive
from aweigh.io.errors import DataError
from aweigh.io.rows import ZarrRows
from aweigh.io.runs import RunFolder
from aweigh.pipeline.driver import Runner, run_pass
from aweigh.pipeline.events import Emit
from aweigh.pipeline.fitting import Fitted, Request, Round, Saved, Sizes, keep
from aweigh.pipeline.grid import Setting
from aweigh.pipeline.run import Job, chosen_views, source_of
from aweigh.pipeline.task import RowsSource, Work
from aweigh.pipeline.together import alike


class Part(NamedTuple):
    """One run of a consensus."""

    setting: Setting
    method: Any
    fitted: Fitted
    folder: RunFolder


@dataclass(frozen=True)
class JoinRows:
    """The step that writes the embeddings of a block side by side."""

    def __call__(self, model: None, block: Block) -> tuple[Sizes, Array]:
        return Sizes(np.float64(len(block.positions)), np.zeros(1)), side_by_side(block.views)


def job(
    archive: Archive, folder: RunFolder, parts: Sequence[Part], views: tuple[str, ...] | None, seed: int, emit: Emit
) -> Job:
    """Return the job of a consensus, its model known already.  Raises DataError where the parts scale views apart."""
    first = parts[0].fitted
    for part in parts[1:]:
        if not alike(part.fitted.scaling, first.scaling):
            raise DataError(
                f"{part.setting.method} and {parts[0].setting.method} see the views scaled differently, "
                "and a consensus labels new rows from one scaling",
                "leave one of them out of -m, or give a --scale that both take",
            )
    members = [[part.setting.method, part.setting.clusters, part.setting.settings] for part in parts]
    request = Request(parts[0].setting.clusters, algorithms.CONSENSUS, views, settings={"members": members}, seed=seed)
    method = algorithms.make(request.method, request.clusters, request.settings)
    source = source_of(archive, chosen_views(archive, views))
    whole = tuple(tuple(getattr(part.fitted, name) for part in parts) for name in ("model", "point", "stats"))
    objective = sum(float(part.fitted.model.objective) for part in parts)
    round_ = Round([batch.name for batch in archive.batches], [objective], True)
    prepared = scaling.Prepared((), first.scaling, None)
    saved = Saved(prepared, (round_,), whole, None, 1)
    made = Job(archive, request, method, request.method, source, folder, emit, saved)
    made.emit = made._tell(emit)
    return made


def run(job: Job, runner: Runner, parts: Sequence[Part]) -> dict[str, Any]:
    """Return the record of the run, after its embedding is written and clustered."""
    item = np.result_type(*(job.archive.views[name].dtype for name in job.source.views)).itemsize
    rows, width = ZarrRows(job.archive.path, job.folder.folder), job.method.embedding
    batches = job.source.batches
    rows.create("embedding", batches, width, f"float{8 * item}")
    embeddings = tuple((ZarrRows(job.archive.path, part.folder.folder), "embedding") for part in parts)
    source = RowsSource(embeddings, batches, width * item)
    run_pass(runner, Work(source, JoinRows(), None, rows, write="embedding"), keep, "consensus", job.emit)
    return job.run(runner)
