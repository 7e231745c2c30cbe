"""Effects with their intervals: sums and differences of measured quantities, paired by item and by seed.

A quantity is what was measured of one model, or of one method trained with several seeds: the outcomes of each item of
each task. An effect is a linear form of quantities, such as the difference of two. All quantities of an effect are
resampled together, so that what makes an item hard for every model drops out of the interval.

The variance of an effect is that of the items, by the bootstrap, plus that of the seeds, by their own variance:
resampling three seeds would understate it by a third. What an item does to one seed alone is in both, and is counted
once. The interval takes Student's t with Satterthwaite's degrees of freedom: few if seeds decide, many if items do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field
from scipy.stats import t

from ..errors import InvalidValueError, MissingDataError
from .outcomes import Outcomes

LEVEL, POWER = 0.95, 0.8
"""Level of every interval, and the power at which an effect counts as one that could have been seen."""


class Estimate(BaseModel):
    """A measured number, with what is needed for an interval of any level.

    Attributes:
        value: The number; NaN if it is not defined, such as a correlation of vectors that are all equal.
        error: Its standard error; 0 for a number without sampling error, None if it is not known.
        freedom: Degrees of freedom of the error; None for very many.
        items: Number of items behind it.
        seeds: Number of trainings behind it.
        why: Why the error is not known, a sentence for readers.
        caveat: What limits the number although its error is known, a sentence for readers.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: float
    error: float | None = Field(default=0.0, ge=0, allow_inf_nan=False)
    freedom: float | None = Field(default=None, ge=1, allow_inf_nan=False)
    items: int = 0
    seeds: int = 1
    why: str = ""
    caveat: str = ""

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Both ends of the interval; NaN if the error is not known.

        Args:
            level: The level, 0 to 1.
        """
        half = math.nan if self.error is None else self._quantile((1 + level) / 2) * self.error
        return self.value - half, self.value + half

    @property
    def low(self) -> float:
        """Lower end of the 95 % interval; NaN if the error is not known."""
        return self.interval()[0]

    @property
    def high(self) -> float:
        """Upper end of the 95 % interval; NaN if the error is not known."""
        return self.interval()[1]

    @property
    def detectable(self) -> float:
        """The smallest true effect whose interval would exclude zero in four of five repetitions; NaN if not known."""
        if self.error is None:
            return math.nan
        return (self._quantile((1 + LEVEL) / 2) + self._quantile(POWER)) * self.error

    def format(self, sign: str = "") -> str:
        """As text with its interval, ``2.1 [0.4, 3.8]``: three digits, or whole numbers from a thousand on.

        Args:
            sign: ``"+"`` to write it before positive values too.
        """
        form = ",.0f" if abs(self.value) >= 1000 else ".3g"
        interval = f" [{self.low:{form}}, {self.high:{form}}]" if self.error else ""
        return f"{self.value:{sign}{form}}{interval}"

    def _quantile(self, share: float) -> float:
        return float(t.ppf(share, self.freedom or np.inf))


@dataclass(frozen=True, eq=False)
class Quantity:
    """What was measured of a model, or of a method trained with several seeds.

    Attributes:
        by_seed: By seed of training, the outcomes of each task. The quantity is the mean over tasks.
        trained: False for a model that no seed changes; it is paired with every seed of another.
        why: Why nothing about it can be tested, such as that it did not learn: a sentence; empty if it can.
        caveat: What limits it although it can, a sentence.
    """

    by_seed: Mapping[int, Mapping[str, Outcomes]]
    trained: bool = True
    why: str = ""
    caveat: str = ""

    @classmethod
    def of(cls, measured: Outcomes | Mapping[str, Outcomes] | pd.DataFrame, caveat: str = "") -> Self:
        """The quantity of one model that no seed changes.

        Args:
            measured: Outcomes, outcomes by task, or a frame from :func:`workbook.evaluation.evaluate`, or rows of it.
            caveat: See the class.

        Raises:
            InvalidValueError: A frame that has lost its outcomes (``pd.concat`` drops them).
        """
        if isinstance(measured, pd.DataFrame):
            kept = measured.attrs.get("outcomes", {})
            if absent := [task for task in measured["task"] if task not in kept]:
                raise InvalidValueError("frame", "rows as evaluate gave them", f"none for {absent}", "Do so first.")
            measured = {task: kept[task] for task in measured["task"]}
        elif isinstance(measured, Outcomes):
            measured = {"": measured}
        return cls({0: measured}, trained=False, caveat=caveat)

    @classmethod
    def of_values(
        cls, values: Sequence[float] | np.ndarray, texts: Sequence[object] | None = None, caveat: str = ""
    ) -> Self:
        """The quantity that is the mean of one value per item, such as of a text or of a timing.

        Args:
            values: One per item.
            texts: What the items are; None for numbered ones. Only quantities of equal items are compared.
            caveat: See the class.
        """
        return cls.of(Outcomes.of_values(values, range(len(values)) if texts is None else texts), caveat)

    @classmethod
    def mean(cls, parts: Mapping[str, Quantity]) -> Self:
        """The mean of several, such as of one criterion over three patterns of pruning.

        Compared with another mean of the same names, each part is paired with its own.

        Args:
            parts: Quantities by name, all trained or none; of seeds, those that all have.

        Raises:
            InvalidValueError: None, or no seed that all were trained with.
        """
        seeds = set.intersection(*(set(one.by_seed) for one in parts.values())) if parts else set()
        if not seeds:
            raise InvalidValueError(
                "parts", "quantities that share a seed", {n: [*q.by_seed] for n, q in parts.items()}
            )
        by_seed = {
            seed: {f"{name}: {task}": o for name, one in parts.items() for task, o in one.by_seed[seed].items()}
            for seed in sorted(seeds)
        }
        said = [
            " ".join(dict.fromkeys(filter(None, words)))
            for words in zip(*((q.why, q.caveat) for q in parts.values()), strict=True)
        ]
        return cls(by_seed, any(one.trained for one in parts.values()), *said)

    def on(self, tasks: Sequence[str]) -> Self:
        """The same on some of its tasks; of a :meth:`mean`, on these of each part.

        Raises:
            MissingDataError: One of them was not measured.
        """
        found = {}
        for seed, outcomes in self.by_seed.items():
            plain = {name: name.rpartition(": ")[2] for name in outcomes}
            if absent := [task for task in tasks if task not in plain.values()]:
                raise MissingDataError(f"Expected outcomes of {', '.join(absent)}, found none for seed {seed}.")
            order = sorted((name for name, task in plain.items() if task in tasks), key=lambda n: tasks.index(plain[n]))
            found[seed] = {name: outcomes[name] for name in order}
        return replace(self, by_seed=found)


def effect(
    weights: Mapping[str, float],
    quantities: Mapping[str, Quantity | float],
    resamples: int = 2000,
    seed: int = 0,
) -> Estimate:
    """A linear form of quantities, such as the difference of two, with its error over items and seeds.

    Args:
        weights: Weight of each quantity, by name: ``{"a": 1, "b": -1}`` for a - b.
        quantities: Quantities by name; a number has no sampling error. Others may be among them.
        resamples: Bootstrap resamples of the items.
        seed: Of the bootstrap.

    Returns:
        The effect. Its error is not known if a quantity can't be tested, has no outcomes by item or no defined score,
        or if quantities that were trained have only one seed in common.

    Raises:
        InvalidValueError: A quantity is absent, or two were measured on other tasks or items, or trained with other
            seeds.
    """
    if absent := [name for name in weights if name not in quantities]:
        raise InvalidValueError("quantities", f"something measured for {', '.join(absent)}", sorted(quantities))
    constant = sum(weight * q for name, weight in weights.items() if not isinstance(q := quantities[name], Quantity))
    measured = [(weight, q) for name, weight in weights.items() if isinstance(q := quantities[name], Quantity)]
    if not measured:
        return Estimate(value=constant)
    several = [set(q.by_seed) for _, q in measured if q.trained]
    seeds = sorted(set.intersection(*several)) if several else [0]
    if not seeds:
        raise InvalidValueError("quantities", "a seed that all were trained with", [sorted(one) for one in several])
    tables = [[q.by_seed[s] if q.trained else next(iter(q.by_seed.values())) for s in seeds] for _, q in measured]
    tasks, why = _shared_tasks([table for of_one in tables for table in of_one])
    signed = [(weight, of_one) for (weight, _), of_one in zip(measured, tables, strict=True)]

    def of_seeds(task: str, number: Callable[[Outcomes], Any]) -> np.ndarray:
        return np.stack([sum(w * number(of_one[n][task]) for w, of_one in signed) for n in range(len(seeds))])

    count, first = len(seeds), tables[0][0]
    by_task = {task: of_seeds(task, lambda one: one.score) for task in tasks}
    if undefined := [task for task, of_task in by_task.items() if not np.isfinite(of_task).all()]:
        why = why or f"The score of {', '.join(filter(None, undefined)) or 'it'} is not a number."
    scores = constant + np.mean(list(by_task.values()), axis=0)
    # The parts of a mean have their items in common if they were measured on the same.
    distinct = {(task.rpartition(": ")[2], one.digest): one.items for task, one in first.items()}
    found = {"value": float(scores.mean()), "items": sum(distinct.values()), "seeds": count}
    if several and count == 1:
        why = why or "It was trained with one seed only: what another training would give is not known."
    caveats = [q.caveat for _, q in measured if q.caveat]
    if any(set(seeds) != own for own in several):
        caveats.append("Seeds that only one side was trained with are left out.")
    found["caveat"] = " ".join(dict.fromkeys(caveats))
    if why := why or " ".join(dict.fromkeys(q.why for _, q in measured if q.why)):
        return Estimate(**found, error=None, why=why)
    every = {id(one): one for of_model in tables for of_seed in of_model for one in of_seed.values()}
    if new := [one for one in every.values() if not one.kept(resamples, seed)]:
        with ThreadPoolExecutor(2) as pool:  # numpy lets go of the lock; below, they are there
            list(pool.map(lambda one: one.resampled(resamples, seed), new))
    # Tasks over the same units are resampled together, which keeps their correlation.
    together: dict[tuple[str, int, int], np.ndarray] = {}
    for task in tasks:
        resampled = of_seeds(task, lambda one: one.resampled(resamples, seed)) / len(tasks)
        key = first[task].units, first[task].drawn, resampled.shape[1]
        together[key] = together.get(key, 0) + resampled
    parts = [_of_items(resampled, drawn) for (_, drawn, _), resampled in together.items()]
    items, alone = (sum(part[n] for part in parts) for n in (0, 1))
    by_seed = float(scores.var(ddof=1)) / count if count > 1 else 0.0
    # What an item does to one seed alone is in both: all of it in alone, its count-th part in items and in by_seed.
    both = min(max((alone - items) / (count - 1), 0.0), items, by_seed) if count > 1 else 0.0
    variance = items - both + by_seed
    share = (items - both) / items if items else 0.0
    squares = sum((share * of_mean) ** 2 / freedom for of_mean, _, freedom in parts) + by_seed**2 / max(count - 1, 1)
    freedom = max(1.0, variance**2 / squares) if squares else None
    return Estimate(**found, error=math.sqrt(variance), freedom=freedom)


def _of_items(resampled: np.ndarray, units: int) -> tuple[float, float, int]:
    """Variance of the mean over seeds, mean of the seeds' own variances, and the degrees of freedom of both.

    A bootstrap's variance is too small by the factor (units - 1) / units, which matters for a few items; the spread of
    mteb's own resamples, which are counted as units themselves, is not.
    """
    correction = 1.0 if resampled.shape[1] == units else units / (units - 1)
    defined = resampled[:, np.isfinite(resampled).all(axis=0)]
    of_mean, alone = defined.mean(axis=0).var(ddof=1), defined.var(axis=1, ddof=1).mean()
    return float(correction * of_mean), float(correction * alone), units - 1


def _shared_tasks(tables: Sequence[Mapping[str, Outcomes]]) -> tuple[list[str], str]:
    """The tasks of all tables, which are the same, on the same items; and why they have no outcomes, if so."""
    first, why = tables[0], ""
    for table in tables:
        if set(table) != set(first):
            raise InvalidValueError("quantities", f"the same tasks, {sorted(first)}", sorted(table))
        for task, one in table.items():
            if one.statistic == "none" or one.drawn < 2:
                why = why or one.why or f"{task or 'It'} has no outcomes of two items or more."
                continue
            known = next((other[task] for other in tables if other[task].statistic != "none"), one)
            settings = [(o.digest, o.units, o.items, o.statistic) for o in (known, one)]
            if settings[0] != settings[1]:
                raise InvalidValueError(f"quantities on {task}", f"the same items, {settings[0]}", settings[1])
    return list(first), why
