"""The report in a real browser that no network reaches: nothing is asked for, everything is drawn and reached."""

import shutil

import hostile
import pytest

from aweigh.io.archive import open_archive
from aweigh.io.runs import complete_run
from aweigh.pipeline import report
from aweigh.pipeline.driver import SerialRunner

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="the browser is driven by playwright: pip install playwright"
)
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
NOTHING = ["console", "pageerror", "request"]

pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium: apt-get install chromium")

# What takes the focus, in the order of the page, closed details aside.
REACHABLE = """() => [...document.querySelectorAll("a[href], button, summary, [tabindex='0']")]
    .filter((e) => e.checkVisibility()).map((e) => e.outerHTML.slice(0, 200))"""
# Scrolling takes the tip away, in the frame after the one that scrolls.
SCROLLED = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
FOCUSED = "() => document.activeElement.outerHTML.slice(0, 200)"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The page's file, and a function that opens it at a width and colour scheme and gives the page and its noise."""
    folder = tmp_path_factory.mktemp("browser")
    archive = open_archive(hostile.fitted_archive(folder))
    file = report.write(archive, complete_run(archive, "two"), f"{folder}/page.html", SerialRunner())["file"]
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER, args=FLAGS)

        def opened(width=1440, scheme="light", script=True):
            context = browser.new_context(
                viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True, java_script_enabled=script
            )
            page, noise = context.new_page(), []
            page.on("console", lambda message: noise.append(message.text))
            page.on("pageerror", lambda error: noise.append(str(error)))
            page.on("request", lambda request: noise.append(request.url) if request.url != f"file://{file}" else None)
            page.goto(f"file://{file}")
            return page, noise

        yield opened
        browser.close()


def into_view(page, element):
    element.scroll_into_view_if_needed()
    page.evaluate(SCROLLED)


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1440, "dark")])
def test_it_is_drawn_without_a_request_or_an_error(pages, width, scheme):
    page, noise = pages(width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    plots = page.locator("svg.plot")
    assert plots.count() == 3
    for i in range(3):
        plots.nth(i).scroll_into_view_if_needed()
        box = plots.nth(i).bounding_box()
        assert min(box["width"], box["height"]) > 150
        drawn = (
            plots.nth(i).locator("[data-tip]").evaluate_all("all => all.map((e) => e.getBoundingClientRect().width)")
        )
        assert len(drawn) > 1
        assert min(drawn) > 0
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, colour[4:-1].split(","))) > 382) == (scheme == "light")
    assert noise == []


def test_pointing_at_a_mark_tells_what_it_is(pages):
    page, noise = pages()
    for i, plot in enumerate(page.locator("svg.plot").all()):
        into_view(page, plot)
        mark = plot.locator("[data-tip]").nth(1)
        box = mark.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        tip = page.locator("#tip")
        assert tip.is_visible()
        told = tip.inner_text()
        if i == 0:  # dots may lie on top of each other: what is told is one of them
            at = {
                (m["id"] + m["tip"]).split()[-1]
                for m in plot.locator("circle[data-id]").evaluate_all("all => all.map((e) => ({...e.dataset}))")
            }
            assert told.split()[-1] in at
            assert "cluster" in told
        else:
            assert told == mark.get_attribute("data-tip")
    page.mouse.move(2, 2)
    assert page.locator("#tip").is_hidden()
    assert noise == []


def test_scrolling_takes_the_pointers_tip_and_ring_away_and_moves_the_keyboards(pages):
    page, _ = pages(width=390)
    plot, tip = page.locator("svg.map"), page.locator("#tip")
    into_view(page, plot)
    box = plot.locator("[data-tip]").first.bounding_box()
    page.mouse.move(box["x"] + 2, box["y"] + 2)
    assert tip.is_visible()
    page.evaluate("window.scrollBy({top: -60, behavior: 'instant'})")
    page.evaluate(SCROLLED)
    assert tip.is_hidden()
    assert page.locator(".on").count() == 0
    page.mouse.move(2, 2)
    plot.focus()
    page.keyboard.press("Home")
    before = tip.bounding_box()["y"]
    page.evaluate("window.scrollBy({top: -40, behavior: 'instant'})")
    page.evaluate(SCROLLED)
    assert abs(tip.bounding_box()["y"] - before) > 20


def test_the_keyboard_reaches_everything(pages):
    page, noise = pages()
    expected, reached = page.evaluate(REACHABLE), []
    assert len(expected) > 20
    for _ in expected:
        page.keyboard.press("Tab")
        reached.append(page.evaluate(FOCUSED))
    assert [e.split(">")[0] for e in reached] == [e.split(">")[0] for e in expected]
    for plot in page.locator("svg.plot").all():
        plot.focus()
        heard = []
        for key in ("Home", "ArrowRight", "ArrowRight", "End"):
            page.keyboard.press(key)
            assert page.locator("#tip").is_visible()
            heard.append(page.locator("#say").text_content())
        assert len(set(heard)) == 4
        page.keyboard.press("Escape")
        assert page.locator("#tip").is_hidden()
    summary = page.locator("summary").last
    summary.focus()
    page.keyboard.press("Enter")
    assert page.locator("details").last.evaluate("e => e.open")
    assert noise == []


def test_down_goes_to_the_next_cluster_and_one_cluster_can_be_left_in_colour(pages):
    page, _ = pages()
    plot = page.locator("svg.map")
    plot.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    assert "cluster 1" in page.locator("#say").text_content()
    page.locator("button[data-only='2']").press("Enter")
    assert plot.locator("circle[data-id]:not(.dim)").evaluate_all(
        "all => [...new Set(all.map((e) => e.dataset.k))]"
    ) == ["2"]
    plot.focus()
    page.keyboard.press("Home")
    assert "cluster 2" in page.locator("#say").text_content()


def test_the_axes_can_be_changed(pages):
    page, noise = pages()
    first = page.locator("svg.map circle").nth(3)
    before = first.get_attribute("cx")
    page.locator("button[data-axes='1']").click()
    assert first.get_attribute("cx") != before
    assert "Principal axes" in page.locator("figcaption").first.inner_text()
    page.locator("button[data-axes='0']").click()
    assert first.get_attribute("cx") == before
    assert noise == []


def test_names_are_shown_as_text(pages):
    page, noise = pages()
    assert page.evaluate("document.scripts.length") == 1
    assert page.evaluate("document.querySelectorAll('img, b[onclick], iframe').length") == 0
    assert page.title().startswith("<b>it's\"&.zarr: 3 clusters")
    ids = page.locator("circle[data-id]").evaluate_all("all => all.map((e) => e.dataset.id)")
    assert len(ids) == 240
    for name in hostile.NAMES[:7]:
        shown = name.replace("\r", "␍")
        assert sum(i.startswith(shown) for i in ids) == 24, shown
    labels = page.locator(".matrix thead bdi").all_text_contents()
    assert {name.replace("\r", "␍") for name in hostile.NAMES[:3]} == set(labels)
    rtl = page.locator("circle[data-id^='שלום']").first
    into_view(page, page.locator("svg.map"))
    box = rtl.bounding_box()
    page.mouse.move(box["x"] + 2, box["y"] + 2)
    assert page.locator("#tip bdi").evaluate("e => getComputedStyle(e).unicodeBidi") in ("isolate", "plaintext")
    assert noise == []


def test_without_script_the_figures_are_there(pages):
    page, _ = pages(script=False)
    assert page.locator("svg.map circle[data-id]").count() == 240
    assert page.locator("button[data-only='0']").is_hidden()
