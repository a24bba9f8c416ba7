"""A night: import what arrived, verify it, bring the clusters up to date, compare, report, publish; resumable.

All that a night must remember lies in `nightly.json` of the archive, replaced atomically: what the batches hold, how
many nights were published, and the night under way.  A step that was done is not done again; one that was cut off is
done again, to the same bits.  `latest` moves last.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from aweigh import algorithms
from aweigh.io import contents
from aweigh.io.archive import NIGHT_LOCK, Archive, Batch, open_archive
from aweigh.io.batches import import_batch
from aweigh.io.errors import AweighError, DataError, StorageError
from aweigh.io.incoming_files import BATCH, arrived, missing_place
from aweigh.io.location import open_location
from aweigh.io.manifest import MANIFEST
from aweigh.io.runs import CONFIG, RECORD, RunFolder, complete_run, latest_run, publish, remove
from aweigh.io.sources import open_column, open_source, split_spec
from aweigh.io.verify import verify
from aweigh.pipeline import assign, compare, drift, results
from aweigh.pipeline.events import Emit, Note
from aweigh.pipeline.fitting import Request
from aweigh.pipeline.freeze import frozen_run
from aweigh.pipeline.night_config import Config
from aweigh.pipeline.run import choose_method, chosen_views, make_method, prepared_job, refuse_missing, request_of
from aweigh.pipeline.updating import refuse_how, update_job

STATE = "nightly.json"
NAME = "night-{:05d}"
COMPARISON = "compare.json"
Started = Callable[[Emit], Any]


class HookError(AweighError):
    """The report's command failed; the night itself was published."""

    code, exit_code = "report", 1


@dataclass
class Night:
    """One call: the configuration, where to compute, and what was done so far."""

    config: Config
    started: Started
    emit: Emit
    stack: contextlib.ExitStack
    held: Callable[[], None] = lambda: None
    seconds: dict[str, float] = field(default_factory=dict)
    _runner: Any = None

    @property
    def runner(self) -> Any:
        """The runner, started when it is first needed."""
        if self._runner is None:
            self._runner = self.stack.enter_context(self.started(self.emit))
        return self._runner

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time a step, begun only while the lock is held."""
        self.held()
        began = time.monotonic()
        yield
        self.seconds[name] = round(self.seconds.get(name, 0) + time.monotonic() - began, 3)

    @property
    def archive(self) -> Archive:
        """The archive as it is now."""
        return open_archive(self.config.archive)

    @property
    def state(self) -> dict[str, Any]:
        """What the nights before have left."""
        data = open_location(self.config.archive).read(STATE)
        try:
            return {"contents": {}, "nights": 0, "refitted": 0, "pending": None} | json.loads(data or b"{}")
        except ValueError as error:
            what = f"{STATE} of {self.config.archive} is torn or was edited by hand"
            raise StorageError(
                what, "remove it: contents are then read anew, and nights counted from the runs"
            ) from error

    def remember(self, **changes: Any) -> dict[str, Any]:
        """Replace some of it."""
        state = self.state | changes
        open_location(self.config.archive).write(STATE, json.dumps(state, indent=1).encode())
        return state


def nightly(config: Config, started: Started, emit: Emit, dry_run: bool = False) -> dict[str, Any]:
    """Return the summary of a night, JSON-ready.

    Raises BusyError where another night holds the lock, DataError where what arrived is refused: the archive and
    `latest` are then as they were.
    """
    began = time.monotonic()
    check_places(config)
    with contextlib.ExitStack() as stack:
        night = Night(config, started, emit, stack)
        if dry_run:
            return _told(night, began, "dry-run", **_intended(night))
        location = open_location(config.archive)
        night.held = stack.enter_context(location.lock(NIGHT_LOCK, f"aweigh nightly {config.file}"))
        fresh, known = _import(night)
        if not location.exists(MANIFEST):
            return _told(night, began, "unchanged", imported=[], known=known)
        done: list[dict[str, Any]] = []
        while _pending(night):
            done.append(_finish(night))
        _sweep(night)
        status = "published" if done else "unchanged"
        earlier = [one["run"] for one in done[:-1]]
        last = done[-1] if done else {"run": latest_run(night.archive)}
        told = _told(night, began, status, imported=fresh, known=known, earlier=earlier, **last)
    if (told.get("report") or {}).get("failed"):
        raise HookError(
            f"run {told['run']} is published, and its report failed: {told['report']['failed']}",
            "mend the [report] of the configuration; `aweigh report` makes one of any run",
        )
    return told


def check_places(config: Config) -> None:
    """Raise DataError, with its line, for a source or a folder that is not there."""
    for role, pattern in config.patterns.items():
        place = None if re.match(r"[A-Za-z0-9+.-]+://", pattern) else missing_place(pattern)
        if place is not None:
            raise config.wrong(("import", *role.split(".", 1)), f"{role} = {pattern!r}: {place} does not exist")


def _told(whole: Night, began: float, status: str, **more: Any) -> dict[str, Any]:
    told = {"status": status, "archive": open_location(whole.config.archive).path, **more}
    return {**told, "steps": whole.seconds, "seconds": round(time.monotonic() - began, 3)}


# import


def _offers(config: Config) -> dict[str | None, dict[str, str]]:
    """Return the sources by role of every batch that lies there; None names a batch whose files do not."""
    patterns = config.patterns
    if BATCH not in next(iter(patterns.values())):
        return {None: patterns}
    return {name: sources for name, sources in arrived(patterns).items()}  # noqa: C416


def _stamp(sources: dict[str, str]) -> list[list[Any]]:
    """Return size and time of change of each source's file: unchanged files are not read again."""
    found = []
    for text in sources.values():
        path, _ = split_spec(text)
        status = os.stat(path) if os.path.isfile(path) else None
        found.append([text, status and status.st_size, status and status.st_mtime_ns])
    return found


