"""What a batch holds, as one digest: the same for the same rows, whatever file, block or archive they lie in."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from aweigh.io.archive import Archive
from aweigh.io.model import Batch
from aweigh.io.reader import BatchReader
from aweigh.io.sources.base import Source

ROWS = 4096
Piece = tuple[np.ndarray, np.ndarray]


class Content(NamedTuple):
    """The digest of a batch's views, its rows, and the smallest value of each view."""

    digest: str
    rows: int
    lowest: dict[str, float]


def of_sources(sources: Mapping[str, Source], archive: Archive | None) -> Content:
    """The content of sources, each read once, in the dtypes that an archive fixed; a row that is all NaN is missing."""
    return _content({name: _of_source(source, _dtype(archive, name, source)) for name, source in sources.items()})


def of_batch(archive: Archive, batch: Batch) -> Content:
    """The content of a committed batch, all of which is read."""
    views = {view.name: column for column, view in enumerate(batch.views)}
    there = {name: column for name, column in views.items() if batch.missing[name] < batch.rows}
    return _content({name: _of_view(archive, batch, name, column) for name, column in there.items()})


def _content(views: Mapping[str, Iterable[Piece]]) -> Content:
    whole, rows, lowest = hashlib.sha256(), 0, {}
    for name in sorted(views):
        values, presence, rows, low = hashlib.sha256(), hashlib.sha256(), 0, np.inf
        for X, present in views[name]:
            values.update(np.ascontiguousarray(X).data)
            presence.update(present.tobytes())
            rows += len(X)
            low = min(low, float(X.min(initial=np.inf, where=present[:, None])))
        whole.update(f"{name} {rows} {values.hexdigest()} {presence.hexdigest()}\n".encode())
        lowest[name] = low
    return Content(whole.hexdigest(), rows, lowest)


def _dtype(archive: Archive | None, name: str, source: Source) -> np.dtype:
    view = None if archive is None else archive.views.get(name)
    return np.dtype(source.dtype if view is None else view.dtype)


def _of_source(source: Source, dtype: np.dtype) -> Iterator[Piece]:
    for X in source.blocks(ROWS):
        missing = np.isnan(X).all(axis=1)
        yield np.where(missing[:, None], 0, X).astype(dtype, copy=False), ~missing


def _of_view(archive: Archive, batch: Batch, name: str, column: int) -> Iterator[Piece]:
    reader = BatchReader(archive.path, batch)
    for block in range(batch.blocks):
        yield reader.view(name, block), np.ascontiguousarray(reader.present(block)[:, column])
