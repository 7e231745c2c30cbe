"""Committed notebooks keep the house style, and their exercises can be got wrong."""

import ast
import contextlib
import importlib
import io
import re

import hygiene
import nbformat
import numpy as np
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from workbook import checks
from workbook.backbones import CARRIED
from workbook.files import ROOT
from workbook.runs import report

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
HIDDEN = {"tags": ["solution"], "jupyter": {"source_hidden": True}}


def test_house_style():
    found = {path.name: hygiene.problems(nbformat.read(path, as_version=4)) for path in NOTEBOOKS}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_every_formula_can_be_shown_on_a_page_that_loads_nothing():
    texts = [cell.source for path in NOTEBOOKS for cell in nbformat.read(path, 4).cells if cell.cell_type == "markdown"]
    formulas = [formula for text in texts for formula in report._FORMULA.findall(text)]
    assert len(formulas) > 20
    assert [formula for formula in formulas if "<math" not in report._mathml(formula)] == []


def test_exercises_accept_the_solution_and_reject_wrong_answers():
    for path in NOTEBOOKS:
        module = importlib.import_module(f"workbook.checks.{path.stem.partition('_')[2]}")
        for check, answers in solutions(nbformat.read(path, as_version=4)):
            function = getattr(module, check)
            assert said(function, answers).endswith("correct."), (path.name, check)
            for spoil in SPOILS:
                assert "not yet." in said(function, [spoil(answer) for answer in answers]), (path.name, check, spoil)


def solutions(notebook):
    """Check and answers of each solution, from the notebook's imports and definitions; nothing else is run."""
    namespace = {}
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        body = ast.parse(re.sub(r"^\s*[%!].*$", "", cell.source, flags=re.MULTILINE)).body
        solution = "solution" in cell.metadata.get("tags", [])
        calls = [node for node in ast.walk(ast.Module(body, [])) if _is_check(node)] if solution else []
        kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, *((ast.Assign,) if solution else ()))
        definitions = [node for node in body if isinstance(node, kinds)]
        exec(compile(ast.Module(definitions, []), "notebook", "exec"), namespace)
        for call in calls:
            arguments = [eval(compile(ast.Expression(node), "notebook", "eval"), namespace) for node in call.args]
            yield call.func.attr, arguments


def _is_check(node):
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and re.fullmatch(r"exercise_\d+", node.func.attr)
    )


def said(check, answers):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        check(*answers)
    return out.getvalue().splitlines()[0]


def off_by_some(answer):
    """The same answer with its numbers moved, its words changed, its truths turned."""
    if callable(answer):
        return lambda *args, **kwargs: off_by_some(answer(*args, **kwargs))
    if isinstance(answer, bool | np.bool_):
        return not answer
    if isinstance(answer, str):
        return answer + "?"
    if isinstance(answer, dict):
        return {key: off_by_some(value) for key, value in answer.items()}
    if isinstance(answer, tuple | list):
        return type(answer)(map(off_by_some, answer))
    return answer + 1


def nothing(answer):
    """A function without a return, or None."""
    return (lambda *args, **kwargs: None) if callable(answer) else None


SPOILS = (off_by_some, nothing)


# The rules themselves, on a notebook that keeps them all and on copies that break one each.


def code(source, *outputs, tags=(), **metadata):
    metadata |= {"tags": list(tags)} if tags else {}
    return new_code_cell(source, outputs=list(outputs), metadata=metadata)


@pytest.mark.parametrize("path", [*NOTEBOOKS, ROOT / "README.md"], ids=lambda path: path.name)
def test_readers_learn_what_the_default_backbone_is(path):
    """A chat model with weights of 4 bits: neither a base model nor quite the published one."""
    assert "Instruct" in CARRIED["smollm2-135m"].what
    assert "4-bit weights" in CARRIED["smollm2-135m"].what
    text = path.read_text(encoding="utf-8")
    assert re.search(r"\bchat\b", text)
    assert "4 bits" in text


def stream(text, name="stdout"):
    return new_output("stream", text=text, name=name)


