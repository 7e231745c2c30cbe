"""One page about a run: what ran, which claims held, every figure, and what made them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import jinja2
import nbformat
import pandas as pd
from nbconvert import HTMLExporter

from . import claims, ledger
from .errors import DamagedFileError, InvalidValueError, MissingDataError, UnknownNameError
from .files import atomic_file
from .runner import read_manifest


def write(folder: str | Path) -> Path:
    """Write ``index.html`` into a run folder, the claims ledger, and each executed notebook as HTML.

    The page holds its style and its figures, so that it can be moved alone; only the links need the folder. Where the
    ledger can't be made, the page says why and shows the rest.

    Args:
        folder: What `workbook.runner.Session` wrote.

    Returns:
        Path of the page.

    Raises:
        MissingDataError: The folder holds no run.
        DamagedFileError: A manifest can't be read.
        OutputError: The folder can't be written.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    if not manifest:
        raise MissingDataError(
            f"Expected a run's manifest.json in {folder}, found none. Run the notebooks into it first."
        )
    for name in manifest["notebooks"]:
        _write_notebook(folder / f"{name}.ipynb")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    verdicts, counts, problem = _ledger(folder)
    # An earlier ledger's figure says nothing of this run.
    figures = [path for path in sorted(folder.glob("figures/*.png")) if counts or path.stem != ledger.FIGURE]
    page = environment.get_template("report.html.jinja").render(
        manifest=manifest,
        notebooks=[
            {"name": name, "executed": (folder / f"{name}.ipynb").exists(), "seconds": None, "problem": "", **entry}
            for name, entry in manifest["notebooks"].items()
        ],
        verdicts=verdicts,
        counts=counts,
        problem=problem,
        figures=[_figure(path) for path in figures],
        runs=[_read_json(path) for path in sorted(folder.glob("manifests/*.json"))],
    )
    with atomic_file(folder / "index.html") as temporary:
        temporary.write_text(page, encoding="utf-8")
    return folder / "index.html"


def _ledger(folder: Path) -> tuple[list[claims.Verdict], list[dict[str, Any]], str]:
    """The verdicts, their numbers by paper, and what is wrong with them, if anything."""
    verdicts: list[claims.Verdict] = []
    try:
        verdicts = claims.read(folder / "claims.json")
        counts = ledger.counts(ledger.write(folder)) if verdicts else pd.DataFrame()
    except (DamagedFileError, InvalidValueError, UnknownNameError) as error:
        return verdicts, [], str(error)
    return verdicts, counts.reset_index().to_dict("records"), ""


def _write_notebook(path: Path) -> None:
    """An executed notebook as HTML, unless the page is newer."""
    target = path.with_suffix(".html")
    if not path.exists() or (target.exists() and target.stat().st_mtime >= path.stat().st_mtime):
        return
    page, _ = HTMLExporter().from_notebook_node(nbformat.read(path, as_version=4), {"metadata": {"name": path.stem}})
    with atomic_file(target) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _figure(path: Path) -> dict[str, Any]:
    return {
        "name": path.stem,
        "image": base64.b64encode(path.read_bytes()).decode(),
        "endings": [e for e in ("pdf", "svg", "png", "csv") if path.with_suffix(f".{e}").exists()],
    }


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DamagedFileError(
            f"Expected JSON in {path}, got {error}. Delete the file, and run notebook {path.stem} again."
        ) from error
