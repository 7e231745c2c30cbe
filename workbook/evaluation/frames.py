"""mteb tasks from tables, by type, at the sizes of a scale.

Items are chosen by hash, so that a smaller scale takes a part of those of a larger one, on every machine.
"""

from __future__ import annotations

from collections.abc import Callable
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
from sklearn.linear_model import LogisticRegression

from ..corpora.tables import by_hash
from ..scale import Scale
from .offline import OfflineTask, metadata

EACH = 8
"""Fewest texts of a class in clustering, and in either half of classification. Where a scale has too few texts for that
it takes fewer classes."""


class _Stepping(LogisticRegression):
    """mteb's classifier, which here takes at least one step.

    scikit-learn stops where no slope of the loss is above ``tol``. Thousands of small numbers of one length, as those
    of a vocabulary, may begin there, and then every text gets the same class. Only then the bound falls.
    """

    def fit(self, X: np.ndarray, y: np.ndarray, sample_weight: np.ndarray | None = None) -> _Stepping:  # noqa: N803
        asked = self.tol
        try:
            super().fit(X, y, sample_weight)
            while not self.n_iter_.any() and self.tol > np.finfo(float).eps:
                self.tol /= 10
                super().fit(X, y, sample_weight)
        finally:
            self.tol = asked
        return self


class _Classification(AbsTaskClassification):
    """One classifier, trained on all training texts."""

    n_experiments = 1
    samples_per_label = 1_000_000
    evaluator_model = _Stepping(max_iter=100)


class _Clustering(AbsTaskClustering):
    """Resamples of mteb's as large as the set."""

    max_fraction_of_documents_to_embed = None

    @property
    def max_documents_per_cluster(self) -> int:
        return len(self.dataset["test"])


def task(name: str, kind: str, what: str, frame: pd.DataFrame, scale: Scale) -> Any:
    """An mteb task with its data.

    Args:
        name: Name of the task.
        kind: Its mteb type, which says what ``frame`` holds. STS: sentence1, sentence2, score. PairClassification:
            sentence1, sentence2, labels (0 or 1). Retrieval and Reranking: query, document, score (0 if the document
            is not relevant); in retrieval a query ``""`` only adds its document, in reranking the documents of a query
            are its candidates. Classification and Clustering: text, label.
        what: One sentence.
        frame: All data; the scale decides how much of them is used.
        scale: Sizes. ``pairs`` of STS; ``queries`` pairs of either label; ``queries`` and ``documents`` of retrieval,
            or as many documents as these queries' relevant ones are; ``queries`` of reranking; about ``texts`` of
            clustering, and a third more in each half of classification, the same number of each class.
    """
    base, metric, sized = _KINDS[kind]
    made = type(name, (OfflineTask, base), {"metadata": metadata(name, kind, metric, what)})
    return made(sized(frame, scale))


def _graded(frame: pd.DataFrame, scale: Scale) -> dict:
    return {"test": _dataset(_pairs_by_hash(frame).head(scale.pairs))}


def _paired(frame: pd.DataFrame, scale: Scale) -> dict:
    return {"test": _dataset(_pairs_by_hash(frame).groupby("labels").head(scale.queries))}


def _pairs_by_hash(frame: pd.DataFrame) -> pd.DataFrame:
    pair = frame["sentence1"] + "\t" + frame["sentence2"]
    return by_hash(frame.assign(pair=pair), "pair").drop(columns="pair")


def _retrieval(frame: pd.DataFrame, scale: Scale) -> dict:
    """The first queries by hash, over the documents in the order of the queries that they are relevant to."""
    relevant = _in_order_of_queries(frame[frame["score"] > 0])
    asked = relevant["query"].unique()[: scale.queries]
    own = relevant[relevant["query"].isin(asked)]
    others = by_hash(frame[["document"]].drop_duplicates(), "document")["document"]
    documents = pd.concat([relevant["document"], others]).unique()
    return _ranking(own, documents[: max(scale.documents, own["document"].nunique())])


