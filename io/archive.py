"""An archive: a folder of immutable batches, of which the manifest says what is committed."""

import json
import os
from dataclasses import dataclass, field

from aweigh.io.errors import DataError
from aweigh.io.location import PARTIAL, Location, open_location
from aweigh.io.manifest import MANIFEST, SCHEMA, Manifest, decode, encode
from aweigh.io.model import Batch, View, check_name
from aweigh.io.reader import BatchReader

__all__ = ["Archive", "Batch", "BatchReader", "View", "check_name", "create_archive", "open_archive"]

LOCK = "import.lock"
NIGHT_LOCK = "nightly.lock"
ROOT = json.dumps({"attributes": {"aweigh": {"schema": SCHEMA}}, "zarr_format": 3, "node_type": "group"}, indent=2)
Path = str | os.PathLike[str] | Location


@dataclass(frozen=True)
class Archive:
    """A snapshot of what was committed when it was opened; later imports do not change it."""

    location: Location
    views: dict[str, View] = field(hash=False)
    batches: tuple[Batch, ...]
    version: str | None = field(default=None, compare=False)

    @property
    def path(self) -> str:
        return self.location.path

    @property
    def rows(self) -> int:
        return sum(batch.rows for batch in self.batches)

    def batch(self, name: str) -> Batch:
        """The batch of this name; DataError where there is none."""
        for batch in self.batches:
            if batch.name == name:
                return batch
        names = ", ".join(batch.name for batch in self.batches[:20]) or "none"
        raise DataError(f"there is no batch {name!r} in {self.path}; its batches are: {names}", "Choose one of these.")

    def __repr__(self) -> str:
        views = ", ".join(f"{view.name}: {view.features} {view.dtype}" for view in self.views.values())
        return f"<Archive {self.path}: {self.rows} rows in {len(self.batches)} batches, views ({views})>"


def create_archive(path: Path) -> Archive:
    """A new, empty archive; DataError where the folder holds anything already."""
    location = open_location(path)
    refuse_foreign(location)
    with location.lock(LOCK, "creation of the archive"):
        if location.exists(MANIFEST):
            raise DataError(f"{location.path} is an archive already", "Open it, or choose another path.")
        return open_or_create(location)


def open_archive(path: Path) -> Archive:
    """The archive at a path or URL, as committed now; DataError, with a hint, where there is none."""
    location = open_location(path)
    data, version = location.read_version(MANIFEST)
    if data is None:
        what = "is no archive: it has no manifest.json" if location.exists("") else "does not exist"
        raise DataError(f"{location.path} {what}", "Check the path, or make an archive with `aweigh import`.")
    return _archive(location, decode(data, f"{location.path}/{MANIFEST}"), version)


def open_or_create(location: Location) -> Archive:
    """The archive at a location, made where there is none; the caller holds the lock."""
    if not location.exists(MANIFEST):
        location.write("zarr.json", ROOT.encode())
        location.replace(MANIFEST, encode(Manifest()), None)
    return open_archive(location)


def commit(archive: Archive, batch: Batch) -> Archive:
    """The archive with one more batch, committed by one atomic write; the caller holds the lock.

    ConflictError where the manifest is not the one that `archive` was opened from.
    """
    manifest = Manifest(batch.views, (*archive.batches, batch))
    version = archive.location.replace(MANIFEST, encode(manifest), archive.version)
    return _archive(archive.location, manifest, version)


def refuse_foreign(location: Location) -> None:
    """DataError where a location holds something that is neither an archive nor the beginning of one."""
    names = location.list()
    if MANIFEST in names:
        return
    strange = [name for name in names if name not in (LOCK, NIGHT_LOCK, "zarr.json") and not name.endswith(PARTIAL)]
    if "zarr.json" in names and not strange and location.read("zarr.json") != ROOT.encode():
        strange = ["zarr.json"]
    if strange:
        raise DataError(
            f"{location.path} is no archive and is not empty (it holds {', '.join(strange[:5])}); an "
            "archive is made only in a new or empty folder",
            "Choose another path.",
        )


def _archive(location: Location, manifest: Manifest, version: str | None) -> Archive:
    return Archive(location, {view.name: view for view in manifest.views}, manifest.batches, version)
