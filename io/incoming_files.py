"""What has arrived: the batches that patterns such as `incoming/{batch}/image.npy` find, by name."""

import glob
import os
import re

from aweigh.io.errors import DataError
from aweigh.io.model import NAME
from aweigh.io.sources import split_spec

BATCH = "{batch}"


def arrived(patterns: dict[str, str]) -> dict[str, dict[str, str]]:
    """{batch: {role: source}} in the order of the names, of patterns that all hold {batch}.

    DataError where a batch has not all of its files, or a name that no batch may have.
    """
    found: dict[str, dict[str, str]] = {}
    for role, pattern in patterns.items():
        path, key = split_spec(pattern)
        for name, file in _matches(path):
            found.setdefault(name, {})[role] = file if key is None else f"{file}:{key}"
    for name, sources in found.items():
        if lacking := [role for role in patterns if role not in sources]:
            raise DataError(
                f"batch {name!r} has {', '.join(sources.values())} but nothing for {', '.join(lacking)}: a batch "
                "has a file for each source of the configuration",
                "Wait until all its files are there (move a folder into place when it is whole), or take it away.",
            )
        if not NAME.fullmatch(name):
            raise DataError(
                f"{next(iter(sources.values()))} would be a batch named {name!r}: names have 1 to 64 letters, digits, "
                "dots, underscores and hyphens and begin with a letter or digit",
                "Rename it.",
            )
    return dict(sorted(found.items()))


def missing_place(pattern: str) -> str | None:
    """What must be there and is not: the file, or the folder in which names that vary lie."""
    path, _ = split_spec(pattern)
    place = path if BATCH not in path else os.path.dirname(path.split(BATCH)[0] + "x") or "."
    return None if os.path.exists(place) else place


def _matches(pattern: str) -> list[tuple[str, str]]:
    first, *rest = pattern.split(BATCH)
    again = re.escape("").join(f"(?P=batch){re.escape(part)}" for part in rest[1:])
    shape = re.compile(f"{re.escape(first)}(?P<batch>[^/]+?){re.escape(rest[0])}{again}")
    files = glob.glob("*".join(glob.escape(part) for part in (first, *rest)))
    return [(found["batch"], file) for file in sorted(files) if (found := shape.fullmatch(file))]
