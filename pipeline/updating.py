"""Jobs that go on from an earlier run: learn what it has not seen, or refit over everything from its model."""

from __future__ import annotations

from typing import Any

from aweigh import algorithms
from aweigh.io import trees
from aweigh.io.archive import Archive, open_archive
from aweigh.io.errors import DataError, UsageError
from aweigh.io.runs import CONFIG, MODEL, RECORD, RunFolder, complete_run
from aweigh.pipeline.events import Emit, silent
from aweigh.pipeline.fitting import Round, records_of
from aweigh.pipeline.run import Earlier, Job, chosen_views, make_method, new_folder, refuse_missing, request_of
from aweigh.pipeline.task import ArchiveSource


def update_job(
    archive: str, source: str | None = None, *, how: str = "continue", run: str | None = None, emit: Emit = silent
) -> Job:
    """Return the job that learns the batches that a run (the latest otherwise) has not, from its stored model.

    `how` as in `Earlier`.  Raises DataError where there is no such batch, UsageError where the method does not go on
    in this way.
    """
    opened = open_archive(archive)
    return job_from(opened, complete_run(opened, source), None, emit, run, how)


def job_from(
    opened: Archive, source: RunFolder, folder: RunFolder | None, emit: Emit, run: str | None = None,
    how: str = "continue",
) -> Job:  # fmt: skip
    """Return the job that goes on from the run `source`, in a new folder or in one that was begun."""
    config, record = source.read_json(CONFIG), source.read_json(RECORD)
    request, name = request_of(config), config["method"]
    method = algorithms.make(name, request.clusters, request.settings)
    refuse_how(name, method, how, source.name)
    labelled = tuple(opened.batch(entry["name"]) for entry in config["batches"])
    frozen = set(config.get("frozen", ()))
    old = tuple(batch for batch in labelled if batch.name not in frozen)
    new = tuple(batch for batch in opened.batches if batch not in old)
    if not new:
        raise DataError(f"run {source.name!r} has learnt every batch of {opened.path}", "import a batch first")
    names = chosen_views(opened, request.views)
    refuse_missing(new, names, method, name)
    if how != "continue":
        make_method(name, request, opened.batches)
    rounds = tuple(Round([r["batch"]], r["objective"], r["converged"]) for r in record.get("rounds", ()))
    fitted = trees.loads(source.read(MODEL) or b"", records_of(method))
    columns = tuple(list(opened.views).index(view) for view in names)
    batches = (*old, *new) if how == "continue" else opened.batches
    made = Job(
        opened, request, method, name, ArchiveSource(opened.path, batches, names, columns),
        folder or new_folder(opened, run, name), emit, earlier=Earlier(source, fitted, old, labelled, rounds, how),
    )  # fmt: skip
    made.emit = made._tell(emit)
    return made


def refuse_how(name: str, method: Any, how: str, source: str) -> None:
    """Raise UsageError where a method does not go on from a run in this way."""
    if how == "continue" and not method.rounds:
        able = ", ".join(n for n, kind in algorithms.METHODS.items() if kind.rounds)
        raise UsageError(
            f"run {source!r} is of {name}, which learns all rows together; {able} go on batch by batch",
            "use --refit (all rows again, from the run's model) or --freeze (the model stays)",
        )
    if how == "refit" and method.rounds:
        able = ", ".join(n for n, kind in algorithms.METHODS.items() if not kind.rounds)
        raise UsageError(
            f"run {source!r} is of {name}, which learns batch after batch: a refit over the batches it has learnt "
            f"would give the same; --refit is for {able}",
            "leave out --refit",
        )
