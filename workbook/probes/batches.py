"""Batches of texts with known classes: how many negatives are false, and what they do to the gradient, measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

import numpy as np
import pandas as pd
from scipy.special import log_softmax

from ..data.curation import DOCUMENTS
from ..errors import InvalidValueError, whole
from .negatives import IN_BATCH, check_temperature


def measured_negatives(
    vectors: np.ndarray,
    labels: Sequence,
    *,
    label_vectors: np.ndarray | None = None,
    classes: Iterable[int] = (2, 6, 20),
    batch_sizes: Iterable[int] = (8, 32, 128),
    negatives: Iterable[int] = (0, 1, 3, 7),
    temperature: float = 0.02,
    batches: int = 10,
    seed: int = 0,
) -> pd.DataFrame:
    """The same shares, and what false negatives do to the gradient, on the vectors of texts with known classes.

    Batches are drawn from random classes of the data, rows independently, as
    ``workbook.data.curation.from_classes`` makes them. The gradient is that of InfoNCE along the unit sphere, by the
    query (of each row), or by all queries and documents of the batch, where copies of a document are one. The vectors
    stay: this is the first step from where the model stands, not a training.

    Args:
        vectors: Of texts, (texts, dim); only their directions count.
        labels: The class of each text; a class has two texts or more.
        label_vectors: Of the labels' texts, (classes, dim), in the order of the sorted classes; None to leave labels as
            documents out.
        classes: Numbers of classes; those above the data's are left out.
        batch_sizes: Rows of a batch.
        negatives: Hard negatives per row; as labels there are at most one less than classes.
        temperature: Divisor of the cosines.
        batches: Batches of each kind.
        seed: Of the draws.

    Returns:
        One row per number of classes, batch size, negatives, documents and in_batch (:data:`IN_BATCH`): ``chance``
        (of a false negative in a row), ``number`` and ``share`` of them as in :func:`false_negatives`; ``pushed``, the
        share of the push against negatives that falls on false ones; ``loss``; ``row_cosine`` and ``batch_cosine`` of
        the gradient with that of ``masked``, and ``row_length`` as a multiple of it; ``own_cosine``, of a row's
        gradient with that of ``off``. Means over all rows and batches that have them; NaN where none has a negative or
        a gradient.

        With labels ``row_cosine`` is 1 throughout: a false negative is the row's own positive once more, which is
        pushed and pulled alike, so that it shortens the step of the query and does not turn it.

    Raises:
        InvalidValueError: Vectors and labels that don't belong together, classes of one text, fewer than two of the
            classes asked for, or numbers outside their range.
    """
    check_temperature(temperature)
    data = _Classes(vectors, labels, label_vectors)
    wanted = sorted({whole("classes", count, 2) for count in classes if count <= len(data.sizes)})
    if not wanted:
        raise InvalidValueError("classes", f"a number from 2 to the data's {len(data.sizes)}", list(classes))
    batches = whole("batches", batches)
    kinds = DOCUMENTS if label_vectors is not None else DOCUMENTS[:1]
    draw, rows = np.random.default_rng(seed), []
    for count, size, hard, documents in product(wanted, batch_sizes, negatives, kinds):
        size, hard = whole("batch_sizes", size, 2), whole("negatives", hard, 0)
        given = [data.batch(draw, count, size, hard, documents) for _ in range(batches)]
        measured = [_measured(*one, temperature) for one in given]
        for kind in IN_BATCH:
            means = pd.DataFrame([one[kind] for one in measured]).mean().to_dict()
            rows.append({"classes": count, "batch_size": size, "negatives": hard, "documents": documents,
                         "in_batch": kind, **means})  # fmt: skip
    return pd.DataFrame(rows)


class _Classes:
    """Texts sorted by class, of which batches are drawn."""

    def __init__(self, vectors: np.ndarray, labels: Sequence, label_vectors: np.ndarray | None):
        vectors, labels = _unit("vectors", vectors), np.asarray(labels)
        if len(vectors) != len(labels):
            raise InvalidValueError("labels", f"one for each of {len(vectors)} vectors", len(labels))
        names, own, self.sizes = np.unique(labels, return_inverse=True, return_counts=True)
        if len(names) < 2 or self.sizes.min() < 2:
            raise InvalidValueError("labels", "two classes or more, of two texts or more", self.sizes.tolist())
        self.vectors = vectors[np.argsort(own, kind="stable")]
        self.starts = np.cumsum(self.sizes) - self.sizes
        self.names = None if label_vectors is None else _unit("label_vectors", label_vectors)
        if self.names is not None and len(self.names) != len(names):
            raise InvalidValueError("label_vectors", f"one for each of {len(names)} classes", len(self.names))

    def batch(
        self, draw: np.random.Generator, count: int, size: int, hard: int, documents: str
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Vectors that documents are taken from, then by row: query, its class, documents (positive first) and theirs.

        Queries are vectors (rows, dim); documents are places (rows, 1 + negatives) in the vectors before.
        """
        chosen = np.sort(draw.permutation(len(self.sizes))[:count])
        sizes, ends = self.sizes[chosen], np.cumsum(self.sizes[chosen])
        total, starts = ends[-1], ends - sizes
        places = np.concatenate(
            [np.arange(size) + start for size, start in zip(sizes, self.starts[chosen], strict=True)]
        )
        query = draw.integers(total, size=size)
        own = np.searchsorted(ends, query, side="right")
        if documents == "labels":
            keys = draw.random((size, count))
            keys[np.arange(size), own] = -1  # the own label comes first
            kinds = np.argsort(keys, axis=1)[:, : 1 + hard]
            return self.names[chosen], self.vectors[places[query]], own, kinds, kinds
        inside = (query - starts[own] + 1 + draw.integers(sizes[own] - 1)) % sizes[own] + starts[own]
        outside = draw.integers((total - sizes[own])[:, None], size=(size, hard))
        outside += np.where(outside >= starts[own][:, None], sizes[own][:, None], 0)
        found = np.column_stack([inside, outside])
        pool = self.vectors[places]
        return pool, pool[query], own, found, np.searchsorted(ends, found, side="right")


