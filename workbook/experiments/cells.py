"""The files of a record: rows, outcomes and manifest of its cells, written together, checked as they are read."""

from __future__ import annotations

import json
import platform
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from .. import __version__, backbones
from ..errors import DamagedFileError
from ..evaluation.outcomes import name_of, packed_names, unpack
from ..files import atomic_file
from ..resolved import digest

_CELL = {
    *("variant", "seed", "fingerprint", "rows_sha256", "data", "seconds"),
    *("device", "platform", "threads", "written", "versions"),
}
"""Fields of a cell in a manifest."""

_DAMAGED = (ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error)
"""What numpy raises, reading arrays that are not what was written."""

_PACKAGES = ("torch", "transformers", "sentence-transformers", "peft", "mteb", "numpy", "scikit-learn")


def read_rows(csv: Path, manifest: Path) -> tuple[pd.DataFrame, list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows, the manifest's entry of each cell, and those of them whose rows are as they were written.

    Args:
        csv: The rows.
        manifest: The manifest.

    Raises:
        OSError, ValueError, KeyError, TypeError, AttributeError: One of them is missing, or is something else.
    """
    cells = json.loads(manifest.read_text(encoding="utf-8"))["cells"]
    for cell in cells:
        if absent := _CELL - cell.keys():
            raise ValueError(f"a cell without {', '.join(sorted(absent))}")
    written = pd.read_csv(csv, dtype=str, keep_default_na=False)
    sums = _sums(written)
    intact = [cell for cell in cells if sums.get((cell["variant"], cell["seed"])) == cell["rows_sha256"]]
    frame = pd.read_csv(csv, dtype={"variant": str}, keep_default_na=False, na_values=[""])
    return frame, cells, intact


def read_arrays(npz: Path) -> dict[str, np.ndarray]:
    """The arrays of the outcomes that can be read; the outcomes of those that are lost say so.

    Raises:
        OSError: The file is out of reach.
    """
    found: dict[str, np.ndarray] = {}
    try:
        with np.load(npz) as file:
            for name in file.files:
                with suppress(*_DAMAGED):  # damage takes arrays of one size only
                    found |= {name_of(array): array for array in np.atleast_2d(file[name])}
    except (FileNotFoundError, NotADirectoryError, *_DAMAGED):
        pass
    return found


def write_files(
    csv: Path,
    npz: Path,
    manifest: Path,
    frame: pd.DataFrame,
    arrays: Mapping[str, np.ndarray],
    said: Mapping[str, Any],
    cells: Sequence[dict[str, Any]],
) -> None:
    """Write the three files of a record.

    Args:
        csv: Path of the rows.
        npz: Path of the outcomes.
        manifest: Path of the manifest.
        frame: The rows, in their order.
        arrays: Arrays of outcomes by name; those that no cell has are left out.
        said: What the manifest says of the record.
        cells: Its entries of the cells, in their order; the checksums of their rows are added.

    Raises:
        OutputError: The folder can't be written.
    """
    named = sorted({name for cell in cells for name in packed_names(cell.get("outcomes", ""), arrays)} & set(arrays))
    alike: dict[str, list[np.ndarray]] = {}  # one array each, of those of one size: a third less than one for each
    for array in (arrays[name] for name in named):
        alike.setdefault(f"{array.dtype}-{array.size}", []).append(array)
    # The innermost is renamed first, the manifest last.
    with atomic_file(manifest) as entries, atomic_file(csv) as table, atomic_file(npz) as items:
        with open(items, "wb") as file:
            np.savez_compressed(file, **{kind: np.stack(rows) for kind, rows in alike.items()})
        frame.to_csv(table, index=False, float_format="%.5g", lineterminator="\n")
        sums = _sums(pd.read_csv(table, dtype=str, keep_default_na=False))
        summed = [cell | {"rows_sha256": sums[cell["variant"], cell["seed"]]} for cell in cells]
        entries.write_text(json.dumps({**said, "cells": summed}, indent=1) + "\n", encoding="utf-8")


def cells_of(frame: pd.DataFrame) -> list[tuple[str, int]]:
    """Variant and seed of each row."""
    return list(zip(frame["variant"], frame["seed"], strict=True))


def computed_by() -> dict[str, Any]:
    """What a cell that is computed now is computed by, for its entry in the manifest."""
    return {
        "device": backbones.capability()["why"],
        "platform": f"{platform.system()} {platform.machine()}",  # no more: a kernel's name can be a machine's
        "threads": torch.get_num_threads(),
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"workbook": __version__} | {name: metadata.version(name).partition("+")[0] for name in _PACKAGES},
    }


def has_outcomes(cell: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bool:
    """True if all outcomes of a cell are there, as they were packed.

    Args:
        cell: Its entry in the manifest.
        arrays: The arrays of the record's outcomes.
    """
    try:
        return "outcomes" in cell and unpack(cell["outcomes"], arrays) is not None
    except DamagedFileError:
        return False


def cell_name(cell: dict[str, Any]) -> str:
    """A cell in words."""
    return f"{cell['variant']}, seed {cell['seed']}"


def _sums(written: pd.DataFrame) -> dict[tuple[str, int], str]:
    """Hex sha256 of the rows of each cell, without columns that only other cells have."""
    rows: dict[tuple[str, int], list[dict[str, str]]] = {}
    for row in written.to_dict("records"):
        cell = row.pop("variant"), int(row.pop("seed"))
        rows.setdefault(cell, []).append({name: value for name, value in row.items() if value})
    return {cell: digest(values) for cell, values in rows.items()}
