"""One page about a run: notebooks, claims, every figure, and versions."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import jinja2
from latex2mathml.converter import convert
from nbconvert import HTMLExporter

from .. import figures
from ..errors import DamagedFileError, InvalidValueError, MissingDataError, UnknownNameError
from ..files import atomic_file
from ..papers import claims, ledger
from .results import figure_name
from .runner import read_manifest, read_notebook

_PAGE = "page.html.jinja"
_FORMULA = re.compile(r"\$(?!\s)([^$`\n]+)(?<!\s)\$(?!\d)")  # as pandoc tells formulas from dollars


def write(folder: str | Path) -> Path:
    """Write ``index.html`` into a run folder, the claims ledger, and each executed notebook as HTML.

    The page holds its style and its figures, so that it can be moved alone; only the links need the folder. Neither it
    nor the notebooks' pages load anything from elsewhere. If the ledger or a part of a notebook can't be shown, the
    page says why and shows the rest.

    Args:
        folder: Run folder of `workbook.runs.runner.Session`.

    Returns:
        Path of the page.

    Raises:
        MissingDataError: The folder does not hold a run.
        DamagedFileError: The run's manifest can't be read.
        OutputError: The folder can't be written.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    if not manifest:
        raise MissingDataError(
            f"Expected a run's manifest.json in {folder}, found none. Run the notebooks into it first."
        )
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    found = _ledger(folder)
    # An earlier ledger's figure says nothing of this run.
    images = [path for path in sorted(folder.glob("figures/*.png")) if found["counts"] or path.stem != ledger.FIGURE]
    notebooks = [
        _notebook(folder / f"{name}.ipynb", entry) | {"earlier": entry.get("library") != manifest["library"]}
        for name, entry in manifest["notebooks"].items()
    ]
    page = environment.get_template("report.html.jinja").render(
        manifest=manifest,
        notebooks=notebooks,
        ledger=found,
        looks=figures.VERDICTS,
        figures=[_figure(path, [row["name"] for row in notebooks if row["executed"]]) for path in images],
        runs=[_read_run(path) for path in sorted(folder.glob("manifests/*.json"))],
    )
    with atomic_file(folder / "index.html") as temporary:
        temporary.write_text(page, encoding="utf-8")
    return folder / "index.html"


def _ledger(folder: Path) -> dict[str, Any]:
    """Number of verdicts, claims counted by paper and verdict, judged claims by paper, and what is wrong, if it is."""
    found: dict[str, Any] = {"judged": 0, "counts": [], "papers": {}, "problem": ""}
    try:
        found["judged"] = len(claims.entries(folder / "claims.json"))
        if found["judged"]:
            rows = ledger.write(folder)
            found["counts"] = ledger.counts(rows).reset_index().to_dict("records")
            judged = rows[rows["verdict"] != ledger.NOT_RUN].groupby("paper", sort=False)
            found["papers"] = {paper: ledger.readable(part).to_dict("records") for paper, part in judged}
    except (DamagedFileError, InvalidValueError, MissingDataError, UnknownNameError) as error:
        found["problem"] = str(error)
    return found


def _notebook(path: Path, entry: dict[str, Any]) -> dict[str, Any]:
    """A row of the page; the executed notebook, if there is one, is written as HTML."""
    row = {"name": path.stem, "executed": False, "seconds": None, "problem": "", **entry}
    if path.exists():
        try:
            _write_notebook(path)
            row["executed"] = True
        except DamagedFileError as error:
            row["problem"] = str(error)
    return row


def _write_notebook(path: Path) -> None:
    """Write an executed notebook as HTML, unless the page is newer."""
    target = path.with_suffix(".html")
    if target.exists() and target.stat().st_mtime >= path.stat().st_mtime:
        return
    notebook = read_notebook(path)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":  # nbconvert's pages would fetch MathJax
            cell.source = _FORMULA.sub(lambda found: _mathml(found[1]), cell.source)
    exporter = HTMLExporter(template_file=_PAGE, extra_loaders=[jinja2.FileSystemLoader(Path(__file__).parent)])
    page, _ = exporter.from_notebook_node(notebook, {"metadata": {"name": path.stem}})
    with atomic_file(target) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _mathml(formula: str) -> str:
    """A formula as MathML, without the namespace that nbconvert would prefix to names in a heading."""
    try:
        return re.sub(r' xmlns="[^"]*"', "", convert(formula))
    except Exception:  # of many kinds, for what is no formula, such as a sum in dollars: it stays as it is written
        return f"${formula}$"


def _figure(path: Path, notebooks: list[str]) -> dict[str, Any]:
    own = [name for name in notebooks if path.stem.startswith(figure_name(name))]
    return {
        "name": path.stem,
        "notebook": own[0] if own else "",
        "image": base64.b64encode(path.read_bytes()).decode(),
        "endings": [e for e in ("pdf", "svg", "png", "csv") if path.with_suffix(f".{e}").exists()],
    }


def _read_run(path: Path) -> dict[str, Any]:
    """The manifest of a notebook's run, or what is wrong with it."""
    try:
        run = json.loads(path.read_text(encoding="utf-8"))
        return {name: run[name] for name in ("notebook", "device", "threads", "written", "parameters")}
    except (ValueError, TypeError, KeyError) as error:
        problem = f"Expected the manifest of a notebook's run in {path}, got something else ({error!r})."
        return {"notebook": path.stem, "problem": f"{problem} Run notebook {path.stem} again."}
