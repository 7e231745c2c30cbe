"""Running models over tasks, and comparing two of them item by item."""

from __future__ import annotations

import contextlib
import random
import time
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..corpora import authored
from ..errors import InvalidValueError, MissingDataError, whole
from ..scale import Scale, get_scale
from .effects import Quantity, effect
from .local import file_names
from .outcomes import Outcomes, average_precision, units
from .suites import OFFLINE_SUITES, SUITES, task_names, tasks

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

COLUMNS = ["model", "suite", "task", "type", "metric", "score", "low", "high", "items", "seconds"]


def evaluate(
    model: SentenceTransformer,
    suite: str | Iterable[str] = OFFLINE_SUITES,
    *,
    scale: Scale | str = "quick",
    instructions: str | None = "suite",
    name: str | None = None,
    seed: int = 0,
    batch_size: int = 32,
    progress: bool | None = None,
) -> pd.DataFrame:
    """Evaluate a model on a suite through mteb; nothing is read from or written to mteb's result cache.

    The scores are mteb's, and depend on the model and the scale alone. ``low`` and ``high`` bound the 95 % normal
    bootstrap interval over items (queries, texts, pairs; pairs that share their first text are drawn together). For
    clustering the resamples are mteb's own, each clustered again. If a score can't be taken apart into items (tasks of
    several languages or splits, rarer metrics), both are NaN. The outcomes of the items are kept in
    ``frame.attrs["outcomes"]`` for :func:`compare`.

    Args:
        model: Any SentenceTransformer. Queries go through ``encode_query``, documents through ``encode_document``.
        suite: Names of suites, from :data:`SUITES`, or of tasks; those of mteb too.
        scale: Sizes of the offline tasks, resamples, and the longest input in tokens.
        instructions: ``suite`` for those of the suites (a paper's), a paper's name, ``docs`` or ``english`` for that
            set, None for none. They are given bare, as ``prompt``, to models that begin with a
            ``workbook.modules.Decoder``, which lays them out. ``suite`` gives none to single tasks, nor to other
            models, which would put a bare instruction straight before the text and pool both; a model's own prompts
            still apply.
        name: Name of the model in the frame; by default its own.
        seed: Of the bootstrap.
        batch_size: Texts per batch.
        progress: Whether to show a bar over the tasks; None for in a terminal and in a notebook.

    Returns:
        One row per task: model, suite, task, type, metric, score, low, high (points, that is x100), items, seconds.

    Raises:
        InvalidValueError, UnknownNameError: A value outside its range, a name that does not exist; a named set of
            instructions for a model that does not begin with a Decoder; or a model whose vectors are not finite.
        MissingDataError: The data of a task are not on this machine and can't be fetched.
    """
    from sentence_transformers import SentenceTransformer

    from ..modules import Decoder

    if not isinstance(model, SentenceTransformer):
        raise InvalidValueError("model", "a SentenceTransformer", model, "workbook.build(method) makes one.")
    batch_size, seed = whole("batch_size", batch_size), whole("seed", seed, 0)
    scale = scale if isinstance(scale, Scale) else get_scale(scale)
    names, asked = task_names(suite), [suite] if isinstance(suite, str) else list(suite)
    first = next(iter(model), None)
    lays_out = all(isinstance(next(iter(part), None), Decoder) for part in _parts(model))
    if instructions == "suite":
        sets = {SUITES[one].instructions if one in SUITES else None for one in asked}
        instructions = sets.pop() if len(sets) == 1 and lays_out else None
    known = None if instructions is None else _instructions(instructions)
    if known is not None and not lays_out:
        expected = f"suite or None for a model that begins with {type(first).__name__} instead of a Decoder"
        hint = "To give it instructions in its own words, set them as model.prompts['query'] and ['document']."
        raise InvalidValueError("instructions", expected, instructions, hint)
    label = name or model.model_card_data.model_name or "model"
    suites = {task: one for one in asked[::-1] if one in SUITES for task in SUITES[one].tasks}
    rows, outcomes = [], {}
    with _undisturbed(), cut_to(model, scale.max_length):
        from tqdm.auto import tqdm

        from .encoder import Encoder

        encoder = Encoder(model, known, batch_size)
        bar = tqdm(tasks(names, scale), desc=label, leave=False, disable=None if progress is None else not progress)
        for task in bar:
            bar.set_postfix_str(task.metadata.name)
            started = time.perf_counter()
            result = outcomes[task.metadata.name] = _run(task, encoder)
            score = effect({"it": 1.0}, {"it": Quantity.of(result)}, scale.resamples, seed)
            rows.append(
                {
                    "model": label,
                    "suite": suites.get(task.metadata.name, "tasks"),
                    "task": task.metadata.name,
                    "type": task.metadata.type,
                    "metric": task.metadata.main_score,
                    "score": score.value,
                    "low": max(score.low, -100.0),
                    "high": min(score.high, 100.0),
                    "items": result.items,
                    "seconds": time.perf_counter() - started,
                }
            )
    frame = pd.DataFrame(rows, columns=COLUMNS)
    frame.attrs |= {"outcomes": outcomes, "bootstrap": (scale.resamples, seed)}
    return frame


