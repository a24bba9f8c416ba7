"""Every file of cluster-configs/ carries the settings of the code, and runs, or fits the schema of what it is for."""

import contextlib
import getpass
import inspect
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import types
import warnings
from importlib.util import find_spec
from pathlib import Path

import dask
import pytest
import yaml
from arrays import archive_of, blobs
from click.testing import CliRunner
from distributed import LocalCluster

from aweigh.io.errors import UsageError
from aweigh.pipeline import cluster_file, launch
from aweigh.pipeline.cli import main
from aweigh.pipeline.cluster import SETTINGS, WORKER_ENVIRONMENT, ClusterError
from aweigh.pipeline.launch import environment

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "cluster-configs"
# kind of file: the files, which the tests below take from here
CLUSTERS = ["local.yaml", "ssh/ssh.yaml", "plain-tls/cluster.yaml", "slurm/slurm.yaml", "kubernetes/kubernetes.yaml"]
SCRIPTS = ["plain-tls/certificates.sh", "plain-tls/scheduler.sh", "plain-tls/worker.sh", "slurm/aweigh.sbatch"]
UNITS = ["systemd/aweigh-nightly.service", "systemd/aweigh-nightly.timer"]
MANIFESTS = ["kubernetes/daskjob.yaml", "kubernetes/cronjob.yaml", "kubernetes/kustomization.yaml"]
DASK = ["dask.yaml", "plain-tls/tls.yaml"]
CRON = "systemd/aweigh.cron"
NIGHT = "systemd/nightly.toml"
SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


def text(name):
    return (CONFIGS / name).read_text("utf-8")


def load(name):
    return yaml.safe_load(text(name))


def test_every_file_has_its_check_and_every_folder_its_readme():
    files = {str(path.relative_to(CONFIGS)) for path in CONFIGS.rglob("*") if path.is_file()}
    readmes = {name for name in files if name.endswith("README.md")}
    assert files - readmes == {*CLUSTERS, *SCRIPTS, *UNITS, *MANIFESTS, *DASK, CRON, NIGHT}
    folders = {path.name for path in CONFIGS.iterdir() if path.is_dir()}
    assert readmes == {"README.md", *(f"{name}/README.md" for name in folders)}


READMES = ["README.md", *sorted({f"{Path(name).parent}/README.md" for name in CLUSTERS[1:] + UNITS})]


@pytest.mark.parametrize("readme", READMES)
def test_readmes_name_files_and_options_that_exist(readme):
    folder = (CONFIGS / readme).parent
    shown = text(readme)
    for target in re.findall(r"\]\((?!http)([^)]+)\)", shown):
        assert (folder / target).exists(), target
    for line in re.findall(r"^(?:DASK_CONFIG=\S+ )?(aweigh .*?)(?:#.*)?$", shown, re.MULTILINE):
        words = shlex.split(line)
        known = {option for parameter in main.commands[words[1]].params for option in parameter.opts}
        assert {word for word in words if word.startswith("-")} <= known


# What each file sets


def assignments(name):
    """NAME=value of the lines that a shell script exports, a unit or a crontab sets."""
    lines = re.findall(r"^(?:export |Environment=|(?=[A-Z_]+=))(.*)$", text(name), re.MULTILINE)
    return dict(word.split("=", 1) for line in lines for word in shlex.split(line) if "=" in word)


def containers(name="kubernetes/daskjob.yaml"):
    spec = load(name)["spec"]
    cluster = spec["cluster"]["spec"]
    pods = [spec["job"], cluster["worker"], cluster["scheduler"]]
    return [container for pod in pods for container in pod["spec"]["containers"]]


@pytest.mark.parametrize("name", [*SCRIPTS[1:3], UNITS[0], CRON])
def test_processes_with_dask_yaml_start_with_the_workers_environment(name):
    found = assignments(name)
    assert {n: v for n, v in found.items() if n in environment()} == WORKER_ENVIRONMENT
    assert "/etc/aweigh/dask" in found["DASK_CONFIG"]


