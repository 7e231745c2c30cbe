"""Searches that lexicon vectors are measured against, in the same texts: dense, whole and in bytes, and BM25."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from sklearn.preprocessing import normalize

from .dial import Collection, States, searched
from .index import POSTING_BYTES

BASELINES = ("dense", "dense int8", "BM25")
"""Searches of :func:`baseline_search`."""


def baseline_search(collection: Collection) -> pd.DataFrame:
    """Search of the same texts by other vectors.

    ``dense`` is the mean of the states that LENS pools, by cosine; ``dense int8`` keeps one byte for each number of a
    document, on a scale of its own for each dimension; ``BM25`` weighs the tokens of a text, as they were read.

    Args:
        collection: Texts, read once.

    Returns:
        One row per baseline and query: ``baseline`` (one of :data:`BASELINES`), ``query``, ``reciprocal_rank`` and
        ``bytes``, as of :func:`~.dial.lexicon_search`.
    """
    queries, documents = (_means(texts) for texts in collection)
    scale = np.abs(documents).max(axis=0) / 127
    scale[scale == 0] = 1
    rounded = np.rint(documents / scale) * scale
    bm25, postings = _bm25(collection)
    found = {
        "dense": (queries @ documents.T, 4.0 * documents.shape[1]),
        "dense int8": (queries @ rounded.T, 1.0 * documents.shape[1]),
        "BM25": (bm25, POSTING_BYTES * postings),
    }
    return pd.concat(
        [searched(scores).assign(baseline=name, bytes=size) for name, (scores, size) in found.items()],
        ignore_index=True,
    )[["baseline", "query", "reciprocal_rank", "bytes"]]


def _means(texts: States) -> np.ndarray:
    """Mean state of each text, float32 (texts, dim), of length 1."""
    means = [part.float().mean(dim=0) for part in texts.states.split(texts.lengths)]
    return normalize(torch.stack(means).numpy(), copy=False)


def _bm25(collection: Collection) -> tuple[np.ndarray, float]:
    """Scores (queries, documents), and the mean number of different tokens in a document."""
    import bm25s

    queries, documents = ([[*map(str, ids)] for ids in texts.tokens] for texts in collection)
    index = bm25s.BM25()
    index.index(documents, show_progress=False)
    return np.stack([index.get_scores(ids) for ids in queries]), float(np.mean([len({*ids}) for ids in documents]))
