"""The folder of a run: configuration, checkpoint, model, results, and the record that makes it complete.

A run counts once its `run.json` is written; `latest` at the archive's root names one complete run and moves last.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from aweigh.io.archive import Archive, check_name
from aweigh.io.errors import ConflictError, DataError, StorageError, UsageError

CONFIG, CHECKPOINT, MODEL, RECORD, LATEST = "config.json", "checkpoint.npz", "model.npz", "run.json", "latest"


@dataclass(frozen=True)
class RunFolder:
    """`runs/<name>` of an archive."""

    archive: Archive
    name: str

    @property
    def folder(self) -> str:
        """The folder's name in the archive."""
        return f"runs/{self.name}"

    @property
    def complete(self) -> bool:
        """Whether the run's own record is written."""
        return self.archive.location.exists(f"{self.folder}/{RECORD}")

    @property
    def exists(self) -> bool:
        """Whether a run of this name was begun."""
        return self.archive.location.exists(f"{self.folder}/{CONFIG}")

    def read(self, name: str) -> bytes | None:
        """Return one of the run's small objects, None where it is not there."""
        return self.archive.location.read(f"{self.folder}/{name}")

    def write(self, name: str, data: bytes) -> None:
        """Replace one of the run's small objects, atomically and durably."""
        self.archive.location.write(f"{self.folder}/{name}", data)

    def read_json(self, name: str) -> Any:
        """Return a JSON object of the run; StorageError where it is missing or torn."""
        data = self.read(name)
        try:
            return json.loads(data) if data is not None else _absent(self, name)
        except ValueError as error:
            raise StorageError(f"{self.folder}/{name} in {self.archive.path} is torn", "fit again") from error

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON object; NaN and infinity are refused."""
        self.write(name, _text(value))

    def begin(self, config: Any) -> None:
        """Make the folder as a Zarr group and write what was asked for; ConflictError where the run was begun."""
        for folder in ("runs", self.folder):
            if not self.archive.location.exists(f"{folder}/zarr.json"):
                group = {"zarr_format": 3, "node_type": "group", "attributes": {}}
                self.archive.location.write(f"{folder}/zarr.json", json.dumps(group).encode())
        self.archive.location.replace(f"{self.folder}/{CONFIG}", _text(config), None)

    def finish(self, record: Any, latest: bool = True) -> str | None:
        """Make the run complete, and the latest one where asked; the run that became the latest just before it."""
        location = self.archive.location
        location.sync(self.folder)
        _, version = location.read_version(LATEST)
        self.write_json(RECORD, record)
        location.delete(f"{self.folder}/{CHECKPOINT}")
        if latest:
            try:
                location.replace(LATEST, json.dumps({"run": self.name}).encode(), version)
            except ConflictError:
                return latest_run(self.archive)
        return None


def publish(run: RunFolder) -> None:
    """Make a complete run the latest, atomically."""
    run.archive.location.write(LATEST, json.dumps({"run": run.name}).encode())


def remove(run: RunFolder) -> None:
    """Remove a run: at no instant does it look complete, or begun, without being so."""
    for name in (RECORD, CONFIG, ""):
        run.archive.location.delete(f"{run.folder}/{name}".rstrip("/"))


def _text(value: Any) -> bytes:
    return json.dumps(value, indent=1, allow_nan=False).encode()


def _absent(run: RunFolder, name: str) -> Any:
    raise StorageError(f"{run.folder}/{name} is missing from {run.archive.path}", "fit again under another run name")


def run_names(archive: Archive) -> list[str]:
    """Return the names of all runs begun, complete or not, in the order of their names."""
    names = archive.location.list("runs") if archive.location.exists("runs") else []
    return sorted(name for name in names if RunFolder(archive, name).exists)


def latest_run(archive: Archive) -> str | None:
    """Return the name of the latest complete run."""
    data = archive.location.read(LATEST)
    return None if data is None else str(json.loads(data)["run"])


def complete_run(archive: Archive, name: str | None) -> RunFolder:
    """Return a complete run by name, or the latest; DataError that lists what there is."""
    name = name or latest_run(archive)
    if name is None:
        raise DataError(f"{archive.path} has no complete run", "run `aweigh fit` first")
    run = RunFolder(archive, check_name("run", name))
    if not run.complete:
        done = [n for n in run_names(archive) if RunFolder(archive, n).complete]
        state = "is not complete (use --resume)" if run.exists else "does not exist"
        raise DataError(f"run {name!r} of {archive.path} {state}; complete runs: {', '.join(done) or 'none'}")
    return run


def incomplete_run(archive: Archive, name: str | None) -> RunFolder:
    """Return the incomplete run of this name, or the newest one; UsageError where there is none to resume."""
    if name is not None:
        run = RunFolder(archive, check_name("run", name))
        if run.complete:
            raise UsageError(f"run {name!r} is complete: there is nothing to resume", "choose another --run name")
        if not run.exists:
            raise UsageError(f"there is no run {name!r} to resume", "leave out --resume to begin it")
        return run
    begun = [RunFolder(archive, n) for n in run_names(archive) if not RunFolder(archive, n).complete]
    if not begun:
        raise UsageError(f"{archive.path} has no incomplete run to resume", "leave out --resume")
    return max(begun, key=lambda run: (run.read_json(CONFIG).get("began", ""), run.name))
