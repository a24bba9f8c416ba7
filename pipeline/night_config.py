"""The configuration of a night, read and checked before anything runs; every error names the file and the line."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aweigh import algorithms
from aweigh.algorithms import scaling
from aweigh.io.errors import AweighError, DataError
from aweigh.io.location import open_location
from aweigh.io.names import scheme

BATCH = "{batch}"
POLICIES = ("continue", "refit", "freeze")
HINT = "correct it; docs/nightly.md lists every key"


@dataclass(frozen=True)
class Config:
    """A night's configuration; `lines` are the lines of the keys, for messages."""

    file: str
    archive: str
    views: dict[str, str]
    clusters: int
    ids: str | None = None
    labels: str | None = None
    method: str = "auto"
    chosen: tuple[str, ...] | None = None
    anchors: int | None = None
    scale: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    max_sweeps: int | None = None
    tol: float | None = None
    seed: int = 0
    policy: str | None = None
    refit_every: int | None = None
    refit_drift: float | None = None
    report: str | None = None
    command: tuple[str, ...] = ()
    keep: int = 14
    verify: str = "new"
    strict: bool = False
    lines: dict[tuple[str, ...], int] = field(default_factory=dict, compare=False)

    def wrong(self, key: tuple[str, ...], what: str, hint: str = HINT) -> DataError:
        """Return the error for one key, with its line."""
        return DataError(f"{self.file}:{self.lines.get(key, 1)}: {what}", hint)

    @property
    def patterns(self) -> dict[str, str]:
        """Every source by its role: the views, "ids" and "labels" where they are given."""
        more = {"ids": self.ids, "labels": self.labels}
        return {f"views.{name}": text for name, text in self.views.items()} | {n: t for n, t in more.items() if t}


class Key:
    """One key: the field that it sets, what it must be in words, and the test of it."""

    def __init__(self, name: str, words: str, test: Callable[[Any], bool], make: Callable[[Any], Any] = lambda v: v):
        self.name, self.words, self.test, self.make = name, words, test, make


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _whole(least: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and value >= least


def _number(value: Any) -> bool:
    return type(value) in (int, float) and value >= 0


def _texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_text, value))


def _one_of(allowed: tuple[str, ...]) -> tuple[str, Callable[[Any], bool]]:
    return f"one of {', '.join(allowed)}", lambda value: value in allowed


def _table(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(v, str | int | float | bool) for v in value.values())


KEYS: dict[tuple[str, ...], Key] = {
    ("archive",): Key("archive", "the path of the archive", _text),
    ("keep",): Key("keep", "a whole number of at least 2 nights", _whole(2)),
    ("verify",): Key("verify", *_one_of(("new", "all"))),
    ("strict",): Key("strict", "true or false", lambda value: isinstance(value, bool)),
    ("import", "views"): Key("views", "a table of NAME = SOURCE", lambda v: _table(v) and _texts(list(v.values()))),
    ("import", "ids"): Key("ids", "a source", _text),
    ("import", "labels"): Key("labels", "a source", _text),
    ("fit", "clusters"): Key("clusters", "a whole number of at least 2", _whole(2)),
    ("fit", "method"): Key("method", *_one_of(("auto", *algorithms.METHODS))),
    ("fit", "views"): Key("chosen", "a list of views", _texts, tuple),
    ("fit", "anchors"): Key("anchors", "a whole number of at least 1", _whole(1)),
    ("fit", "scale"): Key("scale", *_one_of(scaling.SCALINGS)),
    ("fit", "set"): Key("settings", "a table of NAME = VALUE", _table),
    ("fit", "max-sweeps"): Key("max_sweeps", "a whole number of at least 1", _whole(1)),
    ("fit", "tol"): Key("tol", "a number of at least 0", _number, float),
    ("fit", "seed"): Key("seed", "a whole number of at least 0", _whole(0)),
    ("update", "policy"): Key("policy", *_one_of(POLICIES)),
    ("update", "refit-every"): Key("refit_every", "a whole number of at least 1 night", _whole(1)),
    ("update", "refit-drift"): Key("refit_drift", "a number of at least 0", _number, float),
    ("report", "file"): Key("report", "the path of an .html file", lambda v: _text(v) and v.endswith(".html")),
    ("report", "command"): Key("command", "a list of strings, the words of a command", _texts, tuple),
}
SECTIONS = {key[0] for key in KEYS if len(key) > 1}
PLACEHOLDERS = ("archive", "run", "previous", "night", "summary")


