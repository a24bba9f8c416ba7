"""The page of a report: facts in, one HTML file out that holds all that it shows and may ask for nothing.

Everything from the data is escaped by the template engine; the page's policy lets only its own script and style run.
"""

from __future__ import annotations

import base64
import hashlib
import math
from importlib import resources
from typing import Any

import jinja2
import numpy as np

WIDTH, HEIGHT, LEFT, BOTTOM, PAD = 400, 230, 58, 34, 12  # of a plot with axes
SIDE, MARGIN = 400, 14  # of the picture
CURVE = 500  # marks of the objective's curve at most
LONGEST = 200  # characters of a name that are shown

# Control characters, of which HTML allows few, are shown as their pictures.
PICTURES = {i: 0x2400 + i for i in range(32) if chr(i) not in "\n\t"} | {127: 0x2421}


def render(facts: dict[str, Any]) -> str:
    """Return the page."""
    style, script = _text("report.css"), _text("report.js")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"shown": shown, "count": _count, "percent": _percent, "number": _number, "bytes": _bytes}
    environment.globals |= {"color": lambda number: number % 10, "shade": _shade}
    figures = {
        "picture": _picture(facts["picture"]) if facts.get("picture") else None,
        "objective": _objective(facts["fit"]),
        "confidence": _columns(facts["confidence"]["bins"]),
        "work": _work(facts["fit"]),
    }
    made = environment.from_string(_text("report.html")).render(
        **facts, figures=figures, style=style, script=script, style_hash=_hash(style), script_hash=_hash(script)
    )
    return made.lstrip()


def shown(value: Any) -> str:
    """Return a name as text that can be shown: control characters as pictures, cut where it is very long."""
    text = str(value).translate(PICTURES)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _text(name: str) -> str:
    return (resources.files("aweigh.pipeline") / "assets" / name).read_text("utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _percent(value: float, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f} %"


def _number(value: float) -> str:
    return f"{value:.4g}".replace("-", "−")


def _bytes(value: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} TiB"


def _shade(part: float) -> int:
    """Return the shade, 0 to 5, of a share of a row."""
    return min(5, math.ceil(5 * part - 0.25)) if part > 0.05 else 0


def _picture(picture: dict[str, Any]) -> dict[str, Any]:
    """Return marks, ordered by cluster and confidence, and names, at their places on both pairs of axes."""
    clusters, sure = np.array(picture["clusters"]), np.array(picture["confidence"])
    first, second = (_square(np.array(picture[axes])) for axes in ("neighbours", "axes"))
    marks = [
        {
            "k": int(clusters[i]), "at": first[i], "other": second[i], "id": picture["ids"][i],
            "class": picture["classes"][i], "confidence": float(sure[i]),
        }
        for i in np.lexsort((-sure, clusters))
    ]  # fmt: skip
    names = [
        {"k": int(k), "at": np.median(first[clusters == k], axis=0), "other": np.median(second[clusters == k], axis=0)}
        for k in np.unique(clusters)
    ]
    return {"marks": marks, "names": names, "shares": picture["shares"], "side": SIDE}


def _square(places: np.ndarray) -> np.ndarray:
    """Return places (s, 2) scaled, by one factor, into the picture; the second axis points up."""
    low, high = places.min(axis=0), places.max(axis=0)
    factor = (SIDE - 2 * MARGIN) / max(float((high - low).max()), 1e-300)
    moved = (places - (low + high) / 2) * factor * np.array([1, -1]) + SIDE / 2
    return np.round(moved, 1)


def _objective(record: dict[str, Any]) -> dict[str, Any] | None:
    """Return the curves of the objective, one a round, with ticks; a round's end alone where there are very many."""
    rounds = record.get("rounds") or [{"batch": None, "objective": record.get("objective") or []}]
    points, sweep = [], 0
    for i, one in enumerate(rounds):
        for j, value in enumerate(one["objective"]):
            sweep += 1
            points.append({"round": i, "batch": one["batch"], "sweep": j + 1, "x": sweep, "value": value,
                           "last": j + 1 == len(one["objective"])})  # fmt: skip
    if not points:
        return None
    ends_only = len(points) > CURVE
    points = [p for p in points if p["last"]] if ends_only else points
    low, high = min(p["value"] for p in points), max(p["value"] for p in points)
    ticks = _ticks(low, high)
    low, high = min(low, ticks[0]), max(high, ticks[-1])
    width = max(points[-1]["x"] - 1, 1)
    for p in points:
        p["px"] = round(LEFT + PAD / 2 + (p["x"] - 1) / width * (WIDTH - LEFT - 2 * PAD), 1)
        p["py"] = _up(p["value"], low, high)
    curves: dict[int, list[str]] = {}
    for p in points:
        curves.setdefault(0 if ends_only else p["round"], []).append(f"{p['px']},{p['py']}")
    return {
        "points": points, "curves": [" ".join(c) for c in curves.values()], "ends_only": ends_only,
        "ticks": [(_up(t, low, high), t) for t in ticks], "sweeps": sweep,
    }  # fmt: skip


def _columns(counts: list[float]) -> dict[str, Any]:
    """Return the columns of the confidences, with ticks."""
    total, high = max(sum(counts), 1), max(*counts, 1)
    step = (WIDTH - LEFT - PAD) / len(counts)
    columns = [
        {
            "x": round(LEFT + i * step + 0.5, 1), "width": round(step - 1, 1), "y": _up(n, 0, high),
            "height": round(HEIGHT - BOTTOM - _up(n, 0, high), 1), "rows": n, "share": n / total,
            "from": i / len(counts), "to": (i + 1) / len(counts),
        }
        for i, n in enumerate(counts)
    ]  # fmt: skip
    return {"columns": columns, "ticks": [(_up(t, 0, high), t) for t in _ticks(0, high) if t <= high]}


def _up(value: float, low: float, high: float) -> float:
    share = (value - low) / (high - low) if high > low else 0.5
    return round(HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - PAD), 1)


def _ticks(low: float, high: float) -> list[float]:
    """Return about four round values around a range.

    >>> _ticks(0, 95)
    [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]
    """
    if not high > low:
        return [low]
    rough = (high - low) / 4
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(s * size for s in (1, 2, 5, 10) if s * size >= rough * 0.8)
    return [i * step for i in range(math.floor(low / step), math.ceil(high / step - 1e-9) + 1)]


def _work(record: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds of all passes by what they were for, the longest first."""
    batches = {r["batch"] for r in record.get("rounds", [])}
    kinds: dict[str, dict[str, float]] = {}
    for entry in record.get("work", []):
        words = entry["pass"].split(" ", 1)
        kind = entry["pass"]
        if words[0] == "batch" and any(words[1].startswith(b) for b in batches):
            _, colon, step = words[1].partition(": ")
            kind = f"sweeps{colon}{step}"
        total = kinds.setdefault(kind, {"passes": 0, "read": 0.0, "compute": 0.0, "write": 0.0, "bytes": 0})
        total["passes"] += 1
        total["bytes"] += entry["view_bytes"] + entry["row_bytes"]
        for name in ("read", "compute", "write"):
            total[name] += entry[f"{name}_seconds"]
    rows = sorted(kinds.items(), key=lambda item: -sum(item[1][n] for n in ("read", "compute", "write")))
    whole = sum(total[n] for _, total in rows for n in ("read", "compute", "write"))
    return {"rows": rows[:20], "seconds": whole}
