"""Means over seeds with their intervals: against a naive second implementation, and by simulation."""

import statistics

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t

from workbook import figures
from workbook.errors import InvalidValueError
from workbook.experiments import over_seeds


def rows(scores, half=None, **columns):
    """One row a seed, with intervals of the items that are ``half`` wide to each side."""
    frame = pd.DataFrame({"variant": "a", "seed": range(len(scores)), "score": scores, **columns})
    return frame if half is None else frame.assign(low=frame["score"] - half, high=frame["score"] + half)


def test_over_seeds_is_students_interval_and_that_of_the_items_in_squares():
    scores, halves = [40.0, 43.0, 41.5, 39.0], [3.0, 4.0, 5.0, 4.0]
    other = rows([10.0, 20.0], half=1.0).assign(variant="b")
    found = over_seeds(pd.concat([rows(scores, half=halves), other]), ["variant"])
    assert list(found.columns) == ["variant", "score", "low", "high", "seeds"]
    assert list(found["variant"]) == ["a", "b"]
    assert list(found["seeds"]) == [4, 2]
    for row, numbers, items in ((found.iloc[0], scores, 4.0), (found.iloc[1], [10.0, 20.0], 1.0)):
        spread = t.ppf(0.975, len(numbers) - 1) * statistics.stdev(numbers) / len(numbers) ** 0.5
        half = (spread**2 + items**2) ** 0.5
        assert row["score"] == pytest.approx(statistics.mean(numbers))
        assert row["high"] - row["score"] == pytest.approx(half)
        assert row["score"] - row["low"] == pytest.approx(half)


def test_the_interval_over_seeds_covers_the_mean_of_all_seeds():
    drawn = np.random.default_rng(0).normal(50, 4, size=(400, 3))
    frame = pd.concat([rows(scores).assign(variant=number) for number, scores in enumerate(drawn)])
    found = over_seeds(frame, ["variant"])
    assert ((found["low"] < 50) & (found["high"] > 50)).mean() == pytest.approx(0.95, abs=0.03)


@pytest.mark.parametrize(("scores", "seeds"), [([41.0], 1), ([41.0] * 5, 5)])
def test_one_seed_and_equal_seeds_leave_the_items(scores, seeds):
    wide = over_seeds(rows(scores, 2.5), ["variant"])
    assert wide.to_numpy().tolist() == [["a", 41, 38.5, 43.5, seeds]]


def test_one_seed_without_items_has_no_interval():
    found = over_seeds(pd.concat([rows([41.0]), rows([41.0, 41.0]).assign(variant="b")]), ["variant"])
    assert found["score"].tolist() == [41, 41]
    assert found[["low", "high"]].isna().all(axis=1).tolist() == [True, False]
    figure = figures.lines(found.assign(step=1), "step", "score", hue="variant", low="low", high="high")
    drawn = figures.estimates(found, "variant", "score")
    assert len(figure.axes[0].lines) == 2
    bars = [bar for container in drawn.axes[0].containers for bar in container[2][0].get_segments()]
    assert [len(bar) for bar in bars] == [0, 2], "the point of one seed has no bar"


def test_more_seeds_do_not_narrow_what_the_items_leave_open():
    few, many = (over_seeds(rows([50.0, 50.1] * count, half=3.0), ["variant"]) for count in (2, 200))
    assert 6 <= (many["high"] - many["low"]).item() < (few["high"] - few["low"]).item() < 6.1


def test_an_interval_that_was_cut_at_100_points_is_as_wide_as_its_other_side():
    cut = rows([98.0], half=4.0).assign(high=100.0)
    assert over_seeds(cut, ["variant"])[["low", "high"]].to_numpy().tolist() == [[94, 102]]


def test_groups_stand_in_the_order_of_their_first_rows_and_none_is_lost():
    frame = rows([3.0, 1.0, 2.0], type=["z", None, "a"]).assign(seed=0, variant=["b", "b", "a"])
    found = over_seeds(frame, ["variant", "type"])
    assert found["score"].tolist() == [3, 1, 2]
    assert found["type"].isna().tolist() == [False, True, False]
    assert over_seeds(frame.rename(columns={"score": "loss"}), ["variant", "type"], "loss")["loss"].tolist() == [
        3,
        1,
        2,
    ]


@pytest.mark.parametrize(
    ("frame", "by", "message"),
    [
        (rows([1.0]).drop(columns="seed"), ["variant"], r"rows: expected the columns variant, seed, score.*Add seed\."),
        (rows([1.0]), ["variant", "task"], r"Add task\."),
        (rows([1.0, 2.0]).assign(seed=0), ["variant"], r"by: expected columns that leave one row a seed.*Name more"),
    ],
)
def test_rows_that_do_not_suit_are_refused(frame, by, message):
    with pytest.raises(InvalidValueError, match=message):
        over_seeds(frame, by)
