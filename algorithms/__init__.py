"""The methods by name.  A new method is one new file and one entry here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from aweigh.algorithms.acmvc import ACMVC
from aweigh.algorithms.consensus import Consensus
from aweigh.algorithms.emvgc_lg import EMVGCLG
from aweigh.algorithms.imvc_cbg import IMVCCBG
from aweigh.algorithms.l2sc import L2SC

METHODS: dict[str, Any] = {
    "emvgc-lg": EMVGCLG,
    "imvc-cbg": IMVCCBG,
    "acmvc": ACMVC,
    "l2sc": L2SC,
}
CONSENSUS = "consensus"  # made of fitted methods, so that it is not fitted itself


def parameters(name: str) -> dict[str, Any]:
    """Return a method's own parameters and their defaults, as users write them (`lambda`, not `lambda_`)."""
    fields = dataclasses.fields(METHODS[name])
    return {f.name.rstrip("_"): f.default for f in fields if f.name != "clusters"}


def make(name: str, clusters: int, settings: Mapping[str, Any] | None = None) -> Any:
    """Return the method of this name; raise ValueError that names what is allowed.

    Values may be strings, as they come from a command line; they are read as the parameter's own type.  The members of
    a consensus are (name, clusters, settings) each.
    """
    if name == CONSENSUS:
        return Consensus(clusters, tuple(make(*member) for member in (settings or {})["members"]))
    if name not in METHODS:
        raise ValueError(f"there is no method {name!r}; there are {', '.join(METHODS)}")
    fields = {f.name.rstrip("_"): f for f in dataclasses.fields(METHODS[name]) if f.name != "clusters"}
    values = {}
    for key, value in (settings or {}).items():
        field = fields.get(key.rstrip("_").replace("-", "_"))
        if field is None:
            raise ValueError(f"{name} has no parameter {key!r}; it has {', '.join(fields)}")
        values[field.name] = _read(name, key, str(field.type), value)
    return METHODS[name](clusters, **values)


def _read(method: str, key: str, kind: str, value: Any) -> Any:
    if value is None and "None" in kind:
        return None
    try:
        if kind.startswith("bool"):
            return value if isinstance(value, bool) else {"true": True, "false": False}[str(value).lower()]
        if kind.startswith("int"):
            if float(value) != int(float(value)):
                raise ValueError
            return int(float(value))
        if kind.startswith("float"):
            return float(value)
        return str(value)
    except (KeyError, ValueError, TypeError, OverflowError):
        raise ValueError(f"{method}: {key}={value!r} is not of the kind {kind.split(' ')[0]}") from None
