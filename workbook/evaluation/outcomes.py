"""Intervals from the outcomes of single items (queries, pairs, texts), by the bootstrap.

A resample of n items is a row of n counts that add up to n: how often each item was drawn. Every statistic here is a
function of such counts, so that all resamples are computed at once and none is sorted again.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Self

import numpy as np
from scipy.stats import rankdata

from ..errors import DamagedFileError

_ROUNDED = 2e-5  # mteb rounds some scores to five digits
_CELLS = 4_000_000  # counts that are held in memory at once
_AT_ONCE = 100_000  # counts of which a statistic is computed at once
_REMEMBERED = 8_000_000  # the most counts of a draw that are kept for the next model


def mean(counts: np.ndarray, values: np.ndarray, gold: np.ndarray | None = None) -> np.ndarray:
    """Mean of the drawn values, float64 (resamples,).

    Args:
        counts: How often each item was drawn, (resamples, items).
        values: Value of each item, (items,).
        gold: Not used.
    """
    return counts.astype(float) @ values / counts.sum(axis=1)


def spearman(counts: np.ndarray, values: np.ndarray, gold: np.ndarray) -> np.ndarray:
    """Spearman's rank correlation of the drawn values with their gold scores, ties at their middle rank.

    Args:
        counts: How often each item was drawn, (resamples, items).
        values: Value of each item, (items,).
        gold: Gold score of each item, (items,).

    Returns:
        float64 (resamples,), NaN where all drawn values or all drawn scores are equal.
    """
    x, y = (_ranks(counts, of) for of in (values, gold))
    drawn, weighted = counts * y, counts * x
    with np.errstate(invalid="ignore"):  # no correlation where all drawn scores are equal
        spread = np.einsum("ij,ij->i", weighted, x) * np.einsum("ij,ij->i", drawn, y)
        return np.einsum("ij,ij->i", weighted, y) / np.sqrt(spread)


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
    ends = np.flatnonzero(np.append(np.diff(values[order]) != 0, True))  # of each run of equal values
    positive = np.flatnonzero(gold[order])
    # Precision counts where a positive is, and among equals at their end.
    run, first = np.unique(np.searchsorted(ends, positive), return_index=True)
    # Unlike counts[:, order], take keeps a resample side by side: sums over it are four times as fast.
    drawn = np.take(counts, order, axis=1)
    gained = np.take(drawn, positive, axis=1)
    if len(run) < len(positive):
        gained = np.add.reduceat(gained, first, axis=1)
    found, seen = _cumsum(gained), np.take(_cumsum(drawn), ends[run], axis=1)
    with np.errstate(invalid="ignore"):  # a resample without positives has no average precision
        return np.einsum("ij,ij->i", gained, found / np.maximum(seen, 1)) / gained.sum(axis=1)


def ratio(counts: np.ndarray, values: np.ndarray, gold: np.ndarray) -> np.ndarray:
    """Sum of the drawn values over the sum of their weights, such as right words over words, float64 (resamples,).

    Args:
        counts: How often each item was drawn, (resamples, items).
        values: Value of each item, such as the right words of a sentence, (items,).
        gold: Weight of each item, such as its number of words, (items,).
    """
    counts = counts.astype(float)
    return counts @ values / (counts @ gold)


def _ranks(counts: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Twice the middle rank of each item among the drawn ones, less their mean: whole float64, (resamples, n)."""
    _, group = np.unique(values, return_inverse=True)
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    sizes = np.take(counts, order, axis=1)
    if len(starts) < len(order):
        sizes = np.add.reduceat(sizes, starts, axis=1)
    last = _cumsum(sizes)
    return np.take((2 * last - sizes - last[:, -1:]).astype(float), group, axis=1)


def _cumsum(counts: np.ndarray) -> np.ndarray:
    """Along each resample, in int32: half the bytes of numpy's own choice, half the time."""
    return np.cumsum(counts.astype(np.int32, copy=False), axis=1, dtype=np.int32)


