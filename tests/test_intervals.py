"""Half widths of intervals: against scipy and by simulation."""

import numpy as np
import pytest
from scipy.stats import ttest_1samp

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
