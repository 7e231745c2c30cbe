"""Evaluation: mteb's scores, intervals against a naive bootstrap, instructions, suites, and bad input."""

import random
from collections import Counter

import mteb
import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset
from mteb.abstasks import AbsTaskPairClassification
from mteb.abstasks.clustering_legacy import AbsTaskClusteringLegacy
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score

import workbook
from workbook.corpora import authored
from workbook.errors import InvalidValueError, MissingDataError, UnknownNameError
from workbook.evaluation import SUITES, average, compare, evaluate, tasks
from workbook.evaluation.intervals import of_resampled
from workbook.evaluation.outcomes import Outcomes, average_precision, mean, spearman, units
from workbook.scale import get_scale

QUICK = get_scale("quick").model_copy(update={"resamples": 100})
"""Few resamples; and room for instructions, of which the tiny backbones make a token a byte."""
LONG = QUICK.model_copy(update={"max_length": 192})


def build(method="mean"):
    return workbook.build(method, "tiny-llama", dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def model():
    return build()


@pytest.fixture(scope="module")
def encoder():
    return workbook.backbones.load_encoder("minilm", device="cpu")


@pytest.fixture(scope="module")
def plain(model, docs):
    """A model on the whole suite, without instructions."""
    return evaluate(model, scale=QUICK, instructions=None, name="tiny")


# The frame


def test_one_row_a_task_of_every_type(plain):
    columns = ["model", "suite", "task", "type", "metric", "score", "low", "high", "items", "seconds"]
    assert list(plain.columns) == columns
    assert tuple(plain["task"]) == SUITES["docs"].tasks
    assert set(plain["type"]) == {
        "Retrieval", "Reranking", "PairClassification", "Clustering", "Classification", "STS"
    }  # fmt: skip
    assert (plain["model"] == "tiny").all()
    assert (plain["low"] < plain["score"]).all()
    assert (plain["score"] < plain["high"]).all()
    assert plain["score"].abs().max() <= 100
    assert plain["score"].max() > 10, "points, not fractions"


def test_scores_are_those_of_mteb(plain, model):
    before = model.max_seq_length
    model.max_seq_length = QUICK.max_length
    try:
        result = mteb.evaluate(model, tasks("docs", QUICK), cache=None, co2_tracker=False, show_progress_bar=False)
    finally:
        model.max_seq_length = before
    expected = {task.task_name: 100 * task.get_score() for task in result.task_results}
    assert dict(zip(plain["task"], plain["score"], strict=True)) == pytest.approx(expected, abs=0.01)


def test_again_and_alone_it_gives_the_same_and_leaves_no_trace(plain, model):
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    expected = random.random(), np.random.rand(), torch.rand(1).item()
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    names = ["TopicClustering", "ReviewClassification", "ParaphraseLadder"]
    again = evaluate(model, names, scale=QUICK, instructions=None, name="tiny")
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == expected
    assert model.max_seq_length == 512
    same = ["task", "score", "low", "high", "items"]
    pd.testing.assert_frame_equal(again[same], plain[plain["task"].isin(names)][same].reset_index(drop=True))


def test_unnamed_models_do_not_share_results(plain):
    other = evaluate(build("last-token"), "ParaphraseLadder", scale=QUICK, instructions=None)
    assert other["score"].item() != plain["score"].iloc[-1]


# A second, naive implementation


def test_retrieval_and_sts_by_hand(plain, model):
    model.max_seq_length = QUICK.max_length
    retrieval, *_, sts = tasks("docs", QUICK)
    data = retrieval.dataset["default"]["test"]
    queries, documents = (model.encode(list(data[part]["text"])) for part in ("queries", "corpus"))
    one, two = (model.encode(list(sts.dataset["test"][column])) for column in ("sentence1", "sentence2"))
    model.max_seq_length = 512

    gains = []
    for query, name in zip(queries, data["queries"]["id"], strict=True):
        similarity = documents @ query / np.linalg.norm(documents, axis=1)
        rank = 1 + (similarity > similarity[list(data["corpus"]["id"]).index(name)]).sum()
        gains.append(1 / np.log2(1 + rank) if rank <= 10 else 0)
    assert plain["score"].iloc[0] == pytest.approx(100 * np.mean(gains), abs=0.01)

    cosine = (one * two).sum(axis=1) / np.linalg.norm(one, axis=1) / np.linalg.norm(two, axis=1)
    expected = spearmanr(cosine, sts.dataset["test"]["score"]).statistic
    assert plain["score"].iloc[-1] == pytest.approx(100 * expected, abs=0.01)


@pytest.mark.parametrize("ties", [False, True])
def test_statistics_over_counts_are_those_over_drawn_rows(ties):
    random = np.random.default_rng(3)
    values = random.normal(size=30).round(0 if ties else 9)
    grades, labels = random.integers(0, 6, 30).astype(float), random.integers(0, 2, 30).astype(float)
    drawn = random.integers(30, size=(20, 30))
    counts = np.stack([np.bincount(row, minlength=30) for row in drawn]).astype(float)
    expected = [values[row].mean() for row in drawn]
    np.testing.assert_allclose(mean(counts, values), expected)
    expected = [spearmanr(values[row], grades[row]).statistic for row in drawn]
    np.testing.assert_allclose(spearman(counts, values, grades), expected)
    expected = [average_precision_score(labels[row], values[row]) for row in drawn]
    np.testing.assert_allclose(average_precision(counts, values, labels), expected)


def test_intervals_are_those_of_a_naive_bootstrap():
    right = np.random.default_rng(0).integers(0, 2, 40).astype(float)
    outcomes = Outcomes(right.mean(), "mean", right, None, None, 40, "", "", resamples=4000, seed=1)
    naive = [np.random.default_rng(seed).choice(right, 40).mean() for seed in range(4000)]
    assert of_resampled(outcomes.resampled()) == pytest.approx(1.96 * np.std(naive), rel=0.05)


def test_items_of_a_group_are_drawn_together():
    values, groups = np.repeat([0.0, 1.0, 1.0, 0.0], 5), np.repeat(np.arange(4), 5)
    outcomes = Outcomes(0.5, "mean", values, None, groups, 20, "", "", resamples=50, seed=1)
    assert set(outcomes.resampled()) <= {0, 0.25, 0.5, 0.75, 1}


@pytest.mark.parametrize(
    ("statistic", "values", "gold"), [("spearman", [1, 1], [0, 1]), ("average_precision", [1, 2], [0, 0])]
)
def test_what_is_undefined_has_no_interval(statistic, values, gold):
    undefined = Outcomes(np.nan, statistic, np.array(values), np.array(gold), None, 2, "", "", resamples=10, seed=0)
    assert not undefined.reproduces_score()
    assert np.isnan(of_resampled(undefined.resampled()))


# Comparing


def test_a_model_does_not_differ_from_itself(plain):
    frame = compare(plain, plain)
    assert list(frame["task"]) == [*plain["task"], "average"]
    assert (frame[["difference", "low", "high"]] == 0).all(axis=None)


def test_paired_differences(plain):
    other = evaluate(build("last-token"), ["DocsRetrieval", "DocsReranking"], scale=QUICK, instructions=None)
    frame = compare(plain.round(6), other)
    expected = plain["score"].iloc[:2].to_numpy() - other["score"].to_numpy()
    np.testing.assert_allclose(frame["difference"], [*expected, expected.mean()], atol=1e-6)
    one, two = (source.attrs["outcomes"]["DocsRetrieval"] for source in (plain, other))
    drawn = np.random.default_rng([0, *one.units.encode()]).integers(QUICK.queries, size=(100, QUICK.queries))
    naive = [(one.values[row] - two.values[row]).mean() for row in drawn]
    assert frame["high"].iloc[0] - frame["difference"].iloc[0] == pytest.approx(198.4 * np.std(naive, ddof=1), rel=0.01)
    widths = frame["high"] - frame["low"]
    assert widths.iloc[2] > 0.71 * widths.iloc[:2].mean(), "tasks over the same queries are not independent"


def test_tasks_over_the_same_queries_share_their_draws(plain):
    outcomes = plain.attrs["outcomes"]
    named = {task: outcome.units for task, outcome in outcomes.items()}
    assert named["DocsRetrieval"] == named["DocsReranking"] == named["DocsPairs"]
    assert len(set(named.values())) == 4


def made(texts, values, statistic="mean", resamples=2000):
    """A frame of tasks as evaluate gives it, one outcome for each text."""
    outcomes = {
        name: Outcomes(np.mean(value), statistic, value, None, None, len(value), units(text), name, resamples, 0)
        for name, text, value in zip("abc", texts, values, strict=False)
    }
    sizes = {"score": [100 * np.mean(value) for value in values], "items": [len(value) for value in values]}
    frame = pd.DataFrame({"model": "made", "task": list(outcomes), "type": "", "metric": "", **sizes, "seconds": 1.5})
    frame.attrs["outcomes"] = outcomes
    return frame


def test_tasks_over_other_items_are_independent():
    values = np.random.default_rng(0).integers(0, 2, 40).astype(float)
    ours, others = [f"ours {i}" for i in range(40)], [f"other {i}" for i in range(40)]
    frame = made([ours, ours, others], [values] * 3)
    same, again, other = (outcome.resampled() for outcome in frame.attrs["outcomes"].values())
    np.testing.assert_array_equal(same, again)
    assert abs(np.corrcoef(same, other)[0, 1]) < 0.1


@pytest.mark.parametrize("statistic", ["mean", "replicates"])
@pytest.mark.parametrize(("texts", "factor"), [(["x", "x"], 1), (["x", "y"], 0.5**0.5)])
def test_the_average_is_narrower_over_unrelated_tasks_only(statistic, texts, factor):
    values = np.random.default_rng(0).integers(0, 2, 10).astype(float)
    first, second = (made(texts, [v] * 2, statistic, 10_000) for v in (values, np.zeros(10)))
    frame = compare(first, second)
    widths = (frame["high"] - frame["low"]).to_numpy()
    alone = widths[:2].mean() / (2.262 if statistic == "replicates" else 1.96) * 1.96
    assert widths[2] == pytest.approx(factor * alone, rel=0.02)


def test_only_the_same_items_can_be_compared(plain, model):
    other = evaluate(model, "DocsRetrieval", scale=QUICK, instructions=None, seed=1)
    with pytest.raises(InvalidValueError, match="DocsRetrieval: expected the texts, seed and resamples of first"):
        compare(plain, other)
    with pytest.raises(InvalidValueError, match="Compare before"):
        compare(plain, pd.concat([plain, other]))
    with pytest.raises(InvalidValueError, match="with one of the tasks"):
        compare(plain[plain["type"] == "STS"], other)


# Averaging


@pytest.mark.parametrize("statistic", ["mean", "replicates"])
@pytest.mark.parametrize("texts", [["x", "x", "x"], ["x", "y", "x"], ["x", "y", "z"]])
def test_an_average_is_the_difference_from_a_model_that_scores_nothing(statistic, texts):
    values = np.random.default_rng(1).integers(0, 2, (3, 40)).astype(float)
    scores, nothing = (made(texts, list(v), statistic) for v in (values, np.zeros_like(values)))
    (found,) = average(scores).itertuples(index=False)
    expected = compare(scores, nothing).iloc[-1]
    assert (found.model, found.task, found.type, found.metric) == ("made", "average", "", "")
    assert (found.items, found.seconds) == (120, 4.5)
    assert (found.score, found.low, found.high) == pytest.approx(tuple(expected[["difference", "low", "high"]]))


def test_an_average_does_not_depend_on_the_order_and_is_narrower_than_its_tasks(plain):
    (found,) = average(plain).itertuples(index=False)
    assert list(average(plain).columns) == list(plain.columns)
    assert found.score == pytest.approx(plain["score"].mean())
    assert found.items == plain["items"].sum()
    (turned,) = average(plain[::-1]).itertuples(index=False)
    assert turned[5:8] == pytest.approx(found[5:8])
    widths = (plain["high"] - plain["low"]).to_numpy()
    assert widths.mean() > found.high - found.low > np.sqrt((widths**2).sum()) / len(widths)


def test_an_average_of_one_task_is_that_task(plain):
    (task,), (found,) = plain[2:3].itertuples(index=False), average(plain[2:3]).itertuples(index=False)
    assert (found.score, found.items) == (pytest.approx(task.score), task.items)
    assert found.high - found.low == pytest.approx(task.high - task.low, rel=0.02)


def test_an_average_over_a_task_without_items_has_no_interval(plain):
    scores = plain.copy()
    unknown = Outcomes(0.5, "none", np.zeros(0), None, None, 0, "", "", resamples=10, seed=0)
    scores.attrs["outcomes"] = plain.attrs["outcomes"] | {"DocsPairs": unknown}
    (found,) = average(scores).itertuples(index=False)
    assert found.score == pytest.approx(plain["score"].mean())
    assert np.isnan([found.low, found.high]).all()


def test_only_what_evaluate_gave_can_be_averaged(plain):
    for scores in (pd.concat([plain, average(plain)]), plain[:0], {"task": []}):
        with pytest.raises(InvalidValueError, match=r"scores: expected a frame as evaluate gave it.*before pd\.concat"):
            average(scores)


# Instructions


def test_queries_carry_the_instruction_and_no_text_is_read_twice(model, monkeypatch):
    read = Counter()
    preprocess = model[0].preprocess

    def spy(texts, prompt=None, **kwargs):
        read.update((text, prompt or None) for text in texts)
        return preprocess(texts, prompt=prompt, **kwargs)

    monkeypatch.setattr(model[0], "preprocess", spy)
    frame = evaluate(model, scale=LONG)
    assert max(read.values()) == 1
    known = authored.instructions("docs").set_index("task")["instruction"]
    assert {prompt for _, prompt in read} == {None, *known[list(frame["task"])]}
    data = tasks("DocsRetrieval", LONG)[0].dataset["default"]["test"]
    assert all((text, known["DocsRetrieval"]) in read for text in data["queries"]["text"])
    assert all((text, None) in read for text in data["corpus"]["text"])
    assert sum(prompt is None for _, prompt in read) == len(data["corpus"])
    assert frame["score"].notna().all()


def test_a_bare_instruction_goes_to_decoders_alone(encoder):
    small = QUICK.model_copy(update={"queries": 4, "documents": 8, "texts": 24, "pairs": 12, "resamples": 10})
    frame = compare(evaluate(encoder, scale=small), evaluate(encoder, scale=small, instructions=None))
    assert (frame["difference"] == 0).all()
    with pytest.raises(InvalidValueError, match=r"begins with Transformer instead of a Decoder, got 'docs'.*prompts"):
        evaluate(encoder, scale=small, instructions="docs")


@pytest.mark.parametrize("suite", SUITES)
def test_every_task_of_a_suite_has_its_instruction(suite):
    frame = authored.instructions(SUITES[suite].instructions)
    evaluated = frame[frame["source"].str.contains("evaluation")]
    assert set(SUITES[suite].tasks) <= set(evaluated["task"])


# Suites


def test_the_papers_suites_are_complete():
    sizes = {name: len(set(suite.tasks)) for name, suite in SUITES.items()}
    assert sizes == {"docs": 6, "english": 11, "llm2vec-15": 15, "mini-41": 41, "lens-7": 7, "mteb-56": 56}
    benchmark = {task.metadata.name for task in mteb.get_benchmark("MTEB(eng, v1)").tasks}
    assert set(SUITES["mteb-56"].tasks) == benchmark
    for name in ("llm2vec-15", "mini-41", "lens-7"):
        assert set(SUITES[name].tasks) <= benchmark
    made = tasks("lens-7")
    assert [task.metadata.name for task in made] == list(SUITES["lens-7"].tasks)


def test_a_smaller_scale_takes_a_part_of_a_larger_one(docs):
    small, large = (tasks("docs", scale) for scale in ("quick", "cpu"))
    for part in ("queries", "corpus"):
        one, other = (set(made[0].dataset["default"]["test"][part]["id"]) for made in (small, large))
        assert one < other
    for number, column in ((3, "sentences"), (5, "sentence2")):
        assert set(small[number].dataset["test"][column]) < set(large[number].dataset["test"][column])
    assert set(docs.split("test")["id"]) >= other


def test_tasks_are_balanced(docs):
    made = {task.metadata.name: task.dataset for task in tasks("docs", "cpu")}
    assert len(set(Counter(made["TopicClustering"]["test"]["labels"]).values())) == 1
    for split in ("train", "test"):
        assert np.mean(made["ReviewClassification"][split]["label"]) == 0.5
    reranking = made["DocsReranking"]["default"]["test"]
    assert {len(set(ids)) for ids in reranking["top_ranked"].values()} == {10}
    assert all(query in ids for query, ids in reranking["top_ranked"].items())
    pairs = made["DocsPairs"]["test"]
    assert len(set(zip(pairs["sentence1"], pairs["sentence2"], strict=True))) == len(pairs)


def test_a_sentence_encoder_is_far_above_a_random_decoder(plain, encoder):
    frame = compare(evaluate(encoder, ["DocsReranking", "ParaphraseLadder"], scale=QUICK), plain)
    assert (frame["low"] > 0).all()


def test_the_smallest_classification_tells_a_sentence_encoder_from_chance(encoder):
    frame = evaluate(encoder, "ReviewClassification", scale=QUICK)
    assert frame["items"].item() >= 64
    assert frame["low"].item() > 50


def test_data_that_are_nowhere_are_said_with_ways_out(model, monkeypatch):
    monkeypatch.delenv("WORKBOOK_DATA", raising=False)
    with pytest.raises(MissingDataError, match=r"STSBenchmark were looked for.*sts-test\.csv.*WORKBOOK_DATA.*Ways out"):
        evaluate(model, "STSBenchmark", scale=QUICK)
    with pytest.raises(MissingDataError, match="CQADupstack"):
        evaluate(model, "CQADupstackRetrieval", scale=QUICK)


def published(kind, data, **attributes):
    """A task of mteb as it would be after its data came from the Hub."""

    class Task(kind):
        metadata = mteb.get_tasks([attributes.pop("name")])[0].metadata

    task = Task()
    task.dataset, task.data_loaded = {"test": Dataset.from_dict(data)}, True
    return task


def test_older_forms_of_tasks_have_intervals_too(model, monkeypatch):
    """Pairs in a single row under a max_ metric, and clustering of many sets, as the papers' suites have them."""
    texts = [f"{noun} {verb}" for noun in ("cats", "dogs", "cars") for verb in ("sleep", "eat", "stand", "shine")]
    pairs = {"sentence1": [texts], "sentence2": [texts[1:] + texts[:1]], "labels": [[1, 1, 1, 0] * 3]}
    sets = {"sentences": [texts, texts[:8]], "labels": [["a"] * 4 + ["b"] * 4 + ["c"] * 4, ["a"] * 4 + ["b"] * 4]}
    made = [
        published(AbsTaskPairClassification, pairs, name="SprintDuplicateQuestions"),
        published(AbsTaskClusteringLegacy, sets, name="TwentyNewsgroupsClustering"),
    ]
    monkeypatch.setattr("workbook.evaluation.run.tasks", lambda *_: made)
    frame = evaluate(model, "lens-7", scale=LONG, instructions=None)
    assert list(frame["metric"]) == ["max_ap", "v_measure"]
    assert list(frame["items"]) == [12, 2]
    assert frame[["low", "high"]].notna().all(axis=None)


# Bad input


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"suite": "dosc"}, UnknownNameError, "Did you mean 'docs'"),
        ({"suite": "STSBenchmrk"}, UnknownNameError, "STSBenchmark"),
        ({"suite": ["NoSuchTask"]}, UnknownNameError, "Any task of mteb works too"),
        ({"suite": []}, InvalidValueError, "suite: expected one of docs"),
        ({"suite": ""}, InvalidValueError, "suite: expected one of docs"),
        ({"suite": None}, InvalidValueError, "suite: expected one of docs"),
        ({"suite": [3]}, InvalidValueError, "suite: expected one of docs"),
        ({"scale": "quik"}, UnknownNameError, "Did you mean 'quick'"),
        ({"scale": 3}, UnknownNameError, "quick, cpu, night, gpu, paper"),
        ({"instructions": "llm2vce"}, UnknownNameError, "Did you mean 'llm2vec'"),
        ({"batch_size": 0}, InvalidValueError, "positive whole number"),
        ({"batch_size": True}, InvalidValueError, "positive whole number"),
        ({"model": "mean"}, InvalidValueError, "a SentenceTransformer, got 'mean'"),
    ],
)
def test_bad_input_is_named(model, arguments, error, message):
    with pytest.raises(error, match=message):
        evaluate(**{"model": model, **arguments})


@pytest.mark.parametrize("suite", ["DocsRetrieval", "DocsReranking", "DocsPairs", "ParaphraseLadder"])
def test_vectors_that_are_not_finite_get_no_score(suite):
    ill = build()
    ill[0].decoder.norm.weight.data[0] = float("nan")
    told = rf"vectors of {suite}: expected finite numbers, got .NaN or inf for (\d+) of \1 texts, the first '\S"
    with pytest.raises(InvalidValueError, match=told):
        evaluate(ill, suite, scale=QUICK)
