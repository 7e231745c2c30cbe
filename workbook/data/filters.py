"""What must not be trained on: texts that an evaluation holds, word for word, nearly so, or close by BM25."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from ..corpora.near import near_duplicates
from ..errors import InvalidValueError

CLOSE = 0.6
"""A similarity by BM25 from which on texts say much the same. The paper prints no threshold; this one is the
workbook's, chosen on short messages: above it are texts that differ in a word or two.
"""


def leaked(texts: Iterable[str], held_out: Iterable[str]) -> np.ndarray:
    """Which texts an evaluation holds too: the same words in their order, or half of the word triples.

    Args:
        texts: Training texts; case, punctuation and spaces don't count.
        held_out: Texts of the evaluation.

    Returns:
        bool (texts,).

    Source: NV-Embed, section 4.2: training data of clusters that match the evaluation are left out.
    """
    texts, held_out = list(texts), list(held_out)
    known = {_words(text) for text in held_out}
    found = np.array([_words(text) in known for text in texts], dtype=bool)
    found[near_duplicates(texts, held_out)[0]] = True
    return found


def bm25_similarity(texts: Iterable[str], held_out: Iterable[str]) -> np.ndarray:
    """How close each text is to the nearest of an evaluation's, by BM25.

    A score of BM25 has no upper end and grows with the query, so it is divided by the larger one of those that the two
    texts have with themselves: 1 for the same text, 0 for texts without a common word.

    Args:
        texts: Training texts.
        held_out: Texts of the evaluation.

    Returns:
        float64 (texts,).

    Raises:
        InvalidValueError: No text of the evaluation.

    Source: NV-Embed, section 4.2: thresholds of it for Emotion and AmazonCounterfactual. Robertson and Zaragoza 2009.
    """
    import bm25s

    texts, held_out = list(texts), list(held_out)
    if not held_out:
        raise InvalidValueError("held_out", "texts of an evaluation", "none")
    words = bm25s.tokenize([*texts, *held_out], stopwords=None, return_ids=False, show_progress=False)
    if not any(words):
        return np.zeros(len(texts))
    index = bm25s.BM25(dtype="float64")
    index.index(words, show_progress=False)

    def scores(place: int) -> np.ndarray:
        return index.get_scores(words[place]) if words[place] else np.zeros(len(words))

    own = np.maximum([scores(place)[place] for place in range(len(words))], np.finfo(float).tiny)
    first = len(texts)
    return np.array([(scores(row)[first:] / np.maximum(own[row], own[first:])).max() for row in range(first)])


def _words(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\w+", text.casefold()))
