"""A batch before it is written: its sources, and what an archive's first batch demands of it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from aweigh.io import ids as ids_io
from aweigh.io.archive import Archive
from aweigh.io.errors import DataError, UsageError
from aweigh.io.links import link_to, linked_block_rows
from aweigh.io.model import Ids, Link, View, check_name
from aweigh.io.sources.base import Source

MIB = 1 << 20
LARGEST_CHUNK = 1 << 30


def block_rows_for(row_bytes: int) -> int:
    """The round number of rows, 2^k or 3·2^k, whose `row_bytes` together come nearest to 12 MiB; at least 1.

    >>> block_rows_for(3328)
    4096
    """
    most = max(1, 16 * MIB // row_bytes)
    power = 1 << (most.bit_length() - 1)
    round_numbers = [power, power * 3 // 4, power * 3 // 2]
    aligned = [rows for rows in round_numbers if rows % 64 == 0 and 64 <= rows <= most] or [power]
    return min(aligned, key=lambda rows: abs(rows * row_bytes - 12 * MIB))


@dataclass(frozen=True)
class Incoming:
    """A batch about to be written, whose names, shapes, dtypes and ids have been checked."""

    name: str
    rows: int
    start: int
    block_rows: int
    views: tuple[View, ...]
    sources: Mapping[str, Source]
    ids: ids_io.Column
    bounds: Ids
    labels: np.ndarray | None
    links: Mapping[str, Link]

    @property
    def path(self) -> str:
        return f"batches/{self.name}"

    @property
    def columns(self) -> dict[str, ids_io.Column]:
        return {"sample": self.ids} if self.labels is None else {"sample": self.ids, "label": self.labels}


def check_sources(views: Mapping[str, Source], name: str | None, block_rows: int | None) -> int:
    """The rows that all sources have; UsageError or DataError for what no archive could take."""
    if name is not None:
        check_name("batch", name)
    if not views:
        raise UsageError("no view was given: a batch has at least one", "Give one source a view.")
    for view, source in views.items():
        check_name("view", view)
        if np.dtype(source.dtype) not in (np.float32, np.float64):
            raise DataError(f"view {view!r} has dtype {source.dtype}; float32 and float64 are allowed", "Convert it.")
        if source.rows < 1 or source.columns < 1:
            raise DataError(
                f"view {view!r} has shape ({source.rows}, {source.columns}): there must be at least one row "
                "and one feature",
                "Check that the right source was given.",
            )
    rows = {view: source.rows for view, source in views.items()}
    if len(set(rows.values())) > 1:
        raise DataError(
            "the views have different numbers of rows: "
            + ", ".join(f"{view} {count}" for view, count in rows.items())
            + "; row i of each view must be "
            "the same sample",
            "Bring the views to the same rows, with NaN rows where a view lacks one.",
        )
    widest = max(source.columns * np.dtype(source.dtype).itemsize for source in views.values())
    if block_rows is not None and not 1 <= block_rows <= max(1, LARGEST_CHUNK // widest):
        raise UsageError(
            f"block_rows is {block_rows}; 1 to {max(1, LARGEST_CHUNK // widest)} are allowed for rows of "
            f"{widest} bytes, since a chunk may hold up to 1 GiB",
            "Leave it out: it is chosen so that a block takes 8 to 16 MiB.",
        )
    return next(iter(rows.values()))


def plan(
    archive: Archive,
    sources: Mapping[str, Source],
    rows: int,
    name: str | None,
    ids: np.ndarray | None,
    labels: np.ndarray | None,
    block_rows: int | None,
    link: bool = False,
) -> Incoming:
    """The batch as this archive can take it; DataError where it contradicts what was committed before."""
    name = _free_name(archive) if name is None else name
    if any(batch.name == name for batch in archive.batches):
        raise DataError(
            f"there is a batch {name!r} in {archive.path} already, and batches are never rewritten",
            "Choose another name.",
        )
    views = _fixed_views(archive, sources)
    kinds = {batch.labels for batch in archive.batches if batch.has_labels}
    if labels is not None:
        ids_io.check_same_kind("labels", ids_io.kind(labels), next(iter(kinds), None))
    ours: ids_io.Column = range(archive.rows, archive.rows + rows) if ids is None else ids
    ids_io.check_same_kind("ids", ids_io.kind(ours), archive.batches[0].ids.kind if archive.batches else None)
    bounds = ids_io.check_unique(ours, archive)
    row_bytes = sum(view.row_bytes for view in views)
    size = block_rows or block_rows_for(row_bytes)
    found = {view: link_to(view, source) for view, source in sources.items()} if link else {}
    if found:
        size = linked_block_rows({view: chunk_rows for view, (_, chunk_rows) in found.items()}, rows, row_bytes, size)
    links = {view: one for view, (one, _) in found.items()}
    return Incoming(name, rows, archive.rows, min(size, rows), views, sources, ours, bounds, labels, links)


def _free_name(archive: Archive) -> str:
    numbers = [int(found[1]) for batch in archive.batches if (found := re.fullmatch(r"batch-(\d+)", batch.name))]
    return f"batch-{max(numbers, default=0) + 1:04d}"


def _fixed_views(archive: Archive, sources: Mapping[str, Source]) -> tuple[View, ...]:
    given = {name: View(name, source.columns, np.dtype(source.dtype).name) for name, source in sources.items()}
    if not archive.batches:
        return tuple(given.values())
    for name, view in given.items():
        fixed = archive.views.get(name)
        if fixed is None:
            raise DataError(
                f"view {name!r} is not in {archive.path}, whose first batch fixed the views {', '.join(archive.views)}",
                "Leave it out, or make another archive with all views.",
            )
        if view.features != fixed.features:
            raise DataError(
                f"view {name!r} has shape ({sources[name].rows}, {view.features}), and the archive's first "
                f"batch fixed (rows, {fixed.features})",
                "Bring it to the same features, in the same order.",
            )
        if (view.dtype, fixed.dtype) == ("float64", "float32"):
            raise DataError(
                f"view {name!r} is float64, and the archive's first batch fixed float32: digits would be lost silently",
                "Convert the source to float32 yourself.",
            )
    return tuple(archive.views.values())
