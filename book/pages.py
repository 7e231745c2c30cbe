"""The pages of the book, as MkDocs asks for them: the project's own texts, chapters, claims and reference.

They lie in the book as in the project, so that links between them hold. A chapter is an executed notebook; one that a
run left out or did not finish is said by name, and the rest is built.
"""

from __future__ import annotations

import base64
import logging
import re
import tempfile
from collections.abc import Iterator
from os.path import normpath
from pathlib import Path

import nbformat
import pandas as pd
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

from workbook.errors import DamagedFileError, MissingDataError
from workbook.files import ROOT
from workbook.papers import claims, ledger
from workbook.runs import execution, report, runner

TEXTS = ("README.md", "book/guide.md", "figures/README.md", "data/README.md", "CONTRIBUTING.md", "CHANGELOG.md")
CLAIMS = "claims.md"
CHAPTERS = runner.find([])
MODULES = sorted(path.stem for path in (ROOT / "workbook").iterdir() if re.fullmatch(r"[a-z]\w*(\.py)?", path.name))
MODULES.remove("cli")  # `workbook --help` says it better

_LINK = re.compile(r'(?<=\]\()[^)#:\s]+(?=[)#])|(?<=src=")[^":]+(?=")')
_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):<code>~?")
_log = logging.getLogger("mkdocs.book")


def on_config(config: MkDocsConfig) -> None:
    """Put the pages in their order; one for addresses that are not found is a server's, not a folder's."""
    if (run := config.extra["run"]) and not Path(run).expanduser().is_dir():
        raise PluginError(
            f"RUN: expected the folder of a run, got '{run}'. Without it, the committed notebooks are read."
        )
    config.theme.static_templates.discard("404.html")
    start, guide, gallery, data, contributing, changes = TEXTS
    config.nav = [
        {"Start": start},
        {"Guide": guide},
        {"Chapters": [_page(notebook) for notebook in CHAPTERS]},
        {"Gallery": gallery},
        {"Claims": CLAIMS},
        {"Reference": [{f"workbook.{name}": f"reference/{name}.md"} for name in MODULES]},
        {"Project": [{"Data": data}, {"Contributing": contributing}, {"Changes": changes}]},
    ]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Write the pages, and add what they show and link to."""
    run = Path(config.extra["run"]).expanduser() if config.extra["run"] else None
    pages: dict[str, str | bytes] = {name: (ROOT / name).read_text(encoding="utf-8") for name in TEXTS}
    pages[CLAIMS] = _claims(run)
    pages |= {f"reference/{name}.md": f"::: workbook.{name}\n" for name in MODULES}
    for notebook in CHAPTERS:
        pages |= _chapter(notebook, run)
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content))
    linked = {normpath(Path(name).parent / link) for name in TEXTS for link in _LINK.findall(pages[name])}
    for name in sorted(linked - pages.keys()):
        if (ROOT / name).is_file() and not name.endswith(".ipynb"):
            files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Lead links to notebooks to their chapters."""
    return re.sub(r"(?<=\]\()([^):\s]+)\.ipynb(?=[)#])", r"\1.md", markdown)


def on_page_content(html: str, **_: object) -> str:
    """Write names in docstrings as code alone."""
    return _ROLE.sub("<code>", html)


def _page(notebook: Path) -> str:
    return f"notebooks/{notebook.stem}.md"


def _chapter(notebook: Path, run: Path | None) -> dict[str, str | bytes]:
    """A notebook's page and its images, by name."""
    path = run / notebook.name if run else notebook
    try:
        if not path.exists():
            raise FileNotFoundError("It is not in this run.")
        cells = execution.read_notebook(path).cells
    except (FileNotFoundError, DamagedFileError) as error:
        return {_page(notebook): f"# {notebook.stem}\n\n{_said(notebook.stem, str(error))}"}
    images: dict[str, bytes] = {}
    parts = [part for cell in cells for part in _cell(cell, notebook.stem, images)]
    parts.insert(0, "---\nsearch: {boost: 2}\n---")
    code = [cell for cell in cells if cell.cell_type == "code" and cell.source.strip()]
    failed = [cell for cell in code if any(output.output_type == "error" for output in cell.outputs)]
    if unfinished := failed or [cell for cell in code if not cell.execution_count]:
        at = code.index(unfinished[0]) + 1
        parts.insert(
            2, _said(notebook.stem, f"It was not executed to its end: it stopped at code cell {at} of {len(code)}.")
        )
    return {_page(notebook): "\n\n".join(parts), **images}


def _said(page: str, what: str) -> str:
    _log.warning("%s: %s", page, what)
    return f"!!! warning\n    {what}\n"


