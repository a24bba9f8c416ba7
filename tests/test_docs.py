"""The pages of docs/: every block of shell and Python runs, in the page's order; every link leads somewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
WRITTEN = [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "cluster-configs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
RUN = {"sh": ["bash", "-euo", "pipefail"], "python": [sys.executable]}


def blocks(page):
    """The page's blocks that run, as (kind, code)."""
    return [(kind, code) for kind, code in BLOCK.findall(page.read_text("utf-8")) if kind in RUN]


def anchors(page):
    """The names that links may end in, made of the page's headings as GitHub makes them."""
    text = BLOCK.sub("", page.read_text("utf-8"))
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.stem)
def test_blocks_run(page, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    for number, (kind, code) in enumerate(blocks(page)):
        script = tmp_path / f"block-{number}.{kind}"
        script.write_text(code, "utf-8")
        done = subprocess.run(
            [*RUN[kind], script.name], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", BLOCK.sub("", page.read_text("utf-8"))):
        if re.match(r"https?://|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "README.md").read_text("utf-8")
    assert {page.name for page in PAGES} - {"README.md"} == set(re.findall(r"\]\(([\w-]+\.md)\)", index))
