"""What an archive is made of: views, batches, and the names that they and their objects may have."""

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from aweigh.io.errors import UsageError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
RESERVED_VIEWS = ("sample", "present", "label", "checksum")

STRING = np.dtypes.StringDType()
Ranges = tuple[tuple[int, int], ...]


def check_name(kind: str, name: str) -> str:
    """The name, where it may name a `kind` (batch, run or view); else UsageError."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot name a {kind}: names have 1 to 64 letters, digits, dots, underscores and "
            "hyphens and begin with a letter or digit, since they become folder names",
            "Choose another.",
        )
    if name == "zarr.json" or name.endswith(".partial") or (kind == "view" and name in RESERVED_VIEWS):
        raise UsageError(
            f"{name!r} cannot name a {kind}: the archive keeps something of its own under that name "
            f"(reserved: zarr.json, *.partial and, for views, {', '.join(RESERVED_VIEWS)})",
            "Choose another.",
        )
    return name


@dataclass(frozen=True)
class View:
    """A view as the first batch fixed it: its name, features (columns) and dtype, "float32" or "float64"."""

    name: str
    features: int
    dtype: str

    @property
    def row_bytes(self) -> int:
        return self.features * (4 if self.dtype == "float32" else 8)


class Ids(NamedTuple):
    """The kind of a batch's sample ids, "int" or "str", with the smallest and the largest of them."""

    kind: str
    low: int | str
    high: int | str


class Link(NamedTuple):
    """An array of another Zarr store that a view of a batch refers to: the store's path or URL, the array's in it."""

    path: str
    key: str
    checksums: bool

    def __str__(self) -> str:
        return f"{self.path}:{self.key}" if self.key else self.path


@dataclass(frozen=True)
class Batch:
    """A committed batch: `rows` samples from global row `start` on, cut into blocks of `block_rows` rows.

    `missing` counts the rows that a view lacks; `absent` lists, as (first, last) pairs, a view's blocks that
    are wholly missing and not stored; `views` are all the archive's views, in order; `links` names the views whose
    rows lie in another store.
    """

    name: str
    rows: int
    start: int
    block_rows: int
    views: tuple[View, ...]
    ids: Ids
    labels: str | None
    digest: str
    missing: dict[str, int] = field(hash=False)
    absent: dict[str, Ranges] = field(hash=False)
    links: dict[str, Link] = field(hash=False, default_factory=dict)

    @property
    def blocks(self) -> int:
        return -(-self.rows // self.block_rows)

    @property
    def has_labels(self) -> bool:
        return self.labels is not None

    @property
    def path(self) -> str:
        """The name of the batch's Zarr group in the archive."""
        return f"batches/{self.name}"

    @property
    def arrays(self) -> tuple[str, ...]:
        """The columns of the batch's `checksum` array, in order."""
        names = (*(view.name for view in self.views), "present", "sample")
        return (*names, "label") if self.has_labels else names

    def block_range(self, block: int) -> tuple[int, int]:
        """(start, stop) of a block, in rows of the batch; IndexError where there is no such block."""
        if not 0 <= block < self.blocks:
            raise IndexError(f"block {block} of batch {self.name!r}, which has blocks 0 to {self.blocks - 1}")
        return block * self.block_rows, min((block + 1) * self.block_rows, self.rows)

    def is_absent(self, array: str, block: int) -> bool:
        """Whether the block of a view is wholly missing, so that no chunk is stored."""
        ranges = self.absent.get(array, ())
        at = bisect_right(ranges, block, key=lambda pair: pair[0]) - 1
        return at >= 0 and block <= ranges[at][1]

    def __repr__(self) -> str:
        blocks = f"{self.blocks} blocks of {self.block_rows}"
        return f"<Batch {self.name!r}: {self.rows} rows from {self.start}, {blocks}>"


def chunk_name(batch: str, array: str, block: int) -> str:
    """The name of the object that holds one block of one array."""
    tail = "" if array in ("sample", "label") else "/0"
    return f"batches/{batch}/{array}/c/{block}{tail}"


def ranges(blocks: Iterable[int]) -> Ranges:
    """Ascending numbers as (first, last) pairs.

    >>> ranges([0, 1, 2, 7])
    ((0, 2), (7, 7))
    """
    pairs: list[tuple[int, int]] = []
    for block in blocks:
        if pairs and pairs[-1][1] == block - 1:
            pairs[-1] = (pairs[-1][0], block)
        else:
            pairs.append((block, block))
    return tuple(pairs)
