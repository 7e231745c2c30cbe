"""The offline data of instruction tuning: mined retrieval, clusters, classes, graded pairs, none of what is tested."""

import contextlib
import re

import numpy as np
import pandas as pd
import pytest

from workbook import backbones
from workbook.corpora.authored import graded, hard_negatives, instruction_of, paraphrase_ladder, reviews, topics
from workbook.corpora.docs import load_docs
from workbook.data import blend
from workbook.data import rows as data
from workbook.data.sources import SOURCES
from workbook.errors import MissingDataError
from workbook.evaluation import tasks

SOURCE_NAMES = ("docs-mined", "docs-mined-large", "docs-blend", "docs-blend-labels", "docs-blend-examples")


def texts_of(source):
    """All texts of a source, those of any column."""
    for dataset in SOURCES[source]["pairs"]().values():
        for column in dataset.column_names:
            if not column.endswith("instruction"):
                yield from dataset[column]


def words(text):
    return tuple(re.findall(r"\w+", text.casefold()))


@pytest.mark.parametrize("source", SOURCE_NAMES)
def test_nothing_that_is_tested_on_is_trained_on(source):
    held_out = reviews().query("split == 'test'")["text"].tolist() + topics()["text"].tolist()
    held_out += [*paraphrase_ladder()["sentence1"], *paraphrase_ladder()["sentence2"]]
    docs = load_docs()
    for split in ("dev", "test"):
        held_out += [*docs.split(split)["query"], *docs.split(split)["document"]]
    assert {words(text) for text in texts_of(source)}.isdisjoint(map(words, held_out))


def test_held_out_reviews_are_never_in_training():
    trained = [text for source in SOURCE_NAMES for text in texts_of(source)]
    (task,) = tasks(["ReviewClassification"])
    tested = set(task.dataset["test"]["text"])
    assert tested <= set(reviews().query("split == 'test'")["text"])
    assert tested.isdisjoint(trained)
    assert set(reviews().query("split == 'train'")["text"]) <= set(trained)


@pytest.mark.parametrize(("source", "rows"), [("docs-mined", 1685), ("docs-mined-large", 9000)])
def test_mined_pairs(source, rows):
    docs = load_docs().split("train")
    mined = SOURCES[source]["pairs"]()["docs"].to_pandas()
    assert len(mined) == rows == mined["query"].nunique()
    own = dict(zip(docs["query"], docs["document"], strict=True))
    assert (mined["positive"] == mined["query"].map(own)).all()
    negatives = mined[[f"negative_{number}" for number in range(1, 8)]]
    assert not negatives.eq(mined["positive"], axis=0).any().any()
    assert negatives.apply(lambda row: row.is_unique, axis=1).all()
    assert {*negatives.to_numpy().ravel()} <= {*docs["document"]}
    assert mined["document_instruction"].eq("").all()
    assert mined["query_instruction"].nunique() == 1


@pytest.mark.parametrize("mining", ["90", "99", "naive", "random", "bm25"])
def test_other_ways_of_mining_have_the_same_queries(mining):
    docs, base = load_docs().split("train"), blend.docs_mined()["docs"].to_pandas()
    rows = SOURCES[f"docs-mined-{mining}"]["pairs"]()["docs"].to_pandas()
    names = [name for name in rows if name.startswith("negative")]
    assert len(names) == 7
    assert rows.drop(columns=names).equals(base.drop(columns=names))
    assert {*rows[names].to_numpy().ravel()} <= {*docs["document"]}
    assert not rows[names].eq(rows["positive"], axis=0).any().any()
    assert rows[names].apply(lambda row: row.is_unique, axis=1).all()
    assert 0.01 * len(rows) < (rows["negative_1"] == base["negative_1"]).sum() + 50 * (mining == "random") < len(rows)


def test_documents_that_bm25_finds_share_words_with_their_query():
    """Against a naive count of the query's words, weighed by how few documents have them; and no encoder's choice."""

    def words(text):
        return {*re.findall(r"\w\w+", text.lower())}

    share, common = {}, load_docs().split("train")["document"].map(words)
    weight = np.log(len(common) / pd.Series([word for one in common for word in one]).value_counts())
    for mining in ("random", "95", "bm25"):
        rows = blend.docs_mined(mining=mining)["docs"].select(range(200)).to_pandas()
        pairs = [(words(row.query), words(row.negative_1)) for row in rows.itertuples()]
        share[mining] = np.mean([weight.reindex([*(q & d)]).sum() / weight.reindex([*q]).sum() for q, d in pairs])
    assert share["bm25"] > share["95"] + 0.1 > share["random"] + 0.2
    first, seventh = (
        np.mean([len(words(q) & words(d)) for q, d in zip(rows["query"], rows[f"negative_{n}"], strict=True)])
        for n in (1, 7)
    )
    assert first > seventh


@pytest.mark.journey
def test_naive_mining_is_harder_and_the_margins_lie_between():
    teacher, scores = backbones.load_encoder(device="cpu"), {}
    for mining in ("random", "90", "95", "99", "naive"):
        rows = blend.docs_mined(mining=mining)["docs"].select(range(0, 1685, 35)).to_pandas()
        query, positive, negative = (
            teacher.encode(rows[name].tolist(), normalize_embeddings=True, show_progress_bar=False)
            for name in ("query", "positive", "negative_1")
        )
        scores[mining] = (query * negative).sum(axis=1), (query * positive).sum(axis=1)
    means = [hard.mean() for hard, _ in scores.values()]
    assert means == sorted(means)
    for margin in (0.9, 0.95, 0.99):
        hard, own = scores[f"{100 * margin:.0f}"]
        assert (hard <= margin * own + 1e-4).all()
    assert (scores["naive"][0] > scores["naive"][1]).mean() > 0.2  # above the query's own document