def test_the_batch_script_sets_everything():
    found = assignments("slurm/aweigh.sbatch")
    assert {n: v for n, v in found.items() if n != "DASK_SCHEDULER_ADDRESS"} == environment()


@pytest.mark.parametrize("container", containers(), ids=lambda container: container["name"])
def test_each_container_sets_everything(container):
    assert {item["name"]: item["value"] for item in container["env"]} == environment()


def flat(tree, prefix=""):
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and name != "distributed.nanny.pre-spawn-environ":
            yield from flat(value, f"{name}.")
        else:
            yield name, value


def test_dask_yaml_has_the_settings_of_the_code():
    assert dict(flat(load("dask.yaml"))) == SETTINGS


GIVEN = {"variables": environment(), "file": {"DASK_CONFIG": str(CONFIGS / "dask.yaml")}}


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
def test_dask_understands_them(given):
    code = "import dask, distributed, json, sys; print(json.dumps([dask.config.get(n) for n in sys.argv[1:]]))"
    names = [name for name, value in SETTINGS.items() if not isinstance(value, dict)]
    clean = {n: v for n, v in os.environ.items() if not n.startswith("DASK")}
    done = subprocess.run([sys.executable, "-c", code, *names], env=clean | given, capture_output=True, check=True)
    assert json.loads(done.stdout) == [SETTINGS[name] for name in names]


def test_the_settings_are_what_practice_asks_for():
    assert {int(v) for n, v in WORKER_ENVIRONMENT.items() if n.endswith("THRESHOLD_")} == {2**26}
    assert {v for n, v in WORKER_ENVIRONMENT.items() if n.endswith("NUM_THREADS")} == {"1"}
    assert SETTINGS["distributed.scheduler.worker-ttl"] == "30s"
    assert SETTINGS["distributed.scheduler.allowed-failures"] == 10
    memory = {name.rsplit(".", 1)[1]: v for name, v in SETTINGS.items() if ".memory." in name}
    assert memory == {"target": False, "spill": False, "pause": False, "terminate": 0.95}


# Reading a file


@pytest.mark.parametrize("name", CLUSTERS)
def test_cluster_files_are_read(name):
    kind = cluster_file.read(str(CONFIGS / name))
    assert type(kind) is launch.KINDS[load(name)["kind"]]


