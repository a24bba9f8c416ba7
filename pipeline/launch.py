"""`--cluster FILE`: a Dask cluster for the length of a job, of a kind and with options that the file names.

The kinds are `local`, `ssh`, `slurm`, `kubernetes` and `scheduler` (joined, not started); `cluster-configs/` has files
of each.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import shlex
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import dask
import yaml
from distributed import Client, Security, SSHCluster
from distributed.core import Status

from aweigh.io.errors import UsageError
from aweigh.pipeline import cluster
from aweigh.pipeline.cluster import SETTINGS, WORKER_ENVIRONMENT, ClusterError, DaskRunner
from aweigh.pipeline.events import Emit, Note

SPARE = 512 << 20  # what a job's other processes hold beside its workers
SUBMISSION = 300.0  # seconds in which all jobs must be handed to SLURM
DEATH_TIMEOUT = 60  # seconds after which workers whose scheduler is gone end themselves


def environment() -> dict[str, str]:
    """Return the variables that give a process started elsewhere what `cluster.embedded` gives its workers."""
    plain = {name: value for name, value in SETTINGS.items() if not isinstance(value, dict)}
    return {
        **WORKER_ENVIRONMENT,
        **{f"DASK_{n.upper().replace('.', '__').replace('-', '_')}": str(v) for n, v in plain.items()},
    }


@dataclass(frozen=True)
class Local:
    """Worker processes on this machine."""

    workers: int = 0
    memory: str = ""

    @contextlib.contextmanager
    def started(self, emit: Emit) -> Iterator[DaskRunner]:
        """Yield a runner on a LocalCluster."""
        from aweigh.pipeline.run import embedded_runner

        with embedded_runner(self.workers or None, self.memory or None, emit) as runner:
            yield runner


@dataclass(frozen=True)
class Scheduler:
    """A cluster that runs already; variables such as $DASK_SCHEDULER_ADDRESS stand for their values."""

    address: str
    workers: int = 1
    wait: str = "60s"

    @contextlib.contextmanager
    def started(self, emit: Emit) -> Iterator[DaskRunner]:
        """Yield a runner on the cluster once it has its workers."""
        address = os.path.expandvars(self.address)
        if "$" in address:
            raise UsageError(f"address {self.address} names a variable that is not set", "set it, or write the address")
        if address.startswith("tls://"):
            _certificates()
        with cluster.joined(address) as client:
            yield _ready(client, self.workers, self.wait, emit)


@dataclass(frozen=True)
class SSH:
    """A scheduler on the first host and workers on all, each started over SSH."""

    hosts: tuple[str, ...]
    memory: str
    workers_per_host: int = 1
    scheduler: str = ""
    python: str = sys.executable
    username: str = ""
    port: int = 0
    key: str = ""
    known_hosts: str = ""
    interface: str = ""
    protocol: str = "tcp"
    scheduler_port: int = 0

    @contextlib.contextmanager
    def started(self, emit: Emit) -> Iterator[DaskRunner]:
        """Yield a runner once every worker runs."""
        _needs("asyncssh", "ssh")
        workers = self.workers_per_host * len(self.hosts)
        with _running(lambda: SSHCluster(**self.arguments()), workers, "60s", emit) as runner:
            yield runner

    def arguments(self) -> dict[str, Any]:
        """Return what SSHCluster is given."""
        connect = {"username": self.username, "port": self.port, "known_hosts": self.known_hosts}
        connect |= {"client_keys": [self.key] if self.key else None}
        variables = [f"{name}={shlex.quote(value)}" for name, value in environment().items()]
        both = {"protocol": f"{_protocol(self.protocol)}://"}
        both |= {"interface": self.interface} if self.interface else {}
        return {
            "hosts": [self.scheduler or self.hosts[0], *self.hosts],
            "connect_options": {name: value for name, value in connect.items() if value},
            "scheduler_options": {**both, "port": self.scheduler_port, "dashboard_address": "127.0.0.1:0"},
            "worker_options": {
                **both,
                "n_workers": self.workers_per_host,
                "nthreads": 1,
                "memory_limit": cluster.parse_memory(self.memory),
                "death_timeout": DEATH_TIMEOUT,
            },
            "remote_python": " ".join(["env", *variables, self.python]),
            "silence_logs": logging.ERROR,
        }


@dataclass(frozen=True)
class Slurm:
    """A scheduler in this process and workers in SLURM jobs; dask-jobqueue's own files say what is not said here."""

    jobs: int
    memory: str
    workers_per_job: int = 1
    walltime: str = ""
    partition: str = ""
    account: str = ""
    directives: tuple[str, ...] = ()
    prologue: tuple[str, ...] = ()
    python: str = sys.executable
    interface: str = ""
    scratch: str = ""
    logs: str = ""
    protocol: str = "tcp"
    begin_with: int = 1
    wait: str = "1h"

    @contextlib.contextmanager
    def started(self, emit: Emit) -> Iterator[DaskRunner]:
        """Yield a runner once the first workers run; the others join as SLURM starts them."""
        with _running(self.cluster, self.begin_with, self.wait, emit, self.jobs) as runner:
            yield runner

    def cluster(self) -> Any:
        """Return a SLURMCluster with no jobs yet; its `job_script()` is what is submitted."""
        _needs("dask_jobqueue", "slurm")
        from dask_jobqueue import SLURMCluster

        return SLURMCluster(**self.arguments())

    def arguments(self) -> dict[str, Any]:
        """Return what SLURMCluster is given."""
        workers, each = self.workers_per_job, cluster.parse_memory(self.memory)
        tls = _protocol(self.protocol) == "tls"
        exports = [f"export {name}={shlex.quote(value)}" for name, value in environment().items()]
        options = {
            "queue": self.partition, "account": self.account, "walltime": self.walltime, "interface": self.interface,
            "local_directory": self.scratch, "log_directory": self.logs, "security": Security() if tls else None,
        }  # fmt: skip
        return {
            **{name: value for name, value in options.items() if value},
            "job_name": "aweigh",
            "cores": workers,
            "processes": workers,
            "memory": f"{workers * each}B",
            "job_mem": f"{-(-(workers * each + SPARE) >> 20)}M",
            "job_extra_directives": list(self.directives),
            "job_script_prologue": [*self.prologue, *exports],
            "python": self.python,
            "death_timeout": DEATH_TIMEOUT,
            "scheduler_options": {"dashboard_address": "127.0.0.1:0"},
        }


