"""Texts that say nearly the same: the Jaccard similarity of their sets of word triples (w-shingling; Broder 1997)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer

NEAR = 0.5
"""Two texts that share half of their word triples say the same."""

_ROWS = 20_000  # texts that are compared at once


def near_duplicates(texts: Sequence[str], others: Sequence[str] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of texts whose similarity is at least :data:`NEAR`, exactly, by a sparse product.

    Args:
        texts: Strings; upper and lower case are alike, and a text of fewer than three words is near none.
        others: Strings to compare them with; None for the texts themselves.

    Returns:
        Places in ``texts`` and in ``others``, int arrays (pairs,) in the order of the former. Within one list the first
        place is always the smaller.
    """
    count = CountVectorizer(ngram_range=(3, 3), binary=True, token_pattern=r"\w+", dtype=np.int32)
    try:
        shingles = count.fit_transform(texts if others is None else [*texts, *others])
    except ValueError:  # no text has three words
        return np.empty(0, dtype=int), np.empty(0, dtype=int)
    own, other = (shingles, shingles) if others is None else (shingles[: len(texts)], shingles[len(texts) :])
    found, sizes = [], np.diff(other.indptr)
    for start in range(0, max(len(texts), 1), _ROWS):
        part = own[start : start + _ROWS]
        shared = (part @ other.T).tocoo()
        union = np.diff(part.indptr)[shared.row] + sizes[shared.col] - shared.data
        near = shared.data >= NEAR * union
        rows, columns = shared.row[near] + start, shared.col[near]
        found.append((rows, columns) if others is not None else (rows[rows < columns], columns[rows < columns]))
    rows, columns = (np.concatenate(places) for places in zip(*found, strict=True))
    return rows, columns
