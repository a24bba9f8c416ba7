"""The libraries that only some formats need, each brought by an extra of the package."""

from importlib.util import find_spec

from aweigh.io.errors import UsageError


def needed(package: str, extra: str, path: str) -> None:
    """UsageError, naming the extra to install, where a package that a file needs is not installed."""
    if find_spec(package) is None:
        raise UsageError(
            f"{path} needs the package {package}, which is not installed", f"pip install 'aweigh[{extra}]'"
        )
