"""Relative names of objects, and the URLs of places that hold them."""

import re
from urllib.parse import urlsplit

from aweigh.io.errors import UsageError

URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def parts(name: str) -> list[str]:
    """The parts of a relative name; ValueError where one is empty, `.` or `..`."""
    found = name.split("/") if name else []
    if any(part in ("", ".", "..") for part in found):
        raise ValueError(f"{name!r} is no relative name")
    return found


def scheme(text: str) -> str:
    """The scheme of a URL in small letters, "" for a path.

    UsageError for a URL with credentials or parameters, which is never repeated in a message.
    """
    if not URL.match(text):
        return ""
    url = urlsplit(text)
    if "@" in url.netloc or url.query or url.fragment:
        raise UsageError(
            f"a {url.scheme}:// URL with credentials or parameters was given; they are refused, since "
            "URLs end up in logs and process lists",
            "Give the bare URL, and the credentials through the environment or a profile.",
        )
    return url.scheme
