"""Curves as numbers: by hand, against a fine grid, and on a real training's curve."""

import numpy as np
import pandas as pd
import pytest
from training_tools import stage, tiny, trained

from workbook.errors import InvalidValueError
from workbook.experiments import area, over_seeds, steps_to_reach
from workbook.training import Evaluator


def curve(steps, scores, **columns):
    return pd.DataFrame({"variant": "a", "seed": 0, "step": steps, "score": scores} | columns)


BY = ["variant", "seed"]
FOUR = [curve([0, 25, 100], [10, 50, 60], variant=variant, seed=seed) for variant in "ab" for seed in (0, 1)]


def test_the_area_is_the_mean_height():
    """Unevenly measured, in any order of rows: 25 steps at 30 on average, and 75 at 55."""
    rows = pd.concat([*FOUR[:3], FOUR[3].iloc[::-1].assign(score=[5, 7, 9])], ignore_index=True)
    found = area(rows, BY)
    assert found.columns.tolist() == ["variant", "seed", "score"]
    assert found[BY].to_numpy().tolist() == [["a", 0], ["a", 1], ["b", 0], ["b", 1]]
    assert found["score"].tolist() == [48.75, 48.75, 48.75, (8 * 25 + 6 * 75) / 100]


def test_the_area_is_that_of_a_fine_grid():
    draw = np.random.default_rng(0)
    steps, scores = np.unique(draw.integers(5, 400, 12)), draw.normal(size=12)
    fine = np.linspace(steps[0], steps[-1], 200_001)
    mean = np.interp(fine, steps, scores[: len(steps)]).mean()
    assert area(curve(steps, scores[: len(steps)]), BY)["score"][0] == pytest.approx(mean, abs=1e-4)


def test_the_area_does_not_depend_on_the_unit_of_the_steps():
    one, thousand = (area(curve(np.array([0, 1, 3]) * unit, [1, 2, 0]), BY)["score"][0] for unit in (1, 1000))
    assert one == pytest.approx(thousand)
    assert area(curve([7, 8, 10], [1, 2, 0]), BY)["score"][0] == pytest.approx(one)


@pytest.mark.parametrize(
    ("level", "steps"),
    [(5, 0), (10, 0), (30, 12.5), (50, 25), (55, 62.5), (60, 100), (60.01, np.nan)],
)
def test_where_a_curve_crosses_a_level(level, steps):
    found = steps_to_reach(pd.concat(FOUR), level, BY)
    assert found.columns.tolist() == ["variant", "seed", "steps"]
    np.testing.assert_array_equal(found["steps"], [steps] * 4)


def test_the_first_crossing_counts():
    """Also where the curve falls again, is level, or was measured at other steps than another."""
    assert steps_to_reach(curve([0, 10, 20, 30], [0, 4, 0, 8]), 3, BY)["steps"][0] == 7.5
    assert steps_to_reach(curve([0, 10, 20], [0, 2, 2]), 2, BY)["steps"][0] == 10
    assert steps_to_reach(curve([3], [2]), 2, BY)["steps"][0] == 3
    both = pd.concat([curve([0, 10], [0, 10]), curve([0, 50], [0, 10], variant="b")])
    assert steps_to_reach(both, 5, BY)["steps"].tolist() == [5, 25]


def test_means_over_seeds():
    rows = pd.concat([curve([0, 10], [0, 10]), curve([0, 10], [0, 20], seed=1), curve([0, 10], [0, 4], variant="b")])
    found = over_seeds(steps_to_reach(rows, 5, BY), ["variant"], "steps")
    assert found["steps"].tolist()[0] == 3.75
    assert np.isnan(found["steps"].tolist()[1])
    assert over_seeds(area(rows, BY), ["variant"])["score"].tolist() == [7.5, 2]


def test_of_a_training(own):
    """The curve that a evaluator makes, from before the first step."""
    seen = iter(range(100))
    evaluator = Evaluator("count", 2, lambda model: {"score": next(seen)})
    made = trained(stage(own, "reconstruction", steps=6), model=tiny("anchor"), evaluator=evaluator).curve
    assert made["step"].tolist() == [0, 2, 4, 6]
    assert area(made, ["stage"])["score"].tolist() == [1.5]
    assert steps_to_reach(made, 2.5, ["stage"])["steps"].tolist() == [5]


@pytest.mark.parametrize("function", [area, lambda rows, by: steps_to_reach(rows, 1, by)])
def test_rows_that_make_no_curves(function):
    with pytest.raises(InvalidValueError, match=r"rows: expected the columns variant, seed, step, score, .* Add step"):
        function(FOUR[0].drop(columns="step"), BY)
    with pytest.raises(InvalidValueError, match="expected columns that leave one row a step"):
        function(pd.concat(FOUR), ["variant"])
    for wrong in (np.nan, np.inf):
        with pytest.raises(InvalidValueError, match="expected a finite number as score and step in every row, got"):
            function(curve([0, 1], [1, wrong]), BY)
    with pytest.raises(InvalidValueError, match="expected a finite number as score and step in every row, got 'none'"):
        function(curve([], []), BY)


def test_curves_that_can_not_be_compared():
    with pytest.raises(InvalidValueError, match="expected curves of at least two steps, got 1"):
        area(curve([0], [1]), BY)
    rows = pd.concat([curve([0, 1, 2], [1, 2, 3]), curve([0, 2], [1, 2], variant="b")])
    with pytest.raises(InvalidValueError, match=r"same steps, \[0.0, 1.0, 2.0\], got .*\[0.0, 2.0\] for \('b', 0\)"):
        area(rows, BY)


@pytest.mark.parametrize("level", [np.nan, np.inf, True, None, "50"])
def test_a_level_that_is_none(level):
    with pytest.raises(InvalidValueError, match="level: expected a number in the units of score"):
        steps_to_reach(FOUR[0], level, BY)
