"""A tune for people: its table as text, and a page with a picture of each criterion that needs nothing else."""

from __future__ import annotations

import html
from typing import Any

from aweigh.pipeline.tune import CRITERIA, RULE

TITLES = {
    "consensus_gap": "consensus gap", "eigengap": "eigengap", "silhouette": "silhouette",
    "calinski_harabasz": "Calinski-Harabasz", "davies_bouldin": "Davies-Bouldin", "stability": "stability (seeds)",
    "half_stability": "stability (halves)",
}  # fmt: skip
MEANINGS = {
    "consensus_gap": "How clearly all fits together fall into k clusters: the lifetime of k clusters among the pairs "
    "that fits put together, times the step between eigenvalues k and k + 1. It recommends k.",
    "eigengap": "The gap between eigenvalues k and k + 1 of the normalised graph of samples and anchors.",
    "silhouette": "How much nearer samples lie to their own cluster than to the next, on a sample of about 1000.",
    "calinski_harabasz": "The spread of the cluster means against the spread within clusters.",
    "davies_bouldin": "How far each cluster reaches into its worst neighbour: less is better.",
    "stability": "The adjusted Rand index between fits with other seeds.",
    "half_stability": "The adjusted Rand index between fits that learnt from two halves of the samples.",
}
SHORT = {
    "consensus_gap": "consensus", "eigengap": "eigengap", "silhouette": "silhouette", "calinski_harabasz": "CH",
    "davies_bouldin": "DB", "stability": "seeds", "half_stability": "halves",
}  # fmt: skip


def shown(record: dict[str, Any]) -> list[str]:
    """Return the criteria that any setting has a value of."""
    return [name for name in CRITERIA if any(row[name] is not None for row in record["settings"])]


def setting(row: dict[str, Any]) -> str:
    """Return what a setting is, in words."""
    return " ".join([row["method"], f"k={row['clusters']}", *(f"{n}={v}" for n, v in row["settings"].items())])


def table(record: dict[str, Any]) -> str:
    """Return the settings and their criteria, the best of each with a star, and the recommendation."""
    names, rows = shown(record), record["settings"]
    best = {name: _best(rows, name) for name in names}
    heads = ["setting", "sweeps", *(SHORT[name] for name in names), "run"]
    lines = [
        [
            setting(row),
            f"{row['sweeps']}{'' if row['converged'] else '+'}",
            *(f"{_number(row[name])}{'*' if row is best[name] else ' '}" for name in names),
            row["run"],
        ]
        for row in rows
    ]
    widths = [max(len(line[i]) for line in [heads, *lines]) for i in range(len(heads))]
    text = ["  ".join(_padded(cell, width, i) for i, (cell, width) in enumerate(zip(line, widths, strict=True)))
            for line in [heads, *lines]]  # fmt: skip
    chosen = record["recommended"]
    text += ["", f"recommended: {setting(chosen)} (run {chosen['run']})", f"  why: {chosen['reason']}"]
    if chosen["choices"]:
        text.append("  alone would say: " + ", ".join(f"{SHORT[n]} k={k}" for n, k in chosen["choices"].items()))
    if record["consensus"]:
        text.append(f"consensus: run {record['consensus']['run']}")
    text.append(
        f"{record['fits']} fits, {record['view_passes']} passes over the views "
        f"({record['view_bytes'] / 2**20:.1f} MiB), {record['seconds']:.1f} s"
    )
    return "\n".join(line.rstrip() for line in text)


def _padded(cell: str, width: int, column: int) -> str:
    return cell.ljust(width) if column == 0 else cell.rjust(width)


