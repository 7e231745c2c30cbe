"""An index of vectors: its bytes, what search in it costs, and what is left of vectors that were cut or rounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from sklearn.feature_extraction import DictVectorizer

from ..errors import InvalidValueError, UnknownNameError, whole
from ..vocabulary.sparse import sparse
from .cost import clock

BITS = {"float32": 32, "float16": 16, "int8": 8, "binary": 1}
"""Bits per number of a vector, by storage format."""

POSTING_BYTES = 8
"""Bytes of a weight in a sparse index: four for the number, four for the cluster it belongs to."""

_CPU = torch.device("cpu")


def index_cost(queries: np.ndarray, documents: np.ndarray, tops: Sequence[int | None]) -> pd.DataFrame:
    """Cost and quality of search in lexicon vectors that are cut to their largest weights; queries stay whole.

    Args:
        queries: (queries, dim); the document in the same row is the right one.
        documents: (documents, dim), as many as queries or more.
        tops: Numbers of weights kept per document, in a sparse index; None for whole vectors, by a matrix product.

    Returns:
        One row per top and query: ``top`` (the width for None), ``query`` (its row), ``reciprocal_rank`` (of the right
        document, x 100; equal scores count against it), ``bytes`` (per document: four for a weight and four for the
        number of its cluster, but at most those of the whole vector) and ``milliseconds`` (per query).

    Raises:
        InvalidValueError: Fewer documents than queries, vectors of different widths, or a top below 1.
    """
    _refuse_other(queries, documents)
    frames, gold = [], np.arange(len(queries))
    for top in tops:
        asked, index, size = queries, documents, _dense_bytes(documents.shape[1])
        if top is not None:
            rows = [sparse(queries, queries.shape[1]), sparse(documents, top)]
            table = DictVectorizer(dtype=np.float32).fit([*rows[0], *rows[1]])
            asked, index = map(table.transform, rows)
            size = _sparse_bytes(rows[1], documents.shape[1])
        began = clock(_CPU)
        scores = asked @ index.T
        spent = clock(_CPU) - began
        scores = scores if top is None else scores.toarray()
        ranks = _ranks(scores)
        found = {"top": top or documents.shape[1], "query": gold, "reciprocal_rank": 100 / ranks, "bytes": size}
        frames.append(pd.DataFrame(found | {"milliseconds": 1000 * spent / len(queries)}))
    return pd.concat(frames, ignore_index=True)


def index_bytes(vectors: np.ndarray, tops: Sequence[int] = ()) -> pd.DataFrame:
    """Bytes of documents' vectors in an index, by storage format.

    Only the numbers are counted, not the ids, nor what a search structure adds.

    Args:
        vectors: (documents, dim).
        tops: For lexicon vectors: numbers of the largest weights kept per document, in a sparse index.

    Returns:
        One row per format, whole vectors first: ``form`` (a key of :data:`BITS`; ``top 8`` for vectors that are cut)
        and ``bytes`` (mean per document; of cut vectors as in :func:`index_cost`).

    Raises:
        InvalidValueError: No vectors, a top below 1, or tops for vectors with numbers below 0.

    Examples:
        >>> index_bytes(np.ones((2, 576)), tops=(8,))["bytes"].tolist()
        [2304.0, 1152.0, 576.0, 72.0, 64.0]
    """
    vectors = np.asarray(vectors)
    if vectors.ndim != 2 or not vectors.size:
        raise InvalidValueError("vectors", "numbers (documents, dim)", vectors.shape)
    dim = vectors.shape[1]
    rows = [(form, _dense_bytes(dim, form)) for form in BITS]
    rows += [(f"top {top}", _sparse_bytes(sparse(vectors, top), dim)) for top in tops]
    return pd.DataFrame(rows, columns=["form", "bytes"])


def stored(vectors: np.ndarray, form: str = "float32", width: int | None = None) -> np.ndarray:
    """Vectors as a search reads them from an index that keeps their first numbers, in a format.

    ``int8`` keeps 127 steps on either side of zero, the largest of them a vector's own largest number; ``binary``
    keeps signs. Cosines need no more: the scale of a vector does not change them.

    Args:
        vectors: (texts, dim).
        form: A key of :data:`BITS`.
        width: Numbers that are kept; None for all.

    Returns:
        float32 (texts, width).

    Raises:
        UnknownNameError: No such format.
        InvalidValueError: A width that is not a whole number from 1 to dim.

    Examples:
        >>> stored(np.array([[0.4, -0.1, 0.2]]), "binary", 2).tolist()
        [[1.0, -1.0]]
    """
    if form not in BITS:
        raise UnknownNameError("format", form, BITS)
    dim = vectors.shape[1]
    kept = np.asarray(vectors, dtype=np.float32)[:, : whole("width", dim if width is None else width, 1, dim)]
    if form == "binary":
        return np.where(kept > 0, np.float32(1), np.float32(-1))
    if form == "int8":
        steps = np.abs(kept).max(axis=1, keepdims=True) / 127
        return np.divide(kept, steps, out=np.zeros_like(kept), where=steps > 0).round()
    return kept.astype(form).astype(np.float32)


def index_forms(queries: np.ndarray, documents: np.ndarray, widths: Sequence[int]) -> pd.DataFrame:
    """Quality of search in documents' vectors that are cut and rounded; queries are cut and stay in float32.

    Args:
        queries: (queries, dim); the document in the same row is the right one.
        documents: (documents, dim), as many as queries or more.
        widths: Numbers that are kept of a vector, the first ones.

    Returns:
        One row per format, width and query: ``form`` (a key of :data:`BITS`), ``width``, ``bytes`` (per document),
        ``query`` (its row), ``reciprocal_rank`` (by cosine, of the right document, x 100; equal ones count against it).

    Raises:
        InvalidValueError: Fewer documents than queries, vectors of different widths, or a width that is not there.
    """
    _refuse_other(queries, documents)
    frames = []
    for form in BITS:
        for width in widths:
            index = stored(documents, form, width)
            lengths = np.maximum(np.linalg.norm(index, axis=1), np.finfo(np.float32).tiny)
            found = {"form": form, "width": width, "bytes": _dense_bytes(width, form), "query": range(len(queries))}
            ranks = _ranks(stored(queries, width=width) @ index.T / lengths)
            frames.append(pd.DataFrame(found | {"reciprocal_rank": 100 / ranks}))
    return pd.concat(frames, ignore_index=True)


def _refuse_other(queries: np.ndarray, documents: np.ndarray) -> None:
    if queries.shape[1:] != documents.shape[1:] or len(queries) > len(documents):
        got = f"{queries.shape} and {documents.shape}"
        raise InvalidValueError("queries, documents", "rows of one width, a document or more for each query", got)


def _ranks(scores: np.ndarray) -> np.ndarray:
    """Rank of the document in a query's own row, from 1; equal scores count against it."""
    gold = np.arange(len(scores))
    return (scores >= scores[gold, gold][:, None]).sum(axis=1)


def _dense_bytes(dim: int, form: str = "float32") -> float:
    return float(np.ceil(dim * BITS[form] / 8))


def _sparse_bytes(rows: Sequence[Mapping[int, float]], dim: int) -> float:
    """Mean bytes of cut vectors, at most those of whole ones."""
    return min(_dense_bytes(dim), POSTING_BYTES * sum(map(len, rows)) / len(rows))
