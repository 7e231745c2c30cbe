"""Numbers for verdicts: from the right source, with intervals over items and seeds, and paired by both."""

import math

import numpy as np
import pandas as pd
import pytest

from workbook import figures, papers
from workbook.errors import MissingDataError
from workbook.evaluation.effects import effect
from workbook.evaluation.outcomes import Outcomes
from workbook.evaluation.suites import SUITES
from workbook.experiments import (
    differences,
    judged,
    learned,
    levels,
    nv_embed,
    paired,
    quantities,
    quantity,
    side_by_side,
)
from workbook.experiments.llm2vec import above_uni

ITEMS = np.linspace(-1, 1, 20)


def rows(source="recorded", task="task", trained=True, **by_variant):
    """One row a seed: a score, and twenty items around it."""
    found = [
        (source, variant, seed, task, score, Outcomes.of_values(score + ITEMS, [f"{task} {n}" for n in range(20)]))
        for variant, scores in by_variant.items()
        for seed, score in scores.items()
    ]
    frame = pd.DataFrame(found, columns=["source", "variant", "seed", "task", "score", "outcomes"])
    return frame.assign(trained=trained)


LIVE = rows("this run", Bi={7: 99.0})
TRAINED = rows(Uni={0: 10.0, 1: 20.0, 2: 60.0}, Bi={0: 11.0, 1: 21.5, 2: 60.5})


def test_the_record_goes_before_the_rerun():
    both = pd.concat([rows(Bi={0: 1.0, 1: 3.0}), LIVE])
    assert judged(both)["score"].tolist() == [1.0, 3.0]
    assert judged(LIVE)["score"].tolist() == [99.0]
    assert set(quantities(both, {"it": "Bi"})["it"].by_seed) == {0, 1}


def test_quantities_are_those_that_were_measured():
    found = quantities(TRAINED, {"causal": "Uni", "bidirectional": "Bi", "trained": "FULL"})
    assert list(found) == ["causal", "bidirectional"]
    assert {seed: one["task"].score for seed, one in found["causal"].by_seed.items()} == pytest.approx(
        {0: 10, 1: 20, 2: 60}
    )
    assert found["causal"].trained


def test_a_quantity_on_a_suite_is_the_mean_over_its_tasks():
    tasks = SUITES["docs"].tasks
    frame = pd.concat([rows(task=task, Bi={0: score}) for score, task in enumerate([*tasks, "another"])])
    assert list(quantity(frame, "docs").by_seed[0]) == list(tasks)
    assert list(quantity(frame, "another").by_seed[0]) == ["another"]
    several = tasks[1], "another"
    assert list(quantity(frame, several).by_seed[0]) == list(several)
    assert levels(frame, {several: "both", ("another", "absent"): "no"})[["task", "score"]].values.tolist() == [
        ["both", pytest.approx((1 + len(tasks)) / 2)]
    ]
    assert list(quantity(frame).by_seed[0]) == [*tasks, "another"]
    with pytest.raises(MissingDataError, match=f"Expected outcomes of {tasks[1]}, found none for seed 0"):
        quantity(frame[frame["task"] != tasks[1]], "docs")


def test_paired_differences_know_nothing_of_what_seeds_and_items_share():
    found = paired(TRAINED, "Bi", "Uni")
    assert found.value == pytest.approx(1.0)
    assert found.high - found.value == pytest.approx(4.302653 * 0.5 / 3**0.5, rel=1e-5)  # Student's t, two degrees


def test_an_untrained_variant_meets_every_seed():
    grid = pd.concat([rows(trained=False, Uni={0: 10.0}), rows(Bi={0: 11.0, 1: 12.0, 2: 13.0})])
    assert paired(grid, "Bi", "Uni").value == pytest.approx(2.0)
    assert paired(grid, "Uni", "Bi").value == pytest.approx(-2.0)
    assert paired(grid, "Bi", "Uni").seeds == 3
    assert paired(grid, "Bi", "FULL") is None


def test_differences_are_paired_task_by_task():
    tasks = {"one": 1.0, "two": -1.0, "three": 1.0}
    grid = pd.concat(
        [rows(task=t, Uni={0: 10 * by, 1: 20 * by}, Bi={0: 11 * by, 1: 21.5 * by}) for t, by in tasks.items()]
    )
    found = differences(grid, {"mask off": ("Bi", "Uni"), "absent": ("Bi", "Echo")}, {"two": "2", "one": "1"})
    assert found[["pair", "task"]].to_numpy().tolist() == [["mask off", "2"], ["mask off", "1"]]
    for row, task in zip(found.itertuples(), ("two", "one"), strict=True):
        gap = paired(grid, "Bi", "Uni", task)
        assert row[3:] == (gap.value, gap.low, gap.high, gap.detectable)
    assert found["points"].tolist() == pytest.approx([-1.25, 1.25])


