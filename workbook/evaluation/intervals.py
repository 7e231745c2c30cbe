"""Half widths of 95 % intervals: of a mean, of a ratio of two sums, and of a resampled score.

The mean of a few values (seeds, texts, queries) takes Student's t. A score over many items takes the normal
distribution, by linearisation if the score is a ratio of sums, otherwise by the bootstrap.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import norm, t


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


def of_ratio(parts: np.ndarray, wholes: np.ndarray) -> float:
    """Half width for sum(parts) / sum(wholes), such as a mean over words that are drawn by whole sentences.

    The standard error is that of the linearised ratio, with the pairs of a part and its whole as the units.

    Args:
        parts: (units,), such as the number of right words of each sentence.
        wholes: (units,), such as the number of words of each sentence.

    Returns:
        Half the interval's width.
    """
    share = parts.sum() / wholes.sum()
    return of_errors(np.sqrt(((parts - share * wholes) ** 2).sum()) / wholes.sum())


def of_errors(*errors: float) -> float:
    """Half width for a sum of independent numbers with these standard errors, each known from many items."""
    return float(norm.ppf(0.975) * np.linalg.norm(errors))


def of_resampled(resampled: np.ndarray) -> float:
    """Half width for a score, from its resamples: the normal bootstrap interval, with Student's t for few resamples.

    Args:
        resampled: (resamples,), NaN where a resample has no score.

    Returns:
        Half the interval's width; NaN for fewer than two scores.
    """
    return float(t.ppf(0.975, len(resampled) - 1)) * standard_error(resampled)


def standard_error(resampled: np.ndarray) -> float:
    """Standard deviation of the resampled scores, (resamples,), without those that are undefined."""
    defined = resampled[np.isfinite(resampled)]
    return float(defined.std(ddof=1)) if len(defined) > 1 else float("nan")