def _import(night: Night) -> tuple[list[str], list[str]]:
    """Import what is new; return the names of the new batches and of those known already."""
    fresh, known = [], []
    with night.step("import"):
        for name, sources in _offers(night.config).items():
            twin, content = _known(night, name, sources)
            if twin is None:
                fresh.append(_import_one(night, name, sources, content).name)
            else:
                known.append(twin)
            batch = twin or fresh[-1]
            if batch not in night.state["contents"]:  # nor where a night was cut off between import and note
                entry = {"content": content.digest, "rows": content.rows, "stamp": _stamp(sources)}
                night.remember(contents={**night.state["contents"], batch: entry})
    return fresh, known


def _known(night: Night, name: str | None, sources: dict[str, str]) -> tuple[str | None, contents.Content]:
    """Return the batch that holds the same already, by name or by content; DataError where a name holds other data."""
    there = open_location(night.config.archive).exists(MANIFEST)
    archive = night.archive if there else None
    names = {batch.name: batch for batch in archive.batches} if archive else {}
    noted, stamp = night.state["contents"], _stamp(sources)
    for batch, entry in noted.items():
        if batch in names and entry["stamp"] == stamp and all(s[1] is not None for s in stamp):
            return batch, contents.Content(entry["content"], entry["rows"], {})
    content = contents.of_sources(_views(sources), archive)
    for batch in names.values():
        if batch.rows == content.rows and _content(night, archive, batch) == content.digest:
            if batch.name != name and name is not None:
                night.emit(Note(f"{name} holds what batch {batch.name} holds: it is not imported again"))
            return batch.name, content
    if name in names:
        raise DataError(
            f"there is a batch {name!r} already, and {', '.join(sources.values())} hold other data: batches are never "
            "rewritten",
            "give the new data a name of their own",
        )
    return None, content


