"""A lexicon model's score of a query on a document, cluster by cluster, and whether that explains the ranking."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy.sparse import csr_array

from ..errors import InvalidValueError, whole
from ..modules.lexicon import pooled_positions
from .lexicon import cluster_names, lexicon_parts, predicted, read_one

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

ORDERS, CHANGES = ("matched", "random"), ("delete", "keep")
DELETED = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Numbers of clusters that :func:`faithfulness` deletes if it is not told."""
_ROUNDING = 1e-12
"""What is left of a difference from which its only part was taken."""


class LexiconReading(NamedTuple):
    """What a lexicon model reads in a text.

    Attributes:
        weights: float64 (clusters,), of length 1, or all 0.
        positions: int64 (clusters,): the position of the state with the cluster's largest logit; -1 for no weight.
        tokens: The token of the text that each pooled position predicts (its own if none comes next), in order.
    """

    weights: np.ndarray
    positions: np.ndarray
    tokens: dict[int, str]


@torch.no_grad()
def lexicon_readings(
    model: SentenceTransformer, texts: Sequence[str], instruction: str | None = None
) -> list[LexiconReading]:
    """Weights of every cluster in each text, and where they come from.

    Args:
        model: An embedder whose pooling is a lexicon.
        texts: Strings, one forward pass each.
        instruction: The bare task instruction in front of every text, or None.

    Raises:
        InvalidValueError: As `workbook.probes.top_clusters`.
    """
    module, lexicon = lexicon_parts(model, texts)
    found = []
    for encoded in module.encode_texts(texts, instruction):
        features = read_one(module, encoded)
        weights = lexicon(features)["sentence_embedding"][0].double().cpu().numpy()
        pooled = pooled_positions(features["pooling_mask"], features["attention_mask"], lexicon.pooling)[0]
        tokens = predicted(module, encoded)
        found.append(
            LexiconReading(
                weights / (np.linalg.norm(weights) or 1),  # float32 is of length 1 but for rounding
                lexicon.contributions(features)[0].cpu().numpy(),
                {position: tokens[position] for position in pooled.nonzero()[:, 0].tolist()},
            )
        )
    return found


def matched(query: LexiconReading, document: LexiconReading) -> pd.DataFrame:
    """The score of a query on a document, split by cluster: the products of their weights add up to the cosine.

    Args:
        query: From :func:`lexicon_readings`.
        document: From the same model.

    Returns:
        One row per cluster with a weight in both, the largest product first: ``cluster`` (from 0), ``score`` (its
        product), ``share`` (of the whole score, 0 to 1), ``query`` and ``document`` (its weights), and where these come
        from: ``query_position``, ``query_token``, ``document_position``, ``document_token``, see
        :class:`LexiconReading`. With ``sum`` pooling a weight comes from all positions; the largest part is shown.

    Raises:
        InvalidValueError: Vectors of two lengths.
    """
    if len(query.weights) != len(document.weights):
        raise InvalidValueError("document", f"{len(query.weights)} clusters, as the query", len(document.weights))
    products = query.weights * document.weights
    order = np.argsort(-products, kind="stable")[: np.count_nonzero(products)]
    columns = {"cluster": order, "score": products[order], "share": products[order] / (products.sum() or 1)}
    columns |= {"query": query.weights[order], "document": document.weights[order]}
    for side, reading in (("query", query), ("document", document)):
        places = reading.positions[order].tolist()
        columns |= {f"{side}_position": places, f"{side}_token": [reading.tokens[place] for place in places]}
    return pd.DataFrame(columns)


def matches(
    model: SentenceTransformer, query: str, document: str, instruction: str | None = None, top: int | None = None
) -> pd.DataFrame:
    """:func:`matched` of two texts, with the names of the clusters.

    Args:
        model: An embedder whose pooling is a lexicon.
        query: A text.
        document: Another, which is read without instruction.
        instruction: The bare task instruction in front of the query, or None.
        top: Largest number of clusters; None for all.

    Returns:
        As :func:`matched`, with ``name`` behind ``cluster``: see `workbook.probes.cluster_names`.

    Raises:
        InvalidValueError: A ``top`` that is not a positive whole number, or as `workbook.probes.top_clusters`.
    """
    top = None if top is None else whole("top", top)
    (one,), (other,) = lexicon_readings(model, [query], instruction), lexicon_readings(model, [document])
    frame = matched(one, other).head(top) if top else matched(one, other)
    frame.insert(1, "name", cluster_names(model, frame["cluster"].tolist()) if len(frame) else [])
    return frame


