"""The house style of a committed notebook, read from its JSON.

Every rule is a generator function of a notebook that yields one line a problem. `problems` applies all of them.
"""

from __future__ import annotations

import ast
import re
import statistics
from collections.abc import Callable, Iterator

import nbformat
from nbformat import NotebookNode

KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
TAGS = {"parameters", "solution", "sums-up", "nbval-ignore-output"}
"""What marks a cell: for papermill, for readers, for the runner, and for nbval. Another tag would do nothing."""
PARAMETERS = ("scale", "backbone", "seed", "rerun", "output_dir")
SECTIONS = (
    "Do, learn, need",
    "Parameters",
    "Setup",
    "The idea in small",
    "Method",
    "Exercises",
    "Results",
    "Limits and summary",
    "References",
)
"""How the second-level headings begin, in order, punctuation aside; training and analyses stand after Method."""

FORBIDDEN = {
    r"\bsys\.path\b": "edits sys.path",
    r"\bos\.chdir\b|^\s*%cd\b": "changes directory",
    r"filterwarnings\(\s*[\"']ignore[\"']\s*\)|simplefilter\(\s*[\"']ignore[\"']\s*\)": "silences all warnings",
    r"^\s*%run\b|\bimport_ipynb\b|^\s*(from|import) +notebooks\b": "imports a notebook",
    r"^\s*[!%]+ *pip\b": "installs packages",
}
ABSOLUTE_PATH = re.compile(r"(?<![\w.:/<])(/(home|Users|root|tmp|usr|opt|mnt|var|etc|data|workspace)/\w|[A-Z]:\\\w)")

WORDS = re.compile(r"\b(rivals?|told by|for sure|closings?|closed by|random weights)\b", re.IGNORECASE)
"""What the text does not say: negative or candidate, defined by, clear of zero, suffix, random initialisation."""

ROOM = {"# 03": (70, 3500, 280), "# 04": (60, 3100, 295), "# 05": (60, 3000, 280), "# 08": (55, 2500, 310)}
"""Most cells, words and lines of code of a notebook by how its title begins: 03 has a laboratory besides its paper, 04
a dial and a mixture, 05 what a second attention sink does; 08 measures ten methods.
"""

RULES: list[Callable[[NotebookNode], Iterator[str]]] = []


def problems(notebook: NotebookNode) -> list[str]:
    """Every breach of the house style, a line each."""
    return [line for rule in RULES for line in rule(notebook)]


def _rule(function):
    RULES.append(function)
    return function


