"""Outcomes by item: statistics of resamples, and outcomes kept in files."""

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score

from workbook.errors import DamagedFileError
from workbook.evaluation.outcomes import (
    STATISTICS,
    Outcomes,
    as_text,
    from_text,
    pack,
    packed_names,
    units,
    unpack,
)

DRAW = np.random.default_rng(3)


# Statistics


@pytest.mark.parametrize("ties", [False, True])
def test_statistics_over_counts_are_those_over_drawn_rows(ties):
    values = DRAW.normal(size=30).round(0 if ties else 9)
    grades, labels = DRAW.integers(0, 6, 30).astype(float), DRAW.integers(0, 2, 30).astype(float)
    drawn = DRAW.integers(30, size=(20, 30))
    counts = np.stack([np.bincount(row, minlength=30) for row in drawn]).astype(float)
    expected = {
        "mean": (None, [values[row].mean() for row in drawn]),
        "ratio": (grades, [values[row].sum() / grades[row].sum() for row in drawn]),
        "spearman": (grades, [spearmanr(values[row], grades[row]).statistic for row in drawn]),
        "average_precision": (labels, [average_precision_score(labels[row], values[row]) for row in drawn]),
    }
    assert expected.keys() == STATISTICS.keys()
    for name, (gold, numbers) in expected.items():
        np.testing.assert_allclose(STATISTICS[name](counts, values, gold), numbers)


def test_equal_units_have_equal_draws_and_others_their_own():
    values = DRAW.normal(size=40)
    first, same, other = (Outcomes.of_values(values, texts) for texts in (range(40), range(40), range(1, 41)))
    np.testing.assert_array_equal(first.resampled(500), same.resampled(500))
    assert abs(np.corrcoef(first.resampled(2000), other.resampled(2000))[0, 1]) < 0.1
    assert not np.array_equal(first.resampled(500, seed=1), first.resampled(500))


def test_what_was_resampled_is_kept_by_number_and_seed():
    one = Outcomes.of_values(DRAW.normal(size=40), range(40))
    assert not one.kept(500)
    first = one.resampled(500)
    assert one.kept(500)
    assert one.resampled(500) is first
    assert not one.kept(501)
    assert not one.kept(500, seed=1)
    assert Outcomes.none(0.5, "No items.").kept(500)


def test_items_of_a_group_are_drawn_together():
    values, groups = np.repeat([0.0, 1.0, 1.0, 0.0], 5), np.repeat(np.arange(4), 5)
    one = Outcomes(0.5, "mean", values, None, groups, 20)
    assert set(one.resampled(50)) <= {0, 0.25, 0.5, 0.75, 1}
    assert one.drawn == 4


def test_scores_are_reproduced_by_the_items_or_not():
    values, weights = np.array([1.0, 0.0, 3.0]), np.array([2.0, 1.0, 5.0])
    share = Outcomes.of_values(values, "abc", weights, factor=100)
    assert (share.score, share.statistic, share.items) == (50, "ratio", 3)
    assert Outcomes.of_values(values, "abc").score == pytest.approx(4 / 3)
    assert share.reproduces_score()
    assert not Outcomes(51.0, "ratio", values, weights, None, 3, factor=100).reproduces_score()
    assert not Outcomes(np.nan, "spearman", np.ones(3), weights, None, 3).reproduces_score()
    none = Outcomes.none(0.5, "Lost.")
    assert not none.reproduces_score()
    assert np.isnan(none.resampled()).all()


# Files


def made(statistic="mean", items=200, **changes):
    values = DRAW.normal(size=items)
    gold = {"ratio": DRAW.integers(1, 60, items), "spearman": DRAW.integers(0, 6, items)}
    gold["average_precision"] = DRAW.integers(0, 2, items)
    known = gold[statistic].astype(float) if statistic in gold else None
    texts = units(range(items))
    score = 1.0 if statistic == "replicates" else STATISTICS[statistic](np.ones((1, items)), values, known)[0]
    own = {"items": items, "units": texts, "digest": texts, "factor": 1.0}
    return Outcomes(float(score), statistic, values, known, **own | changes)


ALL = [*STATISTICS, "replicates"]


