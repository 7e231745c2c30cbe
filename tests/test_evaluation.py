"""Evaluation: mteb's scores with their outcomes by item, comparisons, instructions, suites, and bad input."""

import random
from collections import Counter

import mteb
import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset
from mteb.abstasks import AbsTaskPairClassification, AbsTaskSTS
from mteb.abstasks.clustering_legacy import AbsTaskClusteringLegacy
from scipy.stats import spearmanr, t

import workbook
from workbook.corpora import authored
from workbook.errors import InvalidValueError, MissingDataError, UnknownNameError
from workbook.evaluation import OFFLINE_SUITES, SUITES, average, compare, evaluate, instructions_of, tasks
from workbook.evaluation.effects import Quantity, effect
from workbook.evaluation.encoder import Encoder
from workbook.evaluation.outcomes import Outcomes
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
    """A model on both offline suites, without instructions."""
    return evaluate(model, scale=QUICK, instructions=None, name="tiny")


# The frame


def test_one_row_a_task_of_every_type(plain):
    columns = ["model", "suite", "task", "type", "metric", "score", "low", "high", "items", "seconds"]
    assert list(plain.columns) == columns
    assert dict(plain.groupby("suite")["task"].agg(tuple)) == {name: SUITES[name].tasks for name in OFFLINE_SUITES}
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
        result = mteb.evaluate(
            model, tasks(OFFLINE_SUITES, QUICK), cache=None, co2_tracker=False, show_progress_bar=False
        )
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
    retrieval, *_, sts = tasks(OFFLINE_SUITES, QUICK)
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


def test_intervals_are_those_of_effects(plain):
    outcomes = plain.attrs["outcomes"]
    assert all(one.reproduces_score() for one in outcomes.values())
    for row in plain.itertuples():
        found = effect({"it": 1.0}, {"it": Quantity.of(outcomes[row.task])}, QUICK.resamples)
        assert (row.low, row.high) == (max(found.low, -100), min(found.high, 100))


@pytest.mark.filterwarnings("ignore:An input array is constant")
def test_vectors_that_are_all_equal_have_no_correlation():
    blind = build()
    blind[0].decoder.norm.weight.data.zero_()
    frame = evaluate(blind, "ParaphraseLadder", scale=QUICK)
    assert frame[["score", "low", "high"]].isna().all(axis=None)
    assert compare(frame, frame)[["difference", "low", "high"]].isna().all(axis=None)


# Comparing


def test_a_model_does_not_differ_from_itself(plain):
    frame = compare(plain, plain)
    assert list(frame["task"]) == [*plain["task"], *OFFLINE_SUITES]
    assert (frame[["difference", "low", "high", "detectable"]] == 0).all(axis=None)


def test_paired_differences(plain):
    other = evaluate(build("last-token"), ["DocsRetrieval", "DocsReranking"], scale=QUICK, instructions=None)
    frame = compare(plain.round(6), other)
    expected = plain["score"].iloc[:2].to_numpy() - other["score"].to_numpy()
    np.testing.assert_allclose(frame["difference"], [*expected, expected.mean()], atol=1e-6)
    assert list(frame["task"]) == ["DocsRetrieval", "DocsReranking", "docs"]
    one, two = (source.attrs["outcomes"]["DocsRetrieval"] for source in (plain, other))
    gaps = one.values - two.values
    error = 100 * gaps.std(ddof=1) / np.sqrt(len(gaps))
    half = frame["high"].iloc[0] - frame["difference"].iloc[0]
    assert half == pytest.approx(t.ppf(0.975, len(gaps) - 1) * error, rel=0.3)  # of a hundred resamples
    widths = frame["high"] - frame["low"]
    assert widths.iloc[2] > 0.71 * widths.iloc[:2].mean(), "tasks over the same queries are not independent"


def test_tasks_over_the_same_queries_share_their_draws(plain):
    named = {task: outcome.units for task, outcome in plain.attrs["outcomes"].items()}
    assert named["DocsRetrieval"] == named["DocsReranking"] == named["DocsPairs"]
    assert len(set(named.values())) == 4