def test_levels_have_intervals_over_items_and_seeds():
    grid = pd.concat([TRAINED, rows(trained=False, Base={0: 5.0}), LIVE])
    found = levels(grid, {"task": "Tasks"})
    assert found[["source", "variant", "task", "seeds"]].to_numpy().tolist() == [
        *(["recorded", name, "Tasks", seeds] for name, seeds in (("Uni", 3), ("Bi", 3), ("Base", 1))),
        ["this run", "Bi", "Tasks", 1],
    ]
    assert found["score"].tolist() == pytest.approx([30, 31, 5, 99])
    assert found["items"].tolist() == [20] * 4
    alone = effect({"it": 1.0}, {"it": quantity(TRAINED[TRAINED["variant"] == "Bi"])})
    assert found.loc[1, ["low", "high"]].tolist() == pytest.approx([alone.low, alone.high])
    assert found.loc[3, ["low", "high"]].isna().all(), "one training alone has no interval"
    assert levels(grid, {"absent": "", "docs": "docs"}).empty
    drawn = figures.estimates(found.iloc[1:], "variant", "score")
    bars = [bar for container in drawn.axes[0].containers for bar in container[2][0].get_segments()]
    assert sorted(len(bar) for bar in bars) == [0, 2, 2], "nor a bar"


def test_levels_of_a_suite_and_by_other_columns():
    tasks = SUITES["docs"].tasks
    frame = pd.concat([rows(task=task, Bi={0: 1.0, 1: 2.0}) for task in tasks])
    frame = pd.concat([frame.assign(pooling=pooling) for pooling in ("mean", "EOS")])
    found = levels(frame, {"docs": "in-domain", tasks[0]: "retrieval"}, ["variant", "pooling"])
    assert found[["pooling", "task", "items"]].to_numpy().tolist() == [
        [pooling, task, items] for pooling in ("mean", "EOS") for task, items in (("in-domain", 60), ("retrieval", 20))
    ]


def test_a_model_that_did_not_learn_is_told_by_its_held_out_loss():
    chance = math.log(32)
    losses = {"Bi": {0: chance - 0.2, 1: chance - 0.7}, "Uni": {0: chance - 0.2, 1: chance - 0.9}}
    frame = rows(**losses, Ran={0: 1.0, 1: math.nan})
    assert learned(frame) == {
        "Bi": "Bi did not learn: its loss on held-out pairs is 3.02 (chance 3.47).",
        "Uni": "",
        "Ran": "Ran did not learn: its loss on held-out pairs is nan (chance 3.47).",
    }
    assert learned(frame, above=2.0)["Uni"]


def test_what_did_not_learn_or_may_not_have_is_not_tested():
    frame = pd.concat([TRAINED, rows(trained=False, Base={0: 5.0})])
    names = {"uni": "Uni", "bi": "Bi", "base": "Base"}
    for learning, whys in (
        ({"Uni": "", "Bi": "It did not."}, ["", "It did not.", ""]),
        ({"Uni": ""}, ["", "Whether Bi learned was not measured.", ""]),
        ({}, ["Whether Uni learned was not measured.", "Whether Bi learned was not measured.", ""]),
        (None, ["", "", ""]),
    ):
        found = quantities(frame, names, learning=learning)
        assert [found[name].why for name in names] == whys
        gap = effect({"bi": 1.0, "base": -1.0}, found)
        assert (gap.error is None, gap.why) == (bool(whys[1]), whys[1])


def test_what_rests_on_a_stale_record_says_so():
    found = quantities(TRAINED.assign(stale=TRAINED["variant"] == "Bi"), {"uni": "Uni", "bi": "Bi"})
    assert (found["uni"].caveat, found["bi"].caveat) == ("", "It rests on a record of an earlier recipe.")
    gap = effect({"bi": 1.0, "uni": -1.0}, found)
    assert gap.error is not None
    assert gap.caveat == found["bi"].caveat


def test_outcomes_that_were_not_kept_leave_the_number():
    frame = TRAINED.assign(outcomes=[Outcomes.none(score, "An old record.") for score in TRAINED["score"]])
    found = paired(frame, "Bi", "Uni")
    assert (found.value, found.error, found.why) == (pytest.approx(1.0), None, "An old record.")
    assert levels(frame, {"task": "Tasks"})[["low", "high"]].isna().all(axis=None)
    assert differences(frame, {"gap": ("Bi", "Uni")}, {"task": ""})["points"].tolist() == pytest.approx([1.0])


def test_variants_of_notebook_03_are_read_back_from_their_names():
    names = pd.Series([variant.name for variant in nv_embed.POOLING.variants])
    assert len(set(names)) == 20
    read = nv_embed.parts(names)
    assert [nv_embed.name(*row) for row in read.itertuples(index=False)] == names.tolist()
    for variant, row in zip(nv_embed.POOLING.variants, read.itertuples(index=False), strict=True):
        assert variant.options == {**nv_embed.POOLINGS[row.pooling], "attention": row.mask}
        assert len(variant.stages) == row.stage