def image(size=1000):
    return new_output("display_data", data={"image/png": "A" * size, "text/plain": "<Figure>"})


def exercise(number):
    solved = stream(f"Exercise {number}: correct.\n")
    return [
        new_markdown_cell(f"### Exercise {number}\n\n<details><summary>Hint</summary>Halve it.</details>"),
        code("def half(x):\n    raise NotImplementedError", stream(f"Exercise {number}: not attempted yet.\n")),
        code(f"def halved(x):\n    return x / 2\n\n\nchecks.exercise_{number}(halved)", solved, **HIDDEN),
    ]


@pytest.fixture
def good():
    prose = "All of this is said in words that a reader of the notebook can follow. " * 11
    cells = [
        new_markdown_cell("# Halves"),
        new_markdown_cell("## Do, learn, need"),
        new_markdown_cell("## Parameters"),
        code(
            'scale = "quick"\nbackbone = "smollm2-135m"\nseed = 0\nrerun = False\noutput_dir = ""', tags=["parameters"]
        ),
        new_markdown_cell("## Setup"),
        code("import math"),
        new_markdown_cell("## The idea in small"),
        new_markdown_cell("## Method: halving"),
        *(new_markdown_cell(prose) for _ in range(12)),
        new_markdown_cell("## Halves of halves\n\n**Prediction.** Smaller."),
        code("draw()", image()),
        new_markdown_cell("**Reading.** Smaller indeed."),
        new_markdown_cell("## Exercises"),
        *exercise(1),
        *exercise(2),
        new_markdown_cell("## Results"),
        code("run.verdicts()", stream("reproduced\n")),
        new_markdown_cell("## Limits and summary"),
        new_markdown_cell("## References, provenance"),
        code("print(run.provenance())"),
    ]
    notebook = new_notebook(cells=cells, metadata={"kernelspec": dict(hygiene.KERNELSPEC)})
    for place, cell in enumerate(notebook.cells):
        cell.id = f"cell-{place}"
    renumber(notebook)
    return notebook


def renumber(notebook):
    for count, cell in enumerate((cell for cell in notebook.cells if cell.cell_type == "code"), 1):
        cell.execution_count = count