def _best(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    known = [row for row in rows if row[name] is not None]
    return max(known, key=lambda row: row[name] if CRITERIA[name] else -row[name])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def page(record: dict[str, Any]) -> str:
    """Return an HTML page: the recommendation, a chart of each criterion over k, and the table; it asks for no file."""
    chosen, names = record["recommended"], shown(record)
    charts = "\n".join(_chart(record, name) for name in names)
    heads = "".join(
        f'<th scope="col">{_escaped(h)}</th>' for h in ("setting", "sweeps", *(TITLES[n] for n in names), "run")
    )
    lines = "\n".join(_line(row, names, row["run"] == chosen["run"]) for row in record["settings"])
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Tune {_escaped(record["tune"])}</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<h1>{chosen["clusters"]} clusters</h1>
<p>Recommended: <strong>{_escaped(setting(chosen))}</strong>, run <code>{_escaped(chosen["run"])}</code>.
{_escaped(chosen["reason"])}.</p>
<p>{record["fits"]} fits of {record["samples"]} samples in {record["view_passes"]} passes over the views. No labels were
used.</p>
<div class="charts">
{charts}
</div>
<h2>All settings</h2>
<div class="wide" tabindex="0" role="region" aria-label="All settings">
<table>
<thead><tr>{heads}</tr></thead>
<tbody>
{lines}
</tbody>
</table>
</div>
</main>
</body>
</html>
"""


_STYLE = """
:root { color-scheme: light dark; --ink: #1b2733; --soft: #5b6b7a; --line: #d6dde3; --back: #fff;
  --mark: #b3261e; --dot: #0b6b8f; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --soft: #9fb0bf; --line: #33414d; --back: #12181e; --mark: #ff8a80; --dot: #6cc5e9; }
}
body { margin: 0; background: var(--back); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 72rem; margin: 0 auto; padding: 1rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(17rem, 1fr)); gap: 1rem; }
figure { margin: 0; padding: .75rem; border: 1px solid var(--line); border-radius: .5rem; }
figcaption { color: var(--soft); font-size: .85rem; }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--soft); font-size: 11px; }
.axis { stroke: var(--line); } .path { fill: none; stroke: var(--dot); } .dot { fill: var(--dot); }
.chosen { fill: var(--mark); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .75rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } tr.best { font-weight: 700; color: var(--mark); }
"""
WIDE, HIGH, LEFT, LOW = 300, 170, 8, 24


def _chart(record: dict[str, Any], name: str) -> str:
    """Return a figure: a criterion over k, a dot a setting, a line through the best of each k."""
    rows = [row for row in record["settings"] if row[name] is not None]
    ks, values = [row["clusters"] for row in rows], [row[name] for row in rows]
    best = _best(rows, name)
    recommended = record["recommended"]["clusters"]

    def x(k: int) -> float:
        return LEFT + (WIDE - 2 * LEFT) * ((k - min(ks)) / (max(ks) - min(ks)) if max(ks) > min(ks) else 0.5)

    def y(value: float) -> float:
        spread = max(values) - min(values)
        return HIGH - LOW - (HIGH - LOW - 16) * ((value - min(values)) / spread if spread > 0 else 0.5)

    tops = {k: _best([row for row in rows if row["clusters"] == k], name)[name] for k in sorted(set(ks))}
    line = " ".join(f"{x(k):.1f},{y(v):.1f}" for k, v in tops.items())
    dots = "".join(
        f'<circle class="{"dot chosen" if row["clusters"] == recommended else "dot"}" cx="{x(row["clusters"]):.1f}" '
        f'cy="{y(row[name]):.1f}" r="{5 if row is best else 3}"><title>{_escaped(setting(row))}: '
        f"{_number(row[name])}</title></circle>"
        for row in rows
    )
    told = f"{TITLES[name]}: best at k={best['clusters']} ({_number(best[name])})"
    return f"""<figure>
<svg viewBox="0 0 {WIDE} {HIGH}" role="img" aria-label="{_escaped(told)}">
<line class="axis" x1="{LEFT}" x2="{WIDE - LEFT}" y1="{HIGH - LOW + 6}" y2="{HIGH - LOW + 6}"/>
<polyline class="path" points="{line}"/>{dots}
<text x="{LEFT}" y="{HIGH - 4}">k={min(ks)}</text>
<text x="{WIDE - LEFT}" y="{HIGH - 4}" text-anchor="end">k={max(ks)}</text>
</svg>
<strong>{_escaped(told)}</strong>
<figcaption>{_escaped(MEANINGS[name])}{" The red dots are the recommended k." if name == RULE else ""}</figcaption>
</figure>"""


def _line(row: dict[str, Any], names: list[str], best: bool) -> str:
    cells = [setting(row), str(row["sweeps"]), *(_number(row[n]) for n in names), row["run"]]
    inside = "".join(f"<td>{_escaped(cell)}</td>" for cell in cells)
    return f'<tr class="best">{inside}</tr>' if best else f"<tr>{inside}</tr>"


def _escaped(text: Any) -> str:
    return html.escape(str(text), quote=True)
