"""Copies for a class: `make handout` leaves out what a solution gives away, and outputs."""

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from workbook.files import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))


def tagged(notebook):
    return [cell for cell in notebook.cells if "solution" in cell.metadata.get("tags", [])]


@pytest.mark.journey
def test_copies_without_solutions_and_outputs():
    command = ["make", "--old-file", "setup", "handout", f"BIN={Path(sys.executable).parent}"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    for path in NOTEBOOKS:
        whole, copy = (nbformat.read(one, as_version=4) for one in (path, ROOT / "outputs" / "handout" / path.name))
        assert tagged(whole)
        assert len(copy.cells) == len(whole.cells) - len(tagged(whole))
        assert not tagged(copy)
        assert not [cell for cell in copy.cells if cell.get("outputs") or cell.get("execution_count")]
