"""The command line: results on stdout (one JSON object with --json), everything for people on stderr."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from aweigh.io.errors import AweighError, UsageError

SCALES = ("auto", "none", "unit", "zscore", "zunit", "minmax", "tfidf")


class Commands(click.Group):
    """A group whose failures are sentences with an exit code, never tracebacks (unless --debug)."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; turn every failure into its message and code."""
        words = [*ctx._protected_args, *ctx.args]
        as_json, debug = "--json" in words, "--debug" in words
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except click.UsageError as error:
            if not as_json:
                raise
            _fail(ctx, UsageError(error.format_message()), as_json)
        except KeyboardInterrupt:
            _fail(ctx, _Interrupted("interrupted", "what was complete is kept; a fit goes on with --resume"), as_json)
        except Exception as error:
            if debug:
                traceback.print_exc()
            _fail(ctx, error, as_json)


class _Interrupted(AweighError):
    code, exit_code = "interrupted", 130


def _fail(ctx: click.Context, error: Exception, as_json: bool) -> None:
    known = error if isinstance(error, AweighError) else _unexpected(error)
    if as_json:
        told = {"code": known.code, "message": known.message, "hint": known.hint}
        click.echo(json.dumps({"error": told}))
    click.echo(f"error: {known.message}", err=True)
    if known.hint:
        click.echo(f"  what to do: {known.hint}", err=True)
    ctx.exit(known.exit_code)


def _unexpected(error: Exception) -> AweighError:
    told = f"unexpected {type(error).__name__}: {error}"
    found = AweighError(told, "run again with --debug and report what it shows")
    found.code = "unexpected"
    return found


def shared(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that every command has."""
    function = click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")(function)
    return click.option("--debug", is_flag=True, help="Show the traceback of a failure.")(function)


def computing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say where to compute, and hand over a `runner` context."""
    from_options = [
        click.option("--scheduler", metavar="ADDRESS", help="Join a Dask cluster that runs already."),
        click.option("--cluster", "cluster_file", metavar="FILE", help="Start the cluster that a YAML file describes."),
        click.option("--workers", type=click.IntRange(1), help="Worker processes of the embedded cluster."),
        click.option("--memory", metavar="SIZE", help="Memory limit of each worker, such as 2GiB."),
        click.option("--performance-report", metavar="FILE", help="Write Dask's own report of what its workers did."),
    ]

    @functools.wraps(function)
    def wrapped(
        *args: Any,
        scheduler: str | None,
        cluster_file: str | None,
        workers: int | None,
        memory: str | None,
        performance_report: str | None,
        **options: Any,
    ) -> Any:
        source = click.get_current_context().get_parameter_source
        here = [
            n for n in ("scheduler", "cluster_file", "workers", "memory") if source(n) is ParameterSource.COMMANDLINE
        ]
        if here:  # a place given on the command line wins over one of the configuration
            scheduler = scheduler if "scheduler" in here else None
            cluster_file = cluster_file if "cluster_file" in here else None
        if scheduler and cluster_file:
            raise UsageError("--scheduler joins a cluster and --cluster starts one", "leave out one or the other")
        if (scheduler or cluster_file) and (workers or memory):
            why = "--scheduler joins a cluster whose workers run already"
            if cluster_file:
                why = "--cluster names a file that says this of its workers"
            raise UsageError(f"{why}, so --workers and --memory mean nothing", "leave out one or the other")
        started = _described(cluster_file) if cluster_file else functools.partial(_runner, scheduler, workers, memory)
        return function(*args, **options, runner=_observed(started, performance_report))

    for option in from_options:
        wrapped = option(wrapped)
    return wrapped


def _observed(started: Callable[[Any], Any], performance_report: str | None) -> Callable[[Any], Any]:
    """Return the runner context with its dashboard told, and Dask's own report written where asked for."""
    if performance_report:
        from aweigh.pipeline.show import check_performance_report

        check_performance_report(performance_report)

    @contextlib.contextmanager
    def context(emit: Any) -> Iterator[Any]:
        from aweigh.pipeline.show import observed

        with started(emit) as runner, observed(runner.client, performance_report, emit):
            yield runner

    return context


def _described(cluster_file: str) -> Callable[[Any], Any]:
    """Return the runner context of a file, read now so that a wrong one is told before any work."""
    from aweigh.pipeline.cluster_file import read

    return read(cluster_file).started


@contextlib.contextmanager
def _runner(scheduler: str | None, workers: int | None, memory: str | None, emit: Any) -> Iterator[Any]:
    from aweigh.pipeline import cluster
    from aweigh.pipeline.run import embedded_runner

    if scheduler is None:
        with embedded_runner(workers, memory, emit) as runner:
            yield runner
    else:
        with cluster.joined(scheduler) as client:
            yield cluster.DaskRunner(client, emit)


def fitting(function: Callable[..., Any], clusters: int | None = None) -> Callable[..., Any]:
    """Add the options that say what to fit; the number of clusters must be given, or is `clusters`."""
    number: dict[str, Any] = {"required": True} if clusters is None else {"default": clusters, "show_default": True}
    for option in reversed(
        [
            click.option("-k", "--clusters", type=int, help="Number of clusters.", **number),
            click.option("-m", "--method", default="auto", show_default=True, help="Method; see `aweigh methods`."),
            click.option("--views", metavar="A,B", help="Views to use, all by default."),
            click.option("--anchors", type=int, help="Number of anchors; the method's default otherwise."),
            click.option("--scale", type=click.Choice(SCALES), help="Scaling of the views [default: auto]."),
            click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="A parameter of the method."),
            click.option("--max-sweeps", type=click.IntRange(1), help="Most sweeps over the data."),
            click.option("--tol", type=click.FloatRange(0), help="Relative change of the objective to stop at."),
            click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of all chance."),
        ]
    ):
        function = option(function)
    return function