def compare(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """Paired difference of two models, first minus second, over the same items; see :func:`~.effects.effect`.

    Both models have the same resamples, so that what makes an item hard for both drops out of the interval.

    Args:
        first: A frame from :func:`evaluate`, or some of its rows (frames joined by ``pd.concat`` have lost the items).
        second: Another, at the same scale.

    Returns:
        One row per task in both, then one per suite as in :func:`average`: task, type, metric, difference, low, high,
        detectable (points; 95 % interval; smallest effect to be seen with 80 % power), items.

    Raises:
        InvalidValueError: A frame without items, no task in common, or different texts.
    """
    for side, frame in (("first", first), ("second", second)):
        if not isinstance(frame, pd.DataFrame) or "outcomes" not in frame.attrs:
            raise InvalidValueError(side, "a frame as evaluate gave it", type(frame), "Compare before pd.concat.")
    shared = first[first["task"].isin(second["task"])]
    if shared.empty:
        raise InvalidValueError("second", f"a frame with one of the tasks {list(first['task'])}", list(second["task"]))
    both = {"first": Quantity.of(shared), "second": Quantity.of(second[second["task"].isin(shared["task"])])}
    resamples, seed = first.attrs["bootstrap"]
    rows = []
    for name, rows_of in _groups_of_tasks(shared):
        on = {side: quantity.on(list(rows_of["task"])) for side, quantity in both.items()}
        gap = effect({"first": 1.0, "second": -1.0}, on, resamples, seed)
        kind = rows_of.iloc[0] if name in list(rows_of["task"]) else {"type": "", "metric": ""}
        rows.append([name, kind["type"], kind["metric"], gap.value, gap.low, gap.high, gap.detectable, gap.items])
    columns = ["task", "type", "metric", "difference", "low", "high", "detectable", "items"]
    return pd.DataFrame(rows, columns=columns)


def average(scores: pd.DataFrame) -> pd.DataFrame:
    """The mean over the tasks of each suite, of one model, with its 95 % interval; suites are never mixed.

    Args:
        scores: A frame from :func:`evaluate`.

    Returns:
        One row per suite that has several tasks in ``scores``, with its columns; the row's task is the suite's name.

    Raises:
        InvalidValueError: A frame without items, or without rows.
    """
    if not isinstance(scores, pd.DataFrame) or "outcomes" not in scores.attrs or scores.empty:
        expected = "a frame as evaluate gave it, with a task or more"
        raise InvalidValueError("scores", expected, type(scores), "Average before pd.concat.")
    rows = []
    for name, tasks_of in _groups_of_tasks(scores):
        if name in set(tasks_of["task"]):
            continue
        found = effect({"it": 1.0}, {"it": Quantity.of(tasks_of)}, *scores.attrs["bootstrap"])
        row = tasks_of.iloc[:1].assign(task=name, type="", metric="", score=found.value, low=found.low, high=found.high)
        rows.append(row.assign(items=found.items, seconds=tasks_of["seconds"].sum()))
    return pd.concat(rows, ignore_index=True) if rows else scores.iloc[:0]


def _instructions(name: str) -> pd.DataFrame:
    """The instructions of a set for evaluation, without those for training."""
    frame = authored.instructions(name)
    return frame[frame["source"].str.contains("evaluation")]


def _groups_of_tasks(scores: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Each task alone, then the tasks of each suite that has several in the frame, by name."""
    for _, row in scores.iterrows():
        yield row["task"], _part(scores, scores["task"] == row["task"])
    for suite in scores["suite"].unique():
        inside = scores["suite"] == suite
        if suite in SUITES and inside.sum() > 1:
            yield suite, _part(scores, inside)


def _part(scores: pd.DataFrame, chosen: pd.Series) -> pd.DataFrame:
    rows = scores[chosen]
    rows.attrs |= scores.attrs
    return rows


def _run(task: Any, encoder: Any) -> Outcomes:
    """Run one task and keep what mteb would have written to disk: the outcome of each item."""
    import mteb
    from mteb.abstasks.aggregated_task import AbsTaskAggregate

    kept: dict[str, Any] = {"runs": 0}
    scores_of_task = getattr(task, "task_specific_scores", None)

    def keep_predictions(predictions: Any, *args: Any, **kwargs: Any) -> None:
        kept["predictions"] = predictions
        kept["runs"] += 1

    def keep_queries(scores: dict, *args: Any, **kwargs: Any) -> dict:
        kept["queries"] = scores
        return scores_of_task(scores, *args, **kwargs)

    # mteb hands over the outcomes of items on the way to a prediction file; this takes them and writes no file.
    task._save_task_predictions = keep_predictions
    if scores_of_task:
        task.task_specific_scores = keep_queries
    aggregate = isinstance(task, AbsTaskAggregate)
    parts = task.metadata.tasks if aggregate else [task]
    absent = [part for part in parts if not part.data_loaded]
    for part in absent:
        _load(part)
    result = mteb.evaluate(
        encoder,
        task,
        cache=None,
        co2_tracker=False,
        show_progress_bar=False,
        prediction_folder=None if aggregate else Path("unused"),
        encode_kwargs={"batch_size": 1024, "show_progress_bar": False},
    ).task_results[0]
    found = _items(task, result, kept) if kept["runs"] == 1 else _NO_ITEMS
    for part in absent:
        part.unload_data()
    made = Outcomes(100 * float(result.get_score()), *found, encoder.digest(), factor=100.0)
    if made.reproduces_score():
        return made
    why = f"mteb's score of {task.metadata.name} can't be taken apart into items."
    return Outcomes.none(made.score, why, made.items)


def _load(task: Any) -> None:
    """Load the data of an mteb task; an error says what is missing."""
    name, path = task.metadata.name, task.metadata.dataset["path"]
    try:
        task.load_data()
    except Exception as error:  # the Hub, its cache, the network and the disk each raise their own errors
        files = file_names(name)
        local = f", in the files {files} of the folder that WORKBOOK_DATA names" if files else ""
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise MissingDataError(
            f"The data of task {name} were looked for in the Hugging Face cache and on the Hub as {path}{local}: "
            f"{reason}. Ways out: connect to the network (and unset HF_HUB_OFFLINE); copy the Hugging Face cache from "
            "a machine that has them and set HF_HOME; or evaluate on suite docs, which needs no data."
        ) from error


_NO_ITEMS = ("none", np.zeros(0), None, None, 0, "")


def _items(
    task: Any, result: Any, kept: dict[str, Any]
) -> tuple[str, np.ndarray, np.ndarray | None, np.ndarray | None, int, str]:
    """Statistic, values, gold, groups, number and units of a task's items, as :class:`Outcomes` has them."""
    split, kind, metric = task.eval_splits[0], task.metadata.type, task.metadata.main_score
    data = (task.dataset.get("default") or task.dataset)[split]
    predictions = kept["predictions"]
    if "queries" in kept:
        key = metric.replace("ndcg_at", "ndcg_cut").replace("map_at", "map_cut")
        values = [kept["queries"].get(query, {}).get(key, np.nan) for query in data["queries"]["id"]]
        return "mean", np.array(values), None, None, len(values), units(data["queries"]["text"])
    if kind == "STS":
        gold, (groups, texts) = _column(data, "score", float), _groups(data, task.column_names[0])
        return "spearman", np.array(predictions["cosine_scores"]), gold, groups, len(gold), units(texts)
    if kind == "PairClassification":
        gold = _column(data, task.label_column_name, float)
        groups, texts = _groups(data, task.input1_column_name)
        return "average_precision", _best_similarity(predictions, gold, metric), gold, groups, len(gold), units(texts)
    if kind == "Classification" and metric == "accuracy":
        right = np.array(predictions) == np.array(data[task.label_column_name])
        return "mean", right.mean(axis=0), None, None, right.shape[1], units(data[task.input_column_name])
    measures = result.scores[split][0].get("v_measures")
    if isinstance(measures, list):  # the first form of mteb's clustering: many sets, each clustered once
        return "mean", np.array(measures), None, None, len(measures), units(data[task.input_column_name])
    if isinstance(measures, dict) and len(measures) == 1:  # the second: resamples of one set, one level of labels
        (values,) = measures.values()
        return "replicates", np.array(values), None, None, len(data), units(data[task.input_column_name])
    return _NO_ITEMS


def _column(data: Any, name: str, dtype: type) -> np.ndarray:
    """A column of a data set; the oldest ones hold it as a list in a single row."""
    return np.array(data[name][0] if isinstance(data[name][0], list) else data[name], dtype=dtype)


def _groups(data: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Groups of equal texts in a column: each text's group number, int (items,), and the text of each group."""
    return pd.factorize(_column(data, name, object))


def _best_similarity(predictions: dict[str, Any], gold: np.ndarray, metric: str) -> np.ndarray:
    """Cosine; for mteb's ``max_`` metrics the similarity that ranks the pairs best."""
    similarities = [np.array(predictions["cosine_scores"])]
    if metric.startswith("max_"):
        similarities += [
            np.array(predictions["dot_scores"]),
            -np.array(predictions["euclidean_distances"]),
            -np.array(predictions["manhattan_distances"]),
        ]
    once = np.ones((1, len(gold)))
    return max(similarities, key=lambda values: average_precision(once, values, gold)[0])


@contextlib.contextmanager
def cut_to(model: SentenceTransformer, max_length: int) -> Iterator[None]:
    """Limit a model to inputs of at most ``max_length`` tokens inside the block.

    Args:
        model: Any SentenceTransformer, or a hybrid.
        max_length: Longest input in tokens.
    """
    before = [(part, part.max_seq_length) for part in _parts(model)]
    for part, length in before:
        part.max_seq_length = min(length or max_length, max_length)
    try:
        yield
    finally:
        for part, length in before:
            part.max_seq_length = length


def _parts(model: SentenceTransformer) -> list[SentenceTransformer]:
    """The embedders that read the texts: both of a hybrid, else the model itself."""
    from ..modules import Hybrid

    first = next(iter(model), None)
    return (
        [part for one in (first.first, first.second) for part in _parts(one)] if isinstance(first, Hybrid) else [model]
    )


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Undo mteb's side effects: on every random state (it seeds all with 42), progress bars and warnings."""
    import torch
    from datasets.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    bars = not are_progress_bars_disabled()
    states = random.getstate(), np.random.get_state()
    disable_progress_bars()
    try:
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*superseded.*")
            # mteb stops its logistic regression after 100 steps, on purpose: scores are what others get from it.
            warnings.filterwarnings("ignore", message="lbfgs failed to converge")
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        if bars:
            enable_progress_bars()