def staged(losses, gains, seeds=3):
    """A record of ways to run the stages beside the untrained model: loss, and retrieval of 40 unlike queries."""
    random, made = np.random.default_rng(0), []
    start = random.random(40) / 2
    for variant, loss in {"untrained": 3.0, **losses}.items():
        for seed in range(seeds if variant in losses else 1):
            found = start + gains.get(variant, 0) + random.normal(0, 0.01, 40) * (variant in losses)
            own = {"variant": variant, "seed": seed, "trained": variant in losses, "source": "recorded"}
            outcomes = Outcomes.of_values(found, range(40), factor=100)
            score = {"metric": "score", "task": "DocsRetrieval", "outcomes": outcomes, "score": outcomes.score}
            made += [own | score, own | {"metric": "loss", "task": "held-out pairs", "score": loss}]
    return pd.DataFrame(made)


def test_what_finds_clearly_more_than_the_untrained_model_has_learned():
    """Where the loss with in-batch negatives, which stage two does not train on, stays near its bar.

    The gain is a fifth of what queries differ by: it is clear where they are paired.
    """
    rows = staged({"two stages": 2.99, "single stage": 2.99, "reversed": 2.0}, {"two stages": 0.03, "reversed": -0.2})
    said = nv_embed.learning(rows, rows)
    assert said["two stages"] == said["reversed"] == ""
    assert "its loss on held-out pairs is 2.99" in said["single stage"]
    assert "Nor is its retrieval clearly above the untrained model's." in said["single stage"]
    once = staged({"two stages": 2.99}, {"two stages": 0.03}, seeds=1)
    assert nv_embed.learning(once, once)["two stages"].endswith("is not known.")
    alone = rows[rows["variant"] != "untrained"]
    others = {key: why for key, why in said.items() if key != "untrained"}
    assert nv_embed.learning(alone, rows) == others
    assert nv_embed.learning(alone.assign(source="this run"), rows) == others
    with pytest.raises(MissingDataError, match="Expected a model called 'untrained' among 03_recipes's"):
        nv_embed.learning(alone, alone)


def test_gains_over_the_causal_model_beside_the_paper():
    paper = papers.published("llm2vec_mteb").query("benchmark == 'MTEB subset of 15' and pooling == 'mean'")
    table = above_uni(paper, pd.DataFrame({"variant": ["Bi", "Uni"], "score": [36.0, 40.0]}))
    assert list(table.columns) == ["LLaMA-2-7B", "Mistral-7B", "S-LLaMA-1.3B", "here"]
    assert table.loc["Bi"].round(2).tolist() == [-7.61, 7.07, -2.77, -4.0]  # table 5
    assert (table.loc["Uni"] == 0).all()
    words = above_uni(papers.published("llm2vec_words"), pd.DataFrame({"variant": ["Bi"], "score": [36.0]}))
    assert "BERT-large" not in words  # no causal row to compare with
    assert words.loc["Bi + MNTP", "S-LLaMA-1.3B"] == pytest.approx((90.51 + 96.59 + 92.04 - 86.10 - 96.09 - 90.89) / 3)


def test_a_variant_does_not_differ_from_itself():
    [gap] = differences(TRAINED, {"Uni - Uni": ("Uni", "Uni")}, {"task": "task"}).itertuples()
    assert (gap.points, gap.low, gap.high) == (0, 0, 0)


def test_differences_are_the_pairs_one_by_one():
    tasks = {"one": "first", "other": "second"}
    frame = pd.concat([rows(task="one", Uni={0: 1.0, 1: 2.5}, Bi={0: 3.0, 1: 3.5}), rows(task="other", Uni={0: 7.0})])
    found = differences(frame, {"a": ("Bi", "Uni"), "b": ("Uni", "Bi"), "c": ("Bi", "absent")}, tasks)
    assert list(zip(found["pair"], found["task"], strict=True)) == [("a", "first"), ("b", "first")]
    for row, pair in zip(found.itertuples(), (("Bi", "Uni"), ("Uni", "Bi")), strict=True):
        alone = paired(frame, *pair, "one")
        assert (row.points, row.low, row.high) == pytest.approx((alone.value, alone.low, alone.high))


def test_differences_side_by_side_keep_the_order_of_pairs_and_tasks():
    frame = pd.concat([rows(task="one", A={0: 1.0, 1: 2.5}, B={0: 3.04, 1: 3.5}, C={0: 7.0, 1: 8.0}),
                       rows(task="two", A={0: 9.0, 1: 8.0}, B={0: 2.0, 1: 2.0})])  # fmt: skip
    pairs = {"b - a": ("B", "A"), "a - c": ("A", "C"), "a - b": ("A", "B")}
    found = differences(frame, pairs, {"two": "Z", "one": "B"})
    wide = side_by_side(found)
    assert list(wide.index) == list(pairs)
    assert list(wide.columns) == [(number, task) for number in ("points", "low", "high") for task in ("Z", "B")]
    for row in found.itertuples():
        of_task = wide.loc[row.pair].xs(row.task, level="task")
        assert of_task.tolist() == pytest.approx([row.points, row.low, row.high], abs=0.0501)
    assert wide["points"].loc["a - c"].isna().tolist() == [True, False]
