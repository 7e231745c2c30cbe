"""Executing a notebook for committing, and comparing a committed one: both with the real tools."""

import json
import re
import shutil
import subprocess
import sys

import hygiene
import nbformat
import papermill
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from workbook.files import ROOT

pytestmark = pytest.mark.journey

PARAMETERS = 'scale = "quick"\nbackbone = "tiny-llama"\nseed = 0\nrerun = False\noutput_dir = "out"'
START = (
    "import ipywidgets\nimport pandas as pd\nfrom workbook import figures\nfrom workbook.runs import notebook\n"
    'run = notebook.start("00_sample", scale=scale, backbone=backbone, seed=seed, rerun=rerun, output_dir=output_dir)'
)
FIGURE = (
    'frame = pd.DataFrame({"pooling": ["mean", "last"], "score": [37.0, 18.0]})\n'
    'run.figure(figures.bars(frame, "pooling", "score"), "scores", frame)'
)


def write(path, *sources):
    parameters = new_code_cell(PARAMETERS, metadata={"tags": ["parameters"], "execution": {}})
    cells = [parameters, *map(new_code_cell, sources)]
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": hygiene.KERNELSPEC, "widgets": {}}), path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of notebooks with the project's settings, and one notebook executed in place."""
    folder = tmp_path_factory.mktemp("notebooks")
    for name in ("conftest.py", "nbconvert_config.py"):
        shutil.copy(ROOT / "notebooks" / name, folder)
    write(folder / "sample.ipynb", START, FIGURE, "frame", "ipywidgets.FloatSlider(0.5)", "print(len(frame))")
    command = ["-m", "jupyter", "nbconvert", "--config", "nbconvert_config.py", "sample.ipynb"]
    subprocess.run([sys.executable, *command], cwd=folder, check=True, capture_output=True)
    return folder


def test_executed_in_place_without_a_trace_of_the_run(folder):
    notebook = nbformat.read(folder / "sample.ipynb", as_version=4)
    for rule in (hygiene.executed, hygiene.outputs, hygiene.metadata, hygiene.parameters, hygiene.habits):
        assert list(rule(notebook)) == []
    figure, table, widget, number = (cell.outputs[0] for cell in notebook.cells[2:])
    assert figure.metadata == {"image/png": {"width": 640, "height": 320, "alt": "00_scores"}}
    assert len(notebook.cells[2].outputs) == 1
    assert "37.0" in table.data["text/html"]
    assert widget.data == {"text/plain": "FloatSlider(value=0.5)"}
    assert number.text == "2\n"
    assert (folder / "out" / "figures" / "00_scores.csv").exists()


def test_nbval_compares_every_output(folder):
    """One changed digit, in what is printed or in a table, fails its cell; the cells as executed pass."""
    notebook = json.loads((folder / "sample.ipynb").read_text(encoding="utf-8"))
    *_, table, _, printed = notebook["cells"]
    printed["outputs"][0]["text"] = ["3\n"]
    table["outputs"][0]["data"] = json.loads(json.dumps(table["outputs"][0]["data"]).replace("37.0", "37.1"))
    (folder / "tampered.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    result = nbval(folder, "tampered.ipynb")
    failed = re.findall(r"^FAILED (\S+?\.ipynb::Cell \d+)", result.stdout, re.MULTILINE)
    assert failed == ["tampered.ipynb::Cell 3", "tampered.ipynb::Cell 5"], result.stdout
    assert "2 failed, 4 passed" in result.stdout


@pytest.mark.parametrize("mark", ["tag", "first line"])
def test_nbval_leaves_marked_cells_out(folder, mark):
    notebook = nbformat.read(folder / "sample.ipynb", as_version=4)
    cell = notebook.cells[-1]
    cell.outputs[0].text = "3\n"
    if mark == "tag":
        cell.metadata["tags"] = ["nbval-ignore-output"]
    else:
        cell.source = f"# NBVAL_IGNORE_OUTPUT\n{cell.source}"
    nbformat.write(notebook, folder / "marked.ipynb")
    result = nbval(folder, "marked.ipynb")
    assert "6 passed" in result.stdout, result.stdout


def nbval(folder, name):
    command = ["-m", "pytest", "--nbval", "-q", "-p", "no:cacheprovider", name]
    return subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True)


def test_papermill(folder, tmp_path):
    """As the README writes it."""
    command = ["-m", "papermill", folder / "sample.ipynb", "out.ipynb", "-p", "seed", "3", "--no-progress-bar"]
    subprocess.run([sys.executable, *map(str, command)], cwd=tmp_path, check=True, capture_output=True)
    executed = nbformat.read(tmp_path / "out.ipynb", as_version=4)
    assert executed.cells[-1].outputs[0].text == "2\n"
    manifest = json.loads((tmp_path / "out" / "manifests" / "00_sample.json").read_text(encoding="utf-8"))
    assert manifest["parameters"]["seed"] == 3


def test_papermill_stops_at_an_unknown_parameter(folder, tmp_path):
    with pytest.raises(papermill.PapermillExecutionError, match=r"Unknown parameter 'scael'.*Did you mean 'scale'"):
        papermill.execute_notebook(
            folder / "sample.ipynb", tmp_path / "out.ipynb", {"scael": "cpu"}, progress_bar=False, cwd=tmp_path
        )
    assert not (tmp_path / "out").exists()