def test_only_the_same_items_can_be_compared(plain, model):
    few = evaluate(model, "DocsRetrieval", scale=QUICK.model_copy(update={"queries": 5}), instructions=None)
    with pytest.raises(InvalidValueError, match="quantities on DocsRetrieval: expected the same items"):
        compare(plain, few)
    with pytest.raises(InvalidValueError, match="Compare before"):
        compare(plain, pd.concat([plain, few]))
    with pytest.raises(InvalidValueError, match="with one of the tasks"):
        compare(plain[plain["type"] == "STS"], few)


# Averaging


def test_suites_are_averaged_apart(plain):
    found = average(plain)
    assert list(found.columns) == list(plain.columns)
    assert found[["task", "suite", "type", "metric"]].to_numpy().tolist() == [
        [name, name, "", ""] for name in OFFLINE_SUITES
    ]
    for name, row in zip(OFFLINE_SUITES, found.itertuples(), strict=True):
        part = plain[plain["suite"] == name]
        assert row.score == pytest.approx(part["score"].mean())
        assert (row.items, row.seconds) == (part["items"].sum(), pytest.approx(part["seconds"].sum()))
        assert part["low"].mean() < row.low < row.score < row.high < part["high"].mean()
    turned = average(plain[::-1]).set_index("task").loc[list(OFFLINE_SUITES)]
    assert turned[["score", "low", "high"]].to_numpy() == pytest.approx(found[["score", "low", "high"]].to_numpy())


def test_single_tasks_make_no_average(plain, model):
    assert average(plain[2:3]).empty
    assert average(evaluate(model, ["DocsRetrieval", "ParaphraseLadder"], scale=QUICK, instructions=None)).empty


def test_an_average_over_a_task_without_items_has_no_interval(plain):
    scores = plain.copy()
    unknown = Outcomes.none(50.0, "It can't be taken apart.")
    scores.attrs["outcomes"] = plain.attrs["outcomes"] | {"DocsPairs": unknown}
    docs, other = average(scores).itertuples(index=False)
    assert np.isnan([docs.low, docs.high]).all()
    assert np.isfinite([docs.score, other.low, other.high]).all()


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
    frame = evaluate(model, scale=LONG)  # both suites have the same set of instructions
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
    assert sizes == {"docs": 3, "other": 3, "english": 11, "llm2vec-15": 15, "mini-41": 41, "lens-7": 7, "mteb-56": 56}
    benchmark = {task.metadata.name for task in mteb.get_benchmark("MTEB(eng, v1)").tasks}
    assert set(SUITES["mteb-56"].tasks) == benchmark
    for name in ("llm2vec-15", "mini-41", "lens-7"):
        assert set(SUITES[name].tasks) <= benchmark
    made = tasks("lens-7")
    assert [task.metadata.name for task in made] == list(SUITES["lens-7"].tasks)


def test_a_smaller_scale_takes_a_part_of_a_larger_one(docs):
    small, large = (tasks(OFFLINE_SUITES, scale) for scale in ("quick", "cpu"))
    for part in ("queries", "corpus"):
        one, other = (set(made[0].dataset["default"]["test"][part]["id"]) for made in (small, large))
        assert one < other
    for number, column in ((3, "sentences"), (5, "sentence2")):
        assert set(small[number].dataset["test"][column]) < set(large[number].dataset["test"][column])
    assert set(docs.split("test")["id"]) >= other


def test_tasks_are_balanced(docs):
    made = {task.metadata.name: task.dataset for task in tasks(OFFLINE_SUITES, "cpu")}
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


# Memory and length


@pytest.fixture
def watched(monkeypatch):
    """What an encoder kept, and how long texts may be, after each call."""
    seen, encode = [], Encoder.encode

    def watching(encoder, *arguments, **options):
        made = encode(encoder, *arguments, **options)
        seen.append((options["task_metadata"].name, encoder.kept, encoder.model.max_seq_length))
        return made

    monkeypatch.setattr(Encoder, "encode", watching)
    return seen


