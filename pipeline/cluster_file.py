"""Reading a file of `cluster-configs/`: a kind, its options, and where a wrong one stands."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any, get_type_hints

import yaml

from aweigh.io.errors import UsageError
from aweigh.pipeline import cluster
from aweigh.pipeline.launch import KINDS, Kind, seconds

CHECKS: dict[str, Callable[[str], Any]] = {"memory": cluster.parse_memory, "wait": seconds}
PATHS = ("manifest", "key", "known_hosts", "logs")  # read from the file's own folder where they are relative


def read(path: str) -> Kind:
    """Return what a file of `cluster-configs/` describes; raise UsageError with the file and line of what is wrong."""
    pairs = _pairs(path)
    line, node = pairs.pop("kind", (1, None))
    kind = _text(node) if node is not None else ""
    if kind not in KINDS:
        given = f"kind {kind!r} is none" if kind else "`kind` is not given"
        raise UsageError(f"{path}:{line}: {given}; there are {', '.join(KINDS)}", "see cluster-configs/")
    fields = {field.name.replace("_", "-"): field for field in dataclasses.fields(KINDS[kind])}
    options: dict[str, Any] = {}
    for key, (line, node) in pairs.items():
        if key not in fields:
            raise UsageError(
                f"{path}:{line}: {key!r} is no option of kind {kind}, whose options are {', '.join(fields)}",
                "correct or remove it",
            )
        options[fields[key].name] = _value(path, line, fields[key].name, get_type_hints(KINDS[kind]), node)
    required = {key for key, f in fields.items() if f.default is dataclasses.MISSING}
    if lacking := sorted(key for key in required if fields[key].name not in options):
        raise UsageError(f"{path}: kind {kind} needs {', '.join(lacking)}", "add what is lacking")
    return KINDS[kind](**options)


def _pairs(path: str) -> dict[str, tuple[int, Any]]:
    """Return line and node of each key of a YAML mapping."""
    try:
        with open(path, encoding="utf-8") as file:
            root = yaml.compose(file, Loader=yaml.SafeLoader)
    except OSError as error:
        raise UsageError(f"--cluster {path} cannot be read: {error.strerror}", "see cluster-configs/") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is no YAML: {' '.join(str(error).split())}", "see cluster-configs/") from error
    if not isinstance(root, yaml.MappingNode):
        raise UsageError(f"{path} holds no `key: value` lines", "begin with cluster-configs/local.yaml")
    pairs: dict[str, tuple[int, Any]] = {}
    for key, node in root.value:
        if _text(key) in pairs:
            raise UsageError(f"{path}:{key.start_mark.line + 1}: {key.value!r} is given twice", "remove one")
        pairs[_text(key)] = (key.start_mark.line + 1, node)
    return pairs


def _text(node: Any) -> str:
    """Return a scalar as it is written (12:00:00 stays text), empty where it is none."""
    plain = isinstance(node, yaml.ScalarNode) and not node.tag.endswith(":null")
    return str(node.value) if plain else ""


def _value(path: str, line: int, name: str, hints: dict[str, Any], node: Any) -> Any:
    where = f"{path}:{line}: {name.replace('_', '-')}"
    if hints[name] is int:
        if not (_text(node).isdecimal() and int(_text(node)) > 0):
            raise UsageError(f"{where} is {_shown(node)}; allowed is a whole number from 1 up", "write for example 4")
        return int(_text(node))
    texts = [_text(part) for part in (node.value if isinstance(node, yaml.SequenceNode) else [node])]
    many = hints[name] is not str
    if not all(texts) or not texts or (isinstance(node, yaml.SequenceNode) and not many):
        allowed = "a list of texts" if many else "one text"
        raise UsageError(f"{where} is {_shown(node)}; allowed is {allowed}", "correct it, or remove the line")
    if name in CHECKS:
        try:
            CHECKS[name](texts[0])
        except UsageError as error:
            raise UsageError(f"{where}: {error.message}", error.hint) from error
    if name in PATHS:
        return os.path.join(os.path.dirname(os.path.abspath(path)), os.path.expanduser(texts[0]))
    return tuple(texts) if many else texts[0]


def _shown(node: Any) -> str:
    return repr(node.value) if isinstance(node, yaml.ScalarNode) else f"a {node.id}"
