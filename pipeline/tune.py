"""Many settings fitted in the same passes, judged without labels, one recommended; a consensus of them as a run."""

from __future__ import annotations

import dataclasses
import datetime
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from aweigh import algorithms
from aweigh.algorithms import criteria
from aweigh.algorithms.half import Half, halvable
from aweigh.io import trees
from aweigh.io.archive import Archive, check_name, open_archive
from aweigh.io.errors import DataError, UsageError
from aweigh.io.rows import ZarrRows
from aweigh.io.runs import CONFIG, MODEL, RECORD, RunFolder
from aweigh.pipeline import consensus, judge, plan
from aweigh.pipeline.driver import Runner
from aweigh.pipeline.events import Emit, Event, Note, silent
from aweigh.pipeline.fitting import Fitted, Request, records_of
from aweigh.pipeline.grid import Setting
from aweigh.pipeline.run import Job, choose_method, chosen_views, resumed_job
from aweigh.pipeline.together import VIEWS, Crew

# The criteria by name, and whether more of them is better; RULE recommends, which tests/bench/tune.py judges.
CRITERIA = {
    "consensus_gap": True, "eigengap": True, "silhouette": True, "calinski_harabasz": True, "davies_bouldin": False,
    "stability": True, "half_stability": True,
}  # fmt: skip
RULE = "consensus_gap"


class Options(NamedTuple):
    """What all settings of a tune share."""

    views: tuple[str, ...] | None = None
    scale: str | None = None
    max_sweeps: int | None = None
    tol: float | None = None
    seed: int = 0
    seeds: int = 2
    halves: bool = False


@dataclass
class Trial:
    """One fit of a tune: a setting with the tune's seed, or a replica of it with another seed or half of the rows."""

    setting: Setting
    number: int
    replica: str
    job: Job | None
    folder: RunFolder
    method: Any

    def fitted(self) -> Fitted:
        """Return the stored model."""
        return trees.loads(self.folder.read(MODEL) or b"", records_of(self.method))  # type: ignore[no-any-return]

    @property
    def rows(self) -> ZarrRows:
        """The run's per-row arrays."""
        return ZarrRows(self.folder.archive.path, self.folder.folder)