def _cell(cell: nbformat.NotebookNode, notebook: str, images: dict[str, bytes]) -> Iterator[str]:
    """The parts of a cell as Markdown; its images are added to the others."""
    if cell.cell_type == "markdown":
        yield report.with_formulas(cell.source).replace("<details>", '<details markdown="1">')
    elif cell.cell_type == "code" and cell.source.strip():
        hidden = cell.metadata.get("jupyter", {}).get("source_hidden")
        if hidden:
            yield '<details markdown="1"><summary>Solution</summary>'
        yield _fenced(cell.source, "python")
        for output in cell.outputs:
            yield _output(output, notebook, images)
        if hidden:
            yield "</details>"


def _output(output: nbformat.NotebookNode, notebook: str, images: dict[str, bytes]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        name = f"{notebook}_{len(images) + 1}"
        images[f"notebooks/{name}.png"] = base64.b64decode(data["image/png"])
        told = output.metadata.get("image/png", {}).get("alt", f"Figure {name}")
        return f"![{told}]({name}.png)"
    if "text/html" in data:
        table = re.sub(r"<style.*?</style>| class=\"dataframe\"| border=\"1\"", "", data["text/html"], flags=re.DOTALL)
        return f'<div class="output">{table}</div>'
    if "text/markdown" in data:
        return report.with_formulas(data["text/markdown"])
    text = output.get("text") or data.get("text/plain") or "\n".join(output.get("traceback", []))
    return _fenced(re.sub(r"\x1b\[[0-9;]*m", "", text), "text")


def _fenced(text: str, language: str) -> str:
    fence = "`" * max(3, *(len(run) + 1 for run in ["", *re.findall("`+", text)]))
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _claims(run: Path | None) -> str:
    """The ledger: of each claim what the paper prints, what was measured, and the verdict."""
    try:
        rows = ledger.table(run) if run else _committed()
    except (DamagedFileError, MissingDataError) as error:
        return f"# Claims\n\n{_said('claims', str(error))}"
    where = f"as the run in `{run.name}` found it" if run else "as the committed notebooks and figures show it"
    lead = (
        f"What held of what the papers say, {where}. Effects have their 95% intervals in brackets; where none stands,"
    )
    parts = [f"# Claims\n\n{lead} the notebook that a verdict links to says more."]
    parts.append(_table(ledger.counts(rows).reset_index()))
    order = list(ledger.VERDICTS)
    chapters = {name: claim.notebook for name, claim in claims.load().items()}
    for paper, part in rows.groupby("paper", sort=False):
        part = part.sort_values("verdict", key=lambda words: words.map(order.index), kind="stable")
        words = ledger.readable(part).map(_plain)
        names = [chapters.get(name, "") for name in part["claim"].unique()]
        words["verdict"] = [_linked(*item) for item in zip(words["verdict"], names, strict=True)]
        words["claim"] += "<br><small>" + words["paper"] + "</small>"
        nothing = part["effect"].isna().groupby(part["claim"], sort=False).all().tolist()
        words["here"] = words["here"].mask(nothing, "")
        words["here"] += words["why"].map(lambda why: "" if why == "-" else f"<br><small>{why}</small>")
        cells = _table(words[["verdict", "claim", "published", "here"]])
        parts.append(f'## {paper}\n\n<div class="claims" markdown>\n\n{cells}\n\n</div>')
    return "\n\n".join(parts)


def _committed() -> pd.DataFrame:
    """The ledger of the committed notebooks, from the data of its figure; claims that are newer were not judged."""
    with tempfile.TemporaryDirectory() as folder:
        claims.write([], Path(folder) / "claims.json")
        known = ledger.table(folder)
    drawn = pd.read_csv(ROOT / "figures" / "07_claims.csv")
    drawn = drawn.fillna({name: "" for name in known.columns[known.dtypes == known.dtypes["claim"]]})
    rows = pd.concat([drawn[drawn["claim"].isin(known["claim"])], known[~known["claim"].isin(drawn["claim"])]])
    papers = list(known["paper"].unique())
    return rows.sort_values("paper", key=lambda names: names.map(papers.index), kind="stable")


def _linked(verdict: str, notebook: str) -> str:
    return f"[{verdict}](notebooks/{notebook}.md#results)" if notebook in {path.stem for path in CHAPTERS} else verdict


def _table(frame: pd.DataFrame) -> str:
    rows = [[*frame.columns], ["---"] * frame.shape[1], *frame.astype(str).to_numpy().tolist()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _plain(text: str) -> str:
    """A text as a cell of a table in Markdown, in which nothing is markup."""
    return re.sub(r"[|*_<`\[\]]", lambda sign: f"&#{ord(sign[0])};", text).replace("\n", "<br>")
