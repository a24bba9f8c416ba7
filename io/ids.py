"""Sample ids and labels: of two kinds, "int" (int64) and "str" (numpy's StringDType); ids are unique."""

from typing import Any

import numpy as np

from aweigh.io.archive import Archive
from aweigh.io.errors import DataError
from aweigh.io.model import STRING, Ids
from aweigh.io.reader import BatchReader

Column = np.ndarray | range


def column(what: str, values: Any, rows: int) -> np.ndarray:
    """Values as a column of int64 or strings, (rows,); DataError for another kind, shape or length."""
    array = np.asarray(values)
    if array.ndim != 1 or len(array) != rows:
        raise DataError(
            f"{what} of shape {array.shape} were given for {rows} rows: there must be one a row, in one dimension",
            f"Give {rows} {what}, in the order of the rows.",
        )
    if array.dtype.kind in "iu":
        if array.dtype == np.uint64 and array.max() > np.iinfo(np.int64).max:
            raise DataError(f"{what} up to {array.max()} do not fit into int64", f"Give these {what} as strings.")
        return array.astype(np.int64, copy=False)
    if array.dtype.kind in "UT" or (array.dtype.kind == "O" and all(isinstance(value, str) for value in array)):
        try:
            return array.astype(STRING)
        except (TypeError, UnicodeError) as error:
            raise DataError(f"{what} hold text that is not valid Unicode: {error}", f"Clean the {what}.") from error
    raise DataError(
        f"{what} of dtype {array.dtype} were given: integers and strings are allowed, since others cannot "
        "be compared or stored exactly",
        f"Convert the {what} to integers or strings.",
    )


def kind(values: Column) -> str:
    return "str" if isinstance(values, np.ndarray) and values.dtype == STRING else "int"


def stored_dtype(values: Column) -> Any:
    """What Zarr calls the column's dtype."""
    return str if kind(values) == "str" else np.int64


def part(values: Column, start: int, stop: int) -> np.ndarray:
    """The values of rows start to stop, as an array."""
    piece = values[start:stop]
    return piece if isinstance(piece, np.ndarray) else np.arange(piece.start, piece.stop, dtype=np.int64)


def check_same_kind(what: str, ours: str, fixed: str | None) -> None:
    """DataError where a batch brings strings and the earlier ones integers, or the reverse."""
    words = {"int": "integers", "str": "strings"}
    if fixed is not None and ours != fixed:
        raise DataError(
            f"the {what} of this batch are {words[ours]}, and those of the archive's earlier batches are "
            f"{words[fixed]}: they could not be compared",
            f"Give {words[fixed]} as {what}.",
        )


def check_unique(ids: Column, archive: Archive) -> Ids:
    """The ids' kind and bounds; DataError naming the first id that is twice here, or in an older batch too.

    Older batches whose bounds do not overlap are not read; the others are read a block at a time.
    """
    known = ids if isinstance(ids, range) else ordered(ids)
    bounds = Ids(kind(ids), _plain(known[0]), _plain(known[-1]))
    for batch in archive.batches:
        if batch.ids.low <= bounds.high and bounds.low <= batch.ids.high:  # type: ignore[operator]
            reader = BatchReader(archive.path, batch)
            for block in range(batch.blocks):
                start, stop = batch.block_range(block)
                _refuse_known(known, reader.ids(start, stop), batch.name, start)
    return bounds


def ordered(ids: np.ndarray, where: str = "") -> np.ndarray:
    """The ids in their order; DataError naming the first that is twice, behind the words `where`."""
    order = np.argsort(ids, kind="stable")
    found = ids[order]
    twice = np.flatnonzero(found[1:] == found[:-1])
    if len(twice):
        at = twice[np.argmin(order[twice + 1])]
        raise DataError(
            f"{where}id {_plain(found[at])!r} appears in row {order[at]} and again in row {order[at + 1]}, "
            f"counted from 0 ({len(twice)} repeated in all): ids must be unique",
            "Remove the repeated rows, or give other ids.",
        )
    return found


def _refuse_known(ordered: Column, old: np.ndarray, batch: str, start: int) -> None:
    if isinstance(ordered, range):
        known = (old >= ordered.start) & (old < ordered.stop)
    else:
        at = np.minimum(np.searchsorted(ordered, old), len(ordered) - 1)
        known = ordered[at] == old
    if known.any():
        first = int(np.argmax(known))
        raise DataError(
            f"id {_plain(old[first])!r} is in the archive already (batch {batch!r}, row {start + first}): "
            "ids must be unique over all batches",
            "Leave out what was imported before, or give other ids (the default: the archive's row numbers).",
        )


def _plain(value: Any) -> int | str:
    return value if isinstance(value, str) else int(value)