def _content(night: Night, archive: Archive | None, batch: Batch) -> str:
    """Return the digest of a committed batch: noted, or read now and noted by the next import."""
    entry = night.state["contents"].get(batch.name)
    return entry["content"] if entry else contents.of_batch(archive, batch).digest  # type: ignore[arg-type]


def _views(sources: dict[str, str]) -> dict[str, Any]:
    views = {role.split(".", 1)[1]: text for role, text in sources.items() if role.startswith("views.")}
    return {name: open_source(text) for name, text in views.items()}


def _import_one(night: Night, name: str | None, sources: dict[str, str], content: contents.Content) -> Batch:
    def accept(batch: Batch) -> None:
        _suits(night, batch, content)

    ids, labels = (open_column(sources[role]) if role in sources else None for role in ("ids", "labels"))
    batch = import_batch(night.config.archive, _views(sources), name=name, ids=ids, labels=labels, accept=accept)
    night.emit(Note(f"imported batch {batch.name}: {batch.rows} samples"))
    return batch


def _suits(night: Night, batch: Batch, content: contents.Content) -> None:
    """Raise DataError where the next update could not learn this batch, before it is committed for good."""
    opened = night.archive
    opened = Archive(opened.location, {view.name: view for view in batch.views}, (*opened.batches, batch))
    latest = latest_run(opened)
    if latest is None:
        request = _request(night.config)
        names = chosen_views(opened, request.views)
        make_method(choose_method(opened.batches, names, request.method), request, opened.batches)
        return
    run = complete_run(opened, latest)
    config = run.read_json(CONFIG)
    names = chosen_views(opened, request_of(config).views)
    fitted, method, _ = assign.load(opened, run)
    refuse_missing((batch,), names, method, config["method"])
    if admit := getattr(method, "admit", None):
        try:
            admit(batch.rows)
        except ValueError as error:
            raise DataError(str(error)) from error
    for view, scaling in zip(names, fitted.scaling, strict=True):
        low = content.lowest.get(view, 0.0)
        if getattr(method, "nonnegative", False) and scaling.kind in ("none", "unit") and low < 0:
            what = f"view {view!r} of batch {batch.name!r} holds {low:g}, and {config['method']} needs values >= 0"
            raise DataError(what, "clean the batch; the archive and the latest run are as they were")


def _request(config: Config) -> Request:
    settings = dict(config.settings) | ({} if config.anchors is None else {"anchors": config.anchors})
    return Request(
        config.clusters,
        config.method,
        config.chosen,
        config.scale,
        settings,
        config.max_sweeps,
        config.tol,
        config.seed,
    )


# what is to be done


def _unseen(archive: Archive) -> tuple[Batch, ...]:
    """Return the batches that the latest run has not labelled."""
    latest = latest_run(archive)
    seen = results.batches_of(archive, RunFolder(archive, latest)) if latest else ()
    return tuple(batch for batch in archive.batches if batch not in seen)


def _policy(night: Night, archive: Archive) -> str:
    """Return how the latest run goes on tonight, before drift is looked at: "fit" where there is none."""
    latest = latest_run(archive)
    if latest is None:
        return "fit"
    name = RunFolder(archive, latest).read_json(CONFIG)["method"]
    kind = algorithms.METHODS[name]
    policy = night.config.policy or ("continue" if kind.rounds else "refit")
    if policy != "freeze":
        refuse_how(name, kind, policy, latest)
    state, every = night.state, night.config.refit_every
    if every is not None and not kind.rounds and state["nights"] + 1 - state["refitted"] >= every:
        return "full"
    return policy


def _pending(night: Night) -> bool:
    """Return whether a night is under way; begin one where batches are new."""
    if night.state["pending"] is not None:
        return True
    archive = night.archive
    new = _unseen(archive)
    if not new:
        return False
    with night.step("verify"):
        _verify(night, archive, new)
    number = night.state["nights"] + 1
    while RunFolder(archive, NAME.format(number)).exists:
        number += 1
    night.remember(
        pending={
            "night": number,
            "run": NAME.format(number),
            "from": latest_run(archive),
            "how": _policy(night, archive),
            "batches": [batch.name for batch in new],
        }
    )
    return True


