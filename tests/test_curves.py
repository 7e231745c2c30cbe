"""Curves as quantities: by hand, and on a real training's curve."""

import numpy as np
import pandas as pd
import pytest
from training_tools import stage, tiny, trained

from workbook.errors import InvalidValueError
from workbook.evaluation.effects import Quantity, effect
from workbook.evaluation.outcomes import Outcomes
from workbook.experiments import heights, steps_to_reach
from workbook.experiments.suite import curve, kept_along
from workbook.training import Evaluator

ITEMS = np.linspace(-1, 1, 20)
NAMES = {"ours": "A", "theirs": "B"}


def rows(variant, steps, scores, seed=0, source="recorded", spread=0.0):
    """A curve of 20 items around each score."""
    made = [Outcomes.of_values(score + spread * ITEMS, range(20)) for score in scores]
    columns = {"source": source, "variant": variant, "seed": seed, "trained": True}
    return pd.DataFrame({**columns, "step": steps, "score": scores, "outcomes": made})


def value(quantity, seed=0):
    """The quantity under one seed, the mean over its tasks."""
    return np.mean([one.score for one in quantity.by_seed[seed].values()])


BOTH = pd.concat(
    [
        rows(name, [0, 25, 100], scores, seed)
        for seed in (0, 1)
        for name, scores in (("A", [10, 50, 60]), ("B", [0, 9, 30]))
    ]
)


def test_the_height_is_the_mean_over_the_measurements():
    found = heights(BOTH, NAMES | {"absent": "C"})
    assert list(found) == ["ours", "theirs"]
    assert [value(found[name], seed) for name in found for seed in (0, 1)] == [40, 40, 13, 13]
    gap = effect({"ours": 1.0, "theirs": -1.0}, found)
    assert (gap.value, gap.error, gap.items, gap.seeds) == (27, 0, 60, 2)


def test_what_an_item_does_at_every_step_does_not_average_out():
    (found,) = heights(rows("A", [0, 1, 2, 3], [1, 2, 3, 4], spread=3.0), {"it": "A"}).values()
    one = Quantity(found.by_seed, trained=False)
    expected = 3 * ITEMS.std(ddof=1) / np.sqrt(20)
    assert effect({"it": 1.0}, {"it": one}, 10_000).error == pytest.approx(expected, rel=0.03)


def test_curves_measured_at_other_steps_are_not_compared():
    both = pd.concat([rows("A", [0, 1], [1, 2]), rows("B", [0, 2], [1, 2])])
    with pytest.raises(InvalidValueError, match=r"the same tasks, \['0', '1'\], got \['0', '2'\]"):
        effect({"ours": 1.0, "theirs": -1.0}, heights(both, NAMES))


@pytest.mark.parametrize(
    ("scores", "level", "step"),
    [
        ([10, 50, 60], 5, 0),  # it begins above
        ([10, 50, 60], 30, 12.5),
        ([10, 50, 60], 50, 25),
        ([10, 50, 60], 55, 62.5),
        ([10, 50, 60], 61, 100),  # it never gets there: the last step
        ([10, 50, 20], 30, 12.5),  # the first crossing counts
    ],
)
def test_where_a_curve_crosses_the_end_of_the_baseline(scores, level, step):
    frame = pd.concat([rows("A", [0, 25, 100], scores), rows("B", [0, 100], [0, level])])
    found = steps_to_reach(frame, NAMES, "B")
    assert value(found["ours"]) == pytest.approx(step)
    assert value(found["theirs"]) == 100


def test_rows_may_stand_in_any_order():
    found = steps_to_reach(BOTH.sample(frac=1, random_state=2), NAMES, "B")
    assert [value(found["ours"], seed) for seed in (0, 1)] == [12.5, 12.5]


def test_each_seed_has_its_own_level_and_the_record_goes_before_the_rerun():
    frame = pd.concat(
        [
            *(rows("A", [0, 10], [0, 10], seed) for seed in (0, 1)),
            *(rows("B", [0, 10], [0, end], seed) for seed, end in ((0, 2), (1, 5))),
            rows("A", [0, 10], [9, 10], 0, "this run"),
        ]
    )
    found = steps_to_reach(frame, NAMES, "B")["ours"]
    assert [value(found, seed) for seed in (0, 1)] == pytest.approx([2, 5])


def test_curve_and_level_are_resampled_together():
    """Where the same items are easy for both, the step is the same in every resample; by itself the level is not."""
    same = pd.concat([rows("A", [0, 10], [0, 10], spread=2.0), rows("B", [0, 10], [0, 5], spread=2.0)])
    (found,) = steps_to_reach(same, {"ours": "A"}, "B")["ours"].by_seed[0].values()
    np.testing.assert_allclose(found.resampled(), 5)
    apart = pd.concat([same.query("variant == 'A'"), rows("B", [0, 10], [0, 5])])
    (found,) = steps_to_reach(apart, {"ours": "A"}, "B")["ours"].by_seed[0].values()
    # The curve rises by one a step, so that the step moves as the mean of its items does.
    assert found.resampled().std() == pytest.approx(2 * ITEMS.std() / np.sqrt(20), rel=0.05)
    assert found.score == pytest.approx(5)
    alone = effect({"it": 1.0}, {"it": Quantity.of(found)})
    assert alone.error == pytest.approx(2 * ITEMS.std(ddof=1) / np.sqrt(20), rel=0.05)
    assert (alone.items, alone.freedom) == (20, 19)


def test_curves_without_outcomes_have_a_reason():
    frame = BOTH.assign(outcomes=[Outcomes.none(score, "It was not kept.") for score in BOTH["score"]])
    for found in (steps_to_reach(frame, NAMES, "B"), heights(frame, NAMES)):
        gap = effect({"ours": 1.0, "theirs": -1.0}, found)
        assert (gap.error, gap.why) == (None, "It was not kept.")
    assert effect({"ours": 1.0}, steps_to_reach(frame, NAMES, "B")).value == 12.5


def test_a_baseline_without_a_seed_of_the_others_is_named():
    with pytest.raises(InvalidValueError, match=r"the seeds of ours, got 'B without \[1\]'"):
        steps_to_reach(BOTH.query("variant == 'A' or seed == 0"), NAMES, "B")
    with pytest.raises(InvalidValueError, match=r"'C without \[0, 1\]'"):
        steps_to_reach(BOTH, NAMES, "C")


def test_of_a_training(own):
    """What an evaluator keeps along the way comes back as rows, from before the first step."""
    seen = iter(range(100))

    def measure(model):
        return kept_along({"count": Outcomes.of_values(next(seen) + ITEMS, range(20))})

    evaluator = Evaluator("count", 2, measure)
    made = trained(stage(own, "reconstruction", steps=6), model=tiny("anchor"), evaluator=evaluator).curve
    found = curve(made).assign(source="this run", variant="A", seed=0)
    assert found[["metric", "task"]].drop_duplicates().to_numpy().tolist() == [["curve", "count"]]
    assert found["step"].tolist() == [0, 2, 4, 6]
    assert found["score"].tolist() == pytest.approx([0, 1, 2, 3])
    assert value(heights(found, {"it": "A"})["it"]) == pytest.approx(1.5)
    assert value(steps_to_reach(found, {"it": "A"}, "A")["it"]) == pytest.approx(6)
    np.testing.assert_allclose(found["outcomes"].iloc[3].values, 3 + ITEMS, atol=2e-3)
