"""Importing a batch: checked as it streams by, written block by block, committed at the end or not at all."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from aweigh.io import archive as archives
from aweigh.io import ids as ids_io
from aweigh.io.archive import Archive, Path
from aweigh.io.errors import AweighError
from aweigh.io.incoming import Incoming, block_rows_for, check_sources, plan
from aweigh.io.links import Linked
from aweigh.io.location import Location, open_location
from aweigh.io.model import Batch, View, ranges
from aweigh.io.scan import BatchScan, exact_blocks, without_missing
from aweigh.io.sources.base import Source
from aweigh.io.writer import BatchWriter

__all__ = ["Source", "block_rows_for", "import_batch"]

Progress = Callable[[int, int], None]


def import_batch(
    path: Path,
    views: Mapping[str, Source],
    *,
    name: str | None = None,
    ids: Any = None,
    labels: Any = None,
    block_rows: int | None = None,
    link: bool = False,
    progress: Progress | None = None,
    accept: Callable[[Batch], None] | None = None,
) -> Batch:
    """The batch, committed; the archive is made where there is none.

    views: {name: source}; rows that are all NaN in a view count as missing from it, and a view of the archive
    that is not given as missing from the whole batch. ids, labels: (rows,) integers or strings; by default
    the ids number the archive's rows. link: the views stay in the Zarr stores where they lie, which must not
    change any more; they are read once, to find missing rows. progress: called with (rows done, rows) after
    each block. accept: called with the batch before it is committed; what it raises keeps the batch out.
    Raises DataError for data that cannot be clustered, BusyError where another import runs, StorageError
    where the disk is full or refuses; then the archive is as it was.
    """
    rows = check_sources(views, name, block_rows)
    ids = None if ids is None else ids_io.column("ids", ids, rows)
    labels = None if labels is None else ids_io.column("labels", labels, rows)
    location = open_location(path)
    archives.refuse_foreign(location)
    with location.lock(archives.LOCK, f"import of {'a batch' if name is None else f'batch {name}'}") as still_held:

        def tell(done: int, of: int) -> None:
            still_held()
            if progress is not None:
                progress(done, of)

        archive = archives.open_or_create(location)
        incoming = plan(archive, views, rows, name, ids, labels, block_rows, link)
        # What lies under this name is not in the manifest: an import that was killed left it.
        location.delete(incoming.path)
        try:
            batch = _write(archive, incoming, tell)
            if accept is not None:
                accept(batch)
            still_held()
            archives.commit(archive, batch)
        except BaseException:
            with suppress(AweighError):
                still_held()
                _discard(location, incoming)
            raise
        return batch


def _discard(location: Location, incoming: Incoming) -> None:
    # The interruption may have come just after the manifest was replaced: what is committed stays.
    if all(batch.name != incoming.name for batch in archives.open_archive(location).batches):
        location.delete(incoming.path)


def _write(archive: Archive, incoming: Incoming, progress: Progress) -> Batch:
    dtypes = {name: ids_io.stored_dtype(values) for name, values in incoming.columns.items()}
    shape = incoming.name, incoming.views, incoming.rows, incoming.block_rows, dtypes, incoming.links
    with BatchWriter(archive.location, *shape) as writer:
        scan = _stream(writer, incoming, not archive.batches, progress)
        return _sealed(incoming, scan, writer.finish())


def _sealed(incoming: Incoming, scan: BatchScan, digest: str) -> Batch:
    missing = {view.name: incoming.rows for view in incoming.views}
    missing |= {name: view.missing for name, view in scan.views.items()}
    return Batch(
        name=incoming.name,
        rows=incoming.rows,
        start=incoming.start,
        block_rows=incoming.block_rows,
        views=incoming.views,
        ids=incoming.bounds,
        labels=None if incoming.labels is None else ids_io.kind(incoming.labels),
        digest=digest,
        missing=missing,
        absent={name: ranges(blocks) for name, blocks in scan.absent.items()},
        links=dict(incoming.links),
    )


def _stream(writer: BatchWriter, incoming: Incoming, first: bool, progress: Progress) -> BatchScan:
    """What was found on the way; after the first problem no view is written, but all problems are counted."""
    size = incoming.block_rows
    described = {name: source.describe() for name, source in incoming.sources.items()}
    scan = BatchScan(described, (view.name for view in incoming.views))
    streams = {name: exact_blocks(name, source, size) for name, source in incoming.sources.items()}
    views = {view.name: view for view in incoming.views}
    linked = {name: Linked(link, views[name], incoming.rows) for name, link in incoming.links.items()}
    for block in range(writer.blocks):
        start, stop = block * size, min((block + 1) * size, incoming.rows)
        present = np.zeros((stop - start, len(incoming.views)), bool)
        for column, view in enumerate(incoming.views):
            if view.name in streams:
                if view.name in linked:  # before its rows are read, so that no later change goes unseen
                    writer.note(view.name, block, linked[view.name].stamp(start, stop))
                stored = view.name not in linked
                present[:, column] = _write_view(writer, scan, view, block, next(streams[view.name]), stored)
        columns = {name: ids_io.part(values, start, stop) for name, values in incoming.columns.items()}
        scan.add(block, start, present, columns["sample"])
        for name, values in {"present": present, **columns}.items():
            writer.write(name, block, values)
        progress(stop, incoming.rows)
    for stream in streams.values():
        next(stream, None)
    scan.refuse(first)
    return scan


def _write_view(
    writer: BatchWriter, scan: BatchScan, view: View, block: int, values: np.ndarray, stored: bool
) -> np.ndarray:
    """Which rows of the block are there, bool (rows,)."""
    missing = scan.views[view.name].add(values)
    if stored and scan.good and not missing.all():
        whole = without_missing(values, missing).astype(view.dtype, copy=False)
        writer.write(view.name, block, whole, sample=values[~missing] if missing.any() else values)
    return ~missing