def _code(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _tags(cell: NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def _lines(cell: NotebookNode) -> int:
    return sum(bool(line.strip()) for line in cell.source.splitlines())


def _text(output: NotebookNode) -> str:
    """What a reader sees of an output, as text."""
    return output.get("text") or output.get("data", {}).get("text/plain", "")


def _words(text: str) -> str:
    return re.sub(r"\W+", " ", text).strip().lower()


def headings(notebook: NotebookNode) -> list[tuple[int, str]]:
    """Level and text of every heading, code fences left out."""
    found = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            source = re.sub(r"^```.*?^```", "", cell.source, flags=re.MULTILINE | re.DOTALL)
            found += [(len(m[1]), m[2].strip()) for m in re.finditer(r"^(#+) +(.+)$", source, re.MULTILINE)]
    return found


@_rule
def size(notebook):
    """35-55 cells, 1500-2500 words, at most 250 lines of code in short cells; more where :data:`ROOM` says so."""
    most_cells, most_words, most_lines = ROOM.get(notebook.cells[0].source[:4], (55, 2500, 250))
    words = sum(len(re.findall(r"[^\W\d_][\w'’-]*", c.source)) for c in notebook.cells if c.cell_type == "markdown")
    lines = [_lines(cell) for cell in _code(notebook)]
    if not 35 <= len(notebook.cells) <= most_cells:
        yield f"{len(notebook.cells)} cells, expected 35 to {most_cells}"
    if not 1500 <= words <= most_words:
        yield f"{words} words, expected 1500 to {most_words}"
    if sum(lines) > most_lines:
        yield f"{sum(lines)} lines of code, expected at most {most_lines}"
    if lines and statistics.median(lines) > 8:
        yield f"the median code cell has {statistics.median(lines):g} lines, expected at most 8"
    for number, count in enumerate(lines, 1):
        if count > 30:
            yield f"In [{number}] has {count} lines, expected at most 30"
    if (total := len(nbformat.v4.writes(notebook).encode())) > 500_000:
        yield f"{total} bytes, expected at most 500 kB"


@_rule
def executed(notebook):
    """Restarted and run from top to bottom, without a word on stderr."""
    counts = [cell.execution_count for cell in _code(notebook)]
    if counts != list(range(1, len(counts) + 1)):
        yield f"execution counts {counts}, expected 1 to {len(counts)}: restart and run all"
    for number, cell in enumerate(_code(notebook), 1):
        for output in cell.outputs:
            if output.get("name") == "stderr":
                yield f"In [{number}] wrote to stderr"
            if output.output_type == "error":
                yield f"In [{number}] raised {output.ename}"


@_rule
def outputs(notebook):
    """Images up to 100 kB, text up to 40 lines a cell, no widget views."""
    for number, cell in enumerate(_code(notebook), 1):
        if (lines := sum(len(_text(output).splitlines()) for output in cell.outputs)) > 40:
            yield f"In [{number}] prints {lines} lines, expected at most 40"
        for output in cell.outputs:
            for kind, content in output.get("data", {}).items():
                size = len(content) * 3 // 4 if kind in ("image/png", "image/jpeg") else len(content)
                if kind.startswith("image/") and size > 100_000:
                    yield f"In [{number}] shows an image of {size} bytes, expected at most 100 kB"
                if "widget" in kind:
                    yield f"In [{number}] keeps a widget view"


@_rule
def metadata(notebook):
    """One kernelspec, stable cell ids, and no trace of the run."""
    if notebook.metadata.get("kernelspec") != KERNELSPEC:
        yield f"kernelspec {notebook.metadata.get('kernelspec')}, expected {KERNELSPEC}"
    for name in sorted(set(notebook.metadata) - {"kernelspec", "language_info"}):
        yield f"notebook metadata {name!r}"
    identifiers = [cell.get("id") for cell in notebook.cells]
    if None in identifiers or len(set(identifiers)) < len(identifiers):
        yield "cell ids are absent or used twice"
    for place, cell in enumerate(notebook.cells, 1):
        for name in sorted(set(cell.metadata) - {"tags", "jupyter"}):
            yield f"cell {place} has metadata {name!r}"
        if "injected-parameters" in _tags(cell):
            yield f"cell {place} was injected by papermill"
        elif unknown := set(_tags(cell)) - TAGS:
            yield f"cell {place} has tags {sorted(unknown)}, expected of {sorted(TAGS)}"


@_rule
def parameters(notebook):
    """One cell of literals, with the five that every notebook takes; its own are used after they were checked."""
    cells = [cell for cell in _code(notebook) if "parameters" in _tags(cell)]
    if len(cells) != 1 or cells[0] is not _code(notebook)[0]:
        yield f"{len(cells)} cells tagged parameters, expected one, the first code cell"
        return
    if _lines(cells[0]) > 12:
        yield f"{_lines(cells[0])} lines of parameters, expected at most 12"
    names = []
    for statement in ast.parse(cells[0].source).body:
        try:
            (target,) = statement.targets
            ast.literal_eval(statement.value)
            names.append(target.id)
        except (AttributeError, ValueError):
            yield f"line {statement.lineno} of the parameters is no literal"
    if absent := [name for name in PARAMETERS if name not in names]:
        yield f"parameters without {', '.join(absent)}"
    used = {node.id for cell in _code(notebook)[2:] for node in ast.walk(ast.parse(cell.source)) if _loads(node)}
    if idle := [name for name in names if name not in {*PARAMETERS, *used}]:
        yield f"parameters that nothing uses after the setup: {', '.join(idle)}"


def _loads(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)


@_rule
def words(notebook):
    """The field's words, and no certainty that an interval does not give."""
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    for word in sorted({found.lower() for found in WORDS.findall(prose)}):
        yield f"{word!r} in the text"


@_rule
def sections(notebook):
    """A title, then the sections in their order."""
    if notebook.cells[0].cell_type != "markdown" or not notebook.cells[0].source.startswith("# "):
        yield "the first cell is no title"
    if sum(level == 1 for level, _ in headings(notebook)) != 1:
        yield "expected exactly one first-level heading"
    rest = iter([_words(text) for level, text in headings(notebook) if level == 2])
    for section in SECTIONS:
        if not any(text.startswith(_words(section)) for text in rest):
            yield f"section {section!r} is absent or out of order"
            return


@_rule
def figures(notebook):
    """A prediction before each figure, a reading after it."""
    since = ""
    for place, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            since += cell.source
        elif any("image/png" in output.get("data", {}) for output in cell.outputs):
            number = cell.execution_count
            if not re.search(r"\bpredict", since, re.IGNORECASE):
                yield f"the figure of In [{number}] comes without a prediction"
            after = notebook.cells[place + 1] if place + 1 < len(notebook.cells) else None
            if after is None or after.cell_type != "markdown" or after.source.startswith("#"):
                yield f"the figure of In [{number}] is followed by no reading"
            since = ""


@_rule
def exercises(notebook):
    """Two or three, each with hints, a stub that is not attempted yet, and a hidden solution that is correct."""
    titles = [text for level, text in headings(notebook) if level == 3 and text.startswith("Exercise ")]
    if not 2 <= len(titles) <= 3:
        yield f"{len(titles)} headings 'Exercise N', expected 2 or 3"
    hints = sum("<details>" in cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    if hints < len(titles):
        yield f"hints in <details> for {hints} of {len(titles)} exercises"
    solutions = [cell for cell in _code(notebook) if "solution" in _tags(cell)]
    stubs = [cell for cell in _code(notebook) if "raise NotImplementedError" in cell.source]
    for number in range(1, len(titles) + 1):
        for cells, said in ((stubs, "not attempted yet"), (solutions, "correct")):
            wanted = f"Exercise {number}: {said}."
            if not any(wanted in _text(output) for cell in cells for output in cell.outputs):
                yield f"no {'solution' if cells is solutions else 'stub'} says {wanted!r}"
    for cell in solutions:
        if not cell.metadata.get("jupyter", {}).get("source_hidden"):
            yield f"the solution in In [{cell.execution_count}] is not hidden"


@_rule
def habits(notebook):
    """Nothing that works on one machine only."""
    for number, cell in enumerate(_code(notebook), 1):
        for pattern, what in FORBIDDEN.items():
            if re.search(pattern, cell.source, re.MULTILINE):
                yield f"In [{number}] {what}"
    for place, cell in enumerate(notebook.cells, 1):
        for text in [cell.source, *map(_text, cell.get("outputs", []))]:
            if found := ABSOLUTE_PATH.search(text):
                yield f"cell {place} holds an absolute path, {found[0]}"
