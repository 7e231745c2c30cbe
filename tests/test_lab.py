"""``make lab``: copies of the notebooks to play with."""

import shutil
import subprocess

import pytest

from workbook.files import ROOT


@pytest.fixture
def lab(tmp_path):
    """Open a small project's notebooks, by the project's own Makefile; returns what it said."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "constraints.txt", "models.txt"):
        (tmp_path / name).touch()
    (tmp_path / "notebooks").mkdir()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "jupyter").symlink_to(shutil.which("true"))
    (tmp_path / ".venv" / "complete").touch()

    def lab(**notebooks):
        for name, text in notebooks.items():
            (tmp_path / "notebooks" / f"{name}.ipynb").write_text(text)
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        for command in (["init", "-q"], ["add", "-A", "notebooks"], [*who, "commit", "-qm", "notebooks"]):
            subprocess.run(["git", *command], cwd=tmp_path, check=True)
        made = subprocess.run(["make", "lab"], cwd=tmp_path, check=True, capture_output=True, text=True)
        return made.stdout

    return lab


def test_copies_follow_the_notebooks_until_they_are_changed(lab, tmp_path):
    play = tmp_path / "play"
    assert "yours" not in lab(one="1", two="1")
    assert "yours" not in lab(one="2")
    assert [path.read_text() for path in sorted(play.iterdir())] == ["2", "1"]
    (play / "one.ipynb").write_text("mine")
    (play / "other.ipynb").write_text("too")
    said = lab(one="3", two="3")
    assert "play/one.ipynb is yours and stays" in said
    assert "two" not in said
    assert [path.read_text() for path in sorted(play.iterdir())] == ["mine", "too", "3"]


def test_git_ignores_the_copies():
    assert "play/" in (ROOT / ".gitignore").read_text().splitlines()
