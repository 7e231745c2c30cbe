"""As a user would: the first committed notebook by papermill and by the runner, each in a process of its own."""

import json
import os
import subprocess
import sys

import nbformat
import pytest

from workbook.files import ROOT

NOTEBOOK = ROOT / "notebooks" / "00_start.ipynb"
PAPERMILL = ["papermill", str(NOTEBOOK), "executed.ipynb", "--no-progress-bar", "-p", "output_dir", "results"]
COMMANDS = {
    "papermill": [*PAPERMILL, "-p", "scale", "quick"],
    "misspelt": [*PAPERMILL, "-p", "scael", "cpu"],
    "runner": ["workbook", "run", "00", "--scale", "quick", "--output", "results"],
}
ENDINGS = {".pdf", ".svg", ".png", ".csv"}


@pytest.fixture(scope="module")
def ran(tmp_path_factory, smollm2_folder, docs):
    """Exit code, stdout and stderr of each command, and its folder; side by side, a thread each."""
    folders = {name: tmp_path_factory.mktemp(name) for name in COMMANDS}
    processes = {name: start(command, folders[name]) for name, command in COMMANDS.items()}
    results = {}
    for name, process in processes.items():
        output, errors = process.communicate()
        results[name] = process.returncode, output, errors, folders[name]
    return results


def start(command, folder):
    return subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def check_results(folder):
    """Figures, verdicts and provenance, as every run of a notebook leaves them."""
    figures = sorted((folder / "figures").iterdir())
    names = {path.stem for path in figures}
    assert names
    assert {(path.stem, path.suffix) for path in figures} == {(name, ending) for name in names for ending in ENDINGS}
    assert all(path.stat().st_size for path in figures)
    claims = json.loads((folder / "claims.json").read_text(encoding="utf-8"))
    assert claims
    assert {claim["verdict"] for claim in claims} <= {"reproduced", "partly", "not reproduced"}
    manifest = json.loads((folder / "manifests" / "00_start.json").read_text(encoding="utf-8"))
    assert (manifest["parameters"]["seed"], manifest["parameters"]["scale"]) == (0, "quick")
    assert manifest["versions"]["torch"].startswith("2.")
    assert manifest["device"]
    return names


def check_executed(path):
    code = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not [output for cell in code for output in cell.outputs if output.output_type == "error"]


def test_papermill(ran):
    code, _, errors, folder = ran["papermill"]
    assert code == 0, errors
    check_executed(folder / "executed.ipynb")
    check_results(folder / "results")
    assert {path.name for path in folder.iterdir()} == {"executed.ipynb", "results"}


def test_a_misspelt_parameter_is_refused(ran):
    code, _, errors, folder = ran["misspelt"]
    assert code != 0
    assert "UnknownNameError: Unknown parameter 'scael'. Did you mean 'scale'?" in errors
    assert not (folder / "results").exists()


def test_runner_and_its_report(ran):
    code, output, errors, folder = ran["runner"]
    results = folder / "results"
    assert code == 0, output + errors
    assert errors == ""
    assert output.split()[:2] == ["00_start", "passed"]
    check_executed(results / "00_start.ipynb")
    names = check_results(results)
    page = (results / "index.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == len(names)
    assert all(name in page for name in names)

    again = start(COMMANDS["runner"], folder)
    output, errors = again.communicate()
    assert (again.returncode, errors) == (0, "")
    assert output.split()[:2] == ["00_start", "unchanged"]
    assert check_results(results) == names
