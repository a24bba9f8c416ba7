"""Reading all that an archive holds, to name every damaged chunk and what interrupted imports left behind."""

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

import numpy as np

from aweigh.io.archive import LOCK, Archive, Path, open_archive
from aweigh.io.errors import StorageError
from aweigh.io.location import PARTIAL
from aweigh.io.model import Batch, chunk_name
from aweigh.io.reader import CHECKSUM_ROWS, BatchReader
from aweigh.io.store import DamageError, diagnose
from aweigh.io.writer import digest


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: kind is "missing", "torn", "foreign", "uncommitted" or "partial"."""

    kind: str
    batch: str | None
    view: str | None
    chunk: int | None
    name: str
    repaired: bool = False


@dataclass
class Report:
    """What `verify` found: the problems, and how many chunks and stored bytes it read."""

    problems: list[Problem] = field(default_factory=list)
    chunks: int = 0
    bytes: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong, or nothing is any more."""
        return all(problem.repaired for problem in self.problems)


def verify(
    path: Path,
    repair: bool = False,
    progress: Callable[[int, int], None] | None = None,
    only: Collection[str] | None = None,
) -> Report:
    """The report on an archive; every stored chunk is read, progress is called with (chunks done, chunks).

    repair removes uncommitted groups and temporary files, never what is committed; BusyError where an import
    runs. `only` names the batches whose chunks are read, all by default.
    Without repair an import under way shows up as an uncommitted group.
    """
    archive = open_archive(path)
    report = Report()
    if repair:
        with archive.location.lock(LOCK, "repair of the archive"):
            archive = open_archive(path)
            report.problems += list(_repaired(archive, _leftovers(archive)))
    else:
        report.problems += list(_leftovers(archive))
    for name in ("zarr.json", "batches/zarr.json", *(f"{batch.path}/zarr.json" for batch in archive.batches)):
        _check_group(archive, name, report)
    chosen = [batch for batch in archive.batches if only is None or batch.name in only]
    total = sum(batch.blocks * len(batch.arrays) for batch in chosen)
    for batch in chosen:
        for done in _check_batch(archive, batch, report):
            if progress is not None:
                progress(done, total)
    return report


def _leftovers(archive: Archive) -> list[Problem]:
    location = archive.location
    groups = [name for name in location.list("batches") if name != "zarr.json" and not name.endswith(PARTIAL)]
    # The manifest is read after the listing: a batch committed in between must not look uncommitted.
    committed = {batch.name for batch in open_archive(location).batches}
    found = [Problem("uncommitted", name, None, None, f"batches/{name}") for name in groups if name not in committed]
    loose = [name for name in location.list() if name.endswith(PARTIAL) and name.startswith(("manifest.", "zarr."))]
    inside = [name for name, _ in location.sizes("batches") if name.endswith(PARTIAL)]
    dead = tuple(f"{problem.name}/" for problem in found)
    for name in loose + [name for name in inside if not name.startswith(dead)]:
        parts = name.split("/")
        found.append(Problem("partial", parts[1] if len(parts) > 2 else None, None, None, name))
    return found


def _repaired(archive: Archive, problems: list[Problem]) -> Iterator[Problem]:
    for problem in problems:
        archive.location.delete(problem.name)
        yield Problem(problem.kind, problem.batch, None, None, problem.name, repaired=True)


def _check_group(archive: Archive, name: str, report: Report) -> None:
    """Note group metadata that plain Zarr readers would stumble over."""
    data = archive.location.read(name)
    parts = name.split("/")
    batch = parts[1] if len(parts) == 3 else None
    if data is None and (archive.batches or name == "zarr.json"):
        report.problems.append(Problem("missing", batch, None, None, name))
    elif data is not None:
        try:
            torn = json.loads(data)["node_type"] != "group"
        except (ValueError, KeyError, TypeError):
            torn = True
        if torn:
            report.problems.append(Problem("torn", batch, None, None, name))


def _check_batch(archive: Archive, batch: Batch, report: Report) -> Iterator[int]:
    checksums = _checksums(archive, batch, report)
    reader = BatchReader(archive.path, batch)
    for column, array in enumerate(batch.arrays):
        try:
            reader.check_metadata(array)
        except StorageError as error:
            report.problems.append(_metadata_problem(error, batch, array))
        for block in range(batch.blocks):
            expected = None if checksums is None else int(checksums[block, column])
            if array not in batch.links:
                _check_chunk(archive, batch, array, block, expected, report)
            elif checksums is not None:
                _check_link(reader, array, block, report)
            yield report.chunks


def _checksums(archive: Archive, batch: Batch, report: Report) -> np.ndarray | None:
    """The checksum array, or None, with the problem reported, where it cannot be trusted."""
    reader = BatchReader(archive.path, batch)
    damaged = False
    for part in range(-(-batch.blocks // CHECKSUM_ROWS)):
        name = chunk_name(batch.name, "checksum", part)
        kind = diagnose(archive.location.read(name), None)
        if kind:
            damaged = True
            report.problems.append(Problem(kind, batch.name, "checksum", part, name))
    if damaged:
        return None
    try:
        table = reader.checksums()
    except StorageError as error:
        report.problems.append(_metadata_problem(error, batch, "checksum"))
        return None
    if digest(batch.views, batch.rows, batch.block_rows, table) != batch.digest:
        report.problems.append(Problem("foreign", batch.name, "checksum", None, f"{batch.path}/checksum"))
        return None
    return table


def _metadata_problem(error: StorageError, batch: Batch, array: str) -> Problem:
    kind = error.kind if isinstance(error, DamageError) else "foreign"
    return Problem(kind, batch.name, array, None, f"{batch.path}/{array}/zarr.json")


def _check_link(reader: BatchReader, array: str, block: int, report: Report) -> None:
    """Note a block of a linked view whose chunks, in the other store, are not those that were linked."""
    report.chunks += 1
    try:
        reader.check_link(array, block)
    except StorageError:
        link = reader.batch.links[array]
        report.problems.append(Problem("foreign", reader.batch.name, array, block, str(link)))


def _check_chunk(archive: Archive, batch: Batch, array: str, block: int, expected: int | None, report: Report) -> None:
    name = chunk_name(batch.name, array, block)
    if batch.is_absent(array, block):
        kind = "foreign" if archive.location.exists(name) else None
    else:
        data = archive.location.read(name)
        report.bytes += len(data or b"")
        kind = diagnose(data, expected)
    report.chunks += 1
    if kind:
        report.problems.append(Problem(kind, batch.name, array, block, name))