def _request(clusters: int, method: str, views: str | None, anchors: int | None, sets: tuple[str, ...]) -> Any:
    settings: dict[str, Any] = {} if anchors is None else {"anchors": anchors}
    for text in sets:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set {text!r} is not NAME=VALUE", "write for example --set lambda=0.1")
        settings[name] = value
    chosen = tuple(v for v in views.split(",")) if views else None
    return {"clusters": clusters, "method": method, "views": chosen, "settings": settings}


def say(as_json: bool, value: dict[str, Any], text: str) -> None:
    """Print a result: the JSON object, or the text for people."""
    click.echo(json.dumps(value, allow_nan=False) if as_json else text)


@click.group(cls=Commands, name="aweigh", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="aweigh")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Cluster multi-view data that does not fit in memory.

    Data lies in a Zarr archive of immutable batches; Dask runs the passes over it.
    Defaults can be set in Dask's configuration, under `aweigh:`.

    \b
    Begin with:  aweigh demo
    Example:     aweigh fit a.zarr -k 10
    """
    from aweigh.pipeline import config

    config.check()
    where = config.section("cluster")
    defaults = {**config.section("fit"), "scheduler": where["scheduler"], "cluster_file": where["file"]}
    ctx.default_map = {
        name: {p.name: defaults[p.name] for p in command.params if defaults.get(p.name or "") is not None}
        for name, command in main.commands.items()
    }


@main.command("import")
@click.argument("archive")
@click.option("--view", "views", multiple=True, required=True, metavar="NAME=SOURCE", help="A view; repeat for more.")
@click.option("--labels", metavar="SOURCE", help="True classes, for scoring only.")
@click.option("--ids", multiple=True, metavar="[NAME=]SOURCE", help="Sample ids of all views, or of one; see above.")
@click.option("--batch", metavar="NAME", help="Name of the new batch.")
@click.option("--link", is_flag=True, help="Leave views in the Zarr stores they lie in.")
@shared
def import_(
    archive: str,
    views: tuple[str, ...],
    labels: str | None,
    ids: tuple[str, ...],
    batch: str | None,
    link: bool,
    as_json: bool,
    debug: bool,
) -> None:
    """Add a batch of samples to ARCHIVE, which is made where it is not there.

    SOURCE is PATH or PATH:KEY.  A row that is all NaN (in Parquet: null) in a view is missing from that view.

    \b
    format          KEY
    .npy            none
    .npz            the array; a sparse one as scipy.sparse saves it
    .csv .tsv       a column, or what the names of several begin with
    .parquet        likewise; PATH may be a folder, or a pattern in quotes
    .h5ad .h5mu     X, layers/L, obsm/O; rna or rna/obsm/O of a modality;
                    for labels obs/COLUMN; Zarr forms likewise
    .h5 .hdf5 .nc   the dataset or variable
    .mat            X, S.X or X{1}; X' where the columns are the samples
    Zarr            the array

    Row i of each view is the same sample, unless views have ids: then rows are joined by them, and a view that
    lacks an id lacks the sample.  AnnData and MuData come with ids, and so does a table whose first column is text
    or whose index pandas stored; --ids NAME=SOURCE gives those of the view NAME (or of the labels: --ids
    labels=SOURCE), --ids SOURCE those of the rows of all views.

    With --link, views that are Zarr arrays are read once and not copied.  They
    must not change afterwards: a change is an error (exit code 6).

    \b
    Example:  aweigh import a.zarr --view image=img.npy --view text=txt.npz:emb
    Example:  aweigh import a.zarr --view x=a.parquet:pc_ --ids a.parquet:id
    Example:  aweigh import a.zarr --view rna=m.h5mu:rna --view atac=m.h5mu:atac
    """
    from aweigh.io.batches import import_batch
    from aweigh.io.location import open_location
    from aweigh.io.sources.joined import gathered
    from aweigh.pipeline.show import Progress

    named: dict[str, str] = {}
    for text in views:
        name, equals, spec = text.partition("=")
        if not equals or not spec:
            raise UsageError(f"--view {text!r} is not NAME=SOURCE", "write for example --view image=images.npy")
        if name in named:
            raise UsageError(f"view {name!r} is given twice", "give every view a name of its own")
        named[name] = spec
    found = gathered(named, ids, labels)
    for name, source in found.views.items():
        click.echo(f"view {name}: {source.describe()}", err=True)
    with Progress("import") as progress:
        done = import_batch(
            archive, found.views, name=batch, ids=found.ids, labels=found.labels, link=link, progress=progress.update
        )
    unchecked = [view for view, at in done.links.items() if not at.checksums]
    if unchecked:
        click.echo(f"linked without checksums: {', '.join(unchecked)}; a change shows by size and time only", err=True)
    missing = {v: n for v, n in done.missing.items() if n}
    value = {"batch": done.name, "samples": done.rows, "blocks": done.blocks, "missing": missing}
    say(
        as_json,
        {"archive": open_location(archive).path, **value},
        f"batch {done.name}: {done.rows} samples in {done.blocks} blocks"
        + (f", rows missing: {missing}" if missing else ""),
    )


@main.command()
@click.argument("archive")
@shared
def info(archive: str, as_json: bool, debug: bool) -> None:
    """Show the views, batches, missing shares and runs of ARCHIVE.

    \b
    Example:  aweigh info a.zarr --json
    """
    from aweigh.io.archive import open_archive
    from aweigh.io.runs import RunFolder, latest_run, run_names

    opened = open_archive(archive)
    rows = max(opened.rows, 1)
    views = {
        v.name: {
            "features": v.features,
            "dtype": v.dtype,
            "missing": sum(b.missing.get(v.name, 0) for b in opened.batches) / rows,
        }
        for v in opened.views.values()
    }
    batches = [{"name": b.name, "samples": b.rows, "blocks": b.blocks, "labels": b.has_labels} for b in opened.batches]
    runs = [{"name": n, "complete": RunFolder(opened, n).complete} for n in run_names(opened)]
    value = {"samples": opened.rows, "views": views, "batches": batches, "runs": runs, "latest": latest_run(opened)}
    lines = [f"{opened.rows} samples in {len(batches)} batches"]
    lines += [f"  view {n}: {v['features']} {v['dtype']}, {v['missing']:.1%} missing" for n, v in views.items()]
    lines += [f"  batch {b['name']}: {b['samples']} samples, {b['blocks']} blocks" for b in batches]
    lines += [f"  run {r['name']}: {'complete' if r['complete'] else 'incomplete'}" for r in runs]
    say(as_json, value, "\n".join(lines))


@main.command()
@click.argument("archive", required=False)
@functools.partial(fitting, clusters=20)
@click.option("--samples", type=float, metavar="N", help="Without ARCHIVE: its rows, such as 1e9.")
@click.option("--features", metavar="D,D", help="Without ARCHIVE: the columns of each view, such as 1024,768.")
@click.option("--dtype", type=click.Choice(("float32", "float64")), default="float32", help="Without ARCHIVE.")
@click.option(
    "--workers", type=click.IntRange(1), help="Without ARCHIVE: workers to count on [default: those measured]."
)
@click.option("--cached", is_flag=True, help="Without ARCHIVE: the views are kept in the workers' memory.")
@click.option("--constants", metavar="FILE", help="What `aweigh bench` measured [default: where it writes].")
@click.option("--memory", metavar="SIZE", help="Memory limit of a worker to hold the plan against.")
@shared
def plan(
    archive: str | None,
    samples: float | None,
    features: str | None,
    dtype: str,
    workers: int | None,
    cached: bool,
    constants: str | None,
    memory: str | None,
    as_json: bool,
    debug: bool,
    **options: Any,
) -> None:
    """Show what a fit of ARCHIVE would read, hold and take; or, on paper, of data that is not there yet.

    \b
    Example:  aweigh plan a.zarr -k 10 --memory 1GiB
              aweigh plan --samples 1e9 --features 1024,768 --workers 256
    """
    from dataclasses import replace

    from aweigh.pipeline import cluster, paper
    from aweigh.pipeline.bench import default_path, load
    from aweigh.pipeline.plan import fit_plan, lines, refuse
    from aweigh.pipeline.run import prepared_job

    if (archive is None) == (samples is None or features is None):
        raise UsageError(
            "a plan is of an ARCHIVE, or on paper of --samples and --features", "give the one or the other two"
        )
    if archive is not None:
        if workers or constants:
            raise UsageError("--workers and --constants are of a plan on paper", "leave them out, or leave out ARCHIVE")
        job = prepared_job(archive, **_fit_options(options))
        made = fit_plan(job.archive, job.source, job.method)
        value, told = made.as_dict(), lines(made)
    else:
        known = load(Path(constants) if constants else default_path())
        name, method, shape = paper.asked(samples or 0, features or "", dtype, **_fit_options(options))
        many = workers or known.workers
        cache = "on" if cached else "off"
        made = fit_plan(shape, paper.source_of(shape), method, cache=cache, floor=known.floor_bytes, workers=many)
        times = paper.on_paper(made, shape, name, method, known)
        value, told = paper.as_dict(made, times, name, method), [*lines(made), *paper.lines(times)]
    if memory:
        made = replace(made, worker_limit_bytes=cluster.parse_memory(memory))
        refuse(made)
        value["worker_limit_bytes"] = made.worker_limit_bytes
    say(as_json, value, "\n".join(told))


@main.command()
@click.option("--folder", default=".", help="A folder of the storage to measure; it is left as it was.")
@click.option("--to", metavar="FILE", help="Where to write the constants [default: the user's cache folder].")
@computing
@shared
def bench(folder: str, to: str | None, runner: Any, as_json: bool, debug: bool) -> None:
    """Measure what this machine, or a cluster's workers, can do, for `aweigh plan` on paper; under a minute.

    \b
    Example:  aweigh bench --folder /data
    """
    from dataclasses import asdict

    from aweigh.pipeline import bench as benches
    from aweigh.pipeline.show import Watcher

    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise UsageError(f"--folder {folder} is no folder that can be written to", "name one on the storage to measure")
    path = Path(to) if to else benches.default_path()
    with Watcher() as watch, runner(watch) as where:
        found = benches.measure(where, folder)
    benches.save(found, path)
    say(as_json, {"path": str(path), **asdict(found)}, "\n".join([*benches.lines(found), f"written to {path}"]))


def _fit_options(options: dict[str, Any]) -> dict[str, Any]:
    request = _request(*(options.pop(name) for name in ("clusters", "method", "views", "anchors", "sets")))
    return {**request, **options}


@main.command()
@click.argument("archive")
@fitting
@click.option("--run", metavar="NAME", help="Name of the new run.")
@click.option("--resume", is_flag=True, help="Go on with an incomplete run (the newest, or --run).")
@click.option(
    "--cache",
    type=click.Choice(("auto", "on", "off")),
    default="auto",
    show_default=True,
    help="Keep the scaled views in the workers' memory.",
)
@click.option("--strict", is_flag=True, help="Exit 5 where the fit does not converge.")
@computing
@shared
def fit(
    archive: str,
    run: str | None,
    resume: bool,
    cache: str,
    strict: bool,
    runner: Any,
    as_json: bool,
    debug: bool,
    **options: Any,
) -> None:
    """Cluster ARCHIVE into K clusters, on an embedded Dask cluster by default.

    \b
    Example:  aweigh fit a.zarr -k 10 --workers 4 --memory 2GiB
    """
    from aweigh.pipeline import run as runs
    from aweigh.pipeline.show import Watcher

    with Watcher() as watch:
        job = runs.prepared_job(archive, **_fit_options(options), run=run, resume=resume, emit=watch)
        job.cache = cache
        with runner(watch) as where:
            record = job.run(where)
    say(as_json, {k: record[k] for k in REPORTED if k in record}, _told(record))
    if strict and not record["converged"]:
        click.get_current_context().exit(5)


@main.command()
@click.argument("archive")
@click.option("-k", "--clusters", required=True, metavar="KS", help="Numbers of clusters: 5:30, 5:30:5 or 5,8,12.")
@click.option("-m", "--method", default="auto", show_default=True, metavar="A,B", help="Methods; see `aweigh methods`.")
@click.option("--views", metavar="A,B", help="Views to use, all by default.")
@click.option("--anchors", metavar="N,N", help="Numbers of anchors; 2k,3k are multiples of k.")
@click.option("--scale", type=click.Choice(SCALES), help="Scaling of the views [default: auto].")
@click.option("--set", "sets", multiple=True, metavar="NAME=V,V", help="Values of a parameter; METHOD.NAME for one.")
@click.option("--max-sweeps", type=click.IntRange(1), help="Most sweeps over the data.")
@click.option("--tol", type=click.FloatRange(0), help="Relative change of the objective to stop at.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of all chance.")
@click.option("--seeds", type=click.IntRange(1), default=2, show_default=True, help="Fits of each setting.")
@click.option("--halves", is_flag=True, help="Fit each setting on two halves of the rows too.")
@click.option("--consensus", metavar="NAME", help="Make a run of all fits of the recommended k together.")
@click.option("--run", "name", metavar="NAME", help="Name that the settings' runs begin with.")
@click.option("--resume", is_flag=True, help="Go on with the tune of --run.")
@click.option("-o", "--output", metavar="FILE.html", help="Write table and pictures as a page.")
@computing
@shared
def tune(
    archive: str,
    clusters: str,
    method: str,
    views: str | None,
    anchors: str | None,
    sets: tuple[str, ...],
    consensus: str | None,
    name: str | None,
    resume: bool,
    output: str | None,
    runner: Any,
    as_json: bool,
    debug: bool,
    **options: Any,
) -> None:
    """Fit many settings of ARCHIVE in the same passes and recommend one.

    No labels are used. Every block is read once for all settings. Each setting is
    a run of its own, equal to what `aweigh fit` gives with the same seed.

    \b
    Example:  aweigh tune a.zarr -k 5:30 --consensus best -o tune.html
    """
    from aweigh.pipeline import grid, tuned
    from aweigh.pipeline import tune as tuning
    from aweigh.pipeline.show import Watcher

    if output and (Path(output).suffix != ".html" or not Path(output).resolve().parent.is_dir()):
        raise UsageError(f"-o {output!r} is not a .html file in a folder that is there", "write for example tune.html")
    settings = grid.settings(method.split(","), clusters, anchors, sets)
    chosen = tuple(views.split(",")) if views else None
    with Watcher() as watch:
        made = tuning.prepared(
            archive, settings, tuning.Options(chosen, **options),
            name=name, combined=consensus, resume=resume, emit=watch,
        )  # fmt: skip
        with runner(watch) as where:
            record = made.run(where)
    if output:
        _write_text(output, tuned.page(record))
    say(as_json, record, tuned.table(record))


def _write_text(target: str, text: str) -> None:
    """Write a file whole or not at all."""
    from aweigh.io.location import storage_errors

    at = Path(target).resolve()
    with storage_errors(f"writing {target}"):
        handle, partial = tempfile.mkstemp(dir=at.parent, prefix=f".{at.name}.", suffix=".partial")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as out:
                out.write(text)
            os.chmod(partial, 0o644)
            os.replace(partial, at)
        except BaseException:
            os.unlink(partial)
            raise


@main.command()
@click.argument("archive")
@click.option("--from", "source", metavar="RUN", help="The run to go on from; the latest otherwise.")
@click.option("--run", metavar="NAME", help="Name of the new run.")
@click.option("--refit", is_flag=True, help="Sweep over all rows again, from the run's model.")
@click.option("--freeze", is_flag=True, help="Keep the model; place the new batches by it.")
@computing
@shared
def update(
    archive: str,
    source: str | None,
    run: str | None,
    refit: bool,
    freeze: bool,
    runner: Any,
    as_json: bool,
    debug: bool,
) -> None:
    """Learn the batches of ARCHIVE that a run has not seen, from its model.

    Clusters keep their numbers.  Old batches are not read again, unless --refit.

    \b
    Example:  aweigh update a.zarr --run tuesday
    """
    from aweigh.pipeline.freeze import frozen_run
    from aweigh.pipeline.show import Watcher
    from aweigh.pipeline.updating import update_job

    if refit and freeze:
        raise UsageError("--refit learns from all rows and --freeze from none", "leave out one or the other")
    with Watcher() as watch:
        if freeze:
            with runner(watch) as where:
                record = frozen_run(archive, source, run=run, runner=where, emit=watch)
        else:
            job = update_job(archive, source, how="refit" if refit else "continue", run=run, emit=watch)
            with runner(watch) as where:
                record = job.run(where)
    say(as_json, {k: record[k] for k in REPORTED if k in record}, _told(record))


@main.command()
@click.argument("config")
@click.option("--dry-run", is_flag=True, help="Say what a night would do; nothing is written.")
@computing
@shared
def nightly(config: str, dry_run: bool, runner: Any, as_json: bool, debug: bool) -> None:
    """Import what arrived, update, compare, report and publish, as the TOML file CONFIG says.

    The same night twice changes nothing; one that was cut off goes on where it was.

    \b
    Example:  aweigh nightly nightly.toml --json
    """
    from aweigh.pipeline import night_config
    from aweigh.pipeline import nightly as nights
    from aweigh.pipeline.show import Watcher

    read = night_config.read(config)
    with Watcher() as watch:
        told = nights.nightly(read, runner, watch, dry_run)
    say(as_json, told, "\n".join(nights.lines(told)))
    if read.strict and (told.get("alarms") or told.get("converged") is False):
        click.get_current_context().exit(5)


def _told(record: dict[str, Any]) -> str:
    return (
        f"run {record['run']}: {record['samples']} samples in {record['clusters']} clusters by {record['method']}, "
        f"{record['sweeps']} sweeps{'' if record['converged'] else ' (not converged)'}, {record['seconds']:.1f} s, "
        f"peak {record['peak_worker_bytes'] / 2**20:.0f} MiB a worker"
    )


REPORTED = (
    "run", "method", "samples", "clusters", "sweeps", "passes", "objective", "converged", "seconds",
    "peak_worker_bytes", "solved_on", "rounds", "how", "drift",
)  # fmt: skip


@main.command()
@click.argument("archive")
@click.option("--run", metavar="NAME", help="The run whose model labels; the latest otherwise.")
@click.option("--batch", "batches", multiple=True, metavar="B", help="A batch to label; those not yet seen otherwise.")
@click.option("--to", "name", metavar="NAME", help="Name of the run that holds the labels.")
@computing
@shared
def assign(
    archive: str, run: str | None, batches: tuple[str, ...], name: str | None, runner: Any, as_json: bool, debug: bool
) -> None:
    """Label rows of ARCHIVE with the frozen model of a run.

    \b
    Example:  aweigh assign a.zarr --run monday --batch tuesday
    """
    from aweigh.pipeline.assign import label_batches
    from aweigh.pipeline.show import Watcher

    with Watcher() as watch, runner(watch) as where:
        record = label_batches(archive, run, batches, name, where, watch)
    text = f"run {record['run']}: {record['samples']} samples of {', '.join(record['batches'])} labelled"
    say(as_json, record, f"{text} by the model of {record['assigned_from']}")


@main.command()
@click.argument("archive")
@click.option("--run", metavar="NAME", help="The run; the latest otherwise.")
@shared
def score(archive: str, run: str | None, as_json: bool, debug: bool) -> None:
    """Show ACC, NMI, purity, ARI, F and RI against the archive's labels.

    \b
    Example:  aweigh score a.zarr --json
    """
    from aweigh.io.archive import open_archive
    from aweigh.io.runs import complete_run
    from aweigh.pipeline import results

    opened = open_archive(archive)
    found = results.score(opened, complete_run(opened, run))
    say(as_json, found, _table(found))


def _table(scores: dict[str, float]) -> str:
    names = {"acc": "ACC", "nmi": "NMI", "purity": "purity", "ari": "ARI", "f": "F", "ri": "RI"}
    head = "".join(f"{names[n]:>8}" for n in scores)
    return f"{head}\n" + "".join(f"{v:8.3f}" for v in scores.values())


@main.command()
@click.argument("archive")
@click.argument("one", metavar="RUN")
@click.argument("two", metavar="RUN")
@shared
def compare(archive: str, one: str, two: str, as_json: bool, debug: bool) -> None:
    """Show what moved between two runs: samples, flows, sizes.

    \b
    Example:  aweigh compare a.zarr monday tuesday
    """
    from aweigh.io.archive import open_archive
    from aweigh.io.runs import complete_run
    from aweigh.pipeline import compare as comparing

    opened = open_archive(archive)
    found = comparing.compare(opened, complete_run(opened, one), complete_run(opened, two))
    say(as_json, found, "\n".join(comparing.lines(found)))


@main.command()
@click.argument("archive")
@click.option("--run", metavar="NAME", help="The run; the latest otherwise.")
@click.option("--to", "target", required=True, metavar="FILE", help="Where to write; the suffix says the format.")
@click.option("--embedding", is_flag=True, help="The rows of the embedding too.")
@click.option("--name", metavar="NAME", default="aweigh", show_default=True, help="The column of an AnnData's obs.")
@shared
def export(archive: str, run: str | None, target: str, embedding: bool, name: str, as_json: bool, debug: bool) -> None:
    """Write sample ids, labels and confidences of a run to FILE.

    FILE is .csv, .parquet, or a dataset for xarray: .nc or a new .zarr. A .h5ad,
    .h5mu or Zarr form of them that is there keeps what it holds, and gets the
    labels as a column of obs, for the cells whose names are the samples' ids.

    \b
    Example:  aweigh export a.zarr --to clusters.csv
    """
    from aweigh.io.archive import open_archive
    from aweigh.io.runs import complete_run
    from aweigh.pipeline import export as exporting

    exporting.writer_of(Path(target).resolve(), target)
    opened = open_archive(archive)
    folder = complete_run(opened, run)
    rows = exporting.export(exporting.Rows(opened, folder, embedding), target, name)
    found = {"run": folder.name, "rows": rows, "file": str(Path(target).resolve())}
    say(as_json, found, f"{rows} rows written to {target}")


@main.command()
@click.argument("archive")
@click.option("--run", metavar="NAME", help="The run; the latest otherwise.")
@click.option("-o", "--output", metavar="FILE.html", help="Where to write [default: ARCHIVE-RUN.html here].")
@computing
@shared
def report(archive: str, run: str | None, output: str | None, runner: Any, as_json: bool, debug: bool) -> None:
    """Show a run as one HTML page: clusters, picture, features, labels, changes.

    The page holds all that it shows: it opens offline and in any browser.

    \b
    Example:  aweigh report a.zarr -o monday.html
    """
    from aweigh.io.archive import open_archive
    from aweigh.io.runs import complete_run
    from aweigh.pipeline import report as reporting
    from aweigh.pipeline.show import Watcher

    opened = open_archive(archive)
    folder = complete_run(opened, run)
    target = reporting.target(opened, folder, output)
    with Watcher() as watch, runner(watch) as where:
        done = reporting.write(opened, folder, target, where, watch)
    say(as_json, done, f"report of run {done['run']} written to {done['file']} ({done['bytes'] / 2**20:.1f} MiB)")


@main.command()
@click.argument("archive")
@click.option("--repair", is_flag=True, help="Sweep away what interrupted imports left.")
@shared
def verify(archive: str, repair: bool, as_json: bool, debug: bool) -> None:
    """Read every chunk of ARCHIVE and name those that are missing, torn or foreign.

    \b
    Example:  aweigh verify a.zarr --repair
    """
    from aweigh.io.errors import StorageError
    from aweigh.io.verify import verify as check
    from aweigh.pipeline.show import Progress

    with Progress("verify") as progress:
        report = check(archive, repair=repair, progress=progress.update)
    problems = [p._asdict() if hasattr(p, "_asdict") else vars(p) for p in report.problems]
    told = "\n".join(str(p) for p in report.problems)
    harmful = [p for p in report.problems if p.kind not in ("uncommitted", "partial")]
    value = {"chunks": report.chunks, "bytes": report.bytes, "problems": problems}
    if harmful:
        if not as_json:
            click.echo(told)
        raise StorageError(f"{len(harmful)} damaged chunks in {archive}: {harmful[0]}", "restore them from a copy")
    say(as_json, value, f"{report.chunks} chunks, {report.bytes} bytes read: sound" + (f"\n{told}" if told else ""))


@main.command()
@shared
def methods(as_json: bool, debug: bool) -> None:
    """Show the methods: paper, passes a sweep, per-row state, parameters and defaults.

    \b
    Example:  aweigh methods
    """
    from aweigh import algorithms

    value, lines = {}, []
    for name, kind in algorithms.METHODS.items():
        parameters = algorithms.parameters(name)
        if "anchors" in parameters:
            parameters["anchors"] = _in_clusters(kind, "m")
        entry = {
            "paper": kind.paper,
            "missing_rows": kind.missing,
            "passes_per_sweep": len(kind(2).sweep),
            "state_columns_per_row": _in_clusters(kind, "width"),
            "parameters": parameters,
        }
        value[name] = entry
        passes, columns = entry["passes_per_sweep"], entry["state_columns_per_row"]
        lines += [
            f"{name}",
            f"  {entry['paper']}",
            f"  {passes} pass{'es' * (passes > 1)} a sweep, {columns} numbers of state a row, "
            f"{'rows may be missing from views' if kind.missing else 'every sample in every view'}",
            f"  {', '.join(f'{p}={v}' for p, v in parameters.items())}",
        ]
    say(as_json, value, "\n".join(lines))


def _in_clusters(kind: Any, attribute: str) -> int | str:
    """Return an attribute of a method by default: a number, or its multiple of k such as "3k"."""
    at_two, at_three = getattr(kind(2), attribute), getattr(kind(3), attribute)
    if at_two == at_three:
        return int(at_two)
    return "k" if at_two == 2 else f"{at_two // 2}k"


@main.command()
@click.argument("folder", default="aweigh-demo", metavar="[DIR]")
@computing
@shared
def demo(folder: str, runner: Any, as_json: bool, debug: bool) -> None:
    """Import, cluster, score and report the bundled sample: 2000 handwritten digits.

    \b
    Example:  aweigh demo /tmp/demo
    """
    from aweigh.io.archive import open_archive
    from aweigh.io.batches import import_batch
    from aweigh.io.location import open_location
    from aweigh.io.manifest import MANIFEST
    from aweigh.io.runs import complete_run
    from aweigh.io.sources import open_column, open_source
    from aweigh.pipeline import report as reporting
    from aweigh.pipeline import results
    from aweigh.pipeline.run import prepared_job
    from aweigh.pipeline.show import Watcher

    archive = f"{open_location(folder).path}/mfeat.zarr"
    if not open_location(archive).exists(MANIFEST) or not open_archive(archive).batches:
        with resources.as_file(resources.files("aweigh.io") / "sample" / "mfeat.npz") as sample:
            names = ("fac", "fou", "kar", "mor", "pix", "zer")
            views = {name: open_source(f"{sample}:view{i}") for i, name in enumerate(names)}
            import_batch(archive, views, name="digits", labels=open_column(f"{sample}:labels"))
        click.echo(f"imported 2000 samples in six views into {archive}", err=True)
    with Watcher() as watch:
        job = prepared_job(archive, 10, emit=watch)
        with runner(watch) as where:
            record = job.run(where)
            opened = open_archive(archive)
            run = complete_run(opened, record["run"])
            page = reporting.write(opened, run, f"{open_location(folder).path}/report.html", where, watch)
    found = results.score(opened, run)
    where_run = f"{archive}/runs/{record['run']}"
    say(
        as_json,
        {"archive": archive, "run": record["run"], "folder": where_run, "report": page["file"], **found},
        f"{_table(found)}\n\n2000 digits in 10 clusters by {record['method']}; no label was used but for these scores"
        f"\nthe run lies in {where_run}\nits report, for a browser, is {page['file']}",
    )


if __name__ == "__main__":
    sys.exit(main())
