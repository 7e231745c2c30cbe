"""The report in a browser, as its readers see it: every width, both palettes, print, the filter, axe-core's rules.

It takes playwright, axe-playwright-python (which brings axe-core) and a Chromium: ``pip install -e ".[browser]"``, and
Debian's package ``chromium`` or ``playwright install chromium``.
"""

import importlib.util
import shutil
from pathlib import Path

import pytest
from extras import absent
from report_tools import NOTEBOOKS, made

from workbook.runs import report

PAGES = ["index", *NOTEBOOKS]
WIDTHS = (390, 768, 1280)
UNSEEN = "the report was not looked at in a browser"
PAPER = 680  # pixels of an A4 sheet's width between its margins


@pytest.fixture(scope="module")
def browser():
    for module in ("playwright", "axe_playwright_python"):
        if importlib.util.find_spec(module) is None:
            absent(module, UNSEEN)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        names = ("chromium", "chromium-browser", "google-chrome")
        path = next(filter(None, map(shutil.which, names)), playwright.chromium.executable_path)
        if not Path(path).exists():
            absent("Chromium", UNSEEN)
        arguments = ["--no-sandbox", "--disable-gpu"]  # in a container, as root
        browser = playwright.chromium.launch(executable_path=path, args=arguments, timeout=60_000)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = made(tmp_path_factory.mktemp("report"))
    report.write(folder)
    return folder


@pytest.fixture
def look(browser, folder):
    """Open a page; at the end nothing may have been fetched, and nothing have gone wrong."""
    contexts, wrong = [], []

    def look(name, **settings):
        contexts.append(browser.new_context(**settings))
        page = contexts[-1].new_page()
        page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on(
            "request", lambda request: None if request.url.startswith(("file:", "data:")) else wrong.append(request.url)
        )
        page.goto((folder / f"{name}.html").as_uri())
        return page

    yield look
    for context in contexts:
        context.close()
    assert wrong == []


def sideways(page):
    """Pixels that the page is wider than its window, and what sticks out."""
    return page.evaluate(
        """() => [document.documentElement.scrollWidth - document.documentElement.clientWidth,
                  [...document.querySelectorAll('main *')]
                    .filter(part => part.getBoundingClientRect().right > innerWidth + 1
                                    && !part.closest('.jp-OutputArea-output, .jp-MarkdownCell'))
                    .map(part => part.outerHTML.slice(0, 99))]"""
    )


@pytest.mark.parametrize("name", PAGES)
def test_no_page_scrolls_sideways(look, name):
    page = look(name)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        assert sideways(page) == [0, []], width
    page.emulate_media(media="print")
    page.set_viewport_size({"width": PAPER, "height": 900})
    assert sideways(page) == [0, []]


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("palette", ["light", "dark"])
def test_axe_finds_nothing(look, name, palette):
    from axe_playwright_python.sync_playwright import Axe

    page = look(name, color_scheme=palette, viewport={"width": 1280, "height": 900})
    found = Axe().run(page).response["violations"]
    parts = [(one["id"], one["nodes"][0]["html"][:150], len(one["nodes"])) for one in found]
    assert parts == []
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0] < 128")
    assert dark == (palette == "dark")


def test_claims_are_filtered_by_paper_and_verdict(look):
    page = look("index")

    def shown():
        visible = page.locator(".claim:visible")
        return visible.evaluate_all(
            "all => all.map(one => [one.closest('section').dataset.paper, one.dataset.verdict])"
        )

    every = shown()
    page.get_by_label("Paper").select_option("LENS")
    assert shown() == [one for one in every if one[0] == "LENS"] != []
    verdict = shown()[0][1]
    page.get_by_label("Verdict").select_option(verdict)
    assert shown() == [one for one in every if one == ["LENS", verdict]] != []
    assert page.locator("output").text_content() == f"{len(shown())} shown"
    page.get_by_label("Paper").select_option("")
    assert shown() == [one for one in every if one[1] == verdict]


def test_without_script_every_claim_is_shown_and_no_filter(look):
    page = look("index", java_script_enabled=False)
    assert page.locator(".claim:visible").count() == page.locator(".claim").count() > 0
    assert not page.locator("#filter").is_visible()


def test_a_claim_leads_to_the_cell_that_judged_it(look):
    page = look("index")
    page.locator("#llm2vec-echo-cost").get_by_role("link", name="02_llm2vec").click()
    assert page.locator(":target").locator(".highlight").first.text_content().count("llm2vec-echo-cost") == 1
    page.get_by_role("link", name="Report of the run").click()
    assert page.url.endswith("index.html")


def test_a_solution_is_folded_until_it_is_asked_for(look):
    page = look("00_start")
    solution = page.locator("details", has_text="Solution").filter(has=page.locator(".highlight")).first
    assert not solution.locator(".highlight").is_visible()
    solution.locator("summary").click()
    assert solution.locator(".highlight").is_visible()
