"""Published tables by dataset and by model: each sum is checked, and where papers differ is said by name."""

import mteb
import pandas as pd
import pytest

from workbook import papers
from workbook.errors import DamagedFileError, UnknownNameError
from workbook.files import ROOT
from workbook.papers import leaderboard, tables

TYPES = {
    "Retrieval": 15,
    "Reranking": 4,
    "Clustering": 11,
    "PairClassification": 3,
    "Classification": 12,
    "STS": 10,
    "Summarization": 1,
}
KEYS = {
    "llm2vec": ["model", "attention", "training", "pooling"],
    "nv_embed": ["model"],
    "lens": ["model"],
    "causal2vec": ["model", "method"],
    "anchor": ["model", "variant"],
}
"""What tells the columns of a paper's table of datasets apart."""

GTE, BGE = "Gte-Qwen2-7B-instruct", "Bge-en-icl (zero shot)"
EIGHT, THREE, QWEN = "LLaMA-3.1-8B-Instruct", "LLaMA-3.2-3B-Instruct", "Qwen2.5-1.5B-Instruct"
GAPS = {
    "llm2vec": {},
    "nv_embed": {
        (BGE, "Clustering"): -0.065,
        (GTE, "Clustering"): 0.178,
        (GTE, "average"): 0.033,
        ("NV-Embed-v1", "Reranking"): 0.050,
    },
    "lens": {("BGE-en-ICL", "Clustering"): -0.065, ("gte-Qwen2-7B-instruct", "Clustering"): 0.178},
    "causal2vec": {},
    "anchor": {
        (EIGHT, "baseline", "Clustering"): 0.951,
        (EIGHT, "baseline", "Reranking"): -0.032,
        (EIGHT, "baseline", "Retrieval"): -0.015,
        (THREE, "anchor", "Summarization"): -0.170,
        (QWEN, "baseline", "PairClassification"): 1.437,
    },
}
"""Score printed for a type less the mean of its datasets, where that is more than rounding."""

BOARD = leaderboard.reported()


@pytest.mark.parametrize("paper", KEYS)
def test_scores_by_type_follow_from_the_datasets_but_for_those_named(paper):
    datasets, types = papers.published(f"{paper}_datasets"), papers.published(f"{paper}_mteb")
    if "benchmark" in types:
        types = types[types["benchmark"] == "MTEB"]
    single = datasets[datasets["task"] != "average"]
    known = {task.metadata.name: task.metadata.type for task in mteb.get_benchmark("MTEB(eng, v1)").tasks}
    assert single["task"].map(known).equals(single["task_type"])
    means = single.groupby([*KEYS[paper], "task_type"])["score"].agg(["mean", "size"]).reset_index()
    means = means[means["size"] == means["task_type"].map(TYPES)]
    whole = single.groupby(KEYS[paper])["score"].agg(["mean", "size"]).reset_index()
    whole = whole[whole["size"] == 56].assign(task_type="average")
    assert whole.empty == (paper == "lens")
    found = pd.concat([means, whole]).merge(types, how="left", on=[*KEYS[paper], "task_type"])
    assert len(found) == (3 * 7 if paper == "lens" else 8 * len(whole))
    assert found["score"].notna().all()
    gaps = (found["score"] - found["mean"]).set_axis(pd.MultiIndex.from_frame(found[[*KEYS[paper], "task_type"]]))
    assert gaps[gaps.abs() > 0.0101].to_dict() == pytest.approx(GAPS[paper], abs=0.0006)
    both = datasets[datasets["task"] == "average"].merge(types, on=[*KEYS[paper], "task_type"])
    assert len(both) == datasets["task"].eq("average").sum()
    assert (both["score_x"] == both["score_y"]).all()


def test_misprinted_types_of_anchor_make_two_averages_right():
    """Of three cells in which the first stage seemed to harm or help most, the datasets tell another story."""
    scores = papers.published("anchor_datasets").query("task != 'average'")
    means = scores.groupby(["model", "task_type", "variant"])["score"].mean().unstack()
    gain = (means["anchor"] - means["baseline"]).round(2)
    printed = papers.published("anchor_mteb").pivot(index=["model", "task_type"], columns="variant", values="score")
    printed = (printed["anchor"] - printed["baseline"]).round(2)
    cells = [(EIGHT, "Clustering"), (QWEN, "PairClassification"), (THREE, "Summarization")]
    assert printed[cells].tolist() == [-0.61, 1.36, -0.17]
    assert gain[cells].tolist() == [0.34, 2.80, 0.00]
    assert sorted(gain.index[gain < 0]) == [(THREE, "STS"), (QWEN, "Summarization")]


