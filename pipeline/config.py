"""Settings from Dask's configuration: the `aweigh:` section of its files and DASK_AWEIGH__SECTION__KEY variables."""

from __future__ import annotations

from importlib import resources
from typing import Any

import dask.config
import yaml

from aweigh.io.errors import UsageError

DEFAULTS = yaml.safe_load((resources.files("aweigh.pipeline") / "aweigh.yaml").read_text("utf-8"))["aweigh"]

dask.config.update_defaults({"aweigh": DEFAULTS})


def section(name: str) -> dict[str, Any]:
    """Return the settings of a section, as options of the command line are named; UsageError for one that is none."""
    known, found = DEFAULTS[name], {}
    for key, value in (dask.config.get(f"aweigh.{name}") or {}).items():
        spelled = next((k for k in known if k.replace("-", "_") == key.replace("-", "_")), None)
        if spelled is None:
            raise UsageError(
                f"Dask's configuration sets aweigh.{name}.{key}, which is no setting; there are {', '.join(known)}",
                "mend the file in ~/.config/dask/, or the variable DASK_AWEIGH__…",
            )
        found[spelled.replace("-", "_")] = value
    return found


def check() -> None:
    """Raise UsageError where the configuration has a section or a setting that there is not."""
    found = dask.config.get("aweigh")
    for name in found:
        if name not in DEFAULTS:
            raise UsageError(
                f"Dask's configuration sets aweigh.{name}; its sections are {', '.join(DEFAULTS)}",
                "mend the file in ~/.config/dask/, or the variable DASK_AWEIGH__…",
            )
        section(name)