@pytest.mark.parametrize("name", CLUSTERS)
def test_options_shown_as_comments_are_read_too(name, tmp_path):
    whole = re.sub(r"^# ([a-z-]+: \S.*)$", r"\1", text(name), flags=re.MULTILINE)
    whole = re.sub(r"  +[a-zA-Z][^:]*$", "", whole, flags=re.MULTILINE)
    (tmp_path / "whole.yaml").write_text(whole)
    cluster_file.read(str(tmp_path / "whole.yaml"))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("kind: local\nworker: 2\n", r":2: 'worker' is no option of kind local, whose options are workers, memory"),
        ("kind: cloud\n", r":1: kind 'cloud' is none; there are local, ssh, slurm, kubernetes, scheduler"),
        ("workers: 2\n", r":1: `kind` is not given"),
        ("kind: local\n\nworkers: many\n", r":3: workers is 'many'; allowed is a whole number from 1 up"),
        ("kind: local\nworkers: 0\n", r":2: workers is '0'"),
        ("kind: local\nmemory: lots\n", r":2: memory: --memory 'lots' is no size"),
        ("kind: local\nmemory:\n", r":2: memory is ''; allowed is one text"),
        ("kind: local\nworkers: 1\nworkers: 2\n", r":3: 'workers' is given twice"),
        ("kind: slurm\nmemory: 1GiB\n", r"kind slurm needs jobs"),
        ("kind: ssh\nhosts: []\nmemory: 1GiB\n", r":2: hosts is a sequence; allowed is a list of texts"),
        ("kind: scheduler\naddress: [a]\n", r":2: address is a sequence; allowed is one text"),
        ("kind: scheduler\naddress: tcp://a:1\nwait: soon\n", r":3: wait: wait 'soon' is no time"),
        ("kind: [local\n", "is no YAML: .*line 2"),
        ("- local\n", "holds no `key: value` lines"),
    ],
)
def test_wrong_files_are_refused_before_any_work(given, told, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(given)
    done = CliRunner().invoke(main, ["fit", str(tmp_path / "none.zarr"), "-k", "3", "--cluster", str(path)])
    assert done.exit_code == 2
    assert re.search(told, done.stderr)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        cluster_file.read(str(tmp_path / "none.yaml"))


@pytest.mark.parametrize("other", [["--workers", "2"], ["--memory", "1GiB"], ["--scheduler", "tcp://127.0.0.1:1"]])
def test_cluster_excludes_the_other_ways(other):
    local = str(CONFIGS / "local.yaml")
    done = CliRunner().invoke(main, ["fit", "a.zarr", "-k", "3", "--cluster", local, *other])
    assert done.exit_code == 2
    assert "--cluster" in done.stderr


def test_every_command_that_computes_takes_it():
    taking = {n for n, c in main.commands.items() if any("--scheduler" in p.opts for p in c.params)}
    assert taking == {n for n, c in main.commands.items() if any("--cluster" in p.opts for p in c.params)}
    assert {"fit", "assign"} <= taking


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("ssh/ssh.yaml", "asyncssh", "ssh"),
        ("slurm/slurm.yaml", "dask-jobqueue", "slurm"),
        ("kubernetes/kubernetes.yaml", "dask-kubernetes", "kubernetes"),
    ],
)
def test_a_package_that_is_absent_is_named(name, package, extra, monkeypatch):
    monkeypatch.setattr(launch, "find_spec", lambda module: None)
    with pytest.raises(UsageError, match=package) as caught, cluster_file.read(str(CONFIGS / name)).started(print):
        pass
    assert f"pip install 'aweigh[{extra}]'" in caught.value.hint


def test_tls_without_certificates_is_refused():
    with pytest.raises(UsageError, match="ca-file"):
        launch.SSH(hosts=("a",), memory="1GiB", protocol="tls").arguments()
    with pytest.raises(UsageError, match="'udp'"):
        launch.Slurm(jobs=1, memory="1GiB", protocol="udp").arguments()


# Real clusters


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    X, labels = blobs(300, (8, 5), 3, spread=3.0)
    return archive_of(tmp_path_factory.mktemp("configs") / "a.zarr", X, labels)


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Puts programs of a test first on PATH: `programs(name, text)`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def add(name, script):
        (folder / name).write_text(f"#!/usr/bin/env bash\n{script}\n")
        (folder / name).chmod(0o755)

    add("dask", f'exec {sys.executable} -m dask "$@"')
    add("aweigh", f'exec {sys.executable} -m aweigh.pipeline.cli "$@"')
    return add


def changed(name, folder, **values):
    """A copy of a cluster file with other values (None takes a key out)."""
    tree = {key: value for key, value in {**load(name), **values}.items() if value is not None}
    path = folder / "changed.yaml"
    path.write_text(yaml.safe_dump(tree))
    return str(path)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def process(command, log, until, **options):
    """A process whose output holds `until` before the context begins; ended with the context."""
    with log.open("w") as out:
        running = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, **options)
    try:
        deadline = time.monotonic() + 60
        while until not in log.read_text():
            assert running.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield running
    finally:
        running.terminate()
        running.wait(30)


def record(archive, output):
    return json.loads((Path(archive) / "runs" / json.loads(output)["run"] / "run.json").read_text())


def has_thresholds(workers):
    wanted = {name: value for name, value in WORKER_ENVIRONMENT.items() if name.startswith("MALLOC")}
    return bool(workers) and all(worker["malloc"] == wanted for worker in workers.values())


def test_local_runs_a_fit(archive):
    done = CliRunner().invoke(main, ["fit", archive, "-k", "3", "--json", "--cluster", str(CONFIGS / "local.yaml")])
    assert done.exit_code == 0, done.output
    found = record(archive, done.stdout)
    assert len(found["workers"]) == 2
    assert has_thresholds(found["workers"])


