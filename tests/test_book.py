"""The book: a small one, of a run that did not come to its end, and what its pages load."""

import re
from pathlib import Path
from urllib.parse import unquote

import nbformat
import numpy as np
import pandas as pd
import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from workbook.evaluation.effects import Quantity
from workbook.files import ROOT
from workbook.papers import claims, ledger
from workbook.papers.verdicts import judge

pytest.importorskip("mkdocs", reason="the group `book` is not installed")

from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import PluginError

DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def code(source, *outputs, count=1, **metadata):
    return new_code_cell(source, outputs=list(outputs), execution_count=count, metadata=metadata)


def shown(kind, data, **metadata):
    return new_output("display_data", data={kind: data, "text/plain": "?"}, metadata={kind: metadata})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A folder with one notebook as it should be, one that failed, one that was stopped and one that is damaged."""
    folder = tmp_path_factory.mktemp("run")
    whole = [
        new_markdown_cell(
            "# Whole\n\n$k^2$ is a formula, and a_b_c a name.\n\n<details><summary>Hint</summary>`x`</details>"
        ),
        code('run.figure(fig, "suite", frame)', shown("image/png", DOT, alt="Five untrained embedders")),
        code("frame", shown("text/html", '<table border="1" class="dataframe"><tr><td>4.5</td></tr></table>')),
        code("solved", new_output("stream", text="correct."), jupyter={"source_hidden": True}, tags=["solution"]),
    ]
    failed = [
        new_markdown_cell("# Failed"),
        code("1"),
        code("1 / 0", new_output("error", traceback=["\x1b[31mdivision"])),
    ]
    stopped = [new_markdown_cell("# Stopped"), code("1"), code("2", count=None)]
    for name, cells in {"01_attention": whole, "02_llm2vec": failed, "03_nv_embed": stopped}.items():
        nbformat.write(new_notebook(cells=cells), folder / f"{name}.ipynb")
    (folder / "04_lens.ipynb").write_text("{")
    return folder


@pytest.fixture(scope="module")
def book(run, tmp_path_factory):
    """The folder, the pages by name, what was said while they were built, and the module that wrote them."""
    said = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RUN", str(run))
        config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path_factory.mktemp("book")))
        pages = config.hooks["book/pages.py"]
        patch.setattr(pages, "MODULES", ["scale"])
        patch.setattr(pages._log, "warning", lambda message, *arguments: said.append(message % arguments))
        build(config)
    folder = Path(config.site_dir)
    paths = sorted(folder.rglob("*.html"))
    read = {path.relative_to(folder).as_posix(): BeautifulSoup(path.read_text(), "html.parser") for path in paths}
    return folder, read, said, pages


def test_the_pages_load_nothing_from_elsewhere_and_link_to_what_is_there(book):
    folder, pages, *_ = book
    assert not [*folder.rglob("*.pyc")]
    assert {"index.html", "figures/index.html", "claims.html", "reference/scale.html"} < pages.keys()
    for name, page in pages.items():
        for tag in page.find_all(lambda tag: "src" in tag.attrs or "href" in tag.attrs):
            address = tag.get("src") or tag.get("href")
            if tag.name == "a" and re.match(r"https?://", address):
                continue  # followed by a reader, not loaded by the page
            path, _, part = unquote(address).partition("#")
            assert not re.match(r"\w+:|/", path), (name, address)
            target = (folder / name).parent / path if path else folder / name
            assert target.is_file(), (name, address)
            if part and target.suffix == ".html":
                there = pages[target.resolve().relative_to(folder.resolve()).as_posix()]
                assert there.find(id=part), (name, address)
        assert "@import" not in str(page)
    styles = "".join(path.read_text() for path in folder.rglob("*.css"))
    assert not re.search(r"url\(['\"]?(https?:)?//|@import", styles)
    assert (folder / "search" / "search_index.js").exists()


def test_a_chapter_is_its_notebook(book):
    folder, pages, *_ = book
    page = pages["notebooks/01_attention.html"].article
    assert page.h1.find(string=True) == "Whole"
    assert page.math.msup.mi.text == "k"
    assert "a_b_c" in page.text
    hint, solution = page.find_all("details")
    assert (hint.summary.text, hint.code.text) == ("Hint", "x")
    assert solution.summary.text == "Solution"
    assert "correct." in solution.text
    assert page.img["alt"] == "Five untrained embedders"
    assert (folder / "notebooks" / page.img["src"]).stat().st_size
    assert page.table.attrs == {}
    assert page.find(class_="admonition") is None


def test_what_a_run_left_out_is_said_by_name_and_the_rest_is_built(book):
    _, pages, said, _ = book
    expected = {
        "00_start": "It is not in this run.",
        "02_llm2vec": "It was not executed to its end: it stopped at code cell 2 of 2.",
        "03_nv_embed": "It was not executed to its end: it stopped at code cell 2 of 2.",
        "04_lens": "Expected a notebook in ",
    }
    for name, problem in expected.items():
        assert any(line.startswith(f"{name}: {problem}") for line in said), said
        assert problem in pages[f"notebooks/{name}.html"].find(class_="admonition").text
    assert "division" in pages["notebooks/02_llm2vec.html"].article.text
    assert not [line for line in said if line.startswith("01_attention")]


def test_every_claim_has_its_row(book):
    """Of the committed notebooks, and of a run that judged one."""
    _, pages, said, pages_of = book
    assert "Expected the verdicts of a run" in pages["claims.html"].article.text
    assert any(line.startswith("claims: Expected the verdicts of a run") for line in said)
    committed = pages_of._claims(None)
    for claim in claims.load().values():
        assert pages_of._plain(claim.statement) in committed, claim.id
    drawn = pd.read_csv(ROOT / "figures" / "07_claims.csv")
    rows = pages_of._committed()
    measured = rows[rows["effect"].notna().groupby(rows["claim"]).transform("any")]
    assert {"supported", "contradicted", "inconclusive"} <= {*measured["verdict"]}
    assert measured["effect"].notna().sum() == drawn["effect"].notna().sum()
    assert all(words in committed for words in ledger.readable(measured)["here"].map(pages_of._plain))
    drawn = drawn.drop_duplicates("claim")
    for verdict, count in drawn["verdict"].value_counts().items():
        assert len(re.findall(rf"^\| \[?{verdict}\b", committed, re.MULTILINE)) == count


def test_the_ledger_of_a_run(book, tmp_path):
    *_, pages_of = book
    claim = claims.get("llm2vec-untrained-retrieval")
    values = {"encoder": Quantity.of_values(np.linspace(60, 62, 9)), "causal_weighted_mean": 10.0}
    claims.write([judge(claim, values, scale="quick", notebook="00_start")], tmp_path / "claims.json")
    row = next(line for line in pages_of._claims(tmp_path).splitlines() if claim.statement[:40] in line)
    assert row.startswith("| [supported](notebooks/00_start.md#results) |")
    assert "+51" in row


def test_a_run_that_is_not_there_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("RUN", str(tmp_path / "nowhere"))
    config = load_config(str(ROOT / "mkdocs.yml"))
    with pytest.raises(PluginError, match="RUN: expected the folder of a run, got"):
        config.hooks["book/pages.py"].on_config(config)


def test_the_reference_has_what_docstrings_say(book):
    _, pages, *_ = book
    page = pages["reference/scale.html"].article
    assert page.find(id="workbook.scale.get_scale")
    assert "Raises:" in page.text
    assert ":func:" not in page.text
