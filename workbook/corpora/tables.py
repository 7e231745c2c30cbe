"""Strict reading of CSV files under ``data/``, and an order of rows that is the same everywhere."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from ..errors import DamagedFileError
from ..files import data_path

MEND = "Restore the file from the project's repository."
"""The hint for a damaged file under ``data/``."""


def read(*parts: str, columns: Iterable[str], choices: Mapping[str, Iterable[str]] | None = None) -> pd.DataFrame:
    """A CSV under ``data/`` as strings, refused unless it has these columns, no blanks, unique ids and known values.

    Args:
        *parts: Folder and file below ``data/``.
        columns: The columns that the file must have, in their order.
        choices: The allowed values by column.

    Raises:
        MissingDataError: The file is absent; the message names its path.
        DamagedFileError: The file is not as required; the message says what is wrong.
    """
    columns = list(columns)
    path = data_path(*parts)
    try:
        # No value means "missing" here: a text that reads "None" or "NA" is a text.
        frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    except ValueError as error:
        raise DamagedFileError(f"{path}: expected a CSV table in UTF-8, got {error}. {MEND}") from error
    if list(frame.columns) != columns:
        raise DamagedFileError(f"{path}: expected the columns {columns}, got {list(frame.columns)}. {MEND}")
    blank = frame.apply(lambda column: column.str.strip() == "").any(axis=1)
    if frame.empty or blank.any():
        got = f"line {blank.idxmax() + 2} with an empty one" if blank.any() else "no rows"
        raise DamagedFileError(f"{path}: expected a value in every field, got {got}. {MEND}")
    for column, allowed in (choices or {}).items():
        strange = frame.loc[~frame[column].isin(allowed), column]
        if len(strange):
            known = ", ".join(allowed)
            raise DamagedFileError(f"{path}: expected {column} to be one of {known}, got {strange.iloc[0]!r}. {MEND}")
    if "id" in frame and frame["id"].duplicated().any():
        twice = frame.loc[frame["id"].duplicated(), "id"].iloc[0]
        raise DamagedFileError(f"{path}: expected each id once, got {twice!r} again. {MEND}")
    return frame


def by_hash(frame: pd.DataFrame, column: str = "id") -> pd.DataFrame:
    """The rows in the order of the sha256 of a column: as good as random, and the same everywhere.

    Args:
        frame: The rows.
        column: Name of the column, of strings.
    """
    return frame.iloc[
        np.argsort([hashlib.sha256(value.encode()).hexdigest() for value in frame[column]], kind="stable")
    ]
