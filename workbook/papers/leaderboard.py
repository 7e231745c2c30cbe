"""What five papers report of models on MTEB, in one table: where they agree on a model, and what each gained.

``data/published/models.csv`` says which model a printed row is, so that five spellings of it are one name.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ..corpora.tables import read
from ..errors import DamagedFileError, UnknownNameError
from ..files import data_path
from .tables import METRICS, PUBLISHED, read_published

DATA = ("none", "unlabelled", "public retrieval", "public", "non-public", "not said")
"""What a paper says of a row's training data; the same model may be public to one paper and not to another."""

_COLUMNS = ("table", "printed", "model", "method", "backbone", "data", "baseline")
_SCORE = ("task_type", "tasks", "score", "source")


def reported() -> pd.DataFrame:
    """Every model that one of the papers reports on the 56 tasks of MTEB, under one name wherever it stands.

    Returns:
        One row for each score printed: ``paper``, ``table`` (its number there), ``printed`` (how the row is told from
        others in our file), ``model`` (one name for one set of weights), ``method``, ``backbone``, ``data`` (one of
        ``DATA``), ``baseline`` (the model whose distance the paper calls its gain, or none), ``task_type`` (or
        average), ``tasks`` (int64), ``metric`` and ``score`` (float64, points). Of ablations only those rows that are a
        model of another table, or a baseline.

    Raises:
        MissingDataError: A file is absent; the message names its path.
        DamagedFileError: A file is not as described, or ``models.csv`` names a row that no table has, or one twice.

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
    """How far apart the numbers are that are printed more than once.

    Args:
        board: As `reported` gives it, or a part of it.
        by: Columns that make rows the same. ``["method", "backbone"]`` puts beside one another what is called by one
            name and was trained on other data.

    Returns:
        One row for each of these and each ``task_type`` that stands in two tables or more, the widest gap first:
        ``places`` (in how many), ``papers`` (of how many), ``low`` and ``high`` (points), ``low_place`` and
        ``high_place`` (paper and table), ``gap`` (points; 0 where all agree to the last digit).

    Raises:
        UnknownNameError: A column of ``by`` that the board has not.
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
    """What each paper's own numbers say of its method: score less that of its baseline in the same table.

    Args:
        board: As `reported` gives it.

    Returns:
        One row for each of its models and each ``task_type``: ``paper``, ``table``, ``model``, ``baseline``,
        ``backbone``, ``score``, ``baseline_score`` and ``gain`` (points).
    """
    key = ["paper", "table", "task_type"]
    against = board[[*key, "model", "score"]].rename(columns={"model": "baseline", "score": "baseline_score"})
    found = board.merge(against, on=[*key, "baseline"])
    columns = ["paper", "table", "model", "baseline", "backbone", "task_type", "score", "baseline_score"]
    return found[columns].assign(gain=(found["score"] - found["baseline_score"]).round(2))
