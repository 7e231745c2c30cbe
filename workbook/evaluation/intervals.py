"""Half widths of 95 % intervals: of a mean, of a ratio of two sums, and of a score that was resampled.

Few values that stand for themselves (seeds, texts, queries) take Student's t. Many items whose sums make a score take
the normal distribution, by linearisation where the score is a ratio of sums, and by the bootstrap where it is not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import norm, t


def of_mean(values: Sequence[float] | np.ndarray) -> float:
    """Of the mean of values, by Student's t.

    Args:
        values: One a seed, text or query.

    Returns:
        Half the interval's width, in the values' unit; NaN for a single value, which can't tell.
    """
    numbers = np.asarray(values, dtype=float)
    count = len(numbers)
    return float(t.ppf(0.975, count - 1) * numbers.std(ddof=1) / np.sqrt(count)) if count > 1 else np.nan


def of_ratio(parts: np.ndarray, wholes: np.ndarray) -> float:
    """Of sum(parts) / sum(wholes), as of a mean over the words of sentences, which stand or fall together.

    The standard error is that of the linearised ratio, with the pairs of a part and its whole as the units.

    Args:
        parts: (units,), such as the words of each sentence that are right.
        wholes: (units,), such as the words of each sentence.

    Returns:
        Half the interval's width.
    """
    share = parts.sum() / wholes.sum()
    return of_errors(np.sqrt(((parts - share * wholes) ** 2).sum()) / wholes.sum())


def of_errors(*errors: float) -> float:
    """Of a sum of independent numbers with these standard errors, each known from many items."""
    return float(norm.ppf(0.975) * np.linalg.norm(errors))


def of_resampled(resampled: np.ndarray) -> float:
    """Of a score, from what its resamples gave: the normal bootstrap interval, with Student's t for few resamples.

    Args:
        resampled: (resamples,), NaN where a resample has no score.

    Returns:
        Half the interval's width; NaN for fewer than two scores.
    """
    return float(t.ppf(0.975, len(resampled) - 1)) * standard_error(resampled)


def standard_error(resampled: np.ndarray) -> float:
    """Standard deviation of the resampled scores, (resamples,), those that are undefined left out."""
    defined = resampled[np.isfinite(resampled)]
    return float(defined.std(ddof=1)) if len(defined) > 1 else float("nan")
