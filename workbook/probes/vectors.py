"""Properties of the vectors of some texts: their lengths, their clusters, and a map."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from sklearn.cluster import AgglomerativeClustering
from sklearn.decomposition import PCA
from sklearn.preprocessing import normalize

from ..errors import InvalidValueError, whole
from ..modules.contextual import REPRESENTATIONS, ContextualPooling

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def vector_lengths(model: SentenceTransformer, vectors: np.ndarray) -> pd.DataFrame:
    """Lengths of vectors, and of the halves that Causal2Vec concatenates.

    A cosine does not depend on the length of a vector, but in a concatenation the longer half decides it.

    Args:
        model: The embedder that made the vectors.
        vectors: (texts, dim), not normalised.

    Returns:
        One row per text and part: ``text`` (its row, from 0), ``part`` (``whole``; then, for a vector of several parts,
        their names in `workbook.modules.contextual.REPRESENTATIONS`), ``length`` (Euclidean, 0 or more).

    Raises:
        InvalidValueError: Vectors that are not finite numbers (texts, dim).

    Source: Causal2Vec, appendix C.1.
    """
    vectors = _finite(vectors)
    parts = _parts(model, vectors)
    rows = {part: np.linalg.norm(values, axis=1) for part, values in parts.items()}
    return pd.DataFrame(
        [(text, part, float(rows[part][text])) for text in range(len(vectors)) for part in rows],
        columns=["text", "part", "length"],
    )


def cosine_parts(model: SentenceTransformer, first: np.ndarray, second: np.ndarray) -> pd.DataFrame:
    """The cosine of concatenated vectors, as a sum over their parts: each part's own cosine, times its weight.

    The weight of a part is the product of its two lengths, by the product of the lengths of the whole vectors. The
    weights add up to 1 where both vectors have their length from the parts in the same ratio, else to less.

    Args:
        model: The embedder that made the vectors, which names the parts.
        first: (pairs, dim), not normalised.
        second: (pairs, dim), one for each of ``first``.

    Returns:
        One row per pair and part: ``pair`` (from 0), ``part`` (``whole``, then those of :func:`vector_lengths`),
        ``cosine`` (-1 to 1) and ``weight`` (0 to 1; of the whole 1). Of a pair, the sum of weight times cosine over the
        parts is the cosine of the whole. A part of length 0 has the cosine NaN and the weight 0.

    Raises:
        InvalidValueError: Vectors that are not finite numbers (pairs, dim), or two of different shapes.

    Source: this project's; Causal2Vec, section 3.2, concatenates, and appendix C.1 gives the lengths.
    """
    first, second = (_finite(vectors).astype(float) for vectors in (first, second))
    if first.shape != second.shape:
        raise InvalidValueError("second", f"one vector for each of the first, {first.shape}", second.shape)
    frames = []
    pieces = zip(_parts(model, first).items(), _parts(model, second).values(), strict=True)
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    for (part, one), other in pieces:
        own = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
        with np.errstate(invalid="ignore"):
            cosine, weight = (one * other).sum(axis=1) / own, own / lengths
        frames.append(pd.DataFrame({"pair": range(len(one)), "part": part, "cosine": cosine, "weight": weight}))
    return pd.concat(frames).sort_values("pair", kind="stable", ignore_index=True)


def vector_spread(model: SentenceTransformer, vectors: np.ndarray) -> pd.DataFrame:
    """What tells texts apart: the share of each part of a vector in the variance between texts.

    A part that is long and the same for all texts adds a constant to every cosine, and orders nothing. The whole
    vectors are divided by their lengths first, as a cosine does.

    Args:
        model: The embedder that made the vectors, which names the parts.
        vectors: (texts, dim), not normalised.

    Returns:
        One row per text and part: ``text`` (from 0), ``part`` (as in :func:`vector_lengths`), ``weight`` (the part's
        squared length by the whole's, 0 to 1) and ``spread`` (its squared distance from the part's mean, by the mean
        squared distance of the whole vectors from theirs; 0 or more). The means of either column over texts are 1
        for ``whole``, and add up to 1 over the other parts.

    Raises:
        InvalidValueError: Vectors that are not finite numbers (texts, dim), vectors of zeros, or vectors that all
            point one way.

    Source: this project's; Causal2Vec, appendix C.1 and figure 3, draws the lengths alone.
    """
    vectors = _finite(vectors).astype(float)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    if zeros := int((lengths == 0).sum()):
        raise InvalidValueError("vectors", "none of zeros", f"{zeros} of {len(vectors)}")
    directions = vectors / lengths
    total = directions.var(axis=0).sum()
    if total < 1e-12:
        raise InvalidValueError("vectors", "at least two directions", "one")
    frames = [
        pd.DataFrame({
            "text": range(len(vectors)),
            "part": part,
            "weight": (values**2).sum(axis=1),
            "spread": ((values - values.mean(axis=0)) ** 2).sum(axis=1) / total,
        })
        for part, values in _parts(model, directions).items()
    ]  # fmt: skip
    return pd.concat(frames).sort_values("text", kind="stable", ignore_index=True)


def _parts(model: SentenceTransformer, vectors: np.ndarray) -> dict[str, np.ndarray]:
    """The whole vectors, and the parts that Causal2Vec concatenates, by name."""
    pooling = [*model][-1]
    names = REPRESENTATIONS[pooling.representation] if isinstance(pooling, ContextualPooling) else ()
    halves = dict(zip(names, np.split(vectors, len(names), axis=1), strict=True)) if len(names) > 1 else {}
    return {"whole": vectors} | halves


def vector_map(vectors: np.ndarray, clusters: int) -> pd.DataFrame:
    """Texts in clusters and on a plane, both from the direction of their vectors alone.

    The clusters are Ward's, joined from single texts upward, always the two whose union is tightest; nothing is random.
    The plane is that of the two principal components; the clusters do not depend on it.

    Args:
        vectors: (texts, dim).
        clusters: Number of clusters.

    Returns:
        One row per text: ``text`` (its row, from 0), ``cluster`` (from 1, in the order of their first texts), ``x``,
        ``y`` (of the unit vectors, so that maps of several models have one scale) and ``shown``: the share of the
        variance that the plane shows, 0 to 1, the same in all rows (NaN if all vectors are equal).

    Raises:
        InvalidValueError: Vectors that are not finite numbers (texts, dim), fewer than two, or a number of clusters
            that is not a whole number from 2 to the number of texts.
    """
    vectors = _finite(vectors)
    if len(vectors) < 2 or vectors.shape[1] < 2:
        raise InvalidValueError("vectors", "at least two, of two numbers or more", vectors.shape)
    clusters = whole("clusters", clusters, 2, len(vectors), hint=f"There are {len(vectors)} texts.")
    directions = normalize(vectors.astype(float))
    found, _ = pd.factorize(AgglomerativeClustering(clusters).fit_predict(directions))
    with np.errstate(invalid="ignore"):  # if all vectors are equal there is no variance to show
        plane = PCA(2, svd_solver="full").fit(directions)
    x, y = plane.transform(directions).T
    shown = float(plane.explained_variance_ratio_.sum())
    return pd.DataFrame({"text": range(len(vectors)), "cluster": found + 1, "x": x, "y": y, "shown": shown})


def _finite(vectors: np.ndarray) -> np.ndarray:
    vectors = np.asarray(vectors)
    if vectors.ndim != 2 or not vectors.size:
        raise InvalidValueError("vectors", "numbers (texts, dim)", vectors.shape)
    if bad := int((~np.isfinite(vectors)).any(axis=1).sum()):
        raise InvalidValueError("vectors", "finite numbers", f"NaN or inf in {bad} of {len(vectors)}")
    return vectors