def test_two_papers_print_the_same_numbers_of_the_same_models():
    """LENS and NV-Embed share five models: 49 datasets, and not one digit of difference."""
    ours = papers.published("lens_datasets").query("task != 'average'")
    theirs = papers.published("nv_embed_datasets").query("task != 'average'")
    names = BOARD[BOARD["paper"].isin(["LENS", "NV-Embed"])].set_index("printed")["model"].to_dict()
    both = ours.assign(name=ours["model"].map(names)).merge(
        theirs.assign(name=theirs["model"].map(names)), on=["name", "task"]
    )
    assert len(both) == 5 * 49
    assert (both["score_x"] == both["score_y"]).all()
    hybrid = papers.published("lens_hybrid").merge(ours, on=["model", "task"])
    assert len(hybrid) == 3 * 15
    assert (hybrid["score_x"] == hybrid["score_y"]).all()
    labels = papers.published("nv_embed_labels").query("documents == 'examples'").merge(theirs, on="task")
    labels = labels[labels["model"] == "NV-Embed-v2"]
    assert len(labels) == 16
    assert (labels["score_x"] == labels["score_y"]).all()


@pytest.mark.parametrize("table", ["nv_embed_mteb", "llm2vec_others", "anchor_others"])
def test_averages_of_other_models_follow_from_the_types_but_for_those_named(table):
    frame = papers.published(table)
    scores = frame.pivot(index="model", columns="task_type", values="score")
    assert frame["tasks"].eq(frame["task_type"].map(TYPES | {"average": 56})).all()
    gaps = scores["average"] - (scores[list(TYPES)] * pd.Series(TYPES)).sum(axis=1) / 56
    gritlm = {"GritLM Mistral-7b-v1 + public data": 0.027}
    named = {"nv_embed_mteb": {BGE: 0.014, "E5-mistral-7b-instruct": -0.010}}.get(table, gritlm)
    assert gaps[gaps.abs() > 0.0101].to_dict() == pytest.approx(named, abs=0.0005)


def test_metrics_are_the_main_scores_of_mteb():
    codes = {"nDCG@10": "ndcg_at_10", "MAP": "map_at_1000", "AP": "max_ap", "Spearman": "cosine_spearman"}
    found = BOARD[BOARD["task_type"] != "average"].drop_duplicates(["task_type", "metric"])
    said = {kind: codes.get(metric, metric.lower().replace("-", "_")) for kind, metric in
            found[["task_type", "metric"]].itertuples(index=False)}  # fmt: skip
    tasks = mteb.get_benchmark("MTEB(eng, v1)").tasks
    main = {task.metadata.type: task.metadata.main_score.removeprefix("max_over_subqueries_") for task in tasks}
    assert said == main


def test_air_bench_is_the_same_in_two_papers():
    frame = papers.published("nv_embed_air_bench")
    assert dict(frame[["part", "metric"]].drop_duplicates().values) == {"QA": "nDCG@10", "Long-Doc": "Recall@10"}
    for part, total in (("QA", 8), ("Long-Doc", 15)):
        rows = frame[frame["part"] == part]
        tasks = rows.drop_duplicates("domain").set_index("domain")["tasks"]
        scores = rows.pivot(index="model", columns="domain", values="score")
        assert tasks["average"] == tasks.drop("average").sum() == total
        means = (scores[tasks.index] * tasks).drop(columns="average").sum(axis=1) / total
        assert scores["average"].to_dict() == pytest.approx(means.to_dict(), abs=0.0101)
    names = BOARD.set_index("printed")["model"].to_dict() | {"Bge-en-icl (zero-shot)": "bge-en-icl, zero-shot"}
    theirs = papers.published("lens_air_bench")
    both = [rows.assign(name=rows["model"].map(names)) for rows in (frame[frame["part"] == "QA"], theirs)]
    both = both[0].merge(both[1], on=["name", "domain"])
    assert len(both) == 8 * 9
    assert (both["score_x"] == both["score_y"]).all()


def test_compression_loses_less_than_a_smaller_model_and_one_difference_is_misprinted():
    frame = papers.published("nv_embed_compression")
    table = {number: rows for number, rows in frame.groupby(frame["source"].str.split().str[-1])}
    pruned = table["6"].pivot(index=["criterion", "sparsity"], columns="retraining", values="score")
    assert (pruned["labels"] > pruned["none"]).sum() == 8  # all but one gain; the one loses 0.15
    assert pruned["none"].unstack()["unstructured"].idxmax() == "sparsegpt"
    distilled = table["7"].pivot(index="sparsity", columns="retraining", values="score")
    assert distilled["labels"].equals(pruned["labels"]["sparsegpt"].rename("labels"))
    assert (distilled["labels+distillation"] > distilled["labels"]).all()
    wide = table["8"].pivot(index=["model", "sparsity"], columns="precision", values="score")
    assert wide.loc["NV-Embed-v2", "16bit"].to_dict() == distilled["labels+distillation"].to_dict()
    change = (100 * (wide.div(wide["16bit"], axis=0) - 1)).round(2)
    assert (change.loc["NV-Embed-v2", "INT8"].abs() < 0.02).all()
    assert (change.drop("NV-Embed-v2")["INT8"] <= -0.1).all()
    assert change.loc[("NV-Embed-v2", "2:4"), "E5M2"] == -0.04  # printed as 0.03


# The board


