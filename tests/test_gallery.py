"""The gallery shows every committed figure, with its data, under the notebook that draws it."""

import re

import nbformat
import pandas as pd
import pytest

from workbook.evaluation import OFFLINE_SUITES
from workbook.experiments import get, levels
from workbook.experiments.equal_budget import UNTRAINED
from workbook.experiments.records import Record
from workbook.files import ROOT
from workbook.methods import describe

FIGURES = ROOT / "figures"
PAGE = (FIGURES / "README.md").read_text(encoding="utf-8")
SECTIONS = dict(
    re.findall(r"^## \[(\w+)\]\(\.\./notebooks/\1\.ipynb\)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
)
FROM_METHODS = "00_methods"
"""The one figure that no run draws: it shows chains and recipes, not results."""


def test_every_notebook_has_its_section():
    assert [*SECTIONS] == sorted(path.stem for path in ROOT.glob("notebooks/[0-9]*.ipynb"))


@pytest.mark.parametrize("notebook", SECTIONS)
def test_a_section_shows_the_figures_of_its_notebook(notebook):
    shown = re.findall(r"!\[[^\]]+\]\((\w+)\.png\)", SECTIONS[notebook])
    assert sorted(shown) == sorted(path.stem for path in FIGURES.glob(f"{notebook[:2]}_*.png"))
    source = (ROOT / "notebooks" / f"{notebook}.ipynb").read_text(encoding="utf-8")
    for name in {*shown} - {FROM_METHODS}:
        drawn = "run.forest(" if name[3:] == "effects" else f'\\"{name[3:]}\\"'
        of_each = re.sub("(docs|other)", "{suite}", drawn)
        assert drawn in source or of_each in source, f"{notebook} draws no {name}"


@pytest.mark.parametrize("notebook", SECTIONS)
def test_a_figure_in_a_notebook_has_the_gallerys_line_as_its_alternative_text(notebook):
    lines = {*re.findall(r"!\[([^\]]+)\]\(\w+\.png\)", SECTIONS[notebook])}
    outputs = [
        o for cell in nbformat.read(ROOT / "notebooks" / f"{notebook}.ipynb", 4).cells for o in cell.get("outputs", [])
    ]
    images = [o.metadata.get("image/png", {}).get("alt") for o in outputs if "image/png" in o.get("data", {})]
    assert images
    assert {*images} <= lines


@pytest.mark.parametrize("page", ["README.md", "figures/README.md"])
def test_what_a_page_links_to_is_there(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    links = re.findall(r'\]\(([^)#:]+)\)|src="([^"]+)"', text)
    assert links
    for link in (one or other for one, other in links):
        assert ((ROOT / page).parent / link).exists(), link


def test_a_figure_has_its_data_and_every_format():
    stems = {path.stem for path in FIGURES.iterdir() if path.is_file() and path.name != "README.md"}
    for stem in stems:
        for ending in ("png", "svg", "pdf", "csv"):
            assert (FIGURES / f"{stem}.{ending}").stat().st_size, f"{stem}.{ending}"
            assert f"({stem}.{ending})" in PAGE


def test_the_drawing_of_the_methods_is_of_todays():
    kept = pd.read_csv(FIGURES / f"{FROM_METHODS}.csv", keep_default_na=False)
    pd.testing.assert_frame_equal(kept, describe(*kept["method"].unique()))


def recorded(scale, *names):
    """Levels of both suites by variant, of records of notebook 07."""
    rows = pd.concat(Record(get(name), scale).load(stale=True) for name in names)
    rows = rows[rows["metric"] == "score"].assign(source="recorded")
    return levels(rows, {suite: suite for suite in OFFLINE_SUITES}).set_index(["variant", "task"])["score"]


@pytest.mark.parametrize(
    ("figure", "column", "records"),
    [("07_average", "method", ("night", "07_methods")), ("07_grid", "variant", ("cpu", "07_methods", "07_parts"))],
)
def test_what_is_drawn_of_records_is_of_todays(figure, column, records):
    drawn = pd.read_csv(FIGURES / f"{figure}.csv").query("source == 'recorded'")
    states = drawn.get("state", pd.Series("trained", drawn.index))
    names = [*zip(drawn[column] + states.map({"trained": "", "untrained": UNTRAINED}), drawn["task"], strict=True)]
    assert len(names) == len({*names}) > 14
    assert drawn["score"].tolist() == pytest.approx(recorded(*records)[names].tolist())