def faithfulness(
    queries: np.ndarray,
    documents: np.ndarray,
    right: Sequence[int],
    *,
    deleted: Sequence[int] = DELETED,
    draws: int = 5,
    seed: int = 0,
) -> pd.DataFrame:
    """What is left of a ranking when the clusters that explain a query's score are deleted, against random ones.

    If the split of a score by cluster explains the ranking, then without the clusters that add most to the score of the
    right document it falls in rank faster than without as many random clusters of the query (comprehensiveness); and
    those few alone rank it about as well as all (sufficiency).

    The clusters are chosen with the right document in hand, which helps it even where vectors are noise: kept alone,
    they rank it first there too. So a curve is to be compared with that of another head or of vectors whose clusters
    mean nothing; random clusters of the same query control for the number alone.

    Args:
        queries: (queries, clusters), lexicon vectors, numbers of 0 or more.
        documents: (documents, clusters).
        right: For each query the row of its right document, from 0.
        deleted: Numbers of clusters that are deleted, or kept alone. A query with fewer loses all, or keeps all.
        draws: Number of draws of random clusters, over which the outcomes are averaged.
        seed: Of the draws.

    Returns:
        One row per number, change, order and query: ``query`` (its row), ``change`` (``delete`` or ``keep``: these
        clusters, or all others, are set to 0 in the query), ``order`` (``matched``: by their product in query and right
        document, largest first; ``random``: drawn from all that have a weight in the query), ``clusters`` (the number),
        ``score`` (what is left of the product with the right document, for unit vectors of the cosine) and
        ``reciprocal_rank`` (0 to 1; documents of equal score share the mean of their ranks). The query is not scaled
        again, which changes no rank.

    Raises:
        InvalidValueError: Vectors of other shapes or numbers, a right document that is not there, a number that is not
            whole or below 0, or draws that are not a positive whole number.

    Source: ERASER (DeYoung et al., 2020), section 4.2: comprehensiveness and sufficiency.
    """
    queries, documents = _weights("queries", queries), _weights("documents", documents)
    right, deleted, draws = np.asarray(right), [whole("deleted", k, 0) for k in deleted], whole("draws", draws)
    if queries.shape[1] != documents.shape[1]:
        raise InvalidValueError("documents", f"{queries.shape[1]} clusters, as the queries", documents.shape[1])
    rows = range(len(documents))
    if right.shape != (len(queries),) or right.dtype.kind not in "iu" or not {*right.tolist()} <= {*rows}:
        raise InvalidValueError("right", f"{len(queries)} rows of documents, from 0 to {rows[-1]}", right)
    active, generator = queries > 0, np.random.default_rng(seed)
    keys = {
        "matched": [-(queries * documents[right])],
        "random": [generator.random(queries.shape) for _ in range(draws)],
    }
    places = {order: [_places(key, active) for key in found] for order, found in keys.items()}
    full, frames = queries @ documents.T, []
    for k in deleted:
        for order in ORDERS:
            # Few weights of each query: a sparse product takes a fraction of the time.
            parts = [csr_array(queries * (place < k)) @ documents.T for place in places[order]]
            for change in CHANGES:
                outcomes = [_outcome(part if change == "keep" else full - part, right) for part in parts]
                score, reciprocal_rank = np.mean(outcomes, axis=0)
                columns = {"change": change, "order": order, "clusters": k}
                columns |= {"score": score, "reciprocal_rank": reciprocal_rank}
                frames.append(pd.DataFrame({"query": range(len(queries)), **columns}))
    return pd.concat(frames, ignore_index=True)


def _places(keys: np.ndarray, active: np.ndarray) -> np.ndarray:
    """The place of each cluster by its key, from 0 in every row; those without a weight behind all others."""
    order = np.argsort(np.where(active, keys, np.inf), axis=1, kind="stable")
    places = np.empty_like(order)
    np.put_along_axis(places, order, np.arange(order.shape[1])[None], axis=1)
    return places


def _outcome(scores: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Score and reciprocal rank of the right documents, from the scores of all, (queries, documents)."""
    own = np.take_along_axis(scores, right[:, None], axis=1)
    equal = np.abs(scores - own) <= _ROUNDING  # itself, too
    above = ((scores > own) & ~equal).sum(axis=1)
    return own[:, 0], 1 / (above + (equal.sum(axis=1) + 1) / 2)


def _weights(name: str, vectors: np.ndarray) -> np.ndarray:
    rows = np.asarray(vectors)
    if rows.ndim != 2 or not rows.size or rows.dtype.kind not in "fiu" or not ((rows >= 0) & (rows < np.inf)).all():
        raise InvalidValueError(name, "finite numbers of 0 or more (texts, clusters)", f"{rows.dtype} {rows.shape}")
    return rows.astype(float)
