"""Views, ids and labels of one batch brought to the same rows: by id where the sources have ids, else by position."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from aweigh.io import ids as ids_io
from aweigh.io.errors import DataError, UsageError
from aweigh.io.sources import column_ids, open_column, open_source, split_spec
from aweigh.io.sources.base import Source, block_bounds
from aweigh.io.sources.spool import spooled
from aweigh.io.sources.tables import Table

LABELS = "labels"


class Gathered(NamedTuple):
    """What `import_batch` takes: sources of the same rows, ids and labels, None where there are none."""

    views: dict[str, Source]
    ids: np.ndarray | None
    labels: np.ndarray | None


@dataclass(frozen=True)
class JoinedSource:
    """A view brought to other rows: row i is row places[i] of the source, or missing where that is -1."""

    source: Source
    places: np.ndarray

    @property
    def rows(self) -> int:
        return len(self.places)

    @property
    def columns(self) -> int:
        return self.source.columns

    @property
    def dtype(self) -> np.dtype:
        return self.source.dtype

    def describe(self) -> str:
        return f"{self.source.describe()}, joined by id to {self.rows} rows"

    def blocks(self, rows_per_block: int) -> Iterator[np.ndarray]:
        there = self.places[self.places >= 0]
        in_order = np.array_equal(there, np.arange(len(there)))
        return self._streamed(rows_per_block) if in_order else self._spooled(rows_per_block)

    def _streamed(self, rows_per_block: int) -> Iterator[np.ndarray]:
        stream = _Stream(self.source.blocks(rows_per_block))
        for start, stop in block_bounds(self.rows, rows_per_block):
            there = self.places[start:stop] >= 0
            block = self._missing(stop - start)
            block[there] = stream.take(int(np.count_nonzero(there)), block[:0])
            yield block

    def _spooled(self, rows_per_block: int) -> Iterator[np.ndarray]:
        """The rows by way of a temporary file, since a source only runs forwards."""
        with spooled(np.dtype((self.dtype, (self.columns,))), self.source.describe()) as spool:
            done = 0
            for block in self.source.blocks(rows_per_block):
                spool.write(done, block)
                done += len(block)
            for start, stop in block_bounds(self.rows, rows_per_block):
                places = self.places[start:stop]
                block = self._missing(stop - start)
                order = np.argsort(places, kind="stable")[np.count_nonzero(places < 0) :]
                for run in np.split(order, np.flatnonzero(np.diff(places[order]) != 1) + 1):
                    if len(run):
                        block[run] = spool.read(int(places[run[0]]), len(run))
                yield block

    def _missing(self, rows: int) -> np.ndarray:
        return np.full((rows, self.columns), np.nan, self.dtype)


class _Stream:
    """The rows of blocks, a number at a time."""

    def __init__(self, blocks: Iterator[np.ndarray]) -> None:
        self.blocks, self.rest = blocks, np.empty((0, 0))

    def take(self, count: int, none: np.ndarray) -> np.ndarray:
        """The next `count` rows; `none` is an array without rows."""
        pieces = [none]
        while count:
            if not len(self.rest):
                self.rest = next(self.blocks)
            piece, self.rest = self.rest[:count], self.rest[count:]
            pieces.append(piece)
            count -= len(piece)
        return np.concatenate(pieces)


def gathered(views: Mapping[str, str], ids: Sequence[str] = (), labels: str | None = None) -> Gathered:
    """The sources of a batch: {view: SOURCE}, ids as SOURCE or NAME=SOURCE each, labels as SOURCE.

    One SOURCE of ids is for the rows of all views, which are joined by position. NAME=SOURCE gives the ids of one
    view, or those of the labels where NAME is labels; AnnData, MuData, and tables whose first column names the rows
    come with theirs. Where views have ids, rows are joined by them: each id is one row, missing from the views that
    lack it. UsageError where some views have ids and others do not; DataError for ids that are there twice.
    """
    whole, each = _parsed_ids(ids, views)
    sources = {name: open_source(spec) for name, spec in views.items()}
    columns = [spec for spec in (whole, *each.values(), labels) if spec is not None]
    for name, source in sources.items():
        if isinstance(source, Table):
            sources[name] = source.without(_beside(views[name], columns))
    values = None if labels is None else open_column(labels)
    if whole is not None:
        return Gathered(sources, open_column(whole), values)
    found = {name: _ids_of(name, source, each.get(name)) for name, source in sources.items()}
    known = {name: one for name, one in found.items() if one is not None}
    if not known:
        return Gathered(sources, None, values)
    if len(known) < len(found):
        without = [name for name in found if name not in known]
        raise UsageError(
            f"view {next(iter(known))!r} comes with ids and view {without[0]!r} does not: their rows cannot be matched",
            f"Give the others theirs (--ids {without[0]}=SOURCE), or one for the rows of all views (--ids SOURCE).",
        )
    names = _outer(known)
    places = {name: lookup(one, names) for name, one in known.items()}
    same = all(np.array_equal(place, np.arange(len(names))) for place in places.values())
    if not same:
        sources = {name: JoinedSource(source, places[name]) for name, source in sources.items()}
    return Gathered(sources, names, None if values is None else _labels_of(labels or "", values, each, names, same))


def _parsed_ids(ids: Sequence[str], views: Mapping[str, str]) -> tuple[str | None, dict[str, str]]:
    whole, each = [], {}
    for text in ids:
        name, equals, spec = text.partition("=")
        if not equals or name not in (*views, LABELS):
            whole.append(text)
        elif name in each:
            raise UsageError(f"the ids of {name!r} are given twice", "Give each view one source of ids.")
        else:
            each[name] = spec
    if len(whole) + bool(each) > 1:
        raise UsageError(
            f"--ids {whole[0]!r} is for the rows of all views, and there is another --ids beside it",
            f"Give one --ids SOURCE, or --ids NAME=SOURCE for each view; the views are {', '.join(views)}.",
        )
    return (whole[0] if whole else None), each


def _beside(spec: str, columns: Sequence[str]) -> frozenset[str]:
    """The columns of a view's own file that hold ids or labels."""
    path, _ = split_spec(spec)
    others = map(split_spec, columns)
    return frozenset(key for other, key in others if key and os.path.realpath(other) == os.path.realpath(path))


