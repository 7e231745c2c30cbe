"""When do negatives lie? How often a negative of a batch has the class of the query, and what that does to a gradient.

The rows of a batch are a query, a positive of its class, and hard negatives of other classes, as
``workbook.data.curation.from_classes`` makes them. With in-batch negatives a query is told from the documents of all
rows, and those of its own class are false negatives. What follows from the number of classes alone is here in closed
form; :mod:`.batches` measures what else there is to know.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import expit, log_softmax, softmax
from scipy.stats import binom

from ..data.curation import DOCUMENTS
from ..errors import InvalidValueError, UnknownNameError, whole

IN_BATCH = ("off", "on", "masked")
"""Negatives from other rows: none, all, or all that are not of the query's class."""


def false_negative_counts(
    classes: int | Sequence[float],
    batch_size: int,
    negatives: int = 0,
    *,
    documents: str = "examples",
    task_share: float = 1.0,
) -> np.ndarray:
    """The distribution of the number of false negatives of a row with in-batch negatives, exactly.

    The classes of the rows are drawn independently. An example as a hard negative is any text of another class; labels
    are drawn without repetition, and there are at most k - 1 of them.

    Args:
        classes: Number of classes of equal size, or the share of each in the rows of its task.
        batch_size: Rows.
        negatives: Hard negatives per row.
        documents: What represents a class: ``examples`` or ``labels``.
        task_share: Share of the task in the batch, where a batch blends tasks; rows of other tasks hold no false
            negative.

    Returns:
        float64 (numbers,): the chance of 0, 1, 2 ... false negatives; sums to 1.

    Raises:
        UnknownNameError: Neither examples nor labels.
        InvalidValueError: Fewer than two classes, shares that are not positive or do not sum to 1, or a number or share
            outside its range.

    Examples:
        >>> false_negative_counts(2, batch_size=3).round(2).tolist()
        [0.25, 0.5, 0.25]
    """
    shares = _shares(classes)
    batch_size, negatives = whole("batch_size", batch_size), whole("negatives", negatives, 0)
    if not 0 < task_share <= 1:
        raise InvalidValueError("task_share", "a share of the batch, more than 0 and at most 1", task_share)
    if documents not in DOCUMENTS:
        raise UnknownNameError("documents", documents, DOCUMENTS)
    if documents == "labels":
        negatives = min(negatives, len(shares) - 1)
    found = np.zeros((batch_size - 1) * max(1, negatives) + 1)
    groups, sizes = np.unique(shares, return_counts=True)  # classes of one size have the same counts
    for share, alike in zip(groups, sizes, strict=True):
        # Another row: of another task, of the query's class, or of another class with such negatives among its own.
        row = np.zeros(max(1, negatives) + 1)
        row[0] += 1 - task_share
        row[1] += task_share * share
        for other, number in zip(groups, sizes - (groups == share), strict=True):
            if documents == "examples":
                drawn = binom.pmf(np.arange(negatives + 1), negatives, share / (1 - other))
            else:
                drawn = np.array([1 - negatives / (len(shares) - 1), negatives / (len(shares) - 1)])
            row[: len(drawn)] += task_share * number * other * drawn
        found += alike * share * _power(row, batch_size - 1, len(found))
    return found


def false_negatives(
    classes: int | Sequence[float],
    batch_size: int,
    negatives: int = 0,
    *,
    documents: str = "examples",
    in_batch: str = "on",
    task_share: float = 1.0,
) -> dict[str, float]:
    """How likely, how many, and what share of a row's negatives false ones are.

    For k classes of equal size and n hard negatives the chance is ``1 - ((1 - 1/k) (1 - 1/(k-1))^n)^(B-1)`` with
    examples, and with labels ``1 - ((1 - 1/k) (1 - n/(k-1)))^(B-1)``. The number is ``(B-1) (1+n) / k`` in both.

    Args:
        classes, batch_size, negatives, documents, task_share: See :func:`false_negative_counts`.
        in_batch: One of :data:`IN_BATCH`.

    Returns:
        ``chance`` of at least one, ``number`` expected, and ``share`` expected of all negatives of the row (NaN if it
        has none).

    Raises:
        UnknownNameError, InvalidValueError: As :func:`false_negative_counts`; or no such kind of in-batch negatives.

    Source: NV-Embed, sections 3.3 and 5.2.1, which name the problem; the formulas are ours.

    Examples:
        >>> round(false_negatives(2, batch_size=3)["chance"], 2)
        0.75
    """
    if in_batch not in IN_BATCH:
        raise UnknownNameError("kind of in-batch negatives", in_batch, IN_BATCH)
    found = false_negative_counts(classes, batch_size, negatives, documents=documents, task_share=task_share)
    if documents == "labels":
        negatives = min(negatives, len(_shares(classes)) - 1)
    others = (batch_size - 1) * (1 + negatives) if in_batch == "on" else 0
    number = float(found @ np.arange(len(found))) if others else 0.0
    total = others + negatives if in_batch != "masked" else (batch_size - 1) * (1 + negatives) + negatives
    return {
        "chance": float(1 - found[0]) if others else 0.0,
        "number": number,
        "share": number / total if total else float("nan"),
    }