STATISTICS: dict[str, Callable[..., np.ndarray]] = {
    "mean": mean,
    "spearman": spearman,
    "average_precision": average_precision,
    "ratio": ratio,
}


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Outcomes of a model on each item of a task: enough to resample the task's score without the model.

    Attributes:
        score: The task's score, in its own unit: points for the tasks of mteb, nats for a loss.
        statistic: The statistic of the items that is the score, a key of :data:`STATISTICS`; ``replicates`` if
            ``values`` are scores of resamples that were drawn before (by mteb, for clustering); or ``none`` if there
            are no outcomes.
        values: float64 (items,): outcome of each query or text, or similarity of each pair.
        gold: float64 (items,): gold score, label or weight of each item; None if not needed.
        groups: int (items,), from 0: items of one group are drawn together, because they share a text; None draws
            each item on its own.
        items: Number of items.
        units: Digest of the units that are drawn, in order (:func:`units`): tasks over the same queries have the same
            resamples, other tasks have their own.
        digest: Digest of the texts that were embedded; only outcomes on the same texts can be paired.
        factor: What a statistic of the items is multiplied by to give the score: 100 for points.
        why: Why there are no outcomes, if there are none: a sentence for readers.
    """

    score: float
    statistic: str
    values: np.ndarray
    gold: np.ndarray | None = None
    groups: np.ndarray | None = None
    items: int = 0
    units: str = ""
    digest: str = ""
    factor: float = 1.0
    why: str = ""
    _kept: dict[tuple[int, int], np.ndarray] = field(default_factory=dict, init=False)

    def __repr__(self) -> str:
        return f"Outcomes({self.score:.4g}, {self.statistic}, {self.items} items)"

    @classmethod
    def none(cls, score: float, why: str, items: int = 0) -> Self:
        """A score without outcomes by item.

        Args:
            score: The score.
            why: The reason, a sentence for readers.
            items: Number of items, if known.
        """
        return cls(score, "none", np.zeros(0), items=items, why=why)

    @classmethod
    def of_values(
        cls,
        values: Sequence[float] | np.ndarray,
        texts: Iterable[object],
        weights: Sequence[float] | np.ndarray | None = None,
        factor: float = 1.0,
    ) -> Self:
        """Outcomes whose score is the mean of a value per item; with weights, the sum of values over that of weights.

        Args:
            values: One per item.
            texts: What the items are, in order: only outcomes on the same are paired.
            weights: One per item, such as the number of words of a sentence of which ``values`` are right.
            factor: What the mean is multiplied by, such as 100 for a share in per cent.
        """
        numbers, drawn = np.asarray(values, dtype=float), units(texts)
        gold = None if weights is None else np.asarray(weights, dtype=float)
        score = numbers.mean() if gold is None else numbers.sum() / gold.sum()
        kind = "mean" if gold is None else "ratio"
        return cls(float(factor * score), kind, numbers, gold, None, len(numbers), drawn, drawn, factor)

    @property
    def drawn(self) -> int:
        """Number of units that are drawn: items, or groups of them; of ``replicates`` no more than resamples."""
        if self.statistic == "replicates":
            return min(len(self.values), self.items)
        return len(self.values) if self.groups is None else int(self.groups.max()) + 1

    def kept(self, resamples: int = 2000, seed: int = 0) -> bool:
        """True if :meth:`resampled` has nothing left to compute: it was asked for the same before, or draws nothing.

        Args:
            resamples, seed: As there.
        """
        return self.statistic in ("replicates", "none") or (resamples, seed) in self._kept

    def resampled(self, resamples: int = 2000, seed: int = 0) -> np.ndarray:
        """The score of every resample, float64; equal seed and units draw the same resamples.

        Args:
            resamples: Their number; mteb's own resamples are as many as it made.
            seed: Of the draws.

        Returns:
            (resamples,), or two NaN if there are no outcomes.
        """
        if self.statistic == "replicates":
            return self.factor * self.values
        if self.statistic == "none":
            return np.full(2, np.nan)
        if (resamples, seed) not in self._kept:  # one model is compared with many
            statistic = STATISTICS[self.statistic]
            blocks = _draws(self.drawn, resamples, [seed, *self.units.encode()])
            if self.groups is not None:
                blocks = (np.take(counts, self.groups, axis=1) for counts in blocks)
            found = np.concatenate([statistic(counts, self.values, self.gold) for counts in blocks])
            self._kept[resamples, seed] = self.factor * found
        return self._kept[resamples, seed]

    def reproduces_score(self) -> bool:
        """True if the items, each taken once, give the score."""
        if self.statistic == "none" or not len(self.values):
            return False
        if self.statistic == "replicates":
            found = self.values.mean()
        else:
            found = STATISTICS[self.statistic](np.ones((1, len(self.values))), self.values, self.gold)[0]
        return bool(np.isclose(found, self.score / self.factor, atol=_ROUNDED))


_PARTS = ("values", "gold", "groups")
_RANKED = ("spearman", "average_precision")
_EXACT = 2048  # whole numbers that float16 tells apart


def pack(outcomes: Iterable[object]) -> tuple[str, dict[str, np.ndarray]]:
    """Outcomes as arrays for one compressed file.

    Similarities are kept as ranks, on which alone their statistics depend, exactly; other numbers as float16. The name
    of an array is a digest of its content: equal ones are kept once, and changed ones noticed.

    Args:
        outcomes: The outcomes; anything else among them has a place, but is not kept.

    Returns:
        The name of the array that lists them, and all arrays by name.
    """
    listed, arrays = {}, {}
    for place, one in enumerate(outcomes):
        if not isinstance(one, Outcomes):
            continue
        values = _narrow(one.values)
        if one.statistic in _RANKED:
            values = rankdata(one.values).astype(np.float16 if one.items <= _EXACT else np.float32)
        others = {"gold": one.gold, "groups": one.groups}
        parts = {"values": values} | {part: _narrow(array) for part, array in others.items() if array is not None}
        listed[place] = {
            **{"score": float(f"{one.score:.7g}"), "statistic": one.statistic, "items": one.items, "why": one.why},
            **{"units": one.units, "digest": one.digest, "factor": one.factor},
            **{part: name_of(array) for part, array in parts.items()},
        }
        arrays |= {name_of(array): array for array in parts.values()}
    index = np.frombuffer(json.dumps(listed).encode(), dtype=np.uint8)
    return name_of(index), {name_of(index): index, **arrays}


def unpack(name: str, arrays: Mapping[str, np.ndarray]) -> dict[int, Outcomes]:
    """The outcomes that :func:`pack` was given, by their place, up to rounding.

    Args:
        name: The name that it returned.
        arrays: Its arrays; others may be among them.

    Raises:
        DamagedFileError: An array is missing, or is not the one that was packed.
    """
    found = {}
    for place, plain in json.loads(_array(name, arrays).tobytes()).items():
        parts = {part: _array(plain.pop(part), arrays) for part in _PARTS if part in plain}
        numbers = {part: array.astype(int if part == "groups" else float) for part, array in parts.items()}
        found[int(place)] = Outcomes(**plain, **numbers)
    return found


def as_text(outcomes: Outcomes) -> str:
    """Outcomes as a line of text, for a log; see :func:`pack`."""
    name, arrays = pack([outcomes])
    with io.BytesIO() as file:
        np.savez_compressed(file, **arrays)
        return f"{name} {base64.b64encode(file.getvalue()).decode()}"


def from_text(text: str) -> Outcomes:
    """The outcomes of :func:`as_text`.

    Raises:
        DamagedFileError: As :func:`unpack`.
    """
    name, content = text.split()
    with np.load(io.BytesIO(base64.b64decode(content))) as file:
        return unpack(name, dict(file))[0]


def packed_names(name: str, arrays: Mapping[str, np.ndarray]) -> set[str]:
    """Names of all arrays that :func:`unpack` reads for ``name``; only itself if it is not there, or was changed.

    Args:
        name: The name that :func:`pack` returned.
        arrays: Its arrays; others may be among them.
    """
    try:
        listed = json.loads(_array(name, arrays).tobytes()).values()
    except DamagedFileError:
        return {name}
    return {name} | {plain[part] for plain in listed for part in _PARTS if part in plain}


def _array(name: str, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    if name not in arrays or name_of(arrays[name]) != name:
        got = "others" if name in arrays else "none"
        raise DamagedFileError(f"Expected the outcomes that were recorded, got {got}.")
    return arrays[name]


def _narrow(array: np.ndarray) -> np.ndarray:
    """The array in the smallest type that keeps it: whole numbers of groups, float16, or float32 for large values."""
    if np.issubdtype(array.dtype, np.integer):
        return array.astype(np.uint16 if array.max(initial=0) < 2**16 else np.uint32)
    return array.astype(np.float16 if np.abs(array).max(initial=0) < 6e4 else np.float32)


def name_of(array: np.ndarray) -> str:
    """The name of an array: a digest of its content."""
    return hashlib.sha256(f"{array.dtype} {array.shape} ".encode() + array.tobytes()).hexdigest()[:24]


def units(texts: Iterable[object]) -> str:
    """Digest of the texts of the units that are drawn, in order."""
    return hashlib.sha256(repr(list(texts)).encode()).hexdigest()[:16]


def _draws(groups: int, resamples: int, seed: list[int]) -> Iterator[np.ndarray]:
    """Counts of the groups in each resample, int32 (some resamples, groups), so few at once that caches hold them."""
    blocks = _drawn_once if groups * resamples <= _REMEMBERED else _drawn
    rows = max(1, _AT_ONCE // groups)
    for counts in blocks(groups, resamples, tuple(seed)):
        for start in range(0, len(counts), rows):
            yield counts[start : start + rows].astype(np.int32)


def _drawn(groups: int, resamples: int, seed: tuple[int, ...]) -> Iterator[np.ndarray]:
    random = np.random.default_rng(seed)
    rows = max(1, _CELLS // groups)
    for start in range(0, resamples, rows):
        drawn = random.integers(groups, size=(min(rows, resamples - start), groups))
        cells = drawn + groups * np.arange(len(drawn))[:, None]
        # A group is drawn once on average; hardly ever more than ten times.
        yield np.bincount(cells.ravel(), minlength=cells.size).reshape(cells.shape).astype(np.uint16)


@lru_cache(maxsize=32)
def _drawn_once(groups: int, resamples: int, seed: tuple[int, ...]) -> list[np.ndarray]:
    """The same as a list: many models are measured on the same items. At most 32 of 16 MB are kept."""
    return list(_drawn(groups, resamples, seed))