def codes(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def markdown(notebook, start):
    return next(cell for cell in notebook.cells if cell.cell_type == "markdown" and cell.source.startswith(start))


def add(text):
    """Append a line of source to the setup cell."""

    def change(notebook):
        codes(notebook)[1].source += f"\n{text}"

    return change


def edit(start, old, new):
    """Replace words in a markdown cell."""

    def change(notebook):
        cell = markdown(notebook, start)
        assert old in cell.source
        cell.source = cell.source.replace(old, new)

    return change


def printed(output):
    def change(notebook):
        codes(notebook)[1].outputs.append(output)

    return change


def changed(place, **attributes):
    """Set attributes of the code cell at that place."""
    return lambda notebook: codes(notebook)[place].update(attributes)


BREACHES = {
    "28 cells, expected 35": lambda n: n.cells.__delitem__(slice(8, 15)),
    "words, expected 1500": lambda n: [c.update(source="Few.") for c in n.cells if c.source.startswith("All")],
    "lines of code, expected at most 250": lambda n: [c.update(source="x\n" * 30) for c in codes(n)],
    "median code cell has 9 lines": lambda n: [c.update(source="x\n" * 9) for c in codes(n)],
    "In [2] has 31 lines": changed(1, source="x\n" * 31),
    "bytes, expected at most 500 kB": printed(stream("x" * 500_000)),
    "execution counts": changed(1, execution_count=9),
    "In [2] wrote to stderr": printed(stream("warning", "stderr")),
    "In [2] raised ValueError": printed(new_output("error", ename="ValueError", evalue="", traceback=[])),
    "In [2] prints 41 lines": printed(stream("x\n" * 41)),
    "In [2] shows an image of 150000 bytes": printed(image(200_000)),
    "In [2] keeps a widget view": printed(new_output("display_data", data={"application/vnd.jupyter.widget-view": ""})),
    "kernelspec": lambda n: n.metadata.kernelspec.update(name="venv"),
    "notebook metadata 'widgets'": lambda n: n.metadata.update(widgets={}),
    "used twice": lambda n: n.cells[1].update(id="cell-0"),
    "cell 6 has metadata 'execution'": lambda n: codes(n)[1].metadata.update(execution={}),
    "cell 6 was injected by papermill": lambda n: codes(n)[1].metadata.update(tags=["injected-parameters"]),
    "cell 6 has tags ['nbval-ignore-outputs']": changed(1, metadata={"tags": ["nbval-ignore-outputs"]}),
    "0 cells tagged parameters": lambda n: codes(n)[0].metadata.clear(),
    "13 lines of parameters": lambda n: codes(n)[0].update(source=codes(n)[0].source + "\nx = 1" * 8),
    "line 5 of the parameters is no literal": lambda n: codes(n)[0].update(
        source=codes(n)[0].source.replace('output_dir = ""', "output_dir = str()")
    ),
    "parameters without seed": lambda n: codes(n)[0].update(source=codes(n)[0].source.replace("seed", "seeds")),
    "parameters that nothing uses after the setup: top": lambda n: (
        codes(n)[0].update(source=codes(n)[0].source + "\ntop = 5\nparts = 2"),
        codes(n)[1].update(source="run = start(top=top, parts=parts)"),
        codes(n)[2].update(source="top = parts"),
    ),
    "'for sure' in the text": edit("**Reading.**", "indeed", "for sure"),
    "'rival' in the text": edit("**Reading.**", "indeed", "than its Rival"),
    "the first cell is no title": edit("# Halves", "# Halves", "Halves"),
    "exactly one first-level heading": edit("## Setup", "## Setup", "# Setup"),
    "section 'Results' is absent": edit("## Results", "Results", "Findings"),
    "section 'Parameters' is absent or out of order": lambda n: n.cells.insert(1, n.cells.pop(2)),
    "without a prediction": edit("## Halves", "Prediction", "Claim"),
    "no reading": edit("**Reading.**", "**Reading.**", "## More"),
    "1 headings 'Exercise N'": edit("### Exercise 2", "### Exercise", "### Task"),
    "for 1 of 2 exercises": edit("### Exercise 2", "details", "div"),
    "no stub says 'Exercise 1: not attempted yet.'": changed(3, outputs=[]),
    "no solution says 'Exercise 1: correct.'": changed(4, outputs=[stream("Exercise 1: not yet.")]),
    "the solution in In [5] is not hidden": lambda n: codes(n)[4].metadata.pop("jupyter"),
    "In [2] edits sys.path": add("sys.path.insert(0, '..')"),
    "In [2] changes directory": add("%cd .."),
    "In [2] silences all warnings": add("warnings.filterwarnings('ignore')"),
    "In [2] imports a notebook": add("%run other.ipynb"),
    "In [2] installs packages": add("!pip install x"),
    "cell 6 holds an absolute path": add("open('/home/me/x')"),
    "absolute path, /home/m": printed(stream("saved to /home/me/x")),
}


def test_a_good_notebook_has_no_problems(good):
    assert hygiene.problems(good) == []


@pytest.mark.parametrize("problem", BREACHES)
def test_breaches_are_named(good, problem):
    BREACHES[problem](good)
    found = hygiene.problems(good)
    assert any(problem in line for line in found), found


def test_a_url_is_no_path(good):
    add("# see https://example.org/home/page and <a href='/docs/'>")(good)
    assert hygiene.problems(good) == []


def test_exercises_are_read_and_spoiled(good):
    @checks.exercise(1)
    def exercise_1(half):
        checks.expect("half(4)", half(4), 2.0)

    (first, answers), (second, _) = solutions(good)
    assert (first, second) == ("exercise_1", "exercise_2")
    assert said(exercise_1, answers) == "Exercise 1: correct."
    for spoil in SPOILS:
        assert said(exercise_1, [spoil(answer) for answer in answers]).startswith("Exercise 1: not yet.")
    assert off_by_some(["a", True, {"b": 1}]) == ["a?", False, {"b": 2}]
