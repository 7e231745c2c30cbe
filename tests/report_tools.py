"""A run folder for the tests of the report: two committed notebooks, verdicts of every kind, a figure of one's own."""

import json
import shutil

import pandas as pd
from matplotlib.figure import Figure

from workbook import figures
from workbook.files import ROOT
from workbook.papers import claims
from workbook.papers.verdicts import judge
from workbook.runs import runner

NOTEBOOKS = ("00_start", "02_llm2vec")
OWN_TITLE = "Heights of waves on a beach"
GALLERY = "02_stages"


def own_figure():
    """A figure that the gallery does not show."""
    fig = Figure()
    fig.subplots().plot([1, 2])
    fig.axes[0].set_title(OWN_TITLE, loc="left")
    return fig


def made(folder):
    """Make a run folder without running anything; returns it."""
    with runner.Session(folder, {}) as session:
        assert [*session.run([])] == []
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    for name in NOTEBOOKS:
        shutil.copy(ROOT / "notebooks" / f"{name}.ipynb", folder)
        entry = {"status": "passed", "key": name, "library": manifest["library"], "seconds": 61.2}
        manifest["notebooks"][name] = entry | {"parameters": {"scale": "quick", "backbone": "smollm2-135m"}}
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    for name in ("02_beach", GALLERY):
        figures.save(own_figure(), name, pd.DataFrame({"wave": [1, 2]}), folder / "figures")
    verdicts = []
    for claim in claims.load().values():
        if claim.notebook in NOTEBOOKS or claim.paper == "LENS":
            measured = next(iter(claim.published.values()), {})
            found = judge(claim, measured, scale="cpu", notebook=claim.notebook)
            verdicts.append(found)
    claims.write(verdicts, folder / "claims.json")
    return folder