def pushed_away(
    classes: int | Sequence[float],
    batch_size: int,
    negatives: int = 0,
    *,
    same: float,
    other: float,
    temperature: float = 0.02,
    documents: str = "examples",
    task_share: float = 1.0,
) -> float:
    """The share of a row's push against negatives that falls on texts of its own class, in expectation.

    InfoNCE pushes the query from a negative by its share of the softmax. So it does not matter how many false negatives
    there are alone, but also how much nearer they are than true ones: at a temperature of 0.02 a cosine that is higher
    by 0.1 weighs 148 times as much.

    Args:
        classes, batch_size, negatives, documents, task_share: See :func:`false_negative_counts`.
        same: Cosine of two texts of one class.
        other: Cosine of two texts of different classes.
        temperature: Divisor of the cosines.

    Returns:
        A share, 0 to 1: of F false and N true negatives ``F / (F + N exp((other - same) / temperature))``, over the
        distribution of F.

    Raises:
        UnknownNameError, InvalidValueError: As :func:`false_negative_counts`, or a temperature that is not positive.
    """
    check_temperature(temperature)
    chances = false_negative_counts(classes, batch_size, negatives, documents=documents, task_share=task_share)
    if documents == "labels":
        negatives = min(negatives, len(_shares(classes)) - 1)
    false = np.arange(len(chances))
    true = np.maximum(batch_size - 1 + batch_size * negatives - false, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        odds = np.log(false) - np.log(true) + (same - other) / temperature
    share = np.where(false > 0, expit(odds), 0.0)  # no negative at all pushes nothing away
    return float(chances @ share)


def label_loss(
    scores: np.ndarray, right: int, counts: Sequence[float] | np.ndarray | None = None
) -> tuple[float, np.ndarray]:
    """InfoNCE of a row whose documents are labels, some of them several times, and its gradient.

    All copies of a label are one text with one vector. Where every label is there c times, the loss is higher by
    ``log(c)`` and the gradient is the same to the last digit: a complete set of labels repeated by other rows neither
    helps nor harms, though half of the negatives of two classes are false. Where the counts differ, it is as if
    ``log(counts)`` were added to the scores.

    Args:
        scores: Cosine / temperature of the query with each label, (labels,).
        right: Place of its own label.
        counts: How often each label is among the candidates, with the row's own positive; None for once each, 0 for a
            label that is not there.

    Returns:
        The loss, and its derivative by the scores, float64 (labels,).

    Raises:
        InvalidValueError: Not one count of each label, a negative one, or none of the row's own.

    Examples:
        >>> once, twice = label_loss([1.0, 0.5], 0), label_loss([1.0, 0.5], 0, [2, 2])
        >>> round(twice[0] - once[0], 4), bool(abs(twice[1] - once[1]).max() < 1e-15)
        (0.6931, True)
    """
    scores = np.asarray(scores, dtype=float)
    counts = np.ones(len(scores)) if counts is None else np.asarray(counts, dtype=float)
    right = whole("right", right, 0, len(scores) - 1)
    if counts.shape != scores.shape or (counts < 0).any() or not counts[right] >= 1:
        raise InvalidValueError(
            "counts", f"{len(scores)} of 0 or more, and 1 or more of the own label", counts.tolist()
        )
    with np.errstate(divide="ignore"):
        shifted = scores + np.log(counts)
    gradient = softmax(shifted)
    gradient[right] -= 1
    # The target is one copy of the right label.
    return float(np.log(counts[right]) - log_softmax(shifted)[right]), gradient


def _power(row: np.ndarray, times: int, length: int) -> np.ndarray:
    """The distribution of the sum of independent numbers with one distribution, by squaring."""
    found = np.ones(1)
    while times:
        if times % 2:
            found = np.convolve(found, row)
        row, times = np.convolve(row, row), times // 2
    return np.pad(found, (0, max(length - len(found), 0)))[:length]


def _shares(classes: int | Sequence[float]) -> np.ndarray:
    if np.ndim(classes) == 0:
        return np.full(count := whole("classes", classes, 2), 1 / count)
    shares = np.asarray(classes, dtype=float)
    if len(shares) < 2 or not (shares > 0).all() or abs(shares.sum() - 1) > 1e-9:
        raise InvalidValueError("classes", "two positive shares or more that sum to 1", shares.tolist())
    return shares


def check_temperature(temperature: float) -> None:
    """Refuse what is not a positive number.

    Raises:
        InvalidValueError: The temperature is not.
    """
    if isinstance(temperature, bool) or not isinstance(temperature, int | float) or not temperature > 0:
        raise InvalidValueError("temperature", "a positive number", temperature)
