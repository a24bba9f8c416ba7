"""The settings that a tune goes over: ranges and lists as users write them, every combination once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from aweigh import algorithms
from aweigh.io.errors import UsageError

MOST = 1000


class Setting(NamedTuple):
    """One fit of a tune: method, k and the parameters that differ from the defaults."""

    method: str
    clusters: int
    settings: dict[str, Any]

    @property
    def label(self) -> str:
        """What the setting is, in words."""
        return " ".join([f"{self.method} k={self.clusters}", *(f"{n}={v}" for n, v in self.settings.items())])


def numbers(text: str) -> tuple[int, ...]:
    """Return the whole numbers of a list such as 5,8 or an inclusive range such as 5:30 or 5:30:5, each once.

    Raises UsageError.

    >>> numbers("2:4,8"), numbers("5:15:5")
    ((2, 3, 4, 8), (5, 10, 15))
    """
    found: list[int] = []
    for part in text.split(","):
        try:
            first, last, step = _range(part)
        except ValueError:
            raise UsageError(
                f"-k {text!r}: {part!r} is neither a number nor a range", "write for example -k 5:30 or -k 5,8,12"
            ) from None
        if last < first:
            raise UsageError(f"-k {text!r}: the range {part} ends before it begins", f"write {last}:{first}")
        if step < 1:
            raise UsageError(f"-k {text!r}: a range goes in steps of 1 or more", "write for example -k 5:30:5")
        if (last - first) // step >= MOST:
            raise UsageError(f"-k {text!r}: {part} is more than {MOST} numbers", "take steps, such as -k 100:5000:100")
        found += range(first, last + 1, step)
    return tuple(dict.fromkeys(found))


def _range(text: str) -> tuple[int, int, int]:
    parts = [int(x) for x in text.split(":")]
    if len(parts) > 3:
        raise ValueError
    return parts[0], parts[1] if len(parts) > 1 else parts[0], parts[2] if len(parts) > 2 else 1


def settings(methods: Sequence[str], clusters: str, anchors: str | None, sets: Sequence[str]) -> list[Setting]:
    """Return every combination of methods, numbers of clusters, anchors and parameters, in that order.

    `anchors` may be multiples of k ("2k,3k").  A parameter is NAME=VALUES for all methods, or METHOD.NAME=VALUES for
    one.  Raises UsageError where a method lacks a parameter, or where there are more than 1000 combinations.
    """
    ks, given = numbers(clusters), [_assignment(text, methods) for text in sets]
    if anchors is not None:
        given.insert(0, ("", "anchors", _values(f"--anchors {anchors!r}", anchors)))
    found = []
    for method in dict.fromkeys(methods):
        axes: dict[str, tuple[str, ...]] = {}
        for owner, name, values in given:
            if owner in ("", method):
                _refuse_lacking(method, name, methods)
                axes[name] = values
        for k in ks:
            for choice in itertools.product(*axes.values()):
                chosen = dict(zip(axes, choice, strict=True))
                found.append(Setting(method, k, {n: _of_k(n, v, k) for n, v in chosen.items()}))
                if len(found) > MOST:
                    raise UsageError(f"these are more than {MOST} settings", "give shorter lists")
    return found


def _assignment(text: str, methods: Sequence[str]) -> tuple[str, str, tuple[str, ...]]:
    name, equals, values = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--set {text!r} is not NAME=VALUES", "write for example --set lambda=0.01,0.1,1")
    owner, dot, own = name.rpartition(".")
    if dot and owner not in methods:
        raise UsageError(f"--set {text!r}: {owner!r} is not one of the methods {', '.join(methods)}", "see -m")
    return owner, own, _values(f"--set {text!r}", values)


def _values(what: str, text: str) -> tuple[str, ...]:
    values = tuple(dict.fromkeys(v.strip() for v in text.split(",")))
    if not all(values):
        raise UsageError(f"{what} has an empty value", "write for example 0.01,0.1,1")
    return values


def _refuse_lacking(method: str, name: str, methods: Sequence[str]) -> None:
    if method not in algorithms.METHODS:
        return  # told of where the method is made
    known = algorithms.parameters(method)
    if name.rstrip("_").replace("-", "_") not in known:
        having = [m for m in methods if m in algorithms.METHODS and name in algorithms.parameters(m)]
        hint = f"write {having[0]}.{name} to set it for that method alone" if having else "see `aweigh methods`"
        raise UsageError(f"{method} has no parameter {name!r}; it has {', '.join(known)}", hint)


def _of_k(name: str, value: str, k: int) -> str:
    """Return a number of anchors, which may be given as a multiple of k."""
    if name == "anchors" and value[-1] == "k":
        try:
            return str(int(value[:-1] or 1) * k)
        except ValueError:
            raise UsageError(f"--anchors {value!r} is neither a number nor a multiple of k", "write 20 or 3k") from None
    return value