@dataclass(frozen=True)
class Kubernetes:
    """A DaskCluster of the Dask operator, its pods as in `spec.cluster.spec` of a DaskJob's manifest."""

    manifest: str
    namespace: str = ""
    workers: int = 0
    begin_with: int = 1
    wait: str = "10m"

    @contextlib.contextmanager
    def started(self, emit: Emit) -> Iterator[DaskRunner]:
        """Yield a runner once the first workers run."""
        _needs("dask_kubernetes", "kubernetes")
        with _running(self.cluster, self.begin_with, self.wait, emit) as runner:
            yield runner

    def cluster(self) -> Any:
        """Return a KubeCluster, made in the Kubernetes that the environment points to."""
        from dask_kubernetes.operator import KubeCluster

        options = {"custom_cluster_spec": self.resource(), "namespace": self.namespace or None}
        return KubeCluster(**options, quiet=True, shutdown_on_close=True)

    def resource(self) -> dict[str, Any]:
        """Return the DaskCluster, under a name of its own."""
        try:
            with open(self.manifest, encoding="utf-8") as file:
                job = yaml.safe_load(file)
            spec = job["spec"]["cluster"]["spec"]
            selector = spec["scheduler"]["service"]["selector"]
        except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
            what = f"manifest {self.manifest} is no DaskJob ({type(error).__name__}: {error})"
            raise UsageError(what, "begin with cluster-configs/kubernetes/daskjob.yaml") from error
        if self.workers:
            spec["worker"]["replicas"] = self.workers
        name = f"{job['metadata']['name']}-{uuid.uuid4().hex[:8]}"
        selector["dask.org/cluster-name"] = name
        return {"apiVersion": job["apiVersion"], "kind": "DaskCluster", "metadata": {"name": name}, "spec": spec}