@dataclass
class Tune:
    """All fits of a tune, checked; nothing runs and nothing is written yet."""

    archive: Archive
    name: str
    options: Options
    trials: list[Trial]
    consensus: RunFolder | None
    emit: Emit

    def run(self, runner: Runner) -> dict[str, Any]:
        """Return the table, the recommendation and what it cost; the settings' runs lie in the archive then."""
        began = time.monotonic()
        floors = runner.floors()
        groups = self._groups(runner, floors)
        passes: list[tuple[int, Any, int]] = []
        for number, (group, cached) in enumerate(groups, 1):
            self.emit(Note(f"{len(group)} fits in the same passes (group {number} of {len(groups)})"))
            jobs = [trial.job for trial in group if trial.job is not None]
            for job in jobs:
                job.cache = "on" if cached else "off"
            crew = Crew(runner, floors, f"{self.name}.{number}", self.emit)
            crew.run([job.run for job in jobs])
            passes += crew.passes
        rows = self._judged(runner, floors)
        chosen = recommend(rows)
        made = self._consensus(runner, chosen) if self.consensus else None
        for trial in self.trials:
            if trial.replica:
                self.archive.location.delete(trial.folder.folder)
        return {
            "tune": self.name,
            "samples": sum(batch.rows for batch in self.archive.batches),
            "settings": rows,
            "recommended": chosen,
            "consensus": made,
            "groups": len(groups),
            "fits": len(self.trials),
            "view_passes": sum(turn == VIEWS for turn, _, _ in passes),
            "view_bytes": sum(int(tally.view_bytes) for turn, tally, _ in passes if turn == VIEWS),
            "row_bytes": sum(int(t.row_bytes) + (turn != VIEWS) * int(t.view_bytes) for turn, t, _ in passes),
            "seconds": round(time.monotonic() - began, 3),
        }

    def _groups(self, runner: Runner, floors: dict[str, int]) -> list[tuple[list[Trial], bool]]:
        """Return the fits that go together, as many as the workers' memory takes, and whether views are kept there."""
        floored = _Floored(runner, floors)
        plans = {}
        for i, trial in enumerate(self.trials):
            if trial.job is not None:
                plans[i] = plan.fit_plan(self.archive, trial.job.source, trial.job.method, floored)
                plan.refuse(plans[i])
        limit = runner.limit()
        groups: list[list[int]] = []
        for i in plans:
            if not groups or (limit and plan.joint([plans[j] for j in (*groups[-1], i)]).worker_peak_bytes > limit):
                groups.append([])
            groups[-1].append(i)
        return [([self.trials[i] for i in group], self._cached([plans[i] for i in group], floored)) for group in groups]

    def _cached(self, plans: list[plan.Plan], runner: Any) -> bool:
        """Return whether the scaled views fit in the workers' memory beside all the fits of a group."""
        job = next(trial.job for trial in self.trials if trial.job is not None)
        kept = plan.fit_plan(self.archive, job.source, job.method, runner, "on").worker_peak_bytes
        bare = plan.fit_plan(self.archive, job.source, job.method, runner, "off").worker_peak_bytes
        needed, limit = plan.joint(plans).worker_peak_bytes, runner.limit() or 0
        room = min(limit, 2 * needed) if runner.sparing else limit
        return needed + kept - bare <= room

    def _judged(self, runner: Runner, floors: dict[str, int]) -> list[dict[str, Any]]:
        """Return a row a setting: what it is, how its fit went, and its criteria."""
        batches, seed = self.archive.batches, self.options.seed
        firsts = [trial for trial in self.trials if not trial.replica]
        item = np.result_type(*(view.dtype for view in self.archive.views.values())).itemsize

        def judged(trial: Trial) -> Any:
            width = trial.method.embedding * item
            return lambda member: judge.judge(member, trial.rows, batches, trial.setting.clusters, width, seed)

        found = Crew(runner, floors, emit=self.emit).run([judged(trial) for trial in firsts])
        pairs = [pair for trial in firsts for pair in (*self._alike(trial, "seed"), *self._alike(trial, "half"))]
        places = {trial.folder.name: i for i, trial in enumerate(self.trials)}
        indices = [(places[a.folder.name], places[b.folder.name]) for a, b in pairs]
        aris, labels = judge.compare(
            runner, [t.rows for t in self.trials], batches, [t.setting.clusters for t in self.trials], indices, seed,
            self.emit,
        )  # fmt: skip
        agreed = dict(zip(indices, aris, strict=True))
        gaps = self._gaps(runner, labels)
        agreement = self._agreement(labels)
        rows = []
        for trial, own in zip(firsts, found, strict=True):
            record = trial.folder.read_json(RECORD)
            ZtZ = getattr(trial.fitted().stats, "ZtZ", None)

            def ari(kind: str, trial: Trial = trial) -> float | None:
                values = [agreed[places[a.folder.name], places[b.folder.name]] for a, b in self._alike(trial, kind)]
                return float(np.mean(values)) if values else None

            rows.append({
                "run": trial.folder.name, "method": trial.setting.method, "clusters": trial.setting.clusters,
                "settings": trial.setting.settings, "sweeps": record["sweeps"], "converged": record["converged"],
                "objective": record["objective"][-1],
                "consensus_gap": gaps.get(trial.setting.clusters),
                "eigengap": None if ZtZ is None else criteria.eigengap(ZtZ, trial.setting.clusters),
                **own._asdict(),
                "stability": ari("seed"), "half_stability": ari("half"),
                "agreement": agreement[places[trial.folder.name]],
            })  # fmt: skip
        return rows

    def _alike(self, first: Trial, kind: str) -> list[tuple[Trial, Trial]]:
        """Return the pairs of a setting's fits whose agreement is its stability: seeds, or the two halves."""
        group = [t for t in self.trials if t.number == first.number and t.replica.startswith(kind)]
        group = [first, *group] if kind == "seed" else group
        return [(a, b) for i, a in enumerate(group) for b in group[:i]]

    def _gaps(self, runner: Runner, labels: np.ndarray) -> dict[int, float | None]:
        whole = [i for i, trial in enumerate(self.trials) if not trial.replica.startswith("half")]
        ks = sorted({trial.setting.clusters for trial in self.trials})
        if len(ks) == 1:
            return dict.fromkeys(ks)
        return runner.call(criteria.consensus_gaps, labels[:, whole], ks, self.options.seed)  # type: ignore[no-any-return]

    def _agreement(self, labels: np.ndarray) -> np.ndarray:
        """Return each fit's mean ARI with all others of the same k, on the sample."""
        found = np.ones(len(self.trials))
        for k in {trial.setting.clusters for trial in self.trials}:
            same = [i for i, trial in enumerate(self.trials) if trial.setting.clusters == k]
            found[same] = criteria.agreements(labels[:, same])
        return found

    def _consensus(self, runner: Runner, chosen: dict[str, Any]) -> dict[str, Any]:
        assert self.consensus is not None
        members = [
            t for t in self.trials if t.setting.clusters == chosen["clusters"] and not t.replica.startswith("half")
        ]
        parts = [consensus.Part(t.setting, t.method, t.fitted(), t.folder) for t in members]
        job = consensus.job(self.archive, self.consensus, parts, self.options.views, self.options.seed, self.emit)
        return consensus.run(job, runner, parts)


class _Floored:
    """A runner for plans alone, whose workers' floors are measured already."""

    def __init__(self, runner: Runner, floors: dict[str, int]) -> None:
        self.limit = runner.limit
        self.floors = lambda: floors
        self.sparing = getattr(runner, "sparing", False)


