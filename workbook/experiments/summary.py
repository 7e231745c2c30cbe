"""Numbers with intervals from recorded rows: over items and over seeds."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..errors import InvalidValueError
from ..evaluation import intervals


def over_seeds(rows: pd.DataFrame, by: list[str], value: str = "score") -> pd.DataFrame:
    """The mean over seeds, with a 95 % interval over items and seeds.

    The squares of two half widths add up: that of the items, from the columns ``low`` and ``high`` if there are any
    (the same items with every seed, so it does not shrink with the number of seeds), and Student's t over the seeds
    (nothing for a single seed). A single seed without such columns has no interval: NaN.

    Args:
        rows: Tidy rows with the columns of ``by``, ``seed`` and ``value``, one per group and seed.
        by: Columns that identify a group.
        value: Column of the numbers.

    Returns:
        One row per group, in the order of their first rows: the columns of ``by``, ``value``, low, high, seeds. Figures
        draw no interval for NaN, and claims on such numbers are not tested.

    Raises:
        InvalidValueError: A missing column, or a seed that is twice in a group.
    """
    check_rows(rows, by, "seed", value)
    found = []
    for names, group in rows.groupby(by, sort=False, dropna=False):
        numbers, count = group[value].to_numpy(float), len(group)
        # An interval that was cut at 100 points is as wide as its other side.
        bounded = {"low", "high"} <= set(group)
        items = np.maximum(group["high"] - numbers, numbers - group["low"]).mean() if bounded else 0.0
        seeds = intervals.of_mean(numbers) if count > 1 else 0.0
        half = float(np.hypot(items, seeds)) if bounded or count > 1 else np.nan
        found.append([*names, numbers.mean(), numbers.mean() - half, numbers.mean() + half, count])
    return pd.DataFrame(found, columns=[*by, value, "low", "high", "seeds"])


def check_rows(rows: pd.DataFrame, by: list[str], unit: str, *values: str) -> None:
    """Refuse rows without the columns that are needed, or with a unit that is twice in a group.

    Args:
        rows: Tidy rows.
        by: Columns of the groups.
        unit: Column that is different in every row of a group.
        *values: Columns of numbers.

    Raises:
        InvalidValueError: One of the columns is missing, or a unit is twice in a group.
    """
    needed = [*by, unit, *values]
    if missing := [name for name in needed if name not in rows]:
        raise InvalidValueError("rows", f"the columns {', '.join(needed)}", list(rows), f"Add {', '.join(missing)}.")
    if rows.duplicated([*by, unit]).any():
        raise InvalidValueError("by", f"columns that leave one row a {unit}", by, "Name more columns, or choose rows.")