def _reranking(frame: pd.DataFrame, scale: Scale) -> dict:
    """The first queries by hash that have both kinds of candidates, each with its own."""
    told_apart = frame.groupby("query")["score"].transform(lambda scores: (scores > 0).any() and (scores <= 0).any())
    candidates = _in_order_of_queries(frame[told_apart.astype(bool)])
    chosen = candidates[candidates["query"].isin(candidates["query"].unique()[: scale.queries])]
    return _ranking(chosen, chosen["document"].unique(), rerank=True)


def _in_order_of_queries(frame: pd.DataFrame) -> pd.DataFrame:
    """Each pair of query and document once, with the highest of its scores; queries by hash."""
    pairs = frame.groupby(["query", "document"], as_index=False, sort=False)["score"].max()
    return by_hash(pairs, "query")


def _ranking(pairs: pd.DataFrame, documents: Any, rerank: bool = False) -> dict:
    """mteb's form of pairs of queries and documents; ids count from 0, in the order given."""
    queries = {text: f"q{number}" for number, text in enumerate(pairs["query"].unique())}
    corpus = {text: f"d{number}" for number, text in enumerate(documents)}
    relevant: dict[str, dict[str, int]] = {name: {} for name in queries.values()}
    ranked: dict[str, list[str]] = {name: [] for name in queries.values()}
    for query, document, score in zip(pairs["query"], pairs["document"], pairs["score"], strict=True):
        ranked[queries[query]].append(corpus[document])
        if score > 0:
            relevant[queries[query]][corpus[document]] = int(score)
    texts = {
        side: Dataset.from_dict({"id": list(ids.values()), "text": list(ids)})
        for side, ids in (("queries", queries), ("corpus", corpus))
    }
    return {"default": {"test": {**texts, "relevant_docs": relevant, "top_ranked": ranked if rerank else None}}}


def _classified(frame: pd.DataFrame, scale: Scale) -> DatasetDict:
    """Halves by hash: of the texts of a class every other one is trained on."""
    chosen = _balanced(frame, 2 * (4 * scale.texts // 3), 2 * EACH)
    numbers = {label: number for number, label in enumerate(sorted(chosen["label"].unique()))}
    half = chosen.groupby("label").cumcount() % 2
    chosen = chosen.assign(label=chosen["label"].map(numbers))
    return DatasetDict({split: _dataset(chosen[half == number]) for number, split in enumerate(("train", "test"))})


def _clustered(frame: pd.DataFrame, scale: Scale) -> dict:
    chosen = _balanced(frame, scale.texts, EACH)
    return {"test": _dataset(chosen.rename(columns={"text": "sentences", "label": "labels"}))}


def _balanced(frame: pd.DataFrame, texts: int, least: int) -> pd.DataFrame:
    """The same number of texts of each class: ``least``, or more if there are texts for more than that of all classes.

    A text that stands there twice, under two labels even, is taken once.
    """
    frame = by_hash(frame.drop_duplicates("text"), "text")
    labels = by_hash(frame[["label"]].drop_duplicates().sort_values("label"), "label")["label"]
    each = max(texts // len(labels), least)
    chosen = frame[frame["label"].isin(labels.head(max(texts // each, 2)))]
    return chosen.groupby("label").head(min(each, frame["label"].value_counts().min()))


def _dataset(frame: pd.DataFrame) -> Dataset:
    return Dataset.from_pandas(frame, preserve_index=False)


_KINDS: dict[str, tuple[type, str, Callable[[pd.DataFrame, Scale], dict]]] = {
    "STS": (AbsTaskSTS, "cosine_spearman", _graded),
    "PairClassification": (AbsTaskPairClassification, "cosine_ap", _paired),
    "Retrieval": (AbsTaskRetrieval, "ndcg_at_10", _retrieval),
    "Reranking": (AbsTaskRetrieval, "map_at_1000", _reranking),
    "Classification": (_Classification, "accuracy", _classified),
    "Clustering": (_Clustering, "v_measure", _clustered),
}