def prepared(
    archive: str,
    settings: Sequence[Setting],
    options: Options = Options(),
    *,
    name: str | None = None,
    combined: str | None = None,
    resume: bool = False,
    emit: Emit = silent,
) -> Tune:
    """Return a tune after every check that reads no data; `combined` names the run of the consensus, if one is wanted.

    The settings' runs are called NAME-001 and so on.  Raises UsageError, DataError.
    """
    opened = open_archive(archive)
    if resume and name is None:
        raise UsageError("--resume goes on with a tune by its name", "add --run NAME, as the first call printed it")
    name = name or f"{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S-%f}-tune"
    target = None
    if combined is not None:
        target = RunFolder(opened, check_name("run", combined))
        if target.complete:
            raise UsageError(f"run {combined!r} of {opened.path} is complete", "choose another --consensus name")
    trials: list[Trial] = []
    for number, setting in enumerate(settings, 1):
        for replica in _replicas(options):
            made = _trial(opened, number, setting, options, replica, name, resume, emit if not trials else silent)
            trials += [made] if made else []
    if target is not None and all(
        sum(t.setting.clusters == k and "half" not in t.replica for t in trials) < 2
        for k in {s.clusters for s in settings}
    ):
        raise UsageError("a consensus needs two fits of the same k", "give --seeds 2, or more settings")
    return Tune(opened, name, options, trials, target, emit)


def _replicas(options: Options) -> list[str]:
    halves = ["half0", "half1"] if options.halves else []
    return ["", *(f"seed{i}" for i in range(1, options.seeds)), *halves]


def _trial(
    opened: Archive, number: int, setting: Setting, options: Options, replica: str, name: str, resume: bool, emit: Emit
) -> Trial | None:
    """Return one fit, gone on with where it was begun; None for the half of a method that has no halves."""
    seed = options.seed + (int(replica[4:]) if replica.startswith("seed") else 0)
    method = (
        choose_method(opened.batches, chosen_views(opened, options.views), setting.method) if opened.batches else ""
    )
    request = Request(
        setting.clusters, method or setting.method, options.views, options.scale, dict(setting.settings),
        options.max_sweeps, options.tol, seed,
    )  # fmt: skip
    run = "-".join([name, f"{number:03d}", *([replica] if replica else [])])
    folder = RunFolder(opened, check_name("run", run))
    job = None
    if resume and folder.exists:
        config = folder.read_json(CONFIG)
        if config["request"] != _plain(request):
            raise UsageError(f"run {run!r} was begun with other settings", "give the same ones, or another --run name")
        if [b["digest"] for b in config["batches"]] != [b.digest for b in opened.batches]:
            raise DataError(f"batches were imported since tune {name!r} was begun", "begin it anew under another name")
        job = None if folder.complete else resumed_job(opened, folder, silent)
    else:
        job = Job.create(opened, request, None, run, _notes(emit))
    plain = job.method if job is not None else algorithms.make(method, setting.clusters, setting.settings)
    if replica.startswith("half"):
        if not halvable(plain):
            return None
        plain = Half(plain, int(replica[4:]), options.seed)
    if job is not None:
        job.method, job.publishes = plain, False
    return Trial(setting._replace(method=request.method), number, replica, job, folder, plain)


def _plain(request: Request) -> dict[str, Any]:
    """Return a request as JSON has it."""
    found = dataclasses.asdict(request)
    return {**found, "views": list(request.views) if request.views else None}


def _notes(emit: Emit) -> Emit:
    def tell(event: Event) -> None:
        if isinstance(event, Note):
            emit(event)

    return tell


def choices(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Return the k that each criterion would have: that of the setting it likes best; nothing where it knows none."""
    found = {}
    for name, more in CRITERIA.items():
        known = [row for row in rows if row[name] is not None]
        if known:
            found[name] = max(known, key=lambda row: row[name] if more else -row[name])["clusters"]
    return found


def recommend(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the recommended setting: the k of the recommending criterion, there the setting most like all others."""
    votes = choices(rows)
    k = votes.get(RULE, rows[0]["clusters"])
    same = [row for row in rows if row["clusters"] == k]
    best = max(same, key=lambda row: row["agreement"])
    why = []
    if RULE in votes:
        agreeing = sum(vote == k for vote in votes.values())
        why.append(
            f"all fits together fall most clearly into {k} clusters, which {agreeing} of {len(votes)} criteria would "
            "have taken"
        )
    if len(same) > 1:
        why.append(f"of the settings with k={k} it agrees most with the others (mean ARI {best['agreement']:.3f})")
    return {
        **{name: best[name] for name in ("run", "method", "clusters", "settings")},
        "reason": ". ".join(why) or "it is the only setting",
        "choices": votes,
    }
