"""Sparse lexicon vectors: the largest weights of each, as words, and as a file for an inverted index."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.preprocessing import normalize

from ..errors import InvalidValueError, whole
from ..files import atomic_file

FEWEST = 3
"""Texts whose mean can be subtracted: of two, no cluster is above it in both, so that all they share is gone."""


class Entry(NamedTuple):
    """One weight of a vector, and the words of its cluster."""

    cluster: int
    weight: float
    words: tuple[str, ...]


def above_mean(vectors: Any, collection: Any) -> np.ndarray:
    """What of each weight exceeds its cluster's mean over a collection (0 where nothing does), scaled to length 1.

    In a lexicon vector of a language model the heaviest weights are largely those that all texts have: cut by raw
    weight, vectors keep the same clusters, whatever they say. What stands above the mean tells texts apart, as inverse
    document frequency does for words. The result can be cut, decoded and indexed like the vectors themselves; queries
    take the mean of the same collection.

    Args:
        vectors: (texts, clusters), arrays or tensors, finite numbers, none below 0.
        collection: (texts, clusters), those of the texts that are searched, :data:`FEWEST` at least; better a hundred:
            the mean of few is largely their own.

    Returns:
        (texts, clusters), floats of 0 or more; rows of length 1, or all 0 where nothing exceeds the mean.

    Raises:
        InvalidValueError: As :func:`sparse`, or two numbers of clusters, or a collection of fewer than three texts.

    Examples:
        >>> above_mean([[0.75, 0.5, 0.0]], [[0.75, 0.0, 0.0], [0.75, 0.5, 0.25], [0.75, 0.0, 0.25]]).tolist()
        [[0.0, 1.0, 0.0]]
    """
    rows, others = _rows(vectors), _rows(collection)
    if rows.shape[1] != others.shape[1]:
        raise InvalidValueError("collection", f"vectors of {rows.shape[1]} clusters", others.shape)
    if len(others) < FEWEST:
        raise InvalidValueError(
            "collection", f"{FEWEST} texts at least, whose mean says what they have in common", len(others),
            "Give more of the texts that are searched, or others like them; or use the vectors as they are.",
        )  # fmt: skip
    return normalize(np.maximum(rows - others.mean(axis=0), 0))


def sparse(vectors: Any, top: int) -> list[dict[int, float]]:
    """The largest weights of each vector by cluster, largest first; weights of 0 are left out.

    Args:
        vectors: (texts, clusters), an array or a tensor, finite numbers, none below 0.
        top: Largest number of weights per vector; of equal weights, that of the lower cluster comes first.

    Raises:
        InvalidValueError: ``vectors`` of another shape or with other numbers, or a ``top`` below 1.

    Examples:
        >>> sparse([[0.0, 0.5, 0.25, 0.5]], top=2)
        [{1: 0.5, 3: 0.5}]
    """
    top = whole("top", top)
    found = []
    for row in _rows(vectors):
        clusters = row.nonzero()[0]
        clusters = clusters[np.argsort(-row[clusters], kind="stable")[:top]]
        found.append(dict(zip(clusters.tolist(), row[clusters].tolist(), strict=True)))
    return found


def postings(vectors: Any, top: int) -> list[list[tuple[str, float]]]:
    """The largest weights of each vector as the search engines of sentence-transformers take them.

    A cluster goes by its number: two may have the same words, and engines cut long names.

    Args:
        vectors, top: See :func:`sparse`.

    Raises:
        InvalidValueError: As :func:`sparse`.

    Examples:
        >>> postings([[0.0, 0.5, 0.25, 0.5]], top=2)
        [[('1', 0.5), ('3', 0.5)]]
    """
    return [[(str(cluster), weight) for cluster, weight in row.items()] for row in sparse(vectors, top)]


def decode(vectors: Any, words: Mapping[int, Sequence[str]] | Sequence[Sequence[str]], top: int) -> list[list[Entry]]:
    """The largest weights of each vector with the words of their clusters, largest first.

    Args:
        vectors, top: See :func:`sparse`.
        words: The words of each cluster.

    Raises:
        InvalidValueError: As :func:`sparse`, or a cluster without words.

    Source: LENS, table 3.

    Examples:
        >>> decode([[0.0, 0.5, 0.25]], [["a", "an"], ["cat", "cats"], ["sat"]], top=1)
        [[Entry(cluster=1, weight=0.5, words=('cat', 'cats'))]]
    """
    decoded = []
    for weights in sparse(vectors, top):
        entries = []
        for cluster, weight in weights.items():
            try:
                entries.append(Entry(cluster, weight, tuple(words[cluster])))
            except (KeyError, IndexError):
                raise InvalidValueError("words", f"those of cluster {cluster}", f"{len(words)} clusters") from None
        decoded.append(entries)
    return decoded


def write_index(path: str | PathLike[str], ids: Iterable[str], vectors: Any, top: int, *, scale: int = 1000) -> None:
    """Write one JSON object per line: ``{"id": .., "contents": "", "vector": {cluster: weight}}``.

    Anserini and Pyserini index this as a ``JsonVectorCollection``, with ``--impact --pretokenized``. They take whole
    numbers, so that weights, which are below 1 in a vector of length 1, are multiplied and rounded; those that become 0
    are left out. The product of a query and a document is then their cosine times ``scale`` squared, but for rounding
    and for what ``top`` cuts.

    Args:
        path: The file; it appears whole or not at all.
        ids: One per vector, all different.
        vectors, top: See :func:`sparse`.
        scale: The whole number for a weight of 1.

    Raises:
        InvalidValueError: As :func:`sparse`; ids that repeat, or too few or too many; or a ``scale`` below 1.
        OutputError: The file can't be written.
    """
    scale = whole("scale", scale)
    weights, ids = sparse(vectors, top), [*ids]
    if len(ids) != len(weights) or len({*ids}) != len(ids):
        raise InvalidValueError("ids", f"{len(weights)} that differ", f"{len(ids)}, {len({*ids})} of them different")
    with atomic_file(Path(path)) as temporary, open(temporary, "w", encoding="utf-8") as file:
        for id_, row in zip(ids, weights, strict=True):
            vector = {str(cluster): times for cluster, weight in row.items() if (times := round(weight * scale))}
            file.write(json.dumps({"id": id_, "contents": "", "vector": vector}, ensure_ascii=False) + "\n")


def _rows(vectors: Any) -> np.ndarray:
    """The vectors as a checked array."""
    rows = np.asarray(vectors.detach().cpu().float() if hasattr(vectors, "detach") else vectors)
    if rows.ndim != 2 or rows.dtype.kind not in "fiu":
        raise InvalidValueError("vectors", "numbers (texts, clusters)", f"{rows.dtype} {rows.shape}")
    if not ((rows >= 0) & (rows < np.inf)).all():  # False for nan, too
        raise InvalidValueError("vectors", "weights of 0 or more, finite", "others", "Are they from a lexicon model?")
    return rows