def _ids_of(name: str, source: Source, spec: str | None) -> np.ndarray | None:
    """The ids of a view: those that are given, else those that it comes with."""
    if spec is not None:
        values = open_column(spec)
    elif hasattr(source, "ids"):
        values = source.ids()
    else:
        values = None
    if values is None:
        return None
    found = ids_io.column(f"ids of view {name!r}", values, source.rows)
    ids_io.ordered(found, f"view {name!r} ({source.describe()}): ")
    return found


def _outer(ids: Mapping[str, np.ndarray]) -> np.ndarray:
    """Every id once; those that a view adds stand behind their predecessor in it."""
    names: np.ndarray | None = None
    for view, one in ids.items():
        if names is None:
            names = one
            continue
        ids_io.check_same_kind(f"ids of view {view!r}", ids_io.kind(one), ids_io.kind(names))
        place = lookup(names, one)
        new = place < 0
        known = np.maximum.accumulate(np.where(new, -1, np.arange(len(one))))
        behind = np.where(known < 0, -1, place[known])[new]
        first = np.concatenate([np.arange(len(names)), behind])
        second = np.concatenate([np.full(len(names), -1), np.flatnonzero(new)])
        names = np.concatenate([names, one[new]])[np.lexsort((second, first))]
    assert names is not None
    return names


def lookup(ids: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Where each wanted id stands in ids, -1 where it does not."""
    order = np.argsort(ids, kind="stable")
    at = np.minimum(np.searchsorted(ids[order], wanted), len(ids) - 1)
    return np.where(ids[order[at]] == wanted, order[at], -1)


def _labels_of(spec: str, values: np.ndarray, each: Mapping[str, str], names: np.ndarray, same: bool) -> np.ndarray:
    """The labels of the joined rows."""
    own = open_column(each[LABELS]) if LABELS in each else column_ids(spec)
    if own is None:
        if same:
            return values
        raise UsageError(
            f"views are joined by id, and {spec} has labels without ids", f"Give them: --ids {LABELS}=SOURCE."
        )
    found = ids_io.column(f"ids of the labels in {spec}", own, len(values))
    ids_io.ordered(found, f"{spec}: ")
    ids_io.check_same_kind(f"ids of the labels in {spec}", ids_io.kind(found), ids_io.kind(names))
    places = lookup(found, names)
    lost = np.flatnonzero(places < 0)
    if len(lost):
        raise DataError(
            f"{spec} has no label for {len(lost)} of {len(names)} samples, the first with id {names[lost[0]]}",
            "Give every sample a label, or leave the labels out: they are for scoring only.",
        )
    return values[places]