@pytest.mark.journey
def test_mined_negatives_are_hard_and_below_the_margin():
    """The teacher's scores again, for some of the queries; other processors round otherwise."""
    rows = blend.docs_mined(None)["docs"].select([*range(12), *range(8988, 9000)]).to_pandas()
    names = ["query", "positive", *(f"negative_{number}" for number in range(1, 8))]
    teacher = backbones.load_encoder(device="cpu")
    query, positive, *negatives = (
        teacher.encode(rows[name].tolist(), normalize_embeddings=True, show_progress_bar=False) for name in names
    )
    scores = np.stack([(query * negative).sum(axis=1) for negative in negatives], axis=1)
    assert (scores <= 0.95 * (query * positive).sum(axis=1, keepdims=True) + 1e-4).all()
    assert (np.diff(scores, axis=1) < 1e-4).all()  # the hardest first
    others = query @ positive.T
    assert scores.mean() > np.mean(others[~np.eye(len(rows), dtype=bool)]) + 0.1


def test_a_corpus_without_the_mined_pairs(monkeypatch):
    ids = hard_negatives()
    monkeypatch.setattr(blend, "hard_negatives", lambda mining: ids.replace(ids["negative_3"][5], "of-another-corpus"))
    with pytest.warns(UserWarning, match=r"\d+ of 1685 mined pairs are not in this machine's docs corpus"):
        assert 0 < len(blend.docs_mined()["docs"]) < 1685
    monkeypatch.setattr(blend, "hard_negatives", lambda mining: ids.assign(id="of-another-corpus"))
    with pytest.raises(MissingDataError, match="mine your own"):
        blend.docs_mined()


def test_the_blend_holds_four_tasks():
    parts = {name: dataset.to_pandas() for name, dataset in blend.docs_blend().items()}
    sizes = {"retrieval": 256, "packages": 272, "reviews": 256, "graded": 256}
    assert {name: len(rows) for name, rows in parts.items()} == sizes
    package = dict(zip(load_docs().pairs["query"], load_docs().pairs["package"], strict=True))
    rows = parts["packages"]
    assert (rows["query"].map(package) == rows["positive"].map(package)).all()
    for number in range(1, 8):
        assert (rows["query"].map(package) != rows[f"negative_{number}"].map(package)).all()
    assert rows["document_instruction"].equals(rows["query_instruction"])  # symmetric
    label = dict(zip(reviews()["text"], reviews()["label"], strict=True))
    rows = parts["reviews"]
    assert (rows["query"].map(label) == rows["positive"]).all()
    assert rows["negative_1"].equals(rows["positive"].map({"positive": "negative", "negative": "positive"}))
    assert rows["document_instruction"].eq("").all()


@pytest.mark.parametrize("documents", ["examples", "labels"])
def test_graded_pairs_in_the_blend(documents):
    rows, pairs = blend.docs_blend(documents)["graded"].to_pandas(), graded()
    assert rows["query_instruction"].eq(instruction_of("ParaphraseLadder")).all()
    assert rows["document_instruction"].equals(rows["query_instruction"])  # symmetric
    grades = pairs.pivot(index="sentence1", columns="score", values="sentence2")
    source = dict(zip(pairs["sentence2"], pairs["sentence1"], strict=True)) | {text: text for text in grades.index}
    alike = {(one, grades.at[one, grade]) for one in grades.index for grade in (4, 5)}
    assert {*zip(rows["query"], rows["positive"], strict=True)} == alike | {pair[::-1] for pair in alike}
    own = grades.loc[rows["query"].map(source), [3, 2, 1]]
    assert rows[["negative_1", "negative_2", "negative_3"]].to_numpy().tolist() == own.to_numpy().tolist()
    drawn = rows[[f"negative_{number}" for number in range(4, 8)]]
    assert (drawn.apply(lambda column: column.map(source)).ne(rows["query"].map(source), axis=0)).all().all()
    assert drawn.nunique(axis=1).eq(4).all()


def test_labels_for_clusters():
    rows = blend.docs_blend("labels")["packages"].to_pandas()
    package = dict(zip(load_docs().pairs["query"], load_docs().pairs["package"], strict=True))
    assert (rows["query"].map(package) == rows["positive"]).all()
    assert rows["document_instruction"].eq("").all()


@pytest.mark.parametrize(("negatives", "columns"), [(0, 2), (1, 3), (7, 9), (9, 9), (None, 9)])
def test_the_first_hard_negatives_are_used(negatives, columns):
    tokenizer = backbones.load_tokenizer("tiny-llama")
    too_many = pytest.warns(UserWarning, match="docs: 9 hard negatives are asked for, rows have 7: trained with 7")
    with too_many if negatives == 9 else contextlib.nullcontext():
        loaded = data.load(
            "docs-mined", "contrastive", tokenizer=tokenizer, max_length=64, limit=20, negatives=negatives
        ).datasets["docs"]  # fmt: skip
    names = ["query", "positive", *(f"negative_{number}" for number in range(1, 8))]
    assert loaded.column_names == names[:columns]
    rows = blend.docs_mined()["docs"].to_pandas().set_index("query")
    for name in loaded.column_names[1:]:
        assert loaded[0][name] == rows.loc[loaded[0]["query"], name]


def test_package_clustering_is_of_the_test_split():
    (task,) = tasks(["PackageClustering"], "cpu")
    texts, labels = task.dataset["test"]["sentences"], task.dataset["test"]["labels"]
    test = load_docs().split("test")
    assert (
        dict(zip(texts, labels, strict=True)).items() <= dict(zip(test["query"], test["package"], strict=True)).items()
    )
    assert set(labels) == set(blend.docs_blend("labels")["packages"]["positive"])