def read(path: str) -> Config:
    """Return the configuration of a file; DataError with file and line for whatever is wrong in it."""
    text, given = _parsed(path)
    lines = {key: _line(text, key) for key in _all_keys(given)}
    shell = Config(path, "", {}, 2, lines=lines)
    fields = {}
    for key, value in _leaves(given).items():
        if key not in KEYS:
            raise shell.wrong(key, f"there is no key {'.'.join(key)!r}; {_allowed(key)}")
        known = KEYS[key]
        if not known.test(value):
            raise shell.wrong(key, f"{'.'.join(key)} = {value!r} is not {known.words}")
        fields[known.name] = known.make(value)
    for key in (("archive",), ("import", "views"), ("fit", "clusters")):
        if KEYS[key].name not in fields:
            raise shell.wrong(key[:1], f"{'.'.join(key)} is not given: {KEYS[key].words}")
    folder = os.path.dirname(os.path.abspath(path))
    config = Config(path, lines=lines, **_absolute(fields, folder))
    _check(config)
    return config


def _parsed(path: str) -> tuple[str, dict[str, Any]]:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        return text, tomllib.loads(text)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}", "give the path of a configuration") from error
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{path} is no TOML: {error}", HINT) from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8: {error.reason}", HINT) from error


def _leaves(given: dict[str, Any]) -> dict[tuple[str, ...], Any]:
    """Return the values by key: of the sections, the keys in them."""
    found: dict[tuple[str, ...], Any] = {}
    for name, value in given.items():
        if name in SECTIONS and isinstance(value, dict):
            found |= {(name, inner): v for inner, v in value.items()}
        else:
            found[name,] = value
    return found


def _all_keys(given: dict[str, Any], above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for name, value in given.items():
        found.append((*above, name))
        if isinstance(value, dict):
            found += _all_keys(value, (*above, name))
    return found


def _line(text: str, key: tuple[str, ...]) -> int:
    """Return the line on which a key begins: the first one with which a part of the file that is TOML has the key."""
    lines, before = text.splitlines(), 0
    for count in range(1, len(lines) + 1):
        try:
            value: Any = tomllib.loads("\n".join(lines[:count]))
        except tomllib.TOMLDecodeError:
            continue
        for name in key:
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            return before + 1
        before = count
    return 1


def _allowed(key: tuple[str, ...]) -> str:
    if len(key) > 1:
        return f"[{key[0]}] has {', '.join(k[1] for k in KEYS if len(k) > 1 and k[0] == key[0])}"
    top = ", ".join(k[0] for k in KEYS if len(k) == 1)
    return f"there are {top} and the sections {', '.join(sorted(SECTIONS))}"


def _absolute(fields: dict[str, Any], folder: str) -> dict[str, Any]:
    """Return the fields with relative paths read from the configuration's own folder."""

    def at(path: str) -> str:
        return path if scheme(path) else os.path.join(folder, os.path.expanduser(path))

    made = {name: at(fields[name]) for name in ("archive", "ids", "labels", "report") if name in fields}
    return fields | made | {"views": {name: at(source) for name, source in fields["views"].items()}}


def _check(config: Config) -> None:
    """Raise DataError for values that do not go together."""
    try:
        open_location(config.archive)
    except AweighError as error:
        raise config.wrong(("archive",), error.message, error.hint) from error
    counts = {role: text.count(BATCH) for role, text in config.patterns.items()}
    if len({n > 0 for n in counts.values()}) > 1:
        lacking = next(role for role, n in counts.items() if not n)
        raise config.wrong(("import", *lacking.split(".", 1)), f"{lacking} has no {BATCH}, and other sources have it")
    name = None if config.method == "auto" else config.method
    _check_settings(config, name)
    _check_policy(config, None if name is None else algorithms.METHODS[name])
    for word in config.command:
        try:
            word.format(**dict.fromkeys(PLACEHOLDERS, ""))
        except (KeyError, IndexError, ValueError) as error:
            allowed = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
            what = f"report.command has {word!r}; placeholders are {allowed}, and a brace itself is {{{{ or }}}}"
            raise config.wrong(("report", "command"), what) from error


def _check_settings(config: Config, name: str | None) -> None:
    names = [name] if name else list(algorithms.METHODS)
    anchors = {} if config.anchors is None else {"anchors": config.anchors}
    failures = []
    for each in names:
        for key, values in ((("fit", "set"), config.settings), (("fit", "anchors"), anchors)):
            try:
                algorithms.make(each, config.clusters, values)
            except ValueError as refused:
                failures.append((each, key, str(refused)))
    if len({each for each, _, _ in failures}) == len(names):
        _, key, what = failures[0]
        raise config.wrong(key, what)


def _check_policy(config: Config, kind: Any) -> None:
    if kind is None:
        return
    if config.policy == "continue" and not kind.rounds:
        raise config.wrong(("update", "policy"), f"{config.method} learns all rows together: refit or freeze")
    for key, given in (("policy", config.policy == "refit"), ("refit-every", config.refit_every is not None),
                       ("refit-drift", config.refit_drift is not None)):  # fmt: skip
        if given and kind.rounds:
            what = (
                f"{config.method} learns batch after batch, and a refit over them would give the same: leave out {key}"
            )
            raise config.wrong(("update", key), what)