def test_every_model_has_one_method_and_one_backbone():
    assert BOARD.groupby("model")[["method", "backbone"]].nunique().eq(1).all(axis=None)
    assert not BOARD.duplicated(["paper", "table", "model", "task_type"]).any()
    assert set(BOARD["baseline"]) - {"none"} <= set(BOARD["model"])
    places = BOARD.drop_duplicates(["paper", "table", "printed"])["paper"].value_counts().to_dict()
    assert places == {"LLM2Vec": 48, "Causal2Vec": 26, "Anchor": 20, "NV-Embed": 18, "LENS": 15}


@pytest.mark.parametrize(
    "table", ["llm2vec_mteb", "llm2vec_others", "nv_embed_mteb", "lens_mteb", "causal2vec_mteb", "anchor_mteb"]
)
def test_every_row_of_a_table_of_models_has_a_name(table):
    frame = papers.published(table)
    frame = frame[frame["benchmark"] == "MTEB"] if "benchmark" in frame else frame
    rows = frame[["source", "task_type", "score"]].assign(source=frame["source"].str.split(", table "))
    printed = {(paper, number, kind, score) for (paper, number), kind, score in rows.itertuples(index=False)}
    assert printed <= set(BOARD[["paper", "table", "task_type", "score"]].itertuples(index=False, name=None))


def test_papers_disagree_on_four_models_alone():
    found = leaderboard.disagreements(BOARD)
    gaps = found[found["gap"] > 0].set_index(["model", "task_type"])["gap"].to_dict()
    assert gaps == {
        ("BERT, untrained", "PairClassification"): 5.33,
        ("BERT, untrained", "Classification"): 0.88,
        ("voyage-large-2-instruct", "STS"): 0.27,
        ("voyage-large-2-instruct", "average"): 0.05,
        ("NV-Embed-v1", "Reranking"): 0.05,
        ("E5-Mistral-7B", "STS"): 0.03,
        ("E5-Mistral-7B", "Retrieval"): 0.01,
    }
    first = found.iloc[0]
    assert (first["low_place"], first["high_place"]) == ("LLM2Vec, table 1", "Causal2Vec, table 6")
    assert (found["gap"].diff().dropna() <= 0).all()
    average = found[found["task_type"] == "average"].set_index("model")
    assert len(average) == 27
    assert average.loc["LLM2Vec Mistral-7B", ["places", "papers"]].tolist() == [5, 4]


def test_one_name_is_several_models():
    found = leaderboard.disagreements(BOARD, ["method", "backbone"]).query("task_type == 'average'")
    found = found[found["backbone"] == "Mistral-7B"].set_index("method")["gap"]
    expected = {"NV-Embed": 8.13, "bge-en-icl": 6.57, "E5": 2.07, "GritLM": 2.06}
    assert found[list(expected)].to_dict() == expected
    data = BOARD[BOARD["data"].isin(["public", "non-public"])].groupby("model")["data"].nunique()
    assert list(data.index[data > 1]) == ["GritLM-7B"]  # public to LENS, not to LLM2Vec
    with pytest.raises(UnknownNameError, match="Did you mean 'method'"):
        leaderboard.disagreements(BOARD, ["methods"])


def test_gains_over_the_papers_own_baselines():
    found = leaderboard.gains(BOARD).query("task_type == 'average'").set_index("model")
    assert (
        found["gain"].to_dict().items()
        >= {
            "LLM2Vec Mistral-7B": 1.60,
            "LLM2Vec Mistral-7B, MNTP and SimCSE": 14.34,
            "NV-Embed-v1": 0.35,
            "NV-Embed-v2": 0.60,
            "LENS-4000": -0.02,
            "LENS-8000": 0.39,
            "Causal2Vec S-LLaMA-1.3B": 0.89,
            "Anchor LLaMA-3.1-8B-Instruct": 1.24,
        }.items()
    )
    named = BOARD[(BOARD["baseline"] != "none") & (BOARD["task_type"] == "average")]
    assert len(found) == len(named) == 16 + 2 + 2 + 1 + 5


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("v2,NV-Embed-v2,", "v3,NV-Embed-v2,", "each row of nv_embed_mteb once at most, got 'NV-Embed-v3'"),
        ("LENS-4000,LENS-4000", "LENS-8000,LENS-4000", "each row of lens_mteb once at most, got 'LENS-8000'"),
        (",non-public,", ",private,", "data to be one of none, unlabelled, .*, got 'private'"),
        ("lens_mteb,", "lens,", "table to be one of echo_untrained, .*, got 'lens'"),
        ("table,printed,", "file,printed,", "the columns"),
    ],
)  # fmt: skip
def test_a_damaged_list_of_models_is_refused(monkeypatch, tmp_path, right, wrong, message):
    folder = tmp_path / "data" / "published"
    folder.mkdir(parents=True)
    for table in tables.PUBLISHED:
        (folder / f"{table}.csv").write_bytes((ROOT / "data" / "published" / f"{table}.csv").read_bytes())
    content = (ROOT / "data" / "published" / "models.csv").read_text()
    assert right in content
    (folder / "models.csv").write_text(content.replace(right, wrong))
    monkeypatch.setattr("workbook.files.ROOT", tmp_path)
    with pytest.raises(DamagedFileError, match=message):
        leaderboard.reported()
