"""The versions that decide the bits of a result."""

from __future__ import annotations

import importlib.metadata
import platform

import threadpoolctl

PACKAGES = ("aweigh", "numpy", "scipy", "numba", "scikit-learn", "zarr", "dask", "distributed")


def collect() -> dict[str, str]:
    """Return the versions of Python, of the packages, and of the BLAS build with the kernels it chose."""
    found = {name: importlib.metadata.version(name) for name in PACKAGES}
    blas = sorted(
        f"{lib['internal_api']} {lib['version']} {lib.get('architecture', '')}".strip()
        for lib in threadpoolctl.threadpool_info()
        if lib["user_api"] == "blas"
    )
    return {"python": platform.python_version(), "machine": platform.machine(), **found, "blas": "; ".join(blas)}


def differences(before: dict[str, str], now: dict[str, str]) -> str:
    """Return what changed, as text; empty where nothing did."""
    return ", ".join(f"{k} {before.get(k)} then, {now.get(k)} now" for k in now if before.get(k) != now.get(k))
