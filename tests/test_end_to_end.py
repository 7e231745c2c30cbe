"""As a user would: the first committed notebook by the runner, in a process of its own; the second time in this one.

The model is tiny, and its tokenizer begins every text with a sign of its own.
"""

import json
import os
import subprocess
import sys

import nbformat
import pytest

from workbook import cli

pytestmark = pytest.mark.journey

COMMAND = ["workbook", "run", "00", "--scale", "quick", "--backbone", "tiny-llama", "--output", "results"]
ENDINGS = {".pdf", ".svg", ".png", ".csv"}


def ran(folder):
    """Exit code, stdout and stderr of the command there."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", *COMMAND], cwd=folder, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def check_results(folder):
    """Figures, verdicts and provenance, as every run of a notebook leaves them."""
    figures = sorted((folder / "figures").iterdir())
    names = {path.stem for path in figures}
    assert names
    assert {(path.stem, path.suffix) for path in figures} == {(name, ending) for name in names for ending in ENDINGS}
    assert all(path.stat().st_size for path in figures)
    claims = json.loads((folder / "claims.json").read_text(encoding="utf-8"))
    assert claims
    assert {claim["verdict"] for claim in claims} <= {"supported", "contradicted", "inconclusive"}
    manifest = json.loads((folder / "manifests" / "00_start.json").read_text(encoding="utf-8"))
    wanted = {"seed": 0, "scale": "quick", "backbone": "tiny-llama"}
    assert manifest["parameters"].items() >= wanted.items()
    assert manifest["versions"]["torch"].startswith("2.")
    assert manifest["device"]
    return names


def check_executed(path):
    code = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not [output for cell in code for output in cell.outputs if output.output_type == "error"]


def test_runner_and_its_report(tmp_path, docs, monkeypatch, capsys):
    results = tmp_path / "results"
    code, output, errors = ran(tmp_path)
    assert (code, errors) == (0, ""), output
    assert output.split()[:2] == ["00_start", "passed"]
    check_executed(results / "00_start.ipynb")
    names = check_results(results)
    page = (results / "index.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == len(names)
    assert all(name in page for name in names)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", COMMAND)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with pytest.raises(SystemExit) as ended:
        cli.main()
    output, errors = capsys.readouterr()
    assert (ended.value.code, errors) == (0, "")
    assert output.split()[:2] == ["00_start", "unchanged"]
    assert check_results(results) == names
