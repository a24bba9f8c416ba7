"""The columns of a table, CSV or Parquet, that make a view."""

from collections.abc import Sequence
from typing import Protocol, Self, runtime_checkable

from aweigh.io.sources.failures import missing_key


@runtime_checkable
class Table(Protocol):
    """A source in a table that may hold ids and labels beside the view."""

    def without(self, names: frozenset[str]) -> Self:
        """The source without these columns."""
        ...


def chosen(path: str, names: Sequence[str], key: str) -> list[int]:
    """The columns that a key means: the one of this name, else all whose names begin with it (`pc_` or `pc_*`)."""
    if key in names:
        return [at for at, name in enumerate(names) if name == key]
    prefix = key.removesuffix("*")
    found = [at for at, name in enumerate(names) if name.startswith(prefix)]
    if not found:
        raise missing_key(path, key, names)
    return found
