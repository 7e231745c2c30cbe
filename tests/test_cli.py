"""The command line, through its entry point: exit codes, one message an error, a report at the end."""

import sys

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from workbook import cli, doctor


@pytest.fixture
def workbook(monkeypatch, capsys):
    """Run a command; returns exit code, output, errors."""

    def workbook(*arguments):
        monkeypatch.setattr(sys, "argv", ["workbook", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit:
            cli.main()
        return exit.value.code, *capsys.readouterr()

    return workbook


@pytest.fixture
def source(tmp_path):
    """Two notebooks, the first of which fails."""
    for name, line in {"00_fails": "1 / 0", "01_passes": "1"}.items():
        nbformat.write(new_notebook(cells=[new_code_cell(line)]), tmp_path / f"{name}.ipynb")
    return tmp_path


def test_run(workbook, source):
    output = source / "output"
    code, out, _ = workbook("run", "--notebooks", source, "--output", output, "--scale", "quick")
    failed, passed, page = out.splitlines()
    assert code == 1
    assert failed.startswith("00_fails")
    assert failed.endswith("In [2]: ZeroDivisionError: division by zero")
    assert passed.split()[:2] == ["01_passes", "passed"]
    assert page == f"Report: {output / 'index.html'}"
    assert (output / "index.html").exists()
    code, out, _ = workbook("run", "1", "--notebooks", source, "--output", output, "--scale", "quick")
    assert (code, out.split()[:2]) == (0, ["01_passes", "unchanged"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--scale", "qick"], "Unknown scale 'qick'. Did you mean 'quick'?"),
        (["run", "09", "--notebooks", "SOURCE"], "Unknown notebook '09'."),
        (["run", "--notebooks", "SOURCE/absent"], "found none"),
        (["run", "--notebooks", "SOURCE", "--output", "SOURCE/00_fails.ipynb"], "Could not write"),
        (["run", "--seed", "-1"], "Invalid value for '--seed'"),
        (["evaluate", "SOURCE"], "Expected a saved sentence-transformers model"),
        (["evaluate", "SOURCE", "--scale", "tiny"], "Unknown scale 'tiny'"),
        (["walk"], "No such command 'walk'"),
    ],
)
def test_mistakes_exit_with_2_and_one_message(workbook, source, arguments, message):
    code, out, err = workbook(*(argument.replace("SOURCE", str(source)) for argument in arguments))
    assert code == 2
    assert out == ""
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize("command", ["run", "evaluate", "doctor"])
def test_help(workbook, command):
    code, out, _ = workbook(command, "--help")
    assert code == 0
    assert f" {command} [OPTIONS]" in out


def test_doctor(workbook):
    code, out, _ = workbook("doctor")
    assert code == 0
    assert "The notebooks can run." in out
    assert "smollm2-135m" in out


def test_doctor_says_what_is_missing():
    absent, other = doctor.packages({"a": "1", "b": "2"}, {"b": "3"}, ["a"])[1:]
    assert not absent.well
    assert "not installed: a" in absent.detail
    assert other.well is None
    assert "b 3 (pinned 2)" in other.detail
    rows = [{"name": "minilm", "status": "missing", "path": ""}, {"name": "other", "status": "missing", "path": ""}]
    assert [finding.well for finding in doctor.models(rows)] == [False, None]