@pytest.fixture
def certified(tmp_path):
    """A folder for DASK_CONFIG with dask.yaml and tls.yaml, its certificates in the test's own folder."""
    subprocess.run([CONFIGS / "plain-tls/certificates.sh", tmp_path / "tls", "node1"], check=True, capture_output=True)
    (tmp_path / "dask").mkdir()
    shutil.copy(CONFIGS / "dask.yaml", tmp_path / "dask")
    tls = text("plain-tls/tls.yaml").replace("/etc/aweigh/tls", str(tmp_path / "tls"))
    (tmp_path / "dask" / "tls.yaml").write_text(tls)
    return tmp_path / "dask"


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is not installed")
def test_the_plain_pair_runs_a_fit_under_tls(archive, certified, programs, tmp_path, monkeypatch):
    monkeypatch.setenv("DASK_CONFIG", str(certified))
    port = str(free_port())
    address = f"tls://127.0.0.1:{port}"
    scheduler = [CONFIGS / "plain-tls/scheduler.sh", "--host", "127.0.0.1", "--port", port, "--dashboard-address", ":0"]
    worker = [CONFIGS / "plain-tls/worker.sh", address, "--host", "127.0.0.1", "--local-directory", tmp_path]
    file = changed("plain-tls/cluster.yaml", tmp_path, address=address, workers=1)
    with (
        process(scheduler, tmp_path / "scheduler.log", "Scheduler at:"),
        process(worker, tmp_path / "worker.log", "Registered to:"),
    ):
        monkeypatch.delenv("DASK_CONFIG")
        with pytest.raises(UsageError, match="names no certificates"), cluster_file.read(file).started(print):
            pass
        command = [sys.executable, "-m", "aweigh.pipeline.cli", "fit", archive, "-k", "3", "--json", "--cluster", file]
        options = {"env": {**os.environ, "DASK_CONFIG": str(certified)}, "cwd": tmp_path, "text": True}
        done = subprocess.run(command, **options, capture_output=True, timeout=120)
        assert done.returncode == 0, done.stderr
    found = record(archive, done.stdout)
    assert all(worker.startswith("tls://") for worker in found["workers"])
    assert has_thresholds(found["workers"])


def test_a_scheduler_that_no_worker_joins(tmp_path, monkeypatch):
    with LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0") as empty:
        monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", empty.scheduler_address)
        file = changed("plain-tls/cluster.yaml", tmp_path, address="$DASK_SCHEDULER_ADDRESS", wait="100ms")
        with pytest.raises(ClusterError, match="0 of 8 workers joined"), cluster_file.read(file).started(print):
            pass
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS")
    with pytest.raises(UsageError, match="not set"), cluster_file.read(file).started(print):
        pass


@pytest.mark.parametrize(("address", "warned"), [("tcp://10.0.0.1:8786", True), ("tls://10.0.0.1:8786", False)])
def test_plain_tcp_beyond_this_machine_is_warned_of(address, warned):
    client = types.SimpleNamespace(
        scheduler=types.SimpleNamespace(address=address), wait_for_workers=lambda n, timeout: None
    )
    notes = []
    launch._ready(client, 1, "1s", notes.append)
    assert bool(notes) == warned


# SSH


def test_ssh_hands_over_the_environment():
    given = cluster_file.read(str(CONFIGS / "ssh/ssh.yaml")).arguments()
    assert given["hosts"] == ["node1", "node1", "node2"]
    first, *variables, python = shlex.split(given["remote_python"])
    assert (first, python) == ("env", "/opt/aweigh/bin/python")
    assert dict(word.split("=", 1) for word in variables) == environment()
    assert given["worker_options"]["nthreads"] == 1
    assert given["worker_options"]["memory_limit"] == 4 << 30


