"""What a notebook leaves in its output folder besides its own copy: figures, verdicts, its manifest.

They are known by the notebook's name alone, so that those of an earlier run can be dropped before the next one, and
checked before they are taken for this one's.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from ..errors import OutputError
from ..files import sha256
from ..papers import claims


def clear(folder: Path, notebook: str) -> None:
    """Drop what an earlier run of a notebook left; what other notebooks left stays.

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
    """Hex sha256 of everything that a notebook left, by path in the folder; of ``claims.json``, of its verdicts only.

    Args:
        folder: The output folder.
        notebook: The notebook's name, such as ``01_attention``.

    Raises:
        DamagedFileError: The folder's claims file holds something else.
    """
    verdicts = [v.model_dump(mode="json") for v in claims.read(folder / "claims.json") if v.notebook == notebook]
    judged = hashlib.sha256(json.dumps(verdicts).encode()).hexdigest()
    files = {path.relative_to(folder).as_posix(): sha256(path) for path in _files(folder, notebook)}
    return files | ({"claims.json": judged} if verdicts else {})


def figure_name(notebook: str, name: str = "") -> str:
    """File name, without ending, of a notebook's figure: the notebook's number, then the figure's name."""
    return f"{notebook.split('_')[0]}_{name}"


def _files(folder: Path, notebook: str) -> list[Path]:
    figures = (path for path in folder.glob("figures/*") if path.name.startswith(figure_name(notebook)))
    manifests = folder.glob("manifests/*.json")
    return sorted([*figures, *(path for path in manifests if path.stem == notebook)])