NAMES = ("STS12", "STS13", "STS14", "STS15", "STS16")


def sts(name, texts=10):
    """A task of mteb over texts of its own."""
    own = [f"{name} says {number}" for number in range(texts)]
    rows = {"sentence1": own, "sentence2": own[::-1], "score": np.linspace(0, 5, texts)}
    return published(AbsTaskSTS, rows, name=name)


def test_vectors_do_not_grow_with_the_number_of_tasks(model, watched, monkeypatch):
    monkeypatch.setattr("workbook.evaluation.run.tasks", lambda *_: [sts(name) for name in NAMES])
    evaluate(model, NAMES, scale=LONG)
    assert {name for name, *_ in watched} == {*NAMES}
    assert {kept for _, kept, _ in watched} == {10}, "its own texts, each once, and no other task's"


def test_a_task_that_is_larger_than_memory_keeps_no_vectors(model, watched, monkeypatch):
    monkeypatch.setattr("workbook.evaluation.encoder.KEPT", 9)
    monkeypatch.setattr("workbook.evaluation.run.tasks", lambda *_: [sts("STS12"), sts("STS13", 9)])
    few = evaluate(model, NAMES[:2], scale=LONG)
    assert [kept for _, kept, _ in watched] == [0, 0, 9, 9]
    monkeypatch.undo()
    monkeypatch.setattr("workbook.evaluation.run.tasks", lambda *_: [sts("STS12"), sts("STS13", 9)])
    same = ["task", "score", "low", "high", "items"]
    pd.testing.assert_frame_equal(evaluate(model, NAMES[:2], scale=LONG)[same], few[same])


def test_tasks_over_the_docs_corpus_share_their_vectors(model, docs, watched):
    names = ["ParaphraseLadder", "DocsRetrieval", "DocsReranking", "TopicClustering"]
    evaluate(model, names, scale=QUICK, instructions=None)
    most = {name: kept for name, kept, _ in watched}
    assert most["DocsRetrieval"] == most["DocsReranking"] == QUICK.queries + QUICK.documents
    assert most["ParaphraseLadder"] <= 2 * QUICK.pairs
    assert most["TopicClustering"] <= QUICK.texts


def test_tasks_that_no_scale_sizes_read_512_tokens(model, watched, monkeypatch):
    made = tasks("ParaphraseLadder", QUICK)
    monkeypatch.setattr("workbook.evaluation.run.tasks", lambda *_: [*made, sts("STS12")])
    evaluate(model, ["ParaphraseLadder", "STS12"], scale=QUICK)
    assert {(name, length) for name, _, length in watched} == {("ParaphraseLadder", 64), ("STS12", 512)}
    watched.clear()
    evaluate(model, ["ParaphraseLadder", "STS12"], scale=QUICK, max_length=100)
    assert {length for *_, length in watched} == {100}
    assert model.max_seq_length == 512


def test_each_task_has_the_instruction_of_its_suite(model, monkeypatch):
    asked = []

    def encode(texts, prompt=None, **options):
        asked.append(prompt)
        return np.random.default_rng(0).normal(size=(len(texts), 2))

    made = tasks("ParaphraseLadder", QUICK)
    monkeypatch.setattr("workbook.evaluation.run.tasks", lambda *_: [*made, sts("STS15")])
    monkeypatch.setattr(model, "encode", encode)
    known = {name: authored.instructions(name).set_index("task")["instruction"] for name in ("docs", "lens", "anchor")}
    for name, instructions in {"suite": "lens", "anchor": "anchor"}.items():
        asked.clear()
        evaluate(model, ["other", "lens-7"], scale=QUICK, instructions=name)
        assert {*asked} == {known["docs"]["ParaphraseLadder"], known[instructions]["STS15"]}


def test_a_methods_own_instructions():
    assert instructions_of("", "nv-embed") == "nv-embed"
    assert instructions_of("", "mean") == instructions_of("", None) == "suite"
    assert instructions_of("lens", "nv-embed") == "lens"
    assert instructions_of("none", "nv-embed") is None


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
