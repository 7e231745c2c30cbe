"""Curves of convergence as numbers: the mean height of a curve, and the step at which it reaches a level."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..errors import InvalidValueError
from .summary import check_rows


def area(rows: pd.DataFrame, by: list[str], value: str = "score") -> pd.DataFrame:
    """The mean height of each curve over its steps: the area under it, divided by the steps that it spans.

    Between two measurements a curve is a straight line. The result is in the units of the curve, and curves can be
    compared like single scores, provided that all were measured at the same steps.

    Args:
        rows: Tidy rows with the columns of ``by``, ``step`` and ``value``, such as from ``training.Evaluator``.
        by: Columns that identify a curve, the seed among them.
        value: Column of the heights.

    Returns:
        One row per curve, in the order of their first rows: the columns of ``by`` and ``value``.

    Raises:
        InvalidValueError: A missing column, a step that is twice in a curve, a height that is not finite, curves of a
            single step, or curves measured at different steps.
    """
    curves = _curves(rows, by, value)
    expected = next(iter(curves.values()))[0]
    if len(expected) < 2:
        raise InvalidValueError("rows", "curves of at least two steps", len(expected), "Measure more often.")
    for names, (steps, _) in curves.items():
        if not np.array_equal(steps, expected):
            raise InvalidValueError(
                "rows", f"curves measured at the same steps, {expected.tolist()}", f"{steps.tolist()} for {names}",
                "Choose the steps that all have.",
            )  # fmt: skip
    span = expected[-1] - expected[0]
    found = [[*names, np.trapezoid(heights, steps) / span] for names, (steps, heights) in curves.items()]
    return pd.DataFrame(found, columns=[*by, value])


def steps_to_reach(rows: pd.DataFrame, level: float, by: list[str], value: str = "score") -> pd.DataFrame:
    """The step at which each curve first reaches a level.

    Between two measurements a curve is a straight line, and the step is where that crosses the level, so it need not be
    whole. A curve that begins above the level reaches it at its first step. It does not matter whether a curve falls
    below the level again.

    Args:
        rows: See :func:`area`; curves may be measured at different steps.
        level: In the units of ``value``.
        by, value: See :func:`area`.

    Returns:
        One row per curve, in the order of their first rows: the columns of ``by``, and ``steps``, NaN for a curve that
        never reaches the level. So a mean over seeds is NaN if one of them never does.

    Raises:
        InvalidValueError: A missing column, a step that is twice in a curve, or a height or level that is not finite.
    """
    if isinstance(level, bool) or not isinstance(level, int | float | np.number) or not np.isfinite(level):
        raise InvalidValueError("level", f"a number in the units of {value}", level)
    found = [[*names, _crossing(*curve, level)] for names, curve in _curves(rows, by, value).items()]
    return pd.DataFrame(found, columns=[*by, "steps"])


def _curves(rows: pd.DataFrame, by: list[str], value: str) -> dict[tuple, tuple[np.ndarray, np.ndarray]]:
    """Steps and heights of each curve, in the order of the steps."""
    check_rows(rows, by, "step", value)
    if rows.empty or not np.isfinite(rows[[value, "step"]].to_numpy(float)).all():
        got = "none" if rows.empty else "one that is not"
        raise InvalidValueError("rows", f"a finite number as {value} and step in every row", got)
    ordered = ((names, group.sort_values("step")) for names, group in rows.groupby(by, sort=False, dropna=False))
    return {names: (group["step"].to_numpy(float), group[value].to_numpy(float)) for names, group in ordered}


def _crossing(steps: np.ndarray, heights: np.ndarray, level: float) -> float:
    above = heights >= level
    if not above.any():
        return np.nan
    place = int(above.argmax())
    if place == 0:
        return steps[0]
    return float(np.interp(level, heights[place - 1 : place + 1], steps[place - 1 : place + 1]))