KINDS = {"local": Local, "ssh": SSH, "slurm": Slurm, "kubernetes": Kubernetes, "scheduler": Scheduler}
Kind = Local | SSH | Slurm | Kubernetes | Scheduler


def _needs(module: str, extra: str) -> None:
    if find_spec(module) is None:
        missing = f"kind {extra} needs the package {module.replace('_', '-')}, which is not installed"
        raise UsageError(missing, f"pip install 'aweigh[{extra}]'")


def _protocol(name: str) -> str:
    """Return tcp or tls; raise UsageError where it is neither, or TLS has no certificates."""
    if name not in ("tcp", "tls"):
        raise UsageError(f"protocol {name!r} is none; there are tcp and tls", "write protocol: tls, or leave it out")
    if name == "tls":
        _certificates()
    return name


def _certificates() -> None:
    if not dask.config.get("distributed.comm.tls.ca-file", None):
        raise UsageError(
            "Dask's configuration names no certificates for TLS (distributed.comm.tls.ca-file)",
            "make some and set DASK_CONFIG as in cluster-configs/plain-tls/README.md",
        )


@contextlib.contextmanager
def _running(make: Callable[[], Any], workers: int, wait: str, emit: Emit, jobs: int = 0) -> Iterator[DaskRunner]:
    """Yield a runner on the cluster that `make` starts; end the cluster with the context."""
    with dask.config.set(SETTINGS), contextlib.ExitStack() as stack:
        try:
            running = stack.enter_context(make())
            if jobs:
                running.scale(jobs=jobs)
                running.sync(_submitted, running, jobs)
            client = stack.enter_context(Client(running, set_as_default=False))
        except UsageError:
            raise
        except Exception as error:
            what = f"the cluster did not start: {_reason(error)}"
            raise ClusterError(what, "mend what it says; --debug shows more") from error
        yield _ready(client, workers, wait, emit)


async def _submitted(running: Any, jobs: int) -> None:
    """Raise what went wrong with a job; `scale` works in the background and keeps it to itself."""
    async with asyncio.timeout(SUBMISSION):
        while len(running.workers) < jobs:
            await asyncio.sleep(0.05)
    try:
        for job in running.workers.values():
            await job
    finally:
        for job in running.workers.values():  # the cluster refuses to close over jobs that never were
            if job.job_id is None:
                job.status = Status.closed


def _reason(error: BaseException) -> str:
    """Return what went wrong first, not the assertion about it that a cluster fails with while it closes."""
    while isinstance(error, AssertionError) and error.__context__ is not None:
        error = error.__context__
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _ready(client: Client, workers: int, wait: str, emit: Emit) -> DaskRunner:
    """Return a runner once so many workers have joined; raise ClusterError where they do not."""
    address = client.scheduler.address
    if address.startswith("tcp://") and not _loopback(address):
        emit(Note(f"whoever reaches {address} can run code there; cluster-configs/plain-tls shows TLS", warning=True))
    try:
        client.wait_for_workers(workers, timeout=seconds(wait))
    except TimeoutError as error:
        joined = len(client.scheduler_info(n_workers=-1)["workers"])
        raise ClusterError(
            f"{joined} of {workers} workers joined {address} within {wait}",
            "look at the workers' own logs; ask for fewer workers or a longer `wait`",
        ) from error
    return DaskRunner(client, emit)


def _loopback(address: str) -> bool:
    host = address.partition("://")[2].rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def seconds(text: str) -> float:
    """Return a time such as 10m in seconds; raise UsageError where it is none."""
    try:
        return float(dask.utils.parse_timedelta(text))
    except (ValueError, KeyError) as error:
        raise UsageError(f"wait {text!r} is no time", "write one such as 90s, 10m or 1h") from error
