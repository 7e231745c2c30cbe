"""The gallery shows every committed figure, with its data, under the notebook that draws it."""

import re

import pytest

from workbook.files import ROOT

FIGURES = ROOT / "figures"
PAGE = (FIGURES / "README.md").read_text(encoding="utf-8")
SECTIONS = dict(
    re.findall(r"^## \[(\w+)\]\(\.\./notebooks/\1\.ipynb\)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
)


def test_every_notebook_has_its_section():
    assert [*SECTIONS] == sorted(path.stem for path in ROOT.glob("notebooks/[0-9]*.ipynb"))


@pytest.mark.parametrize("notebook", SECTIONS)
def test_a_section_shows_the_figures_of_its_notebook(notebook):
    shown = re.findall(r"!\[[^\]]+\]\((\w+)\.png\)", SECTIONS[notebook])
    assert sorted(shown) == sorted(path.stem for path in FIGURES.glob(f"{notebook[:2]}_*.png"))
    source = (ROOT / "notebooks" / f"{notebook}.ipynb").read_text(encoding="utf-8")
    for name in shown:
        assert f'\\"{name[3:]}\\"' in source, f"{notebook} draws no {name}"


@pytest.mark.parametrize("page", ["README.md", "figures/README.md"])
def test_what_a_page_links_to_is_there(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    links = re.findall(r'\]\(([^)#:]+)\)|src="([^"]+)"', text)
    assert links
    for link in (one or other for one, other in links):
        assert ((ROOT / page).parent / link).exists(), link


def test_a_figure_has_its_data_and_every_format():
    stems = {path.stem for path in FIGURES.iterdir() if path.name != "README.md"}
    for stem in stems:
        for ending in ("png", "svg", "pdf", "csv"):
            assert (FIGURES / f"{stem}.{ending}").stat().st_size, f"{stem}.{ending}"
            assert f"({stem}.{ending})" in PAGE
