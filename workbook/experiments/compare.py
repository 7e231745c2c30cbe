"""Numbers with intervals from the rows of experiments: levels of variants, and their paired differences.

Both rest on the outcomes by item that a record keeps, see `workbook.evaluation.effects`. Where a record keeps none,
there is a number and no interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd

from ..errors import MissingDataError
from ..evaluation.effects import Estimate, Quantity, effect
from ..evaluation.suites import SUITES

LEARNED = 0.5
"""Nats by which the loss on held-out pairs must be below chance for a model to count as one that learned. Written down
before any record that is judged by it.
"""


KINDS = {
    "Retrieval": "DocsRetrieval",
    "Reranking": "DocsReranking",
    "PairClassification": "DocsPairs",
    "Clustering": "TopicClustering",
    "Classification": "ReviewClassification",
    "STS": "ParaphraseLadder",
}
"""The task of the offline suites of each kind that MTEB names; the first three are of suite docs."""


Tasks = str | tuple[str, ...]
"""A task; or a suite or several tasks, of which the mean counts."""


def _tasks_of(one: Tasks) -> tuple[str, ...]:
    if isinstance(one, str):
        return SUITES[one].tasks if one in SUITES else (one,)
    return one


def judged(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows on which verdicts rest: those of the first source, which is the record if there is one.

    Args:
        rows: From ``Run.experiment``, or summarised with ``source`` as a group.
    """
    return rows[rows["source"] == rows["source"].iloc[0]] if len(rows) else rows


def quantity(rows: pd.DataFrame, task: Tasks | None = None) -> Quantity:
    """What was measured of one variant.

    Args:
        rows: Rows of the variant from one source: columns seed, task, outcomes and trained, one per seed and task; and
            stale, if a record may be of an earlier recipe.
        task: What is measured; None for all tasks in the rows.

    Raises:
        MissingDataError: A task was not measured, or not under each seed.
    """
    tasks = list(rows["task"].unique()) if task is None else _tasks_of(task)
    found = {
        int(seed): dict(zip(of_seed["task"], of_seed["outcomes"], strict=True))
        for seed, of_seed in rows[rows["task"].isin(tasks)].groupby("seed")
    }
    if not found:
        raise MissingDataError(f"Expected outcomes of {task or 'a task'}, found none.")
    return Quantity(found, bool(rows["trained"].any()), caveat=caveat_of(rows)).on(tasks)


def caveat_of(rows: pd.DataFrame) -> str:
    """What limits all that rests on some rows: that they are of a record of an earlier recipe, if they are."""
    return "It rests on a record of an earlier recipe." if rows.get("stale", pd.Series(False)).any() else ""


def quantities(
    rows: pd.DataFrame,
    variants: Mapping[str, str],
    task: Tasks | None = None,
    learning: Mapping[str, str] | None = None,
) -> dict[str, Quantity]:
    """The quantities of a claim by their names, without those whose variant was not measured on the task.

    Args:
        rows: As from ``Run.experiment``: columns source, variant, seed, task, outcomes and trained.
        variants: Variants by the names of the quantities.
        task: See :func:`quantity`.
        learning: What :func:`learned` says of variants; those that did not learn are not tested.
    """
    rows = judged(rows)
    rows = rows if task is None else rows[rows["task"].isin(_tasks_of(task))]
    parts = {name: rows[rows["variant"] == variant] for name, variant in variants.items()}
    return {name: tested(quantity(part, task), variants[name], learning) for name, part in parts.items() if len(part)}


def levels(rows: pd.DataFrame, tasks: Mapping[Tasks, str], by: Sequence[str] = ("source", "variant")) -> pd.DataFrame:
    """The level of each group in several tasks, over seeds, with its 95 % interval over items and seeds.

    Args:
        rows: Columns of ``by``, seed, task, outcomes and trained.
        tasks: Labels of tasks, of suites or of several tasks together, by :data:`Tasks`.
        by: Columns that identify a group.

    Returns:
        One row per group and task, in the order of the groups' first rows: the columns of ``by``, task (its label),
        score, low, high, items, seeds. Without outcomes by item low and high are NaN.
    """
    found = []
    for names, group in rows.groupby(list(by), sort=False, dropna=False):
        for task, name in tasks.items():
            if {*_tasks_of(task)} <= {*group["task"]}:
                one = effect({"it": 1.0}, {"it": quantity(group, task)})
                found.append([*names, name, one.value, one.low, one.high, one.items, one.seeds])
    return pd.DataFrame(found, columns=[*by, "task", "score", "low", "high", "items", "seeds"])


def paired(rows: pd.DataFrame, first: str, second: str, task: Tasks | None = None) -> Estimate | None:
    """Paired difference, first variant minus second, over the same items and under the same seeds.

    Args:
        rows: As for :func:`quantities`.
        first: Name of a variant.
        second: Name of another.
        task: See :func:`quantity`.

    Returns:
        The difference; None if one of the two was not measured.
    """
    both = quantities(rows, {"first": first, "second": second}, task)
    return effect({"first": 1.0, "second": -1.0}, both) if len(both) == 2 else None


