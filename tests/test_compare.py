"""Numbers for verdicts: from the right source, and paired where seeds and units are the same."""

import numpy as np
import pandas as pd
import pytest

from workbook import papers
from workbook.experiments import compared, differences, estimate, judged, nv_embed, over_seeds, paired
from workbook.experiments.llm2vec import above_uni
from workbook.papers import claims


def rows(source="recorded", **by_variant):
    """One score a seed."""
    found = [(source, variant, seed, score) for variant, scores in by_variant.items() for seed, score in scores.items()]
    return pd.DataFrame(found, columns=["source", "variant", "seed", "score"])


LIVE = rows("this run", Bi={7: 99.0})


def test_the_record_goes_before_the_rerun():
    both = pd.concat([rows(Bi={0: 1.0, 1: 3.0}), LIVE])
    assert judged(both)["score"].tolist() == [1.0, 3.0]
    assert judged(LIVE)["score"].tolist() == [99.0]
    assert estimate(over_seeds(both, ["source", "variant"]), "Bi")[0] == 2.0


def test_estimate_takes_the_highest_of_what_is_left():
    summary = rows(Uni={0: 1.0}).assign(low=0.0, high=2.0, pooling="mean")
    summary = pd.concat([summary, summary.assign(score=5.0, low=4.0, high=6.0, pooling="last-token")])
    assert estimate(summary, "Uni") == (5.0, 4.0, 6.0)
    assert estimate(summary, "Uni", pooling="mean") == (1.0, 0.0, 2.0)
    assert estimate(summary, "Bi") is None


def test_paired_differences_know_nothing_of_what_seeds_share():
    found = paired(rows(Uni={0: 10.0, 1: 20.0, 2: 60.0}, Bi={0: 11.0, 1: 21.5, 2: 60.5}), "Bi", "Uni")
    assert found[0] == pytest.approx(1.0)
    assert found[2] - found[0] == pytest.approx(4.302653 * 0.5 / 3**0.5, rel=1e-5)  # Student's t, two degrees


def test_an_untrained_variant_meets_every_seed():
    grid = rows(Uni={0: 10.0}, Bi={0: 11.0, 1: 12.0, 2: 13.0})
    assert paired(grid, "Bi", "Uni")[0] == pytest.approx(2.0)
    assert paired(grid, "Uni", "Bi")[0] == pytest.approx(-2.0)
    assert paired(grid, "Bi", "FULL") is None


def test_quantities_and_their_paired_differences():
    grid = rows(Uni={0: 10.0, 1: 20.0}, Bi={0: 11.0, 1: 21.0})
    found = compared(grid, {"causal": "Uni", "bidirectional": "Bi", "trained": "FULL"})
    assert set(found) == {*("causal", "bidirectional", "trained")} | {
        f"{a} - {b}" for a in ("causal", "bidirectional", "trained") for b in ("causal", "bidirectional", "trained")
        if a != b
    }  # fmt: skip
    assert found["causal"] == estimate(over_seeds(grid, ["source", "variant"]), "Uni")
    assert found["bidirectional - causal"] == (1.0, 1.0, 1.0)
    assert found["causal - bidirectional"] == (-1.0, -1.0, -1.0)
    assert found["trained"] is found["trained - causal"] is None


def test_differences_are_paired_task_by_task():
    first = rows(Uni={0: 10.0, 1: 20.0, 2: 60.0}, Bi={0: 11.0, 1: 21.5, 2: 60.5}).assign(task="one")
    grid = pd.concat([first, first.assign(task="two", score=-first["score"]), first.assign(task="three")])
    found = differences(
        grid, {"mask off": ("Bi", "Uni"), "absent": ("Bi", "Echo")}, {"two": "2", "one": "1", "four": "4"}
    )
    assert found[["pair", "task"]].to_numpy().tolist() == [["mask off", "2"], ["mask off", "1"]]
    expected = paired(first, "Bi", "Uni")
    assert found.loc[1, ["points", "low", "high"]].tolist() == pytest.approx(expected)
    assert found.loc[0, ["points", "low", "high"]].tolist() == pytest.approx([-expected[0], -expected[2], -expected[1]])


def test_variants_of_notebook_03_are_read_back_from_their_names():
    names = pd.Series([variant.name for variant in nv_embed.POOLING.variants])
    assert len(set(names)) == 16
    read = nv_embed.parts(names)
    assert [nv_embed.name(*row) for row in read.itertuples(index=False)] == names.tolist()
    for variant, row in zip(nv_embed.POOLING.variants, read.itertuples(index=False), strict=True):
        assert variant.options == {"pooling": nv_embed.POOLINGS[row.pooling], "attention": row.mask}
        assert len(variant.stages) == row.stage


def test_shuffled_clusters_are_far_from_nothing():
    """Small clusters agree by chance: with as many clusters as texts they would wholly."""
    chance = nv_embed.shuffled_clusters("cpu")
    assert list(chance) == ["PackageClustering", "TopicClustering"]
    assert all(40 < score < 75 for score in chance.values())


def test_one_seed_alone_proves_nothing():
    """50.00 against 50.01 is no finding where nothing tells how far the next seed would fall."""
    grid = rows(Uni={0: 50.0}, Bi={0: 50.01})
    summary = over_seeds(grid, ["source", "variant"])
    measured = {"a": estimate(summary, "Bi"), "b": estimate(summary, "Uni")}
    gap = {"a - b": paired(grid, "Bi", "Uni")}
    assert gap["a - b"] == pytest.approx((0.01, np.nan, np.nan), nan_ok=True)
    claim = claims.Claim(id="c", paper="P", place="table 1", statement="s", rule=["a > b"], scale="cpu")
    for found in (measured, gap):
        assert claims.judge(claim, found, scale="cpu").verdict == "not tested without an interval"


def test_paired_by_unit_the_same_sentences_make_no_doubt():
    counts = {"sentence": range(4), "words": [2, 5, 3, 10]}
    first = pd.DataFrame({**counts, "correct": [2, 1, 3, 0]})
    second = first.assign(correct=first["correct"] - np.array([1, 0, 0, 0]))
    both = pd.concat([first.assign(variant="Bi"), second.assign(variant="Uni")]).assign(source="recorded", seed=0)
    value, low, high = paired(both, "Bi", "Uni")
    assert value == pytest.approx(100 * 1 / 20)
    share = 1 / 20
    error = np.sqrt(sum((gap - share * n) ** 2 for gap, n in zip([1, 0, 0, 0], counts["words"], strict=True))) / 20
    assert (high - low) / 2 == pytest.approx(100 * 1.959964 * error, rel=1e-5)


def test_gains_over_the_causal_model_beside_the_paper():
    paper = papers.published("llm2vec_mteb").query("benchmark == 'MTEB subset of 15' and pooling == 'mean'")
    table = above_uni(paper, pd.DataFrame({"variant": ["Bi", "Uni"], "score": [36.0, 40.0]}))
    assert list(table.columns) == ["LLaMA-2-7B", "Mistral-7B", "S-LLaMA-1.3B", "here"]
    assert table.loc["Bi"].round(2).tolist() == [-7.61, 7.07, -2.77, -4.0]  # table 5
    assert (table.loc["Uni"] == 0).all()
    words = above_uni(papers.published("llm2vec_words"), pd.DataFrame({"variant": ["Bi"], "score": [36.0]}))
    assert "BERT-large" not in words  # no causal row to compare with
    assert words.loc["Bi + MNTP", "S-LLaMA-1.3B"] == pytest.approx((90.51 + 96.59 + 92.04 - 86.10 - 96.09 - 90.89) / 3)
