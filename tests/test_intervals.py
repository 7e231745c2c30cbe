"""Half widths of intervals: against scipy and by simulation."""

import numpy as np
import pytest
from scipy.stats import bootstrap, ttest_1samp

from workbook.evaluation import intervals


def test_of_a_mean_is_students():
    values = np.random.default_rng(0).exponential(size=16)
    low, high = ttest_1samp(values, 0).confidence_interval(0.95)
    assert intervals.of_mean(values) == pytest.approx((high - low) / 2)
    assert np.isnan(intervals.of_mean([3.0]))


def test_of_a_mean_covers_it_for_few_values():
    """As often as it says: 1.96 in place of Student's 4.3 would cover 81 of 100 means of three values."""
    drawn = np.random.default_rng(0).normal(size=(4000, 3))
    covered = [abs(row.mean()) <= intervals.of_mean(row) for row in drawn]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.01)


def test_of_a_ratio_is_that_of_a_bootstrap_over_its_units():
    random = np.random.default_rng(1)
    wholes = random.integers(1, 30, 64)
    parts = wholes * random.normal(0.4, 0.2, 64)

    def ratio(one, other, axis):
        return one.sum(axis) / other.sum(axis)

    drawn = bootstrap((parts, wholes), ratio, paired=True, method="percentile", rng=2).confidence_interval
    assert intervals.of_ratio(parts, wholes) == pytest.approx((drawn.high - drawn.low) / 2, rel=0.05)


def test_of_resampled_scores_is_their_spread():
    values = np.random.default_rng(3).normal(size=2000)
    undefined = np.append(values, [np.nan] * 3)
    assert intervals.of_resampled(undefined) == pytest.approx(1.96 * values.std(), rel=0.01)
    assert np.isnan(intervals.of_resampled(np.full(2, np.nan)))
    assert intervals.of_resampled(values[:10]) == pytest.approx(2.262 * values[:10].std(ddof=1), rel=1e-3)


def test_of_errors_adds_them_in_squares():
    assert intervals.of_errors(3.0, 4.0) == pytest.approx(5 * 1.959964)
