"""Intervals from the outcomes of single items (queries, pairs, texts), by the bootstrap.

A resample of n items is a row of n counts that add up to n: how often each item was drawn. Every statistic here is a
function of such counts, so that all resamples are computed at once and none is sorted again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

_ROUNDED = 2e-5  # mteb rounds some scores to five digits
_CELLS = 4_000_000  # counts that are held in memory at once


def mean(counts: np.ndarray, values: np.ndarray, gold: np.ndarray | None = None) -> np.ndarray:
    """Mean of the drawn values, float64 (resamples,).

    Args:
        counts: How often each item was drawn, (resamples, items).
        values: Value of each item, (items,).
        gold: Not used.
    """
    return counts @ values / counts.sum(axis=1)


def spearman(counts: np.ndarray, values: np.ndarray, gold: np.ndarray) -> np.ndarray:
    """Spearman's rank correlation of the drawn values with their gold scores, ties at their middle rank.

    Args:
        counts: How often each item was drawn, (resamples, items).
        values: Value of each item, (items,).
        gold: Gold score of each item, (items,).

    Returns:
        float64 (resamples,), NaN where all drawn values or all drawn scores are equal.
    """
    x, y, total = _ranks(counts, values), _ranks(counts, gold), counts.sum(axis=1, keepdims=True)
    x, y = (ranks - (counts * ranks).sum(axis=1, keepdims=True) / total for ranks in (x, y))
    with np.errstate(invalid="ignore"):  # no correlation where all drawn scores are equal
        return (counts * x * y).sum(axis=1) / np.sqrt((counts * x**2).sum(axis=1) * (counts * y**2).sum(axis=1))


def average_precision(counts: np.ndarray, values: np.ndarray, gold: np.ndarray) -> np.ndarray:
    """Average precision of the drawn items, ranked by value; equal values share one threshold.

    Args:
        counts: How often each item was drawn, (resamples, items).
        values: Value of each item, (items,).
        gold: Label of each item, 0 or 1, (items,).

    Returns:
        float64 (resamples,), NaN where no positive was drawn.
    """
    order = np.argsort(-values, kind="stable")
    last_of_equals = np.append(np.diff(values[order]) != 0, True)
    found = np.cumsum(counts[:, order] * gold[order], axis=1)[:, last_of_equals]
    seen = np.cumsum(counts[:, order], axis=1)[:, last_of_equals]
    gained = np.diff(found, axis=1, prepend=0)
    with np.errstate(invalid="ignore"):  # a resample without positives has no average precision
        return (gained * found / np.maximum(seen, 1)).sum(axis=1) / found[:, -1]


def _ranks(counts: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Middle rank of each item among the drawn ones, (resamples, n)."""
    _, group = np.unique(values, return_inverse=True)
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    sizes = np.add.reduceat(counts[:, order], starts, axis=1)
    return (np.cumsum(sizes, axis=1) - (sizes - 1) / 2)[:, group]


STATISTICS: dict[str, Callable[..., np.ndarray]] = {
    "mean": mean,
    "spearman": spearman,
    "average_precision": average_precision,
}


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Outcomes of a model on each item of a task: enough to resample the task's score without the model.

    Attributes:
        score: The task's score as mteb computed it, 0 to 1 (correlations -1 to 1).
        statistic: The statistic of the items that is the score, a key of :data:`STATISTICS`; ``replicates`` if
            ``values`` are the scores of mteb's own resamples (clustering); or ``none`` if mteb's score can't be taken
            apart.
        values: float64 (items,): outcome of each query or text, or similarity of each pair.
        gold: float64 (items,): gold score or label of each pair; None if not needed.
        groups: int (items,), from 0: items of one group are drawn together, because they share a text; None draws
            each item on its own.
        items: Number of items.
        units: Digest of the units that are drawn, in order (:func:`units`): tasks over the same queries have the same
            resamples, other tasks have their own.
        digest: Digest of the texts that were embedded; only outcomes on the same texts can be paired.
        resamples: Number of bootstrap resamples.
        seed: Of the bootstrap.
    """

    score: float
    statistic: str
    values: np.ndarray
    gold: np.ndarray | None
    groups: np.ndarray | None
    items: int
    units: str
    digest: str
    resamples: int
    seed: int

    def resampled(self) -> np.ndarray:
        """The score of every resample, float64 (resamples,); equal seed and units draw the same resamples."""
        if self.statistic == "replicates":
            return self.values
        if self.statistic == "none":
            return np.full(2, np.nan)
        statistic = STATISTICS[self.statistic]
        groups = np.arange(len(self.values)) if self.groups is None else self.groups
        blocks = _draws(int(groups.max()) + 1, self.resamples, [self.seed, *self.units.encode()])
        return np.concatenate([statistic(counts[:, groups], self.values, self.gold) for counts in blocks])

    def reproduces_score(self) -> bool:
        """True if the items, each taken once, give mteb's score."""
        if self.statistic == "replicates":
            return bool(np.isclose(self.values.mean(), self.score, atol=_ROUNDED))
        if self.statistic == "none" or not len(self.values):
            return False
        once = np.ones((1, len(self.values)))
        return bool(np.isclose(STATISTICS[self.statistic](once, self.values, self.gold)[0], self.score, atol=_ROUNDED))


def units(texts: Iterable[object]) -> str:
    """Digest of the texts of the units that are drawn, in order."""
    return hashlib.sha256(repr(list(texts)).encode()).hexdigest()[:16]


def _draws(groups: int, resamples: int, seed: list[int]) -> Iterator[np.ndarray]:
    """Counts of the groups in each resample, float64 (some resamples, groups), as many at once as memory allows."""
    random = np.random.default_rng(seed)
    rows = max(1, _CELLS // groups)
    for start in range(0, resamples, rows):
        drawn = random.integers(groups, size=(min(rows, resamples - start), groups))
        counts = np.zeros(drawn.shape)
        np.add.at(counts, (np.arange(len(drawn))[:, None], drawn), 1)
        yield counts
