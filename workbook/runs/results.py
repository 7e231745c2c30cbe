"""The results of a notebook in its output folder, besides its own copy: figures, verdicts, its manifest.

A notebook lists its results in ``manifests/<notebook>.json``. No other file is ever removed or replaced: a folder may
hold other people's files, under names that look like ours.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from ..checksums import sha256
from ..errors import DamagedFileError, OutputError
from ..papers import claims


def clear(folder: Path, notebook: str) -> None:
    """Remove the results of an earlier run of a notebook, by its own list; all other files stay.

    Args:
        folder: The output folder.
        notebook: The notebook's name, such as ``01_attention``.

    Raises:
        DamagedFileError: The folder's claims file holds something else.
        OutputError: The folder can't be written.
    """
    try:
        for path in _files(folder, notebook):
            path.unlink()
    except OSError as error:
        raise OutputError(
            f"Could not delete {error.filename}, left by an earlier run: {error.strerror}. "
            "Choose a folder that you may write to."
        ) from error
    claims.drop(notebook, folder / "claims.json")


def checksums(folder: Path, notebook: str) -> dict[str, str]:
    """Hex sha256 of every result of a notebook, by path in the folder; of ``claims.json``, of its verdicts only.

    Args:
        folder: The output folder.
        notebook: The notebook's name, such as ``01_attention``.

    Raises:
        DamagedFileError: The folder's claims file holds something else.
    """
    verdicts = claims.entries(folder / "claims.json", notebook)
    judged = hashlib.sha256(json.dumps(verdicts).encode()).hexdigest()
    files = {path.relative_to(folder).as_posix(): sha256(path) for path in _files(folder, notebook)}
    return files | ({"claims.json": judged} if verdicts else {})


def figure_name(notebook: str, name: str = "") -> str:
    """File name, without ending, of a notebook's figure: the notebook's number, then the figure's name.

    Args:
        notebook: The notebook's name, such as ``01_attention``.
        name: The figure's name; empty for the part that all its figures begin with.
    """
    return f"{notebook.split('_')[0]}_{name}"


def listed(folder: Path, notebook: str) -> list[str]:
    """Names of the files below ``figures`` that a notebook's manifest lists; none if there is no manifest.

    Args:
        folder: The output folder.
        notebook: The notebook's name, such as ``01_attention``.

    Raises:
        DamagedFileError: The manifest is not that of a notebook.
    """
    path = folder / "manifests" / f"{notebook}.json"
    if not path.is_file():
        return []
    try:
        names = json.loads(path.read_text(encoding="utf-8")).get("figures", [])
        if not all(name == Path(name).name and name.startswith(figure_name(notebook)) for name in names):
            raise ValueError(f"figures {names}")
    except (ValueError, AttributeError, TypeError) as error:
        raise DamagedFileError(
            f"Expected the manifest of an earlier run in {path}, got something else ({error}). Move it away, or choose "
            "another folder."
        ) from error
    return names


def refuse_foreign(paths: Iterable[Path], hint: str = "Move it away, or choose another output folder.") -> None:
    """Refuse to replace files that are not from an earlier run.

    Args:
        paths: Files that would be written, without those of earlier runs.
        hint: A sentence that ends the message.

    Raises:
        OutputError: One of them exists; the message names it.
    """
    for path in paths:
        if path.exists():
            raise OutputError(f"{path} exists and is not of an earlier run, so it is not replaced. {hint}")


def _files(folder: Path, notebook: str) -> list[Path]:
    """The files that a notebook lists and that exist, and its manifest."""
    made = [folder / "figures" / name for name in listed(folder, notebook)]
    return sorted(path for path in [*made, folder / "manifests" / f"{notebook}.json"] if path.is_file())