def _measured(
    pool: np.ndarray, queries: np.ndarray, own: np.ndarray, documents: np.ndarray, kinds: np.ndarray, temperature: float
) -> dict[str, dict[str, float]]:
    """The measurements of one batch, by kind of in-batch negatives."""
    rows, width = documents.shape
    flat = documents.ravel()
    candidates = pool[flat]
    scores = queries @ candidates.T / temperature
    target = np.arange(rows) * width  # places of the positives
    mine = np.arange(rows)[:, None] == np.repeat(np.arange(rows), width)
    positive = np.zeros_like(mine)
    positive[np.arange(rows), target] = True
    false = (own[:, None] == kinds.ravel()) & ~positive
    allowed = {"off": mine, "on": np.ones_like(mine), "masked": ~false}
    texts, copies = np.unique(flat, return_inverse=True)
    found, gradients = {}, {}
    for kind, seen in allowed.items():
        logits = np.where(seen, scores, -np.inf)
        logs = log_softmax(logits, axis=1)
        push = np.where(positive, 0, np.exp(logs))
        wrong = false & seen
        total = push.sum(axis=1)
        numbers, others = wrong.sum(axis=1), seen.sum(axis=1) - 1
        # By distinct text, and for the positive's what the others leave: where a row is all but right, the difference
        # of its own share and 1 would be a rounding error.
        slopes = np.zeros((len(texts), rows))
        np.add.at(slopes, copies, push.T)
        slopes[copies[target], np.arange(rows)] = 0
        slopes[copies[target], np.arange(rows)] = -slopes.sum(axis=0)
        by_query = _tangent(slopes.T @ pool[texts], queries)
        by_text = _tangent(slopes @ queries, pool[texts])
        gradients[kind] = by_query, np.concatenate([by_query.ravel(), by_text.ravel()])
        with np.errstate(invalid="ignore", divide="ignore"):
            found[kind] = {
                "chance": float((numbers > 0).mean()),
                "number": float(numbers.mean()),
                "share": _mean(numbers / others),
                "pushed": _mean((push * wrong).sum(axis=1) / total),
                "loss": float(-logs[np.arange(rows), target].mean()),
            }
    for kind, (by_query, whole_batch) in gradients.items():
        found[kind] |= {
            "row_cosine": _mean(_cosines(by_query, gradients["masked"][0])),
            "row_length": _length(by_query, gradients["masked"][0]),
            "batch_cosine": _mean(_cosines(whole_batch[None], gradients["masked"][1][None])),
            "own_cosine": _mean(_cosines(by_query, gradients["off"][0])),
        }
    return found


def _tangent(gradient: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The part of gradients by unit vectors that is not along them: what is left behind the normalisation."""
    return gradient - (gradient * at).sum(axis=1, keepdims=True) * at


def _cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore", divide="ignore"):
        return (one * other).sum(axis=1) / (np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1))


def _length(one: np.ndarray, other: np.ndarray) -> float:
    lengths = [np.linalg.norm(rows, axis=1).sum() for rows in (one, other)]
    return float(lengths[0] / lengths[1]) if lengths[1] else float("nan")


def _mean(values: np.ndarray) -> float:
    """The mean of the numbers among the values; NaN if there is none."""
    numbers = values[np.isfinite(values)]
    return float(numbers.mean()) if len(numbers) else float("nan")


def _unit(name: str, vectors: np.ndarray) -> np.ndarray:
    vectors = np.asarray(vectors, dtype=np.float64)
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True) if vectors.ndim == 2 else np.zeros(1)
    if not np.isfinite(lengths).all() or not (lengths > 0).all():
        raise InvalidValueError(name, "finite vectors (texts, dim), none of them 0", vectors.shape)
    return vectors / lengths
