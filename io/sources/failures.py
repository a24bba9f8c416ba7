"""The errors that all formats share, and the checks of a file before any format reads it."""

import errno
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from aweigh.io.errors import AweighError, DataError, StorageError

MAGIC = {
    b"\x93NUMPY": "a .npy file",
    b"PK": "a zip archive, such as .npz or .xlsx",
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"\x1f\x8b": "a gzip file",
    b"\x89HDF": "an HDF5 file",
    b"PAR1": "a Parquet file",
    b"%PDF": "a PDF",
    b"MATLAB 5.0": "a MATLAB file",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
    b"version https://git-lfs": "a Git LFS pointer without the data (run git lfs pull)",
}


def shown(value: Any, limit: int = 60) -> str:
    """The text of a value from a file: one printable line of at most limit characters."""
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(value))
    return text if len(text) <= limit else text[: limit - 1] + "…"


def listed(names: Iterable[str], limit: int = 30) -> str:
    """The names in one line, cut after limit of them."""
    every = list(names)
    more = f", and {len(every) - limit} more" if len(every) > limit else ""
    return ", ".join(map(shown, every[:limit])) + more if every else "no arrays"


def no_file(path: str) -> DataError:
    """The error for a path at which there is nothing."""
    return DataError(f"{path} does not exist", "Check the path and its spelling.")


def needless_key(path: str, key: str) -> DataError:
    """The error for a key to a file or array that has no parts."""
    return DataError(f"{path} is a single array, but the key {shown(key)!r} was given", f"Give {path} alone.")


def missing_key(path: str, key: str, there: Iterable[str]) -> DataError:
    """The error for a key that is not in the file."""
    return DataError(
        f"{path} has no {shown(key)!r}; it holds {listed(there)}",
        f"Give one that is there, as {path}:KEY.",
    )


def only(path: str, wanted: str, fitting: Sequence[str], there: Iterable[str]) -> str:
    """The key that may be left out; DataError where not exactly one fits."""
    if len(fitting) == 1:
        return fitting[0]
    others = list(there)
    found = f"no {wanted}" + (f", only {listed(others)}" if others else "")
    if fitting:
        found = f"{len(fitting)} {wanted}s: {listed(fitting)}"
    raise DataError(
        f"{path} holds {found}",
        f"Say which one with {path}:KEY." if fitting else f"Write a {wanted} to it, or give another file.",
    )


def changed(name: str) -> DataError:
    """The error for a file that another program wrote between opening and reading."""
    return DataError(f"{name} changed while it was read", "Import it again when nothing writes to it any more.")


def not_a(path: str, kind: str, head: bytes) -> DataError:
    """The error for a file that is not what its name says."""
    is_text = head.isascii() and b"\0" not in head
    seen = looks_like(head) or ("text" if is_text else f"data that begins with {head[:8]!r}")
    return DataError(
        f"{path} is not {kind} but {seen}",
        "Name the file by what it holds, or save it again in the format of its name.",
    )


def looks_like(head: bytes) -> str | None:
    """What the first bytes of a file say it is, or None."""
    return next((words for magic, words in MAGIC.items() if head.startswith(magic)), None)


@contextmanager
def reading(name: str, damage: tuple[type[Exception], ...] = (), hint: str = "") -> Iterator[None]:
    """A context that makes DataError of the exceptions ``damage`` and StorageError of the system's own."""
    try:
        yield
    except (AweighError, MemoryError):
        raise
    except PermissionError as error:
        raise StorageError(
            f"{name} may not be read: permission denied",
            "Ask its owner for permission to read it, or run as a user who has it.",
        ) from error
    except Exception as error:
        # Bad data makes OSErrors too: codecs' have no errno, a seek to a wrong offset is EINVAL.
        of_data = isinstance(error, damage) and getattr(error, "errno", None) in (None, errno.EINVAL)
        if isinstance(error, OSError) and not of_data:
            raise StorageError(
                f"{name} could not be read: {shown(error.strerror or error, 200)}",
                "Check that its disk or mount is there and healthy, then import again.",
            ) from error
        if not isinstance(error, damage):
            raise
        reason = shown(str(error) or type(error).__name__, 200)
        raise DataError(f"{name} is damaged: {reason}", hint) from error
