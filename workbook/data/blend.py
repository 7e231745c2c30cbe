"""The offline data of instruction tuning: retrieval, classes, clusters and graded pairs, as contrastive rows."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
from datasets import Dataset

from ..corpora.authored import graded, hard_negatives, instruction_of, reviews
from ..corpora.docs import load_docs
from ..corpora.scored import RETRIEVAL, TASK
from ..errors import MissingDataError
from .curation import from_classes, from_graded

NEGATIVES = 7
"""Hard negatives per row. Source: NV-Embed, table 11."""

MINED = 1_685
"""Rows of :func:`docs_mined` by default: those that the scales up to ``night`` read, that were mined first, and that
every way of mining has.
"""

_RETRIEVAL = 256  # rows of it in a blend
_EACH = 16  # texts of each package in a blend


def docs_mined(rows: int | None = MINED, mining: str = "95") -> dict[str, Dataset]:
    """Summary lines with their descriptions and seven hard negatives each.

    Args:
        rows: The first mined pairs; None for all.
        mining: A key of ``workbook.corpora.authored.MININGS``; ``random`` for documents drawn at random; or ``bm25``
            for those that BM25 finds first, which no encoder has chosen, nor left out as too near.

    Raises:
        UnknownNameError: No such mining.
        MissingDataError: None of the mined pairs is in this machine's corpus.
    """
    return {"docs": _dataset(_mined(rows, mining), "DocsRetrieval", RETRIEVAL)}


def docs_blend(clusters: str = "examples", classes: str = "labels") -> dict[str, Dataset]:
    """Retrieval, clusters, classes and graded pairs: a small version of the blend of NV-Embed's second stage.

    With the pinned versions it has 1,040 rows, about a quarter of them in each part:

    - ``retrieval``, 256 rows (25 %): the first of :func:`docs_mined`.
    - ``packages``, 272 rows (26 %): clusters, which are the 17 larger packages, with 16 summary lines each as texts.
    - ``reviews``, 256 rows (25 %): classes, which are the polarities of the reviews' train split. With labels as
      documents a row has a single negative.
    - ``graded``, 256 rows (25 %): 128 pairs graded 4 or 5, both ways. The negatives of a row are the three partners of
      its source with lower grades, then texts of other sources drawn at random, where the paper mines.

    Args:
        clusters: What represents a cluster: ``examples`` or ``labels``. Only examples get the query's instruction, as
            all texts of graded pairs do.
        classes: What represents a class, likewise.

    Raises:
        UnknownNameError: Neither examples nor labels.
        MissingDataError: As :func:`docs_mined`.

    Source: NV-Embed, sections 4.2 and 5.2.4.
    """
    train, praise = load_docs().packages("train", _EACH), reviews().query("split == 'train'")
    packages = from_classes(train["query"], train["package"], documents=clusters, negatives=NEGATIVES)
    polarity = from_classes(praise["text"], praise["label"], documents=classes, negatives=NEGATIVES)
    return {
        "retrieval": _dataset(_mined(MINED, "95").head(_RETRIEVAL), "DocsRetrieval", RETRIEVAL),
        "packages": _dataset(packages, "PackageClustering", "clustering", symmetric=clusters == "examples"),
        "reviews": _dataset(polarity, "ReviewClassification", "classification", symmetric=classes == "examples"),
        "graded": _dataset(from_graded(graded(), negatives=NEGATIVES), "ParaphraseLadder", "sts", symmetric=True),
    }


def _mined(rows: int | None, mining: str) -> pd.DataFrame:
    """Columns query, positive, negative_1, ..."""
    train = load_docs().split("train").set_index("id")
    if chosen := {"random": _drawn, "bm25": _found}.get(mining):
        ids = chosen(hard_negatives()[:rows], train)
    else:
        ids = hard_negatives(mining)[:rows]
    known = ids.map(set(train.index).__contains__).all(axis=1)  # isin is slow with the strings of pandas 3
    if not known.any():
        raise MissingDataError(
            "Hard negatives: expected pairs of the docs corpus that the pinned versions give, found none in this "
            "machine's. Install them (constraints.txt), or mine your own (workbook.data.curation.mine) and train "
            "on a file."
        )
    if not known.all():
        warnings.warn(
            f"{(~known).sum()} of {len(ids)} mined pairs are not in this machine's docs corpus: left out.", stacklevel=2
        )
    ids = ids[known]
    texts = {"query": train.loc[ids["id"], "query"], "positive": train.loc[ids["id"], "document"]}
    texts |= {name: train.loc[ids[name], "document"] for name in ids.columns[1:]}
    return pd.DataFrame({name: list(column) for name, column in texts.items()})


def _drawn(mined: pd.DataFrame, train: pd.DataFrame) -> pd.DataFrame:
    """The same queries with as many documents of other pairs, drawn at random with a fixed seed."""
    draw, names, documents = np.random.default_rng(0), list(mined.columns[1:]), list(train.index)
    found = []
    for own in mined["id"]:
        others = draw.choice(len(documents), len(names) + 1, replace=False)
        found.append([documents[place] for place in others if documents[place] != own][: len(names)])
    return mined.assign(**dict(zip(names, zip(*found, strict=True), strict=True)))


def _found(mined: pd.DataFrame, train: pd.DataFrame) -> pd.DataFrame:
    """The same queries with as many documents of other texts, those that BM25 finds first, the best first."""
    import bm25s

    documents, names = train["document"].drop_duplicates(), list(mined.columns[1:])
    if len(documents) <= len(names):
        raise MissingDataError(
            f"Expected more than {len(names)} documents to find negatives among, got {len(documents)}."
        )
    own = train.reindex(mined["id"])  # a pair that is not in this machine's corpus finds nothing, and is left out
    options = {"stopwords": None, "return_ids": False, "show_progress": False}
    index, found = bm25s.BM25(dtype="float64"), []
    index.index(bm25s.tokenize(list(documents), **options), show_progress=False)
    for words, right in zip(bm25s.tokenize(list(own["query"].fillna("")), **options), own["document"], strict=True):
        scores = index.get_scores(words) if words else np.zeros(len(documents))
        enough = np.flatnonzero(scores >= np.partition(scores, -len(names) - 1)[-len(names) - 1])  # few are sorted
        best = documents.iloc[enough[np.argsort(-scores[enough], kind="stable")][: len(names) + 1]]
        found.append(best.index[best != right][: len(names)])
    return mined.assign(**dict(zip(names, zip(*found, strict=True), strict=True)))


def _dataset(rows: pd.DataFrame, name: str, task: str, *, symmetric: bool = False) -> Dataset:
    """The rows with the instruction of an offline task on the query, and in a symmetric task on the documents too."""
    said = instruction_of(name)
    told = rows.assign(query_instruction=said, document_instruction=said if symmetric else "", **{TASK: task})
    return Dataset.from_pandas(told, preserve_index=False)