@pytest.fixture
def sshd(tmp_path):
    """The options of a cluster file that reaches an SSH server on loopback."""
    if SSHD is None:
        pytest.skip("sshd is not installed (openssh-server)")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # asyncssh still imports what cryptography is about to drop
        pytest.importorskip("asyncssh", reason="asyncssh is not installed")
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    port = free_port()
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
    (tmp_path / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {tmp_path}/host\nPidFile none\nUsePAM no\nStrictModes no\n"
        f"PasswordAuthentication no\nAuthorizedKeysFile {tmp_path}/user.pub\n"
    )
    key = " ".join((tmp_path / "host.pub").read_text().split()[:2])
    (tmp_path / "known").write_text(f"[127.0.0.1]:{port} {key}\n")
    options = {"hosts": ["127.0.0.1"], "port": port, "username": getpass.getuser()}
    options |= {"key": "user", "known-hosts": "known"}
    with process([SSHD, "-D", "-e", "-f", tmp_path / "sshd_config"], tmp_path / "sshd.log", "listening"):
        yield options | {"python": sys.executable, "workers-per-host": 1, "memory": "1GiB", "interface": "lo"}


def test_ssh_starts_workers_and_ends_them(sshd, tmp_path):
    file = changed("ssh/ssh.yaml", tmp_path, **sshd)
    with cluster_file.read(file).started(print) as runner:
        workers = runner.workers()
        assert len(workers) == 1
        assert has_thresholds(workers)
        assert runner.call(os.getpid) not in (os.getpid(), *(w["pid"] for w in workers.values()))
        config = runner.client.run(dask.config.get, "distributed.worker.memory")
        assert [value["pause"] for value in config.values()] == [False]
        assert runner.client.run_on_scheduler(dask.config.get, "distributed.scheduler.worker-ttl") == "30s"
    (pid,) = (worker["pid"] for worker in workers.values())
    assert ends(pid)


def ends(pid, seconds=30):
    """Whether a process is gone, or a zombie, within so many seconds."""
    deadline = time.monotonic() + seconds
    status = Path(f"/proc/{pid}/status")
    while time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if "State:\tZ" not in status.read_text():
                time.sleep(0.1)
                continue
        return True
    return False


def test_ssh_that_does_not_answer(sshd, tmp_path):
    file = changed("ssh/ssh.yaml", tmp_path, **sshd | {"port": free_port()})
    kind = cluster_file.read(file)
    with pytest.raises(ClusterError, match=r"did not start: .*Connect call failed"), kind.started(print):
        pass


def test_ssh_whose_worker_host_does_not_answer(sshd, tmp_path):
    kind = cluster_file.read(changed("ssh/ssh.yaml", tmp_path, **sshd | {"hosts": ["127.0.0.1", "127.0.0.9"]}))
    with pytest.raises(ClusterError, match=r"did not start: .*127\.0\.0\.9"), kind.started(print):
        pass


# SLURM

JOB_SCRIPT = """\
#!/usr/bin/env bash

#SBATCH -J aweigh
#SBATCH -n 1
#SBATCH --cpus-per-task=8
#SBATCH --mem=33280M
#SBATCH -t 08:00:00
export MALLOC_TRIM_THRESHOLD_=67108864
export MALLOC_MMAP_THRESHOLD_=67108864
export MALLOC_ARENA_MAX=1
export OMP_NUM_THREADS=1
export MKL_NUM_THREADS=1
export OPENBLAS_NUM_THREADS=1
export NUMBA_NUM_THREADS=1
export DASK_DISTRIBUTED__WORKER__MEMORY__TARGET=False
export DASK_DISTRIBUTED__WORKER__MEMORY__SPILL=False
export DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE=False
export DASK_DISTRIBUTED__WORKER__MEMORY__TERMINATE=0.95
export DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES=10
export DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL=30s
/opt/aweigh/bin/python -m distributed.cli.dask_worker ADDRESS --name dummy-name --nthreads 1 --memory-limit 4.00GiB \
--nworkers 8 --nanny --death-timeout 60 --interface lo
"""


