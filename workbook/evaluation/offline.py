"""Suite ``docs``: mteb tasks of every type, made of the docs corpus and the project's own texts, for any machine.

Items are sampled by hash: a smaller scale takes a part of those of a larger one, on every machine and with every seed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from datasets import Dataset, DatasetDict
from mteb.abstasks import (
    AbsTaskClassification,
    AbsTaskClustering,
    AbsTaskPairClassification,
    AbsTaskRetrieval,
    AbsTaskSTS,
)
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.types import PromptType
from sklearn.feature_extraction.text import TfidfVectorizer

from ..corpora.authored import paraphrase_ladder, reviews, topics
from ..corpora.docs import load_docs
from ..corpora.tables import by_hash
from ..scale import Scale

CANDIDATES = 10
"""Documents that a query of the reranking task is ranked against, its own included."""


_UNSAID = (
    "reference",
    "date",
    "domains",
    "task_subtypes",
    "license",
    "annotations_creators",
    "dialect",
    "sample_creation",
    "bibtex_citation",
)


def metadata(name: str, kind: str, metric: str, description: str) -> TaskMetadata:
    """Metadata of an English text task whose data are on this machine.

    Args:
        name: Name of the task.
        kind: Its mteb type, such as ``STS``.
        metric: Its main score.
        description: One sentence.
    """
    return TaskMetadata(
        name=name,
        description=description,
        type=kind,
        main_score=metric,
        dataset={"path": "workbook", "revision": "1"},
        category="t2t" if kind in ("Retrieval", "Reranking", "STS", "PairClassification") else "t2c",
        modalities=["text"],
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        **dict.fromkeys(_UNSAID),
    )


class OfflineTask:
    """Base of the tasks below: their data are there from the start."""

    data_loaded = True

    def __init__(self, dataset: dict):
        super().__init__()
        self.dataset = dataset

    def load_data(self, *args: object, **kwargs: object) -> None:
        """Do nothing; see mteb's ``AbsTask.load_data``.

        Args:
            *args, **kwargs: Ignored.
        """


class DocsRetrieval(OfflineTask, AbsTaskRetrieval):
    """Retrieval of a description by its summary line."""

    metadata = metadata("DocsRetrieval", "Retrieval", "ndcg_at_10", "Find the description of a docstring's summary.")


class DocsReranking(OfflineTask, AbsTaskRetrieval):
    """Reranking of a summary line's description among those that share most words with it."""

    metadata = metadata("DocsReranking", "Reranking", "map_at_1000", "Rank descriptions alike in words by a summary.")


class DocsPairs(OfflineTask, AbsTaskPairClassification):
    """Pairs of a summary and a description; half belong together, half only share words."""

    metadata = metadata("DocsPairs", "PairClassification", "cosine_ap", "Tell pairs from look-alikes.")
    input1_prompt_type = PromptType.query
    input2_prompt_type = PromptType.document


class TopicClustering(OfflineTask, AbsTaskClustering):
    """Sentences by topic."""

    metadata = metadata("TopicClustering", "Clustering", "v_measure", "Cluster sentences by topic.")
    max_fraction_of_documents_to_embed = None


class PackageClustering(OfflineTask, AbsTaskClustering):
    """Summary lines of docstrings by package. Not in suite docs, since methods can train on these packages."""

    metadata = metadata("PackageClustering", "Clustering", "v_measure", "Cluster docstrings by their package.")
    max_fraction_of_documents_to_embed = None


class ReviewClassification(OfflineTask, AbsTaskClassification):
    """Polarity of short reviews, so few that one classifier is trained on the whole training split."""

    metadata = metadata("ReviewClassification", "Classification", "accuracy", "Tell praise from complaint.")
    samples_per_label = 128
    n_experiments = 1


class ParaphraseLadder(OfflineTask, AbsTaskSTS):
    """Similarity of sentences that agree in wording but not in meaning, or the reverse."""

    metadata = metadata("ParaphraseLadder", "STS", "cosine_spearman", "Grade how much of a meaning is shared.")


def offline_tasks(names: Iterable[str], scale: Scale) -> dict[str, Any]:
    """The offline tasks among these names, at the sizes of a scale, or with all data if there are fewer.

    Args:
        names: Names of any tasks.
        scale: The scale.

    Raises:
        MissingDataError: A task over the docs corpus where a package that it is made of is not installed, or a data
            file is absent.
    """
    names = set(names)
    made = [make(scale) for made, make in _MAKERS.items() if names & {*made}]
    return {task.metadata.name: task for some in made for task in some if task.metadata.name in names}