def _verify(night: Night, archive: Archive, new: tuple[Batch, ...]) -> None:
    """Raise StorageError where a chunk of the new batches, or of all, is damaged."""
    only = None if night.config.verify == "all" else {batch.name for batch in new}
    report = verify(archive.path, only=only)
    harmful = [p for p in report.problems if p.kind not in ("uncommitted", "partial")]
    if harmful:
        raise StorageError(f"{len(harmful)} damaged chunks in {archive.path}: {harmful[0]}", "restore them from a copy")


def _intended(night: Night) -> dict[str, Any]:
    """Return what a night would do, writing nothing."""
    offers, there = _offers(night.config), open_location(night.config.archive).exists(MANIFEST)
    fresh = [name or "the files given" for name, sources in offers.items() if _known(night, name, sources)[0] is None]
    if not there:
        return {"imported": fresh, "how": "fit" if fresh else None, "pending": None}
    archive, pending = night.archive, night.state["pending"]
    new = [batch.name for batch in _unseen(archive)]
    how = pending["how"] if pending else _policy(night, archive) if new or fresh else None
    return {"imported": fresh, "batches": new, "how": how, "pending": pending and pending["run"]}


# update to publish


def _finish(night: Night) -> dict[str, Any]:
    """Bring the night under way to its end and return what is told of it."""
    pending, archive = night.state["pending"], night.archive
    run = RunFolder(archive, pending["run"])
    if not run.complete:
        with night.step("update"):
            _update(night, pending, run)
    record = run.read_json(RECORD)
    with night.step("compare"):
        found = _compared(archive, pending, run, record)
    told = _summary(pending, record, found)
    with night.step("report"):
        told["report"] = _report(night, pending, told)
    with night.step("publish"):
        publish(run)
        refitted = pending["night"] if record.get("how") in (None, "full") else night.state["refitted"]
        night.remember(pending=None, nights=pending["night"], refitted=refitted)
    return told


def _update(night: Night, pending: dict[str, Any], run: RunFolder) -> None:
    """Make the night's run complete, from its checkpoint where it has one."""
    archive, how, emit = night.config.archive, pending["how"], night.emit
    if run.exists and how != "freeze":
        job = prepared_job(archive, night.config.clusters, run=run.name, resume=True, emit=emit)
    elif how == "fit":
        request = _request(night.config)
        job = prepared_job(
            archive, request.clusters, request.method, views=request.views, scale=request.scale,
            settings=request.settings, max_sweeps=request.max_sweeps, tol=request.tol, seed=request.seed,
            run=run.name, emit=emit,
        )  # fmt: skip
    elif how == "freeze":
        frozen_run(archive, pending["from"], run=run.name, runner=night.runner, emit=emit, publishes=False)
        return
    else:
        job = update_job(archive, pending["from"], how=how, run=run.name, emit=emit)
        limit = night.config.refit_drift
        measured = None if limit is None or how == "full" else job.measure(night.runner)
        if limit is not None and measured is not None and drift.farthest(measured.told) > limit:
            emit(Note(f"a view has drifted by more than {limit:g}: all is fitted anew"))
            job = update_job(archive, pending["from"], how="full", run=run.name, emit=emit)
            job.drift = measured
    job.publishes, job.watched = False, how == "fit"
    job.run(night.runner)


def _compared(archive: Archive, pending: dict[str, Any], run: RunFolder, record: dict[str, Any]) -> Any:
    """Return the comparison with the run before, stored with the run; None on the first night."""
    if pending["from"] is None:
        return None
    found = compare.compare(archive, RunFolder(archive, pending["from"]), run)
    run.write_json(COMPARISON, found)
    return found


