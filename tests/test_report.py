"""The report as a document: where a claim leads, what a figure says in words, what a notebook's page is made of."""

import re

import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from report_tools import GALLERY, NOTEBOOKS, OWN_TITLE, made, own_figure

from workbook import figures
from workbook.files import ROOT
from workbook.runs import report


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The pages of a run by name, as documents."""
    folder = made(tmp_path_factory.mktemp("report"))
    report.write(folder)
    return {
        name: BeautifulSoup((folder / f"{name}.html").read_text(encoding="utf-8"), "html.parser")
        for name in ("index", *NOTEBOOKS)
    }


def test_every_link_within_the_pages_leads_somewhere(pages):
    places = {name: {one["id"] for one in page.select("[id]")} for name, page in pages.items()}
    for name, page in pages.items():
        links = [link["href"] for link in page.select("a[href]")]
        for target, anchor in (
            re.fullmatch(r"(?:(\w+)\.html)?(?:#(.+))?", link).groups() for link in links if "#" in link
        ):
            assert anchor in places[target or name], f"{name}: {anchor}"
    assert [link["href"] for link in pages["00_start"].select("main > p > a")] == ["index.html"]


def test_a_claim_leads_to_the_cell_that_names_it_or_judges_all_or_to_the_results():
    cells = [
        new_code_cell('run.figure(fig, "a-claim-of-another")', id="figure"),
        new_code_cell('run.claim("a-claim", x=1)', id="named"),
        new_markdown_cell("## Results"),
        new_code_cell("run.claims(measured)", id="all"),
        new_code_cell("pass", outputs=[new_output("stream", text="printed: supported")], id="prints"),
    ]
    copies = {"00_a": new_notebook(cells=cells), "01_b": new_notebook(cells=cells[2:3]), "02_c": new_notebook()}
    for notebook, claim, link in [
        ("00_a", "a-claim", "00_a.html#cell-id=named"),
        ("00_a", "printed", "00_a.html#cell-id=prints"),
        ("00_a", "not-named", "00_a.html#cell-id=all"),
        ("01_b", "a-claim", "01_b.html#Results"),
        ("02_c", "a-claim", "02_c.html"),
        ("03_absent", "a-claim", ""),
    ]:
        assert report._place(copies, notebook, claim) == link


def test_figures_are_described_by_the_gallery_else_by_their_title(pages, tmp_path):
    shown = {image["alt"] for image in pages["index"].select("figure img")}
    gallery = (ROOT / "figures" / "README.md").read_text(encoding="utf-8")
    assert figures.described(GALLERY) in shown
    assert f"![{figures.described(GALLERY)}]({GALLERY}.png)" in gallery
    assert OWN_TITLE in shown
    assert figures.titles(own_figure()) == OWN_TITLE
    assert figures.described("02_beach") == figures.saved_titles(tmp_path / "absent.png") == ""


def test_a_notebooks_page_has_words_for_its_figures_contents_and_folded_solutions(pages):
    for name in NOTEBOOKS:
        page = pages[name]
        alts = [image["alt"] for image in page.select("img")]
        assert alts
        assert not [alt for alt in alts if not alt or "No description" in alt]
        listed = [link.get_text() for link in page.select("nav.contents a")]
        assert listed == [heading.get_text() for heading in page.find_all("h2")] != []
        solutions = page.select(".celltag_solution")
        assert solutions
        assert all(cell.select_one("details:not([open]) .highlight") for cell in solutions)
        assert all(head.get_text(strip=True) for head in page.find_all("th"))
        assert len(page.find_all("main")) == 1


@pytest.mark.parametrize("gone", [False, True])
def test_a_notebook_that_can_not_be_read_any_more_has_not_passed(tmp_path, gone):
    folder = made(tmp_path)
    whole, damaged = NOTEBOOKS
    if gone:
        (folder / f"{damaged}.ipynb").unlink()
    else:
        (folder / f"{damaged}.ipynb").write_text("{", encoding="utf-8")
    page = BeautifulSoup(report.write(folder).read_text(encoding="utf-8"), "html.parser")
    assert "1 passed, 0 failed, 0 unfinished, 1 damaged." in " ".join(page.select_one("p.lead").text.split())
    rows = [row.select("td") for row in page.select("table tr")[1:3]]
    said = {about.text.split()[0]: (status.text.strip(), about.text) for about, status, _ in rows}
    assert said[whole][0] == "passed"
    assert said[damaged][0] == "damaged"
    assert ("it is gone" if gone else "found something else") in said[damaged][1]