def differences(rows: pd.DataFrame, pairs: Mapping[str, tuple[str, str]], tasks: Mapping[Tasks, str]) -> pd.DataFrame:
    """Paired differences of several pairs of variants, task by task; see :func:`paired`.

    Args:
        rows: As for :func:`quantities`.
        pairs: Two variants, by the name of their difference.
        tasks: Labels of tasks, of suites or of several tasks together, by :data:`Tasks`.

    Returns:
        Columns ``pair``, ``task``, ``points``, ``low``, ``high``, ``detectable``, in the order given, without pairs of
        which one variant was not measured.
    """
    weights = {
        name: {first: 1.0, second: -1.0} if first != second else {first: 0.0} for name, (first, second) in pairs.items()
    }
    return contrasts(rows, weights, tasks)


def contrasts(
    rows: pd.DataFrame, weights: Mapping[str, Mapping[str, float]], tasks: Mapping[Tasks, str]
) -> pd.DataFrame:
    """Weighted sums of variants, such as a difference from the mean of two, task by task.

    Args:
        rows: As for :func:`quantities`.
        weights: Weights of the variants by the name of the sum: ``{"a - b": {"a": 1, "b": -1}}``.
        tasks: Labels of tasks, of suites or of several tasks together, by :data:`Tasks`.

    Returns:
        As from :func:`differences`, without sums of which a variant was not measured.
    """
    compared = {variant: variant for one in weights.values() for variant in one}
    known, found = {task: quantities(rows, compared, task) for task in tasks}, []
    for name, of_sum in weights.items():
        for task, label in tasks.items():
            if of_sum.keys() <= known[task].keys():
                one = effect(of_sum, known[task])
                found.append((name, label, one.value, one.low, one.high, one.detectable))
    return pd.DataFrame(found, columns=["pair", "task", "points", "low", "high", "detectable"])


def side_by_side(found: pd.DataFrame) -> pd.DataFrame:
    """Differences in one row a pair, rounded to a tenth, the tasks side by side.

    Args:
        found: From :func:`differences`.

    Returns:
        Rows ``pair``, in the order given; columns of points, then of the intervals' lower and upper ends, by task. NaN
        where a pair was not measured on a task.
    """
    return found.round(1).pivot_table(["points", "low", "high"], "pair", "task", sort=False)


def by_kind(
    rows: pd.DataFrame, gaps: Mapping[str, Mapping[str, float]], printed: pd.DataFrame | Mapping[str, pd.Series]
) -> pd.DataFrame:
    """Differences by kind of task, each beside what a paper prints of that kind.

    Args:
        rows: As for :func:`quantities`, of scores.
        gaps: Weights of variants by the name of the difference, such as ``{"a - b": {"a": 1, "b": -1}}``.
        printed: The paper's difference by its name, in points, for each of :data:`KINDS`.

    Returns:
        Index: names of differences, without those of which a variant was not measured. Columns: kinds. Cells: text,
        points with their 95 % interval (not corrected), and behind a bar the paper's, if it has one.
    """
    found = contrasts(rows, gaps, {task: kind for kind, task in KINDS.items()})
    cells = []
    for one in found.itertuples():
        paper = printed[one.task].get(one.pair)
        cells.append(f"{one.points:.1f} [{one.low:.1f}, {one.high:.1f}]" + ("" if paper is None else f" | {paper:.1f}"))
    return found.assign(cell=cells).set_index(["pair", "task"])["cell"].unstack(sort=False)


def learned(
    rows: pd.DataFrame, above: float = math.log(32), of: str = "held-out pairs", name: str = "chance"
) -> dict[str, str]:
    """Whether each variant learned by its own measure, a loss on held-out data, the mean over seeds.

    Args:
        rows: As for :func:`quantities`, of one measure: the loss, in nats.
        above: The loss without learning: by default at chance, over 32 pairs in a batch.
        of: What the loss is of, for the sentence.
        name: Name of the loss without learning, likewise.

    Returns:
        By variant an empty string, or a sentence if the loss is not :data:`LEARNED` below that, or no number.
    """
    losses = judged(rows).groupby("variant")["score"].apply(lambda scores: scores.mean(skipna=False))
    return {
        variant: ""
        if loss <= above - LEARNED
        else f"{variant} did not learn: its loss on {of} is {loss:.2f} ({name} {above:.2f})."
        for variant, loss in losses.items()
    }


def tested(made: Quantity, variant: str, learning: Mapping[str, str] | None) -> Quantity:
    """A quantity that can't be tested if its variant was trained and did not learn, or if that is not known.

    Args:
        made: The quantity.
        variant: Its variant.
        learning: As from :func:`learned`; None if learning is not asked for.
    """
    if learning is None or not made.trained:
        return made
    return replace(made, why=learning.get(variant, f"Whether {variant} learned was not measured."))