def _summary(pending: dict[str, Any], record: dict[str, Any], found: Any) -> dict[str, Any]:
    """Return what people want to know in the morning."""
    changes = {} if found is None else {**found, **(record.get("matching") or {})}
    keys = ("moved", "births", "deaths", "splits", "merges", "small")
    return {
        "night": pending["night"],
        "run": record["run"],
        "from": pending["from"],
        "how": record.get("how") or "fit",
        "method": record["method"],
        "batches": pending["batches"],
        "samples": record["samples"],
        "clusters": record["clusters"],
        "converged": record["converged"],
        **{key: changes.get(key) for key in keys},
        "drift": record.get("drift"),
        "alarms": drift.alarms(_judged(record, pending)),
    }


def _judged(record: dict[str, Any], pending: dict[str, Any]) -> Any:
    return [entry for entry in record.get("drift") or () if entry["batch"] in pending["batches"]]


def _report(night: Night, pending: dict[str, Any], told: dict[str, Any]) -> dict[str, Any] | None:
    """Run what the configuration asks for; a failure is told at the end, since a night is not held up by its page."""
    config = night.config
    if config.report is None and not config.command:
        return None
    values = {
        "archive": open_location(config.archive).path, "run": told["run"], "previous": pending["from"] or "",
        "night": pending["night"], "summary": json.dumps(told),
    }  # fmt: skip
    made: dict[str, Any] = {"file": config.report, "failed": None}
    if config.report is not None:
        made["failed"] = _page(night, told["run"], config.report)
    if config.command and not made["failed"]:
        night.held()
        made["failed"] = _command([word.format(**values) for word in config.command])
    if made["failed"]:
        night.emit(Note(f"report: {made['failed']}", warning=True))
    return made


def _page(night: Night, run: str, file: str) -> str | None:
    """Write what `aweigh report` makes of a run; return what went wrong."""
    from aweigh.pipeline import report

    try:
        report.write(night.archive, RunFolder(night.archive, run), file, night.runner, night.emit)
    except AweighError as error:
        return error.message
    except Exception as error:
        return f"unexpected {type(error).__name__}: {error}"
    return None


def _command(words: list[str]) -> str | None:
    """Run a command without a shell; return what went wrong."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except OSError as error:
        return f"{words[0]}: {error.strerror}"
    last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["it said nothing"]
    return f"{words[0]} ended with {done.returncode}: {last[0]}" if done.returncode else None


def _sweep(night: Night) -> None:
    """Remove the runs of nights before the last `keep`, never the latest, and what an interrupted sweep has left."""
    archive, kept = night.archive, night.state["nights"] - night.config.keep
    latest = latest_run(archive)
    for name in archive.location.list("runs"):
        found = re.fullmatch(r"night-(\d{5,})", name)
        if found and int(found[1]) <= kept and name != latest:
            remove(RunFolder(archive, name))


def lines(told: dict[str, Any]) -> list[str]:
    """Return a summary as lines for people."""
    said = [f"{told['status']}: {', '.join(told.get('imported') or ()) or 'no new batch'}"]
    if told["status"] == "dry-run":
        return [
            *said,
            f"  then: {told.get('how') or 'nothing'}" + (f", after {told['pending']}" if told["pending"] else ""),
        ]
    if told["status"] == "unchanged":
        return [*said, f"  latest is {told.get('run') or 'not there yet'}"]
    said.append(f"run {told['run']} ({told['how']}): {told['samples']} samples in {told['clusters']} clusters")
    if told["moved"] is not None:
        said.append(f"  {told['moved']:.2%} of the rows that {told['from']} has too moved to another cluster")
        for key in ("births", "deaths", "splits", "merges", "small"):
            said += [f"  {key}: {told[key]}"] if told[key] else []
    for entry in told["drift"] or ():
        for view, found in entry["views"].items():
            said.append(f"  {'DRIFTED ' if found['drifted'] else ''}{entry['batch']} {view}: {drift.words(found)}")
    said.append("  " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in told["steps"].items()))
    return said