@pytest.mark.skipif(not find_spec("dask_jobqueue"), reason="dask-jobqueue is not installed")
def test_slurm_submits_the_job_expected(tmp_path):
    kind = cluster_file.read(changed("slurm/slurm.yaml", tmp_path, interface="lo"))
    with kind.cluster() as cluster:
        assert re.sub(r"tcp://\S+", "ADDRESS", cluster.job_script()) == JOB_SCRIPT


@pytest.mark.skipif(not find_spec("dask_jobqueue"), reason="dask-jobqueue is not installed")
def test_slurm_adds_what_a_site_needs(tmp_path):
    more = {"partition": "batch", "account": "science", "directives": ["--qos=normal"], "prologue": ["module load p"]}
    kind = cluster_file.read(changed("slurm/slurm.yaml", tmp_path, interface="lo", **more))
    with kind.cluster() as cluster:
        script = cluster.job_script()
    assert re.search(r"#SBATCH -p batch\n#SBATCH -A science\n", script)
    assert re.search(r"#SBATCH --qos=normal\nmodule load p\nexport MALLOC", script)


SLURM_HERE = {"jobs": 1, "workers-per-job": 1, "memory": "1GiB", "begin-with": 1, "interface": "lo"}


@pytest.mark.skipif(not find_spec("dask_jobqueue"), reason="dask-jobqueue is not installed")
def test_slurm_starts_jobs_and_cancels_them(programs, tmp_path):
    programs("sbatch", f'cp "$1" {tmp_path}/job; setsid bash {tmp_path}/job >{tmp_path}/log 2>&1 & echo "batch job $!"')
    programs("scancel", f'echo "$1" >{tmp_path}/cancelled; kill -- "-$1"')
    file = changed("slurm/slurm.yaml", tmp_path, python=sys.executable, **SLURM_HERE)
    with cluster_file.read(file).started(print) as runner:
        workers = runner.workers()
        assert has_thresholds(workers)
        assert runner.call(os.getpid) == os.getpid()
    assert (tmp_path / "cancelled").read_text().strip().isdecimal()
    assert all(ends(worker["pid"]) for worker in workers.values())


@pytest.mark.skipif(not find_spec("dask_jobqueue"), reason="dask-jobqueue is not installed")
def test_slurm_that_refuses_a_job(programs, tmp_path):
    programs("sbatch", "echo no such account >&2; exit 1")
    file = changed("slurm/slurm.yaml", tmp_path, **SLURM_HERE)
    with pytest.raises(ClusterError, match="no such account"), cluster_file.read(file).started(print):
        pass


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_bash(name):
    subprocess.run(["bash", "-n", CONFIGS / name], check=True)
    assert text(name).startswith("#!/usr/bin/env bash\n")
    assert "\nset -euo pipefail\n" in text(name)


