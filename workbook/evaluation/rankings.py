"""Several models on the same texts: neighbours side by side, agreement of rankings, and what two find together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy.stats import kendalltau, rankdata

from ..errors import InvalidValueError, UnknownNameError, whole
from .intervals import of_mean

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def cosines(
    models: Mapping[str, SentenceTransformer],
    queries: Sequence[str],
    documents: Sequence[str],
    prompts: Mapping[str, str] | None = None,
) -> dict[str, np.ndarray]:
    """Cosine of every query with every document, by every model, from which the functions below rank.

    Args:
        models: Embedders by name.
        queries: Strings.
        documents: Strings.
        prompts: Prompt of a model's queries by its name: the bare instruction, if the model begins with a
            ``workbook.modules.Decoder``. Other models have none.

    Returns:
        float32 (queries, documents) by name, -1 to 1.

    Raises:
        InvalidValueError: No model, no text, or vectors that are not finite.
        UnknownNameError: A prompt for a model that is not there.
    """
    from sentence_transformers.util import cos_sim

    for name, texts in (("queries", queries), ("documents", documents)):
        if isinstance(texts, str) or not len(texts):
            raise InvalidValueError(name, "at least one, in a list", texts)
    for name in prompts or {}:
        if name not in models:
            raise UnknownNameError("model", name, models)
    found = {}
    for name, model in models.items():
        asked = model.encode_query(list(queries), prompt=(prompts or {}).get(name), show_progress_bar=False)
        found[name] = cos_sim(asked, model.encode_document(list(documents), show_progress_bar=False)).numpy()
    return _checked(found)


def neighbours(cosines: Mapping[str, np.ndarray], documents: Sequence[str], top: int = 5) -> pd.DataFrame:
    """The documents nearest to each query, by every model.

    Args:
        cosines: (queries, documents) by name of a model, from :func:`cosines`.
        documents: The texts of the columns.
        top: Number of documents per query, or all if there are fewer.

    Returns:
        One row per query, model and rank: ``query`` (its row, from 0), ``method`` (the model's name), ``rank`` (from
        1; of equals the earlier document first), ``text``, ``score`` (the cosine).

    Raises:
        InvalidValueError: Matrices of different shapes or with numbers that are not finite, another number of documents
            than of columns, or a ``top`` that is not a positive whole number.
    """
    matrices = _checked(cosines)
    queries, columns = next(iter(matrices.values())).shape
    if len(documents) != columns:
        raise InvalidValueError("documents", f"{columns}, one a column of the cosines", len(documents))
    top = whole("top", top)
    best = {name: _nearest(matrix, top) for name, matrix in matrices.items()}
    rows = [
        (query, name, rank, documents[document], float(matrices[name][query, document]))
        for query in range(queries)
        for name in matrices
        for rank, document in enumerate(best[name][query].tolist(), start=1)
    ]
    return pd.DataFrame(rows, columns=["query", "method", "rank", "text", "score"])


def agreement(cosines: Mapping[str, np.ndarray], top: int = 10) -> pd.DataFrame:
    """Agreement of every two models in ranking the same documents, with a 95 % interval over queries.

    There are two measures, because they can disagree. ``overlap`` is the share of the first ``top`` documents that both
    have, in any order (chance: top / documents). ``kendall`` is Kendall's tau-b over all documents, most of which
    answer nothing (chance: 0).

    Args:
        cosines: (queries, documents) by name of a model, from :func:`cosines`; at least two models.
        top: Number of documents that a reader would look at.

    Returns:
        One row per pair of models and measure: ``first``, ``second``, ``measure``, ``score`` (0 to 1, -1 to 1 for
        kendall; mean over queries), ``low``, ``high`` (Student's interval; NaN for a single query) and ``queries``.
        Kendall's tau is NaN where a model gives all documents of a query one score.

    Raises:
        InvalidValueError: Fewer than two models, matrices of different shapes or with numbers that are not finite, or
            a ``top`` that is not a whole number from 1 to the number of documents.
    """
    matrices = _checked(cosines, least=2)
    queries, documents = next(iter(matrices.values())).shape
    top = whole("top", top, most=documents)
    best = {name: _nearest(matrix, top) for name, matrix in matrices.items()}
    rows = []
    for first, second in combinations(matrices, 2):
        overlap = [len({*one} & {*other}) / top for one, other in zip(best[first], best[second], strict=True)]
        kendall = [kendalltau(*rankings).statistic for rankings in zip(matrices[first], matrices[second], strict=True)]
        rows += [(first, second, name, *_mean(values), queries)
                 for name, values in (("overlap", overlap), ("kendall", kendall))]  # fmt: skip
    return pd.DataFrame(rows, columns=["first", "second", "measure", "score", "low", "high", "queries"])


def complement(cosines: Mapping[str, np.ndarray], top: int = 1) -> pd.DataFrame:
    """Ranks of the right document by every two models, alone and combined.

    ``either`` is an oracle that takes the better of the two for each query. ``hybrid`` ranks without knowing the
    answer, by the mean of the two cosines, which is the cosine of the vectors of ``workbook.hybrid``. Two models
    complement each other if the oracle is above the better of them; the hybrid shows how much of that can be had.

    Args:
        cosines: (queries, documents) by name of a model, from :func:`cosines`; at least two models. The document in
            a query's own column is the right one.
        top: Lowest rank that counts as found.

    Returns:
        One row per pair of models, ranking and query: ``first``, ``second`` (the models' names), ``by`` (``first``,
        ``second``, ``either`` or ``hybrid``), ``query`` (its row, from 0), ``rank`` (of the right document, from 1;
        equal scores count against it), ``correct`` (1.0 if it is found).

    Raises:
        InvalidValueError: Fewer than two models, matrices of different shapes or with numbers that are not finite, more
            queries than documents, or a ``top`` that is not a positive whole number.

    Source: LENS, section 5.3, for hybrids; the oracle is this project's.
    """
    matrices = _checked(cosines, least=2)
    queries, documents = next(iter(matrices.values())).shape
    if queries > documents:
        raise InvalidValueError("cosines", "a document or more for each query", (queries, documents))
    top = whole("top", top)
    frames = []
    for first, second in combinations(matrices, 2):
        ranks = {side: _ranks(matrices[name]) for side, name in (("first", first), ("second", second))}
        ranks["either"] = np.minimum(ranks["first"], ranks["second"])
        ranks["hybrid"] = _ranks((matrices[first] + matrices[second]) / 2)
        for by, found in ranks.items():
            row = {"first": first, "second": second, "by": by, "query": np.arange(queries)}
            frames.append(pd.DataFrame(row | {"rank": found, "correct": (found <= top).astype(float)}))
    return pd.concat(frames, ignore_index=True)


def _nearest(matrix: np.ndarray, top: int) -> np.ndarray:
    """Columns of the largest numbers of each row, int (queries, top)."""
    return np.argsort(-matrix, axis=1, kind="stable")[:, :top]


def _ranks(matrix: np.ndarray) -> np.ndarray:
    """Rank of each query's own document, int (queries,), last among equals, so that constant vectors find nothing."""
    own = np.arange(len(matrix))
    return rankdata(-matrix, method="max", axis=1)[own, own].astype(int)


def _mean(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and its 95 % interval, by Student's t."""
    mean, half = float(np.mean(values)), of_mean(values)
    return mean, mean - half, mean + half


def _checked(cosines: Mapping[str, np.ndarray], least: int = 1) -> dict[str, np.ndarray]:
    """The matrices, after a check."""
    if len(cosines) < least:
        raise InvalidValueError("cosines", f"at least {least}, by name of the model", [*cosines])
    matrices = {name: np.asarray(matrix) for name, matrix in cosines.items()}
    shapes = {name: matrix.shape for name, matrix in matrices.items()}
    if len({*shapes.values()}) > 1 or any(len(shape) != 2 or 0 in shape for shape in shapes.values()):
        raise InvalidValueError("cosines", "matrices (queries, documents) of one shape", shapes)
    for name, matrix in matrices.items():
        if not np.isfinite(matrix).all():
            bad = int((~np.isfinite(matrix)).any(axis=1).sum())
            hint = "A training that ran away leaves such a model."
            raise InvalidValueError(f"cosines of {name}", "finite numbers", f"NaN or inf in {bad} rows", hint)
    return matrices
