"""aweigh from Python: fit an archive, open it, or cluster arrays in memory."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aweigh.io.archive import open_archive
    from aweigh.pipeline.estimator import MultiViewClustering
    from aweigh.pipeline.run import fit

__all__ = ["MultiViewClustering", "fit", "open_archive"]

_HOMES = {
    "MultiViewClustering": "aweigh.pipeline.estimator",
    "fit": "aweigh.pipeline.run",
    "open_archive": "aweigh.io.archive",
}


def __getattr__(name: str) -> Any:
    # Imported when asked for: a worker that imports a task must not pay for scikit-learn.
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