@pytest.mark.slow
def test_the_batch_script_runs_a_fit(archive, programs, tmp_path):
    programs("srun", 'shift; exec "$@"')
    programs("hostname", "echo 127.0.0.1")
    script = ["bash", CONFIGS / "slurm/aweigh.sbatch", "fit", archive, "-k", "3", "--json"]
    options = {"env": {**os.environ, "SLURM_JOB_ID": str(free_port() - 20000)}, "cwd": tmp_path, "text": True}
    done = subprocess.run(script, **options, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert has_thresholds(record(archive, done.stdout)["workers"])


# Kubernetes


def schema(kind):
    """The operator's own schema of a kind, read without importing the operator."""
    found = find_spec("dask_kubernetes")
    if found is None or find_spec("jsonschema") is None:
        pytest.skip("the schemas are not installed (extra test-cluster)")
    folder = Path(found.submodule_search_locations[0]) / "operator/deployment/helm/dask-kubernetes-operator/crds"
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    definition = yaml.load((folder / f"{kind.lower()}.yaml").read_text(), loader)
    return definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def check(kind, manifest):
    wanted = schema(kind)
    import jsonschema

    jsonschema.Draft202012Validator(wanted).validate(manifest)


def published(manifest):
    """Validate strictly against Kubernetes' published schema: an unknown field is an error."""
    reason = "kubernetes-validate is not installed (extra test-cluster)"
    validate = pytest.importorskip("kubernetes_validate", reason=reason)
    validate.validate(manifest, "1.33", strict=True)


def test_the_job_fits_the_operators_schema():
    check("DaskJob", load("kubernetes/daskjob.yaml"))


def test_the_schema_sees_a_wrong_job():
    wrong = load("kubernetes/daskjob.yaml")
    wrong["spec"]["cluster"]["spec"]["worker"]["replicas"] = "many"
    schema("DaskJob")
    import jsonschema

    with pytest.raises(jsonschema.ValidationError, match="many"):
        check("DaskJob", wrong)


def test_pods_and_service_fit_the_published_schemas():
    spec = load("kubernetes/daskjob.yaml")["spec"]
    cluster = spec["cluster"]["spec"]
    head = {"apiVersion": "v1", "metadata": {"name": "a"}}
    for part in (spec["job"], cluster["worker"], cluster["scheduler"]):
        published({**head, "kind": "Pod", "spec": part["spec"]})
    published({**head, "kind": "Service", "spec": cluster["scheduler"]["service"]})
    with pytest.raises(Exception, match="Additional properties"):
        published({**head, "kind": "Pod", "spec": {"containers": [], "container": []}})


def test_the_cron_job_and_its_rights_fit_the_published_schemas():
    found = list(yaml.safe_load_all(text("kubernetes/cronjob.yaml")))
    assert [item["kind"] for item in found] == ["CronJob", "ServiceAccount", "Role", "RoleBinding"]
    for item in found:
        published(item)


def test_names_agree_between_the_manifests():
    cron, account, role, binding = yaml.safe_load_all(text("kubernetes/cronjob.yaml"))
    job, custom = load("kubernetes/daskjob.yaml"), load("kubernetes/kustomization.yaml")
    pod = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == account["metadata"]["name"] == binding["subjects"][0]["name"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert pod["volumes"][0]["configMap"]["name"] == custom["configMapGenerator"][0]["name"]
    assert custom["configMapGenerator"][0]["files"] == ["daskjob.yaml"]
    (script,) = pod["containers"][0]["args"]
    assert set(re.findall(r"daskjob (\S+)", script)) == {job["metadata"]["name"]}
    selector = job["spec"]["cluster"]["spec"]["scheduler"]["service"]["selector"]
    assert selector["dask.org/cluster-name"] == job["metadata"]["name"]
    memory = [c["resources"]["limits"]["memory"] for c in containers() if c["name"] == "worker"]
    assert memory == ["4608Mi"]


@pytest.mark.parametrize(("state", "code"), [("", 0), ("Successful", 0), ("Failed", 0), ("Running", 75)])
def test_the_cron_jobs_script(state, code, programs, tmp_path):
    programs("kubectl", f'echo "$1" >>{tmp_path}/calls; [ "$1" != get ] || echo "{state}"')
    (container,) = next(yaml.safe_load_all(text("kubernetes/cronjob.yaml")))["spec"]["jobTemplate"]["spec"]["template"][
        "spec"
    ]["containers"]
    done = subprocess.run([*container["command"], *container["args"]], capture_output=True)
    assert done.returncode == code
    assert (tmp_path / "calls").read_text().split() == ["get", "delete", "create"][: 1 if code else 3]


@pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed")
def test_kustomize_builds_it():
    done = subprocess.run(["kubectl", "kustomize", CONFIGS / "kubernetes"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    made = {item["kind"]: item for item in yaml.safe_load_all(done.stdout)}
    assert yaml.safe_load(made["ConfigMap"]["data"]["daskjob.yaml"]) == load("kubernetes/daskjob.yaml")
    assert "CronJob" in made


def test_the_cluster_of_kind_kubernetes_fits_the_operators_schema():
    made = cluster_file.read(str(CONFIGS / "kubernetes/kubernetes.yaml")).resource()
    assert made["spec"]["scheduler"]["service"]["selector"]["dask.org/cluster-name"] == made["metadata"]["name"]
    assert made["spec"]["worker"]["replicas"] == 8
    check("DaskCluster", made)


def test_kind_kubernetes_asks_the_operator(monkeypatch, tmp_path):
    """With a stand-in for KubeCluster, whose parameters are compared where the real one is installed."""
    asked = {}

    def stand_in(**options):
        asked.update(options)
        return LocalCluster(n_workers=1, processes=False, dashboard_address="127.0.0.1:0")

    if find_spec("dask_kubernetes"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from dask_kubernetes.operator import KubeCluster
        known = inspect.signature(KubeCluster.__init__).parameters
        assert {"custom_cluster_spec", "namespace", "quiet", "shutdown_on_close"} <= set(known)
    monkeypatch.setattr(launch, "find_spec", lambda module: True)
    monkeypatch.setitem(sys.modules, "dask_kubernetes", types.ModuleType("dask_kubernetes"))
    fake = types.ModuleType("dask_kubernetes.operator")
    fake.KubeCluster = stand_in
    monkeypatch.setitem(sys.modules, "dask_kubernetes.operator", fake)
    manifest = str(CONFIGS / "kubernetes/daskjob.yaml")
    file = changed("kubernetes/kubernetes.yaml", tmp_path, manifest=manifest, namespace="n", **{"begin-with": 1})
    with cluster_file.read(file).started(print) as runner:
        assert len(runner.workers()) == 1
    assert asked["namespace"] == "n"
    assert asked["custom_cluster_spec"]["kind"] == "DaskCluster"
    assert set(asked) == {"custom_cluster_spec", "namespace", "quiet", "shutdown_on_close"}


# systemd and cron


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_accepts_the_units(tmp_path):
    for name in UNITS:
        unit = text(name).replace("/opt/aweigh/bin/aweigh", shutil.which("true"))
        (tmp_path / Path(name).name).write_text(unit)
    paths = [tmp_path / Path(name).name for name in UNITS]
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", *paths], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    (tmp_path / "aweigh-nightly.service").write_text("[Service]\nTyp=oneshot\nExecStart=/none\n")
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", *paths], capture_output=True, text=True)
    assert done.stderr


COMMAND = "/opt/aweigh/bin/aweigh nightly /etc/aweigh/nightly.toml"


def test_the_units_and_the_cron_line_call_a_command_that_there_is(tmp_path):
    words = COMMAND.split()
    assert words[1] in main.commands
    (tmp_path / "incoming").mkdir()
    (tmp_path / "nightly.toml").write_text(text(NIGHT).replace("/var/lib/aweigh", str(tmp_path)))
    done = CliRunner().invoke(main, [words[1], str(tmp_path / "nightly.toml"), "--dry-run", "--json"])
    assert (done.exit_code, json.loads(done.stdout)["status"]) == (0, "dry-run")
    assert not (tmp_path / "archive.zarr").exists()


def test_the_night_begins_at_three_everywhere():
    assert "\nOnCalendar=*-*-* 03:00:00\n" in text(UNITS[1])
    assert "\nPersistent=true\n" in text(UNITS[1])
    assert f"\nExecStart={COMMAND}\n" in text(UNITS[0])
    assert "\n0 3 * * * aweigh flock " in text(CRON)
    assert next(yaml.safe_load_all(text("kubernetes/cronjob.yaml")))["spec"]["schedule"] == "0 3 * * *"


@pytest.mark.skipif(not shutil.which("flock"), reason="flock is not installed")
def test_the_cron_line_lets_one_night_run(tmp_path):
    (line,) = re.findall(r"^0 3 \* \* \* aweigh (.*)$", text(CRON), re.MULTILINE)
    assert line.endswith(COMMAND)
    assert "%" not in line  # a newline to cron
    lock = tmp_path / "lock"
    line = line.replace("/var/lib/aweigh/lock", str(lock)).replace("/opt/aweigh/bin/aweigh", "echo ran")
    held = ["flock", "--nonblock", str(lock), "sh", "-c", line]
    assert subprocess.run(held, capture_output=True).returncode == 75
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "ran nightly /etc/aweigh/nightly.toml\n")
