"""Half width of a 95 % interval for the mean of a few values; scores over items have theirs from `effects`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import t


def of_mean(values: Sequence[float] | np.ndarray) -> float:
    """Half width for the mean of values, by Student's t.

    Args:
        values: One per seed, text or query.

    Returns:
        Half the interval's width, in the values' unit; NaN for a single value.
    """
    numbers = np.asarray(values, dtype=float)
    count = len(numbers)
    return float(t.ppf(0.975, count - 1) * numbers.std(ddof=1) / np.sqrt(count)) if count > 1 else np.nan