def _pairs_tasks(scale: Scale) -> list:
    """Retrieval, reranking and pair classification over the same queries and documents, embedded once."""
    test = by_hash(load_docs().split("test")).head(scale.documents).reset_index(drop=True)
    queries = test.head(scale.queries)
    close = _neighbours(queries["query"], test["document"])
    ids = test["id"].to_numpy()

    def dataset(top_ranked: dict | None) -> dict:
        corpus = Dataset.from_dict({"id": list(ids), "text": list(test["document"])})
        asked = Dataset.from_dict({"id": list(queries["id"]), "text": list(queries["query"])})
        relevant = {name: {name: 1} for name in queries["id"]}
        return {
            "default": {
                "test": {"corpus": corpus, "queries": asked, "relevant_docs": relevant, "top_ranked": top_ranked}
            }
        }

    candidates = {name: [name, *ids[near[: CANDIDATES - 1]]] for name, near in zip(queries["id"], close, strict=True)}
    impostors = test["document"].to_numpy()[close[:, 0]]
    pairs = {
        "sentence1": [*queries["query"], *queries["query"]],
        "sentence2": [*queries["document"], *impostors],
        "labels": [1] * len(queries) + [0] * len(queries),
    }
    return [
        DocsRetrieval(dataset(None)),
        DocsReranking(dataset(candidates)),
        DocsPairs({"test": Dataset.from_dict(pairs)}),
    ]


def _neighbours(queries: pd.Series, documents: pd.Series) -> np.ndarray:
    """The other documents of each query, nearest in weighted words first: int (queries, documents - 1)."""
    vectorizer = TfidfVectorizer(sublinear_tf=True, stop_words="english").fit(documents)
    similarity = (vectorizer.transform(queries) @ vectorizer.transform(documents).T).toarray().round(6)
    own = np.arange(len(queries))
    similarity[own, own] = -1
    return np.argsort(-similarity, axis=1, kind="stable")[:, :-1]


def _topics(scale: Scale) -> list:
    """The same number of sentences from every topic."""
    frame = by_hash(topics())
    chosen = frame.groupby("topic").head(max(scale.texts // frame["topic"].nunique(), 2))
    return [_clustering(TopicClustering, chosen["text"], chosen["topic"])]


def _packages(scale: Scale) -> list:
    """The same number of summary lines from every package, at least four: with two, clusters are found by chance."""
    docs = load_docs()
    packages = docs.packages("test", 1)["package"].nunique()
    chosen = docs.packages("test", max(scale.texts // packages, 4))
    return [_clustering(PackageClustering, chosen["query"], chosen["package"])]


def _clustering(kind: type, texts: pd.Series, labels: pd.Series) -> AbsTaskClustering:
    """The task on these texts; mteb's resamples are as large as the set."""
    task = kind({"test": Dataset.from_dict({"sentences": list(texts), "labels": list(labels)})})
    task.max_documents_per_cluster = len(texts)
    return task


def _reviews(scale: Scale) -> list:
    """Two thirds of ``scale.texts`` per label to train on, and as many to test: fewer don't train a classifier."""
    frame = by_hash(reviews())
    frame = frame.groupby(["split", "label"]).head(max(2 * scale.texts // 3, 2))
    splits = {
        split: Dataset.from_dict({"text": list(part["text"]), "label": list((part["label"] == "positive").astype(int))})
        for split, part in frame.groupby("split")
    }
    return [ReviewClassification(DatasetDict(splits))]


def _ladder(scale: Scale) -> list:
    """Whole ladders: every chosen source comes with all its grades."""
    frame = by_hash(paraphrase_ladder(), "source")
    grades = frame["source"].value_counts().max()
    sources = frame["source"].unique()[: max(scale.pairs // grades, 2)]
    columns = ["sentence1", "sentence2", "score"]
    chosen = frame[frame["source"].isin(sources)]
    return [ParaphraseLadder({"test": Dataset.from_pandas(chosen[columns], preserve_index=False)})]


_MAKERS = {
    ("DocsRetrieval", "DocsReranking", "DocsPairs"): _pairs_tasks,
    ("TopicClustering",): _topics,
    ("ReviewClassification",): _reviews,
    ("ParaphraseLadder",): _ladder,
    ("PackageClustering",): _packages,
}
"""Functions of a scale that make tasks, by the names of these."""
