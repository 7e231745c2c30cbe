"""One page about a run: notebooks, claims, every figure, and versions."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import jinja2
import nbformat
import pandas as pd
from bs4 import BeautifulSoup
from latex2mathml.converter import convert
from nbconvert import HTMLExporter

from .. import figures
from ..errors import DamagedFileError, InvalidValueError, MissingDataError, UnknownNameError
from ..files import atomic_file
from ..papers import claims, ledger
from .execution import read_notebook
from .results import figure_name
from .runner import read_manifest

_PAGE = "page.html.jinja"
_DAMAGED = "damaged"  # in place of what the run's manifest says of a notebook that can't be read any more
_TEMPLATES = jinja2.FileSystemLoader(Path(__file__).parent)
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
        loader=_TEMPLATES,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    notebooks = [
        _notebook(folder / f"{name}.ipynb", entry) | {"earlier": entry.get("library") != manifest["library"]}
        for name, entry in manifest["notebooks"].items()
    ]
    executed = {row["name"]: row["executed"] for row in notebooks if row["executed"]}
    found = _ledger(folder, executed)
    # An earlier ledger's figure says nothing of this run.
    images = [path for path in sorted(folder.glob("figures/*.png")) if found["counts"] or path.stem != ledger.FIGURE]
    page = environment.get_template("report.html.jinja").render(
        manifest=manifest,
        notebooks=notebooks,
        ledger=found,
        looks=figures.VERDICTS,
        figures=[figure for path in images if (figure := _figure(path, [*executed]))],
        runs=[_read_run(path) for path in sorted(folder.glob("manifests/*.json"))],
    )
    with atomic_file(folder / "index.html") as temporary:
        temporary.write_text(page, encoding="utf-8")
    return folder / "index.html"


def with_formulas(text: str) -> str:
    """Markdown with its formulas, which stand between dollars, as MathML."""
    return _FORMULA.sub(lambda found: _mathml(found[1]), text)


def _ledger(folder: Path, executed: dict[str, nbformat.NotebookNode]) -> dict[str, Any]:
    """Number of verdicts, claims counted by paper and verdict, judged claims by paper, and what is wrong, if it is."""
    found: dict[str, Any] = {"judged": 0, "counts": [], "papers": {}, "problem": ""}
    try:
        found["judged"] = len(claims.entries(folder / "claims.json"))
        if found["judged"]:
            rows = ledger.write(folder)
            found["counts"] = ledger.counts(rows).reset_index().to_dict("records")
            judged = rows[rows["verdict"] != ledger.NOT_RUN]
            judged = judged.sort_values("verdict", key=lambda words: words.map(ledger.VERDICTS.index), kind="stable")
            found["papers"] = {
                paper: _claims(judged[judged["paper"] == paper], executed) for paper in rows["paper"].unique()
            }
            found["papers"] = {paper: part for paper, part in found["papers"].items() if part}
    except (DamagedFileError, InvalidValueError, MissingDataError, UnknownNameError) as error:
        found["problem"] = str(error)
    return found


def _claims(rows: pd.DataFrame, copies: dict[str, nbformat.NotebookNode]) -> list[dict[str, str]]:
    """Judged claims of a paper in words, each with its id, the notebook that judged it, and the place there."""
    words = ledger.readable(rows).to_dict("records")
    return [
        text | {"id": row.claim, "notebook": row.notebook, "link": _place(copies, row.notebook, row.claim)}
        for text, row in zip(words, rows.drop_duplicates("claim").itertuples(), strict=True)
    ]


def _place(copies: dict[str, nbformat.NotebookNode], notebook: str, claim: str) -> str:
    """Link to the cell that judged a claim: one that names it, else one that judges all, else the results' heading."""
    if notebook not in copies:
        return ""
    cells = copies[notebook].cells
    code = [cell for cell in cells if cell.cell_type == "code" and "id" in cell]
    for pattern in (rf"(?<![\w-]){re.escape(claim)}(?![\w-])", r"\brun\.claims\(", r"\brun\.claim\("):
        for cell in code:
            printed = [output.get("text", "") for output in cell.outputs]
            if re.search(pattern, "\n".join([cell.source, *printed])):
                return f"{notebook}.html#cell-id={cell.id}"
    results = any(re.search(r"^## Results$", cell.source, re.MULTILINE) for cell in cells)
    return f"{notebook}.html#Results" if results else f"{notebook}.html"


