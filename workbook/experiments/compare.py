"""The numbers by which a claim is judged, from summarised rows: one score, or the difference of two variants."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from .summary import accuracy, over_seeds

Interval = tuple[float, float, float]
"""Value, lower and upper end; both ends NaN if there is no interval, for a single seed without items."""


def judged(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows on which verdicts rest: those of the first source, which is the record if there is one.

    Args:
        rows: From ``Run.experiment``, or summarised with ``source`` as a group.
    """
    return rows[rows["source"] == rows["source"].iloc[0]]


def estimate(summary: pd.DataFrame, variant: str, **where: str) -> Interval | None:
    """Score and interval of a variant, of the highest row if several are left.

    Args:
        summary: Columns source, variant, score, low and high.
        variant: Its name.
        **where: Values of further columns, such as ``pooling="mean"``.

    Returns:
        The interval; None if the variant was not measured, since a rerun without a record has only some.
    """
    rows = judged(summary)
    for column, value in {"variant": variant, **where}.items():
        rows = rows[rows[column] == value]
    return None if rows.empty else tuple(map(float, rows.sort_values("score").iloc[-1][["score", "low", "high"]]))


def paired(rows: pd.DataFrame, first: str, second: str) -> Interval | None:
    """Paired difference, first variant minus second, under the same seeds, and over the same units if rows count them.

    A variant that is not trained has one seed, which is paired with all seeds of the other.

    Args:
        rows: Columns source, variant, seed and score; or, for a difference of accuracies in points, in place of score
            the columns sentence (the unit), words and correct, as for :func:`~.summary.accuracy`.
        first: Name of a variant.
        second: Name of another.

    Returns:
        The interval of the difference; None if one of the two was not measured.
    """
    counted = "correct" in rows
    units = ["sentence", "words"] if counted else ["source"]
    grid = judged(rows).pivot(index=units, columns=["variant", "seed"], values="correct" if counted else "score")
    if not {first, second} <= set(grid.columns.get_level_values("variant")):
        return None
    one, other = grid[first], grid[second]
    seeds = one.columns.union(other.columns) if 1 in (len(one.columns), len(other.columns)) else one.columns
    gaps = {seed: one.get(seed, one.iloc[:, 0]) - other.get(seed, other.iloc[:, 0]) for seed in seeds}
    long = pd.DataFrame(gaps).melt(ignore_index=False, var_name="seed", value_name="gap").reset_index()
    by_seed = accuracy(long.rename(columns={"gap": "correct"}), ["seed"]) if counted else long
    found = over_seeds(by_seed.assign(pair=""), ["pair"], "score" if counted else "gap")
    return tuple(map(float, found.iloc[0, 1:4]))


def compared(rows: pd.DataFrame, variants: Mapping[str, str]) -> dict[str, Interval | None]:
    """The measured quantities of a claim, and the paired difference of every two of them.

    Args:
        rows: Columns source, variant, seed and score, and low and high if the items have an interval.
        variants: The variant of each quantity.

    Returns:
        Intervals by quantity, and by ``"a - b"`` for any two; None if a variant was not measured.
    """
    summary = over_seeds(rows, ["source", "variant"])
    single = {quantity: estimate(summary, variant) for quantity, variant in variants.items()}
    pairs = [(a, b) for a in variants for b in variants if a != b]
    return single | {f"{a} - {b}": paired(rows, variants[a], variants[b]) for a, b in pairs}


def differences(rows: pd.DataFrame, pairs: Mapping[str, tuple[str, str]], tasks: Mapping[str, str]) -> pd.DataFrame:
    """Paired differences of several pairs of variants, task by task; see :func:`paired`.

    Args:
        rows: Columns source, variant, seed, task and score.
        pairs: Two variants, by the name of their difference.
        tasks: Labels of tasks by their names in ``rows``.

    Returns:
        Columns ``pair``, ``task``, ``points``, ``low``, ``high``, in the order given, without pairs of which one
        variant was not measured.
    """
    by_task = {name: rows[rows["task"] == task] for task, name in tasks.items()}
    found = [
        (label, name, *interval)
        for label, variants in pairs.items()
        for name, of_task in by_task.items()
        if not of_task.empty and (interval := paired(of_task, *variants)) is not None
    ]
    return pd.DataFrame(found, columns=["pair", "task", "points", "low", "high"])