@pytest.mark.parametrize("statistic", ALL)
def test_what_is_kept_comes_back(statistic):
    before = made(statistic, groups=np.arange(200) // 3)
    after = unpack(*pack([before]))[0]
    for name in ("statistic", "items", "units", "digest", "factor", "why"):
        assert getattr(after, name) == getattr(before, name)
    assert after.score == pytest.approx(before.score, rel=1e-6)
    np.testing.assert_array_equal(after.groups, before.groups)
    if before.gold is not None:
        np.testing.assert_array_equal(after.gold, before.gold)  # grades, labels and numbers of words are exact
    ranked = statistic in ("spearman", "average_precision")
    assert after.resampled(50) == pytest.approx(before.resampled(50), rel=0, abs=1e-12 if ranked else 2e-3)
    if ranked:
        np.testing.assert_array_equal(np.argsort(after.values), np.argsort(before.values))


def test_numbers_are_rounded_by_half_a_thousandth_of_themselves_at_most():
    """float16 has eleven bits, which keep three digits; what is too large for it is kept in float32."""
    before = made(items=1000, factor=100.0)
    for scale, bound in ((1.0, 2**-11), (1e-2, 2**-11), (1e6, 2**-24)):
        scaled = Outcomes(before.score, "mean", scale * before.values)
        after = unpack(*pack([scaled]))[0]
        worst = np.abs(after.values / scaled.values - 1)[np.abs(scaled.values) > 1e-4].max()
        assert 0 < worst <= bound


@pytest.mark.parametrize("items", [2048, 5000])
def test_ranks_are_exact_and_equal_values_stay_equal(items):
    values = np.repeat(DRAW.permutation(items // 2), 2).astype(float)
    one = Outcomes(0.5, "spearman", values, values % 5, None, items)
    kept = unpack(*pack([one]))[0].values
    np.testing.assert_array_equal(np.unique(kept, return_inverse=True)[1], np.unique(values, return_inverse=True)[1])


def test_equal_arrays_are_kept_once_and_what_is_no_outcome_has_its_place():
    first = made("spearman")
    second = Outcomes(0.1, "spearman", DRAW.normal(size=200), first.gold, None, 200)
    name, arrays = pack([first, np.nan, second, first])
    assert len(arrays) == 1 + 2 + 1  # the list, two arrays of values, and the gold scores of both
    assert packed_names(name, arrays) == set(arrays)
    found = unpack(name, arrays | {"another": np.zeros(3)})
    assert list(found) == [0, 2, 3]
    np.testing.assert_array_equal(found[0].gold, found[2].gold)
    assert pack([first, np.nan, second, first])[0] == name
    assert packed_names(name, {}) == {name}


@pytest.mark.parametrize("number", range(4))
def test_changed_and_missing_arrays_are_noticed(number):
    name, arrays = pack([made("spearman", groups=np.arange(200) // 3)])
    assert len(arrays) == 4
    changed = list(arrays)[number]
    for other, got in (
        ({key: array for key, array in arrays.items() if key != changed}, "none"),
        (arrays | {changed: arrays[changed][::-1].copy()}, "others"),
        (arrays | {changed: arrays[changed].astype(np.float64)}, "others"),
        (arrays | {changed: arrays[changed][:-1]}, "others"),
    ):
        with pytest.raises(DamagedFileError, match=f"the outcomes that were recorded, got {got}"):
            unpack(name, other)


def test_a_score_without_outcomes_keeps_its_reason():
    after = unpack(*pack([Outcomes.none(0.25, "mteb's score can't be taken apart.", 7)]))[0]
    assert (after.score, after.statistic, after.items) == (0.25, "none", 7)
    assert after.why == "mteb's score can't be taken apart."


def test_outcomes_as_a_line_of_text_come_back():
    for statistic in ALL:
        before = made(statistic)
        text = as_text(before)
        assert "\n" not in text
        after = from_text(text)
        assert after.resampled(20) == pytest.approx(unpack(*pack([before]))[0].resampled(20))
    name, content = text.split()
    with pytest.raises(DamagedFileError, match="got none"):
        from_text(f"{'0' * len(name)} {content}")