def _notebook(path: Path, entry: dict[str, Any]) -> dict[str, Any]:
    """A row of the page, with the executed notebook, if there is one, which is written as HTML."""
    row = {"name": path.stem, "executed": None, "seconds": None, "problem": "", **entry}
    try:
        notebook = read_notebook(path)
        _write_notebook(path, notebook)
        row["executed"] = notebook
    except FileNotFoundError:  # not run yet, or begun anew this moment
        if row.get("status") == "passed":
            row |= {"status": _DAMAGED, "problem": f"Expected the executed notebook {path}, it is gone. Run it again."}
    except DamagedFileError as error:
        row |= {"status": _DAMAGED, "problem": str(error)}
    return row


def _write_notebook(path: Path, notebook: nbformat.NotebookNode) -> None:
    """Write an executed notebook as HTML, unless the page is newer than the notebook and what makes it."""
    target, here = path.with_suffix(".html"), Path(__file__)
    parts = [path, here, *here.parent.glob("*.jinja")]
    if target.exists() and target.stat().st_mtime >= max(part.stat().st_mtime for part in parts):
        return
    heading = path.stem
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            heading = next(iter(re.findall(r"^#+ (.+)", cell.source, re.MULTILINE)[::-1]), heading)
            # nbconvert's pages would fetch MathJax
            cell.source = with_formulas(cell.source)
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                output.metadata.setdefault("image/png", {}).setdefault("alt", f"Figure of the section: {heading}")
    exporter = HTMLExporter(template_file=_PAGE, extra_loaders=[_TEMPLATES])
    page, _ = exporter.from_notebook_node(notebook, {"metadata": {"name": path.stem}})
    with atomic_file(target) as temporary:
        temporary.write_text(_with_contents(page), encoding="utf-8")


def _with_contents(page: str) -> str:
    """A notebook's page with its contents in front, and no empty cell in the head of a table."""
    soup = BeautifulSoup(page, "html.parser")
    for anchor in soup.select("a.anchor-link"):
        anchor.decompose()
    for head in soup.find_all("th"):
        if not head.get_text(strip=True):
            head.name = "td"
    contents = soup.find("nav", "contents").ul
    for heading in soup.select("h2[id]"):
        item = soup.new_tag("li")
        link = soup.new_tag("a", href=f"#{heading['id']}")
        link.string = heading.get_text(strip=True)
        item.append(link)
        contents.append(item)
    return str(soup)


def _mathml(formula: str) -> str:
    """A formula as MathML, without the namespace that nbconvert would prefix to names in a heading."""
    try:
        return re.sub(r' xmlns="[^"]*"', "", convert(formula))
    except Exception:  # of many kinds, for what is no formula, such as a sum in dollars: it stays as it is written
        return f"${formula}$"


def _figure(path: Path, notebooks: list[str]) -> dict[str, Any] | None:
    """What the page shows of a figure; None if its notebook, begun anew, removed it this moment."""
    try:
        image = base64.b64encode(path.read_bytes()).decode()
    except FileNotFoundError:
        return None
    own = [name for name in notebooks if path.stem.startswith(figure_name(name))]
    return {
        "name": path.stem,
        "shows": figures.described(path.stem) or figures.saved_titles(path) or path.stem.replace("_", " "),
        "notebook": own[0] if own else "",
        "image": image,
        "endings": [e for e in ("pdf", "svg", "png", "csv") if path.with_suffix(f".{e}").exists()],
    }


def _read_run(path: Path) -> dict[str, Any]:
    """The manifest of a notebook's run, or what is wrong with it."""
    try:
        run = json.loads(path.read_text(encoding="utf-8"))
        return {name: run[name] for name in ("notebook", "device", "threads", "written", "parameters")}
    except (OSError, ValueError, TypeError, KeyError) as error:
        problem = f"Expected the manifest of a notebook's run in {path}, got something else ({error!r})."
        return {"notebook": path.stem, "problem": f"{problem} Run notebook {path.stem} again."}
