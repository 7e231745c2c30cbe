"""The results of five papers on MTEB in one table: where they agree on a model, and what each method gained.

``data/published/models.csv`` gives the model of a printed row, so that five spellings of it are one name.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ..corpora.tables import read
from ..errors import DamagedFileError, UnknownNameError
from ..files import data_path
from .tables import METRICS, PUBLISHED, read_published

DATA = ("none", "unlabelled", "public retrieval", "public", "non-public", "not said")
"""Kinds of training data, as a paper describes those of a row; papers may differ on the same model."""

_COLUMNS = ("table", "printed", "model", "method", "backbone", "data", "baseline")
_SCORE = ("task_type", "tasks", "score", "source")


def reported() -> pd.DataFrame:
    """Every model that one of the papers reports on the 56 tasks of MTEB, with one name in all papers.

    Returns:
        One row per printed score: ``paper``, ``table`` (its number there), ``printed`` (the row's name in our file),
        ``model`` (one name for one set of weights), ``method``, ``backbone``, ``data`` (one of ``DATA``), ``baseline``
        (the model over which the paper counts its gain, or none), ``task_type`` (or average), ``tasks`` (int64),
        ``metric`` and ``score`` (float64, points). Of ablations it has only rows that are a model of another table, or
        a baseline.

    Raises:
        MissingDataError: A file is absent; the message names its path.
        DamagedFileError: A file is not as described, or ``models.csv`` names a row that no table has, or one row twice.

    Source:
        LLM2Vec, tables 1, 2 and 9; NV-Embed, tables 1 to 4; LENS, table 1; Causal2Vec, tables 1 and 6; Anchor, tables
        1 and 2.
    """
    names = read("published", "models.csv", columns=_COLUMNS, choices={"table": PUBLISHED, "data": DATA})
    frames = []
    for table, rows in names.groupby("table", sort=False):
        scores = read_published(table)
        if "benchmark" in scores:
            scores = scores[scores["benchmark"] == "MTEB"]
        key = [column for column in scores if column not in ("benchmark", "dimensions", "data", *_SCORE)]
        scores = scores.assign(printed=scores[key].astype(str).agg(", ".join, axis=1))
        absent = rows.loc[~rows["printed"].isin(scores["printed"]) | rows["printed"].duplicated(), "printed"]
        if len(absent):
            path = data_path("published", "models.csv")
            raise DamagedFileError(
                f"{path}: expected each row of {table} once at most, got {absent.iloc[0]!r}, which it has not, or "
                "which is named twice. Restore the file from the project's repository."
            )
        frames.append(rows.drop(columns="table").merge(scores[["printed", *_SCORE]], on="printed"))
    board = pd.concat(frames, ignore_index=True)
    board[["paper", "table"]] = board.pop("source").str.split(", table ", expand=True)
    board["metric"] = board["task_type"].map(METRICS)
    return board[["paper", "table", *_COLUMNS[1:], "task_type", "tasks", "metric", "score"]]


def disagreements(board: pd.DataFrame, by: Sequence[str] = ("model",)) -> pd.DataFrame:
    """Differences between numbers that are printed more than once.

    Args:
        board: The frame from `reported`, or a part of it.
        by: Columns that identify a model. ``["method", "backbone"]`` compares models that share a name but were trained
            on different data.

    Returns:
        One row for each of these and each ``task_type`` in two or more tables, the widest gap first: ``places`` (number
        of tables), ``papers`` (number of papers), ``low`` and ``high`` (points), ``low_place`` and ``high_place``
        (paper and table), ``gap`` (points; 0 if all agree to the last digit).

    Raises:
        UnknownNameError: A column of ``by`` that the board does not have.
    """
    for column in by:
        if column not in board:
            raise UnknownNameError("column", column, board.columns)
    ordered = board.sort_values("score", kind="stable").assign(place=board["paper"] + ", table " + board["table"])
    groups = ordered.groupby([*by, "task_type"], sort=False)
    found = groups.agg(
        places=("place", "nunique"),
        papers=("paper", "nunique"),
        low=("score", "first"),
        high=("score", "last"),
        low_place=("place", "first"),
        high_place=("place", "last"),
    ).reset_index()
    found["gap"] = (found["high"] - found["low"]).round(2)
    found = found[found["places"] > 1]
    return found.sort_values(["gap", *by, "task_type"], ascending=[False, *[True] * (len(by) + 1)], ignore_index=True)


def gains(board: pd.DataFrame) -> pd.DataFrame:
    """Gain of each paper's method in its own numbers: its score minus that of its baseline in the same table.

    Args:
        board: The frame from `reported`.

    Returns:
        One row per model with a baseline and ``task_type``: ``paper``, ``table``, ``model``, ``baseline``,
        ``backbone``, ``score``, ``baseline_score`` and ``gain`` (points).
    """
    key = ["paper", "table", "task_type"]
    against = board[[*key, "model", "score"]].rename(columns={"model": "baseline", "score": "baseline_score"})
    found = board.merge(against, on=[*key, "baseline"])
    columns = ["paper", "table", "model", "baseline", "backbone", "task_type", "score", "baseline_score"]
    return found[columns].assign(gain=(found["score"] - found["baseline_score"]).round(2))
