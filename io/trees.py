"""Models and statistics as arrays and JSON: nested tuples, named tuples, dicts and scalars, never pickle."""

from __future__ import annotations

import io as bytesio
import json
from collections.abc import Iterable
from typing import Any

import numpy as np

from aweigh.io.errors import StorageError

_TREE = "tree.json"


def record_name(kind: type) -> str:
    """Return the name that a named tuple is stored under: its module's last part and its own name."""
    return f"{kind.__module__.rsplit('.', 1)[-1]}.{kind.__name__}"


def dumps(tree: Any) -> bytes:
    """Return `tree` as the bytes of an .npz file: one member an array, named by its path, and the structure as JSON."""
    arrays: dict[str, np.ndarray] = {}
    structure = _pack(tree, "", arrays)
    buffer = bytesio.BytesIO()
    text = np.frombuffer(json.dumps(structure, allow_nan=False).encode(), np.uint8)
    np.savez(buffer, **{_TREE: text}, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def loads(data: bytes, records: Iterable[type] = ()) -> Any:
    """Return the tree that `dumps` made; `records` are the named tuples that may stand in it.

    Raises StorageError where the bytes are torn (each member carries a CRC-32) or name an unknown record.
    """
    kinds = {record_name(kind): kind for kind in records}
    try:
        with np.load(bytesio.BytesIO(data), allow_pickle=False) as members:
            structure = json.loads(members[_TREE].tobytes())
            return _unpack(structure, members, kinds)
    except Exception as error:
        raise StorageError(
            f"a stored model or checkpoint is damaged or of another version ({error})",
            "fit again; where a run is incomplete, leave out --resume",
        ) from error


def _pack(value: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if np.isfinite(value) else {"float": repr(value)}
    if isinstance(value, np.ndarray | np.generic):
        arrays[path or "value"] = np.asarray(value)
        return {"array": path or "value"}
    if hasattr(value, "_fields"):
        fields = {name: _pack(getattr(value, name), f"{path}.{name}".strip("."), arrays) for name in value._fields}
        return {"record": record_name(type(value)), "fields": fields}
    if isinstance(value, tuple | list):
        items = [_pack(item, f"{path}.{i}".strip("."), arrays) for i, item in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": items}
    if isinstance(value, dict):
        return {"dict": {k: _pack(v, f"{path}.{k}".strip("."), arrays) for k, v in value.items()}}
    raise TypeError(f"cannot store a {type(value).__name__} at {path!r}")


def _unpack(node: Any, members: Any, kinds: dict[str, type]) -> Any:
    if not isinstance(node, dict):
        return node
    if "array" in node:
        return members[node["array"]]
    if "float" in node:
        return float(node["float"])
    if "record" in node:
        fields = {name: _unpack(child, members, kinds) for name, child in node["fields"].items()}
        return kinds[node["record"]](**fields)
    if "dict" in node:
        return {k: _unpack(v, members, kinds) for k, v in node["dict"].items()}
    kind, items = next(iter(node.items()))
    unpacked = [_unpack(item, members, kinds) for item in items]
    return tuple(unpacked) if kind == "tuple" else unpacked
